"""What runs on a node: an actor that takes a part of the plan, runs drivers on it, and gives their records back.

Imports nothing of Ray, so that it can be tried without. Its methods are called from several threads.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import neuronbench
from neuronbench.load import crew as crews
from neuronbench.processes import spawn
from neuronbench_ray.load import clocks

PREFIX: Final = "neuronbench-node-"
LOCK: Final = ".lock"
CA_FILE: Final = "ca.pem"
CHUNK_BYTES: Final = 4 << 20
WATCH_S: Final = 10.0
"""Between two looks at the clock while the load runs; each is a few round trips of one byte."""
WATCH_ROUNDS: Final = 8
LEAST_BYTES: Final = 1 << 20
"""Room for records that there has to be."""


def source_digest() -> str:
    """Of the client's code and of what runs it on a node: nodes that differ in it are not one client."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in (Path(neuronbench.__file__).parent / "load", Path(__file__).parent):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def boot_id() -> str:
    """Of this kernel: processes with the same one share a CPU and its clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


class Agent:
    """One per node; one load, then it is done."""

    def __init__(self, head_address: str, head_port: int) -> None:
        """`head_address` and `head_port`: where the head's clock is read."""
        _sweep()
        self._head = (head_address, head_port)
        hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))  # not to be swept before it is locked
        self._lock = _own(hidden, os.O_CREAT)
        self._folder = hidden.rename(hidden.with_name(hidden.name[1:]))
        self._plan, self._out = self._folder / "plan", self._folder / "out"
        self._plan.mkdir()
        self._out.mkdir()
        self._written: dict[str, Any] = {}
        self._processes: dict[int, Any] = {}
        self._said: list[tuple[int, int, str | None]] = []
        """Number, driver, line; None for a line: it has ended."""
        self._failed: dict[int, str] = {}
        """Driver → why it left no result."""
        self._stopped: set[int] = set()
        self._count = 0
        self._news = threading.Condition()
        self._readings: list[clocks.Reading] = []
        self._over = threading.Event()

    # -- before the load

    def facts(self) -> dict[str, Any]:
        try:  # Ray starts its workers with a niceness of 15, which a client that keeps instants cannot have
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except OSError:
            pass
        return {
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "cores": os.cpu_count(),
            "python": sys.executable,
            "neuronbench": neuronbench.__version__,
            "source": source_digest(),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
        }

    def reach(self, host: str, port: int) -> str:
        """Why the server cannot be reached from here; empty when it can."""
        try:
            socket.create_connection((host, port), timeout=5.0).close()
        except OSError as error:
            return str(error)
        return ""

    def clock(self) -> clocks.Reading | str:
        """The head's clock against this one; why not, where the head cannot be reached."""
        try:
            return clocks.ask(*self._head)
        except OSError as error:
            return f"{self._head[0]}:{self._head[1]}: {error}"

    def now(self) -> int:
        return time.monotonic_ns()

    def write(self, name: str, data: bytes) -> None:
        """Append to a file of the plan, or to the certificates to trust."""
        with (self._plan / Path(name).name).open("ab") as file:
            file.write(data)
        self._written.setdefault(name, hashlib.blake2b(digest_size=16)).update(data)

    def written(self) -> dict[str, str]:
        """Digest of each file that came."""
        return {name: digest.hexdigest() for name, digest in self._written.items()}

    def room(self) -> str:
        """Why records cannot be kept here; empty when they can."""
        try:
            with tempfile.TemporaryFile(dir=self._out) as file:
                file.write(bytes(LEAST_BYTES))
                file.flush()
        except OSError as error:
            return f"less than {LEAST_BYTES >> 20} MiB can be written to {self._out}: {error}"
        return ""

    # -- the load

    def start(self, index: int, options: str, api_key: str | None) -> None:
        """Start driver `index`; `options` is its `options.json`."""
        told = json.loads(options)
        if told.get("ca_file"):
            told["ca_file"] = str(self._plan / CA_FILE)
        (self._out / "options.json").write_text(json.dumps(told), encoding="utf-8")
        process = crews.driver_process(
            spawn, index, self._plan, self._out, self._folder / f"driver-{index}.log", api_key
        )
        self._processes[index] = process
        threading.Thread(target=self._listen, args=(index, process), name=f"driver-{index}", daemon=True).start()

    def _listen(self, index: int, process: Any) -> None:
        for line in crews.LocalHand(process).lines():
            self._say(index, line.decode(errors="replace") if isinstance(line, bytes) else line)
        self._failed[index] = self._why(index, process.wait())
        self._say(index, None)

    def _why(self, index: int, status: int) -> str:
        """Why driver `index` left no result; empty where it did, and where it was not to."""
        if index in self._stopped or (self._out / f"driver-{index}.json").exists():
            return ""
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        said = (self._folder / f"driver-{index}.log").read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "")  # cut off, where there is no room
        return "; ".join(filter(None, (f"load driver {index} {ended} and left no result", self.room() or last)))

    def _say(self, index: int, line: str | None) -> None:
        with self._news:
            self._count += 1
            self._said.append((self._count, index, line))
            self._news.notify_all()

    def watch(self) -> None:
        """Look at the clock now and then, until `close`; where the head cannot be reached, not at all."""
        threading.Thread(target=self._watch, name="clock-watch", daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            try:
                self._readings.append(clocks.ask(*self._head, rounds=WATCH_ROUNDS))
            except (OSError, ValueError):
                continue  # the reading after the load says what has become of it

    def readings(self) -> list[clocks.Reading]:
        """What `watch` found."""
        return list(self._readings)

    def hear(self, after: int, timeout_s: float) -> list[tuple[int, int, str | None, int | None, str]]:
        """What drivers said: number, driver, line, and of one that ended its status and why it left no result, if so.

        From number `after` + 1 on.

        Waits up to `timeout_s` for news. Numbers up to `after` have arrived and are forgotten.
        """
        with self._news:
            self._said = [each for each in self._said if each[0] > after]
            if not self._said:
                self._news.wait(timeout_s)
            said = list(self._said)
        return [
            (number, index, line, None, "")
            if line is not None
            else (number, index, line, self._processes[index].poll(), self._failed[index])
            for number, index, line in said
        ]

    def tell(self, index: int, point: str, at_ns: int) -> None:
        """`at_ns` is of this node's clock."""
        crews.LocalHand(self._processes[index]).tell(point, at_ns)

    def stop(self, index: int) -> None:
        """End a driver; returns when it has ended."""
        if index in self._processes:
            if self._processes[index].poll() is None:
                self._stopped.add(index)
            self._processes[index].terminate()

    # -- after the load

    def files(self) -> list[tuple[str, int]]:
        """What drivers left, with sizes."""
        known = [*sorted(self._out.iterdir()), *sorted(self._folder.glob("*.log"))]
        return [(path.name, path.stat().st_size) for path in known if path.name != "options.json"]

    def read(self, name: str, offset: int) -> bytes:
        """At most `CHUNK_BYTES` of a file that drivers left."""
        folder = self._folder if name.endswith(".log") else self._out
        with (folder / Path(name).name).open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

    def close(self) -> None:
        self._over.set()
        for index in list(self._processes):
            self.stop(index)
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def _own(folder: Path, flags: int = 0) -> int:
    """Hold the folder's lock for as long as this process lives; returns the descriptor. Raises `OSError`."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _sweep() -> None:
    """Remove what agents left behind that were killed: folders whose lock nobody holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            os.close(_own(folder))
        except OSError:
            continue  # somebody's, or none of an agent
        shutil.rmtree(folder, ignore_errors=True)
