"""The plan as the driver sees it: bodies mapped into memory, index columns as plain arrays. Standard library only."""

from __future__ import annotations

import json
import mmap
from array import array
from pathlib import Path
from typing import Any

from neuronbench.load.apis import APIS, Api
from neuronbench.load.layout import PLAN_COLUMNS


class PlanView:
    """A plan folder, opened for reading. Bodies `0 … warmup-1` are the warm-up set, the load's come after it."""

    def __init__(self, folder: Path) -> None:
        self.info: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        self.api: Api = APIS[self.info["api"]]
        self.warmup: int = self.info["warmup"]["count"]
        self.count: int = self.info["count"]
        """Bodies of the load; a longer run starts over with the first."""
        self.arrivals: dict[str, Any] = self.info["arrivals"]
        self._columns: dict[str, array[int]] = {}
        total = self.warmup + self.count
        for name in PLAN_COLUMNS:
            column = array("q")
            with (folder / f"{name}.i64").open("rb") as file:
                column.fromfile(file, total)
            self._columns[name] = column
        with (folder / "bodies.bin").open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._blob = memoryview(self._map)
        self._offset, self._length = self._columns["offset"], self._columns["length"]
        self.exact: bool = self.info["exact_output"]
        """Answers must have exactly the length asked for."""

    def body(self, index: int) -> memoryview:
        start = self._offset[index]
        return self._blob[start : start + self._length[index]]

    def column(self, name: str) -> array[int]:
        return self._columns[name]

    def touch(self) -> None:
        """Read every page once, so that no request waits for the disk."""
        step = mmap.PAGESIZE
        blob = self._blob
        for position in range(0, len(blob), step):
            blob[position]
