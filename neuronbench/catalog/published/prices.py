"""Prices by which published costs were made, with kind, region, dates and source.

AWS's pages computed costs from on-demand prices until 2024-09-16, and from the effective price of reserved instances
since, under the same name of the column: a cost of the one and a cost of the other are not costs of the same thing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuronbench.catalog.published.reading import table
from neuronbench.catalog.published.rows import Published, cost_per_1m_usd

CHANGED_ON: Final = "2024-09-16"
"""From on-demand prices to the effective prices of reserved instances."""
PER: Final = {
    "items": "inferences", "tokens": "input and output tokens", "output_tokens": "output tokens",
    "sequences": "sequences", "unstated": "tokens of an unstated kind",
}  # fmt: skip


class Incomparable(ValueError):
    """Two costs are not of the same thing; says in what they differ."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """What an hour of an instance cost, by a source."""

    instance_type: str
    usd_per_hour: float
    kind: str
    """`on_demand` or `ri_effective`."""
    region: str = ""
    """Empty where the source does not say."""
    region_basis: str = ""
    valid_from: str = ""
    """First day, as exactly as it is known (`2023`); empty where it is not."""
    valid_to: str = ""
    """The day it ended; empty for the one that stood when the source was read."""
    commit: str = ""
    verified: bool = True
    source: str


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a million of something."""

    usd: float
    per: str
    price: Price

    def over(self, other: Cost) -> float:
        """This cost / the other. Raises `Incomparable` for costs of other things or by prices of other kinds."""
        if self.per != other.per:
            raise Incomparable(f"one is the cost of {self.per}, the other of {other.per}")
        if self.price.kind != other.price.kind:
            raise Incomparable(
                f"one is by {self.price.usd_per_hour:g} USD an hour ({self.price.kind}), the other by "
                f"{other.price.usd_per_hour:g} ({other.price.kind}): AWS's pages changed from on-demand to effective "
                f"reserved prices on {CHANGED_ON}; recompute both by one price"
            )
        if self.price.region and other.price.region and self.price.region != other.price.region:
            raise Incomparable(f"one is by a price of {self.price.region}, the other of {other.price.region}")
        return self.usd / other.usd


@functools.cache
def prices() -> Sequence[Price]:
    """Every price of the history, in the order of the file."""
    return tuple(_price(entry) for entry in table("prices.csv"))


def _price(entry: dict[str, str]) -> Price:
    values: dict[str, Any] = {**entry, "usd_per_hour": float(entry["usd_per_hour"])}
    return Price(**{**values, "verified": entry["verified"] == "yes"})


def price_of(instance_type: str, on: str, *, kind: str = "") -> Price | None:
    """The price that AWS's pages used on a day (ISO), of that kind if one is named; None where there is none.

    Prices that nobody verified, or that are somebody else's roundings, are in `prices` and never chosen.
    """
    for price in prices():
        if price.instance_type != instance_type or not (price.verified and price.valid_from):
            continue
        if kind and price.kind != kind:
            continue
        if kind or (price.valid_from[: len(on)] <= on and (not price.valid_to or on < price.valid_to)):
            return price
    return None


def cost_of(row: Published, *, kind: str = "") -> Cost | None:
    """What a million of the row's items, tokens or sequences cost, by the price its source used, all nodes counted.

    With `kind` by the price of that kind instead, whenever it held. None without a rate or a price.
    """
    if not row.throughput:
        return None
    price = price_of(row.instance_type.partition("/")[0], row.as_of, kind=kind)
    if price is None:
        return None
    usd = cost_per_1m_usd(row.throughput, price.usd_per_hour * row.nodes)
    return Cost(usd=usd, per=PER[row.throughput_of], price=price)
