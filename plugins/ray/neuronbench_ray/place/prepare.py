"""Before anything runs: who is there, is it the same code everywhere, who can run what, and is that enough."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from neuronbench.receipts import ReceiptStore
from neuronbench_ray.place import code, fleet, groups
from neuronbench_ray.place.groups import Box, Group
from neuronbench_ray.place.items import Plan

if TYPE_CHECKING:
    from neuronbench_ray.place.fleet import Node

OTHER_CODE: Final = "its code is not the head's"
NONE: Final = (
    "there is none: the head was started without CPUs, and nodes with the resource neuronbench_load only send load"
)
SURVEY_S: Final = 660.0
"""How long all nodes together may take to say what they can measure."""


class Refused(Exception):
    """The run cannot begin; the text says why and what to do. `usage`: something was asked for wrongly."""

    def __init__(self, message: str, *, remedy: str = "", usage: bool = False, nothing: bool = False) -> None:
        """`nothing`: there is nothing to measure."""
        super().__init__(message)
        self.remedy, self.usage, self.nothing = remedy, usage, nothing


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What may begin."""

    boxes: Sequence[Box]
    groups: Sequence[Group]
    skipped: Mapping[str, str]
    cached: Collection[str] = field(default_factory=frozenset)


def meet(node: Node, told: Mapping[str, Any], here: Mapping[str, str]) -> Box | str:
    """A node as a box, or why it cannot take part. `here`: `code.parts` of the head."""
    differs = code.differences(here, told["parts"])
    if differs:
        return f"{OTHER_CODE}: {'; '.join(differs)}"
    if told["error"]:
        return str(told["error"])
    return Box(id=node.id, name=node.name, cores=node.cores, plan=Plan.parse(told["plan"]))


def ask_all(
    nodes: Sequence[Node],
    order: Any,
    shipment: Any,
    here: Mapping[str, str],
    *,
    progress: Callable[[str], None],
    warn: Callable[[str], None],
) -> list[Box]:
    """What each node can measure. Raises `Refused` when one has other code, or none can collect.

    A node that alone fails to collect is left out, with a warning.
    """
    asked = {fleet.ask(node, replace(order, node=node.name), shipment): node for node in nodes}
    boxes: list[Box] = []
    problems: list[tuple[str, str]] = []
    """Node and what is wrong with it."""
    until = time.monotonic() + SURVEY_S
    while asked and time.monotonic() < until:
        progress(f"asking {len(nodes)} nodes what they can measure: {len(nodes) - len(asked)} have answered")
        for ref in fleet.ready(list(asked), 1.0):
            node = asked.pop(ref)
            try:
                found = meet(node, fleet.value(ref), here)
            except Exception as error:  # of Ray, or of the code on the node
                found = fleet.why(error)[1]
            if isinstance(found, Box):
                boxes.append(found)
            else:
                problems.append((node.name, found))
    problems += [(node.name, f"has not answered for {SURVEY_S:g} s") for node in asked.values()]
    told = together(problems)
    other = [text for text in told if OTHER_CODE in text]
    if other:
        raise Refused(
            "numbers of nodes with different code do not belong together. " + "\n  ".join(["", *other]).strip(),
            remedy="install the same neuronbench, plugins and Python on all nodes (one image for all of them)",
        )
    if not boxes:
        raise Refused("no node can collect the benchmarks:\n  " + "\n  ".join(told or [NONE]), usage=True)
    for text in told:
        warn(f"takes no part: {text}")
    return boxes


def together(problems: Sequence[tuple[str, str]]) -> list[str]:
    """One text for what is wrong in the same way on several nodes, but for how long it took to find out."""
    nodes: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for node, text in problems:
        alike = re.sub(r"\b[0-9.]+ ?s\b", "", text)
        texts.setdefault(alike, text)
        nodes.setdefault(alike, []).append(node)
    return [f"{', '.join(sorted(names))}: {texts[alike]}" for alike, names in nodes.items()]


def check(boxes: Sequence[Box], *, cores: int = 0, resume: str = "", store: ReceiptStore | None = None) -> Prepared:
    """Groups for these boxes. Raises `Refused` for what could never be placed."""
    if not any(box.plan.items for box in boxes):
        raise Refused("no benchmark was collected", remedy="look at the paths, -m and -k", nothing=True)
    if differs := groups.disagreements(boxes):
        more = f" (and {len(differs) - 1} more)" if len(differs) > 1 else ""
        raise Refused(
            f"points differ between nodes although the code is the same: {differs[0]}{more}",
            remedy="what a benchmark reads when it is collected (files, variables) has to be the same everywhere",
        )
    skipped = groups.skipped(boxes)
    cached = frozenset(_cached(boxes, resume, store)) if resume and store is not None else frozenset[str]()
    made = groups.make(boxes, cores=cores, skip=cached)
    homeless = [group for group in made if not group.boxes]
    if homeless:
        largest = max(box.cores for box in boxes)
        named = ", ".join(item.name for item in homeless[0].items[:3])
        raise Refused(
            f"no node has enough cores: {named}{' ...' if len(homeless[0].items) > 3 else ''} needs "
            f"{homeless[0].cores} neuron cores, and the largest node has {largest}",
            remedy="add a larger node, or leave these points out with -m, -k or --nb-set",
            usage=True,
        )
    if not made and not cached:
        reasons = "\n  ".join(dict.fromkeys(skipped.values()))
        what = "the only point" if len(skipped) == 1 else f"any of the {len(skipped)} points"
        raise Refused(f"no node can run {what}:\n  {reasons}", nothing=True)
    return Prepared(boxes=boxes, groups=made, skipped=skipped, cached=cached)


def _cached(boxes: Sequence[Box], resume: str, store: ReceiptStore) -> list[str]:
    """Items that have a good receipt of the same spec, in an environment that one of the boxes has too."""
    session = None if resume == "last" else resume
    found = []
    for box in boxes:
        for item in box.plan.items:
            environment = box.plan.environments.get(item.point.backend)
            if item.skip or environment is None or item.name in found:
                continue
            receipt = store.find(
                item.point.fingerprint, environment.key, repeat=item.repeat, session=session, resource=item.resource_id
            )
            if receipt is not None:
                found.append(item.name)
    return found
