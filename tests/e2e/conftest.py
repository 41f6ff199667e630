"""The repository's own benchmarks on a real vLLM server with real weights: one run, one boot, for all tests here.

Needs a stack (`make stack`); without one the tests are skipped with the reason. `NEURONBENCH_TEST_STACK` names another
stack than `.venv-cpu` beside the project.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parent.parent.parent

WORKERS: Mapping[str, str] = {
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait by spinning take the cores from whatever else runs
    "TORCHINDUCTOR_VEC_ISA_OK": "1",  # what /proc/cpuinfo says is believed: trying it costs six runs of g++ a compile
}
"""What servers and workers of a run inherit, so that they cost no more than what is proved."""

OWN = """
import os, pathlib, re, signal, threading, urllib.request
import neuronbench as nb

def ended(endpoint):  # how many requests the server has answered
    with urllib.request.urlopen(f"{endpoint.base_url}/metrics", timeout=60) as answer:
        said = re.findall(r"^vllm:request_success_total\\S* (\\S+)", answer.read().decode(), re.MULTILINE)
    return sum(map(float, said))

def kill_at_work(endpoint, before, over):  # in the window: there are three requests of warm-up, and two of the ramp
    while not over.wait(0.1):
        if ended(endpoint) - before >= 6:
            return os.kill(endpoint.pids()[0], signal.SIGKILL)

@nb.bench(lane="serving", grid="serving/short")
def bench_killed(endpoint, measure, point):
    over = threading.Event()
    killer = threading.Thread(target=kill_at_work, args=(endpoint, ended(endpoint), over))
    killer.start()
    try:
        measure.serve(endpoint, nb.closed_loop(2, duration_s=60), nb.synthetic(input_tokens=16, output_tokens=16))
    finally:
        over.set()
        killer.join()

CORRUPT = pathlib.Path(__file__).parent / "corrupt"

@nb.bench(lane="serving", params={"model": f"file:{CORRUPT}"})
def bench_corrupt(endpoint):
    raise AssertionError("corrupt weights were served")
"""


@dataclass(frozen=True)
class Run:
    """What one run of pytest left."""

    returncode: int
    output: str
    receipts: Path
    data_root: Path

    def records(self, kind: str) -> dict[str, dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in sorted(self.receipts.glob("*/*/record.json"))]
        return {record["name"]: record for record in found if record["kind"] == kind}


def stack_or_skip() -> str:
    stack = Path(os.environ.get("NEURONBENCH_TEST_STACK") or PROJECT / ".venv-cpu")
    if not (stack / "bin" / "python").exists():
        pytest.skip(f"no stack at {stack}: make one with `make stack`")
    return str(stack)


def run_pytest(project: Path, *args: str, timeout_s: float, env: Mapping[str, str] | None = None) -> Run:
    data_root = project / "mlruns"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "benchmarks", "-p", "no:cacheprovider", *args],
        cwd=project,
        env={**os.environ, **WORKERS, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Run(done.returncode, done.stdout + done.stderr, data_root / "receipts", data_root)


@pytest.fixture(scope="session")
def stack() -> str:
    """The folder of a stack, or the test is skipped with the reason."""
    return stack_or_skip()


@pytest.fixture(scope="session")
def run_in() -> Callable[..., Run]:
    """`run_in(project, *args, timeout_s=..., env=...)`: `pytest benchmarks` in a project of one's own."""
    return run_pytest


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with this repository's serving benchmarks and two of its own."""
    folder = tmp_path_factory.mktemp("e2e")
    for part in ("benchmarks/serving", "benchmarks/grids"):
        shutil.copytree(PROJECT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pyproject.toml").write_text("[tool.pytest]\nneuronbench = true\nstrict = true\n")
    return folder


@pytest.fixture(scope="session")
def real(project: Path) -> Run:
    """The run: accuracy and two points of the repository's benchmarks on one server, a server that is killed, corrupt
    weights."""
    stack = stack_or_skip()
    (project / "benchmarks" / "serving" / "bench_own.py").write_text(OWN)
    corrupt = project / "benchmarks" / "serving" / "corrupt"
    corrupt.mkdir()
    (corrupt / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    (corrupt / "model.safetensors").write_bytes(b"\xff" * 4096)
    return run_pytest(
        project,
        "-m", "cpu", "-k", "accuracy or closed_loop or corrupt or (killed and c1)", "--nb-stack", f"any={stack}",
        "--nb-set", "concurrency=1,4", "--nb-set", "window_s=12", "--nb-deadline", "boot=600",
        timeout_s=840,
    )  # fmt: skip
