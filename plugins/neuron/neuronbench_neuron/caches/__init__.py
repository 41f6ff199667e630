"""The compilers' own caches: what is in them, what happened in them, locks nobody holds, sharing them between boxes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuronbench.stacks import inspect, interpreter
from neuronbench_neuron.caches.cache import OF_STACKS, CompileCache
from neuronbench_neuron.caches.layout import Module
from neuronbench_neuron.caches.places import Place, notes, places
from neuronbench_neuron.caches.snapshot import Delta, Snapshot, snapshot

if TYPE_CHECKING:
    from neuronbench_neuron.hardware import Hardware

SERVED = "neuron-artifacts"
"""Below the settings' `cache_dir`: whole models that NxD Inference compiled for servers of neuronbench, by a digest of
all that decides; and the name of this cache."""
COMPILERS = ("neuronx-cc", "nki")
"""What artifacts of this plugin are compiled with: models, and kernels alone."""

__all__ = [
    "SERVED",
    "CompileCache",
    "Delta",
    "Module",
    "Place",
    "Snapshot",
    "fits",
    "of",
    "places",
    "served",
    "snapshot",
]


def of(settings: Any, host: Hardware, environ: Mapping[str, str]) -> list[CompileCache]:
    """The caches of a host: for `neuronbench cache`, which shows, checks, prunes, unlocks and shares them."""
    version, group = host.core_version, host.logical_core_config
    core = version if version in ("", "v2") else f"{version}-lnc{group or 2}"

    def stacks() -> list[dict[str, str]]:
        return versions(settings, host)

    found = []
    for place in places(environ, host.root):
        told = list(notes(environ)) if place.kind == "xla" else []
        if place.folder is None:
            told.append(f"{place.url} ({place.source}) is not on this host; it is not looked at")
        elif place.folder.exists() and not place.folder.is_dir():
            told.append(f"{place.url} ({place.source}) is no folder: whoever compiles fails there; name another")
        elif not place.folder.exists() and (place.kind != "xla" or not host.nodes):
            continue
        folder = place.folder if place.folder is not None else settings.cache_dir / "neuron-elsewhere"
        found.append(CompileCache(folder, place.kind, stacks=stacks, core=core, notes=told))
    kept = settings.cache_dir / SERVED
    if host.nodes or kept.is_dir():
        found.append(served(kept, stacks=stacks, core=core))
    return found


def served(folder: Path, **given: Any) -> CompileCache:
    """The cache of models that servers compiled, in a folder called `SERVED`."""
    return CompileCache(folder, "nxdi", name=SERVED, title="models compiled for serving", **given)


def versions(settings: Any, host: Hardware) -> list[dict[str, str]]:
    """What each stack of the host that has a compiler has of `OF_STACKS`."""
    told = [str(path) for path in settings.stacks.values()]
    pythons = [found for path in [*told, *host.venvs] if (found := interpreter(settings.root / path)) is not None]
    asked = [dict(inspect(python, packages=OF_STACKS).packages) for python in pythons]
    return [each for each in asked if each.get("neuronx-cc")]


def fits(settings: Any, host: Hardware) -> list[str]:
    """What artifacts this host can use: those of its compilers, for cores like its own."""
    if not host.core_version:
        return []
    from neuronbench.weights.shared_artifacts import scope_part
    from neuronbench_neuron.compiled.boot import lnc_of, target_of

    target = {"target": target_of(host), "core": host.core_version, "lnc": lnc_of(host)}
    found = {each["neuronx-cc"] for each in versions(settings, host)}
    return sorted(scope_part(compiler, version, target) for version in found for compiler in COMPILERS)
