"""A device that hangs ends the session: what was to come is recorded as not run, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuronbench.receipts.codec import decode_record

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

CONFTEST = """
from neuronbench import BackendInfo, ProviderInfo, hookimpl

@hookimpl
def register_backends(register):
    register(BackendInfo(name="hung", title="Hanging hardware", target="hung:Hung", family="hung"))

@hookimpl
def register_resources(register):
    register(ProviderInfo(name="endpoint/hung", kind="endpoint", families=("hung",), target="hung:Provider"))
"""
HUNG = r"""
from neuronbench import BootError, Probe, ResourceSpec
from neuronbench.failures import classify
from neuronbench.model import FrozenMap
from neuronbench_neuron import failures

LOGS = {
    "hangs": "ERROR  NRT:nrt_execute  execution failed with NRT_EXEC_HW_ERR_DMA_ABORT (1203)\n"
             "RuntimeError: Engine core initialization failed. See root cause above.",
    "large": "[NCC_EOOM002] Estimated peak HBM usage 19.46GB exceeds available HBM of 16.00GB",
}

class Hung:
    def __init__(self, info):
        self.info = info
    def probe(self):
        return Probe(available=True, cores=2, facts=FrozenMap(simulated=True))
    def stack(self, kind, settings):
        raise LookupError("no stack")
    def facts(self):
        return {}
    def failure_rules(self):
        return failures.rules()

class Provider:
    def __init__(self, info):
        self.info = info
    def spec(self, point, backend, settings):
        return ResourceSpec(kind="endpoint", backend=point.backend, provider=self.info.name, cores=1,
                            settings=FrozenMap(model=point["model"]))
    def check(self, spec, backend, settings):
        return None
    def boot(self, spec, context):
        rules = context.backend.failure_rules()
        raise BootError(classify(LOGS[spec.settings["model"]], phase="boot", exit_status=1, extra_rules=rules))
"""
BENCH = """
import neuronbench as nb

@nb.bench(lane="microbench", params={"model": "large"})
def bench_a(endpoint, measure):
    pass

@nb.bench(lane="microbench", params={"model": "hangs"})
def bench_b(endpoint, measure):
    pass

@nb.bench(lane="microbench", params={"model": "large", "other": 1})
def bench_c(endpoint, measure):
    pass

@nb.bench(lane="microbench", params={"model": "hangs", "other": 1})
def bench_d(endpoint, measure):
    pass
"""


@pytest.fixture
def records(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NEURONBENCH_DISABLE_PLUGINS", "neuron")
    monkeypatch.syspath_prepend(str(pytester.path))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(hung=HUNG, bench_it=BENCH)
    pytester.makepyprojecttoml("[tool.pytest]\nneuronbench = true\nstrict = true\n")
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "--nb-tracking-uri", "off", "-m", "hung", "-rs", timeout=120
    )
    paths = sorted((pytester.path / "mlruns" / "receipts").glob("*/*/record.json"))
    return {"result": result, "all": [json.loads(path.read_text(encoding="utf-8")) for path in paths]}


def test_the_rest_is_recorded_as_not_run(records: dict[str, Any]) -> None:
    result = records["result"]
    assert result.ret == 1, result.stdout.str()
    points = [record for record in records["all"] if record["kind"] == "point"]
    outcomes = {record["name"]: record["outcome"] for record in points}
    assert sorted(outcomes.values()) == ["error", "error", "error", "skipped"], outcomes
    (hung,) = [record for record in points if record["error"] and record["error"]["fatal"]]
    assert hung["error"]["kind"] == "device_wedged"
    error = decode_record(hung, Path("record.json")).error
    assert error is not None
    assert error.fatal  # a reader of the receipt is told too
    assert "NRT_EXEC_HW_ERR_DMA_ABORT" in hung["error"]["causal_line"]
    for record in points:
        if record["outcome"] == "skipped":
            assert record["reason"].startswith("not run: device_wedged ended the session at ")
            assert "NRT_EXEC_HW_ERR_DMA_ABORT" in record["reason"]
    result.stdout.fnmatch_lines(["*not run: device_wedged ended the session*"])
    assert result.stdout.str().count("Estimated peak HBM") >= 1  # an ordinary failure ended nothing
