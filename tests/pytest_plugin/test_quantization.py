"""The lane `quantization`: an option that changes nothing is found out, one that is refused says why, and int8 weights
are what was said of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench import Gate, grid, modelfiles

ROOT = Path(__file__).parents[2]
LANE = ROOT / "benchmarks" / "quantization"
sys.path.insert(0, str(LANE))

import int8_weights  # noqa: E402
import quantized_forms as forms  # noqa: E402

GRID = """
[settings]
model = "truth"
dtype = "float32"
concurrency = 2
input_tokens = 16
output_tokens = 8
window_s = 1.5
try_refused = false
prompts = 2
prompt_tokens = 4
accuracy_tokens = 4
likelihoods = false
[settings.options.early]
ttft_ms = 21
[settings.options.none]
[settings.options.again]
[settings.options.ignored.engine_args]
kv_cache_dtype = "fp8"
[settings.options.effective]
scenario = "speculate,differs_at=3,drafted=0"
[settings.options.missing.engine_args]
quantization = "fp8"
[settings.refused]
missing = "there is no kernel for it"
[axes]
option = ["early", "none", "ignored", "effective", "missing", "again"]
[sizes.quick.settings]
window_s = 1.5
"""


def run(folder: Path) -> tuple[dict[str, Any], str]:
    """Records of a run on the truth server, by option; and what pytest printed."""
    shutil.copytree(LANE, folder / "benchmarks" / "quantization", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "benchmarks" / "serving").mkdir()
    shutil.copy(ROOT / "benchmarks" / "serving" / "passages.txt", folder / "benchmarks" / "serving")
    grids = folder / "benchmarks" / "grids" / "quantization"
    grids.mkdir(parents=True)
    (grids / "served.toml").write_text(GRID, encoding="utf-8")
    (folder / "pyproject.toml").write_text("[tool.pytest]\nneuronbench = true\nstrict = true\n", encoding="utf-8")
    (folder / "conftest.py").write_text(
        "import neuronbench\nfrom neuronbench.testing.fake_backend import register_backends, register_resources\n",
        encoding="utf-8",
    )
    asked = ["-m", "fake and quantization", "-rs", "-p", "no:cacheprovider", "--nb-tracking-uri", "off"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "benchmarks", *asked], cwd=folder, capture_output=True, text=True, timeout=280
    )
    records = [json.loads(path.read_text("utf-8")) for path in folder.glob("mlruns/receipts/*/*/record.json")]
    return {r["point"]["params"]["option"]: r for r in records if r["kind"] == "point"}, done.stdout + done.stderr


def gates(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {gate["id"]: gate for gate in record["gates"]}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    return run(tmp_path_factory.mktemp("quantization"))


def test_an_option_that_changes_nothing_is_invalid(ran: tuple[dict[str, Any], str]) -> None:
    records, said = ran
    found = gates(records["ignored"])["no_effect"]
    assert (found["passed"], found["severity"]) == (False, "invalid"), said
    assert "greedy tokens" in found["message"]
    assert records["ignored"]["validity"] == "invalid"
    assert records["ignored"]["metrics"]["changed_tokens_share"]["value"] == 0


def test_one_that_changes_the_tokens_is_not(ran: tuple[dict[str, Any], str]) -> None:
    records, _ = ran
    assert gates(records["effective"])["no_effect"]["passed"] is True
    changed = records["effective"]["metrics"]["changed_tokens_share"]
    assert changed["value"] == pytest.approx(1 - 3 / forms.PROBE_OUTPUT), "all from the third on"
    assert changed["n"] == forms.PROBES * forms.PROBE_OUTPUT
    assert records["effective"]["metrics"]["vs_unquantized_output_throughput_tok_s"]["value"] > 0


def test_the_unquantised_server_is_its_own_control(ran: tuple[dict[str, Any], str]) -> None:
    records, _ = ran
    again = gates(records["again"])
    assert again["control_unchanged"]["passed"] is True
    assert again["drift"]["severity"] == "provisional"
    assert "no_effect" not in again
    assert "no_effect" not in gates(records["none"])


def test_what_a_server_does_not_say_is_null_with_a_reason(ran: tuple[dict[str, Any], str]) -> None:
    records, _ = ran
    for key in ("weights_size_bytes", "kv_bytes_per_token_bytes"):
        assert records["none"]["metrics"][key]["value"] is None
        assert records["none"]["metrics"][key]["note"]
    assert gates(records["none"])["reference"]["passed"] is None


def test_a_refused_option_is_skipped_with_its_reason(ran: tuple[dict[str, Any], str]) -> None:
    records, said = ran
    assert "missing: there is no kernel for it" in said
    assert records.get("missing", {"outcome": "skipped"})["outcome"] == "skipped"


def test_without_a_baseline_there_is_no_result(ran: tuple[dict[str, Any], str]) -> None:
    records, said = ran
    early = records["early"]  # comes before the baseline
    assert early["outcome"] in ("failed", "error"), said
    assert early["error"]["kind"] == "no_baseline"
    assert "first option" in early["error"]["remedy"]
    assert early["metrics"] == {}


# -- the judgement by itself


def seen(**changes: Any) -> forms.Seen:
    given: dict[str, Any] = {
        "served": "m", "model": {"weights_digest": "a"}, "answers": ((1, 2, 3, 4),), "weights_size": 100,
        "kv_bytes_per_token": 64.0,
    }  # fmt: skip
    return forms.Seen(**{**given, **changes})


def judged(option: forms.Option, changed: forms.Seen) -> dict[str, Gate]:
    return {gate.id: gate for gate in forms.gates(option, changed, seen())}


def test_memory_that_does_not_shrink_is_found_out() -> None:
    option = forms.Option(name="kv", parameters={"x": 1}, shrinks="kv_bytes_per_token")
    only_tokens = judged(option, seen(answers=((1, 2, 9, 4),)))
    assert only_tokens["no_effect"].passed
    assert only_tokens["memory_saved"].passed is False
    assert only_tokens["memory_saved"].severity == "invalid"
    halved = judged(option, seen(kv_bytes_per_token=32.0))
    assert halved["memory_saved"].passed
    assert halved["memory_saved"].observed == 0.5
    assert halved["no_effect"].passed, "the same tokens, but another cache: it did something"
    unknown = judged(option, seen(kv_bytes_per_token=None, answers=((9,) * 4,)))
    assert unknown["memory_saved"].passed is None


def test_other_weights_on_disk_are_no_proof_that_the_server_computes_with_them() -> None:
    """`int8` writes files of its own: their digest and size are others whatever the server makes of them."""
    option = forms.Option(name="int8", weights="int8", shrinks="weights_size")
    ignored = judged(option, seen(model={"weights_digest": "b"}, weights_size=60))
    assert (ignored["no_effect"].passed, ignored["no_effect"].severity) == (False, "invalid")
    assert "greedy tokens" in ignored["no_effect"].message
    assert "digest of the weights a → b" in ignored["no_effect"].message
    used = judged(option, seen(model={"weights_digest": "b"}, weights_size=60, answers=((1, 2, 9, 4),)))
    assert used["no_effect"].passed is True


def test_share_of_changed_tokens_counts_from_where_answers_part() -> None:
    one, other = seen(answers=((1, 2, 3, 4), (5, 6, 7, 8))), seen(answers=((1, 2, 9, 4), (5, 6, 7, 8)))
    assert other.changed(one) == 2 / 8
    assert one.changed(one) == 0


def test_bytes_of_a_token_follow_from_the_servers_own_count() -> None:
    facts = {"readings": {"kv_cache_tokens": "46,592"}}
    assert forms.kv_bytes(facts, 1) == pytest.approx((1 << 30) / 46592)
    assert forms.kv_bytes(facts, None) is None
    assert forms.kv_bytes({}, 1) is None
    assert forms.kv_bytes({"readings": {"kv_cache_tokens": "many"}}, 1) is None


@pytest.mark.parametrize("drifted", [0.85, 1.2])
def test_a_rate_that_drifts_makes_the_control_provisional(drifted: float) -> None:
    assert forms.drift(drifted).passed is False
    assert forms.drift(1.05).passed is True
    assert forms.drift(None).passed is None


def test_a_ratio_is_worth_what_the_baseline_is() -> None:
    failing = [Gate(id="host_contended", passed=False, severity="provisional"), Gate(id="x", passed=None)]
    found = forms.clean(seen(against=forms.against(failing)))
    assert (found.passed, found.severity) == (False, "provisional")
    assert "host_contended" in found.message
    assert forms.clean(seen()).passed is True


# -- weights in int8


def small_model(folder: Path, dtype: str = "BF16") -> dict[str, Any]:
    """A folder with one matrix of a layer, one embedding and one norm; the values of the matrix."""
    rows = np.random.default_rng(1).standard_normal((6, 8)).astype("float32")
    rows[3] = 0.0
    bits = rows.view("<u4") >> 16 << 16  # what bfloat16 can say
    exact = bits.view("<f4")
    stored = (bits >> 16).astype("<u2").tobytes() if dtype == "BF16" else exact.astype("<f4").tobytes()
    other = np.ones(4, dtype="<f4").tobytes()
    entries = [
        ("model.layers.0.mlp.up_proj.weight", dtype, (6, 8), stored),
        ("model.embed_tokens.weight", "F32", (2, 2), other),
        ("model.layers.0.input_layernorm.weight", "F32", (4,), other),
    ]
    int8_weights._write(folder / "model.safetensors", entries)
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return {"matrix": exact, "other": other}


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_int8_weights_are_within_half_a_step_of_the_original(tmp_path: Path, dtype: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    known = small_model(source, dtype)
    told = int8_weights.quantise(source, target)
    found = {name: (kind, shape, data) for name, kind, shape, data in int8_weights.tensors(target)}
    kind, shape, data = found["model.layers.0.mlp.up_proj.weight"]
    assert (kind, shape) == ("I8", (6, 8))
    values = np.frombuffer(data, dtype="int8").reshape(shape)
    scales = np.frombuffer(found["model.layers.0.mlp.up_proj.weight_scale"][2], dtype="<f4").reshape(6, 1)
    assert np.abs(values * scales - known["matrix"]).max() <= scales.max() / 2 * 1.0001
    assert np.abs(values).max(axis=1).tolist() == [127, 127, 127, 0, 127, 127], "each row uses all of its range"
    assert found["model.embed_tokens.weight"] == ("F32", (2, 2), known["other"]), "byte for byte"
    assert found["model.layers.0.input_layernorm.weight"][2] == known["other"]
    assert told["matrices"] == 1
    assert 0 < told["largest_error"] <= 1 / 254 * 1.0001
    config = modelfiles.read_json(target / "config.json")
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert (target / "tokenizer.json").is_file()


def test_what_is_quantised_already_or_has_no_layers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    small_model(tmp_path / "source")
    int8_weights.quantise(tmp_path / "source", tmp_path / "target")
    with pytest.raises(ValueError, match="quantised already"):
        int8_weights.quantise(tmp_path / "target", tmp_path / "source")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="no matrix of a layer"):
        int8_weights.quantise(tmp_path / "empty", tmp_path / "target")


# -- the grid


@pytest.mark.parametrize("backend", ["cpu", "trn1", "trn2", "inf2"])
@pytest.mark.parametrize("size", ["quick", "full"])
def test_every_option_of_the_grid_is_one_and_the_baseline_comes_first(backend: str, size: str) -> None:
    from neuronbench.model import Point

    points = grid.load(ROOT / "benchmarks" / "grids" / "quantization" / "served.toml").expand(backend, size)
    made = [
        forms.Option.of(Point(benchmark="b.py::f", lane="quantization", backend=backend, params=each.params, id="p"))
        for each in points
    ]
    assert made[0].name == "none"
    assert made[0].plain
    assert all(option.plain == (option.name in ("none", "again")) for option in made)
    assert {option.name for option in made if option.refused} <= {"fp8", "int8"}
