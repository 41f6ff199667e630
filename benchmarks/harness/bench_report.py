"""What reporting ten thousand receipts costs, with a comparison in it, from the command to the last line."""

from __future__ import annotations

import statistics
from pathlib import Path

from bench_compare import RECEIPTS, TURNS, bare, seconds, write


def bench_report(board, tmp_path: Path) -> None:
    """`neuronbench report --compare` of two sessions of 1,000 points with 5 repeats each, beside only reading them."""
    (tmp_path / "neuronbench.toml").write_text("")
    write(tmp_path)
    html, reference = [], []
    page = tmp_path / "report.html"
    for _ in range(TURNS):
        html.append(seconds(tmp_path, "report", "latest", "--compare", "latest~1", "--out", str(page)))
        reference.append(bare(tmp_path))
    markdown = seconds(tmp_path, "report", "latest~1,latest", "--out", str(tmp_path / "report.md"))
    text = page.read_text(encoding="utf-8")
    assert "500 more points are not in this table" in text
    assert "of 1000 points are drawn" in text
    size_mb = len(text.encode()) / 1e6
    assert size_mb < 5, "a phone has to load it"
    board.report(
        what=f"report of {RECEIPTS:,} receipts with a comparison", unit="s", value=statistics.median(html), turns=html,
        budget=10.0, bare=statistics.median(reference), note=f"a page of {size_mb:.1f} MB",
    )  # fmt: skip
    board.report(what="the same as Markdown, without", unit="s", value=markdown, turns=[markdown])
