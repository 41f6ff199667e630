"""What runs on a node: asks pytest what it could measure there, runs what it is given, and hands over receipts.

The head makes one `Agent` an actor on each box it leased. pytest runs under a guard (`neuronbench.processes`): it and
all it starts end when the agent's process ends, however that ends, so nothing goes on measuring on a box that is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from neuronbench import processes
from neuronbench.reap import reap
from neuronbench.sinks.contents import contents
from neuronbench_ray.place import code, collecting

VISIBLE: Final = "NEURON_RT_VISIBLE_CORES"
TAIL_BYTES: Final = 64 << 10
SURVEY_S: Final = 600.0
"""How long a node may take to collect."""
_DROPPED: Final = ("PYTEST_", "RAY_", "NEURONBENCH_RAY_", "NEURONBENCH_SESSION", "NEURONBENCH_CODE_")


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a node is told once: how the points are collected."""

    session: str
    node: str
    """Name of the node, as people see it."""
    args: tuple[str, ...]
    """For pytest, as they were given to the command."""
    within: str
    """Folder below the project that the command was given in."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables for pytest, beyond those of the node."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The head's code (`code.parts`): a node with other code need not collect."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What an attempt is to run."""

    attempt: str
    names: tuple[str, ...]
    cores: tuple[str, ...] | None
    """NeuronCores of its own; None: of a node that has none."""
    shared: bool


def survey(order: Order, shipment: code.Shipment) -> dict[str, Any]:
    """What this node is and could measure: `hostname`, `parts` (see `code.parts`), and `plan` or `error`."""
    told: dict[str, Any] = {"hostname": socket.gethostname(), "parts": code.parts(), "plan": "", "error": ""}
    if code.differences(order.parts, told["parts"]):
        return told
    base = code.scratch() / order.session / order.node / "survey"
    try:
        root = code.unpack(shipment)
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
        plan = base / "plan.json"
        with processes.spawn(
            [*_pytest(order, base), "--collect-only", "-q"],
            name="pytest-collects",
            env=_environ(order, shipment) | {collecting.PLAN: str(plan)},
            cwd=_where(root, order),
            log=base / "pytest.log",
        ) as process:
            returncode = process.wait(SURVEY_S)
        said = (base / "pytest.log").read_text(encoding="utf-8", errors="replace").strip()[-2000:]
        if plan.is_file():
            told["plan"] = plan.read_text(encoding="utf-8")
        if returncode not in (0, 5):
            told["error"] = f"pytest ended with {returncode} while collecting: {said}"
        elif not told["plan"]:
            told["error"] = f"pytest collected, and left no plan: {said}"
    except (code.CodeError, OSError, subprocess.TimeoutExpired) as error:
        told["error"] = str(error)
    finally:
        _clear(base)
    return told


class Agent:
    """A leased box. Its methods return at once, but for `stop`."""

    def __init__(self, order: Order, shipment: code.Shipment) -> None:
        self._order, self._shipment = order, shipment
        self._base = code.scratch() / order.session / order.node
        self._root = code.unpack(shipment)
        self._running: dict[str, _Running] = {}
        # What an agent before this one left on this node is ended before its cores are given out again.
        for receipts in self._base.glob("*/data/receipts"):
            reap(receipts)

    def cores(self) -> list[str] | None:
        """Ids of the NeuronCores that Ray gave this process; None on a node without any."""
        told = os.environ.get(VISIBLE)
        return told.split(",") if told else None

    def pid(self) -> int:
        return os.getpid()

    def start(self, job: Job) -> None:
        """Start pytest on the items of `job`. Raises `OSError` when it cannot be started."""
        base = self._base / job.attempt
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
        chosen, notes = base / "chosen.json", base / "notes.jsonl"
        chosen.write_text(json.dumps(job.names), encoding="utf-8")
        environ = _environ(self._order, self._shipment) | {
            collecting.CHOSEN: str(chosen),
            collecting.NOTES: str(notes),
            "NEURONBENCH_SESSION": self._order.session,
            "NEURONBENCH_SESSION_PART": job.attempt,
            "NEURONBENCH_RAY_ATTEMPT": job.attempt,
            "NEURONBENCH_RAY_NODE": self._order.node,
            "NEURONBENCH_RAY_CORES": ",".join(job.cores or ()),
            "NEURONBENCH_RAY_SHARED": "1" if job.shared else "",
        }
        if job.cores is not None:
            environ[VISIBLE] = ",".join(job.cores)
        process = processes.spawn(
            [*_pytest(self._order, base), "-v"],
            name=f"pytest-{job.attempt}",
            env=environ,
            cwd=_where(self._root, self._order),
            log=base / "pytest.log",
            pid_dir=base / "data" / "receipts" / self._order.session / "pids",
            grace_s=20.0,
        )
        self._running[job.attempt] = _Running(base=base, session=self._order.session, process=process)

    def look(self, attempt: str, known: Sequence[str]) -> dict[str, Any]:
        """How it goes: `returncode` (None while it runs), `notes` since the last look, `receipts` not in `known`.

        `receipts`: name → path → (sha256, bytes). `tail`: the end of pytest's output, once it has ended.
        """
        running = self._running[attempt]
        returncode = running.process.poll()  # before the receipts are listed: then none comes after the end was told
        receipts = running.receipts(set(known))  # before the notes, which say in a few words what is in them
        return {
            "returncode": returncode,
            "notes": running.new_notes(),
            "receipts": receipts,
            "tail": running.tail() if returncode is not None else "",
        }

    def read(self, attempt: str, receipt: str, path: str, offset: int, size: int) -> bytes:
        """A piece of a receipt's file."""
        with open(self._running[attempt].folder / receipt / path, "rb") as stream:
            stream.seek(offset)
            return stream.read(size)

    def tail(self, attempt: str) -> str:
        return self._running[attempt].tail()

    def stop(self, grace_s: float) -> None:
        """End all that runs; what is open is closed as interrupted by pytest itself. Returns when all are gone."""
        for running in self._running.values():  # all of them first, then wait for each
            with contextlib.suppress(OSError, ProcessLookupError):
                os.kill(running.process.pid, signal.SIGTERM)
        for running in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(grace_s)
            running.process.terminate(0.0)

    def finish(self, attempt: str) -> None:
        """The head has everything: let go of the attempt's folder."""
        running = self._running.pop(attempt)
        running.process.terminate()
        _clear(running.base)


class _Running:
    def __init__(self, *, base: Path, session: str, process: processes.Process) -> None:
        self.base, self.process = base, process
        self.folder = base / "data" / "receipts" / session
        self._read = 0
        self._facts: dict[str, dict[str, tuple[str, int]]] = {}

    def new_notes(self) -> list[dict[str, str]]:
        try:
            with open(self.base / "notes.jsonl", "rb") as stream:
                stream.seek(self._read)
                whole, _, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        if whole:
            self._read += len(whole) + 1
        return [json.loads(line) for line in whole.splitlines()]

    def receipts(self, known: set[str]) -> dict[str, dict[str, tuple[str, int]]]:
        if self.folder.is_dir():
            for entry in sorted(os.scandir(self.folder), key=lambda entry: entry.name):
                hidden = entry.name.startswith(".") or entry.name in self._facts
                if not hidden and os.path.exists(f"{entry.path}/record.json"):
                    found = contents(Path(entry.path))
                    self._facts[entry.name] = {path: (fact.sha256, fact.bytes) for path, fact in found.items()}
        return {name: facts for name, facts in self._facts.items() if name not in known}

    def tail(self) -> str:
        with contextlib.suppress(OSError), open(self.base / "pytest.log", "rb") as stream:
            stream.seek(max(os.fstat(stream.fileno()).st_size - TAIL_BYTES, 0))
            return stream.read(TAIL_BYTES).decode(errors="replace")
        return ""


# -- parts ------------------------------------------------------------------------------------------------------------


def _clear(base: Path) -> None:
    """Remove a folder, and those of its node and session when nothing else is in them."""
    shutil.rmtree(base, ignore_errors=True)
    for folder in (base.parent, base.parent.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _pytest(order: Order, base: Path) -> list[str]:
    return [
        sys.executable, "-m", "pytest", *order.args, "-p", "neuronbench_ray.place.collecting",
        "-o", f"cache_dir={base / 'cache'}", "--nb-data-root", str(base / "data"), "--nb-tracking-uri", "off",
        "--color", "no",
    ]  # fmt: skip


def _where(root: Path, order: Order) -> Path:
    return root / order.within if order.within else root


def _environ(order: Order, shipment: code.Shipment) -> dict[str, str]:
    """The node's own environment and what belongs to the run.

    Not this process's: Ray gives its workers variables of their own (threads of OpenMP among them) which would change
    what is measured. Those of the raylet that started it are those the node was set up with.
    """
    environ = {name: value for name, value in _of_node().items() if not name.startswith(_DROPPED)}
    return environ | dict(order.environ) | dict(shipment.environ)


def _of_node() -> dict[str, str]:
    import psutil

    try:
        parent = psutil.Process(os.getppid())
        if parent.name().startswith("raylet"):
            return dict(parent.environ())
    except (psutil.Error, OSError):
        pass
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
