"""Published figures: all of them, as published; matched by parameters; and what is odd about a row found by ourselves.

Where the tables these were taken from are at hand (`NEURONBENCH_SHARED` names the folder that holds
`reference/published/`), every one of their rows must be in the catalogue.
"""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuronbench import grid
from neuronbench.catalog import published
from neuronbench.model import FrozenMap, Point

PROJECT = Path(__file__).parent.parent.parent
EDITIONS = {"seed_trn1": "trn1-2024-04", "trn1_inference": "trn1-2026-08", "inf2_inference": "inf2-2026-08"}
TABLES = [
    f"{prefix}_{kind}_{table}.csv"
    for prefix in EDITIONS
    for kind in ("encoder", "encoder_decoder")
    for table in ("throughput", "latency")
]
SAME = {
    "cores_underused_but_whole_instance_billed": "part_billed_as_whole",
    "batch_label_with_batch_size_1": "batch_of_one",
    "cost_column_mislabelled": "cost_mislabelled",
    "mixed_neuron_versions_in_one_table": "mixed_versions",
}
"""What the audit beside the tables calls a finding → what ours is called."""


def shared(name: str) -> list[dict[str, str]]:
    folder = os.environ.get("NEURONBENCH_SHARED")
    if not folder:
        pytest.skip("NEURONBENCH_SHARED does not say where the tables are that the catalogue was made from")
    with (Path(folder) / "reference" / "published" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def of_table(name: str) -> list[published.Published]:
    prefix = next(prefix for prefix in EDITIONS if name.startswith(prefix))
    unit = "tokens" if "encoder_decoder" in name else "items"
    table = name.removesuffix(".csv").rpartition("_")[2]
    rows = [row for row in published.rows() if (row.edition, row.table) == (EDITIONS[prefix], table)]
    return [row for row in rows if row.throughput_of == unit]


def row_of(**changes: Any) -> published.Published:
    return replace(published.rows()[0], **changes)


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_the_tables_is_in_the_catalogue_as_it_stands_there(name: str) -> None:
    theirs, ours = shared(name), of_table(name)
    assert len(theirs) == len(ours) > 0
    for number, (told, row) in enumerate(zip(theirs, ours, strict=True), 1):
        tokens = row.throughput_of == "tokens"
        latency = "latency_per_token" if tokens else "latency"
        rate = "throughput_tokens_per_s_input_plus_output" if tokens else "throughput_inferences_per_s"
        assert row.row == number
        assert row.model == told["model"]
        assert row.instance_type == told["instance_type"]
        assert row.sdk_version == told["neuron_version"]
        assert row.batch_size == int(told["batch_size"])
        assert row.sequence_length == int(told["sequence_length_tokens"])
        assert row.run_mode == told["run_mode"].lower().replace(" ", "_")
        assert row.application == told["application_type"].lower().replace(" ", "_")
        assert row.dtype == {"FP32": "float32"}[told["model_dtype"]]
        assert row.throughput == float(told[rate])
        assert row.latency_p50_ms == float(told[f"{latency}_p50_ms"])
        assert row.latency_p99_ms == float(told[f"{latency}_p99_ms"])
        if told.get("cost_per_1m_published_usd"):
            assert row.cost_per_1m_usd == float(told["cost_per_1m_published_usd"])
        else:
            assert row.cost_per_1m_usd is None
        if tokens:
            assert (row.tp_degree, row.dp_degree) == (int(told["tp_degree"]), int(told["dp_degree"]))
            assert row.output_tokens == int(told["output_length_tokens"])
        assert row.as_of[:4] in ("2024", "2026")
        assert "@" in row.source


def test_what_the_audit_of_the_tables_found_our_own_checks_find_too() -> None:
    checked = 0
    for entry in shared("anomalies.csv"):
        if entry["table"] not in TABLES:
            continue
        concerned = of_table(entry["table"])
        if entry["row"]:
            concerned = [row for row in concerned if row.row == int(entry["row"])]
        for row in concerned:
            assert SAME[entry["anomaly"]] in [finding.id for finding in row.findings()], entry
            checked += 1
    assert checked > 30


@pytest.mark.parametrize("lane", ["encoder", "seq2seq"])
def test_every_point_of_the_tables_grids_has_its_row_and_every_row_its_point(lane: str) -> None:
    points = grid.load(PROJECT / "benchmarks" / "grids" / lane / "aws_docs.toml").expand("trn1")
    found = [published.match(Point(benchmark="b", lane=lane, backend="trn1", params=p.params)) for p in points]
    assert all(found)
    unit = "tokens" if lane == "seq2seq" else "items"
    wanted = [row for row in published.rows() if row.edition == "trn1-2024-04" and row.throughput_of == unit]
    assert len(found) == len(wanted)
    assert sorted((row.table, row.row) for row in found if row) == sorted((row.table, row.row) for row in wanted)
    assert len({p.label for p in points}) == len(points)  # readable ids, none twice


def test_the_newest_edition_is_found_unless_the_point_names_one_and_nothing_by_halves() -> None:
    given = {
        "model": "hub:google-bert/bert-base-uncased@main", "batch_size": 1, "sequence_length": 128, "dtype": "float32",
        "run_mode": "data_parallel", "instance_type": "trn1.2xlarge", "task": "raw_output",
    }  # fmt: skip

    def found(**changes: Any) -> published.Published | None:
        point = Point(benchmark="b", lane="encoder", backend="trn1", params=FrozenMap({**given, **changes}))
        return published.match(point)

    newest, named = found(), found(edition="trn1-2024-04")
    assert newest is not None
    assert newest.edition == "trn1-2026-08"
    assert named is not None
    assert (named.edition, named.throughput) == ("trn1-2024-04", 1999.54)
    elsewhere = found(instance_type="inf2.xlarge")
    assert elsewhere is not None
    assert elsewhere.edition == "inf2-2026-08"
    for changes in (
        {"batch_size": 2}, {"sequence_length": 64}, {"dtype": "bfloat16"}, {"run_mode": None}, {"instance_type": None},
        {"model": "bert-base-unknown"}, {"task": "sequence_classification"}, {"edition": "trn1-2023"},
    ):  # fmt: skip
        assert found(**changes) is None, changes


def test_workers_and_cost_follow_from_the_figures() -> None:
    row = row_of(
        throughput=3000.0, latency_p50_ms=10.0, batch_size=16, latency_of="call", hourly_usd=1.34, tp_degree=None
    )
    assert row.implied_workers == pytest.approx(3000 * 0.010 / 16)
    assert row.cost_recomputed_usd == pytest.approx(1.34 / 3600 / 3000 * 1e6)
    assert row_of(hourly_usd=None).cost_recomputed_usd is None


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"latency_p50_ms": 11.0, "latency_p99_ms": 10.0}, "p50_above_p99"),
        ({"instance_cores": 32}, "part_billed_as_whole"),
        ({"tp_degree": 8, "dp_degree": 1, "instance_cores": 32}, "part_billed_as_whole"),
        ({"application": "batch", "batch_size": 1}, "batch_of_one"),
        ({"throughput_of": "tokens"}, "cost_mislabelled"),
        ({"cost_per_1m_usd": 0.13}, "cost_not_reproduced"),
    ],
    ids=str,
)
def test_each_check_finds_what_it_is_for(changes: dict[str, Any], finding: str) -> None:
    assert finding not in [each.id for each in row_of().findings()]
    assert finding in [each.id for each in row_of(**changes).findings()]


def test_a_printed_cost_is_reproduced_within_its_rounding() -> None:
    costed = [row for row in published.rows() if row.cost_per_1m_usd is not None]
    assert len(costed) == 32
    assert not [row for row in costed if "cost_not_reproduced" in [finding.id for finding in row.findings()]]
