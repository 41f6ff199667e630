"""Two runs over each other: against scipy, at the edges, and through the command on real receipts."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronbench.training.curves import bounded
from neuronbench.training.overlay import overlay


def run(seed: int, steps: int = 40, wobble: float = 0.0) -> dict[int, float]:
    draw = random.Random(seed)
    return {step: 3 * math.exp(-step / 20) + 1 + wobble * draw.gauss(0, 1) for step in range(1, steps + 1)}


def test_the_same_run_twice() -> None:
    found = overlay(run(1, wobble=0.1), run(1, wobble=0.1))
    assert found.identical
    assert (found.mean_gap, found.max_gap, found.divergence_step) == (0.0, 0.0, None)
    assert found.pearson_r == pytest.approx(1.0)


def test_gaps_and_correlation_are_scipy_s() -> None:
    from scipy import stats

    a, b = run(1, wobble=0.1), run(2, wobble=0.1)
    found = overlay(a, b)
    x, y = list(a.values()), list(b.values())
    assert found.pearson_r == pytest.approx(stats.pearsonr(x, y).statistic)
    gaps = [abs(q - p) for p, q in zip(x, y, strict=True)]
    assert found.mean_gap == pytest.approx(sum(gaps) / len(gaps))
    assert found.max_gap == max(gaps)
    assert found.max_gap_step == 1 + gaps.index(max(gaps))
    assert not found.identical


def test_divergence_begins_where_the_tolerance_is_passed() -> None:
    a = run(1)
    b = {step: loss * (1 + (0.002 if step >= 17 else 0.0005)) for step, loss in a.items()}
    assert overlay(a, b).divergence_step == 17
    assert overlay(a, b, tolerance=0.01).divergence_step is None
    assert overlay(a, b, tolerance=0.0).divergence_step == 1


def test_unequal_lengths_and_losses_that_are_not_finite() -> None:
    a, b = run(1, steps=40), run(1, steps=30)
    b[5] = math.nan
    found = overlay(a, b)
    assert (found.only_first, found.only_second, found.not_finite, len(found.steps)) == (10, 0, 1, 29)
    assert not found.identical
    flat = overlay(dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 2.0))
    assert flat.pearson_r is None  # nothing moves, so nothing moves together
    assert overlay({1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0}).pearson_r is None
    with pytest.raises(ValueError, match="no step in common"):
        overlay({1: 1.0}, {2: 1.0})
    with pytest.raises(ValueError, match="tolerance"):
        overlay(a, b, tolerance=-1)


@given(count=st.integers(0, 5000), limit=st.integers(2, 300), data=st.data())
def test_thinning_keeps_the_ends_and_what_it_is_told(count: int, limit: int, data: st.DataObject) -> None:
    extremes = data.draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=2)) if count else []
    kept = bounded(count, limit, extremes)
    assert len(kept) <= min(count, limit)
    assert kept == sorted(set(kept))
    if count and limit >= 4:
        assert {0, count - 1, *extremes} <= set(kept)
    if count <= limit:
        assert kept == list(range(count))


# -- through the command, on receipts of real (toy) runs -------------------------------------------------------------


def command(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neuronbench", "--root", str(root), "overlay", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def receipts(tmp_path: Path) -> Path:
    """A session of training runs (two alike, another seed, one cut off, three in one record) and something else."""
    from neuronbench.model import Failure, FrozenMap, Metric, Outcome, Point, Record
    from neuronbench.receipts import ReceiptStore

    (tmp_path / "pyproject.toml").write_text("")
    store = ReceiptStore(tmp_path / "mlruns" / "receipts")
    session = store.begin_session(command=["test"])

    def add(name: str, *runs: tuple[int, range, dict[str, Any]], error: bool = False) -> None:
        record = Record(
            session=session,
            point=Point(benchmark="b", lane="lora_sft", backend="cpu", params=FrozenMap(name=name), id=name),
        )
        staging = store.open(record)
        record.workload["training"] = []
        for number, (seed, steps, facts) in enumerate(runs, 1):
            table = "steps" if number == 1 else f"steps-{number}"
            losses = {step: loss for step, loss in run(seed, wobble=0.1).items() if step in steps}
            write_steps(staging.folder / f"{table}.parquet", losses)
            record.tables[table] = f"{table}.parquet"
            job = {"seed": seed, "steps": 40, "adapter": {"r": 8}, "digest": f"d{seed}"}
            record.workload["training"].append(
                {"job": job, "dataset": {"digest": "da"}, "init_digest": f"{seed:064x}", "complete": True, **facts}
            )
        if error:
            record.error = Failure(kind="worker_died", phase="window", message="died", causal_line="died")
        else:
            record.add(Metric(id="x", value=1.0, unit="s"))
        outcome = Outcome.ERROR if error else Outcome.OK
        record.close(outcome, ended_at="2026-01-01T00:00:00+00:00", duration_s=1.0)
        store.commit(record, staging)

    whole = range(1, 41)
    add("one", (1, whole, {}))
    add("again", (1, whole, {}))
    add("other", (2, whole, {"job": {"seed": 2, "steps": 40, "adapter": {"r": 16}, "digest": "d2"}}))
    add("cut_off", (1, range(1, 13), {"complete": False}), error=True)
    add("many", (1, whole, {}), (1, range(31, 41), {"resumed_from": 30}), (2, whole, {}))
    add("none")
    add("dead", error=True)
    return tmp_path


def write_steps(path: Path, losses: dict[int, float]) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    parquet.write_table(
        arrow.table({"rank": [0] * len(losses), "step": list(losses), "loss": list(losses.values())}), path
    )


def test_the_command_shows_gaps_and_what_differs(receipts: Path, tmp_path: Path) -> None:
    figure = tmp_path / "both.png"
    done = command(
        receipts, "last/one--r1", "last/other--r1", "--figure", str(figure), "--json", str(tmp_path / "o.json")
    )
    assert done.returncode == 0, done.stderr
    assert "Pearson r" in done.stdout
    assert "differs: job.seed: 1 in A, 2 in B" in done.stdout
    assert "differs: job.adapter.r: 8 in A, 16 in B" in done.stdout
    assert "initial_state: 000000000000 in A" in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")
    said = json.loads((tmp_path / "o.json").read_text())
    assert said["identical"] is False
    assert said["differs"] == {
        "job.adapter.r": [8, 16],
        "job.seed": [1, 2],
        "initial_state": [f"{1:064x}", f"{2:064x}"],
    }
    assert said["marks"] == []
    alike = command(receipts, "last/one--r1", "last/again--r1", "--json", "-")
    assert json.loads(alike.stdout)["identical"] is True
    assert json.loads(alike.stdout)["differs"] == {}


def test_a_run_that_was_cut_off_is_laid_over_and_marked(receipts: Path, tmp_path: Path) -> None:
    page = tmp_path / "both.html"
    done = command(receipts, "last/one--r1", "last/cut_off--r1", "--figure", str(page))
    assert done.returncode == 0, done.stderr
    assert "B: outcome error" in done.stdout
    assert "B: unfinished: step 12 of 40" in done.stdout
    assert "A has 40 steps, B has 12: compared are the 12 in common" in done.stdout
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<svg" in text
    assert "unfinished: step 12 of 40" in text
    assert "<td>Pearson r</td>" in text


def test_runs_of_one_record_are_told_apart_by_their_number(receipts: Path) -> None:
    said = json.loads(command(receipts, "last/many--r1", "last/many--r1#2", "--json", "-").stdout)
    assert (said["identical"], said["steps"], said["only_first"]) == (True, 10, 30)
    assert said["b"].endswith("many--r1#2")
    assert any("run 1 of 3" in mark for mark in said["marks"])
    assert any("went on from step 30" in mark for mark in said["marks"])
    third = json.loads(command(receipts, "last/many--r1", "last/many--r1#3", "--json", "-").stdout)
    assert third["identical"] is False
    assert third["differs"]["job.seed"] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("last/one--r1", "last/none--r1"), "no steps.parquet: expected a training run, found a record of lane"),
        (("last/one--r1", "last/dead--r1"), "the run made no step before it ended (error, worker_died)"),
        (("last/one--r1", "last/many--r1#4"), "no steps-4.parquet: it has 3 runs"),
        (("last/one--r1", "nothing"), "SESSION/NAME"),
        (("last/one--r1", "last/absent"), "no such receipt"),
        (("last/one--r1", "last/other--r1", "--tolerance", "7"), "tolerance"),
        (("last/one--r1", "last/other--r1", "--figure", "/no/such/folder/x.png"), "--figure"),
    ],
)
def test_what_cannot_be_laid_over(receipts: Path, arguments: tuple[str, ...], words: str) -> None:
    done = command(receipts, *arguments)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
