"""Figures of training runs: what is drawn is what the table says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Gate, Point, Record
from neuronbench.report import figures, training
from neuronbench.training.curves import counted_ranks, of_rank_zero, rates, thinned
from neuronbench.training.overlay import overlay
from neuronbench.training.steps import COLUMNS


def table(steps: int = 30, *, ranks: int = 2, bad: int = 0, shift: float = 0.0) -> Any:
    import pyarrow as arrow

    rows = []
    for rank in range(ranks):
        now = 0
        for step in range(1, steps + 1):
            begin, end = now + 1_000_000, now + 10_000_000
            rows.append(
                {
                    "rank": rank, "step": step, "begin_ns": begin, "returned_ns": begin + 500_000, "end_ns": end,
                    "wall_ns": end - now, "loss": math.nan if step == bad else 3 / step + shift, "grad_norm": 1.0,
                    "learning_rate": 1e-4, "tokens": 100 + step, "padding_tokens": 0, "sequences": 1,
                    "micro_batches": 1,
                }
            )  # fmt: skip
            now = end
    return arrow.table({name: [row[name] for row in rows] for name in COLUMNS})


def record(*runs: dict[str, Any], invalid: bool = False) -> Record:
    made = Record(
        session="s",
        point=Point(benchmark="b", lane="lora_sft", backend="cpu", params=FrozenMap(), id="sft"),
    )
    made.workload["training"] = list(runs)
    made.add(metric("train_throughput", 12_345.0, n=29))
    made.gate(Gate(id="timer_escapes_device", passed=not invalid))
    return made


def curve(axes: Any, label: str) -> tuple[list[float], list[float]]:
    (line,) = [each for each in axes.get_lines() if each.get_label() == label]
    return list(line.get_xdata()), list(line.get_ydata())


def test_a_run_has_its_loss_its_step_time_and_its_rate(tmp_path: Path) -> None:
    drawn = training.figures_for(record({}), {1: table()})
    assert list(drawn) == ["loss", "step_time", "tok_s"]
    (axes,) = drawn["tok_s"].axes
    steps, by_wall = curve(axes, "step, by the wall")
    assert steps == list(range(2, 31))
    assert by_wall == pytest.approx([2 * (100 + step) / 0.01 for step in steps])
    assert curve(axes, "step, with the device's barrier")[1] == pytest.approx([2 * (100 + s) / 0.009 for s in steps])
    assert curve(axes, "recorded: 1.234e+04 tok/s")[1] == [12_345.0, 12_345.0]
    (axes,) = drawn["step_time"].axes
    assert curve(axes, "wall, end to end")[1] == pytest.approx([10.0] * 29)
    assert curve(axes, "with the device's barrier")[1] == pytest.approx([9.0] * 29)
    for name, figure in drawn.items():
        figures.save(figure, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_what_must_not_be_quoted_says_so_in_the_picture() -> None:
    for figure in training.figures_for(record({}, invalid=True), {1: table()}).values():
        assert "INVALID" in figure.texts[0].get_text()


def test_a_loss_that_is_not_finite_is_a_mark_and_no_hole_in_silence() -> None:
    figure = training.figures_for(record({}), {1: table(bad=9)})["loss"]
    assert "not finite from step 9" in [figure.axes[0].get_title(loc="right")]


def test_the_runs_of_a_record_are_one_figure() -> None:
    tables = {number: table(shift=number) for number in range(1, 11)}
    figure = training.figures_for(record(*[{}] * 10), tables)["losses"]
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == [f"run {number}" for number in range(1, 9)]
    assert figure.axes[0].get_title(loc="right") == "2 more runs are not drawn"


@pytest.mark.parametrize("steps", [0, 1])
def test_runs_without_a_step_to_draw(steps: int) -> None:
    drawn = training.figures_for(record({}), {1: table(steps)})
    assert bool(drawn) is bool(steps)
    for figure in drawn.values():
        figure.canvas.draw()  # type: ignore[attr-defined]


def test_tokens_of_ranks_that_share_their_data_count_once() -> None:
    shared = record({"shards": {"0": [0, 1], "1": [0, 1]}})
    assert counted_ranks(shared, 1) == {0}
    assert counted_ranks(record({"shards": {"0": [0, 2], "1": [1, 2], "2": [0, 2]}}), 1) == {0, 1}
    assert counted_ranks(record({}), 1) is None
    assert counted_ranks(record({}), 5) is None
    columns = of_rank_zero(table(3), {0})
    assert columns["tokens"].tolist() == [101, 102, 103]
    assert of_rank_zero(table(3), None)["tokens"].tolist() == [202, 204, 206]
    assert np.isnan(rates(columns)[0])
    assert rates(columns)[1:].tolist() == pytest.approx([10_200.0, 10_300.0])


def test_thinning_keeps_the_extremes() -> None:
    values = np.sin(np.arange(10_000) / 500.0)
    values[[7_777, 4_321]] = 5.0, -5.0
    values[100] = math.nan
    kept = thinned(values, 500)
    assert {0, 9_999, 7_777, 4_321} <= set(kept)
    assert len(kept) <= 500


def test_an_overlay_shows_where_two_runs_part_and_says_what_must_be_known() -> None:
    a = {step: 3 / step for step in range(1, 41)}
    found = overlay(a, {step: loss * (1.01 if step >= 20 else 1.0) for step, loss in a.items()})
    figure = training.overlay(found, ("A  one", "B  two"), "Training losses", ["B: unfinished: step 40 of 99"])
    upper, lower = figure.axes
    assert [text.get_text() for text in upper.get_legend().get_texts()] == ["A  one", "B  two"]
    assert "first at step 20" in lower.get_title(loc="right")
    assert any("unfinished: step 40 of 99" in text.get_text() for text in figure.texts)
    page = training.overlay_page(figure, [("mean <gap>", "1")], ["B & A"])
    assert "mean &lt;gap&gt;" in page
    assert "<li>B &amp; A</li>" in page
    same = training.overlay(overlay(a, a), ("A", "B"), "t")
    assert same.axes[1].get_title(loc="right") == "the same to the bit"
    apart = training.overlay(overlay({1: math.nan}, {1: 1.0}), ("A", "B"), "t")
    assert "no finite loss in common" in apart.axes[0].texts[0].get_text()
