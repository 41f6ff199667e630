"""What the study published, computed again from its receipts: how a figure is compared, the table, the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from study_samples import SAMPLES, handed, point, run, telemetry, write, write_all

from neuronbench.importers.study import figures
from neuronbench.importers.study.expressions import evaluate
from neuronbench.importers.study.figures import ABSENT, MATCH, MISMATCH

CUT = "cut, not rounded"


@pytest.mark.parametrize(
    ("printed", "value", "agrees", "why"),
    [
        ("5550", 5550.43, True, ""), ("5550", 5550.6, True, CUT), ("3661", 3661.505, True, CUT),
        ("120.2", 120.304, False, ""), ("1.3", 1.2102, False, ""), ("95", 122.23, False, ""),
        ("100.0", 99.98, True, ""), ("25.5", 25.55, True, CUT), ("1678", 1678.5, True, ""),
        ("0.65", 0.6486, True, ""), ("0.0", 0, True, ""),
        ("-0.0205", -0.020498, True, ""), ("0.0205", -0.020498, False, ""), ("6", 6, True, ""), ("6", 7, False, ""),
        ("2.18 -> 1.21", [2.1806, 1.2063], True, ""), ("7/7", [7, 7], True, ""), ("7/7", [6, 7], False, ""),
        ("17.6|56.5|206", [17.6, 56.5, 206.4], True, ""), ("1|2", [1], False, "printed 2 numbers, computed 1"),
        ("<= 5", 5.93, False, ""), ("<= 5", 4.9, True, ""), ("True", True, True, ""), ("True", False, False, ""),
        ("pass", "export_unsupported", False, ""), ("1", float("nan"), False, ""), ("1", None, False, ""),
        ("1", 1e400, False, ""), ("1", 10**40, False, ""),
    ],
)  # fmt: skip
def test_a_figure_is_compared_to_the_digits_it_was_printed_with(
    printed: str, value: Any, agrees: bool, why: str
) -> None:
    assert figures.compare(printed, value) == (agrees, why)


def test_expressions() -> None:
    data = run(timer_ms=1000.0)
    names = {"a": data, "b": {"n": {"x": 2}}, "r": [{"v": 3.0}, {"v": 6.0}]}
    assert evaluate("1 + 2 * -3 / 4", {}) == pytest.approx(-0.5)
    assert evaluate("b.n['x'] + r[1].v", names) == 8.0
    assert evaluate("mean(column(r, 'v'))", names) == 4.5
    assert evaluate("spread(column(r, 'v'))", names) == 1.0
    assert evaluate("word(b.n.x > 1, 'more', 'less')", names) == "more"
    assert evaluate("step_rate(a)", names) == pytest.approx(4096e3 / 1000.5)
    assert evaluate("column(a.loss_trace, 'loss')[-2:]", names) == [1.81, 1.8]
    assert evaluate("overlay(a, a).identical", names) is True
    assert evaluate("distinct([1.0, 1.0, 2])", names) == [1.0, 2]
    with pytest.raises(KeyError, match="nothing"):
        evaluate("a.nothing", names)
    with pytest.raises(TypeError):
        evaluate("a.model + 1", names)


def test_the_table() -> None:
    rows = list(figures.table())
    assert len({row.id for row in rows}) == len(rows)
    by_kind = {kind: [row for row in rows if row.kind == kind] for kind in ("figure", "claim")}
    assert (len(by_kind["figure"]), len(by_kind["claim"]), len(rows)) == (158, 13, 171)
    assert [row.id for row in by_kind["figure"]][:148] == [str(n) for n in range(1, 150) if n != 135]
    for row in rows:
        assert row.receipts
        assert all(name.split("/")[1] == "results" for name in row.receipts)
        assert "{" not in "".join(row.receipts)
        assert row.printed
        assert row.what
        with pytest.raises((KeyError, IndexError, TypeError)):  # of its receipts, and so no constant
            evaluate(row.expression, {"r": [{}] * 10, "a": {}, "b": {}})


def test_names_with_braces_are_several() -> None:
    assert list(figures.expanded("a{1,2}/b{x,y}.json")) == ["a1/bx.json", "a1/by.json", "a2/bx.json", "a2/by.json"]


def verdict(folder: Path, row: str) -> figures.Verdict:
    return next(one for one in figures.verdicts(folder) if one.row.id == row)


def test_match_mismatch_and_what_is_not_there(tmp_path: Path) -> None:
    short = "inf2/results/serve/llama31_base_short"
    write(tmp_path, f"{short}/isl1024_osl1024_c8.json", point(total_output_tokens=11_931, duration=100.0))
    assert verdict(tmp_path, "36").verdict == MATCH
    write(tmp_path, f"{short}/isl1024_osl1024_c8.json", point(total_output_tokens=11_900, duration=100.0))
    found = verdict(tmp_path, "36")
    assert (found.verdict, found.value) == (MISMATCH, pytest.approx(119.0))
    absent = verdict(tmp_path, "48")
    assert (absent.verdict, absent.value) == (ABSENT, None)
    assert absent.why == f"{short}/isl1024_osl1024_c32.json and 1 more"
    write(tmp_path, f"{short}/isl1024_osl1024_c8.telemetry.csv", telemetry(busy=94.4))
    assert verdict(tmp_path, "39").verdict == MATCH
    write(tmp_path, f"{short}/isl1024_osl1024_c8.telemetry.csv", telemetry(seconds=1))
    assert verdict(tmp_path, "39").why == "no busy_pct in it"


def test_texts_of_a_demonstration_are_read_by_their_names(tmp_path: Path) -> None:
    text = '  "latency_ms_avg": 8586.85,\n "throughput": 149.06\n "latency_ms_avg": 195.2, "throughput": 5245.3\n'
    write(tmp_path, "inf2/results/extras/spec_decode/baseline.extract.txt", text)
    assert (verdict(tmp_path, "89").verdict, verdict(tmp_path, "90").verdict) == (MATCH, MATCH)
    claim = verdict(tmp_path, "W10")
    assert (claim.verdict, claim.value) == (MISMATCH, pytest.approx(256e3 / 8586.85))


def check(*arguments: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neuronbench", "--root", str(root), "import", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    study = write_all(tmp_path / "study")
    done = check("study", str(study), "--check", root=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "published, and not what the receipts say" in done.stdout
    assert "found: less accurate than the reference (accuracy)" in done.stdout
    assert not (tmp_path / "mlruns").exists(), "a check writes nothing"
    told = json.loads(check("study", str(study), "--check", "--json", root=tmp_path).stdout)
    assert set(told) == {"figures", "counts", "findings"}
    assert len(told["figures"]) == 171
    assert sum(told["counts"]["figure"].values()) == 158
    one = told["figures"][0]
    assert {"id", "what", "where", "printed", "recomputed", "verdict", "receipts", "expression"} <= set(one)
    imported = check("study", str(study), root=tmp_path)
    assert imported.returncode == 0, imported.stderr
    assert "imported-study-" in imported.stdout
    path = write(tmp_path, "x/boot.json", SAMPLES["boot"][1])
    other = check("vllm", str(path), "--check", root=tmp_path)
    assert other.returncode == 2
    assert "study" in other.stderr


def test_section_five_of_the_handed_receipts() -> None:
    """Every published figure whose receipt is at hand is what the receipt says, except for exactly these."""
    found = figures.verdicts(handed())
    by_kind = {
        kind: {name: [one.row.id for one in found if (one.row.kind, one.verdict) == (kind, name)]
               for name in (MATCH, MISMATCH, ABSENT)}
        for kind in ("figure", "claim")
    }  # fmt: skip
    assert by_kind["figure"][MISMATCH] == ["8", "10", "12", "57", "73"]
    assert {"54", "128"} <= set(by_kind["figure"][ABSENT]), "the other two of the seven: their receipts are not handed"
    assert len(by_kind["figure"][MATCH]) == 68
    assert by_kind["claim"][MISMATCH] == ["W1", "W3", "W4", "W5", "W6", "W7", "W8", "W9"]
    assert by_kind["claim"][MATCH] == []
    values = {one.row.id: one.value for one in found}
    assert values["8"] == pytest.approx(122.2277, abs=1e-4)
    assert values["10"] == pytest.approx(6753.565)
    assert values["57"] == pytest.approx(16.7034, abs=1e-4)
    assert values["73"] == pytest.approx(1.2102, abs=1e-4)
    assert values["W7"] == 1.5041
