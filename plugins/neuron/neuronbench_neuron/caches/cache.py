"""A compiler's cache for `neuronbench cache`: shown, checked, pruned, unlocked, shared."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from neuronbench import keylocks
from neuronbench.caches import CacheLock
from neuronbench.protocols import CacheEntry
from neuronbench_neuron.caches import locks
from neuronbench_neuron.caches.layout import COMPILER, MODULE, Kind, Module, lnc_of, modules
from neuronbench_neuron.caches.places import TITLES

UNFINISHED_S: Final = 86400.0
"""What was begun so long ago and has no lock is no compile that is going on."""
CORES: Final[Mapping[str, str]] = {"trn1": "v2", "trn1n": "v2", "inf2": "v2", "trn2": "v3", "trn3": "v4"}
"""Compiler's target → generation of cores."""
WORK: Final = ".nb-"
MAKERS: Final[Mapping[Kind, Mapping[str, str]]] = {
    "xla": {"neuronx-cc": "neuronxcc"},
    "vllm": {"neuronx-cc": "neuronxcc"},
    "nxdi": {"neuronx-cc": "neuronxcc", "neuronx-distributed-inference": "nxdi", "torch": "torch"},
}
"""Distributions of a stack that decide for whom an entry is of use, and how scopes call them."""
OF_STACKS: Final = tuple(MAKERS["nxdi"])
_WORDS: Final = {
    "done": "compiled", "failed": "failed and kept", "partial": "unfinished", "damaged": "damaged",
}  # fmt: skip


class CompileCache:
    """One folder of one layout: `protocols.Cache`, and `Stateful`, `Locked` and `Shared` of `neuronbench.caches`.

    `stacks`: versions of `OF_STACKS` that each stack of this host has, asked for when it matters; `core`: generation
    and grouping of this host's cores (`v2`, `v3-lnc2`), empty where there are none.

    A graph's executable depends on the compiler and the cores alone; the runtime has to be one that the compiler is
    for, which it has to be for what is compiled on the spot, too. What NxDI keeps is a model that torch has saved, and
    is of use to the same NxDI and torch only: they are in the scopes of `nxdi`.
    """

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        *,
        stacks: Callable[[], Sequence[Mapping[str, str]]] = tuple,
        core: str = "",
        notes: Sequence[str] = (),
        name: str = "",
        title: str = "",
    ) -> None:
        """`name`, `title`: of a cache that is another than the usual one of its layout."""
        self.name, self.title = name or f"neuron-{kind}", title or TITLES[kind]
        self.folder, self.kind = folder, kind
        self.notes: Sequence[str] = tuple(notes)
        self._stacks, self._core = stacks, core

    # -- protocols.Cache

    def entries(self) -> list[CacheEntry]:
        held = {lock.key for lock in self.locks() if lock.state != "stale"}
        return [
            CacheEntry(
                key=module.key, title=self._title(module), size_bytes=module.size_bytes, created_at=module.made_at,
                used_at=max(module.used_at, module.made_at),
                in_use=module.key in held or keylocks.is_held(self._busy(module.key)),
            )
            for module in modules(self.folder, self.kind)
        ]  # fmt: skip

    def damage(self, key: str) -> str:
        module = self._module(key)
        if module is None:
            return "is gone"
        if module.state == "failed":
            return f"a failure is kept, which later runs get at once: {module.why or 'without words'}"
        if module.state == "damaged":
            return module.why
        if module.state == "partial" and time.time() - module.made_at > UNFINISHED_S and not module.locks:
            return "was never finished"
        return ""

    def remove(self, key: str) -> bool:
        folder = self._folder(key)
        if any(lock.key == key and lock.state != "stale" for lock in self.locks()):
            return False
        if keylocks.is_held(self._busy(key)):
            return False
        gone = folder.with_name(f"{WORK}gone-{os.getpid()}-{folder.name}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, gone)  # out of sight in one step
        shutil.rmtree(gone, ignore_errors=True)
        return True

    # -- Stateful, Locked

    def states(self) -> dict[str, int]:
        counts = Counter(module.state for module in modules(self.folder, self.kind))
        return {words: counts[state] for state, words in _WORDS.items() if counts[state]}  # type: ignore[index]

    def locks(self) -> list[CacheLock]:
        return locks.locks(self.folder)

    def unlock(self, lock: CacheLock) -> bool:
        return locks.remove(lock, self.folder)

    # -- Shared

    def scope(self, key: str) -> str:
        module = self._module(key)
        if module is None:
            raise ValueError("it is gone")
        if module.state != "done":
            raise ValueError("its compile failed" if module.state == "failed" else f"it is {_WORDS[module.state]}")
        made_by = f"neuronxcc-{module.compiler}" if module.compiler else self._only_maker()
        return f"{self.name}/{made_by}/{self._core_of(module)}"

    def scopes(self) -> list[str]:
        return [f"{self.name}/{maker}/{self._core}" for maker in self._makers()] if self._core else []

    def files(self, key: str) -> dict[str, Path]:
        folder = self._folder(key)
        return {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix != ".lock"
        }

    def install(self, key: str, folder: Path) -> bool:
        target = self._folder(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(folder, target)  # fails where there is a folder that is not empty
        except OSError:
            if target.exists():
                return False
            raise
        return True

    def reserve(self, key: str) -> keylocks.Lock | None:
        # A compiler that begins the same meanwhile knows nothing of it: the one that is whole first stays.
        self.workshop(key)
        return keylocks.take(self._busy(key))

    def use(self, key: str) -> keylocks.Lock:
        """Until the lock is closed the entry is neither removed nor fetched. Waits while it is being fetched."""
        self.workshop(key)
        return keylocks.share(self._busy(key))

    def workshop(self, key: str) -> Path:
        self._folder(key)
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{WORK}pull-{key.replace('/', '-')}.part"

    # -- parts

    def _busy(self, key: str) -> Path:
        return self.folder / f"{WORK}pull-{key.replace('/', '-')}.busy"

    def _title(self, module: Module) -> str:
        compiler = f"neuronx-cc {module.compiler}" if module.compiler else ""
        what = " ".join(word for word in (module.target, compiler) if word)
        return f"{_WORDS[module.state]}: {what}" if what else _WORDS[module.state]

    def _module(self, key: str) -> Module | None:
        return next((module for module in modules(self.folder, self.kind) if module.key == key), None)

    def _folder(self, key: str) -> Path:
        """Of an entry. Raises `ValueError` for what is no key of this layout, and leads out of the cache for one."""
        parts = key.split("/")
        fits = {
            "xla": len(parts) == 2 and bool(COMPILER.fullmatch(parts[0]) and MODULE.fullmatch(parts[-1])),
            "vllm": len(parts) == 1 and key.isalnum(),
            "nxdi": len(parts) == 1 and key not in ("", ".", ".."),
        }[self.kind]
        if not fits or "\\" in key:
            raise ValueError(f"{key!r} is no entry of {self.title}")
        if self.kind == "nxdi" and (self.folder / "neuron_config.json").is_file():
            return self.folder  # one model, which is the whole folder
        return self.folder / key

    def _makers(self) -> list[str]:
        """What this host's stacks can use: `neuronxcc-2.21`, for NxDI `neuronxcc-2.21+nxdi-0.5+torch-2.8`."""
        found = set()
        for versions in self._stacks():
            words = [f"{label}-{versions.get(name, '')}" for name, label in MAKERS[self.kind].items()]
            if not any(word.endswith("-") for word in words):
                found.add("+".join(words))
        return sorted(found)

    def _only_maker(self) -> str:
        found = self._makers()
        if len(found) != 1:
            what = f"several are here ({', '.join(found)})" if found else "none is found here"
            named = " with ".join(MAKERS[self.kind])
            raise ValueError(f"which {named} made it is not known: {what}")
        return found[0]

    def _core_of(self, module: Module) -> str:
        core = CORES.get(module.target, "")
        if core == "v2":
            return core
        group = lnc_of(module.flags)
        if core and group:
            return f"{core}-lnc{group}"
        if self._core and (not core or self._core.startswith(core)):
            return self._core
        raise ValueError("for which cores it was made is not known: neither its flags nor this host say")
