"""What a compile cache held at an instant, and what happened in it until a later one: was anything compiled meanwhile?

    before = caches.snapshot(folder)
    ...                                   # what is measured
    happened = before.delta(caches.snapshot(folder))
    happened.compiled, happened.failed    # empty in a window that may be quoted

Logs say the same in other words (`Using a cached neff`, `Call compiler with cmd`); where the two disagree, one of them
was read wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neuronbench.model import Json
from neuronbench_neuron.caches.layout import Kind, Module, State, kind_of, modules


@dataclass(frozen=True, kw_only=True)
class Delta:
    """What happened in a cache between two snapshots. Keys of modules, sorted."""

    compiled: tuple[str, ...] = ()
    """There now and not before, or anew: each is a run of the compiler that came to its end."""
    failed: tuple[str, ...] = ()
    """Compiles that failed meanwhile."""
    begun: tuple[str, ...] = ()
    """Neither compiled nor failed yet: the compiler was at work, or was killed."""
    removed: tuple[str, ...] = ()
    kept: int = 0
    """Compiled modules that were there before and still are."""

    @property
    def compiles(self) -> int:
        """Runs of the compiler that were begun."""
        return len(self.compiled) + len(self.failed) + len(self.begun)

    @property
    def cold(self) -> bool:
        """Whether anything was compiled, or tried to be: a time that contains this is not one of running."""
        return self.compiles > 0

    @property
    def state(self) -> str:
        """`cold` where the compiler ran; `warm` where there was something and it did not; `empty` where nothing is."""
        return "cold" if self.cold else "warm" if self.kept else "empty"

    def to_json(self) -> dict[str, Json]:
        """For a record."""
        return {
            "state": self.state, "compiles": self.compiles, "kept": self.kept,
            "compiled": list(self.compiled), "failed": list(self.failed), "begun": list(self.begun),
            "removed": list(self.removed),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A cache at an instant."""

    folder: Path
    kind: Kind
    modules: Mapping[str, Module] = field(default_factory=dict)
    """By key."""

    def of(self, state: State) -> tuple[str, ...]:
        """Keys of the modules in a state."""
        return tuple(sorted(key for key, module in self.modules.items() if module.state == state))

    @property
    def size_bytes(self) -> int:
        return sum(module.size_bytes for module in self.modules.values())

    @property
    def compilers(self) -> tuple[str, ...]:
        """Versions of the compiler that have modules here."""
        return tuple(sorted({module.compiler for module in self.modules.values() if module.compiler}))

    def delta(self, later: Snapshot) -> Delta:
        """What happened from this snapshot to `later`, of the same folder. Raises `ValueError` for another folder."""
        if later.folder != self.folder:
            raise ValueError(f"snapshots of two folders tell nothing of each other: {self.folder} and {later.folder}")
        changed: dict[State, list[str]] = {"done": [], "failed": [], "partial": [], "damaged": []}
        kept = 0
        for key, now in later.modules.items():
            then = self.modules.get(key)
            if then is not None and (then.state, then.stamp) == (now.state, now.stamp):
                kept += now.state == "done"
            else:
                changed[now.state].append(key)
        return Delta(
            compiled=tuple(sorted(changed["done"] + changed["damaged"])),
            failed=tuple(sorted(changed["failed"])),
            begun=tuple(sorted(changed["partial"])),
            removed=tuple(sorted(self.modules.keys() - later.modules.keys())),
            kept=kept,
        )


def snapshot(folder: Path | str, kind: Kind | None = None) -> Snapshot:
    """Look at a cache: names, sizes and times only. A folder that is not there is an empty cache.

    `kind`: its layout; told by its contents when not given. Raises `ValueError` for a URL that is no folder.
    """
    text = str(folder)
    if "://" in text and not text.startswith("file://"):
        raise ValueError(f"{text}: only a cache in a folder can be looked at; expected a path")
    path = Path(text.removeprefix("file://")).expanduser()
    layout = kind or kind_of(path)
    return Snapshot(folder=path, kind=layout, modules={module.key: module for module in modules(path, layout)})
