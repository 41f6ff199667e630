"""Traces that a killed session has left: gigabytes that nobody will read, for `neuronbench cache`.

A server that is profiled writes its traces to a folder of its own in the cache folder; when they are in the record, the
folder is removed. Its name begins with the pid of the session that it belongs to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import Final

from neuronbench.protocols import CacheEntry

FOLDER: Final = "neuron-profiles"
_NAME: Final = re.compile(r"(\d+)-\d+")


def new_folder(cache_dir: Path) -> Path:
    """A new folder of this process: traces of sessions have gigabytes, which belong into no temporary place."""
    made = cache_dir / FOLDER / f"{os.getpid()}-{time.time_ns()}"
    made.mkdir(parents=True)
    return made


class ProfileLeftovers:
    """`protocols.Cache`: what is there of sessions that have ended. Of a session that runs it is in use.

    A pid that another process has by now keeps its folder for as long as that one runs, which does no harm.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.name, self.title, self.folder = (
            "neuron-profiles",
            "traces of Neuron servers, not yet read",
            cache_dir / FOLDER,
        )

    def entries(self) -> list[CacheEntry]:
        """All folders that a session has made, sizes in bytes; what bears another name is not ours to remove."""
        found = []
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            named = _NAME.fullmatch(path.name)
            if named is None or not path.is_dir() or path.is_symlink():
                continue
            sizes, used = 0, 0.0
            with contextlib.suppress(FileNotFoundError):  # its session is reading it, and removes it then
                created = path.stat().st_ctime
                for each in (path, *path.rglob("*")):
                    told = each.lstat()
                    sizes += told.st_size if not each.is_dir() else 0
                    used = max(used, told.st_mtime)
                found.append(
                    CacheEntry(
                        key=path.name, title=f"of the session with pid {named[1]}", size_bytes=sizes,
                        created_at=created, used_at=used, in_use=_runs(int(named[1])),
                    )
                )  # fmt: skip
        return found

    def damage(self, key: str) -> str:
        """Nothing says what they should be: never damaged."""
        return ""

    def remove(self, key: str) -> bool:
        """Remove it, unless its session runs."""
        named = _NAME.fullmatch(key)
        if named is None:
            raise ValueError(f"not an entry of {self.folder}: {key!r}")
        if _runs(int(named[1])):
            return False
        shutil.rmtree(self.folder / key, ignore_errors=True)
        return True


def _runs(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()
