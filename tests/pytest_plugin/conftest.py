"""A throw-away project with a fake backend, built as a user would build one: a conftest and a module beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFTEST = """
from neuronbench import BackendInfo, LaneInfo, ProviderInfo, hookimpl

@hookimpl
def register_backends(register):
    register(BackendInfo(name="fake", title="Fake hardware", target="fakes:FakeBackend", family="fake"))
    register(BackendInfo(name="truth", title="Truth server", family="truth",
                         target="neuronbench.testing.fake_backend:FakeBackend"))
    register(BackendInfo(name="absent", title="Absent hardware", target="fakes:AbsentBackend", family="fake"))

@hookimpl
def register_lanes(register):
    register(LaneInfo(name="toy", title="Toys", headline=("speed_toys_s",)))

@hookimpl
def register_resources(register):
    register(ProviderInfo(name="endpoint/fake", kind="endpoint", families=("fake",), target="fakes:FakeProvider"))
    register(ProviderInfo(name="endpoint/truth", kind="endpoint", families=("truth",),
                          target="neuronbench.testing.fake_backend:TruthProvider"))
    register(ProviderInfo(name="compiled_model/toy", kind="compiled_model", families=("fake",),
                          target="neuronbench.testing.toy_model:ToyProvider"))
    register(ProviderInfo(name="trainer/toy", kind="trainer", families=("fake",),
                          target="neuronbench.testing.toy_trainer:ToyTrainerProvider"))
"""

FAKES = """
import json, os, pathlib, time
from neuronbench import BootError, Failure, Metric, Probe, ResourceSpec, Unsupported
from neuronbench.model import FrozenMap

if os.environ.get("TOYS_OF_THEIR_OWN_TIME"):
    from neuronbench.testing import toy_model, toy_trainer
    toy_model.HANDLERS = toy_trainer.HANDLERS = pathlib.Path(os.environ["TOYS_OF_THEIR_OWN_TIME"])

LOG = pathlib.Path(os.environ["FAKE_LOG"])

def say(event, **facts):
    with LOG.open("a") as file:
        file.write(json.dumps({"event": event, "pid": os.getpid(), **facts}) + "\\n")

class FakeBackend:
    def __init__(self, info):
        self.info = info
    def probe(self):
        say("probe", backend=self.info.name)
        return Probe(available=True, cores=2, facts=FrozenMap(simulated=True))
    def stack(self, kind, settings):
        raise LookupError("no stack")
    def facts(self):
        return {"fake.version": "1"}
    def failure_rules(self):
        return ()

class AbsentBackend(FakeBackend):
    def probe(self):
        return Probe(available=False, reason="no /dev/absent0")

class FakeResource:
    def __init__(self, spec):
        self.spec, self.facts, self.logs, self.up = spec, {"fake": True}, (), True
        self.boot_metrics = (Metric(id="boot_time", value=0.5, unit="s", better="lower", n=1),)
        self.base_url, self.model, self.vocabulary = "http://127.0.0.1:9", "m", None
        self.metrics_url = self.api_key = None
    def alive(self):
        return self.up
    def pids(self):
        return ()
    def diagnose(self, phase):
        return None
    def stop(self):
        if self.up:
            say("stop", model=self.spec.settings["model"])
        self.up = False

class FakeProvider:
    def __init__(self, info):
        self.info = info
    def spec(self, point, backend, settings):
        return ResourceSpec(kind="endpoint", backend=point.backend, provider=self.info.name,
                            settings=FrozenMap(model=point.get("model", "m")), cores=2)
    def check(self, spec, backend, settings):
        if spec.settings["model"] == "too-large":
            return Unsupported(reason="too-large does not fit")
        if spec.settings["model"] == "known-bad":
            return Unsupported(reason="compiler bug 42", known_bad=True)
    def boot(self, spec, context):
        model = spec.settings["model"]
        say("boot", model=model)
        (context.folder / "server.log").write_text(f"booting {model}\\n")
        context.progress(f"booting {model}")
        if model == "broken":
            raise BootError(Failure(kind="bad_weights", phase="boot", message="cannot load",
                                    causal_line="ValueError: header too large", remedy="fetch it again"),
                            facts={"tried": True})
        if model == "raises":
            raise RuntimeError("a defect of the provider")
        return FakeResource(spec)
"""


OWN_TIME = Path(__file__).parent.parent / "worker" / "own_time"
"""Handlers of toys on a clock of their own: what a busy host takes from a worker is in no number."""
SETTINGS = '[tool.pytest]\nneuronbench = true\nstrict = true\nfilterwarnings = ["error"]\n'
BEGINNING = "import neuronbench as nb\nimport pytest\n"


class Left:
    """What runs in a folder have left there."""

    path: Path

    @property
    def receipts(self) -> Path:
        return self.path / "mlruns" / "receipts"

    def records(self, kind: str = "point") -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in sorted(self.receipts.glob("*/*/record.json"))]
        return [record for record in found if record["kind"] == kind]

    def named(self, kind: str = "point") -> dict[str, dict[str, Any]]:
        """The records of points by the name of their benchmark, without `bench_`."""
        return {record["point"]["benchmark"].rpartition("bench_")[2]: record for record in self.records(kind)}

    def folder_of(self, record: dict[str, Any]) -> Path:
        return self.receipts / str(record["session"]) / str(record["name"])

    def events(self, *names: str) -> list[tuple[str, str]]:
        path = self.path / "fake.log"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [(line["event"], line.get("model", "")) for line in lines if not names or line["event"] in names]


class Whole(Left):
    """A project that is run once, in a process of its own, for several tests to look at what it left."""

    def __init__(self, folder: Path, *, fakes: str = "", truth: str = "", **files: str) -> None:
        """`fakes` is added to the fakes; `truth` names another provider of truth servers."""
        self.path = folder
        conftest = CONFTEST.replace("neuronbench.testing.fake_backend:TruthProvider", truth) if truth else CONFTEST
        for name, text in {"conftest": conftest, "fakes": FAKES + fakes}.items():
            (folder / f"{name}.py").write_text(text)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(BEGINNING + text)
        (folder / "pyproject.toml").write_text(SETTINGS)
        self.said = ""

    def run(self, *arguments: str) -> dict[str, int]:
        """Run pytest; how many items ended in which way. What it printed is in `said`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "NEURONBENCH_"))}
        made = {
            "PYTHONPATH": str(self.path), "HOME": str(self.path), "FAKE_LOG": str(self.path / "fake.log"),
            "NEURONBENCH_DISABLE_PLUGINS": "neuron", "NEURONBENCH_CACHE_DIR": str(self.path / "cache"),
            "TOYS_OF_THEIR_OWN_TIME": str(OWN_TIME),
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nb-tracking-uri", "off", *arguments]
        done = subprocess.run(
            command, cwd=self.path, env={**kept, **made}, timeout=280, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.said = done.stdout
        last = self.said.rstrip().rpartition("\n")[2]
        counts = {what.rstrip("s"): int(count) for count, what in re.findall(r"(\d+) ([a-z]+)", last)}
        return {what: counts[what] for what in ("passed", "failed", "error", "skipped") if what in counts}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Whole]:
    """`whole(bench_it="...")`: a project of these files; see `Whole`."""
    return lambda **files: Whole(tmp_path_factory.mktemp("whole"), **files)


class Project(Left):
    """A pytester project; `run` gives its result, `records` what it left."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.path = pytester.path
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
            monkeypatch.delenv(name, raising=False)  # the run inside has the machine to itself, as far as it knows
        monkeypatch.setenv("FAKE_LOG", str(self.path / "fake.log"))
        monkeypatch.setenv("NEURONBENCH_DISABLE_PLUGINS", "neuron")
        monkeypatch.syspath_prepend(str(self.path))
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(fakes=FAKES)
        pytester.makepyprojecttoml(SETTINGS)

    def bench(self, source: str, name: str = "bench_it") -> None:
        self.pytester.makepyfile(**{name: BEGINNING + source})

    in_process = True
    """Faster, but numpy cannot be loaded twice in one process: what measures runs in its own."""

    def run(self, *args: str, subprocess: bool = False, mlflow: bool = False) -> pytest.RunResult:
        arguments = ["-p", "no:cacheprovider", *([] if mlflow else ["--nb-tracking-uri", "off"]), *args]
        if subprocess or not self.in_process:
            return self.pytester.runpytest_subprocess(*arguments, timeout=280)
        return self.pytester.runpytest_inprocess(*arguments)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(pytester, monkeypatch)
