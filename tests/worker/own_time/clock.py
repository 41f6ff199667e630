"""A clock that goes on when it is read or waited on, whatever the host does meanwhile, and the toys it is given to.

What these handlers time is as long as it was told to be: no busy host is in a number, and nothing is computed to
let time pass. The clock begins at the host's, and where a loop has ended the worker waits until the host's has come as
far, so that for the harness nothing ends in the future.
"""

from __future__ import annotations

import importlib.util
import sys
import time as host
from pathlib import Path
from types import ModuleType
from typing import Any


class Clock:
    """Stands for the module `time`, in ns of the monotonic clock."""

    def __init__(self) -> None:
        self.now_ns = host.monotonic_ns()
        self._reads = 0

    def monotonic_ns(self) -> int:
        self._reads += 1
        self.now_ns += 2_000 + self._reads * 37 % 101  # never twice the same, as of any clock
        return self.now_ns

    perf_counter_ns = monotonic_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def until(self, instant_ns: int) -> None:
        self.now_ns = max(self.now_ns, instant_ns)

    def begin(self, at_most: int = 1 << 62) -> None:
        """Go on from where the host is by now."""
        self.now_ns = min(max(self.now_ns, host.monotonic_ns()), at_most)

    def end(self) -> None:
        """Wait for the host."""
        host.sleep(max(self.now_ns - host.monotonic_ns(), 0) / 1e9)

    def __getattr__(self, name: str) -> Any:
        return getattr(host, name)


CLOCK = Clock()


def original(name: str) -> ModuleType:
    """The handler of that name in `neuronbench.testing`, with this clock for its `time`."""
    folder = Path(sys.modules["nb_worker"].__path__[0]).parent / "testing" / "toy_handlers"
    spec = importlib.util.spec_from_file_location(f"original_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.time = CLOCK  # type: ignore[attr-defined]
    return module
