"""Which fields of the protocol two sides do not share, and which of those may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from neuronbench.compare.matching import Pair
from neuronbench.compare.protocol import MISSING, Difference, allowed_by, short
from neuronbench.compare.reading import Reading
from neuronbench.model import Provenance, canonical_json

COMPILER_FLAGS: Final = ("env.NEURON_CC_FLAGS", "resource.compiler_flags", "artifact.flags")
"""Never implied by another backend: two arms with other flags are two experiments."""
_OF_A_BACKEND: Final = ("backend", "host", "stack", "env", "model.dtype", "artifact", "resource.env")
_OF_AN_AXIS: Final = ("workload", "model", "artifact")
_PLACES: Final = ("workload.workload.{}", "workload.arrivals.{}", "workload.loops.{}", "resource.{}")
"""Where a record of ours tells what may also be a parameter of its point."""


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What may differ: what the user said, and what follows from the axis that is compared."""

    patterns: Sequence[str] = ()
    by: str = ""

    def __call__(self, field: str) -> str:
        """Why `field` may differ; empty when it may not."""
        said = allowed_by(field, self.patterns)
        if said:
            return f"--allow {said}"
        if not self.by or allowed_by(field, COMPILER_FLAGS):
            return ""
        implied = _OF_A_BACKEND if self.by == "backend" else (*_OF_AN_AXIS, f"resource.{self.by}", f"params.{self.by}")
        if self.by == "model":
            implied = (*implied, "resource.served_model")
        return f"--by {self.by}" if allowed_by(field, implied) else ""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the comparison of two protocols found."""

    blocking: Sequence[Difference] = ()
    allowed: Sequence[Difference] = ()
    unknown: int = 0
    """Fields that an imported side does not tell."""


def check(pair: Pair, base: Sequence[Reading], head: Sequence[Reading], allow: Allowed) -> Checked:
    """Fields that differ between the repeats of both sides that are to be compared, or among those of one side."""
    elsewhere, untold = _elsewhere(pair.unchecked, base, head)
    found = [*pair.differences, *elsewhere, *_provenance(base, head)]
    fields, unknown = _protocols(base, head)
    found += [*fields, *_digests(base, head)]
    blocking, passed = [], []
    for difference in found:
        why = allow(difference.field)
        if why:
            said = Difference(field=difference.field, base=difference.base, head=difference.head, allowed=why)
            passed.append(said)
        else:
            blocking.append(difference)
    return Checked(blocking=blocking, allowed=passed, unknown=unknown + untold)


def _elsewhere(
    unchecked: Sequence[str], base: Sequence[Reading], head: Sequence[Reading]
) -> tuple[list[Difference], int]:
    """Parameters that one side alone has, against the load or the resource of the other, which may tell them too.

    A tool says how long its prompts were; a benchmark of ours may have that in its code and not among its parameters.
    Returns what differs, and how many the other side does not tell.
    """
    found, untold = [], 0
    for field in unchecked:
        name = field.removeprefix("params.")
        sides = [{_told(r, name) for r in readings} for readings in (base, head)]
        if any(MISSING in side for side in sides):
            untold += 1
        elif len({orjson.loads(value) for value in sides[0] | sides[1]}) > 1:
            found.append(Difference(field=field, base=short(sides[0]), head=short(sides[1])))
    return found, untold


def _told(reading: Reading, name: str) -> str:
    """A parameter as canonical JSON, from wherever a record tells it; null where it does not, or tells no one value."""
    if name in reading.point.params:
        value = canonical_json(reading.point.params[name])
    else:
        told = (reading.protocol.get(where.format(name)) for where in _PLACES)
        value = next((each for each in told if each != MISSING), MISSING)
    return MISSING if value[:1] in "[{" else value


def _provenance(base: Sequence[Reading], head: Sequence[Reading]) -> list[Difference]:
    """Simulated results compare with simulated ones only; imported ones with any, marked."""
    sides = [{r.provenance.value for r in readings} - {Provenance.IMPORTED.value} for readings in (base, head)]
    if len(sides[0] | sides[1]) < 2:
        return []
    return [Difference(field="provenance", base=short(sides[0]), head=short(sides[1]))]


def _protocols(base: Sequence[Reading], head: Sequence[Reading]) -> tuple[list[Difference], int]:
    one, other = ({id(r.protocol): r for r in readings} for readings in (base, head))
    if len(one) == 1 and one.keys() == other.keys():
        return [], 0
    foreign = any(r.provenance is Provenance.IMPORTED for r in (*base, *head))
    names = sorted({name for r in (*one.values(), *other.values()) for name in r.protocol.fields})
    found, unknown = [], 0
    for name in names:
        a, b = ({r.protocol.get(name) for r in side.values()} for side in (one, other))
        if a == b and len(a) == 1:
            continue
        if foreign and MISSING in a | b:
            unknown += 1
            continue
        if a == b and not _mixed(name, base) and not _mixed(name, head) and _by_repeat(name, base, head):
            continue
        found.append(Difference(field=name, base=short(a), head=short(b)))
    return found, unknown


def _mixed(name: str, readings: Sequence[Reading]) -> bool:
    """Whether repeats of one number disagree: then the side is a mixture and not a series that changes by repeat."""
    seen: dict[int, str] = {}
    return any(seen.setdefault(r.repeat, r.protocol.get(name)) != r.protocol.get(name) for r in readings)


def _by_repeat(name: str, base: Sequence[Reading], head: Sequence[Reading]) -> bool:
    values = {r.repeat: r.protocol.get(name) for r in base}
    return all(values.get(r.repeat, r.protocol.get(name)) == r.protocol.get(name) for r in head)


def _digests(base: Sequence[Reading], head: Sequence[Reading]) -> list[Difference]:
    """Requests differ from repeat to repeat by design, and are the same for the same repeat."""
    known: dict[int, set[str]] = {}
    for reading in base:
        if reading.digest:
            known.setdefault(reading.repeat, set()).add(reading.digest)
    theirs: dict[int, set[str]] = {}
    for reading in head:
        if reading.digest and reading.repeat in known:
            theirs.setdefault(reading.repeat, set()).add(reading.digest)
    for repeat, digests in theirs.items():
        if digests != known[repeat] or len(digests) > 1:
            return [
                Difference(
                    field="workload.digest",
                    base=short(canonical_json(d)[:13] for d in known[repeat]),
                    head=short(canonical_json(d)[:13] for d in digests),
                )
            ]
    return []


def context(readings: Sequence[Reading]) -> Mapping[str, list[object]]:
    """What else is known of a side: commit, host, versions of the harness; every value that occurs."""
    found: dict[str, list[object]] = {}
    for facts in {id(r.context): r.context for r in readings}.values():
        for name, value in facts.items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return found
