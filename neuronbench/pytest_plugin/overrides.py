"""Which names `--nb-set` may give: a misspelt one is refused, for it would measure something else and say nothing.

A parameter is known when a grid, a benchmark or a provider has it without `--nb-set`, or when the code of a benchmark
or of a plugin reads it from the point. What costs more than a look into grids is asked only about a name that is not in
them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from neuronbench import grid as grids
from neuronbench import lane_benchmarks, points
from neuronbench.model import FrozenMap, Json, Point, closest
from neuronbench.pytest_plugin.keys import NEEDS, POINT, WARNINGS
from neuronbench.session import PROFILE, Session, wanted_provider

_OF_THE_CORE: Final = frozenset({"api", "served_model", PROFILE})
"""Parameters that measuring itself reads."""
_CORE: Final = Path(points.__file__).parent


def check(config: pytest.Config, session: Session, given: Sequence[Any], benches: Sequence[Any]) -> None:
    """Refuse a key of `--nb-set` that is almost a known one, or has several values and multiplies nothing; keep any
    other that nobody knows, or that does nothing, for the terminal to say.

    `given`: all collected functions of benchmarks, also those without points; `benches`: those that have a point.
    Raises `pytest.UsageError`.
    """
    overrides = session.settings.overrides
    if not overrides or not benches:
        return
    own = frozenset(overrides)
    config.stash[WARNINGS] += [line for key in overrides if (line := _kept(key, benches))]
    of_grids = _in_grids(session, given)
    of_points = sorted({name for item in benches for name in item.stash[POINT].params})
    idle = {key for key, values in overrides.items() if len(values) > 1 and key not in of_points}
    doubtful = [key for key in overrides if (key not in of_grids or key in idle) and key != PROFILE]
    if not doubtful:
        return
    known = sorted({*of_grids, *_of_providers(session, benches, own)})
    missing = [key for key in doubtful if key not in known]
    named = _named(missing, _code(session, benches)) if missing else frozenset()
    for key in doubtful:
        said = f"--nb-set {key}={','.join(overrides[key])}"
        if key in missing and key not in named and closest(key, known):
            raise pytest.UsageError(
                f"{said}: no collected benchmark, grid or provider has a parameter of that name{closest(key, known)}"
            )
        if key in idle:
            what = "give this parameter one value" if key in known or key in named else f"found {', '.join(of_points)}"
            raise pytest.UsageError(
                f"{said}: expected an axis or a setting of a benchmark or its grid for several values; {what}"
            )
    config.stash[WARNINGS] += [_unread(key) for key in missing if key not in named]


def _unread(key: str) -> str:
    return (
        f"neuronbench: warning: --nb-set {key}: no collected benchmark, grid or provider has a parameter {key!r}; it "
        "goes into the record and changes nothing that neuronbench knows of"
    )


def _kept(key: str, items: Sequence[Any]) -> str:
    """What is to be said of functions whose own `parametrize` has the key, which is stronger; empty without one."""
    names = dict.fromkeys(item.nodeid.partition("[")[0] for item in items if key in item.callspec.params)
    if not names:
        return ""
    first, *others = names
    more = f" and {len(others)} more" if others else ""
    return (
        f"neuronbench: warning: --nb-set {key}: {first}{more} has its values from its own parametrize, and they stay; "
        "change them there, or choose with -k"
    )


def _in_grids(session: Session, items: Sequence[Any]) -> frozenset[str]:
    """Names that grids, `parametrize` and `nb.bench` give, without those of `--nb-set`."""
    from neuronbench.pytest_plugin.collection import mark_of

    found: set[str] = set()
    seen: set[str] = set()
    more_grids = lane_benchmarks.grid_dirs(session.plugins.lanes)
    for item in items:
        found.update(item.callspec.params)
        function = item.nodeid.partition("[")[0]
        if function in seen:
            continue
        seen.add(function)
        mark = mark_of(item)
        found.update(mark.get("params") or {})
        name, _ = points.named_grid(session.settings, mark.get("grid"))
        if name is not None:
            found |= grids.load(grids.find(name, (*session.settings.grid_dirs, *more_grids))).names
    return frozenset(found - {"point", "nb_repeat"})


def _of_providers(session: Session, benches: Sequence[Any], own: frozenset[str]) -> frozenset[str]:
    """Names that providers of the resources read, and the fields of a training job."""
    from neuronbench.training.job import TrainJob

    found = set(_OF_THE_CORE)
    seen: set[tuple[str, str, str]] = set()
    for item in benches:
        point: Point = item.stash[POINT]
        for kind in item.stash[NEEDS]:
            key = (item.nodeid.partition("[")[0], point.backend, kind)
            if key in seen:
                continue
            seen.add(key)
            found.add(f"{kind}_provider")
            if kind == "trainer":
                found.update(each.name for each in dataclasses.fields(TrainJob) if each.init)
            plain = {name: value for name, value in point.params.items() if name not in own}
            for params in (plain, point.params):  # what is refused without them may be read with them
                found |= _asked_for(session, dataclasses.replace(point, params=_Watched(params)), kind)
    return frozenset(found)


class _Watched(FrozenMap):
    """Parameters that note which of them were asked for, whether they are there or not."""

    __slots__ = ("asked",)

    def __init__(self, data: Mapping[str, Json]) -> None:
        super().__init__(data)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Json:
        self.asked.add(key)
        return super().__getitem__(key)


def _asked_for(session: Session, point: Point, kind: str) -> set[str]:
    """Parameters that the provider asks for when it makes a spec of `point`, also where it refuses to make one.

    That is said elsewhere.
    """
    info = session.plugins.provider_for(kind, point.backend, wanted_provider(point, kind))
    watched = point.params
    assert isinstance(watched, _Watched)
    watched.asked.clear()  # which provider is wanted was our own question
    with contextlib.suppress(Exception):
        if info is not None:
            backend = session.plugins.backend(point.backend)
            session.plugins.provider(info.name).spec(point, backend, session.settings)
    return watched.asked


def _code(session: Session, benches: Sequence[Any]) -> Iterator[Path]:
    """Python files of benchmarks, of what lies beside them, and of plugins outside the core."""
    yield from sorted({file for folder in {item.path.parent for item in benches} for file in folder.glob("*.py")})
    for plugin in session.plugins.pm.get_plugins():
        name = str(getattr(plugin, "__name__", ""))
        place = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) or getattr(plugin, "__file__", None)
        if place and not Path(place).is_relative_to(_CORE):
            file = Path(place)
            yield from sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]


def _named(keys: Iterable[str], files: Iterable[Path]) -> frozenset[str]:
    """Those of `keys` that a file reads as `point["key"]` or `point.get("key")`."""
    patterns = {key: re.compile(rf"""(?:point|params)(?:\.get\(|\[)\s*(["']){re.escape(key)}\1""") for key in keys}
    found: set[str] = set()
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found |= {key for key, pattern in patterns.items() if pattern.search(text)}
    return frozenset(found)
