"""What the made-up `neuron-monitor` sees of a server: its cores, and the executions on them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any


class Runtime:
    """Of this process; sees to nothing where no made-up host is named, as in a server that is started by hand."""

    def __init__(self) -> None:
        root = os.environ.get("NEURONBENCH_NEURON_ROOT")
        told = os.environ.get("NEURON_VISIBLE_DEVICES") or os.environ.get("NEURON_RT_VISIBLE_CORES") or ""
        cores = [int(core) for core in told.split(",") if core.strip().isdecimal()]
        self._file: Any = _monitored().Runtime(root, cores, device_bytes=1 << 30) if root and cores else None

    def executed(self, seconds: float) -> None:
        if self._file is not None and seconds > 0:
            self._file.executed(seconds)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _monitored() -> Any:
    """The module of the made-up tool, from its file: a stack has no neuronbench."""
    spec = importlib.util.spec_from_file_location(
        "_fake_neuron_monitor", Path(__file__).parents[3] / "neuron_monitor.py"
    )
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
