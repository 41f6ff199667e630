"""Which points of two sets belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from neuronbench.compare.protocol import Difference, short
from neuronbench.compare.reading import Reading
from neuronbench.compare.selecting import Side
from neuronbench.model import FrozenMap, Json, Point, Provenance, canonical_json

UNKNOWN_BACKEND = "unknown"
"""Backend of imported results whose source does not say."""

Key = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The repeats of one point on both sides. One side is empty where the other has no counterpart."""

    label: str
    base: Sequence[Reading]
    head: Sequence[Reading]
    differences: Sequence[Difference] = ()
    """Parameters that differ although it is the same point by name, or the same load by its axes."""
    unchecked: Sequence[str] = ()
    """Parameters that only one side knows."""

    @property
    def one(self) -> Reading:
        return (self.head or self.base)[0]

    @property
    def lane(self) -> str:
        return self.one.point.lane


@dataclass
class Keys:
    """Identity of a point without the axis that is compared; computed once for each `Point` object."""

    by: str = ""
    _known: dict[int, Key] = field(default_factory=dict)

    def of(self, reading: Reading) -> Key:
        point = reading.point
        found = self._known.get(id(point))
        if found is None:
            params: Mapping[str, Json] = point.params
            if self.by in params:
                params = FrozenMap({key: value for key, value in params.items() if key != self.by})
            backend = "" if self.by == "backend" else point.backend
            found = (reading.kind, point.lane, point.benchmark, backend, canonical_json(params))
            self._known[id(point)] = found
        return found


def pairs(base: Side, head: Side, *, by: str = "") -> list[Pair]:
    """Pairs of equal points (lane, benchmark, backend, parameters; `by` names what may differ), in order of `head`.

    What is left is paired by the point's name, which shows that a parameter has changed; and imported results, which
    know no benchmark of ours, with points of the same lane whose axes they share. What is left then stands alone.
    """
    keys = Keys(by)
    a, b = _grouped(base, keys), _grouped(head, keys)
    found = [Pair(label=label(b[key][0].point, by), base=a.pop(key), head=b.pop(key)) for key in list(b) if key in a]
    if not by:
        found += _by_name(a, b)
    found += _imported(a, b, by)
    found += [Pair(label=label(group[0].point, by), base=group, head=()) for group in a.values()]
    found += [Pair(label=label(group[0].point, by), base=(), head=group) for group in b.values()]
    return found


def label(point: Point, by: str) -> str:
    """A point's name; without its backend or axis where that is what is compared."""
    if not by:
        return point.id or point.benchmark
    name = point.benchmark.rpartition("::")[2].removeprefix("bench_") or point.id
    axes = [f"{axis}={point.params.get(axis)}" for axis in point.axes if axis != by]
    return " ".join([f"{point.lane}.{name}", *([] if by == "backend" else [point.backend]), *axes])


def _grouped(whole: Side, keys: Keys) -> dict[Key, list[Reading]]:
    groups: dict[Key, list[Reading]] = {}
    for reading in whole.readings:
        groups.setdefault(keys.of(reading), []).append(reading)
    return groups


def _by_name(a: dict[Key, list[Reading]], b: dict[Key, list[Reading]]) -> list[Pair]:
    """Takes out of `a` and `b` what has the same name once on each side, with the parameters that differ."""

    def names(groups: dict[Key, list[Reading]]) -> dict[Key, list[Key]]:
        found: dict[Key, list[Key]] = {}
        for key, group in groups.items():
            point = group[0].point
            if point.id and point.benchmark:
                found.setdefault((group[0].kind, point.lane, point.benchmark, point.id), []).append(key)
        return found

    found, here = [], names(a)
    for name, theirs in names(b).items():
        ours = here.get(name, [])
        if len(ours) == len(theirs) == 1:
            one, other = a.pop(ours[0]), b.pop(theirs[0])
            differences, _ = _params(one[0].point, other[0].point, "")
            found.append(Pair(label=other[0].point.id, base=one, head=other, differences=differences))
    return found


def _imported(a: dict[Key, list[Reading]], b: dict[Key, list[Reading]], by: str) -> list[Pair]:
    """Takes out of `a` and `b` imported results and the points whose axes they share; the most parameters win."""
    scored: list[tuple[int, Key, Key]] = []
    foreign = {key for groups in (a, b) for key, group in groups.items() if group[0].provenance is Provenance.IMPORTED}
    for ours, one in a.items() if foreign else ():
        for theirs in b if ours in foreign else foreign & b.keys():
            if score := _likeness(one[0], b[theirs][0], by):
                scored.append((score, ours, theirs))
    seen = Counter((score, key) for score, *both in scored for key in both)
    found = []
    for score, ours, theirs in sorted(scored, key=lambda item: item[0], reverse=True):
        alone = seen[score, ours] == seen[score, theirs] == 1  # several that fit equally well: none of them is meant
        if alone and ours in a and theirs in b:
            one, other = a.pop(ours), b.pop(theirs)
            differences, unchecked = _params(one[0].point, other[0].point, by)
            measured = one if one[0].provenance is not Provenance.IMPORTED else other
            found.append(
                Pair(
                    label=label(measured[0].point, by),
                    base=one,
                    head=other,
                    differences=differences,
                    unchecked=unchecked,
                )
            )
    return found


def _likeness(one: Reading, other: Reading, by: str) -> int:
    """How many parameters agree; 0 where lane, backend or a shared axis does not."""
    p, q = one.point, other.point
    if (one.kind, p.lane) != (other.kind, q.lane):
        return 0
    if by != "backend" and p.backend != q.backend and UNKNOWN_BACKEND not in (p.backend, q.backend):
        return 0
    shared = (p.params.keys() & q.params.keys()) - {by}
    axes = [axis for axis in {*p.axes, *q.axes} if axis in shared and axis != "model"]
    if not axes or any(p.params[axis] != q.params[axis] for axis in axes):
        return 0
    return sum(p.params[name] == q.params[name] for name in shared)


def _params(p: Point, q: Point, by: str) -> tuple[list[Difference], list[str]]:
    differences, unchecked = [], []
    for name in sorted({*p.params, *q.params} - {by}):
        if name in p.params and name in q.params:
            one, other = canonical_json(p.params[name]), canonical_json(q.params[name])
            if one != other:
                differences.append(Difference(field=f"params.{name}", base=short([one]), head=short([other])))
        elif p.benchmark == q.benchmark:
            one, other = canonical_json(p.params.get(name)), canonical_json(q.params.get(name))
            differences.append(Difference(field=f"params.{name}", base=short([one]), head=short([other])))
        else:
            unchecked.append(f"params.{name}")
    return differences, unchecked
