"""The compilers' own caches: what is in them, what happened in them, locks nobody holds, sharing them between boxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neuronbench.stacks import inspect, interpreter
from neuronbench_neuron.caches.cache import CompileCache
from neuronbench_neuron.caches.layout import Module
from neuronbench_neuron.caches.places import Place, notes, places
from neuronbench_neuron.caches.snapshot import Delta, Snapshot, snapshot

if TYPE_CHECKING:
    from neuronbench_neuron.hardware import Hardware

__all__ = ["CompileCache", "Delta", "Module", "Place", "Snapshot", "of", "places", "snapshot"]


def of(settings: Any, host: Hardware, environ: Mapping[str, str]) -> list[CompileCache]:
    """The caches of a host: for `neuronbench cache`, which shows, checks, prunes, unlocks and shares them."""
    version, group = host.core_version, host.logical_core_config
    core = version if version in ("", "v2") else f"{version}-lnc{group or 2}"
    told_stacks = [str(path) for path in settings.stacks.values()]

    def compilers() -> list[str]:
        pythons = [
            found for path in [*told_stacks, *host.venvs] if (found := interpreter(settings.root / path)) is not None
        ]
        asked = [inspect(python, packages=["neuronx-cc"]).packages.get("neuronx-cc") for python in pythons]
        return sorted({each for each in asked if each})

    found = []
    for place in places(environ, host.root):
        told = list(notes(environ)) if place.kind == "xla" else []
        if place.folder is None:
            told.append(f"{place.url} ({place.source}) is not on this host; it is not looked at")
        elif not place.folder.is_dir() and (place.kind != "xla" or not host.nodes):
            continue
        folder = place.folder if place.folder is not None else settings.cache_dir / "neuron-elsewhere"
        found.append(CompileCache(folder, place.kind, compilers=compilers, core=core, notes=told))
    return found
