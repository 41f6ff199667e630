"""Peaks of chips: per core as programs see it, each with a source and a date."""

from __future__ import annotations

import csv
import datetime
import os
import re
from pathlib import Path

import pytest

from neuronbench.catalog import load_table
from neuronbench.catalog.accelerators import accelerator_of


@pytest.mark.parametrize(
    ("instance", "tflops", "cores"),
    [
        ("trn1.2xlarge", 95.0, 2),
        ("trn1n.32xlarge", 95.0, 2),
        ("inf2.48xlarge", 95.0, 2),
        ("trn2.3xlarge", 166.75, 8),
        ("trn2u.48xlarge", 166.75, 8),
        ("trn3", 167.75, 8),
    ],
)
def test_a_core_of_each_family(instance: str, tflops: float, cores: int) -> None:
    chip = accelerator_of(instance)
    assert chip is not None
    assert chip.cores == cores
    peak = chip.peak()
    assert peak is not None
    assert peak.flops == pytest.approx(tflops * 1e12)
    assert peak.dtype == "bfloat16"
    assert "81ce03ae" in peak.source
    assert datetime.date.fromisoformat(peak.date)


def test_cores_that_are_grouped_otherwise() -> None:
    chip = accelerator_of("trn2.48xlarge")
    assert chip is not None
    one, two = chip.peak(logical_core_config=1), chip.peak(logical_core_config=2)
    assert one is not None
    assert two is not None
    assert two.flops == 2 * one.flops == pytest.approx(667e12 / 4)
    assert "2 physical cores each" in two.source
    with pytest.raises(ValueError, match="divisor of the 8 cores of Trainium2, found 3"):
        chip.peak(logical_core_config=3)


@pytest.mark.parametrize("name", ["m5.large", "", "trn9.huge", "trn"])
def test_what_is_no_chip_of_the_catalogue(name: str) -> None:
    assert accelerator_of(name) is None


def test_a_type_without_a_documented_figure_has_no_peak() -> None:
    for entry in load_table("accelerators.toml")["accelerator"]:
        chip = accelerator_of(entry["families"][0])
        assert chip is not None
        assert chip.peak("int4") is None


def test_the_figures_are_those_of_the_instance_table() -> None:
    shared = os.environ.get("NEURONBENCH_SHARED")
    table = Path(shared or "/nonexistent", "reference", "neuron_instances.csv")
    if not table.is_file():
        pytest.skip("NEURONBENCH_SHARED does not name a folder with reference/neuron_instances.csv")
    compared = 0
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            chip = accelerator_of(row["instance_type"])
            assert chip is not None, row["instance_type"]
            chips = int(row["accelerators"])
            assert chip.cores * chips == int(row["physical_neuroncores"])
            assert chip.logical_core_config == int(row["default_lnc"])
            rounded = "rounded" in row["spec_basis"] or "UltraServer" in row["instance_type"] + row["notes"]
            for dtype, column in (("bfloat16", "peak_dense_bf16_tflops"), ("float32", "peak_fp32_tflops")):
                whole = float(re.sub(",", "", row[column])) / chips
                assert chip.dense_tflops[dtype] == pytest.approx(whole, rel=0.01 if rounded else 1e-6)
            compared += 1
    assert compared >= 10
