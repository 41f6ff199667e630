"""A sampler that counts compiles while a window is open: in the cache's folder, and in the server's log.

It runs in the telemetry process, once a second, and only lists names and reads what the log has grown by.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from neuronbench_neuron.serving.log import COMPILES, HITS

NAME: Final = "compiles"
"""Of the sampler; its series are `compiles/modules`, `compiles/log_compiles`, `compiles/log_hits`."""
PERIOD_S: Final = 1.0
_MARKS: Final = frozenset({"model.done", "model.log", "model.error", ".compilation_complete", "model.pt"})
"""Files that stand for the end of a compile, good or bad."""
_DEPTH: Final = 3
_MOST_LINE: Final = 1 << 16


class CompileWatch:
    """Sampler. `folder`: of the compile cache, null when it is none; `artifacts`: of compiled models; `log`: its file.

    `modules` counts marks of ended compiles and folders of begun ones, so that it grows with every compile.
    """

    def __init__(self, folder: str | None = None, artifacts: str | None = None, log: str | None = None) -> None:
        self._folders = [path for path in (folder, artifacts) if path]
        self._log = log
        self._offset = os.path.getsize(log) if log and os.path.exists(log) else 0
        self._rest = b""
        self._compiles = self._hits = 0

    def read(self) -> Mapping[str, float | None]:
        values: dict[str, float | None] = {}
        if self._folders:
            values["modules"] = float(sum(_count(folder, _DEPTH) for folder in self._folders))
        if self._log is not None and self._follow():
            values["log_compiles"], values["log_hits"] = float(self._compiles), float(self._hits)
        return values

    def _follow(self) -> bool:
        assert self._log is not None
        try:
            with open(self._log, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return False
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_MOST_LINE:]
        for raw in lines:
            line = raw.decode("utf-8", errors="replace")
            self._compiles += bool(COMPILES.search(line))
            self._hits += bool(HITS.search(line))
        return True

    def close(self) -> None:
        """Nothing is held."""


def _count(folder: str, depth: int) -> int:
    found = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _MARKS:
                found += 1
            elif depth and entry.is_dir(follow_symlinks=False):
                found += 1 + _count(entry.path, depth - 1)
    return found
