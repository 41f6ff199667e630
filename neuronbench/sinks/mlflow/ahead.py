"""Runs that are begun for several receipts together: one look at all of them, then one for rivals of all.

The rules are those of `claims`: who has made a run looks again, and of several that are open the one with the smallest
id stays. Only the questions are fewer. What is not plain after the two looks is settled for each receipt by itself,
when its turn comes; nobody waits for others before all runs that are surely its own are filled, so no two wait for
each other.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from neuronbench.sinks.mlflow import claims

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

LIMIT: Final = 24
"""Runs of a group: as many are open at once, and begun again by another process when this one is killed."""
SLACK: Final = 12
"""Other runs that an answer may hold: each costs the server as much as a question."""
_PAGE: Final = 1_000
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./=+,:@ -]*")
"""What stands for itself in a pattern of every database; `_` stands for other characters, too, which does no harm."""


def groups(wanted: Iterable[str], there: Iterable[str]) -> list[list[str]]:
    """`wanted` in groups that one question can be asked of: what they begin with, hardly anything else begins with.

    `there` are all that may have runs, wanted or not.
    """
    ordered = sorted(set(wanted))
    known = sorted({*there, *ordered})
    found: list[list[str]] = []
    for value in ordered:
        group = found[-1] if found else []
        if not group or len(group) == LIMIT or _count(known, _beginning([group[0], value])) > LIMIT + SLACK:
            found.append([value])
        else:
            group.append(value)
    return found


def _beginning(values: Collection[str]) -> str:
    first, last = min(values), max(values)
    pairs = enumerate(zip(first, last, strict=False))
    common = next((place for place, (one, other) in pairs if one != other), min(len(first), len(last)))
    plain = _PLAIN.match(first[:common])
    return plain[0] if plain else ""


def _count(ordered: list[str], beginning: str) -> int:
    return bisect_right(ordered, beginning + chr(0x10FFFF)) - bisect_left(ordered, beginning)


def look(client: MlflowClient, experiment: str, tag: str, values: Collection[str]) -> dict[str, list[Run]]:
    """Every run of each of the `values`, by id."""
    found: dict[str, list[Run]] = {value: [] for value in values}
    pattern = f"tags.`{tag}` LIKE '{_beginning(values)}%'"
    page = client.search_runs([experiment], filter_string=pattern, max_results=_PAGE) if len(values) > 1 else None
    if page is None or page.token:  # what is made or deleted between two pages may be on neither
        return {value: claims.runs(client, experiment, tag, value) for value in values}
    for run in page:
        found.get(run.data.tags.get(tag, ""), []).append(run)
    return {value: sorted(runs, key=lambda run: str(run.info.run_id)) for value, runs in found.items()}


@dataclass(kw_only=True)
class Begun:
    """What is known of each value of a group."""

    ended: dict[str, Run] = field(default_factory=dict)
    """Those that have a run."""
    mine: dict[str, Run] = field(default_factory=dict)
    """Made here, and nobody else has one."""
    contested: dict[str, Run] = field(default_factory=dict)
    """Made here; those of others are of larger ids and open."""
    others: set[str] = field(default_factory=set)
    """Somebody has begun it, perhaps this process itself, and it has not ended."""
    waited: set[str] = field(default_factory=set)
    """Others were waited for in vain."""

    def turn(self, value: str) -> int:
        """Which ones come first: those that wait for nobody."""
        kinds: tuple[Collection[str], ...] = (self.ended, self.mine, self.contested, self.others)
        return next((place for place, kind in enumerate(kinds) if value in kind), len(kinds))

    def take(self, value: str) -> tuple[Run, bool] | None:
        """The run of a value and whether it is to be filled, once; None when that is still to be settled."""
        if value in self.ended:
            return self.ended.pop(value), False
        return (self.mine.pop(value), True) if value in self.mine else None


def begin(
    client: MlflowClient, experiment: str, tag: str, makers: Mapping[str, Callable[[], Run]], *,
    fresh: bool, aside: Callable[[Exception], bool],
) -> Begun:  # fmt: skip
    """Make what is not there yet. `fresh`: hardly any can be there. `aside`: a failure that concerns one run only."""
    begun = Begun()
    missing = list(makers)
    if not fresh:
        there = look(client, experiment, tag, makers.keys())
        missing = [value for value, runs in there.items() if not runs]
        for value, runs in there.items():
            _sort_in(client, begun, value, runs)
    made: dict[str, Run] = {}
    for value in missing:
        try:
            made[value] = makers[value]()
        except Exception as error:  # when its turn comes it is met again
            if not aside(error):
                raise
            begun.others.add(value)
    there = look(client, experiment, tag, made.keys()) if made else {}
    for value, run in made.items():
        rivals = [other for other in there[value] if other.info.run_id != run.info.run_id]
        if not rivals:
            begun.mine[value] = run
        elif rivals[0].info.run_id > run.info.run_id and all(claims.is_open(other) for other in rivals):
            begun.contested[value] = run
        else:
            client.delete_run(run.info.run_id)
            _sort_in(client, begun, value, rivals)
    return begun


def _sort_in(client: MlflowClient, begun: Begun, value: str, runs: list[Run]) -> None:
    """What others have made of a value."""
    ended = claims.standing(client, runs)
    if ended is not None:
        begun.ended[value] = ended
    elif runs:
        begun.others.add(value)


def wait(client: MlflowClient, experiment: str, tag: str, begun: Begun, *, wait_s: float) -> None:
    """Wait for what others have begun, all together: while it goes on, and for `wait_s` when it does not."""
    before: set[tuple[str, str]] | None = None
    until, values = 0.0, frozenset(begun.others)
    begun.others.clear()
    for pause_s in claims.pauses():
        there = look(client, experiment, tag, values)
        now = {(run.info.run_id, run.info.status) for runs in there.values() for run in runs}
        if now != before:
            before, until = now, time.monotonic() + wait_s
        filled = {
            value for value, runs in there.items()
            if all(claims.is_open(run) for run in runs) and any(claims.is_filled(run) for run in runs)
        }  # fmt: skip
        if not filled or time.monotonic() >= until:
            begun.waited = filled
            for value in values - filled:
                _sort_in(client, begun, value, there[value])
            begun.others.clear()
            return
        time.sleep(pause_s)
