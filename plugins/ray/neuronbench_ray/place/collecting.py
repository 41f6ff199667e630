"""The side of it that runs within pytest on a node: `-p neuronbench_ray.place.collecting`.

It writes what was collected, keeps the items that were chosen for this node, and notes which of them runs. All nodes
collect all of it and then choose: names of points depend on what is collected beside them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

PLAN: Final = "NEURONBENCH_RAY_PLAN"
"""Variable: the file to write what was collected to."""
CHOSEN: Final = "NEURONBENCH_RAY_CHOSEN"
"""Variable: the file that names the items to run, a JSON list."""
NOTES: Final = "NEURONBENCH_RAY_NOTES"
"""Variable: the file that gets a JSON line for each beginning and report of an item."""


def name_of(item: Any) -> str:
    """Name of the item's receipt; empty when it is no benchmark."""
    from neuronbench.model import slug
    from neuronbench.pytest_plugin.keys import POINT, REPEAT

    return f"{slug(item.stash[POINT].id)}--r{item.stash[REPEAT]}" if POINT in item.stash else ""


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    chosen = os.environ.get(CHOSEN)
    if not chosen:
        return
    names = set(json.loads(Path(chosen).read_text(encoding="utf-8")))
    left = [item for item in items if name_of(item) not in names]
    items[:] = [item for item in items if name_of(item) in names]
    if left:
        config.hook.pytest_deselected(items=left)


def pytest_collection_finish(session: Any) -> None:
    target = os.environ.get(PLAN)
    if target:
        plan_of(session.config, session.items).write(Path(target))


def plan_of(config: Any, items: Sequence[Any]) -> Any:
    """What was collected, as a `Plan`, in the order it would run here."""
    from neuronbench.pytest_plugin.keys import POINT, REPEAT, SPEC, session_of
    from neuronbench_ray.place.items import Item, Plan

    benches = [item for item in items if POINT in item.stash]
    if not benches:
        return Plan(others=len(items))
    session = session_of(config)
    lanes = session.plugins.lanes
    made = []
    for item in benches:
        point, spec = item.stash[POINT], item.stash.get(SPEC, None)
        skip = item.get_closest_marker("skip")
        reason = str(skip.kwargs.get("reason") or (skip.args[0] if skip.args else "skipped")) if skip else ""
        made.append(
            Item(
                name=name_of(item), nodeid=item.nodeid, point=point, repeat=item.stash[REPEAT],
                resource=spec.key if spec is not None else "", resource_id=spec.id if spec is not None else "",
                cores=spec.cores if spec is not None else 0, skip=reason,
                leads=point.lane in lanes and lanes[point.lane].leads,
            )
        )  # fmt: skip
    backends = dict.fromkeys(item.point.backend for item in made if not item.skip)
    return Plan(
        items=tuple(made),
        others=len(items) - len(benches),
        environments={name: session.environment(name) for name in backends},
        simulated=tuple(name for name in backends if session.provenance(name) == "simulated"),
    )


def pytest_runtest_protocol(item: Any, nextitem: Any) -> None:
    note("begins", name_of(item))


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    item.user_properties.append((_NAME, name_of(item)))


def pytest_runtest_logreport(report: Any) -> None:
    said = dict(report.user_properties)
    if said.get(_NAME) and (report.when == "call" or report.outcome != "passed"):
        line = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else report.longreprtext
        told = str(said.get("neuronbench.headline", "")) or next(iter(line.strip().splitlines()), "")
        note("reports", str(said[_NAME]), result=report.outcome, text=told[:300])


_NAME: Final = "neuronbench_ray.name"


def note(what: str, name: str, **more: str) -> None:
    target = os.environ.get(NOTES)
    if target and name:
        with open(target, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"what": what, "name": name, **more}) + "\n")
