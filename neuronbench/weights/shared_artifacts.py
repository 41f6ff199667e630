"""Compiled artifacts between hosts: what was compiled on one box is a hit on another of its kind, and on no other.

The key of an artifact is made of all that decides what the compiler makes: the model's digest, shapes, flags, versions,
the target, the source of the handler. So an artifact in the wrong place is never used; scopes see to it that it does
not get there. What was pulled is kept only when its own list of files, and its key made anew from its own parts, say
that it is what it is called.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from neuronbench import artifacts, keylocks
from neuronbench.model import Json

_WORK: Final = ".tmp-"
_OTHER: Final = re.compile(r"[^A-Za-z0-9.+=@_]+")
_LONGEST: Final = 120


def scope_part(compiler: str, version: str, target: Mapping[str, Json]) -> str:
    """The part of a scope that says for what an artifact was made, `COMPILER-VERSION/TARGET`.

    `target`: what an artifact's parts say of it, such as `{"target": "trn2", "core": "v3", "lnc": 2}`.
    """
    words = [f"{name}{value}" if isinstance(value, int) else str(value) for name, value in sorted(target.items())]
    return f"{_plain(f'{compiler}-{version}')}/{_plain('-'.join(word for word in words if word))}"


class SharedArtifacts(artifacts.ArtifactCache):
    """The artifacts of a host: `neuronbench.caches.Shared`.

    `fits`: what this host's compilers and hardware can use, as `scope_part` writes it; asked for when it matters.
    """

    def __init__(self, cache_dir: Path, *, fits: Callable[[], Sequence[str]] = tuple) -> None:
        super().__init__(cache_dir)
        self._fits = fits

    def scope(self, key: str) -> str:
        if _WORK in key:
            raise ValueError("it was never finished")
        wrong = self.damage(key)
        if wrong:
            raise ValueError(f"it is damaged: {wrong}")
        parts = _manifest(self.folder / key)["parts"]
        target, versions = parts.get("target"), parts.get("versions")
        if not isinstance(target, Mapping) or not isinstance(versions, Mapping):
            raise ValueError("it does not say for which compiler and hardware it was made")
        compiler = str(parts.get("compiler") or "unknown")
        version = versions.get(compiler) or versions.get("neuronx-cc") or versions.get("torch")
        return f"{self.name}/{scope_part(compiler, str(version), target)}"

    def scopes(self) -> list[str]:
        return sorted({f"{self.name}/{each}" for each in self._fits()})

    def files(self, key: str) -> dict[str, Path]:
        folder = self.folder / self._checked(key)
        if not (folder / artifacts.MANIFEST).is_file():
            return {}
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}

    def reserve(self, key: str) -> keylocks.Lock | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        return keylocks.take(self.folder / f"{self._checked(key)}.lock")  # who compiles it has the same

    def workshop(self, key: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{self._checked(key)}{_WORK}pull"

    def install(self, key: str, folder: Path) -> bool:
        target = self.folder / self._checked(key)
        wrong = artifacts.damage_of(folder) or _misnamed(key, folder)
        if wrong:
            raise ValueError(wrong)
        try:
            os.rename(folder, target)  # fails where there is a folder that is not empty
        except OSError:
            if target.exists():
                return False
            raise
        keylocks.share(self.folder / f"{key}.use").close()  # as if it was used now: it is not the first to be pruned
        self._failure_file(key).unlink(missing_ok=True)
        self._note(key, "pulled")
        return True

    def _checked(self, key: str) -> str:
        if not re.fullmatch(r"[0-9A-Za-z]+", key):
            raise ValueError(f"{key!r} is no key of {self.title}")
        return key


def _misnamed(key: str, folder: Path) -> str:
    """What is wrong with the name of an artifact; empty when it is the one that its own parts make."""
    manifest = _manifest(folder)
    told, made = str(manifest.get("key")), artifacts.key_of(manifest["parts"])
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    more = sorted(names - {*manifest["files"], artifacts.MANIFEST})
    if more:
        return f"{more[0]} is not among its files"
    return "" if key == told == made else f"it is called {key}, it says {told}, and what it was made of makes {made}"


def _manifest(folder: Path) -> dict[str, Json]:
    return dict(json.loads((folder / artifacts.MANIFEST).read_text(encoding="utf-8")))


def _plain(text: str) -> str:
    return _OTHER.sub("-", text).strip("-.+=@_")[:_LONGEST] or "unknown"
