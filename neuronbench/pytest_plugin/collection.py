"""Collection: from benchmark functions to points, skipped with a reason where they cannot run, ordered by resource."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from neuronbench import grid as grids
from neuronbench import lane_benchmarks, points
from neuronbench.bench import MARK
from neuronbench.model import Point, ResourceSpec
from neuronbench.plugins import Plugins
from neuronbench.protocols import Unsupported
from neuronbench.pytest_plugin import overrides, told_stacks
from neuronbench.pytest_plugin.keys import (
    ERRORS,
    NEEDS,
    OWN_FIXTURES,
    PLUGINS,
    POINT,
    REPEAT,
    RESOURCE_FIXTURES,
    SPEC,
    session_of,
    session_or_none,
)
from neuronbench.pytest_plugin.not_run import CACHED
from neuronbench.session import Session


def is_benchmark(name: str, marked: bool, fixtures: Sequence[str]) -> bool:
    """A benchmark is called `bench_*` or marked by `nb.bench`, and uses a fixture of neuronbench."""
    return (marked or name.startswith("bench_")) and any(fixture in fixtures for fixture in OWN_FIXTURES)


def mark_of(node: Any) -> dict[str, Any]:
    mark = node.get_closest_marker(MARK)
    return dict(mark.kwargs) if mark else {}


def lane_of(node: Any, plugins: Plugins, fixtures: Sequence[str]) -> str:
    """The lane: told by `nb.bench`, by a lane's marker, or by the kind of resource; else `custom`.

    Raises `LookupError` for a lane that no plugin has.
    """
    told = mark_of(node).get("lane")
    if told:
        return plugins.lanes[told].name
    for mark in node.iter_markers():
        if mark.name in plugins.lanes:
            return str(mark.name)
    for lane in plugins.lanes:
        if any(kind in fixtures for kind in lane.needs):
            return str(lane.name)
    return "custom"


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, None, None]:
    """Backend and grid first, the function's own `parametrize` next, repeats last: `[cpu-c4-in64-...-r1]`."""
    node = metafunc.definition
    marked = node.get_closest_marker(MARK) is not None
    if not is_benchmark(metafunc.function.__name__, marked, metafunc.fixturenames):
        yield
        return
    session = session_of(metafunc.config)
    metafunc.parametrize("point", _seeds(session, metafunc), indirect=True)
    yield
    repeats = session.settings.repeats
    ids: list[Any] = [pytest.HIDDEN_PARAM] if repeats == 1 else [f"r{index}" for index in range(1, repeats + 1)]
    metafunc.parametrize("nb_repeat", range(1, repeats + 1), ids=ids, indirect=True)


def _seeds(session: Session, metafunc: pytest.Metafunc) -> list[Any]:
    """One parameter per backend and point of the grid, with the markers of both backend and lane."""
    node, plugins = metafunc.definition, session.plugins
    told = mark_of(node)
    seeds: list[Any] = []
    try:
        lane = lane_of(node, plugins, metafunc.fixturenames)
        lane_marks = [getattr(pytest.mark, lane)] if lane in plugins.lanes else []
        for backend in told.get("backends") or plugins.backends.names():
            marks = [getattr(pytest.mark, mark) for mark in (backend, *plugins.backends[backend].aliases)] + lane_marks
            for grid_point in points.grid_points(
                session.settings,
                grid=told.get("grid"),
                backend=backend,
                params=told.get("params") or {},
                more_grids=lane_benchmarks.grid_dirs(plugins.lanes),
            ):
                label = "-".join(filter(None, (backend, grid_point.label)))
                seeds.append(pytest.param((lane, backend, grid_point), id=label, marks=marks))
    except (grids.GridError, LookupError) as error:
        metafunc.config.stash[ERRORS].append(f"{node.nodeid}: {error.args[0]}")
    return seeds


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> Generator[None, None, None]:
    benches = [item for item in items if _is_bench_item(item)]
    errors = config.stash[ERRORS]
    if errors:
        items.clear()  # pytest lists them before it says what is wrong, as functions without points
        more = f"\n... and {len(errors) - 3} more" if len(errors) > 3 else ""
        raise pytest.UsageError("\n".join(errors[:3]) + more)
    session = session_or_none(config)
    of_lanes = lane_benchmarks.folders(config.stash[PLUGINS].lanes)
    named: dict[str, str] = {}
    benchmarks = []
    for item in benches:
        function = item.nodeid.partition("[")[0]
        if function not in named:
            named[function] = benchmark_of(item, of_lanes)
        benchmarks.append(named[function])
    constants = _constants(benches, benchmarks)
    made = [_point_of(item, benchmark, constants) for item, benchmark in zip(benches, benchmarks, strict=True)]
    for item in benches:
        item.stash[REPEAT] = item.callspec.params["nb_repeat"]
        fixtures = [kind for kind in RESOURCE_FIXTURES if kind in item.fixturenames]
        item.stash[NEEDS] = tuple(dict.fromkeys([*fixtures, *mark_of(item).get("leases", ())]))
    if session is not None and session.settings.endpoint:
        made = [
            session.at_endpoint(point) if "endpoint" in item.fixturenames else point
            for item, point in zip(benches, made, strict=True)
        ]
    for item, point in zip(benches, points.unique_ids(made), strict=True):
        item.stash[POINT] = point
    if session is not None:
        functions = [item for item in items if "nb_repeat" in getattr(getattr(item, "callspec", None), "params", ())]
        overrides.check(config, session, functions, benches)
    yield  # -m and -k take their pick here
    chosen = [item for item in items if POINT in item.stash]
    if not chosen:
        return
    if hasattr(config, "workerinput"):
        raise pytest.UsageError("benchmarks share the hardware and cannot run under pytest-xdist: use -n0")
    session = session_of(config)
    told_stacks.check(session, chosen)
    asked: dict[ResourceSpec, Unsupported | None] = {}
    for item in chosen:
        _skip_or_resource(session, item, asked)
    lanes = session.plugins.lanes
    leads = {name for name in lanes.names() if lanes[name].leads}
    ordered = points.in_resource_order(
        sorted(chosen, key=lambda item: item.stash[POINT].lane not in leads),
        resource=lambda item: item.stash[SPEC].key if SPEC in item.stash else item.stash[POINT].lane in leads,
        repeat=lambda item: item.stash[REPEAT],
    )
    items[:] = points.into_slots(items, chosen, ordered)


def benchmark_of(item: Any, of_lanes: Mapping[Path, str]) -> str:
    """`benchmarks/serving/bench_x.py::bench_x`; of a lane's own benchmarks the package stands for the folder."""
    file, _, names = item.nodeid.partition("[")[0].partition("::")
    own = lane_benchmarks.name_of(item.path, of_lanes)
    return f"{own or file}::{names}"


def _is_bench_item(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is None or "nb_repeat" not in callspec.params:
        return False
    return isinstance(callspec.params["point"], tuple)  # a grid of which nothing is left is pytest's own to skip


def _constants(items: Sequence[Any], benchmarks: Sequence[str]) -> frozenset[tuple[str, str]]:
    """Parameters of a function's own `parametrize` that have one value only: they say nothing in an id."""
    values: dict[tuple[str, str], set[str]] = {}
    for item, benchmark in zip(items, benchmarks, strict=True):
        for name, value in item.callspec.params.items():
            values.setdefault((benchmark, name), set()).add(repr(value))
    return frozenset(key for key, found in values.items() if len(found) == 1)


def _point_of(item: Any, benchmark: str, constants: frozenset[tuple[str, str]]) -> Point:
    lane, backend, grid_point = item.callspec.params["point"]
    return points.make_point(
        function=item.function,
        benchmark=benchmark,
        lane=lane,
        backend=backend,
        grid_point=grid_point,
        extra={name: value for name, value in item.callspec.params.items() if name not in ("point", "nb_repeat")},
        unnamed=frozenset(name for of, name in constants if of == benchmark),
    )


def _skip_or_resource(session: Session, item: pytest.Item, asked: dict[ResourceSpec, Unsupported | None]) -> None:
    """Skip what cannot run or need not, before anything boots; else note which resource it needs."""
    point, needs = item.stash[POINT], item.stash[NEEDS]
    try:
        verdict = session.unsupported(point, needs, asked=asked)
        if verdict is None:
            for kind in needs[:1]:
                item.stash[SPEC] = session.spec(point, kind)
    except ValueError as error:  # a parameter that the provider cannot use
        raise pytest.UsageError(f"{item.nodeid}: {error}") from error
    if verdict is not None and verdict.known_bad:
        item.add_marker(pytest.mark.xfail(reason=verdict.reason, strict=False))
    elif verdict is not None:
        item.add_marker(pytest.mark.skip(reason=verdict.reason))
    elif session.settings.resume:
        receipt = session.cached(point, item.stash[REPEAT], item.stash.get(SPEC, None))
        if receipt:
            item.add_marker(pytest.mark.skip(reason=f"{CACHED}{receipt}"))
