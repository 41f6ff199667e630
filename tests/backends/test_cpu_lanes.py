"""Lanes of compiled models without torch: what their grids ask for can be compiled here, or is refused and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuronbench import compiled, config, grid
from neuronbench.backends.cpu.compiled import AotiCpuProvider
from neuronbench.definitions import DEFINITIONS
from neuronbench.model import FrozenMap, Metric
from neuronbench.plugins import Plugins

PROJECT = Path(__file__).parent.parent.parent
GRIDS = PROJECT / "benchmarks" / "grids"
LANES = ("encoder", "seq2seq", "embedding", "vision", "asr")


def points(lane: str, size: str) -> list[tuple[str, FrozenMap]]:
    return [
        (path.stem, point.params)
        for path in sorted((GRIDS / lane).glob("*.toml"))
        for point in grid.load(path).expand("cpu", size)
    ]


def settings_of(params: FrozenMap) -> FrozenMap:
    return FrozenMap({name: params.get(name, default) for name, default in compiled.DEFAULTS.items()})


@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("lane", LANES)
def test_every_point_of_the_grids_is_well_formed(lane: str, size: str) -> None:
    found = points(lane, size)
    assert found
    plugins, settings = Plugins(entry_points=False), config.load(PROJECT, environ={})
    provider = plugins.provider("compiled_model/aoti-cpu")
    assert isinstance(provider, AotiCpuProvider)
    for name, params in found:
        given = settings_of(params)
        wrong = compiled.wrong_settings(given) or provider.wrong(given, plugins.backend("cpu"), settings)
        if (lane, name) == ("seq2seq", "aws_docs"):
            assert wrong.startswith("tp_degree 8")
        else:
            assert wrong == "", (name, params)


@pytest.mark.parametrize("lane", LANES)
def test_quick_points_need_no_hub(lane: str) -> None:
    for name, params in points(lane, "quick"):
        if name != "aws_docs":
            model = params.get("model")
            assert model is None or model.startswith("packaged:"), name
            assert model or params["weights"] == "seeded", name


@pytest.mark.parametrize("lane", LANES)
def test_headlines_of_a_lane_are_metrics_with_a_definition(lane: str) -> None:
    info = Plugins(entry_points=False).lanes[lane]
    keys = {
        Metric(id=definition.id, value=None, unit=definition.unit, stat=stat).key
        for definition in DEFINITIONS.values()
        for stat in ("", "p50", "p99")
    }
    assert set(info.headline) <= keys
    assert info.needs == ("compiled_model",)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"weights": "pretrained", "seed": None, "new": []}, "real"),
        ({"weights": "seeded", "seed": 7, "new": []}, "random (seed 7)"),
        ({"weights": "pretrained", "seed": 0, "new": ["head"]}, "real, but for random (seed 0): head"),
    ],
    ids=["real", "random", "head"],
)  # fmt: skip
def test_what_kind_of_weights_it_has_is_said_in_words(made: dict[str, Any], said: str) -> None:
    assert compiled.weights_in_words(made) == said


def test_a_published_model_with_seeded_weights_needs_no_look_up() -> None:
    given = {**compiled.DEFAULTS, "model": "hub:bert-large-cased", "weights": "seeded"}
    architecture, note = compiled.seeded_architecture(given)
    assert architecture is not None
    assert architecture["num_hidden_layers"] == 24
    assert "random" in note
    assert "bert-large-cased" in note
    assert compiled.seeded_architecture({**given, "model": "org/unknown"})[0] is None  # its folder must be found
    assert compiled.seeded_architecture({**given, "weights": "pretrained"}) == (None, "")
    own = {"model_type": "bert"}
    assert compiled.seeded_architecture({**given, "model": None, "architecture": own})[0] == own
