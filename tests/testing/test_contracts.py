"""The contract suites on our own plugins: they hold, and each of them can fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import neuronbench_neuron
import pytest

import neuronbench.backends.cpu
import neuronbench.defaults
from neuronbench import config
from neuronbench.testing.contracts import BackendContract, HandlerContract, LaneContract, PluginContract, SinkContract
from neuronbench.testing.contracts import lane as lanes
from neuronbench.testing.toy_model import BATCH, HANDLERS


class TestCpu(BackendContract):
    plugin = neuronbench.backends.cpu
    backend = "cpu"


class TestInf2(BackendContract):
    plugin = neuronbench_neuron
    backend = "inf2"


class TestTrn2(BackendContract):
    plugin = neuronbench_neuron
    backend = "trn2"


class TestServing(LaneContract):
    plugin = neuronbench.defaults
    lane = "serving"


class TestMlflow(SinkContract):
    plugin = neuronbench.defaults
    sink = "mlflow"

    @pytest.fixture
    def away(self, tmp_path: Path) -> Any:
        """Nothing listens on port 9."""
        (tmp_path / "away").mkdir()
        return config.load(tmp_path / "away", environ={}, overrides={"tracking_uri": "http://127.0.0.1:9"})


class TestToy(HandlerContract):
    folder, module, batch_size = HANDLERS, "toy", BATCH
    uses = ()
    arguments: ClassVar = {"behaviour": "plain", "work_us": 300.0}


def test_every_lane_of_ours_has_a_defined_headline() -> None:
    from neuronbench.plugins import Plugins

    contract = LaneContract()
    for lane in Plugins().lanes:
        contract.test_its_headline_is_in_a_defined_vocabulary(lane)
        contract.test_its_definitions_say_what_is_meant(lane)


BROKEN = """
import os, subprocess, sys, types
import pytest
from neuronbench import BackendInfo, Delivery, LaneInfo, Probe, ProviderInfo, ResourceSpec, SinkInfo, hookimpl
from neuronbench.model import FrozenMap
from neuronbench.testing.contracts import *

NEURONBENCH_API = "7"

class Backend:
    def __init__(self, info):
        self.info = info
    def probe(self):
        subprocess.Popen(["sleep", "30"])
        return Probe(available=False, reason="no")
    def stack(self, kind, settings):
        return None
    def facts(self):
        return {"instance_id": "i-1"}
    def failure_rules(self):
        return ["rule"]

class Sink:
    name = "broken"
    def __init__(self, settings):
        self.writes = 0
    def write(self, receipt):
        self.writes += 1
        text = (receipt / "record.json").read_text()
        (receipt / "record.json").write_text(text + " ")
        if text.count("{") < 3:
            raise OSError("damaged")
        return Delivery(state="delivered", reference=str(self.writes))
    def close(self):
        pass

class Provider:
    def __init__(self, info):
        self.info, self.made = info, 0
    def spec(self, point, backend, settings):
        self.made += 1
        return ResourceSpec(kind="endpoint", backend=backend.info.name, provider=self.info.name,
                            settings=FrozenMap(concurrency=point["concurrency"], made=self.made))
    def check(self, spec, backend, settings):
        return None
    def boot(self, spec, context):
        raise RuntimeError("no")
"""
BROKEN_HOOKS = """
@hookimpl
def register_backends(register):
    register(BackendInfo(name="broken", title="Broken", family="broken", target="broken_plugin:Backend"))

@hookimpl
def register_resources(register):
    register(ProviderInfo(name="server/broken", kind="endpoint", families=("cpu",), target="broken_plugin:Provider"))
    register(ProviderInfo(name="endpoint/none", kind="endpoint", families=("cpu",), target="broken_plugin:Nothing"))

@hookimpl
def register_sinks(register):
    register(SinkInfo(name="broken", title="Broken", target="broken_plugin:Sink"))

@hookimpl
def register_lanes(register):
    vague = {"pace": ("ms", "lower", "pace")}
    register(LaneInfo(name="vague", title="Vague", headline=("speed_ms",), definitions=vague))
"""
BROKEN_TESTS = """
import broken_plugin
from neuronbench.testing.contracts import *

class TestBackend(BackendContract):
    plugin, backend = broken_plugin, "broken"

class TestProvider(ProviderContract):
    plugin, provider, backend = broken_plugin, "server/broken", "broken"
    impossible = {"tensor_parallel": 1000}

class TestSink(SinkContract):
    plugin, sink = broken_plugin, "broken"

class TestLane(LaneContract):
    plugin, lane = broken_plugin, "vague"

class TestHandler(HandlerContract):
    from pathlib import Path
    folder = Path("handlers").resolve()
    module, batch_size, uses = "toy", 2, ()
    arguments = {"behaviour": "asynchronous"}
"""


@pytest.fixture
def broken(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Outcome of each test of the suites on a plugin that does all it can wrong."""
    monkeypatch.syspath_prepend(str(pytester.path))
    pytester.makepyfile(
        broken_plugin=BROKEN.replace('NEURONBENCH_API = "7"', "import numpy") + BROKEN_HOOKS, test_broken=BROKEN_TESTS
    )
    shutil.copytree(HANDLERS, pytester.path / "handlers")
    (pytester.path / "handlers" / "late.py").write_text("import neuronbench")
    done = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-rA", timeout=180)
    lines = [line.split(" ") for line in done.outlines if line.startswith(("PASSED", "FAILED", "ERROR", "SKIPPED"))]
    return {parts[1].rpartition("::")[2]: parts[0] for parts in lines if len(parts) > 1 and "::" in parts[1]}


def test_each_suite_fails_where_a_plugin_is_wrong(broken: dict[str, str]) -> None:
    wrong = {name for name, outcome in broken.items() if outcome == "FAILED"}
    assert wrong == {
        "test_it_says_for_which_hooks_it_was_written",
        "test_loading_it_imports_nothing_heavy",
        "test_what_it_registers_can_be_imported",
        # backend
        "test_some_provider_serves_its_family",
        "test_its_probe_says_what_is_there_or_what_is_missing",
        "test_its_probe_is_repeatable_and_leaves_no_process",
        "test_its_facts_are_json_without_identifiers",
        "test_a_stack_it_does_not_have_is_a_lookup_error_that_names_it",
        "test_its_failure_rules_are_rules",
        # provider
        "test_it_is_a_provider",
        "test_equal_points_have_equal_specs",
        "test_axes_of_the_load_are_no_part_of_a_spec",
        "test_what_it_cannot_do_is_refused_before_anything_boots",
        # sink
        "test_delivering_twice_makes_one_of_it",
        "test_it_leaves_the_receipt_as_it_was",
        "test_a_damaged_receipt_leaves_it_pending",
        # lane
        "test_its_headline_is_in_a_defined_vocabulary",
        "test_its_definitions_say_what_is_meant",
        # handler
        "test_it_imports_the_stack_and_the_standard_library_only",
        "test_its_timer_sees_the_whole_call",
    }


def test_a_lanes_run_has_the_settings_of_its_project_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NEURONBENCH_DATA_ROOT set the suite failed, and its receipts were among those of real runs."""
    for name in ("DATA_ROOT", "GRID", "REPEATS", "DEADLINES_BOOT", "SESSION", "TRACKING_URI"):
        monkeypatch.setenv(f"NEURONBENCH_{name}", "7")
    for name in ("CACHE_DIR", "PLUGINS", "RAG_DSN"):
        monkeypatch.setenv(f"NEURONBENCH_{name}", "kept")
    found = lanes._environment()
    kept = {"NEURONBENCH_CACHE_DIR", "NEURONBENCH_PLUGINS", "NEURONBENCH_RAG_DSN"}
    assert {name for name, value in found.items() if value in ("7", "kept") and name.startswith("NEURONBENCH")} == kept


def test_every_contract_says_why(request: pytest.FixtureRequest) -> None:
    for suite in (BackendContract, HandlerContract, LaneContract, PluginContract, SinkContract):
        for name, function in vars(suite).items():
            if name.startswith("test_"):
                assert function.__doc__, f"{suite.__name__}.{name}"
