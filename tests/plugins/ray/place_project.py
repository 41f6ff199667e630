"""A project whose benchmarks can be held, and a Ray cluster of several nodes on this machine to run it on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuronbench.model import Record
from neuronbench.receipts import ReceiptStore

ADDRESS = "127.0.0.3"  # Ray takes 127.0.0.1 for "this machine" and puts another address in its place
NODE: Mapping[str, Any] = {
    "num_cpus": 1,
    "resources": {"neuron_cores": 2},
    "node_ip_address": ADDRESS,
}
PYTEST = """\
[tool.pytest.ini_options]
neuronbench = true
addopts = ["-p", "no:hypothesispytest", "-p", "no:xdist", "-p", "no:anyio"]  # half of what pytest needs to begin here
"""

CONFTEST = "from neuronbench.testing.fake_backend import register_backends, register_resources  # noqa: F401\n"
BENCHMARK = '''
import json
import os
import pathlib
import time

import neuronbench as nb
import pytest


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 8])
@nb.bench(lane="serving", backends=["fake"])
def bench_held(measure, number):
    """Says where it runs; goes on at once, or when the file `go` is there where the variable HELD names a folder."""
    held = os.environ.get("NEURONBENCH_HELD")
    if held:
        folder = pathlib.Path(held)
        me = {"pid": os.getpid(), "node": os.environ["NEURONBENCH_RAY_NODE"], "number": number}
        (folder / f"{os.getpid()}-{number}.tmp").write_text(json.dumps(me))
        (folder / f"{os.getpid()}-{number}.tmp").rename(folder / f"{os.getpid()}-{number}.json")
        while not (folder / "go").exists():
            time.sleep(0.05)
    else:
        time.sleep(0.3)
    measure.metric("ttft", 10.0 * number, stat="p50", n=1)
    measure.metric("tpot", float(len(os.environ["NEURON_RT_VISIBLE_CORES"].split(","))), stat="p50", n=1)
'''


class Project:
    """A project in `folder`, and the command run in it against a cluster."""

    def __init__(self, folder: Path, address: str) -> None:
        self.root, self.address = folder, address
        (folder / "benchmarks").mkdir(parents=True)
        (folder / "pyproject.toml").write_text(PYTEST)
        (folder / "neuronbench.toml").write_text('tracking_uri = "off"\n')
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "benchmarks" / "bench_held.py").write_text(BENCHMARK)

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        """`neuronbench ray run` with these arguments; both streams in one pipe."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RAY_"))}
        argv = [sys.executable, "-m", "neuronbench", "ray", "run", "--address", self.address, *arguments]
        return subprocess.Popen(
            argv, cwd=self.root, env=kept | environ, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @property
    def store(self) -> ReceiptStore:
        return ReceiptStore(self.root / "mlruns" / "receipts")

    def records(self) -> list[Record]:
        """All of the latest session."""
        session = self.store.latest_session()
        return [] if session is None else [receipt.record for receipt in self.store.iter(session)]


def ended(run: subprocess.Popen[str], timeout_s: float = 240.0) -> tuple[int, str]:
    """Exit status and output of a run."""
    try:
        text, _ = run.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        run.kill()
        text, _ = run.communicate()
        raise AssertionError(f"it has not ended:\n{text}") from None
    return run.returncode, text


def held(folder: Path) -> dict[str, dict[str, Any]]:
    """Node → the benchmark that began there last and waits."""
    found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return {told["node"]: told for told in (json.loads(path.read_text()) for path in found)}
