"""Ladders on servers that do what is wrong: whether a record says so, and which gate.

Real servers in processes of their own, by the truth server; what they count and say is known.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

pytest.importorskip("neuronbench_spec_decode", reason="plugins/spec_decode is not installed: make harness")

from spec_truth import CONFTEST

BENCH = """
import pytest
import neuronbench as nb
from neuronbench_spec_decode.plan import Plan
from neuronbench_spec_decode.run import ladder

PARAMS = {
    "model": "truth", "ks": [0, 2], "rounds": 2, "prompts": 1, "categories": ["code", "chat"], "prompt_tokens": 64,
    "output_tokens": 14, "drafter": "ngram", "drafters": {"ngram": {"method": "ngram"}}, "kept": "2-0-x",
    "step_ms": 2,
}

@pytest.mark.parametrize("amiss", ["", "differs_at=7", "over=3", "drafted=0", "drafted=3"])
@nb.bench(lane="spec_decode", backends=["fake"], leases=("endpoint",), params=PARAMS)
def bench_amiss(measure, point, amiss):
    ladder(measure, Plan.of(point))

@nb.bench(lane="spec_decode", backends=["fake"], leases=("endpoint",), params={**PARAMS, "ks": [2, 0]})
def bench_impossible(measure, point):
    ladder(measure, Plan.of(point))
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run of all of them; the folder of its receipts, and what it printed."""
    root = tmp_path_factory.mktemp("project")
    (root / "pyproject.toml").write_text(
        '[tool.pytest]\nneuronbench = true\nstrict = true\nfilterwarnings = ["error"]\n'
    )
    (root / "conftest.py").write_text(CONFTEST)
    (root / "mine").mkdir()
    (root / "mine" / "bench_mine.py").write_text(BENCH)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [env.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "mine", "-p", "no:cacheprovider", "--nb-tracking-uri", "off"],
        cwd=root, env=env, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return root / "mlruns" / "receipts", done.stdout + done.stderr


@pytest.fixture(scope="module")
def records(session: tuple[Path, str]) -> dict[str, Any]:
    """By what is amiss."""
    found = [json.loads(path.read_text()) for path in session[0].glob("*/*/record.json")]
    return {
        record["point"]["params"]["amiss"]: {**record, "by_id": {gate["id"]: gate for gate in record["gates"]}}
        for record in found
        if record["kind"] == "point" and "amiss" in record["point"]["params"]
    }


def failed(record: Any) -> list[str]:
    """Gates that make it invalid."""
    return sorted(
        gate["id"] for gate in record["gates"] if gate["passed"] is False and gate["severity"] == "invalid"
    )  # fmt: skip


def test_a_server_that_does_as_it_says_is_believed(records: dict[str, Any], session: tuple[Path, str]) -> None:
    record = records[""]
    assert record["outcome"] == "ok", session[1]
    assert failed(record) == []
    assert {id: gate["passed"] for id, gate in record["by_id"].items()}.items() >= {
        "lossless": True, "baseline_repeats": True, "equal_lengths": True, "emitted_conserved": True,
        "speculated": True,
    }.items()  # fmt: skip
    value = {key: one["value"] for key, one in record["metrics"].items()}
    # 14 tokens of steps that keep 2, 0, none drafted, ...: 1, 3, 1, 1, 3, 1, 1, 3; two prompts, two rounds
    assert record["metrics"]["tokens_per_step_k2_tokens"]["n"] == 7 * 4
    assert value["tokens_per_step_k2_tokens"] == pytest.approx(13 / 7)
    assert value["drafted_steps_k2_share"] == pytest.approx(5 / 7)
    assert value["acceptance_rate_k2_share"] == pytest.approx(6 / 10)
    assert value["accepted_per_step_k2_tokens"] == pytest.approx(6 / 5)
    assert value["acceptance_rate_k2_pos0_share"] == value["acceptance_rate_k2_pos1_share"] == pytest.approx(3 / 5)
    assert value["equal_answers_share"] == 1
    assert value["decode_speedup_k2_x"] > 1
    assert (value["decode_speedup_k2_x"] > 0) == (value["e2e_speedup_k2_x"] > 0)
    assert record["workload"]["speculation"]["order"] == [[1, 0], [1, 2], [2, 2], [2, 0]]
    assert len(record["workload"]["leases"]) == 4


def test_every_answer_is_in_the_table(records: dict[str, Any], session: tuple[Path, str]) -> None:
    record = records[""]
    (folder,) = session[0].glob(f"*/{record['name']}")
    rows = parquet.read_table(folder / record["tables"]["speculation"]).to_pylist()
    assert [(row["round"], row["k"], row["category"]) for row in rows] == [
        (turn, k, category) for turn, k in ((1, 0), (1, 2), (2, 2), (2, 0)) for category in ("code", "chat")
    ]
    for row in rows:
        assert row["tokens"] == list(range(14))
        assert sum(row["chunk_tokens"]) == row["usage_tokens"] == row["generated"] == 14
        assert len(row["chunks_ns"]) == len(row["chunk_tokens"])
        if row["k"]:
            assert row["kept"] + len(row["chunk_tokens"]) == 14
            assert (row["drafts"], row["drafted"], row["kept_at"]) == (5, 10, [3, 3])


def test_one_other_token_makes_it_void_and_is_shown(records: dict[str, Any]) -> None:
    record = records["differs_at=7"]
    assert failed(record) == ["lossless"]
    gate = record["by_id"]["lossless"]
    assert gate["observed"] == "code/1, token 7: 1007 at k = 2"
    assert gate["limit"] == "code/1, token 7: 7 at k = 0"
    assert "4 of 4 answers" in gate["message"]
    assert record["validity"] == "invalid"
    assert record["metrics"]["equal_answers_share"]["value"] == 0


def test_a_counter_that_counts_too_much_makes_it_void(records: dict[str, Any]) -> None:
    record = records["over=3"]
    assert failed(record) == ["emitted_conserved"]
    gate = record["by_id"]["emitted_conserved"]
    assert gate["observed"] == 4
    assert "code/1 at k = 2, round 1: 9 tokens kept, 6 by position" in gate["message"]


def test_a_server_that_does_not_speculate_makes_it_void(records: dict[str, Any]) -> None:
    """It took the setting and did nothing with it; without counters nothing contradicts it but the chunks."""
    gate = records["drafted=0"]["by_id"]["speculated"]
    assert gate["passed"] is None
    assert "no chunk carried more than one token" in gate["message"]
    metric = records["drafted=0"]["metrics"]["acceptance_rate_k2_share"]
    assert (metric["value"], metric["note"]) == (None, "the server does not report speculation")


def test_more_tokens_than_were_asked_for_make_it_void(records: dict[str, Any]) -> None:
    record = records["drafted=3"]
    assert failed(record) == ["emitted_conserved"]
    assert "drafted in" in record["by_id"]["emitted_conserved"]["message"]


def test_a_ladder_that_cannot_be_meant_fails_before_anything_boots(session: tuple[Path, str]) -> None:
    (record,) = [
        json.loads(path.read_text()) for path in session[0].glob("*/*impossible*/record.json")
    ]  # fmt: skip
    assert record["outcome"] in ("error", "failed")
    assert "ks: expected draft lengths that rise from 0" in record["error"]["message"]
    assert not record["workload"].get("leases")
