"""Sessions that compile and sessions that need not, as a user runs them: `pytest benchmarks`, with a real AOTInductor.

A small encoder with weights from a seed is compiled in a cache of the test's own, MiniLM in the user's, where it lies
after the first time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parent.parent.parent

FLAGS = 'compiler_flags = { "aot_inductor.precompile_headers" = false }'
SMALL = """
import neuronbench as nb

SMALL = {
    "architecture": {
        "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 16,
    },
    "weights": "seeded", "sequence_length": 8,
    "compiler_flags": {"aot_inductor.precompile_headers": False},  # half of a compile; of use where there are many
}

FLAG = {"compiler_flags": {"cpp.no_such_flag": 1}}  # refused by the compiler before it compiles anything

@nb.bench(lane="encoder", params=SMALL)
def bench_plain(compiled_model, measure):
    measure.latency(compiled_model, calls=20)

@nb.bench(lane="encoder", params={**SMALL, **FLAG})
def bench_flag(compiled_model):
    raise AssertionError("a model without an artifact")

@nb.bench(lane="encoder", params={**SMALL, **FLAG, "weights_seed": 1})
def bench_weights(compiled_model):
    raise AssertionError("a model without an artifact")
"""


@pytest.fixture
def sessions(tmp_path: Path, run_in, stack):
    """Make a project; give what runs `pytest benchmarks -m "cpu and encoder"` in it, as one session after the other."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest]\nneuronbench = true\nstrict = true\n")
    (tmp_path / "benchmarks").mkdir()

    def session(*args: str, stack: str = stack, env: Mapping[str, str] | None = None):
        return run_in(
            tmp_path, "-m", "cpu and encoder", "--nb-stack", f"any={stack}", "--nb-tracking-uri", "off", *args,
            timeout_s=400, env=env,
        )  # fmt: skip

    return session


def artifact(record: dict[str, Any]) -> tuple[str, str]:
    """Its key, and whether it was a hit or a miss."""
    found = record["resource"]["facts"]["artifact"]
    return found["key"], found["cache"]


def compiled(record: dict[str, Any]) -> bool:
    return record["outcome"] == "ok"


def summary(run) -> str:
    (line,) = [line for line in run.output.splitlines() if line.startswith("compiles: ")]
    return line


def other_torch(folder: Path, stack: str) -> str:
    """A stack that is the same but for the version of torch that its metadata has."""
    (folder / "site" / "torch-99.0.dist-info").mkdir(parents=True)
    (folder / "site" / "torch-99.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 99.0\n")
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/site" exec "{Path(stack).absolute()}/bin/python" "$@"\n')
    python.chmod(0o755)
    return str(folder)


def test_flags_weights_and_torch_make_other_artifacts_and_the_same_is_not_compiled_again(
    sessions, stack, tmp_path: Path
) -> None:
    (tmp_path / "benchmarks" / "bench_small.py").write_text(SMALL)
    cache = tmp_path / "cache"
    env = {"NEURONBENCH_CACHE_DIR": str(cache)}

    def events() -> list[tuple[str, str]]:
        lines = (cache / "artifacts" / "journal.jsonl").read_text().splitlines()
        return [(event["event"], event["key"]) for event in map(json.loads, lines)]

    first = sessions(env=env)
    assert summary(first) == "compiles: 1 compiled, 0 from the cache, 2 without an artifact", first.output
    made = {record["name"]: artifact(record) for record in first.records("compile").values() if compiled(record)}
    ((key, how),) = made.values()
    assert how == "miss"
    assert ("published", key) in events()
    assert [event for event, _ in events()].count("failed") == 2
    assert len({key for _, key in events()}) == 3  # plain, the flag, the flag and other weights

    second = sessions("-k", "plain", env=env)
    assert second.returncode == 0, second.output
    assert summary(second) == "compiles: nothing was compiled, 1 from the cache"
    assert events()[-1] == ("hit", key)

    before = {key for _, key in events()}
    third = sessions("-k", "flag", stack=other_torch(tmp_path / "stack", stack), env=env)
    assert [event for event, _ in events()[-2:]] == ["miss", "failed"], third.output
    assert events()[-1][1] not in before


def test_minilm_is_compiled_once_for_all_its_points_and_a_second_session_compiles_nothing(
    sessions, tmp_path: Path
) -> None:
    (tmp_path / "benchmarks" / "encoder").mkdir()
    shutil.copy(PROJECT / "benchmarks" / "encoder" / "bench_encoder.py", tmp_path / "benchmarks" / "encoder")
    grids = shutil.copytree(PROJECT / "benchmarks" / "grids", tmp_path / "benchmarks" / "grids")
    for name in ("latency", "throughput", "agreement"):  # as in SMALL
        path = grids / "encoder" / f"{name}.toml"
        text = path.read_text(encoding="utf-8")
        assert text.count("[settings]\n") == 1
        path.write_text(text.replace("[settings]\n", f"[settings]\n{FLAGS}\n"), encoding="utf-8")
    given = ("--nb-set", "window_s=1", "--nb-set", "calls=30")
    first = sessions(*given)
    assert first.returncode == 0, first.output
    (boot,) = first.records("compile").values()
    points = first.records("point")
    assert {name.split("-")[0] for name in points} == {"encoder.latency", "encoder.throughput", "encoder.agreement"}
    assert len(points) == 4  # throughput with one copy and with all
    for record in points.values():
        assert record["outcome"] == "ok", first.output
        assert record["resource"]["boot_receipt"] == f"{boot['session']}/{boot['name']}"
    (agreement,) = [record for name, record in points.items() if name.startswith("encoder.agreement")]
    assert agreement["metrics"]["max_abs_err"]["value"] < 1e-3
    assert boot["resource"]["facts"]["artifact"]["model"]["architecture"] == "BertModel"

    second = sessions(*given, "-k", "latency")
    assert summary(second) == "compiles: nothing was compiled, 1 from the cache", second.output
    again = [record for record in second.records("compile").values() if record["session"] != boot["session"]]
    assert [artifact(record) for record in again] == [(artifact(boot)[0], "hit")]
