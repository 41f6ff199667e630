"""Figures: the right population, whatever columns there are, and no global state of matplotlib."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import synthetic_receipts as synthetic

from neuronbench.model import Provenance
from neuronbench.report import figures
from neuronbench.report.requests import requests_of, token_instants


def texts(figure: Any) -> str:
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts] + [axes.get_xlabel(), axes.get_ylabel()]
    return "\n".join(found)


def curve(axes: Any) -> tuple[Any, Any]:
    line = axes.lines[0]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def test_a_curve_counts_failures_as_never_finished() -> None:
    requests = requests_of(synthetic.requests(100, failed=9))
    figure = figures.latency_cdf(requests, title="t")
    counted, failed = int(requests.counted.sum()), int((requests.counted & ~requests.ok).sum())
    assert (counted, failed) == (90, 9)
    assert "90 requests in the window, 9 failed" in texts(figure)
    ttft, tpot, e2e = figure.axes
    for axes, expected in ((ttft, 81 / 90), (tpot, 1.0), (e2e, 81 / 90)):
        values, shares = curve(axes)
        assert shares[-1] == pytest.approx(expected)
        assert np.all(np.diff(values) >= 0)
    assert "p99 falls on a failed request" in texts(figure)
    median = np.sort(requests.ttft_ms[requests.counted & requests.ok])[44]  # nearest rank of 90
    assert f"p50 {median:.4g}" in texts(figure)


def test_tokens_over_time_sum_to_the_tokens_there_were() -> None:
    table = synthetic.requests(50, failed=5)
    requests = requests_of(table)
    times, weights = token_instants(requests)
    assert weights.sum() == pytest.approx(45 * 32)
    assert times.max() == pytest.approx(np.nanmax(requests.last_s), abs=1e-6)
    without = requests_of(table.drop_columns(["icl_ms", "first_chunk_tokens"]))
    times, weights = token_instants(without)
    assert weights.sum() == pytest.approx(45 * 32)


def test_chunks_count_when_they_came() -> None:
    row = {
        "ok": True, "first_output_ns": 10**9, "last_output_ns": 10**9 + 3 * 10**8, "output_tokens": 7,
        "first_chunk_tokens": 1, "icl_ms": [100.0, 200.0],
    }  # fmt: skip
    times, weights = token_instants(requests_of(pa.Table.from_pylist([row])))
    order = np.argsort(times)
    assert times[order] == pytest.approx([0.0, 0.1, 0.3])
    assert weights[order] == pytest.approx([1.0, 3.0, 3.0])


def test_the_window_is_shaded_where_it_was() -> None:
    record = synthetic.record("s")
    requests = requests_of(synthetic.requests(100))
    figure = figures.timeline(requests, title="t", window=record.workload["window"])
    (patch,) = [
        p for p in figure.axes[0].patches if p.get_facecolor()[:3] == pytest.approx((0.91, 0.933, 0.961), abs=0.01)
    ]
    assert patch.get_x() == pytest.approx(0.3)
    assert patch.get_width() == pytest.approx(2.6)
    assert "measuring window shaded" in texts(figure)
    assert "measuring window unknown" in texts(figures.timeline(requests, title="t"))
    assert "measuring window unknown" in texts(figures.timeline(requests, title="t", window={"start_ns": None}))


@pytest.mark.parametrize("column", synthetic.SCHEMA.names)
def test_any_column_may_be_missing_and_is_named(column: str, tmp_path: Path) -> None:
    table = synthetic.requests(30).drop_columns([column])
    drawn = figures.figures_for(synthetic.record("s"), table)
    assert set(drawn) == {"latency_cdf", "timeline"}
    used = column in requests_of(table).missing
    assert (column in texts(drawn["timeline"])) == used
    figures.save(drawn["latency_cdf"], tmp_path / "f.png")


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"request_id": [1, 2]}),
        pa.table({"ok": [True], "ttft_ms": [1.0]}),
        synthetic.requests(6, failed=4),
        synthetic.requests(3, failed=0).slice(0, 1),
        pa.table({name: pa.nulls(3, type=synthetic.SCHEMA.field(name).type) for name in synthetic.SCHEMA.names}),
    ],
    ids=["ids only", "one number", "mostly failed", "one row", "all null"],
)
def test_poor_tables_still_give_figures(table: pa.Table, tmp_path: Path) -> None:
    for stem, figure in figures.figures_for(synthetic.record("s"), table).items():
        figures.save(figure, tmp_path / f"{stem}.png")
        assert (tmp_path / f"{stem}.png").read_bytes()[:4] == b"\x89PNG"


def test_the_table_of_the_measuring_client_has_every_column(tmp_path: Path) -> None:
    from neuronbench.load.table import SCHEMA

    plain = synthetic.requests(40, failed=3)
    shared = [name for name in SCHEMA.names if name in plain.column_names]
    table = pa.table({name: plain.column(name).cast(SCHEMA.field(name).type) for name in shared})
    requests = requests_of(table)
    assert requests.missing == ()
    assert requests.icl_ms == pytest.approx(requests_of(plain).icl_ms, rel=1e-6)
    assert sum(bool(name) for name in requests.failure) == 3
    for stem, figure in figures.figures_for(synthetic.record("s"), table).items():
        assert "not in the table" not in texts(figure)
        figures.save(figure, tmp_path / f"{stem}.png")


def test_no_rows_no_figures() -> None:
    assert figures.figures_for(synthetic.record("s"), synthetic.requests(10).slice(0, 0)) == {}


def test_what_may_not_be_quoted_says_so_in_the_title() -> None:
    invalid = synthetic.invalid("s", provenance=Provenance.SIMULATED)
    for figure in figures.figures_for(invalid, synthetic.requests(20)).values():
        assert "INVALID, SIMULATED" in texts(figure)
    for figure in figures.figures_for(synthetic.record("s"), synthetic.requests(20)).values():
        assert "INVALID" not in texts(figure)


def test_many_requests_are_thinned_but_not_their_extremes() -> None:
    count = 200_000
    table = pa.table(
        {
            "ok": [True] * count,
            "scheduled_ns": np.arange(count) * 10**6,
            "sent_ns": np.arange(count) * 10**6,
            "end_ns": np.arange(count) * 10**6 + 10**8,
            "ttft_ms": np.where(np.arange(count) == 77_777, 9_999.0, 50.0 + np.arange(count) % 7),
        }
    )
    drawn = figures.figures_for(synthetic.record("s"), table)
    values, shares = curve(drawn["latency_cdf"].axes[0])
    assert values.size <= 2 * figures.CURVE_LIMIT
    assert (values[-1], shares[-1]) == (9_999.0, 1.0)
    scatter = drawn["timeline"].axes[1].lines[0]
    assert len(scatter.get_xdata()) <= figures.SCATTER_LIMIT
    assert max(scatter.get_ydata()) == 9_999.0
    assert f"of {count}" in texts(drawn["timeline"])


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import synthetic_receipts as s; from neuronbench.report import figures\n"
        "assert 'matplotlib' not in sys.modules\n"
        "[f.canvas.draw() for f in figures.figures_for(s.record('s'), s.requests(20)).values()]\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code, str(root / "sinks")], cwd=root.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
