"""What an hour of a box costs, by whom and when, and what a box has cost so far. Never 0 where it is not known."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from neuronbench.catalog.instances import LIFE_CYCLES, price_of
from neuronbench.words import counted
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.errors import UsageError

UNKNOWN: Final = "price unknown"
"""Where a figure would stand."""
LIFE_CYCLE: Final = {"on-demand": "on-demand", "spot": "spot", "block": "capacity-block"}
"""Way of buying here → `instance-life-cycle` of EC2."""
_LONGEST: Final = 256
"""Characters of a tag's value."""
_UNTAGGABLE: Final = re.compile(r"[^\w \-+=.:/@]")


@dataclass(frozen=True, kw_only=True)
class Rate:
    """USD for an hour of one box."""

    usd_per_hour: float
    date: str
    source: str

    def tag(self) -> str:
        """For the tag `neuronbench:usd_per_hour`: the figure, then its date and source."""
        return _UNTAGGABLE.sub(" ", f"{self.usd_per_hour:g} {self.date} {self.source}")[:_LONGEST].strip()

    def __str__(self) -> str:
        return f"{self.usd_per_hour:g} USD/h without disks ({self.date}, {self.source})"


def told_rate(usd_per_hour: float) -> Rate:
    """The user's own word, for today."""
    return Rate(usd_per_hour=usd_per_hour, date=_today(), source="told with --usd-per-hour")


def rate_from_tag(value: str | None) -> Rate | None:
    """What `Rate.tag` wrote; None where the box was started without a known price."""
    words = (value or "").split(" ", 2)
    try:
        usd = float(words[0])
    except ValueError:
        return None
    if not (math.isfinite(usd) and usd > 0):
        return None
    return Rate(usd_per_hour=usd, date="".join(words[1:2]), source="".join(words[2:3]))


def published_rate(instance_type: str, region: str, purchase: str) -> Rate | str:
    """The catalogue's price, or in words why there is none."""
    found = price_of(instance_type, region, LIFE_CYCLES[LIFE_CYCLE[purchase]])
    if isinstance(found, str):
        return found
    return Rate(usd_per_hour=found.usd_per_hour, date=found.date, source=found.source)


def spot_rates(aws: Aws, instance_type: str, zones: Sequence[str]) -> dict[str, Rate]:
    """Zone → what an hour on the spot market costs right now. Zones without a price are not in it."""
    now = dt.datetime.now(dt.UTC)
    latest: dict[str, tuple[dt.datetime, float]] = {}
    for entry in aws.pages(
        "ec2", "describe_spot_price_history", "SpotPriceHistory", InstanceTypes=[instance_type], StartTime=now,
        ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
    ):  # fmt: skip
        zone, when = str(entry["AvailabilityZone"]), entry["Timestamp"]
        if zone in zones and (zone not in latest or when > latest[zone][0]):
            latest[zone] = (when, float(entry["SpotPrice"]))
    return {
        zone: Rate(usd_per_hour=usd, date=_today(), source=f"EC2 spot price history of {zone}")
        for zone, (_, usd) in latest.items()
        if usd > 0
    }


def hours_for(usd: float, rate: Rate, count: int) -> float:
    """How long `count` boxes run for `usd`."""
    return usd / (rate.usd_per_hour * count)


def spent_usd(rate: Rate | None, hours: float) -> float | None:
    """What so many hours have cost; None where the price is not known."""
    return None if rate is None else rate.usd_per_hour * hours


def money(usd: float | None) -> str:
    """A figure for people."""
    if usd is None:
        return UNKNOWN
    return "under 0.01 USD" if 0 < usd < 0.005 else f"{usd:,.2f} USD"


def rate_text(rate: Rate | None) -> str:
    """A price for people."""
    return UNKNOWN if rate is None else str(rate)


def cost_text(usd: float | None, *, boxes: int = 1, unpriced: int = 0, what: str = "cost so far") -> str:
    """What `boxes` boxes cost, as part of a sentence, and what that leaves out.

    `usd`: None where no price is known; `unpriced`: how many boxes there are whose price is not.
    """
    if usd is None:
        return f"{what} not known, as {'its price is' if boxes == 1 else 'their prices are'} unknown"
    more = f", and without {counted(unpriced, 'box')} of unknown price" if unpriced else ""
    return f"{what} {money(usd)} (without disks{more})"


def seconds_of(told: str) -> float:
    """Seconds of `90s`, `15m`, `2h`, `1d`. Raises `ValueError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", told)
    if match is None:
        raise ValueError(f"expected a time such as 90s, 15m, 2h or 1d, found {told!r}")
    units: Mapping[str, float] = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return float(match[1]) * units[match[2]]


def timeout(option: str, told: str) -> float:
    """`seconds_of` for an option. Raises `UsageError`."""
    try:
        return seconds_of(told)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def period(seconds: float) -> str:
    """For people: `3 h 20 min`."""
    minutes = round(seconds / 60)
    if abs(seconds) < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()
