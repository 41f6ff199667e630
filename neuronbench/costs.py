"""What a million tokens or inferences cost: the price of the machine's hour over what it does in an hour.

A price is told with its kind, region, day and source, by the user (`[price]` in neuronbench.toml) or by the catalogue
(`catalog/instances.toml`), and stands in the environment of every record. Where none fits (another region, another way
of buying, a machine that nobody has a price of) the cost is null and says so: a price of elsewhere is not taken for it.

A Capacity Block has two costs: at the rate of its hour, as if all of it were used like this, and the whole block's
price over what was really made, which is what a block bought for this alone costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from neuronbench.catalog.instances import LIFE_CYCLES, Price, price_of
from neuronbench.definitions import metric
from neuronbench.model import Json, Metric, Record

PREFIX: Final = "backend.price_"
_FIELDS: Final = ("usd_per_hour", "kind", "region", "date", "source", "block_usd", "block_hours")
_RATES: Final = (
    ("output_throughput_tok_s", "cost_per_1m_tokens", "output"),
    ("output_token_throughput_tok_s", "cost_per_1m_tokens", "output"),
    ("total_token_throughput_tok_s", "cost_per_1m_tokens", "total"),
    ("train_throughput_tok_s", "cost_per_1m_tokens", "train"),
    ("throughput_items_s", "cost_per_1m_inferences", ""),
)
"""Key of a rate, the cost that follows from it, and which tokens it counts."""


def price_facts(facts: Mapping[str, Json], told: Mapping[str, str | float]) -> dict[str, Json]:
    """Facts of the price that holds for a host with these `facts`; empty for a host that nobody rents.

    A backend whose hosts are rented says so by the fact `region`, null where it is not known; `instance_type` and
    `life_cycle` (how it was bought; on demand unless it says otherwise) choose the price.
    """
    if told:
        return {f"{PREFIX}{name}": told[name] for name in _FIELDS if name in told}
    if "backend.region" not in facts:
        return {}
    life_cycle = str(facts.get("backend.life_cycle") or "on-demand")
    kind = LIFE_CYCLES.get(life_cycle)
    if kind is None:
        return {f"{PREFIX}missing": f"it is not known what an instance bought as {life_cycle!r} costs"}
    found = price_of(str(facts.get("backend.instance_type") or ""), str(facts.get("backend.region") or ""), kind)
    if isinstance(found, str):
        return {f"{PREFIX}missing": f"{found}; tell yours: [price] in neuronbench.toml"}
    return {f"{PREFIX}{name}": value for name in _FIELDS if (value := getattr(found, name)) is not None}


def of(record: Record) -> list[Metric]:
    """Costs of the rates that a record has. None where its environment knows neither a price nor why there is none."""
    facts = record.environment.facts
    price = _price(facts)
    if record.kind != "point" or (price is None and f"{PREFIX}missing" not in facts):
        return []
    reason = str(facts.get(f"{PREFIX}missing", ""))
    if record.resource is not None and record.resource.facts.get("external"):
        price, reason = None, "the server is somebody else's, and so is what its machine costs"
    made: dict[str, Metric] = {}
    for key, id_, stat in _RATES:
        rate = record.metrics.get(key)
        if rate is None:
            continue
        if price is None:
            costs = [metric(id_, None, stat=stat, n=rate.n, note=reason)]
        else:
            costs = list(_costs(record, rate, id_, stat, price))
        made.update({cost.key: cost for cost in costs if cost.key not in made})
    return list(made.values())


def _costs(record: Record, rate: Metric, id_: str, stat: str, price: Price) -> Iterator[Metric]:
    told = f"{price.usd_per_hour:g} USD/h {price.kind} in {price.region}, {price.date} ({price.source})"

    def cost(per_s: float | None) -> float | None:
        return price.usd_per_hour / 3600 / per_s * 1e6 if per_s else None

    leased = record.resource.facts.get("leased_cores") if record.resource is not None else None
    of_cores = f", {leased} of its {record.environment.facts.get('backend.cores')} cores are used" if leased else ""
    missing = "" if rate.value else f"; {rate.key} is {'null' if rate.value is None else 'zero'}"
    yield metric(
        id_, cost(rate.value), stat=stat, n=rate.n, low=cost(rate.high), high=cost(rate.low),
        confidence=rate.confidence, note=f"{told}; all of the instance is paid{of_cores}{missing}",
    )  # fmt: skip
    if price.block_usd is None:
        return
    count = _count(record, rate)
    yield metric(
        id_, price.block_usd / count * 1e6 if count else None, stat=f"{stat}_block".lstrip("_"), n=rate.n,
        note=f"the whole block's {price.block_usd:g} USD over the {count or 0:.6g} of this point alone; {told}"
        if count else f"how many were made is not known; {told}",
    )  # fmt: skip


def _count(record: Record, rate: Metric) -> float | None:
    """Tokens or items that the rate was measured on; None when unknown."""
    trained = record.metrics.get("tokens_tokens")
    if rate.key.startswith("train") and trained is not None:
        return trained.value
    loops = record.workload.get("loops")
    window = record.workload.get("window") or (loops[-1].get("window") if loops else None) or {}
    start, end = window.get("start_ns"), window.get("end_ns")
    if rate.value is None or not isinstance(start, int) or not isinstance(end, int) or end <= start:
        return None
    return rate.value * (end - start) / 1e9


def _price(facts: Mapping[str, Json]) -> Price | None:
    if f"{PREFIX}usd_per_hour" not in facts:
        return None
    known = {name: facts[f"{PREFIX}{name}"] for name in _FIELDS if f"{PREFIX}{name}" in facts}
    return Price(instance=str(facts.get("backend.instance_type") or ""), **known)
