"""What a run on a box will cost: by the hour, at most, and what becomes of the box afterwards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from neuronbench_fleet.boxes import Box
from neuronbench_fleet.costs import LIFE_CYCLE, money, period, published_rate
from neuronbench_fleet.runs import Asked


def told(
    asked: Asked, box: Box, now: dt.datetime, *, region: str, taken: tuple[float, float] = (0.0, 0.0)
) -> Iterator[str]:
    """Lines for people. `taken`: hours and USD of the run so far, on whatever boxes."""
    yield f"{box.id} costs {box.rate}" if box.rate is not None else _unpriced(box, region)
    limits = _limits(asked, box, now, taken)
    if limits:
        hours, by = min(limits)
        most = "" if box.rate is None else f"{money(hours * box.rate.usd_per_hour)} in "
        yield f"the run takes at most {most}{period(hours * 3600)}: {by}"
    else:
        yield "neither the run nor the box has a limit: --max-hours or --max-usd is one"
    if asked.after == "keep":
        end = "nobody ends it but you" if box.expires is None else f"its own end is {_at(box.expires)}"
        yield f"the box stays afterwards and costs on (--after keep): {end}"
    elif asked.after == "stop":
        yield "the box is stopped afterwards (--after stop): its disk goes on costing"


def _limits(asked: Asked, box: Box, now: dt.datetime, taken: tuple[float, float]) -> list[tuple[float, str]]:
    """Hours from now, and what ends the run then."""
    found: list[tuple[float, str]] = []
    if asked.max_hours is not None:
        found.append((asked.max_hours - taken[0], f"--max-hours {asked.max_hours:g}"))
    if asked.max_usd is not None and box.rate is not None:
        found.append(((asked.max_usd - taken[1]) / box.rate.usd_per_hour, f"--max-usd {asked.max_usd:g}"))
    if box.expires is not None:
        found.append(((box.expires - now).total_seconds() / 3600, f"the box has to be gone at {_at(box.expires)}"))
    before = f", of which {taken[0]:.2f} h are gone" if taken[0] else ""
    return [(max(hours, 0.0), by + (before if by.startswith("--") else "")) for hours, by in found]


def _unpriced(box: Box, region: str) -> str:
    """Why nobody knows what it costs."""
    known = published_rate(box.instance_type, region, box.purchase) if box.purchase in LIFE_CYCLE else ""
    why = f"; {known}" if isinstance(known, str) and known else ""
    return (
        f"what {box.id} costs is not known: it was started without a price{why}. Your word for it:"
        " neuronbench fleet up --usd-per-hour"
    )


def _at(instant: dt.datetime) -> str:
    return f"{instant.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"
