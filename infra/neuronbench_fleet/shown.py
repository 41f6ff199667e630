"""Boxes for people and for programs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from neuronbench_fleet.boxes import GONE, LIVE, Box
from neuronbench_fleet.costs import cost_text, money, period

if TYPE_CHECKING:
    from rich.table import Table

NEAR: float = 0.8
"""Part of a limit from which on it is warned of."""
_GAP: Final = 3
"""Characters between two columns."""


def box_json(box: Box, now: dt.datetime) -> dict[str, Any]:
    """Everything that is known of a box. Missing is null."""
    return {
        "id": box.id, "fleet": box.fleet, "kind": box.kind, "state": box.state, "zone": box.zone,
        "instance_type": box.instance_type, "purchase": box.purchase, "launched": _iso(box.launched),
        "expires": _iso(box.expires), "hours": round(box.hours(now), 4),
        "usd_per_hour": box.rate.usd_per_hour if box.rate is not None else None,
        "price_date": box.rate.date if box.rate is not None else None,
        "price_source": box.rate.source if box.rate is not None else None,
        "usd": _rounded(box.spent_usd(now)), "max_usd": box.max_usd, "run": box.run or None,
        "reason": box.reason or None,
    }  # fmt: skip


def table(
    boxes: Sequence[Box], now: dt.datetime, *, pings: Mapping[str, str], runs: Mapping[str, str], columns: int
) -> Table:
    """A row for each box; `runs`: box → what it is at. Where `columns` are too few, rows of several lines."""
    from neuronbench.commands import host

    rows = [
        (
            box.fleet, box.id, box.instance_type, box.state, box.zone, box.purchase, period(box.hours(now) * 3600),
            money(box.spent_usd(now)), "-" if box.state in GONE else until(box, now), pings.get(box.id, "-"),
            runs.get(box.id) or box.run or "-",
        )
        for box in boxes
    ]  # fmt: skip
    names = ("fleet", "box", "type", "state", "zone", "bought", "ran", "cost so far", "expires", "reachable", "run")
    if sum(max(map(len, column)) + _GAP for column in zip(names, *rows, strict=True)) <= columns:
        return host.table(names, rows, right=("ran", "cost so far"))
    folded = [
        (
            fleet, "\n".join([id_, f"{type_}, {zone}", bought, *([] if run == "-" else [run.replace(": ", "\n", 1)])]),
            f"{state}\n{'' if ping == '-' else ping}", f"{cost}\nin {ran}", expires,
        )
        for fleet, id_, type_, state, zone, bought, ran, cost, expires, ping, run in rows
    ]  # fmt: skip
    return host.table(("fleet", "box", "state", "cost so far", "expires"), folded, right=("cost so far",))


def until(box: Box, now: dt.datetime) -> str:
    """When its time is over, for people."""
    if box.expires is None:
        return "never!"
    left = (box.expires - now).total_seconds()
    return f"in {period(left)}" if left >= 0 else f"{period(-left)} ago"


def warnings(boxes: Sequence[Box], now: dt.datetime, *, idle: Mapping[str, float]) -> list[str]:
    """What somebody should look at. `idle`: box → seconds since it had anything to do."""
    found: list[str] = []
    for box in boxes:
        if box.state not in LIVE:
            continue
        if box.expires is None:
            found.append(
                f"{box.id} has no limit in time: nobody will end it but you (neuronbench fleet down {box.fleet})"
            )
        elif box.expires < now:
            found.append(f"{box.id} is past its limit in time ({until(box, now)}) and still {box.state}")
        spent = box.spent_usd(now)
        if box.max_usd is not None and spent is not None and spent >= NEAR * box.max_usd:
            found.append(f"{box.id} has cost {money(spent)} of {money(box.max_usd)}, without disks")
        if idle.get(box.id, 0.0) > 1800:
            found.append(f"{box.id} has had nothing to do for {period(idle[box.id])}")
    return found


def total(boxes: Sequence[Box], now: dt.datetime) -> tuple[float, int]:
    """USD so far of boxes whose price is known, and how many there are whose price is not."""
    spent = [box.spent_usd(now) for box in boxes]
    return sum(usd for usd in spent if usd is not None), spent.count(None)


def total_text(boxes: Sequence[Box], now: dt.datetime, *, what: str = "cost so far") -> str:
    """For people: the sum, and what it leaves out."""
    usd, unknown = total(boxes, now)
    return cost_text(None if unknown == len(boxes) else usd, boxes=len(boxes), unpriced=unknown, what=what)


def _iso(instant: dt.datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(dt.UTC).isoformat(timespec="seconds")


def _rounded(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 4)
