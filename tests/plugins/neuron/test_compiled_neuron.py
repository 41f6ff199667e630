"""Compiled models on a made-up Neuron host: real torch, real workers, real artifacts; the device alone is not there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from neuron_boxes import TINY, stacked
from neuronbench_neuron import cores
from neuronbench_neuron import failures as neuron_failures
from neuronbench_neuron.backend import NeuronBackend
from neuronbench_neuron.compiled import boot as neuron
from neuronbench_neuron.compiled.hooks import watched
from neuronbench_neuron.compiled.provider import NeuronCompiledProvider
from neuronbench_neuron.monitor.hooks import held

from neuronbench import BackendInfo, Point, ProviderInfo, config, failures, measure_gates, processes
from neuronbench.artifacts import ArtifactCache
from neuronbench.model import Failure, FrozenMap, ResourceSpec
from neuronbench.protocols import BootContext, BootError, CompiledModel, PointFailure
from neuronbench.testing.neuron import FakeBox
from neuronbench.testing.neuron.venvs import ENVIRON
from neuronbench.weights.shared_artifacts import SharedArtifacts
from neuronbench.worker.client import Launch
from neuronbench.worker.compiled import Plan, WorkerModel, start_copy

SMALL = {"architecture": TINY, "weights": "seeded", "sequence_length": 8, "batch_size": 2}
T5 = {
    "model_type": "t5", "vocab_size": 200, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
    "initializer_factor": 3.0,
}  # fmt: skip
BOOT_S = 600.0


@dataclasses.dataclass
class Rig:
    """The provider on a box."""

    box: FakeBox
    venv: Path
    folder: Path
    settings: config.Settings
    backend: NeuronBackend
    provider: NeuronCompiledProvider
    boots: int = 0

    def spec(self, **params: Any) -> ResourceSpec:
        point = Point(
            benchmark="b.py::f", lane="encoder", backend="trn1", params=FrozenMap({**SMALL, **params}), id="p"
        )
        return self.provider.spec(point, self.backend, self.settings)

    def refused(self, **params: Any) -> str:
        verdict = self.provider.check(self.spec(**params), self.backend, self.settings)
        return verdict.reason if verdict else ""

    def boot(self, **params: Any) -> WorkerModel:
        self.boots += 1
        folder = self.folder / f"boot-{self.boots}"
        folder.mkdir()
        context = BootContext(
            backend=self.backend, settings=self.settings, folder=folder, deadline_s=BOOT_S,
            progress=lambda text: None, spawn=self.spawn,
        )  # fmt: skip
        return self.provider.boot(self.spec(**params), context)

    @property
    def spawn(self) -> Any:
        return partial(processes.spawn, pid_dir=self.folder / "pids")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("neuron")
    box = FakeBox("trn1.2xlarge", folder / "box")
    venv = stacked(box)
    with box, pytest.MonkeyPatch.context() as patch:
        for name, value in box.environ().items():
            patch.setenv(name, value)
        settings = dataclasses.replace(config.load(folder, environ={}), cache_dir=folder / "cache")
        info = BackendInfo(name="trn1", title="", family="neuron", target="")
        made = ProviderInfo(name="compiled_model/neuron", kind="compiled_model", families=("neuron",), target="")
        yield Rig(box, venv, folder, settings, NeuronBackend(info), NeuronCompiledProvider(made))


@pytest.fixture(scope="module")
def model(rig: Rig) -> Iterator[WorkerModel]:
    assert rig.refused() == ""
    booted = rig.boot()
    yield booted
    booted.stop()


def test_its_facts_say_what_it_was_made_from_and_where_it_is(rig: Rig, model: WorkerModel) -> None:
    assert isinstance(model, CompiledModel)
    artifact, told = model.facts["artifact"], model.facts["neuron"]
    assert sorted(artifact["sha256"]) == ["model.neff", "model.pt"]
    neff = rig.settings.cache_dir / "artifacts" / artifact["key"] / "model.neff"
    scope = SharedArtifacts(rig.settings.cache_dir).scope(artifact["key"])
    assert scope.removeprefix("artifacts/") in rig.backend.artifact_scopes(rig.settings)  # so pull finds it
    assert told["neff"]["model"]["sha256"] == hashlib.sha256(neff.read_bytes()).hexdigest()
    assert told["neff"]["model"]["bytes"] == neff.stat().st_size
    assert told["compiler_arguments"] == ["--target=trn1", "--model-type=generic", "--auto-cast=none", "--optlevel=2"]
    assert (told["core_version"], told["logical_core_config"], told["cores"]) == ("v2", 1, [0])
    assert told["analyze"]["model"]["support"] == "100.00%"
    parts = artifact["parts"]
    assert parts["versions"]["neuronx-cc"] == "2.26.6360.0+ab12"
    assert parts["versions"]["torch-neuronx"] == "2.9.0.2.15.1"
    assert parts["target"] == {"core": "v2", "lnc": 1, "target": "trn1"}
    assert parts["flags"] == told["compiler_arguments"]
    assert model.facts["worker"]["environment"]["NEURON_RT_VISIBLE_CORES"] == "0"
    metrics = {metric.key: metric for metric in model.boot_metrics}
    assert metrics["executable_size_bytes"].value == neff.stat().st_size
    stages = {metric.stat for metric in model.boot_metrics if metric.id == "compile_stage"}
    assert stages == {"build", "analyze", "compile", "save"}
    assert metrics["first_call_ms"].value is not None
    assert "export_time_s" not in metrics  # tracing is no stage of its own here, and 0 would be a lie
    assert model.floor.peak_flops == pytest.approx(47.5e12 / 2)
    assert model.floor.launch_us == neuron.LAUNCH_US
    assert model.max_workers == 2


def test_its_answers_are_those_of_the_reference_which_takes_no_core(rig: Rig, model: WorkerModel) -> None:
    batch = model.batch(seed=1, lengths=[5, 8])
    answers, wanted = model.outputs(batch), model.reference(batch)
    assert answers.keys() == wanted.keys() == {"last_hidden_state", "pooler_output"}
    for name in wanted:
        assert np.abs(wanted[name]).max() > 0.1
        assert np.abs(answers[name] - wanted[name]).max() < 1e-4
    error = model.mask_error()
    assert error is not None
    assert error < 1e-4
    assert [holder.cores for holder in cores.holders(rig.backend.found)] == [(0,)]


def test_a_compile_while_it_is_measured_marks_the_record(model: WorkerModel) -> None:
    gates: list[Any] = []
    record: Any = SimpleNamespace(gate=gates.append)
    with watched(model, record):
        model.latency(calls=3, warmup=1)
    assert (gates[-1].id, gates[-1].passed, gates[-1].observed) == ("compiled_under_load", True, 0)
    with watched(model, record):
        module = model.compile_cache / "neuronxcc-2.26.6360.0+ab12" / "MODULE_1+d41d8cd9"  # type: ignore[attr-defined]
        module.mkdir(parents=True)
        (module / "model.hlo_module.pb").touch()
    assert gates[-1].passed is False
    assert "MODULE_1+d41d8cd9" in gates[-1].message


def told_by_neuron_ls(box: FakeBox) -> Any:
    done = subprocess.run([box.bin / "neuron-ls", "-j"], capture_output=True, text=True, check=True, env=box.environ())
    return json.loads(done.stdout)


# -- timers -----------------------------------------------------------------------------------------------------------

IN_FLIGHT = {"NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS": "8", "NEURONBENCH_FAKE_EXEC_MS": "15"}


def copy_of(rig: Rig, model: WorkerModel, handlers: Path, env: dict[str, str]) -> WorkerModel:
    """Another copy of the same artifact, by a handler and in an environment of one's own, beside the model's."""
    known: Plan = model._plan
    launch = known.launch(1)

    def start(index: int) -> Launch:
        return dataclasses.replace(launch, handlers=handlers, env={**launch.env, **env})

    plan = dataclasses.replace(known, launch=start, release=lambda: None, trash=(), name=f"beside-{handlers.name}")
    worker, loaded = start_copy(plan, 0)
    return WorkerModel(
        model.spec, plan, worker, loaded.value, batch_size=2, floor=model.floor, max_workers=1, facts={},
        boot_metrics=[],
    )  # fmt: skip


def test_a_call_contains_the_devices_end_and_a_timer_that_does_not_is_caught(
    rig: Rig, model: WorkerModel, tmp_path: Path
) -> None:
    ours = copy_of(rig, model, neuron.HANDLERS, IN_FLIGHT)
    try:
        run = ours.latency(calls=12, warmup=2)
        gates = {gate.id: gate for gate in measure_gates.run_gates(run, ours)}
        assert gates["timer_escapes_device"].passed is True
        assert min(run.loops[0].durations_ns) > 14e6
    finally:
        ours.stop()
    broken = tmp_path / "broken"
    broken.mkdir()
    source = (neuron.HANDLERS / "traced.py").read_text(encoding="utf-8")
    line = "return lambda: [output.cpu() for output in call()]"
    assert line in source
    (broken / "traced.py").write_text(source.replace(line, "return call"), encoding="utf-8")
    theirs = copy_of(rig, model, broken, IN_FLIGHT)
    try:
        run = theirs.latency(calls=12, warmup=2)
        gates = {gate.id: gate for gate in measure_gates.run_gates(run, theirs)}
        assert gates["timer_escapes_device"].passed is False
    finally:
        theirs.stop()
    held_by_processes = [device["neuron_processes"] for device in told_by_neuron_ls(rig.box)]
    assert [process["pid"] for each in held_by_processes for process in each] == list(model.pids())


# -- copies -----------------------------------------------------------------------------------------------------------


def test_copies_run_beside_each_other_on_cores_of_their_own(rig: Rig, model: WorkerModel) -> None:
    run = model.throughput(seconds=0.5)
    assert len(run.loops) == 2
    assert run.cores == {0: (0,), 1: (1,)}
    assert held(model) == [0, 1]  # those that are monitored
    assert {gate.id: gate.passed for gate in measure_gates.run_gates(run, model)}["timer_escapes_device"] is True
    assert [holder.cores for holder in cores.holders(rig.backend.found)] == [(0,), (1,)]
    pids = {process["pid"] for device in told_by_neuron_ls(rig.box) for process in device["neuron_processes"]}
    assert pids == set(model.pids())  # each holds what it was given, and nobody else anything
    with pytest.raises(BootError) as caught:
        rig.boot(weights_seed=5)
    assert caught.value.failure.kind == "cores_busy"
    assert "copy 0 of compiled model" in caught.value.failure.message
    assert rig.box.shape.cores == 2
    with pytest.raises(ValueError, match="expected 1 to 2"):
        model.team(3)
    model.stop()
    assert cores.holders(rig.backend.found) == []


# -- what is compiled, and what is not --------------------------------------------------------------------------------


def test_a_batch_is_split_over_cores_and_casts_are_seen_in_the_answers(rig: Rig) -> None:
    model = rig.boot(placement="data_parallel", cores=2, batch_size=4, auto_cast="all-bf16", loading="lazy")
    try:
        told = model.facts["neuron"]
        assert (told["compiled_batch"], told["cores"], told["placement"]) == (2, [0, 1], "data_parallel")
        assert (told["auto_cast"], told["arithmetic"]) == ("all-bf16", "bfloat16")
        assert "--auto-cast-type=bf16" in told["compiler_arguments"]
        assert model.floor.peak_flops == pytest.approx(190e12)
        answers, wanted = model.outputs(), model.reference()
        assert answers["last_hidden_state"].shape == (4, 8, 32)
        error = np.abs(answers["last_hidden_state"] - wanted["last_hidden_state"]).max()
        assert 1e-4 < error < 0.1
        assert model.max_workers == 1
    finally:
        model.stop()


def test_a_generation_writes_its_caches_through_the_host_and_gives_the_references_tokens(rig: Rig) -> None:
    model = rig.boot(architecture=T5, family="seq2seq", task="generate", batch_size=1, output_tokens=5)
    try:
        assert sorted(model.facts["artifact"]["sha256"]) == ["prefill.neff", "prefill.pt", "step.neff", "step.pt"]
        assert model.facts["neuron"]["caches_through_host"] is True
        batches = [model.batch(seed=seed, lengths=[8 - 3 * seed]) for seed in (0, 1)]
        references = model.references(batches)
        for batch, wanted in zip(batches, references, strict=True):  # the second on caches that the first has filled
            answers = model.outputs(batch)
            assert np.array_equal(answers["tokens"], wanted["tokens"])
            assert len(set(answers["tokens"].ravel().tolist())) > 1
    finally:
        model.stop()


def refused(rig: Rig, **env: str) -> tuple[Failure, str]:
    """The failure of a boot, and what its compiler's worker logged. Nothing of it is kept."""
    with pytest.raises(BootError) as caught:
        rig.boot(worker_env=env)
    failure = caught.value.failure
    assert failure.phase == "boot"
    folder = rig.folder / f"boot-{rig.boots}"
    assert cores.holders(rig.backend.found) == []
    assert not (folder / "scratch").exists()
    assert [event["event"] for event in ArtifactCache(rig.settings.cache_dir).journal()][-2:] == ["miss", "failed"]
    return failure, "".join(path.read_text() for path in folder.glob("*-compiler.log"))


def test_what_the_compiler_refuses_is_a_failure_with_its_line_and_no_core_is_kept(rig: Rig) -> None:
    failure, log = refused(rig, NEURONBENCH_FAKE_COMPILE_ERROR="70:[NCC_INLA001] Unhandled")
    assert failure.kind == "compiler_bug"
    assert "[NCC_INLA001]" in failure.causal_line + failure.message
    assert "NCC_INLA001" in log
    assert "neuronx-cc failed with 70" in log
    # the same end for want of memory, by the same log in that case's words
    killed = log.replace("[NCC_INLA001] Unhandled", "[F137] neuronx-cc forcibly killed")
    killed = killed.replace("neuronx-cc failed with 70", "neuronx-cc failed with -9")
    assert killed.count("[F137]") == log.count("[NCC_INLA001]") > 0
    assert killed.count("failed with -9") == log.count("failed with 70") > 0
    other = failures.classify(killed, phase="boot", extra_rules=neuron_failures.rules())
    assert other.kind == "host_oom"
    assert "[F137]" in other.causal_line + other.message


def test_an_operator_that_is_not_supported_is_said_and_the_compiler_is_not_even_started(rig: Rig) -> None:
    failure, log = refused(rig, NEURONBENCH_FAKE_UNSUPPORTED="aten::tanh")
    assert failure.kind == "unsupported_operator"
    assert "Unsupported operator: aten::tanh in model" in failure.causal_line + failure.message
    assert "neuronx-cc failed" not in log


def test_what_the_runtime_refuses_is_said_in_its_words(rig: Rig) -> None:
    """By a model that was compiled before, where nothing was wrong."""
    told = rig.venv / ENVIRON
    environ = {"NEURONBENCH_FAKE_EXEC_ERROR": "status=1003 message=Numerical Error"}
    told.write_text(json.dumps(environ), encoding="utf-8")
    try:
        with pytest.raises((BootError, PointFailure)) as caught:
            rig.boot()
    finally:
        told.unlink()
    assert caught.value.failure.kind == "numerical_error"
    assert "status=1003" in caught.value.failure.causal_line + caught.value.failure.message
    assert cores.holders(rig.backend.found) == []


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"auto_cast": "some"}, "auto_cast: expected one of none, matmult, all"),
        ({"auto_cast": "matmult-int4"}, "auto_cast_type: expected one of bf16"),
        ({"optlevel": 4}, "optlevel: expected 1, 2 or 3"),
        ({"compiler_model_type": "cnn"}, "compiler_model_type: expected one of generic"),
        ({"compiler_flags": {"--auto-cast": "all"}}, "did you mean 'auto_cast'?"),
        ({"compiler_flags": {"verbose": 1}}, "options of neuronx-cc"),
        ({"cores": 3}, "cores: expected 1 to 2"),
        ({"placement": "spread"}, "placement: expected one of cores"),
        ({"loading": "late"}, "loading: expected one of eager"),
        ({"placement": "data_parallel", "cores": 2, "batch_size": 3}, "does not go into 2 cores"),
        ({"placement": "data_parallel", "cores": 2, "family": "asr"}, "a loop of graphs"),
        ({"num_workers": 0}, "num_workers: expected a whole number"),
        ({"num_workers": True}, "num_workers: expected a whole number"),
        ({"cores": True}, "cores: expected 1 to 2 of this host, found True"),
        ({"analyze": "no"}, "analyze: expected true or false, found 'no'"),
        ({"inline_weights": "no"}, "inline_weights: expected true or false, found 'no'"),
        ({"worker_env": {"NEURON_RT_VISIBLE_CORES": "1"}}, "may not set NEURON_RT_VISIBLE_CORES: the cores of a model"),
        ({"worker_env": {"NEURON_LOGICAL_NC_CONFIG": "1"}}, "are leased, grouped as this host's are"),
        ({"worker_env": 5}, "worker_env: expected a table"),
        ({"tp_degree": 2}, "tp_degree 2"),
        ({"weights": "pretrained"}, "weights = 'seeded'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_before_anything_boots(rig: Rig, params: dict[str, Any], reason: str) -> None:
    assert reason in rig.refused(**params)


def test_a_host_without_the_sdk_is_refused_with_where_was_looked(rig: Rig, tmp_path: Path) -> None:
    with FakeBox("trn1.2xlarge", tmp_path / "bare") as box:
        info = BackendInfo(name="trn1", title="", family="neuron", target="")
        bare = dataclasses.replace(rig, backend=NeuronBackend(info, root=box.root))
        assert "torch-neuronx" in bare.refused()


def test_a_worker_sees_its_threads_its_cores_and_no_cache_of_another_run(rig: Rig) -> None:
    context = BootContext(
        backend=rig.backend, settings=rig.settings, folder=rig.folder, deadline_s=1.0, progress=lambda text: None,
        spawn=rig.spawn,
    )  # fmt: skip
    boot = neuron.NeuronCompiledBoot(rig.spec(threads=3, worker_env={"X": 1}), context)
    stack = rig.backend.stack("compile", rig.settings)
    try:
        aside, own = boot.aside(stack, compiling=False).env, boot.launch(stack, 1).env
        assert "NEURON_RT_VISIBLE_CORES" not in aside
        assert own["NEURON_RT_VISIBLE_CORES"] == "0"
        assert own["OMP_NUM_THREADS"] == "3"
        assert own["X"] == "1"
        assert own["HF_HUB_OFFLINE"] == "1"
        assert own["NEURON_COMPILE_CACHE_URL"].startswith(str(rig.folder / "scratch"))
        assert "NEURON_CC_FLAGS" not in own
    finally:
        boot.let_go()
    assert cores.holders(rig.backend.found) == []
