"""Benchmarks that come with a lane's own distribution: where they are, and what they are called.

A lane names the package that holds them (`LaneInfo.benchmarks`): its `bench_*.py` files, and its grids in a folder
`grids` beside them. They are then collected wherever a project's `benchmarks` folder is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench.registry import PluginError

if TYPE_CHECKING:
    from neuronbench.protocols import LaneInfo

GRIDS: Final = "grids"


def folder_of(lane: LaneInfo) -> Path | None:
    """Folder of the package that has the lane's benchmarks; None for a lane without.

    The package's parents are imported, itself it is not. Raises `PluginError` where there is no such package.
    """
    if not lane.benchmarks:
        return None
    try:
        spec = importlib.util.find_spec(lane.benchmarks)
    except (ImportError, ValueError, AttributeError) as error:
        raise PluginError(f"lane {lane.name!r}: its benchmarks {lane.benchmarks!r} cannot be found: {error}") from error
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise PluginError(
            f"lane {lane.name!r}: expected a package with bench_*.py files as its benchmarks, found "
            f"{'a module' if spec is not None else 'nothing'} called {lane.benchmarks!r}"
        )
    return Path(places[0]).resolve()


def folders(lanes: Iterable[LaneInfo]) -> Mapping[Path, str]:
    """Folder → package, of all lanes that bring benchmarks, each once."""
    found = {folder_of(lane): lane.benchmarks for lane in lanes if lane.benchmarks}
    return {folder: package for folder, package in found.items() if folder is not None}


def grid_dirs(lanes: Iterable[LaneInfo]) -> tuple[Path, ...]:
    """Folders of grids that lanes bring."""
    return tuple(folder / GRIDS for folder in folders(lanes) if (folder / GRIDS).is_dir())


def name_of(path: Path, known: Mapping[Path, str]) -> str:
    """`acme_lane.benchmarks/bench_x.py` for a file in one of the folders `known`; empty for any other.

    A benchmark is the same one wherever its distribution is installed.
    """
    for folder in path.parents:
        if folder in known:
            return f"{known[folder]}/{path.relative_to(folder).as_posix()}"
    return ""
