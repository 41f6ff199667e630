"""Prices by which published costs were made: with date, kind and source; costs of two kinds are never compared."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from neuronbench.catalog.published import Cost, Incomparable, cost_of, price_of, prices, rows


def test_every_price_of_the_history_is_there_with_its_source() -> None:
    folder = os.environ.get("NEURONBENCH_SHARED")
    if not folder:
        pytest.skip("NEURONBENCH_SHARED does not say where the prices are that the catalogue was made from")
    with (Path(folder) / "reference" / "published" / "instance_prices.csv").open(encoding="utf-8", newline="") as file:
        told = list(csv.DictReader(file))
    assert len(told) == len(prices()) == 25
    for entry, price in zip(told, prices(), strict=True):
        assert price.instance_type == entry["instance_type"]
        assert price.usd_per_hour == float(entry["usd_per_hour"])
        assert price.kind == entry["kind"]
        assert price.valid_from == entry["valid_from_date"]
        assert price.valid_to == ("" if entry["valid_to"].startswith("current") else entry["valid_to"])
        assert price.source
        assert price.verified == ("unverified" not in entry["source"])


@pytest.mark.parametrize(
    ("instance", "on", "kind", "usd"),
    [
        ("trn1.2xlarge", "2024-04-30", "on_demand", 1.34),
        ("trn1.2xlarge", "2024-09-15", "on_demand", 1.34),
        ("trn1.2xlarge", "2024-09-16", "ri_effective", 0.512),
        ("inf2.48xlarge", "2026-08-21", "ri_effective", 5.608),
        ("inf2.xlarge", "2023-06-01", "on_demand", 0.758),
    ],
)
def test_the_price_of_a_day(instance: str, on: str, kind: str, usd: float) -> None:
    price = price_of(instance, on)
    assert price is not None
    assert (price.kind, price.usd_per_hour) == (kind, usd)


def test_no_price_is_made_up() -> None:
    assert price_of("trn2.48xlarge", "2026-08-21") is None
    assert price_of("trn2.3xlarge", "2026-08-21") is None  # somebody's report, which nobody verified
    assert price_of("trn1.2xlarge", "2020-01-01") is None


def cost(edition: str, group: str) -> Cost:
    row = next(row for row in rows() if (row.edition, row.group, row.model) == (edition, group, "bert-base-uncased"))
    found = cost_of(row)
    assert found is not None
    return found


def test_costs_are_not_compared_across_the_day_the_kind_of_price_changed() -> None:
    before, after = cost("trn1-2024-04", "encoder"), cost("trn1-2026-08", "encoder")
    with pytest.raises(Incomparable, match="2024-09-16") as caught:
        before.over(after)
    assert "1.34" in str(caught.value)
    assert "0.512" in str(caught.value)
    with pytest.raises(Incomparable):
        after.over(before)
    assert cost("inf2-2026-08", "encoder").over(after) > 0
    again = next(row for row in rows() if row.edition == "trn1-2026-08" and row.model == "bert-base-uncased")
    by_one_price = cost_of(again, kind="on_demand")
    assert by_one_price is not None
    assert before.over(by_one_price) > 1  # slower then, at the same price


def test_costs_of_different_things_are_not_compared() -> None:
    tokens = next(row for row in rows() if row.edition == "trn1-2026-08" and row.group == "decoder")
    other = cost_of(tokens)
    assert other is not None
    with pytest.raises(Incomparable, match="output tokens"):
        cost("trn1-2026-08", "encoder").over(other)


def test_a_cluster_costs_all_its_nodes() -> None:
    row = next(row for row in rows() if row.group == "training_decoder")
    found = cost_of(row)
    assert found is not None
    assert row.nodes == 32
    assert row.throughput is not None
    assert found.usd == pytest.approx(1e6 / row.throughput * 32 * 8.197 / 3600)
