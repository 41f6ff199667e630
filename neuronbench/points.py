"""From a benchmark function and a grid to `Point`s, and the order in which they run."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from neuronbench import grid as grids
from neuronbench.config import Settings
from neuronbench.model import FrozenMap, Json, Point, jsonable, slug

T = TypeVar("T")


@lru_cache(maxsize=4096)
def source_hash(function: Callable[..., Any]) -> str:
    """Digest of a function's source; of its byte code where the source cannot be read."""
    try:
        text = inspect.getsource(function).encode()
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = code.co_code if code is not None else repr(function).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def grid_points(
    settings: Settings,
    *,
    grid: str | None,
    backend: str,
    params: Mapping[str, Json],
    more_grids: Sequence[Path] = (),
) -> list[grids.GridPoint]:
    """Points of the named grid on `backend`, or the single one that `params` and `--nb-set` make without a grid.

    `more_grids`: folders where grids are looked for after the project's own.
    """
    name, size = named_grid(settings, grid)
    if name is not None:
        found = grids.load(grids.find(name, (*settings.grid_dirs, *more_grids)))
        if not found.roles:
            found = replace(found, roles=_roles(settings))
        expanded = found.expand(backend, size, settings.overrides)
        if not params:
            return expanded
        return [grids.GridPoint(params=FrozenMap({**params, **point.params}), axes=point.axes) for point in expanded]
    bare = grids.Grid(
        name="",
        path=settings.root,
        title="",
        base=grids.Layer(settings=params),
        sizes={},
        backends={},
        backend_sizes={},
        roles=_roles(settings),
    )
    return bare.expand(backend, grids.FULL_SIZE, settings.overrides)


def named_grid(settings: Settings, grid: str | None) -> tuple[str | None, str]:
    """Name and size of the grid to use for a benchmark whose own is `grid`: its own, or the one of `--nb-grid`."""
    if "/" in settings.grid or settings.grid.endswith(".toml"):
        return settings.grid if grid is not None else None, grids.FULL_SIZE
    return grid, settings.grid


def _roles(settings: Settings) -> Mapping[str, Mapping[str, str]]:
    for folder in settings.grid_dirs:
        path = folder / grids.MODELS_FILE
        if path.is_file():
            return grids.read_roles(path)
    return {}


def make_point(
    *,
    function: Callable[..., Any],
    benchmark: str,
    lane: str,
    backend: str,
    grid_point: grids.GridPoint,
    extra: Mapping[str, Any],
    unnamed: frozenset[str] = frozenset(),
) -> Point:
    """Join a grid's point with the values of the function's own `parametrize` (`extra`).

    Those in `unnamed` do not vary and stay out of the id.
    """
    own = {name: _plain(value) for name, value in extra.items()}
    axes = (*grid_point.axes, *(name for name in own if name not in grid_point.axes and name not in unnamed))
    params = FrozenMap({**grid_point.params, **own})
    stem = function.__name__.removeprefix("bench_")
    labels = [grids.axis_label(axis, params[axis]) for axis in axes]
    return Point(
        benchmark=benchmark,
        lane=lane,
        backend=backend,
        params=params,
        axes=axes,
        source_hash=source_hash(function),
        id=slug("-".join([f"{lane}.{stem}", backend, *labels])),
    )


def _plain(value: Any) -> Json:
    """A parameter of any type as JSON: what has no JSON form stands by its name or its repr."""
    try:
        return jsonable(value)
    except (TypeError, ValueError):
        return getattr(value, "__name__", None) or repr(value)


def unique_ids(points: Sequence[Point]) -> list[Point]:
    """Give points of equal id but different content a suffix, so that no two share a receipt."""
    times = Counter(point.id for point in points)
    owners: dict[str, set[str]] = {}
    for point in points:
        if times[point.id] > 1:
            owners.setdefault(point.id, set()).add(point.fingerprint)
    return [
        replace(point, id=slug(f"{point.id}-{point.fingerprint[:6]}")) if len(owners.get(point.id, ())) > 1 else point
        for point in points
    ]


def in_resource_order(items: Sequence[T], *, resource: Callable[[T], Hashable], repeat: Callable[[T], int]) -> list[T]:
    """Items of one resource together, in order of first appearance; within it repeats interleave.

    One boot then serves all its points, and slow drift of the machine spreads over all of them instead of falling on
    the last.
    """
    first: dict[Hashable, int] = {}
    for index, item in enumerate(items):
        first.setdefault(resource(item), index)
    return sorted(items, key=lambda item: (first[resource(item)], repeat(item)))


def into_slots(items: Sequence[T], chosen: Iterable[T], ordered: Iterable[T]) -> list[T]:
    """`items` with those in `chosen` replaced, slot by slot, by `ordered`; all others stay where they are."""
    slots = {id(item) for item in chosen}
    source = iter(ordered)
    return [next(source) if id(item) in slots else item for item in items]
