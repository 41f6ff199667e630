"""MiniLM compiled for this CPU by a real AOTInductor: one compile for all tests here, kept in the user's own cache.

Needs a stack (`make stack`) with torch, else it is skipped with the reason. `NEURONBENCH_TEST_STACK` names another
stack than `.venv-cpu` beside the project.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench import accuracy, artifacts, config, measure_accuracy, measure_gates, processes
from neuronbench.backends.cpu import compiled
from neuronbench.model import FrozenMap, Point, ResourceSpec
from neuronbench.plugins import Plugins
from neuronbench.protocols import BootContext, BootError, CompiledModel
from neuronbench.worker.batches import to_tensors
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.compiled import WorkerModel

PROJECT = Path(__file__).parent.parent.parent
BOOT_S = 280.0
MINILM = {
    "model": "packaged:all-MiniLM-L6-v2",
    "compiler_flags": {"aot_inductor.precompile_headers": False},  # half of a compile; of use where there are many
}


@dataclasses.dataclass
class Rig:
    """A provider with a real stack."""

    folder: Path
    plugins: Plugins
    settings: config.Settings

    def spec(self, **params: Any) -> ResourceSpec:
        point = Point(benchmark="b.py::f", lane="encoder", backend="cpu", params=FrozenMap(params), id="p")
        return self.plugins.provider("compiled_model/aoti-cpu").spec(point, self.plugins.backend("cpu"), self.settings)

    def boot(self, spec: ResourceSpec, name: str) -> WorkerModel:
        folder = self.folder / name
        folder.mkdir()
        context = BootContext(
            backend=self.plugins.backend("cpu"), settings=self.settings, folder=folder, deadline_s=BOOT_S,
            progress=lambda text: None, spawn=partial(processes.spawn, pid_dir=self.folder / "pids"),
        )  # fmt: skip
        model = self.plugins.provider(spec.provider).boot(spec, context)
        assert isinstance(model, WorkerModel)
        return model


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, workers_inherit: None) -> Rig:
    stack = os.environ.get("NEURONBENCH_TEST_STACK")
    folder = tmp_path_factory.mktemp("compiled")
    # The user's own cache: a compile takes half a minute. The key minds every source and version that matters.
    settings = config.load(PROJECT, overrides={"stacks": {"any": stack} if stack else {}})
    plugins = Plugins(entry_points=False)
    made = Rig(folder, plugins, dataclasses.replace(settings, data_root=folder))
    spec = made.spec(**MINILM)
    unsupported = plugins.provider(spec.provider).check(spec, plugins.backend("cpu"), made.settings)
    if unsupported is not None:
        pytest.skip(unsupported.reason)
    return made


@pytest.fixture(scope="module")
def minilm(rig: Rig) -> Iterator[WorkerModel]:
    model = rig.boot(rig.spec(**MINILM), "first")
    yield model
    model.stop()


def test_it_is_verified_and_its_facts_say_what_it_is(minilm: WorkerModel) -> None:
    assert isinstance(minilm, CompiledModel)
    artifact = minilm.facts["artifact"]
    assert artifact["model"]["architecture"] == "BertModel"
    assert artifact["model"]["weights"] == "pretrained"
    assert artifact["model"]["new"] == []
    assert artifact["bytes"] > 80_000_000  # the weights are in it
    assert minilm.facts["model"]["weights_digest"]
    assert minilm.facts["outputs"]["last_hidden_state"]["shape"] == [1, 128, 384]
    assert minilm.facts["worker"]["threads"] == 1
    # 22.7 M parameters, half of them embeddings: 2 operations per weight and token, and attention.
    assert 2.5e9 < minilm.floor.flops_per_call < 3e9
    metrics = {metric.key: metric for metric in minilm.boot_metrics}
    assert metrics["load_time_s"].value is not None
    assert metrics["graphs_graphs"].value == 1
    cold, warm = metrics["compile_time_cold_s"].value, metrics["compile_time_warm_s"].value
    assert (cold is None) == (artifact["cache"] == "hit")
    assert (warm is None) == (artifact["cache"] == "miss")


def test_its_outputs_are_those_of_the_reference_and_it_minds_its_mask(minilm: WorkerModel) -> None:
    lengths = [50]
    batch = minilm.batch(seed=1, lengths=lengths)
    answers, wanted = minilm.outputs(batch), minilm.reference(batch)
    assert answers.keys() == wanted.keys() == {"last_hidden_state", "pooler_output"}
    for name in wanted:
        assert np.abs(wanted[name]).max() > 0.1
        assert np.abs(answers[name] - wanted[name]).max() < 1e-3
    error = minilm.mask_error()
    assert error is not None
    assert error < 1e-4
    assert measure_gates.finite_gate([answers]).passed is True


SENTENCES = (
    "The ferry was cancelled because of the storm.", "Bad weather stopped the boat from sailing.",
    "My grandmother knits socks every winter.", "Each winter my nan makes woollen socks by hand.",
    "The printer ran out of ink.", "There is no more toner for printing.",
)  # fmt: skip


def test_its_tokenizer_works_in_the_stack_and_it_finds_what_means_the_same(minilm: WorkerModel) -> None:
    samples = accuracy.encode(minilm, SENTENCES, name="pairs", truth=[1, 0, 3, 2, 5, 4])
    ids, mask = samples.inputs["input_ids"], samples.inputs["attention_mask"]
    assert ids.shape == mask.shape == (6, 128)
    assert (ids[:, 0] == 101).all()  # BERT's own first and last token
    assert (ids * mask == ids).all()
    assert [int(row[count - 1]) for row, count in zip(ids, mask.sum(axis=1), strict=True)] == [102] * 6
    assert samples.protocol["truncated"] == 0
    assert accuracy.decode(minilm, [ids[4].tolist()]) == ["the printer ran out of ink."]
    measure = accuracy.Similarity()
    protocol = measure_accuracy.protocol_of(minilm, samples, measure)
    answers, mask_gate = measure_accuracy.answers_of(minilm, samples, protocol)
    reference = measure_accuracy.reference_of(minilm, samples, protocol)
    found = accuracy.compare(answers, reference, samples, measure, mask=mask_gate)
    assert {gate.id: gate.passed for gate in found.gates} == {
        "finite_outputs": True, "constant_rows": True, "outputs_distinct": True, "mask_respected": True,
        "accuracy": True, "accuracy_samples": False,
    }  # fmt: skip
    assert found.verdict.reference == 1
    assert mask_gate.observed < 1e-4
    metrics = {metric.key: metric.value for metric in found.metrics}
    assert (metrics["cosine_min"] or 0) > 0.9999
    assert (metrics["max_rel_err"] or 1) < 1e-3


def test_its_loops_pass_the_gates(minilm: WorkerModel) -> None:
    run = minilm.latency(calls=20, warmup=2)
    gates = {gate.id: gate for gate in measure_gates.run_gates(run, minilm)}
    assert gates["implausible"].passed is True
    assert gates["timer_escapes_device"].passed is True
    copies = minilm.throughput(seconds=1.0)
    assert len(copies.loops) == minilm.max_workers
    assert copies.calls >= minilm.max_workers
    assert {tuple(cores or ()) for cores in copies.cores.values()} == {
        tuple(compiled.cores_of(index, 1) or ()) for index in range(minilm.max_workers)
    }


def test_a_second_boot_compiles_nothing(rig: Rig, minilm: WorkerModel) -> None:
    cache = artifacts.ArtifactCache(rig.settings.cache_dir)
    before = len(cache.journal())
    again = rig.boot(rig.spec(**MINILM), "second")
    try:
        assert again.facts["artifact"]["cache"] == "hit"
        assert again.facts["artifact"]["key"] == minilm.facts["artifact"]["key"]
        assert [event["event"] for event in cache.journal()[before:]] == ["hit"]
        assert np.array_equal(again.outputs()["pooler_output"], minilm.outputs()["pooler_output"])
    finally:
        again.stop()
    assert not (rig.folder / "second" / "scratch").exists()
    assert [path.name for path in (rig.folder / "second").iterdir() if path.suffix != ".log"] == []


def test_a_flag_the_compiler_does_not_know_is_a_classified_failure(rig: Rig) -> None:
    small = rig.spec(
        architecture={"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "intermediate_size": 32, "vocab_size": 50, "max_position_embeddings": 16},
        weights="seeded", sequence_length=8, compiler_flags={"cpp.no_such_flag": 1},
    )  # fmt: skip
    with pytest.raises(BootError) as caught:
        rig.boot(small, "broken")
    failure = caught.value.failure
    assert failure.kind in ("worker_exception", "compile_error")
    assert "no_such_flag" in failure.causal_line + failure.message + failure.traceback
    key = artifacts.key_of(
        compiled.key_parts(
            small.settings,
            rig.plugins.backend("cpu").stack("compile", rig.settings),
            {"architecture": small.settings["architecture"], "weights": "seeded", "seed": 0},
        )
    )
    cache = artifacts.ArtifactCache(rig.settings.cache_dir)
    assert cache.failure(key) is not None
    (cache.folder / f"{key}.failure.json").unlink()


TINY = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "vocab_size": 100, "max_position_embeddings": 32,
}  # fmt: skip


def test_seeded_weights_are_the_same_in_every_process_and_classification_gives_scores(rig: Rig) -> None:
    stack = rig.plugins.backend("cpu").stack("compile", rig.settings)
    given = rig.spec(architecture=TINY, weights="seeded").settings
    launch = Launch(
        python=stack.python, handlers=compiled.HANDLERS, module=compiled.MODULE,
        env=compiled.environment(given, rig.folder), arguments={"threads": 1, "family": "encoder"},
    )  # fmt: skip
    batch = {
        "input_ids": np.arange(16, dtype="int64").reshape(2, 8),
        "attention_mask": np.ones((2, 8), dtype="int64"),
    }
    answers = []
    for seeds in ((1,), (1, 2)):
        worker = Worker.start(
            launch, name="seeded", folder=rig.folder, spawn=partial(processes.spawn, pid_dir=rig.folder / "pids"),
            deadline_s=120,
        )  # fmt: skip
        try:
            for seed in seeds:
                arguments = {
                    "source": {"architecture": TINY, "weights": "seeded", "seed": seed},
                    "task": "sequence_classification",
                    "shape": {"batch_size": 2, "sequence_length": 8, "num_labels": 3},
                }
                reply = worker.call("reference", arguments, inputs=to_tensors(batch), deadline_s=120)
                answers.append(reply.tensors["logits"].numpy())
        finally:
            worker.stop()
    assert answers[0].shape == (2, 3)
    assert np.array_equal(answers[0], answers[1])
    assert not np.allclose(answers[0], answers[2])
