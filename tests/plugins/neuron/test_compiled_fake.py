"""The made-up torch_neuronx behaves as the documents say the real one does: caches, cores, NEFFs, shapes, arguments."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from neuron_boxes import VERSIONS, stacked
from neuronbench_neuron import caches

from neuronbench.testing.neuron import FakeBox

START = """
import json, sys, torch, torch_neuronx
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
given = torch.ones(2, 8)
def said(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""
FORKS = """
import json, os, sys, torch
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        for name, descriptor in (("out", 1), ("log", 2)):
            os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT), descriptor)
        os.environ.update(order["env"])
        sys.argv[1:] = order["arguments"]
        exec(order["script"], {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process that imports torch, and then is forked for each script: those find it imported, and nothing of each
other's."""


class Box(FakeBox):
    """A host whose environment runs scripts, each in a process of its own."""

    _forks: subprocess.Popen[str] | None = None
    _runs = 0

    def run(self, script: str, *arguments: str, **env: str) -> tuple[Any, str]:
        """What a script prints last, as JSON, and its log."""
        if self._forks is None:
            command = [stacked(self) / "bin" / "python", "-W", "ignore", "-c", FORKS]
            self._forks = subprocess.Popen(
                command, env=self.environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self._runs += 1
        out, log = (self.root.parent / f"{self.root.name}-{self._runs}.{name}" for name in ("out", "log"))
        order = {"script": START + script, "arguments": arguments, "env": env, "out": str(out), "log": str(log)}
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        print(json.dumps(order), file=self._forks.stdin, flush=True)
        assert self._forks.stdout.readline() == "0\n", log.read_text()[-3000:]
        return json.loads(out.read_text().splitlines()[-1]), log.read_text()

    def end(self) -> None:
        if self._forks is not None:
            self._forks.communicate()


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Box]]:
    folder = tmp_path_factory.mktemp("fake")
    with Box("trn1.2xlarge", folder / "trn1") as trn1, Box("trn2.3xlarge", folder / "trn2") as trn2:
        yield {"trn1": trn1, "trn2": trn2}
        trn1.end()
        trn2.end()


TRACE = "print(json.dumps(said(lambda: bool(torch_neuronx.trace(model, given, compiler_args=sys.argv[1:])))))"


def test_a_lazily_compiled_graph_leaves_the_cache_as_the_real_one_does(boxes: dict[str, Box], tmp_path: Path) -> None:
    url = tmp_path / "cache"
    env = {"NEURON_COMPILE_CACHE_URL": str(url), "NEURONBENCH_FAKE_TRACE_CACHE": "1"}
    before = caches.snapshot(url)
    answer, log = boxes["trn1"].run(TRACE, "--optlevel=1", **env)
    after = caches.snapshot(url)
    assert answer is True
    assert "Call compiler with cmd: neuronx-cc compile --target=trn1" in log
    assert before.delta(after).state == "cold"
    assert after.compilers == (VERSIONS["neuronx-cc"],)
    answer, log = boxes["trn1"].run(TRACE, "--optlevel=1", **env)
    assert "Using a cached neff at" in log
    assert after.delta(caches.snapshot(url)).state == "warm"
    answer, log = boxes["trn1"].run(TRACE, "--optlevel=2", **env, NEURONBENCH_FAKE_COMPILE_ERROR="[NCC_ITEN404] no")
    assert answer == "RuntimeError: neuronx-cc failed with 70"
    answer, log = boxes["trn1"].run(TRACE, "--optlevel=2", **env)  # in order again, and the failure was kept
    assert "Got a cached failed neff" in answer
    assert len(after.delta(caches.snapshot(url)).failed) == 1


def test_cores_belong_to_one_process_and_a_neff_to_its_target(boxes: dict[str, Box], tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    found, _ = boxes["trn1"].run(
        """
import os, subprocess
traced = torch_neuronx.trace(model, given)
torch.jit.save(traced, sys.argv[1])
code = "import torch, torch_neuronx, sys; torch.jit.load(sys.argv[1])"

def beside(cores):
    env = {**os.environ, "NEURON_RT_VISIBLE_CORES": cores}
    command = [sys.executable, "-W", "ignore", "-c", code, sys.argv[1]]
    return subprocess.run(command, capture_output=True, text=True, env=env)

other, beyond = beside("1"), beside("7")
print(json.dumps({
    "other": [other.returncode, other.stderr[-300:]], "beyond": [beyond.returncode, beyond.stderr[-300:]],
    "error": float((traced(given) - model(given)).abs().max()),
    "shape": said(lambda: traced(torch.ones(3, 8))),
    "place": said(lambda: torch_neuronx.set_neuron_cores(traced, 2, 1)),
}))
""",
        str(file),
    )
    assert found["error"] < 1e-6
    assert found["other"][0] == 1
    assert "not available - Requested:1 Available:0" in found["other"][1]
    assert "Could not find VNC id 7" in found["beyond"][1]
    assert "expected 2 8" in found["shape"]
    assert "Requested:nc2-nc2 Available:2" in found["place"]
    load = "print(json.dumps(said(lambda: torch.jit.load(sys.argv[1])(given).shape)))"
    answer, _ = boxes["trn2"].run(load, str(file))
    assert "NEFF compiled for trn1 on trn2" in answer
    answer, _ = boxes["trn1"].run(load, str(file))
    assert answer == [2, 8]


def test_arguments_that_are_not_documented_are_refused(boxes: dict[str, Box]) -> None:
    found, log = boxes["trn1"].run(
        """
trace = torch_neuronx.trace
print(json.dumps([
    said(lambda: trace(model, given, None)), said(lambda: trace(model, given, compiler_flags="-O1")),
    said(lambda: trace(model, given, compiler_args="--auto-cast=some")),
    said(lambda: trace(model, given, compiler_args=["--lnc", "2"])),
    said(lambda: trace(model, given, compiler_args="--fast")), said(lambda: trace(model, given, cpu_backend=True)),
    said(lambda: torch_neuronx.DataParallel(model, [0], 0, True, 1)),
]))
""",
    )
    assert "takes 2 positional arguments" in found[0]
    assert "unexpected keyword argument 'compiler_flags'" in found[1]
    assert found[2:5] == [f"RuntimeError: neuronx-cc failed with {status}" for status in (2, 1, 2)]
    assert "needs --target" in found[5]
    assert "positional arguments" in found[6]
    assert "invalid choice: 'some'" in log
    assert "[NCC_EARG001] invalid LNC for target" in log
    assert "unrecognized arguments: --fast" in log
