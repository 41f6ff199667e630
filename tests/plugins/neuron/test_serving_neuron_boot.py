"""Starts of a made-up vLLM on made-up hosts: real processes and sockets; only device and model are not there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron import caches, cores
from neuronbench_neuron.backend import NeuronBackend
from neuronbench_neuron.serving import generations
from neuronbench_neuron.serving.endpoint import NeuronServingProvider
from neuronbench_neuron.serving.server import Caches, NeuronServer
from serving_neuron import BASE, PACKAGES, STACKS, make_model, point

from neuronbench import BackendInfo, BootContext, BootError, Endpoint, Provider, ProviderInfo, config, processes
from neuronbench.model import Failure, ResourceSpec
from neuronbench.testing.neuron import FakeBox
from neuronbench.witness import Witness

INFO = ProviderInfo(name="endpoint/vllm-neuron", kind="endpoint", families=("neuron",), target="")
SHAPES = {"0": "inf2.xlarge", "1a": "trn1.2xlarge", "1b": "inf2.xlarge", "1c": "trn2.3xlarge", "2a": "trn2.3xlarge",
          "2b": "trn2.3xlarge", "H": "inf2.xlarge"}  # fmt: skip


@dataclasses.dataclass
class Rig:
    """A provider on a box whose stack is of one generation."""

    box: FakeBox
    folder: Path
    backend: NeuronBackend
    settings: config.Settings
    provider: NeuronServingProvider
    servers: list[NeuronServer]
    boots: int = 0

    def spec(self, **params: Any) -> ResourceSpec:
        given = {"model": f"file:{self.folder / 'model'}", "max_model_len": 512, "max_num_seqs": 4, **params}
        return self.provider.spec(point(self.backend.info.name, **given), self.backend, self.settings)

    def refused(self, **params: Any) -> str:
        verdict = self.provider.check(self.spec(**params), self.backend, self.settings)
        return verdict.reason if verdict else ""

    def boot(self, deadline_s: float = 60.0, **params: Any) -> NeuronServer:
        self.boots += 1
        folder = self.folder / f"boot-{self.boots}"
        folder.mkdir()
        context = BootContext(
            backend=self.backend, settings=self.settings, folder=folder, deadline_s=deadline_s,
            progress=lambda text: None, spawn=partial(processes.spawn, pid_dir=self.folder / "pids"),
        )  # fmt: skip
        server = self.provider.boot(self.spec(**params), context)
        self.servers.append(server)
        return server

    def fails(self, deadline_s: float = 60.0, **params: Any) -> Failure:
        with pytest.raises(BootError) as caught:
            self.boot(deadline_s, **params)
        assert not self.held()
        return caught.value.failure

    def held(self) -> list[int]:
        return [core for holder in cores.holders(self.backend.found) for core in holder.cores]


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Of the generation that the test is parametrized with, else 1b on an inf2.xlarge."""
    told = getattr(request, "param", "1b")
    id, _, shape = told.partition("@")
    shape = shape or SHAPES[id]
    family = shape[:4]
    with FakeBox(shape, tmp_path / "box") as box:
        box.venv("aws_neuronx_venv_serving", packages={**BASE, **STACKS[id]}, paths=[PACKAGES])
        make_model(tmp_path / "model")
        settings = config.load(tmp_path, environ={"XDG_CACHE_HOME": str(tmp_path / "cache")})
        settings = dataclasses.replace(settings, deadlines=config.Deadlines(stop=2.0))
        info = BackendInfo(name=family, title="", family="neuron", target="")
        environ = box.environ(XDG_CACHE_HOME=str(tmp_path / "cache"))
        made = Rig(
            box=box, folder=tmp_path, backend=NeuronBackend(info, environ=environ), settings=settings,
            provider=NeuronServingProvider(INFO), servers=[],
        )  # fmt: skip
        try:
            yield made
        finally:
            for server in made.servers:
                server.stop()


@pytest.fixture(autouse=True)
def environment_of_the_box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process is on the box as far as caches go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("VLLM_CACHE_ROOT", "NEURON_COMPILE_CACHE_URL", "NEURON_RT_VISIBLE_CORES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("rig", STACKS, indirect=True)
def test_every_generation_starts_answers_and_says_what_it_is(rig: Rig) -> None:
    assert rig.refused() == ""
    server = rig.boot()
    assert isinstance(rig.provider, Provider)
    assert isinstance(server, Endpoint)
    assert isinstance(server, Witness)
    generation = server.facts["generation"]
    assert dict(rig.backend.stack("serving", rig.settings).packages).items() >= STACKS[generation].items()
    assert server.alive()
    assert rig.held() == list(server.facts["cores"])
    told = {metric.key: metric for metric in server.boot_metrics}
    assert told["boot_time_s"].value is not None
    assert told["boot_buckets_s"].value is not None
    assert told["cache_misses_artifacts"].value
    assert server.facts["compile_cache"]["state"] == "cold"
    assert server.facts["artifact"]["key"]
    sizes = {(row["phase"], row["edge"]) for row in server.facts["readiness"]}
    assert ("prefill", 512) in sizes
    assert ("decode", 4) in sizes
    assert server.facts["effective_concurrency"] == 4
    server.stop()
    assert rig.held() == []
    assert not server.alive()


@pytest.mark.parametrize("rig", ["1b", "2b"], indirect=True)
def test_the_monitor_of_its_host_sees_a_server_on_its_cores(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONBENCH_NEURON_ROOT", str(rig.box.root))
    server = rig.boot(tensor_parallel=2)
    (seen,) = (rig.box.root / "run/neuron/runtimes").iterdir()
    attached, *executions = [json.loads(line) for line in seen.read_text(encoding="utf-8").splitlines()]
    assert attached["cores"] == list(server.facts["cores"])
    assert executions  # the requests of each size
    server.stop()
    assert not seen.exists()


@pytest.mark.parametrize("rig", ["1b", "2b"], indirect=True)
def test_the_second_start_is_warm_and_known_to_be(rig: Rig) -> None:
    rig.boot().stop()
    again = rig.boot()
    assert again.facts["compile_cache"]["state"] == "warm"
    assert again.facts["compile_cache"]["compiles"] == 0
    other: dict[str, Any] = {"buckets": {"prefill": [256, 512]}}
    again.stop()
    changed = rig.boot(**other)
    assert changed.facts["compile_cache"]["state"] == "cold"
    assert changed.facts["buckets"]["prefill"] == [256, 512]
    assert changed.facts["artifact"]["key"] != again.facts["artifact"]["key"]


@pytest.mark.parametrize("rig", ["1b", "2b"], indirect=True)
def test_sizes_are_compiled_before_anything_is_measured_even_where_the_server_is_lazy(rig: Rig) -> None:
    server = rig.boot(server_env={"FAKE_VLLM_LAZY": "1"})
    before = server.caches.look()
    assert server.facts["compile_cache"]["compiles"] >= 4  # 128, 256, 512, and a batch of 4
    assert sum(len(cache.of("done")) for cache in before) >= 4


@pytest.mark.parametrize("rig", ["2b"], indirect=True)
def test_a_cap_of_the_kv_cache_is_read_from_the_log(rig: Rig) -> None:
    server = rig.boot(server_env={"FAKE_VLLM_KV_SEQS": "2"})
    assert server.known.capped == 2
    assert server.facts["effective_concurrency"] == 2
    (notice,) = server.facts["notices"]
    assert "capped at 2" in notice["line"]
    assert server.facts["server_metrics"]["compilation_time_seconds"].keys() >= {"prefill_s128", "decode_b4"}
    assert server.known.sequences == 4


@pytest.mark.parametrize("rig", ["2b"], indirect=True)
def test_generation_2_is_never_given_the_variable_it_refuses(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0")
    server = rig.boot()
    assert server.facts["env"]["NEURON_VISIBLE_DEVICES"] == "0,1,2,3"
    assert "NEURON_RT_VISIBLE_CORES" not in server.facts["env"]


@pytest.mark.parametrize("rig", ["2b"], indirect=True)
def test_a_miss_can_be_made_a_failure(rig: Rig) -> None:
    assert "cache miss" in rig.fails(require_cached=True).causal_line.lower()
    rig.boot().stop()
    assert rig.boot(require_cached=True).facts["compile_cache"]["state"] == "warm"


def test_keys_that_the_server_did_not_take_fail_the_start(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.boot(neuron_config={"fused_qkv": True}).stop()
    known = next(generation for generation in generations.generations() if generation.id == "1b")
    misspelt = dataclasses.replace(known, config=("additional_config", "override-neuron-config"))
    monkeypatch.setattr(generations, "of", lambda packages: misspelt)
    failure = rig.fails(neuron_config={"fused_qkv": True})
    assert failure.kind == "config_ignored"
    assert "No neuron overrides" in failure.causal_line


def test_artifacts_that_were_compiled_before_tell_their_own_sizes(rig: Rig) -> None:
    first = rig.boot(buckets={"prefill": [256, 512]})
    folder = first.facts["env"]["NEURON_COMPILED_ARTIFACTS"]
    first.stop()
    server = rig.boot(artifacts=folder)
    assert server.facts["buckets"]["prefill"] == [256, 512]
    assert server.facts["buckets"]["source"] == "artifacts"


def test_what_a_server_compiled_is_a_cache_that_is_in_use_while_it_runs(rig: Rig) -> None:
    server = rig.boot()
    known = {cache.name: cache for cache in rig.backend.caches(rig.settings)}
    (entry,) = known[caches.SERVED].entries()
    assert server.facts["env"]["NEURON_COMPILED_ARTIFACTS"].endswith(entry.key)
    assert entry.in_use
    server.stop()
    assert not known[caches.SERVED].entries()[0].in_use


def test_a_cache_in_a_store_is_no_folder_here(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(rig.folder)
    server = rig.boot(compile_cache="s3://bucket/cache")
    assert server.facts["env"]["NEURON_COMPILE_CACHE_URL"] == "s3://bucket/cache"
    assert not list(rig.folder.glob("s3*"))
    assert list((rig.box.root / "var/tmp/stores/s3/bucket/cache").rglob("model.done"))


# -- what goes wrong


@pytest.mark.parametrize(
    ("name", "at", "line"),
    [
        ("host_oom", "compile", "[F137] neuronx-cc was forcibly killed"),
        ("compiler_70", "compile", "compilation failed with 70"),
        ("poisoned", "compile", "Got a cached failed neff"),
        ("cores_busy", "load", "NeuronCore(s) not available"),
        ("hbm", "load", "status=4"),
        ("abstract_worker", "load", "abstract class NeuronWorker"),
        ("wrong_family", "load", "Unsupported instance family"),
        ("numerical", "request", "status=1003"),
        ("dma_abort", "request", "NRT_EXEC_HW_ERR_DMA_ABORT"),
    ],
)
def test_a_failure_has_a_class_and_the_line_that_caused_it(rig: Rig, name: str, at: str, line: str) -> None:
    failure = rig.fails(server_env={"FAKE_VLLM_FAIL": name, "FAKE_VLLM_FAIL_AT": at})
    assert line in failure.causal_line, failure
    assert failure.kind not in ("unclassified", "exited"), failure
    assert failure.remedy
    assert "Engine core initialization failed" not in failure.causal_line


def test_a_start_that_hangs_ends_at_its_deadline_and_frees_its_cores(rig: Rig) -> None:
    failure = rig.fails(4.0, server_env={"FAKE_VLLM_FAIL": "hang"})
    assert failure.kind == "boot_timeout"
    assert "nrt_load_collectives" in failure.message


def test_cores_that_somebody_has_are_not_waited_for(rig: Rig) -> None:
    with cores.take(1, host=rig.backend.found, owner="session one, training"), pytest.raises(BootError) as caught:
        rig.boot()
    assert caught.value.failure.kind == "cores_busy"
    assert "session one, training" in caught.value.failure.message
    assert caught.value.facts["model"]["path"] == str(rig.folder / "model")


def test_sizes_that_a_server_refuses_are_refused_before_it_starts(rig: Rig) -> None:
    assert "max_model_len 512" in rig.refused(buckets={"prefill": [512, 1024]})
    assert "beyond the last context bucket, 256" in rig.refused(buckets={"context": [128, 256]})
    assert "beyond the last context bucket, 256" in rig.fails(buckets={"context": [128, 256]}).message
    assert not (rig.folder / "boot-1" / "server.log").exists()


# -- stacks that cannot serve here


@pytest.mark.parametrize(
    ("rig", "words"),
    [
        ("1c@inf2.xlarge", "SDK 2.28"),
        ("2a@inf2.xlarge", "SDK 2.28"),
        ("2b@trn1.32xlarge", "SDK 2.28"),
    ],
    indirect=["rig"],
)
def test_a_generation_for_other_hardware_is_refused_in_words(rig: Rig, words: str) -> None:
    found = rig.refused()
    assert words in found
    assert rig.box.shape.instance.name in found


@pytest.mark.parametrize("rig", ["1c@inf2.xlarge"], indirect=True)
def test_a_rule_that_was_set_aside_is_tried_and_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONBENCH_NEURON_ALLOW", "vllm-neuron-0.5-on-v2")
    assert rig.refused() == ""
    server = rig.boot()
    assert server.facts["generation"] == "1c"
    assert "vllm-neuron-0.5-on-v2" in server.facts["compat.set_aside"]


def test_folders_in_which_a_ready_server_left_nothing_are_not_where_it_compiles(rig: Rig) -> None:
    server = rig.boot()
    assert server.caches.hold_something()
    (sampler,) = server.samplers()
    assert sampler.options["folder"]
    elsewhere = Caches(rig.folder / "elsewhere", "xla", None)
    assert not elsewhere.hold_something()
    server.caches = elsewhere
    (sampler,) = server.samplers()
    assert sampler.options == {"log": str(server.logs[0])}


def test_more_cores_than_there_are_and_heads_that_do_not_divide_are_refused(rig: Rig) -> None:
    assert "2 cores of inf2.xlarge" in rig.refused(tensor_parallel=8)
    make_model(rig.folder / "model", heads=15, kv_heads=5)
    assert "15 heads over 2 cores" in rig.refused()


def test_memory_is_judged_by_what_the_keys_for_neuron_make_of_it(rig: Rig) -> None:
    """What is refused cannot fit: weights and caches of fewer bits, and caches that are not for all sequences, may."""
    folder = make_model(rig.folder / "model", length=32768)
    large = {"hidden_size": 8192, "num_hidden_layers": 40, "intermediate_size": 16384, "num_attention_heads": 64,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 100_000}  # fmt: skip
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **large}), encoding="utf-8")
    few = {"max_model_len": 2048, "max_num_seqs": 1}
    assert "device-memory" in rig.refused(**few)
    assert rig.refused(neuron_config={"quantized": True, "quantization_dtype": "int8"}, **few) == ""
    (folder / "config.json").write_text(json.dumps({**config, **large, "num_hidden_layers": 8}), encoding="utf-8")
    many = {"max_model_len": 32768, "max_num_seqs": 30}
    assert "device-memory" in rig.refused(**many)
    assert rig.refused(neuron_config={"kv_cache_quant": True}, **many) == ""
    assert rig.refused(neuron_config={"pa_num_blocks": 64}, **many) == ""


def test_a_stack_with_both_plugins_is_refused(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        packages = {**BASE, **STACKS["1a"], **STACKS["H"]}
        box.venv("aws_neuronx_venv_serving", packages=packages, paths=[PACKAGES])
        make_model(tmp_path / "model")
        info = BackendInfo(name="inf2", title="", family="neuron", target="")
        backend = NeuronBackend(info, environ=box.environ())
        settings = config.load(tmp_path, environ={})
        provider = NeuronServingProvider(INFO)
        spec = provider.spec(point("inf2", model=f"file:{tmp_path / 'model'}"), backend, settings)
        verdict = provider.check(spec, backend, settings)
    assert verdict is not None
    assert "one platform plugin" in verdict.reason


def test_specs_are_equal_for_equal_parameters_and_hold_their_cores(rig: Rig) -> None:
    assert rig.spec() == rig.spec(concurrency=3)
    assert rig.spec().key != rig.spec(buckets={"prefill": [512]}).key
    assert rig.spec().cores == 2
    assert rig.spec(tensor_parallel=1).cores == 1
    assert rig.spec(tensor_parallel=1, cores=2).cores == 2
    assert rig.spec(tensor_parallel=1, engine_args={"data-parallel-size": 2}).cores == 2
    assert rig.spec(engine_args="x").cores == 1
    assert "engine_args: expected a table" in rig.refused(engine_args="x")
    assert json.loads(json.dumps(rig.spec().settings.to_json()))["buckets"] == {}
