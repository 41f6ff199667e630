"""Figures that no measurement can have: refused, or null with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuronbench.importers import KINDS, ImportFailure, gather
from neuronbench.importers.base import instant
from neuronbench.importers.loops import nxdi

VLLM = {
    "completed": 4, "failed": 0, "model_id": "m", "max_concurrency": 4, "mean_ttft_ms": 51.0, "p50_ttft_ms": 50.0,
    "p90_ttft_ms": 55.0, "p99_ttft_ms": 60.0, "p50_tpot_ms": 10.0, "p99_tpot_ms": 12.0,
}  # fmt: skip


def saved(folder: Path, **changed: Any) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps({**VLLM, **changed}))
    return path


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"p50_ttft_ms": -3.0}, "expected ttft_p50_ms from 0 on, found -3 ms"),
        ({"completed": -5, "failed": 5}, "-5 requests succeeded, 5 failed"),
        ({"failed": -3}, "4 requests succeeded, -3 failed"),
        ({"total_output_tokens": -4}, "expected output_tokens_mean_tokens from 0 on, found -1 tokens"),
    ],
)
def test_less_than_nothing_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    path = saved(tmp_path, **changed)
    with pytest.raises(ImportFailure, match=r"result\.json") as refused:
        gather(KINDS["vllm"], path)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"p99_ttft_ms": 40.0}, "its p90 55 is above its p99 40: swapped, or wrong"),
        ({"p50_ttft_ms": 58.0}, "its p50 58 is above its p90 55: swapped, or wrong"),
        ({"max_ttft_ms": 50.5, "p90_ttft_ms": None, "p99_ttft_ms": None}, "its mean 51 is above its max 50.5"),
    ],
)
def test_percentiles_that_contradict_each_other_are_null(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    (item,) = gather(KINDS["vllm"], saved(tmp_path, **changed))
    ttft = [one for one in item.metrics if one.id == "ttft"]
    assert all(one.value is None for one in ttft)
    assert why in next(one.note for one in ttft if one.stat == "p50")
    assert why in next(one.note for one in ttft if one.stat == "ok_p50")
    assert next(one.value for one in item.metrics if one.key == "tpot_p50_ms") == 10.0, "the others stay"
    assert item.own["p50_ttft_ms"] == changed.get("p50_ttft_ms", 50.0), "the source's own figure too"


def test_percentiles_that_were_rounded_to_other_digits_stay(tmp_path: Path) -> None:
    (item,) = gather(KINDS["vllm"], saved(tmp_path, p99_ttft_ms=60.0, max_ttft_ms=59.996))
    assert {one.stat: one.value for one in item.metrics if one.id == "ttft"}["p99"] == 60.0


def test_every_kind_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"e2e_model": {"latency_ms_p50": 90.0, "latency_ms_p99": 80.0, "latency_ms_avg": 85.0}}))
    assert [one.value for one in nxdi(path)[0].metrics[:1]] == [90.0], "as it stands there"
    (item,) = gather(KINDS["nxdi"], path)
    assert not any(one.value for one in item.metrics)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2026-13-01", ""])
def test_an_instant_that_no_clock_shows_is_none(text: str) -> None:
    assert instant(text) == ""


def test_lines_of_json_end_where_json_says(tmp_path: Path) -> None:
    path = tmp_path / "result.jsonl"
    lines = [json.dumps({**VLLM, "model_id": name}, ensure_ascii=False) for name in ("a\u2028b", "c\x85d")]
    path.write_text("\n".join(lines) + "\r\n", encoding="utf-8")
    assert [item.params["model"] for item in gather(KINDS["vllm"], path)] == ["a b", "c d"]
