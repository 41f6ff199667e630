"""What a terminal and MLflow's note say beside a utilisation: the formula and the peak that it is of."""

from __future__ import annotations

from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Point, Record
from neuronbench.report.tables import utilisation_notes
from neuronbench.sinks.mlflow import notes


def record(size: int, value: float | None, note: str) -> Record:
    point = Point(
        benchmark="b::bench_x", lane="lora_sft", backend="cpu", params=FrozenMap(b=size), id=f"lora_sft.x-cpu-b{size}"
    )
    made = Record(session="s", point=point)
    made.add(metric("mfu", value, n=9, note=note), metric("train_throughput", 5.0, n=9))
    return made


def test_one_line_for_points_that_share_formula_and_peak() -> None:
    alike = [
        record(1, 30.0, "6·1 = 6 FLOPs per token; 1 × 95 TFLOP/s"),
        record(2, 31.0, "6·1 = 6 FLOPs per token; 1 × 95 TFLOP/s"),
    ]
    assert utilisation_notes(alike) == ["MFU: 6·1 = 6 FLOPs per token; 1 × 95 TFLOP/s"]


def test_points_that_do_not_are_named_and_counted() -> None:
    several = [record(size, None, f"formula {size}") for size in (1, 2, 4)]
    assert utilisation_notes(several) == [
        "MFU of b1: formula 1",
        "MFU of b2: formula 2",
        "MFU of 1 more: in their records",
    ]
    assert utilisation_notes([record(1, 3.0, "")]) == []


def test_the_note_in_mlflow_has_the_formula_of_a_number_that_is_there() -> None:
    assert notes.utilisation(record(1, 30.0, "a | b").metrics) == "MFU by a \\| b"
    assert notes.utilisation(record(1, None, "no peak known").metrics) == ""  # the table says why
    keys = [each.key for each in notes.headline(record(1, 30.0, "f").metrics)]
    assert keys == ["train_throughput_tok_s", "mfu_pct"]
