"""Costs on records: by a price that fits, null with a reason otherwise; two of them for a Capacity Block."""

from __future__ import annotations

from typing import Any

import pytest

from neuronbench import costs
from neuronbench.config import ConfigError, load
from neuronbench.definitions import metric
from neuronbench.model import Environment, FrozenMap, Metric, Point, Record, ResourceRef

ON_DEMAND = {"backend.instance_type": "inf2.xlarge", "backend.region": "us-west-2", "backend.life_cycle": "on-demand"}
BLOCK = {
    "backend.instance_type": "trn2.3xlarge", "backend.region": "sa-east-1", "backend.life_cycle": "capacity-block",
}  # fmt: skip


def record(facts: dict[str, Any], *metrics: Metric, told: Any = None, **fields: Any) -> Record:
    facts = {**facts, **costs.price_facts(facts, told or {})}
    made = Record(
        session="s", point=Point(benchmark="b", lane="serving", backend="inf2", params=FrozenMap(), id="p"),
        environment=Environment(facts=FrozenMap(facts)), **fields,
    )  # fmt: skip
    made.add(*metrics)
    return made


def of(made: Record) -> dict[str, Metric]:
    return {cost.key: cost for cost in costs.of(made)}


def throughput(value: float | None, **more: Any) -> Metric:
    return metric("output_throughput", value, n=100, **more)


def test_the_cost_is_price_over_rate() -> None:
    (cost,) = of(record(ON_DEMAND, throughput(100.0, low=80.0, high=125.0, confidence=0.95))).values()
    assert cost.key == "cost_per_1m_tokens_output_usd"
    assert cost.value == pytest.approx(0.7582 / 3600 / 100 * 1e6)
    assert cost.value * 100 * 3600 / 0.7582 == pytest.approx(1e6)
    assert cost.low == pytest.approx(0.7582 / 3600 / 125 * 1e6)  # the higher the rate the lower the cost
    assert cost.high == pytest.approx(0.7582 / 3600 / 80 * 1e6)
    assert (cost.n, cost.confidence, cost.better) == (100, 0.95, "lower")
    for word in ("0.7582 USD/h", "on_demand", "us-west-2", "2026-08", "study"):
        assert word in cost.note


@pytest.mark.parametrize(
    ("published", "price", "rate"),
    [(0.120, 1.34, 3098.91), (0.117, 1.34, 3176.04), (0.352, 1.34, 1058.66), (0.067, 1.34, 5554.69),
     (48.745, 21.50, 122.52), (51.356, 21.50, 116.29), (6.398, 21.50, 933.5)],
)  # fmt: skip
def test_published_costs_are_reproduced(published: float, price: float, rate: float) -> None:
    told = {"usd_per_hour": price, "kind": "on_demand", "region": "us-east-1", "date": "2024-04", "source": "AWS"}
    (cost,) = of(record({}, metric("throughput", rate), told=told)).values()
    assert cost.key == "cost_per_1m_inferences_usd"
    assert cost.value == pytest.approx(published, abs=0.0005 + published * 0.5e-2 / rate)


def test_which_tokens_are_counted_is_in_the_name() -> None:
    found = of(
        record(
            ON_DEMAND, throughput(10.0), metric("total_token_throughput", 30.0), metric("train_throughput", 1000.0),
            metric("throughput", 5.0), metric("request_throughput", 2.0),
        )
    )  # fmt: skip
    assert set(found) == {
        "cost_per_1m_tokens_output_usd", "cost_per_1m_tokens_total_usd", "cost_per_1m_tokens_train_usd",
        "cost_per_1m_inferences_usd",
    }  # fmt: skip


def test_a_rate_that_is_missing_or_zero_costs_nothing_known() -> None:
    for value, word in ((None, "is null"), (0.0, "is zero")):
        (cost,) = of(record(ON_DEMAND, throughput(value))).values()
        assert cost.value is None
        assert word in cost.note


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({**ON_DEMAND, "backend.region": "eu-north-1"}, "no published on_demand price of inf2.xlarge in eu-north-1"),
        ({**ON_DEMAND, "backend.region": None}, "in a region that is not known"),
        ({**ON_DEMAND, "backend.life_cycle": "spot"}, "no published spot price"),
        ({**ON_DEMAND, "backend.life_cycle": "scheduled"}, "bought as 'scheduled'"),
        ({**ON_DEMAND, "backend.instance_type": "trn2.48xlarge"}, "no published price of trn2.48xlarge"),
        ({**ON_DEMAND, "backend.instance_type": None}, "an instance type that is not known"),
    ],
)
def test_without_a_price_that_fits_the_cost_is_null_and_says_why(facts: dict[str, Any], word: str) -> None:
    (cost,) = of(record(facts, throughput(100.0))).values()
    assert cost.value is None
    assert word in cost.note


def test_a_machine_that_nobody_rents_has_no_costs() -> None:
    assert of(record({"backend.instance_type": None}, throughput(100.0))) == {}
    assert costs.price_facts({"backend.instance_type": "m7i.large"}, {}) == {}
    assert of(record(ON_DEMAND, throughput(100.0), kind="boot")) == {}
    assert of(record(ON_DEMAND)) == {}


def test_a_part_of_the_machine_is_billed_as_the_whole_and_says_so() -> None:
    part = ResourceRef(id="r", kind="endpoint", spec=FrozenMap(), facts=FrozenMap(leased_cores=2))
    facts = {**ON_DEMAND, "backend.instance_type": "trn1.32xlarge", "backend.region": "us-east-1", "backend.cores": 32}
    (cost,) = of(record(facts, throughput(40.74), resource=part)).values()
    assert cost.value == pytest.approx(146.594, abs=5e-4)  # a row of AWS's tables: one model on 2 of 32 cores
    assert "all of the instance is paid, 2 of its 32 cores are used" in cost.note


def test_somebody_else_s_server_has_no_cost_by_this_machine_s_price() -> None:
    external = ResourceRef(id="r", kind="endpoint", spec=FrozenMap(), facts=FrozenMap(external=True))
    (cost,) = of(record(ON_DEMAND, throughput(100.0), resource=external)).values()
    assert cost.value is None
    assert "somebody else's" in cost.note


def test_a_capacity_block_has_two_costs() -> None:
    window = {"window": {"start_ns": 0, "end_ns": 60_000_000_000}}
    found = of(record(BLOCK, throughput(500.0), workload=window))
    assert found["cost_per_1m_tokens_output_usd"].value == pytest.approx(2.235 / 3600 / 500 * 1e6)
    block = found["cost_per_1m_tokens_output_block_usd"]
    assert block.value == pytest.approx(53.64 / (500 * 60) * 1e6)
    assert "the whole block's 53.64 USD over the 30000 of this point alone" in block.note
    # a public study's figure: 53.64 USD for a job of 10,567,680 tokens
    trained = of(record(BLOCK, metric("train_throughput", 3618.0), metric("tokens", 10_567_680.0)))
    assert trained["cost_per_1m_tokens_train_block_usd"].value == pytest.approx(5.0759, abs=5e-5)
    unknown = of(record(BLOCK, throughput(500.0)))["cost_per_1m_tokens_output_block_usd"]
    assert unknown.value is None
    assert "how many were made is not known" in unknown.note


def test_loops_of_compiled_models_count_their_window() -> None:
    loops = {"loops": [{"window": {"start_ns": 0, "end_ns": 10_000_000_000}}]}
    found = of(record(BLOCK, metric("throughput", 200.0), workload=loops))
    assert found["cost_per_1m_inferences_block_usd"].value == pytest.approx(53.64 / 2000 * 1e6)


# -- telling a price ---------------------------------------------------------------------------------------------------

TOLD = """
[price]
block_usd = 53.64
block_hours = 24
region = "sa-east-1"
date = 2026-08-05
source = "invoice"
"""


def test_what_the_user_says_goes_before_the_catalogue(tmp_path: Any) -> None:
    (tmp_path / "neuronbench.toml").write_text(TOLD, encoding="utf-8")
    price = load(tmp_path, environ={}).price
    assert price == {
        "block_usd": 53.64, "block_hours": 24.0, "region": "sa-east-1", "date": "2026-08-05", "source": "invoice",
        "kind": "capacity_block", "usd_per_hour": pytest.approx(2.235),
    }  # fmt: skip
    facts = costs.price_facts(ON_DEMAND, price)
    assert facts["backend.price_source"] == "invoice"
    assert facts["backend.price_block_usd"] == 53.64
    changed = load(tmp_path, environ={"NEURONBENCH_PRICE_BLOCK_USD": "24", "NEURONBENCH_PRICE_SOURCE": "offer"}).price
    assert (changed["usd_per_hour"], changed["source"]) == (1.0, "offer")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("usd_per_hour = 1.34", "missing: region, date, source"),
        ('usd_per_hour = 0\nregion = "x"', r"price\.usd_per_hour: expected a number above 0, found 0"),
        ('usd_per_hour = "cheap"', "expected a number above 0, found 'cheap'"),
        ("block_usd = 5", "block_usd needs the other of block_usd and block_hours"),
        ('usd_per_hour = 1\nkind = "free"', r"price\.kind: expected one of on_demand"),
        ("usd_per_hours = 1", "unknown key.*did you mean 'usd_per_hour'"),
        ('usd_per_hour = 1\nregion = 5\ndate = "d"\nsource = "s"', r"price\.region: expected str, found 5"),
    ],
)
def test_half_a_price_is_refused(text: str, message: str, tmp_path: Any) -> None:
    (tmp_path / "neuronbench.toml").write_text(f"[price]\n{text}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, environ={})
