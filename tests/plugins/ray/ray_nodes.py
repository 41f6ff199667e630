"""Ray clusters on this machine: nodes that are started with patience, and one that has a host of its own, nearly.

Every node of these tests is started here. Ray gives one half a minute to come up, which a machine with many other tests
on it may not have; what was half there is ended then, and it is started again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

STORE_BYTES = 80 << 20
COMMON: Mapping[str, Any] = {
    "object_store_memory": STORE_BYTES,
    "include_dashboard": False,
    "include_log_monitor": False,  # it would cost more CPU than all else of a node
    "no_monitor": True,
}
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_prestart_worker_first_driver": "0",  # a Python process on each node for every command, used or not
}
TRIES = 3
HOUR_NS = 3600 * 10**9
ROOM_BYTES = 16 << 20
APART = ("unshare", "--user", "--map-root-user", "--mount", "--time", "--monotonic", "3600", "--fork", "--kill-child",
         "sh", "-c", f'mount -t tmpfs -o size={ROOM_BYTES} tmpfs "$TMPDIR" && exec "$@"', "sh")  # fmt: skip
"""Words before a command: its monotonic clock is an hour ahead, and its folder for temporary files a small disk."""


def until(
    what: Callable[[], Any], timeout_s: float = 240.0, *, run: subprocess.Popen[str] | None = None, every_s: float = 0.1
) -> Any:
    """Wait for something true; a run that ends before it fails at once."""
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        if run is not None and run.poll() is not None:
            raise AssertionError(f"it ended with {run.returncode} before that:\n{run.communicate()[0]}")
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(every_s)
    return found


def new_cluster() -> Any:
    """A cluster without nodes; the first that is added is its head."""
    os.environ.update(QUIET)
    return pytest.importorskip("ray.cluster_utils").Cluster()


def add(cluster: Any, **node: Any) -> Any:
    """Start a node; returns when the cluster knows it."""
    for left in reversed(range(TRIES)):
        try:
            made = cluster.add_node(wait=False, **COMMON, **node)
            break
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
            end_half(error)
    until(lambda: made.node_id in alive(cluster))
    return made


def end_half(error: BaseException) -> None:
    """End what a start that failed has left: it may come up later, and be one node too many."""
    trace = error.__traceback__
    while trace is not None:
        half: Any = trace.tb_frame.f_locals.get("self")
        if hasattr(half, "kill_all_processes"):
            half.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
            return
        trace = trace.tb_next


def alive(cluster: Any) -> dict[str, str]:
    """Id → address of the nodes that are up."""
    return {
        str(told["NodeID"]): str(told["NodeManagerAddress"])
        for told in cluster.global_state.node_table()
        if told["Alive"]
    }


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A node that was started as users start one, with a disk, a clock and Python modules of its own."""

    process: psutil.Process
    """Parent of all that runs on it."""
    ahead_ns: int
    """Of its clock; 0 where namespaces are not allowed."""
    temporary: Path
    """Its folder for temporary files, seen from here."""
    disk: Path | None
    """The same, where that is a small disk of its own; None where namespaces are not allowed."""
    modules: Path
    """First on its Python's path, and empty."""

    @property
    def raylet(self) -> psutil.Process:
        return next(each for each in self.process.children(recursive=True) if "raylet" in each.name())

    def fill(self, *, but: int = 0) -> Path:
        """Write a file to its disk until there is no room, but for so many bytes."""
        assert self.disk is not None
        filler = self.disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                file.truncate(max(file.tell() - but, 0))
        return filler


def start_apart(cluster: Any, folder: Path, address: str) -> Apart:
    """A node for load with a CPU, behind `APART` where that can be."""
    modules, temporary = folder / "modules", folder / "tmp"
    modules.mkdir(parents=True)
    temporary.mkdir()
    path = os.pathsep.join(filter(None, [str(modules), os.environ.get("PYTHONPATH", "")]))
    environ = {**os.environ, "TMPDIR": str(temporary), "RAY_TMPDIR": "/tmp", "PYTHONPATH": path}
    words = APART if _may_be_apart(environ) else ()
    script = str(Path(sys.executable).parent / "ray")
    for _ in range(TRIES):
        process = psutil.Popen(
            [*words, sys.executable, script, "start", f"--address={cluster.address}", f"--node-ip-address={address}",
             "--num-cpus=1", '--resources={"neuronbench_load": 1}', f"--object-store-memory={STORE_BYTES}",
             "--min-worker-port=0", "--max-worker-port=0", "--include-log-monitor=False", "--block"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ,
        )  # fmt: skip
        if _comes_up(process, cluster, address):
            seen = Path(f"/proc/{process.children()[0].pid}/root{temporary}") if words else temporary
            return Apart(
                process=process,
                ahead_ns=HOUR_NS if words else 0,
                temporary=seen,
                disk=seen if words else None,
                modules=modules,
            )
    raise AssertionError(f"the node {address} ended with {process.returncode} as often as it was started")


def _comes_up(process: psutil.Popen, cluster: Any, address: str) -> bool:
    until(lambda: address in alive(cluster).values() or process.poll() is not None)
    return process.poll() is None


def _may_be_apart(environ: Mapping[str, str]) -> bool:
    read = "import time; print(time.monotonic_ns())"
    try:
        told = subprocess.run([*APART, sys.executable, "-c", read], env=environ, capture_output=True, text=True)
    except FileNotFoundError:
        return False
    return not told.returncode and int(told.stdout) > time.monotonic_ns() + HOUR_NS // 2


def end_apart(node: Apart) -> None:
    for each in (*node.process.children(recursive=True), node.process):
        try:
            each.kill()
        except psutil.NoSuchProcess:
            pass
    node.process.wait(30)


def below(process: psutil.Process, words: str) -> Iterator[psutil.Process]:
    """Processes that `process` has started, however far down, whose command line has these words."""
    for each in process.children(recursive=True):
        try:
            if words in " ".join(each.cmdline()):
                yield each
        except psutil.NoSuchProcess:
            continue
