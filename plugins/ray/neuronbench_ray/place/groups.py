"""Which points go to a box together, and on which boxes they could run. Knows nothing of Ray.

One boot is to serve all points that need the same resource, so these stay together. A group is only split where boxes
would idle otherwise, and never between repeats of one point: these are measured on one box, under one boot, so that
their spread is that of the measurement and not of two boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from neuronbench.model import Json
from neuronbench_ray.place.items import Item, Plan

CORE_PARAMETERS: Final = ("tp_degree", "tensor_parallel_size", "cores")
"""Parameters of a point that say how many cores it needs, where its resource does not."""
SMALLEST_PART: Final = 2
"""Points; for less, another boot is not worth it."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A node as it is placed upon."""

    id: str
    name: str
    cores: int
    """NeuronCores that Ray has for it; 0 on a node without."""
    plan: Plan

    def can(self, name: str) -> bool:
        return any(item.name == name and not item.skip for item in self.plan.items)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Items that go to a box together, in the order they run there."""

    id: str
    items: tuple[Item, ...]
    cores: int
    """That it needs at least; 0 when it does not say."""
    boxes: frozenset[str]
    """Ids of boxes that said they can run all of it."""

    @property
    def points(self) -> list[str]:
        return list(dict.fromkeys(item.point.id for item in self.items))


def cores_needed(item: Item, least: int = 0) -> int:
    """NeuronCores an item needs: of its resource, of its parameters, and at least `least`."""
    told: list[Json] = [item.point.get(name) for name in CORE_PARAMETERS]
    return max([least, item.cores, *(one for one in told if isinstance(one, int) and not isinstance(one, bool))])


def make(boxes: Sequence[Box], *, cores: int = 0, skip: frozenset[str] = frozenset()) -> list[Group]:
    """Groups of all that some box can run, without the items in `skip`, ready to be placed: largest first.

    `cores`: what every group needs at least. An item that no box has enough cores for is in a group without boxes.
    """
    found: dict[str, Item] = {}
    able: dict[str, set[str]] = {}
    for box in boxes:
        for item in box.plan.items:
            if item.skip or item.name in skip:
                continue
            found.setdefault(item.name, item)
            able.setdefault(item.name, set())
            if not box.cores or cores_needed(item, cores) <= box.cores:
                able[item.name].add(box.id)
    together: dict[tuple[str, frozenset[str]], list[Item]] = {}
    of_point: dict[str, frozenset[str]] = {}
    for item in found.values():  # repeats of a point go where all of them can
        known = of_point.get(item.point.id)
        of_point[item.point.id] = frozenset(able[item.name]) if known is None else known & able[item.name]
    for item in found.values():
        key = item.resource or f"{item.point.backend} {item.point.lane}"
        together.setdefault((key, of_point[item.point.id]), []).append(item)
    parts = [(items, where) for (_, where), items in together.items()]
    parts = _split(parts)
    parts.sort(key=lambda part: (not any(item.leads for item in part[0]), -len(part[0])))
    return [
        Group(
            id=f"g{number}",
            items=tuple(items),
            cores=max(cores_needed(item, cores) for item in items),
            boxes=where,
        )
        for number, (items, where) in enumerate(parts, start=1)
    ]


_Part = tuple[list[Item], frozenset[str]]


def _split(parts: list[_Part]) -> list[_Part]:
    """Split the largest groups while boxes would idle."""
    while True:
        idle = [
            part
            for part in parts
            if len(_points(part[0])) >= 2 * SMALLEST_PART
            and sum(1 for other in parts if other[1] & part[1]) < len(part[1])
        ]
        if not idle:
            return parts
        largest = max(idle, key=lambda part: len(_points(part[0])))
        points = _points(largest[0])
        first = set(points[: (len(points) + 1) // 2])
        at = parts.index(largest)
        parts[at : at + 1] = [
            ([item for item in largest[0] if item.point.id in first], largest[1]),
            ([item for item in largest[0] if item.point.id not in first], largest[1]),
        ]


def _points(items: Sequence[Item]) -> list[str]:
    return list(dict.fromkeys(item.point.id for item in items))


def skipped(boxes: Sequence[Box]) -> dict[str, str]:
    """Name → reason of what no box can run; several reasons are told with the boxes that gave them."""
    reasons: dict[str, dict[str, list[str]]] = {}
    able = {item.name for box in boxes for item in box.plan.items if not item.skip}
    for box in boxes:
        for item in box.plan.items:
            if item.name not in able:
                reasons.setdefault(item.name, {}).setdefault(item.skip, []).append(box.name)
    return {
        name: next(iter(told)) if len(told) == 1 else "; ".join(f"{', '.join(on)}: {why}" for why, on in told.items())
        for name, told in reasons.items()
    }


def disagreements(boxes: Sequence[Box]) -> list[str]:
    """Points that are others on other boxes although the code is the same: files or packages they read differ."""
    first: dict[str, tuple[str, str]] = {}
    found = []
    for box in boxes:
        for item in box.plan.items:
            where, fingerprint = first.setdefault(item.name, (box.name, item.point.fingerprint))
            if fingerprint != item.point.fingerprint:
                found.append(
                    f"{item.name} is {fingerprint[:12]} on {where} and {item.point.fingerprint[:12]} on {box.name}"
                )
    return found


def core_sets(cores: Sequence[str], need: int, taken: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    """`need` cores of a box beside each other, aligned to their number, none of them in `taken`; None when there are
    none free. `cores`: ids as Ray gave them. Only used where points share a box."""
    busy = {core for one in taken for core in one}
    step = 1 << max(need - 1, 0).bit_length()
    for first in range(0, len(cores) - need + 1, step):
        wanted = tuple(cores[first : first + need])
        if not busy & set(wanted):
            return wanted
    return None


def by_name(groups: Sequence[Group]) -> Mapping[str, Item]:
    return {item.name: item for group in groups for item in group.items}
