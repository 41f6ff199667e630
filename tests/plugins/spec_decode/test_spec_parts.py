"""The lane's parts: what a point may ask for, prompts, the draft that is cut out of the served model, the asking."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuronbench import Point, PointFailure, ResourceSpec, modelfiles
from neuronbench.model import FrozenMap
from neuronbench.testing.truth.process import TruthServer

pytest.importorskip("neuronbench_spec_decode", reason="plugins/spec_decode is not installed: make harness")

from neuronbench_spec_decode import asking, prompts, shallow
from neuronbench_spec_decode.counters import Reader, disagreement
from neuronbench_spec_decode.host import CpuTimes
from neuronbench_spec_decode.plan import Drafter, Plan
from neuronbench_spec_decode.run import planned

PARAMS: dict[str, Any] = {
    "ks": [0, 2, 4], "drafter": "ngram", "rounds": 2, "prompts": 2, "prompt_tokens": 96, "output_tokens": 48,
    "drafters": {"ngram": {"method": "ngram", "prompt_lookup_max": 4}}, "engine_args": {"seed": 1},
}  # fmt: skip


def point(**changed: Any) -> Point:
    return Point(
        benchmark="b.py::f", lane="spec_decode", backend="cpu", params=FrozenMap({**PARAMS, **changed}), id="p"
    )  # fmt: skip


# -- plan


def test_the_ladder_goes_up_and_down() -> None:
    plan = Plan.of(point(rounds=3))
    assert plan.legs == [(0, 0), (0, 2), (0, 4), (1, 4), (1, 2), (1, 0), (2, 0), (2, 2), (2, 4)]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ks": [2, 4]}, "ks: expected draft lengths that rise from 0"),
        ({"ks": [0]}, "ks: expected"),
        ({"ks": [0, 4, 2]}, "ks: expected"),
        ({"ks": [0, True]}, "ks: expected"),
        ({"ks": "[0"}, r"--nb-set ks=0-2-4; found '\[0'"),
        ({"ks": 2}, "found 2"),
        ({"categories": "poems"}, "categories: expected some of code, chat, summarise, repeat, found 'poems'"),
        ({"prompts": 5}, "prompts: expected 1 to 4 of each category, found 5"),
        ({"categories": []}, "categories: expected some of"),
        ({"drafter": "ngrm"}, "drafter: expected one of ngram, found 'ngrm'"),
        ({"drafters": {"ngram": {"model": "x"}}}, "drafters.ngram: expected a table with a `method`"),
        ({"drafters": {"ngram": {"method": "draft_model", "model": "shallow:x"}}}, "a number of layers to leave out"),
        ({"judged": -1}, "judged: expected a whole number from 0, found -1"),
        ({"rounds": 0}, "rounds: expected a whole number from 1, found 0"),
        ({"output_tokens": 1}, "output_tokens: expected a whole number from 2"),
    ],
)
def test_what_cannot_be_meant_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Plan.of(point(**changed))
    with pytest.raises(PointFailure, match=words) as caught:
        planned(point(**changed))
    assert (caught.value.failure.kind, caught.value.failure.phase) == ("bad_parameters", "boot")
    assert "--nb-set" in caught.value.failure.remedy


def test_a_ladder_may_be_given_on_a_command_line() -> None:
    plan = planned(point(ks="0-1-3", categories="chat-repeat"))
    assert (plan.ks, plan.categories) == ((0, 1, 3), ("chat", "repeat"))
    assert planned(point(categories="code")).categories == ("code",)


def test_a_provider_is_told_by_its_own_parameter_or_among_vllms_arguments() -> None:
    plan = Plan.of(point())
    config = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4}
    assert plan.drafter.changes(0, "", point=point(), known={}) == {}
    assert plan.drafter.changes(2, "", point=point(), known={"model": ""}) == {
        "engine_args": {"seed": 1, "speculative_config": config}
    }
    assert plan.drafter.changes(2, "", point=point(), known={"speculative_config": None}) == {
        "speculative_config": config
    }


def test_other_parameters_follow_the_draft_length() -> None:
    settings = {"neuron_config": {"spec": "{k}", "deeper": {"length": "{k+1}"}, "as": "it {k} is"}}
    drafter = Drafter.of("d", {"method": "eagle3", "model": "hub:a/b", "settings": settings, "extra": 1})
    asked = point(neuron_config={"enable_x": True})
    assert drafter.changes(3, "/draft", point=asked, known={"speculative_config": None}) == {
        "neuron_config": {"enable_x": True, "spec": 3, "deeper": {"length": 4}, "as": "it {k} is"},
        "speculative_config": {"method": "eagle3", "model": "/draft", "num_speculative_tokens": 3, "extra": 1},
    }


@pytest.mark.parametrize("backend", ["trn1", "trn2", "inf2"])
def test_neurons_provider_takes_what_its_grid_says(backend: str) -> None:
    """Its own parameter, and none that it decides itself."""
    neuron = pytest.importorskip("neuronbench_neuron.serving.settings")
    from neuronbench_spec_decode import LANE

    from neuronbench import grid
    from neuronbench.lane_benchmarks import grid_dirs

    (folder,) = grid_dirs([LANE])
    for each in grid.load(folder / "spec_decode" / "ladder.toml").expand(backend, "full"):
        asked = replace(point(), params=each.params)
        plan = Plan.of(asked)
        changes = plan.drafter.changes(plan.ks[-1], "/draft", point=asked, known=neuron.DEFAULTS)
        assert changes["speculative_config"]["num_speculative_tokens"] == plan.ks[-1]
        settings = FrozenMap({**neuron.DEFAULTS, **each.params, **changes, "served_model": "m"})
        assert neuron.wrong(settings) == ""


# -- prompts


def framed(text: str, asked: bool) -> list[int]:
    """A byte a token, after a mark, and within a frame of its own where it is asked."""
    return [1000, *([1001, 1002, *text.encode(), 1003] if asked else text.encode())]


def test_prompts_end_as_their_texts_do_and_are_equally_long() -> None:
    asked, warm = prompts.cut(framed, categories=["chat", "repeat"], each=2, tokens=40)
    assert [each.name for each in asked] == ["chat/1", "chat/2", "repeat/1", "repeat/2"]
    assert {len(each.ids) for each in asked} == {40} == {len(warm)}
    assert asked[0].ids[:3] == (1000, 1001, 1002)
    assert bytes(asked[0].ids[3:-1]).decode() == prompts.texts("chat")[0][-36:]
    assert asked[0].ids[-1] == 1003
    assert asked[2].ids[0] == warm[0] == 1000
    assert bytes(asked[2].ids[1:]).decode() == prompts.texts("repeat")[0][-39:]
    assert warm not in {each.ids for each in asked}


def test_texts_are_enough_and_long_enough() -> None:
    for category in prompts.CATEGORIES:
        found = prompts.texts(category)
        assert len(found) == len(set(found)) == 4
        # the full grid's 128 tokens are there with any tokenizer that makes a token of four letters or fewer
        assert min(map(len, found)) >= 128 * 4


def test_too_few_or_too_short_texts_are_refused() -> None:
    def encode(text: str, asked: bool) -> list[int]:
        return [7, 7, *text.encode()][:20]

    with pytest.raises(ValueError, match="prompts: expected 1 to 4 of each category, found 5"):
        prompts.cut(encode, categories=["chat"], each=5, tokens=10)
    with pytest.raises(ValueError, match="prompt_tokens: expected 3 to 20, all that chat/1 has; found 21"):
        prompts.cut(encode, categories=["chat"], each=1, tokens=21)
    with pytest.raises(ValueError, match="expected 3 to 20, all that chat/1 has; found 2"):
        prompts.cut(encode, categories=["chat"], each=1, tokens=2)
    with pytest.raises(ValueError, match="expected some of code, chat"):
        prompts.texts("chats")


# -- a draft model


def make_model(folder: Path, *, layers: int, files: int = 1) -> dict[str, bytes]:
    """A model of the real form whose tensors are their own names; returns them."""
    folder.mkdir()
    config = {"model_type": "llama", "num_hidden_layers": layers, "layer_types": [f"kind{n}" for n in range(layers)]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    names += [f"model.layers.{n}.{part}.weight" for n in range(layers) for part in ("mlp", "attn")]
    tensors = {name: name.encode() * (3 + index) for index, name in enumerate(names)}
    for file in range(files):
        header, data = {}, b""
        for name in names[file::files]:
            header[name] = {"dtype": "U8", "shape": [len(tensors[name])],
                            "data_offsets": [len(data), len(data) + len(tensors[name])]}  # fmt: skip
            data += tensors[name]
        text = json.dumps(header).encode()
        (folder / f"model-{file}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return tensors


@pytest.mark.parametrize("files", [1, 3])
def test_a_draft_has_the_layers_that_stay_byte_for_byte(tmp_path: Path, files: int) -> None:
    tensors = make_model(tmp_path / "served", layers=6, files=files)
    made = shallow.obtain(
        tmp_path / "served", "digest", 2, cache_dir=tmp_path / "cache", progress=lambda text: None, deadline_s=10
    )  # fmt: skip
    assert not made.hit
    assert made.facts == {"layers": 4, "of_layers": 6, "kept": ["0", "1", "2", "5"], "tensors": 11}
    (file,) = made.folder.glob("*.safetensors")
    header = modelfiles.safetensors_header(file)  # which checks the sizes
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    assert begin % 8 == 0
    found = {
        name: content[begin + one["data_offsets"][0] : begin + one["data_offsets"][1]] for name, one in header.items()
    }
    kept = dict(enumerate((0, 1, 2, 5)))
    wanted = {
        (name := f"model.layers.{new}.{part}.weight"): tensors[name.replace(f".{new}.", f".{old}.")]
        for new, old in kept.items() for part in ("mlp", "attn")
    }  # fmt: skip
    wanted |= {name: data for name, data in tensors.items() if ".layers." not in name}
    assert found == wanted
    config = json.loads((made.folder / "config.json").read_text())
    assert config["num_hidden_layers"] == 4
    assert config["layer_types"] == ["kind0", "kind1", "kind2", "kind5"]
    assert (made.folder / "tokenizer.json").is_file()
    again = shallow.obtain(
        tmp_path / "served", "digest", 2, cache_dir=tmp_path / "cache", progress=lambda text: None, deadline_s=10
    )  # fmt: skip
    assert (again.hit, again.folder) == (True, made.folder)
    assert hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(content).digest()


@pytest.mark.parametrize("drop", [0, 5, 6])
def test_a_draft_keeps_two_layers_at_least(tmp_path: Path, drop: int) -> None:
    make_model(tmp_path / "served", layers=6)
    with pytest.raises(ValueError, match="shallow: expected 1 to 4 layers to leave out of 6"):
        shallow.cut(tmp_path / "served", tmp_path, drop)


def test_a_model_without_layers_that_can_be_told_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path / "served", layers=6)
    for file in (tmp_path / "served").glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ValueError, match="none of its tensors is of a layer"):
        shallow.cut(tmp_path / "served", tmp_path, 1)


# -- asking


class There:
    """As much of an endpoint as is asked."""

    api_key = None
    spec = ResourceSpec(kind="endpoint", backend="fake", provider="endpoint/fake", settings=FrozenMap())

    def __init__(self, server: TruthServer, model: str) -> None:
        self.base_url, self.model = server.url, model


def test_an_answer_carries_its_tokens_and_agrees_with_the_counters() -> None:
    with TruthServer(ttft_ms=5) as server:
        there: Any = There(server, "truth:speculate,drafted=4,kept=3-0-x,step_ms=2")
        ids = asking.tokenize(there, "some words to begin with", asked=False, timeout_s=10)
        framed = asking.tokenize(there, "some words to begin with", asked=True, timeout_s=10)
        assert len(framed) > len(ids)
        assert [token for token in framed if token in ids] == ids[1:]
        reader = Reader(f"{server.url}/metrics")
        before = reader.read()
        found = asking.ask(there, ids, tokens=12, timeout_s=10)
        counted = reader.after(before, 12)
        reader.close()
        assert found.sizes == (1, 4, 1, 1, 4, 1)
        assert found.tokens == tuple(range(12))
        assert found.counted == 12
        assert found.prompt_tokens == len(ids) == 6
        assert (counted.generated, counted.drafts, counted.drafted, counted.kept) == (12, 4, 16, 6)
        assert counted.kept_at == (2, 2, 2, 0)
        assert disagreement(found, counted, 4) == ""
        assert found.sent_ns < found.chunks_ns[0] < found.chunks_ns[-1]


def test_a_server_without_ids_is_told_apart_from_one_that_fails() -> None:
    from neuronbench.serving.http import TimedLines

    lines = [(1, b'data: {"choices":[{"text":"a"}]}\n'), (2, b"data: [DONE]\n")]
    with pytest.raises(asking.NoTokens, match="no `token_ids`"):
        asking.read(TimedLines(status=200, sent_ns=0, lines=lines))
    with pytest.raises(ValueError, match="the engine died"):
        asking.read(TimedLines(status=200, sent_ns=0, lines=[(1, b'data: {"error":"the engine died"}\n')]))
    one = [(1, b'data: {"choices":[{"text":"a","token_ids":[4]}]}\n')]
    with pytest.raises(ValueError, match="expected an answer of several chunks, found 1"):
        asking.read(TimedLines(status=200, sent_ns=0, lines=one))
    with pytest.raises(ValueError, match="does not say how many tokens"):
        asking.read(TimedLines(status=200, sent_ns=0, lines=[*one, *one]))


def test_counters_of_nobody_are_unknown() -> None:
    assert Reader(None).read().generated is None
    assert Reader("http://127.0.0.1:9/metrics").read().generated is None


def test_what_others_use_of_the_host_is_what_is_left() -> None:
    before = CpuTimes(at=10.0, host=100.0, server=40.0, own=5.0)
    after = CpuTimes(at=20.0, host=118.0, server=50.0, own=6.0)
    assert after.others_pct(before) == pytest.approx(70.0)
    assert replace(after, host=105.0).others_pct(before) == 0.0
    assert replace(after, server=None).others_pct(before) is None
