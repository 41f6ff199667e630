"""The made-up device: which cores there are and who has them, NEFFs on them, calls that may return too early."""

from __future__ import annotations

import atexit
import fcntl
import io
import json
import os
import queue
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch  # type: ignore[import-not-found,unused-ignore]

ROOT_VARIABLE = "NEURONBENCH_NEURON_ROOT"
START, COUNT, LAZY, ASYNC, DYNAMIC = range(5)
"""Places in the tensor that says how a module is loaded."""

if not os.environ.get(ROOT_VARIABLE):
    raise ImportError(
        f"this torch_neuronx is a fake for made-up hosts, and this host is not one: {ROOT_VARIABLE} is not set"
    )


def root() -> Path:
    return Path(os.environ[ROOT_VARIABLE])


def refuse(text: str) -> NoReturn:
    """As the runtime does: a line in the log, an exception for the program."""
    print(f"2026-Aug-17 10:00:00.0000 {os.getpid()}:{os.getpid()} ERROR  {text}", file=sys.stderr, flush=True)
    raise RuntimeError(text)


# -- the host ---------------------------------------------------------------------------------------------------------


def state() -> dict[str, Any]:
    """What `neuron-ls` of the box would say."""
    return dict(json.loads((root() / "run/neuron/neuron-ls.json").read_text(encoding="utf-8")))


def core_ids() -> list[int]:
    """Logical cores of the host."""
    if not list((root() / "dev").glob("neuron*")):
        refuse("NRT:nrt_init  No neuron device available")
    return [core for device in state()["devices"] for core in device["neuroncore_ids"]]


def group() -> int:
    """Physical cores of a logical one."""
    told = [device.get("logical_neuroncore_config") for device in state()["devices"]]
    return int(told[0] or 1) if told else 1


def parsed(text: str) -> list[int]:
    """`0-3` and `0,1,4` → ids."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def visible() -> list[int]:
    """Cores this process may see, by the runtime's own variables."""
    there = core_ids()
    told = os.environ.get("NEURON_RT_VISIBLE_CORES", "")
    if told:
        wanted = parsed(told)
        unknown = [core for core in wanted if core not in there]
        if unknown:
            refuse(f"NRT:nrt_init  Could not find VNC id {unknown[0]}")
        return wanted
    count = int(os.environ.get("NEURON_RT_NUM_CORES", "0") or 0)
    return [core for core in there if not _taken(core)][:count] if count else there


class Device:
    """The cores this process has, and the queue before them. Made by the first NEFF that is loaded."""

    _only: Device | None = None

    def __init__(self) -> None:
        asked = os.environ.get("NEURON_LOGICAL_NC_CONFIG")
        self.group = int(asked) if asked else group()
        self.cores = visible()
        self._locks: list[int] = []
        for core in self.cores:
            descriptor = os.open(_lock(core), os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                free = sum(not _taken(other) for other in self.cores if other != core) + len(self._locks)
                for held in self._locks:
                    os.close(held)
                refuse(
                    f"NRT:nrt_allocate_neuron_cores  NeuronCore(s) not available - Requested:{len(self.cores)} "
                    f"Available:{free}"
                )
            self._locks.append(descriptor)
        self._hold()
        self.depth = int(os.environ.get("NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "0") or 0)
        self._loaded: dict[int, tuple[dict[str, Any], Any]] = {}
        self._work: queue.Queue[Callable[[], None]] = queue.Queue(maxsize=max(self.depth, 1))
        if self.depth:
            threading.Thread(target=self._serve, daemon=True).start()

    @classmethod
    def get(cls) -> Device:
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def place(self, start: int, count: int) -> list[int]:
        """Cores for a model, by their place among those this process has; −1: automatic."""
        first, number = max(start, 0), 1 if count < 0 else count
        if first + number > len(self.cores):
            refuse(
                f"NRT:nrt_load  NeuronCore(s) not available - Requested:nc{first}-nc{first + number - 1} "
                f"Available:{len(self.cores)}"
            )
        return self.cores[first : first + number]

    def load(self, neff: Any, placement: Any) -> tuple[dict[str, Any], Any]:
        """What the NEFF says of itself, and the graph in it; loaded once."""
        key = neff.data_ptr()
        if key not in self._loaded:
            self.place(int(placement[START]), int(placement[COUNT]))
            info, graph = opened(neff.numpy().tobytes())
            self._fits(info)
            self._loaded[key] = info, torch.jit.freeze(torch.jit.load(io.BytesIO(graph)).eval())
        return self._loaded[key]

    def _fits(self, info: dict[str, Any]) -> None:
        family = state()["instance"][:4]
        same = {"trn1": ("trn1", "inf2"), "inf2": ("trn1", "inf2")}.get(family, (family,))
        if info["target"] not in same:
            refuse(
                f"NRT:nrt_load  status=10 NEFF compiled for {info['target']} on {family}: legacy NEFF, "
                "NEURON_RT_ALLOW_LEGACY_NEFF is not set"
            )
        if info["lnc"] != self.group:
            refuse(f"NRT:nrt_load  status=10 NEFF of logical core size {info['lnc']}, the runtime has {self.group}")

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _serve(self) -> None:
        while True:
            self._work.get()()

    def _hold(self) -> None:
        path = root() / f"run/neuron/holders/{os.getpid()}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"pid": os.getpid(), "cores": self.cores, "command": "python", "static": False}
        path.write_text(json.dumps(told), encoding="utf-8")
        atexit.register(path.unlink, missing_ok=True)


def _lock(core: int) -> Path:
    folder = root() / "run/neuron/cores"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"nc{core}.lock"


def _taken(core: int) -> bool:
    descriptor = os.open(_lock(core), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


# -- NEFFs ------------------------------------------------------------------------------------------------------------


def packed(info: dict[str, Any], graph: bytes) -> bytes:
    """A NEFF: an archive with `info.json` and the graph."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, data in (("info.json", json.dumps(info, sort_keys=True).encode()), ("graph.pt", graph)):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return sink.getvalue()


def opened(neff: bytes) -> tuple[dict[str, Any], bytes]:
    """The parts of a NEFF. Raises `RuntimeError` for what is none."""
    try:
        with tarfile.open(fileobj=io.BytesIO(neff)) as archive:
            parts = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
        return dict(json.loads(parts["info.json"])), parts["graph.pt"]
    except (tarfile.TarError, KeyError, ValueError):
        refuse("NRT:nrt_load  status=2 message=Invalid")


# -- calls ------------------------------------------------------------------------------------------------------------


class InFlight(torch.Tensor):  # type: ignore[misc,unused-ignore]
    """An output that the device may not have written yet: whatever reads it waits."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            for each in value if isinstance(value, (list, tuple)) else (value,):
                done = each.__dict__.get("_done") if isinstance(each, InFlight) else None
                if done is not None:
                    done.wait()
        with torch._C.DisableTorchFunctionSubclass():
            answer = func(*args, **(kwargs or {}))
        return answer.as_subclass(torch.Tensor) if isinstance(answer, InFlight) else answer


_answers: list[Any] | None = None


@contextmanager
def answering(outputs: list[Any]) -> Iterator[None]:
    """While a module is traced its operator answers this, without any device."""
    global _answers
    _answers = [each.detach().clone() for each in outputs]
    try:
        yield
    finally:
        _answers = None


def run(inputs: list[Any], neff: Any, placement: Any) -> list[Any]:
    """One call of a NEFF: what the operator in a traced module does."""
    if _answers is not None:
        return list(_answers)
    device = Device.get()
    info, graph = device.load(neff, placement)
    wanted = [tuple(shape) for shape in info["inputs"]]
    if int(placement[DYNAMIC]) and inputs[0].shape[0] != wanted[0][0]:
        return _dynamic(inputs, wanted[0][0], neff, placement)
    for index, (given, shape) in enumerate(zip(inputs, wanted, strict=True)):
        if tuple(given.shape) != shape:
            refuse(
                f"Incorrect tensor shape at input tensor #{index}: received {' '.join(map(str, given.shape))}, "
                f"expected {' '.join(map(str, shape))}"
            )
    told = os.environ.get("NEURONBENCH_FAKE_EXEC_ERROR")
    if told:
        refuse(f"NRT:nrt_infodump  Failed to execute the model {told}")
    if not device.depth:
        return computed(graph, info, inputs)
    outputs = [torch.empty(tuple(out["shape"]), dtype=getattr(torch, out["dtype"])) for out in info["outputs"]]
    done = threading.Event()
    copies = [given.clone() for given in inputs]

    def work() -> None:
        for out, value in zip(outputs, computed(graph, info, copies), strict=True):
            out.copy_(value)
        done.set()

    device.submit(work)
    given_back = [out.as_subclass(InFlight) for out in outputs]
    for out in given_back:
        out._done = done
    return given_back


def computed(graph: Any, info: dict[str, Any], inputs: Sequence[Any]) -> list[Any]:
    begun = time.perf_counter()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(info["bf16"])):
        answer = graph(*(given.clone() for given in inputs))
    outputs = list(answer) if isinstance(answer, (tuple, list)) else [answer]
    outputs = [
        out.detach().clone().to(getattr(torch, told["dtype"]))
        for out, told in zip(outputs, info["outputs"], strict=True)
    ]
    wrong = float(os.environ.get("NEURONBENCH_FAKE_WRONG") or 1.0)
    if wrong != 1.0:
        outputs = [out * wrong if out.is_floating_point() else out for out in outputs]
    left = float(os.environ.get("NEURONBENCH_FAKE_EXEC_MS") or 0.0) / 1e3 - (time.perf_counter() - begun)
    if left > 0:
        time.sleep(left)
    return outputs


def _dynamic(inputs: list[Any], size: int, neff: Any, placement: Any) -> list[Any]:
    """Calls of the compiled batch, one after the other; the last is filled up."""
    parts = []
    for start in range(0, inputs[0].shape[0], size):
        rows = [given[start : start + size] for given in inputs]
        short = size - rows[0].shape[0]
        if short:
            rows = [torch.cat([row, row[:1].expand(short, *row.shape[1:])]) for row in rows]
        answer = run(rows, neff, placement)
        parts.append([out[: size - short] for out in answer])
    return [torch.cat(each) for each in zip(*parts, strict=True)]


def install() -> None:
    """The operator of traced modules, and loading that puts them on the device at once."""
    library = torch.library.Library("neuron", "DEF")
    library.define("forward_v2(Tensor[] inputs, Tensor neff, Tensor placement) -> Tensor[]")
    library.impl("forward_v2", run, "CPU")
    globals()["_library"] = library  # what it registers goes with it
    plain = torch.jit.load

    def load(*args: Any, **kwargs: Any) -> Any:
        module = plain(*args, **kwargs)
        put(module)
        return module

    torch.jit.load = load


def put(module: Any) -> None:
    """Load a traced module's NEFF now, unless it was told to wait for the first call."""
    told = parts_of(module)
    if told is not None and not int(told[1][LAZY]):
        Device.get().load(*told)


def parts_of(module: Any) -> tuple[Any, Any] | None:
    """The NEFF of a traced module and how it is loaded; None for any other."""
    found = dict(module.named_buffers()) if hasattr(module, "named_buffers") else {}
    return (found["neff"], found["placement"]) if {"neff", "placement"} <= found.keys() else None
