"""Models with random weights: the same bytes from the same seed, as many as were counted, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import FakeHub

pytest.importorskip("neuronbench_moe", reason="plugins/moe is not installed: make harness")

from neuronbench_moe import control, seeded, serving, shape
from neuronbench_moe.models import ModelProvider
from neuronbench_moe.router import RouterProvider

from neuronbench import Gate, modelfiles
from neuronbench.model import FrozenMap, Point

SMALL: dict[str, Any] = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 40, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [1],
}  # fmt: skip


@pytest.mark.parametrize("arm", control.ARMS)
def test_what_is_written_is_what_was_counted(arm: str, tmp_path: Path) -> None:
    config = control.config_of(SMALL, arm)
    path = tmp_path / "model.safetensors"
    assert seeded.write(config, path, seed=1) == shape.of(config).total
    header = modelfiles.safetensors_header(path)
    names = [name for name in header if name != "__metadata__"]
    assert ("model.layers.0.mlp.experts.3.down_proj.weight" in names) == (arm == "moe")
    assert "model.layers.1.mlp.up_proj.weight" in names, "a layer without experts has one feed-forward part"
    assert "lm_head.weight" in names
    assert path.stat().st_size == header[names[-1]]["data_offsets"][1] + 8 + int.from_bytes(
        path.read_bytes()[:8], "little"
    )


def test_the_same_seed_has_the_same_bytes_and_another_others(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abc"]
    for path, seed in zip(files, (1, 1, 2), strict=True):
        seeded.write(SMALL, path, seed)
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()


def test_values_are_normal_norms_are_ones_and_the_router_is_wide() -> None:
    def values(name: str) -> Any:
        bits = np.frombuffer(seeded.draw(name, (200, 100), 7), dtype="<u2").astype("<u4") << 16
        return bits.view("<f4")

    assert values("model.layers.0.mlp.up_proj.weight").std() == pytest.approx(seeded.DEVIATION, rel=0.05)
    assert values("model.layers.0.mlp.gate.weight").std() == pytest.approx(seeded.WIDE * seeded.DEVIATION, rel=0.05)
    assert set(values("model.layers.0.self_attn.q_norm.weight")) == {1.0}
    assert not np.array_equal(values("a.weight"), values("b.weight")), "each name has a stream of its own"


def test_rounding_to_bfloat16_is_to_the_nearest() -> None:
    draws = np.random.Generator(np.random.PCG64([3, 0])).standard_normal(4, dtype="float32")
    assert np.isfinite(draws).all()
    name, count = "x.weight", 5000
    bits = np.frombuffer(seeded.draw(name, (count,), 3), dtype="<u2").astype("<u4") << 16
    import hashlib

    stream = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    exact = np.random.Generator(np.random.PCG64([3, stream])).standard_normal(count, dtype="float32") * seeded.DEVIATION
    error = np.abs(bits.view("<f4") - exact) / np.abs(exact)
    assert error.max() <= 2**-8, "half of the last of 8 bits"
    assert abs((bits.view("<f4") - exact).mean()) < 1e-6, "cutting off would pull all towards zero"


def spec_of(provider: Any, **params: Any) -> Any:
    class Hardware:
        class info:
            name = "cpu"

        def stack(self, kind: str, settings: Any) -> None:
            raise LookupError(f"no stack for {kind}")

    point = Point(benchmark="b.py::f", lane="moe", backend="cpu", params=FrozenMap(params), id="p")
    backend: Any = Hardware()
    return provider.check(provider.spec(point, backend, None), backend, None)


class Info:
    name, kind = "moe_model/transformers", "moe_model"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "architecture: expected a table"),
        ({"architecture": SMALL, "weights": "trained"}, "weights: expected one of seeded, dummy, pretrained"),
        ({"architecture": SMALL, "weights_seed": -1}, "weights_seed: expected a whole number from 0"),
        ({"architecture": {**SMALL, "model_type": "mixtral"}}, "seeded weights: expected one of qwen3_moe, qwen3"),
        ({"weights": "pretrained"}, "has no `model`"),
        ({"weights": "pretrained", "model": "hub:a/b", "arm": "dense_active"}, "a dense control has no pretrained"),
    ],
)
def test_models_that_cannot_be_made_are_refused(params: dict[str, Any], said: str) -> None:
    info: Any = Info()
    assert said in spec_of(ModelProvider(info), **params).reason


def test_routers_that_cannot_be_asked_are_refused() -> None:
    provider = RouterProvider(Info())  # type: ignore[arg-type]
    assert "the server draws them" in spec_of(provider, architecture=SMALL, weights="dummy").reason
    assert "a dense model has no router" in spec_of(provider, architecture=SMALL, arm="dense_total").reason
    assert "no stack for compile" in spec_of(provider, architecture=SMALL).reason
    assert spec_of(ModelProvider(Info()), architecture=SMALL) is None  # type: ignore[arg-type]


FETCHING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from neuronbench import PointFailure, config
from neuronbench.stacks import Stack
from neuronbench_moe.models import obtain

for family, reference in (("neuron", "hub:org/name"), ("cpu", sys.argv[2]), ("neuron", sys.argv[2])):
    stack = Stack(kind="serving", python=Path(sys.executable), source="")
    backend = SimpleNamespace(info=SimpleNamespace(family=family), stack=lambda kind, settings: stack)
    context = SimpleNamespace(
        backend=backend, settings=config.load(Path(sys.argv[1])), progress=lambda text: None, spawn=None
    )
    boot = SimpleNamespace(
        given={"weights": "pretrained", "model": reference}, context=context, left_s=lambda: 30.0, spec=None,
        stack=lambda kind: stack,
    )
    try:
        print("loaded", obtain(boot).shape.hidden)
    except PointFailure as error:
        print(error.failure.kind, error.failure.message)
"""


def test_a_shape_that_kernels_refuse_is_known_before_its_weights_are_fetched(tmp_path: Path) -> None:
    odd = {**SMALL, "hidden_size": 2880, "mlp_only_layers": []}
    local = tmp_path / "local"
    local.mkdir()
    for name, text in (("config.json", json.dumps(odd)), ("tokenizer.json", "{}")):
        (local / name).write_text(text, encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env |= {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    with FakeHub({"config.json": json.dumps(odd).encode(), "model.safetensors": b"never asked for"}) as hub:
        done = subprocess.run(
            [sys.executable, "-c", FETCHING, str(tmp_path), f"file:{local}"], env={**env, "HF_ENDPOINT": hub.url},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    told = done.stdout.splitlines()
    assert [line.split()[0] for line in told] == ["shape_unsupported", "loaded", "shape_unsupported"], done.stderr
    assert "hidden_size 2880: kernels for experts on Neuron need a multiple of 128" in told[0]
    assert [path for path in hub.asked if path.endswith("config.json")]
    assert not [path for path in hub.asked if "safetensors" in path]


class Notebook:
    """Stands for `measure`: keeps what it is told."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}
        self.gates: dict[str, Gate] = {}

    def metric(self, id: str, value: float | None, *, stat: str = "", n: int = 1, note: str = "") -> None:
        assert value is not None or note, f"{id} is null and does not say why"
        self.metrics["_".join(filter(None, (id, stat)))] = value

    def gate(self, gate: Gate) -> None:
        self.gates[gate.id] = gate


def test_a_mixture_without_a_control_is_provisional() -> None:
    alone, beside = Notebook(), Notebook()
    serving._beside(alone, 50.0, {"dense_active": None, "dense_total": None})
    assert alone.metrics == {"vs_dense_active": None, "vs_dense_total": None}
    assert (alone.gates["control_measured"].passed, alone.gates["control_measured"].severity) == (False, "provisional")
    serving._beside(beside, 50.0, {"dense_active": serving.Rate(value=100.0), "dense_total": None})
    assert beside.metrics == {"vs_dense_active": 0.5, "vs_dense_total": None}
    assert all(beside.gates[name].passed for name in ("control_measured", "control_clean", "plausible_ratio"))


def test_a_ratio_is_worth_what_its_control_is() -> None:
    found = Notebook()
    gates = [
        Gate(id="host_contended", passed=False, severity="provisional"),
        Gate(id="samples", passed=False, severity="info"),
        Gate(id="client_cpu", passed=True), Gate(id="steady_state", passed=None),
    ]  # fmt: skip
    held_up = serving.Rate(value=8.0, against=serving._against(gates))
    serving._beside(found, 48.0, {"dense_active": held_up, "dense_total": serving.Rate(value=40.0)})
    assert found.gates["control_clean"].passed is False
    assert "dense_active: host_contended)" in found.gates["control_clean"].message
    assert found.gates["plausible_ratio"].passed is False, "six times as fast as the same computation"


def test_a_control_of_other_parameters_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Notebook(), Notebook()
    wide = {**SMALL, "hidden_size": 512, "vocab_size": 4000, "moe_intermediate_size": 512, "mlp_only_layers": []}
    serving._control(good, wide, "dense_active")
    assert good.gates["control_equal"].passed
    serving._control(bad, json.loads(json.dumps(SMALL)), "dense_active")  # too small for multiples of 16
    assert bad.gates["control_equal"].passed is False
    assert bad.gates["control_equal"].severity == "invalid"


def test_rates_of_one_session_are_not_those_of_the_next() -> None:
    first = serving.session_of("one")
    assert first.rates == {}
    assert first.rates is not None
    first.rates["x",] = serving.Rate(value=1.0)
    assert serving.session_of("one").rates == {("x",): serving.Rate(value=1.0)}
    assert serving.session_of("two").rates == {}
