"""Published figures in the terminal: the ratios, or why there is none, and what is odd about the row."""

from __future__ import annotations

from typing import Any

from neuronbench import beside_published
from neuronbench.definitions import metric
from neuronbench.model import Environment, FrozenMap, Point, Record
from neuronbench.report.beside import published_lines

PARAMS = {"model": "hub:xlm-roberta-base", "batch_size": 8, "sequence_length": 128, "dtype": "float32",
          "run_mode": "data_parallel", "instance_type": "trn1.32xlarge", "edition": "trn1-2024-04"}  # fmt: skip


def record(instance: str, **params: Any) -> Record:
    made = Record(
        session="s",
        point=Point(
            benchmark="b.py::f", lane="encoder", backend="trn1", params=FrozenMap({**PARAMS, **params}), id="p"
        ),
        environment=Environment(facts=FrozenMap({"backend.instance_type": instance}), key="k"),
    )
    made.add(metric("throughput", 45.0, n=1000))
    beside_published.add(made)
    return made


def test_ratios_and_findings_are_in_one_line() -> None:
    (line,) = published_lines([record("trn1.32xlarge")])
    assert "published trn1-2024-04/encoder/throughput/14, trn1.32xlarge" in line
    assert f"measured / published: throughput {45 / 40.74:.3f}" in line
    assert "the row has part_billed_as_whole" in line


def test_without_a_ratio_the_figures_stand_there_with_the_reason() -> None:
    (line,) = published_lines([record("inf2.xlarge")])
    assert "throughput 40.74 items/s" in line
    assert "no ratio: the figures are of trn1.32xlarge, this is inf2.xlarge" in line


def test_points_without_a_row_say_nothing_and_many_are_not_a_wall() -> None:
    assert published_lines([record("trn1.32xlarge", batch_size=3)]) == []
    lines = published_lines([record("trn1.32xlarge") for _ in range(9)])
    assert len(lines) == 7
    assert "3 more" in lines[-1]
