"""The made-up device of a rank: graphs that are compiled once and executed one after the other, while the host goes
on."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import queue
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

COMPILER = "2.21.33363.0+fake"
IN_FLIGHT = 3
"""Executions that may be queued before the host has to wait."""
FLAG = "NEURON_EXTRACT_GRAPHS_ONLY"


def extracting() -> bool:
    return os.environ.get(FLAG) == "1"


def say(text: str) -> None:
    print(
        f"2026-08-17 10:00:00.000000:  {os.getpid()}  INFO ||NEURON_CC_WRAPPER||: {text}", file=sys.stderr, flush=True
    )


class Device:
    """One core, and what was traced for it and not handed over."""

    def __init__(self) -> None:
        self.pending: list[tuple[str, float]] = []
        self.known: set[str] = set()
        self._executions: queue.Queue[tuple[float, str]] = queue.Queue(0 if native() else IN_FLIGHT)
        self._runtime: Any = None
        threading.Thread(target=self._execute, daemon=True).start()

    def trace(self, what: str, seconds: float) -> None:
        """Part of the graph that the next step marker closes."""
        self.pending.append((what, seconds))
        if native():
            self.hand_over()

    def hand_over(self) -> None:
        if not self.pending:
            return
        parts, self.pending = self.pending, []
        name = "+".join(what for what, _ in parts)
        if os.environ.get("NEURONBENCH_FAKE_RECOMPILE") == "1":
            name += f"@{len(self.known)}"
        self.compile(name)
        if not extracting():
            self._attach()
            self._executions.put((sum(seconds for _, seconds in parts), name))

    def wait(self) -> None:
        """For all of torch-xla's: a device that is torch's own has nothing of it."""
        if not native():
            self.synchronize()

    def synchronize(self) -> None:
        if os.environ.get("NEURONBENCH_FAKE_LAZY_BARRIER") != "1":
            self._executions.join()

    def compile(self, name: str) -> None:
        if name in self.known:
            return
        self.known.add(name)
        folder = module(name)
        if (folder / "model.done").is_file():
            say(f"Using a cached neff at {folder}/model.neff. Exiting with a successfully compiled graph.")
            return
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.hlo_module.pb").write_bytes(name.encode())
        (folder / "compile_flags.json").write_text(json.dumps(flags()), encoding="utf-8")
        if extracting():
            say(f"Extracting graphs ({folder}/model.hlo_module.pb) for ahead-of-time parallel compilation.")
            return
        compiled(folder)

    def _execute(self) -> None:
        while True:
            seconds, name = self._executions.get()
            time.sleep(seconds)
            self._runtime.executed(seconds)
            if os.environ.get("NEURON_RT_INSPECT_ENABLE") == "1":
                captured(name, seconds)
            self._executions.task_done()

    def _attach(self) -> None:
        """Take the rank's core, at the first execution: from then on the tools see it."""
        if self._runtime is not None:
            return
        from torch_neuronx import _runtime  # type: ignore[import-not-found,unused-ignore]

        cores = _runtime.visible()
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        if rank >= len(cores):
            _runtime.refuse(f"NRT:nrt_allocate_neuron_cores  NeuronCore(s) not available - Requested:{rank + 1} "
                            f"Available:{len(cores)}")  # fmt: skip
        os.environ["NEURON_RT_VISIBLE_CORES"] = str(cores[rank])
        _runtime.Device.get()
        self._runtime = _monitored().Runtime(_runtime.root(), [cores[rank]], device_bytes=256 << 20)


def flags() -> list[str]:
    return os.environ.get("NEURON_CC_FLAGS", "").split()


def cache() -> Path:
    root = Path(os.environ["NEURONBENCH_NEURON_ROOT"])
    told = os.environ.get("NEURON_COMPILE_CACHE_URL") or str(root / "var/tmp/neuron-compile-cache")
    return root / "var/tmp/stores" / told.replace("://", "/") if "://" in told else Path(told)


def module(name: str) -> Path:
    """The folder of a graph in the cache: by its hash, and that of the compiler's flags."""
    graph = int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)
    told = hashlib.sha256(json.dumps(flags()).encode()).hexdigest()[:8]
    return cache() / f"neuronxcc-{COMPILER}" / f"MODULE_{graph}+{told}"


def compiled(folder: Path) -> None:
    say(f"Call compiler with cmd: neuronx-cc compile {folder}/model.hlo_module.pb --framework XLA --target trn1 "
        f"--output {folder}/model.neff {' '.join(flags())}")  # fmt: skip
    time.sleep(float(os.environ.get("NEURONBENCH_FAKE_COMPILE_MS", "100")) / 1e3)
    (folder / "model.neff").write_bytes(b"NEFF")
    (folder / "model.done").write_text("", encoding="utf-8")
    say("Compiler status PASS")


def captured(name: str, seconds: float) -> None:
    """The pair of files that the runtime leaves of a device's trace, once for each graph."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    folder = Path(os.environ["NEURON_RT_INSPECT_OUTPUT_DIR"]) / f"i-0123456789abcdef0_pid_{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"neff_{digest}.neff").write_bytes(b"NEFF")
    told = {"total_time": seconds, "ntff_version": int(os.environ.get("NEURONBENCH_FAKE_NTFF_VERSION", "3"))}
    (folder / f"{digest}_instid_0_vnc_0.ntff").write_text(json.dumps(told), encoding="utf-8")


def _monitored() -> Any:
    """The module of the fake neuron-monitor, from its file: a stack has no neuronbench."""
    path = Path(__file__).parents[2] / "neuron_monitor.py"
    spec = importlib.util.spec_from_file_location("_fake_neuron_monitor", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def execution_s() -> float:
    return float(os.environ.get("NEURONBENCH_FAKE_EXECUTION_MS", "20")) / 1e3


_device: Device | None = None


def begin() -> None:
    if not os.environ.get("NEURONBENCH_NEURON_ROOT"):
        raise ImportError("this torch_xla is a fake for made-up hosts: NEURONBENCH_NEURON_ROOT is not set")
    if native():
        _make_native()


def native() -> str:
    return os.environ.get("NEURONBENCH_FAKE_NATIVE", "")


def _make_native() -> None:
    """What torch has where the device is its own: the module, and values that wait for it when they are fetched."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    plain = torch.Tensor.tolist

    def tolist(self: Any) -> Any:
        if _device is not None:
            _device._executions.join()
        return plain(self)

    torch.Tensor.tolist = tolist
    if native() != "hidden":
        torch.neuron = types.ModuleType("torch.neuron")
        torch.neuron.synchronize = lambda: get().synchronize()


def get() -> Device:
    global _device
    if _device is None:
        _device = Device()
    return _device
