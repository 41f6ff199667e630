"""Routers of real models, by transformers in a stack, beside the same computed with numpy alone.

Needs a stack (`make stack`), else it is skipped with the reason; `NEURONBENCH_TEST_STACK` names one to use instead of
`.venv-cpu` beside the project.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("neuronbench_moe", reason="plugins/moe is not installed: make harness")

from neuronbench_moe import routing, seeded, shape
from neuronbench_moe.router import HANDLERS

from neuronbench.processes import spawn
from neuronbench.protocols import PointFailure
from neuronbench.stacks import clean_environment
from neuronbench.worker.batches import to_tensors
from neuronbench.worker.boot import OFFLINE
from neuronbench.worker.client import Launch, Worker

STACK = Path(os.environ.get("NEURONBENCH_TEST_STACK") or Path(__file__).parents[3] / ".venv-cpu")
PYTHON = STACK / "bin" / "python" if STACK.is_dir() else STACK
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 60, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [1],
    "norm_topk_prob": True, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "dtype": "bfloat16",
}  # fmt: skip
DEADLINE_S = 280.0


def tensor(name: str, dims: tuple[int, ...]) -> Any:
    """As it is written: seeded, but nothing is added to a token's embedding on its way through the layers."""
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return np.zeros(dims, dtype="<f4")
    return (np.frombuffer(seeded.draw(name, dims, 4), dtype="<u2").astype("<u4") << 16).view("<f4").reshape(dims)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("router") / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    drawn = seeded.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            seeded, "draw",
            lambda name, dims, seed: (tensor(name, dims).view("<u4") >> 16).astype("<u2").tobytes()
            if name.endswith(("o_proj.weight", "down_proj.weight")) else drawn(name, dims, seed),
        )  # fmt: skip
        seeded.write(CONFIG, made / "model.safetensors", seed=4)
    return made


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Worker]:
    if not PYTHON.is_file():
        pytest.skip(f"no stack: {PYTHON} is not there (make stack)")
    launch = Launch(
        python=PYTHON, handlers=HANDLERS, module="router", env={**clean_environment(), **OFFLINE},
        arguments={"folder": str(folder)},
    )  # fmt: skip
    started = Worker.start(
        launch, name="router", folder=folder.parent, spawn=partial(spawn, pid_dir=folder.parent / "pids"),
        deadline_s=DEADLINE_S,
    )  # fmt: skip
    yield started
    started.stop()


def test_a_real_router_says_what_numpy_says(worker: Worker) -> None:
    rows = np.array([[3, 59, 7, 7, 20], [1, 2, 3, 4, 5], [0, 0, 9, 9, 0]], dtype="int64")
    told = worker.call("reference", inputs=to_tensors({"input_ids": rows}), deadline_s=DEADLINE_S)
    found = told.tensors["logits"].numpy()
    assert found.shape == (2, 3, 5, 8), "two of three layers have experts"
    embedded = tensor("model.embed_tokens.weight", (60, 32))[rows]
    normed = embedded / np.sqrt((embedded**2).mean(-1, keepdims=True) + 1e-6)
    wanted = np.stack([normed @ tensor(f"model.layers.{layer}.mlp.gate.weight", (8, 32)).T for layer in (0, 2)])
    assert np.abs(found - wanted).max() < 1e-4
    assert np.array_equal(routing.chosen(found, 2), routing.chosen(wanted, 2))
    used = np.bincount(routing.chosen(wanted, 2)[0].ravel(), minlength=8)
    assert routing.Routed.of(found, 2).shares[0].tolist() == pytest.approx(used / used.sum())


def test_the_framework_has_the_parameters_that_were_counted(worker: Worker) -> None:
    told: Any = worker.call("facts", deadline_s=DEADLINE_S).value
    assert told["parameters"] == shape.of(CONFIG).total
    assert told["kind"] == "qwen3_moe"


def test_random_tokens_are_of_the_vocabulary_and_of_the_seed(worker: Worker) -> None:
    def ask(seed: int) -> Any:
        return worker.call("random_tokens", {"sequences": 4, "length": 50, "seed": seed}, deadline_s=DEADLINE_S).value

    first = ask(1)
    assert np.shape(first) == (4, 50)
    assert 0 <= np.min(first) <= np.max(first) < 60
    assert first == ask(1) != ask(2)


def test_what_is_no_sequence_of_tokens_is_refused_and_the_worker_lives_on(worker: Worker) -> None:
    with pytest.raises(PointFailure, match="expected int64, found float32"):
        worker.call(
            "reference", inputs=to_tensors({"input_ids": np.zeros((1, 4), dtype="float32")}), deadline_s=DEADLINE_S
        )
    assert worker.alive()
