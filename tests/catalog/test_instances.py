"""Instance types and prices: complete, consistent with the chips, and those of the tables they were made from."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest

from neuronbench.catalog.accelerators import accelerator_of
from neuronbench.catalog.instances import LIFE_CYCLES, PRICE_KINDS, Price, instance_of, instances, price_of, prices


def test_instances_are_made_of_the_catalogue_s_chips() -> None:
    names = [instance.name for instance in instances()]
    assert len(names) == len(set(names))
    for instance in instances():
        chip = accelerator_of(instance.name)
        assert chip is not None
        assert (chip.name, chip.cores) == (instance.accelerator, instance.cores_per_device)
        assert chip.logical_core_config == instance.logical_core_config
        assert instance.dense_tflops("bfloat16") == chip.dense_tflops["bfloat16"] * instance.devices
        assert instance.dense_tflops("int4") is None
        assert instance.source
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", instance.date)


@pytest.mark.parametrize(
    ("name", "group", "cores", "gib", "gb_s"),
    [
        ("inf2.xlarge", None, 2, 16.0, 440.25),
        ("trn1.32xlarge", None, 32, 16.0, 440.25),
        ("trn2.3xlarge", None, 4, 24.0, 725.0),
        ("trn2.3xlarge", 1, 8, 12.0, 362.5),
        ("trn2.48xlarge", 2, 64, 24.0, 725.0),
    ],
)
def test_a_core_s_share(name: str, group: int | None, cores: int, gib: float, gb_s: float) -> None:
    instance = instance_of(name)
    assert instance is not None
    assert instance.cores(group) == cores
    assert instance.memory_bytes_per_core(group) == gib * 2**30
    assert instance.bandwidth_per_core_gb_s(group) == pytest.approx(gb_s)


def test_what_is_not_there() -> None:
    assert instance_of("m7i.large") is None
    inf2 = instance_of("inf2.xlarge")
    assert inf2 is not None
    with pytest.raises(ValueError, match=r"inf2\.xlarge offers 1, found 2"):
        inf2.cores(2)


def test_prices_say_where_when_and_who() -> None:
    for instance in instances():
        for price in prices(instance.name):
            assert price.kind in PRICE_KINDS
            assert re.fullmatch(r"[a-z]{2}-[a-z]+-\d", price.region)
            assert re.fullmatch(r"\d{4}-\d\d(-\d\d)?", price.date)
            assert price.source
            if price.kind == "capacity_block":
                assert price.block_usd is not None
                assert price.block_hours is not None
                assert price.usd_per_hour == pytest.approx(price.block_usd / price.block_hours)
            else:
                assert price.block_usd is None


def test_a_price_of_elsewhere_or_of_another_way_of_buying_is_none() -> None:
    found = price_of("inf2.xlarge", "us-west-2", "on_demand")
    assert isinstance(found, Price)
    assert (found.usd_per_hour, found.date) == (0.7582, "2026-08")
    for region, kind in (("us-west-2", "spot"), ("eu-north-1", "on_demand"), ("", "on_demand")):
        why = price_of("inf2.xlarge", region, kind)  # type: ignore[arg-type]
        assert isinstance(why, str)
        assert "known: on_demand 0.758 in us-east-1 (2024-09-16)" in why
    assert price_of("trn1n.32xlarge", "us-east-1", "on_demand") == "no published price of trn1n.32xlarge"
    assert price_of("", "us-east-1", "on_demand") == "no published price of an instance type that is not known"
    assert isinstance(price_of("trn2.48xlarge", "us-east-1", "on_demand"), str)  # nobody has published one


def test_ways_of_buying_have_a_kind_of_price() -> None:
    assert set(LIFE_CYCLES.values()) <= set(PRICE_KINDS)
    with pytest.raises(ValueError, match="expected more than 0"):
        Price(instance="x", kind="spot", region="r-1", usd_per_hour=0.0, date="2026", source="s")


def shared_rows() -> list[dict[str, str]]:
    path = Path(os.environ.get("NEURONBENCH_SHARED", "/nonexistent"), "reference", "neuron_instances.csv")
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if "UltraServer" not in row["instance_type"]]


@pytest.mark.skipif(not shared_rows(), reason="NEURONBENCH_SHARED does not say where the table of instances is")
def test_the_figures_are_those_of_the_instance_table() -> None:
    rows = shared_rows()
    assert {row["instance_type"] for row in rows} == {instance.name for instance in instances()}
    for row in rows:
        instance = instance_of(row["instance_type"])
        assert instance is not None
        assert instance.devices == int(row["accelerators"])
        assert instance.core_version == row["neuroncore_version"]
        assert instance.cores(1) == int(row["physical_neuroncores"])
        assert instance.cores() == int(row["logical_neuroncores_default"])
        assert instance.memory_gib == float(row["hbm_gib_per_accelerator"])
        assert instance.bandwidth_gb_s * instance.devices == pytest.approx(
            float(row["hbm_bandwidth_gbyte_per_s"]), rel=1e-3
        )
        assert instance.vcpus == int(row["vcpus"])
        assert instance.host_memory_gib == float(row["host_memory_gib"])
        assert instance.compiler_target == row["compiler_target"]
        known = {(price.kind, price.usd_per_hour) for price in prices(instance.name)}
        if row["ondemand_usd_per_hour"]:
            assert ("on_demand", float(row["ondemand_usd_per_hour"])) in known
        if row["ri_effective_usd_per_hour"]:
            assert ("reserved_effective", float(row["ri_effective_usd_per_hour"])) in known
