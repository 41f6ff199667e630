"""The reduction against a plain re-computation of every definition, on invented records."""

from __future__ import annotations

import json
import math
import random
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from load_records import CLOSED, MS, OPENED, TOKENS, reduced, regular, simple_plan, stream, write

from neuronbench import stats
from neuronbench.load import layout
from neuronbench.load.gates import token_conservation
from neuronbench.load.outcomes import Kind, Phase
from neuronbench.load.pool import EXACT_LIMIT, Pool
from neuronbench.load.reduce import reduce
from neuronbench.load.stream import Stream


def test_every_definition_on_one_request(tmp_path: Path) -> None:
    found = reduced(tmp_path, [regular(0, OPENED), regular(1, OPENED + MS)])
    assert found["ttft_p50_ms"] == 50
    assert found["ttft_due_p50_ms"] == 51
    assert found["tpot_p50_ms"] == 10
    assert found["e2e_p50_ms"] == 90
    assert found["e2e_due_p50_ms"] == 91
    assert found["send_lag_p50_ms"] == 1
    assert found["max_stall_p50_ms"] == 10
    assert found["icl_p50_ms"] == found["itl_p50_ms"] == 10
    assert found["output_throughput_tok_s"] == pytest.approx(2 * TOKENS / 10)
    assert found["request_throughput_req_s"] == pytest.approx(0.2)
    assert found["in_flight_requests"] == pytest.approx(2 * 91 / 10_000)
    assert found["client_lag_p50_ms"] == pytest.approx(0.001)
    assert found["client_cpu_pct"] == pytest.approx(20)
    assert found["output_tokens_mean_tokens"] == TOKENS
    assert found["input_tokens_mean_tokens"] == 3


def test_tpot_counts_the_tokens_of_the_first_chunk(tmp_path: Path) -> None:
    tokens = array("H", [3, 2, 2])
    made = [regular(k, OPENED + k, chunks=3, n_out=7, m=3, tokens=array("H", tokens)) for k in range(2)]
    found = reduced(tmp_path, made)
    assert found["tpot_p50_ms"] == pytest.approx(20 / (7 - 3))
    assert found["itl_p50_ms"] is None
    assert found["tokens_per_chunk_mean_tokens"] == pytest.approx(7 / 3)


def test_one_token_has_no_tpot_and_that_is_not_zero(tmp_path: Path) -> None:
    found = reduced(tmp_path, [regular(k, OPENED + k, chunks=1) for k in range(3)])
    metrics = {metric.key: metric for metric in found.metrics}
    assert metrics["tpot_p50_ms"].value is None
    assert metrics["tpot_p50_ms"].n == 0
    assert metrics["ttft_p50_ms"].n == 3


@st.composite
def populations(draw: st.DrawFn) -> list[dict[str, Any]]:
    kinds = st.sampled_from([Kind.OK] * 6 + [Kind.HTTP, Kind.NO_DONE, Kind.INTER_TOKEN_TIMEOUT, Kind.CONNECT_REFUSED])
    rows = []
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(kinds)
        none = kind in (Kind.HTTP, Kind.CONNECT_REFUSED)
        gaps = draw(st.lists(st.integers(0, 400), max_size=8)) if not none else []
        rows.append(
            {
                "kind": kind,
                "s": OPENED + draw(st.integers(-3000, 11_000)) * MS,
                "wait": draw(st.integers(0, 50)),
                "ttft": draw(st.integers(1, 900)),
                "gaps": gaps,
                "chunks": not none,
                "hidden": draw(st.sampled_from([0, 0, 0, 2])),
                "usage": draw(st.sampled_from([True, True, True, False])) if kind == Kind.OK else False,
                "phase": draw(st.sampled_from([Phase.WINDOW, Phase.WINDOW, Phase.WINDOW, Phase.WARMUP])),
            }
        )
    return rows


def built(rows: list[dict[str, Any]]) -> list[Stream]:
    made = []
    for seq, row in enumerate(rows):
        w = 0 if row["kind"] == Kind.CONNECT_REFUSED else row["s"] + row["wait"] * MS
        times = array("q")
        if row["chunks"]:
            times = array("q", np.cumsum([w + row["ttft"] * MS, *[g * MS for g in row["gaps"]]]).tolist())
        row["times"] = list(times)
        row["w"] = w
        row["e"] = (times[-1] if times else row["s"]) + MS
        row["n"] = len(times) + row["hidden"] if row["usage"] else None
        made.append(
            stream(
                seq, s=row["s"], w=w, w_end=w, r=w, e=row["e"], chunks=times, kind=row["kind"], phase=row["phase"],
                n_out=-1 if row["n"] is None else row["n"], n_in=3 if row["usage"] else -1,
                status=503 if row["kind"] == Kind.HTTP else 200,
            )
        )  # fmt: skip
    return made


@given(populations(), st.sampled_from([0, 1, 3]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_against_a_plain_computation(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], cut: int
) -> None:
    found = reduced(
        tmp_path_factory.mktemp("reduce"), built(rows), cut=cut, slo={"ttft": 400, "tpot": 100, "e2e_due": 1500}
    )
    inside = [r for r in rows if r["phase"] != Phase.WARMUP and OPENED <= r["s"] < CLOSED]
    failed = [r for r in inside if r["kind"] != Kind.OK]
    good = [r for r in inside if r["kind"] == Kind.OK]
    n = len(inside)
    metrics = {metric.key: metric for metric in found.metrics}

    def value(key: str) -> float | None:
        return metrics[key].value

    def check(id: str, values: list[float]) -> None:
        for p in (0.5, 0.99):
            expected = stats.percentile(values, p, len(failed))
            if expected is None or math.isinf(expected) or len(values) + len(failed) < stats.needed(p):
                assert value(f"{id}_p{100 * p:g}_ms") is None
            else:
                assert value(f"{id}_p{100 * p:g}_ms") == pytest.approx(expected)

    ttft = [(r["times"][0] - r["w"]) / MS for r in good]
    check("ttft", ttft)
    check("ttft_due", [(r["times"][0] - r["s"]) / MS for r in good])
    e2e = [(r["times"][-1] - r["w"]) / MS for r in good]
    check("e2e", e2e)
    tpot = {
        id(r): (r["times"][-1] - r["times"][0]) / MS / (r["n"] - 1) for r in good if r["n"] is not None and r["n"] > 1
    }
    check("tpot", list(tpot.values()))
    check("max_stall", [max(np.diff(r["times"])) / MS for r in good if len(r["times"]) > 1])
    gaps = [gap / MS for r in good for gap in np.diff(r["times"])]
    assert metrics["icl_p50_ms"].n == len(gaps) + 0
    if len(gaps) >= 2:
        assert value("icl_p50_ms") == pytest.approx(stats.percentile(gaps, 0.5), rel=1e-6)

    assert value("error_rate_share") == (len(failed) / n if n else None)
    assert sum(found.failures.values()) == len(failed)
    load = [r for r in rows if r["phase"] != Phase.WARMUP]
    emitted = [(r, t) for r in load for t in r["times"] if OPENED <= t < CLOSED]
    if any(r["n"] is None and r["kind"] == Kind.OK for r, _ in emitted):
        assert value("output_throughput_tok_s") is None
    else:
        tokens = sum(r["n"] / len(r["times"]) for r, _ in emitted if r["n"] is not None)
        assert value("output_throughput_tok_s") == pytest.approx(tokens / 10)
    ended = [r for r in load if r["kind"] == Kind.OK and OPENED <= r["e"] < CLOSED]
    assert value("request_throughput_req_s") == pytest.approx(len(ended) / 10)
    written = [r for r in load if OPENED <= r["w"] < CLOSED]
    assert value("achieved_rate_req_s") == pytest.approx(len(written) / 10)
    flying = sum(max(min(r["e"], CLOSED) - max(r["w"], OPENED), 0) for r in load if r["w"])
    assert value("in_flight_requests") == pytest.approx(flying / (CLOSED - OPENED))

    met = [
        r for r in good
        if (r["times"][0] - r["w"]) / MS <= 400
        and tpot.get(id(r), math.inf) <= 100
        and (r["times"][-1] - r["s"]) / MS <= 1500
    ]  # fmt: skip
    assert value("goodput_req_s") == pytest.approx(len(met) / 10)
    assert value("attainment_share") == (pytest.approx(len(met) / n) if n else None)
    assert found.slo["ttft"] == (sum(t <= 400 for t in ttft), n - sum(t <= 400 for t in ttft))


def test_the_table_has_every_request_and_every_gap(tmp_path: Path) -> None:
    lost = stream(3, s=OPENED, w=0, e=OPENED + 5, kind=Kind.CONNECT_REFUSED, status=0, n_in=-1, n_out=-1)
    lost.error = "Connection refused"
    made = [regular(0, OPENED - 5 * MS, phase=Phase.WARMUP), regular(1, OPENED), regular(2, CLOSED + 1), lost]
    found = reduced(tmp_path, made)
    rows = pq.read_table(found.table).to_pylist()
    assert [row["in_window"] for row in rows] == [False, True, False, True]
    assert rows[1]["icl_ms"] == [10, 10, 10, 10]
    assert rows[1]["first_output_ns"] == OPENED + 51 * MS
    assert rows[1]["first_output_ms"] == pytest.approx(51)
    assert rows[3]["failure"] == "connect_refused"
    assert rows[3]["error"] == "Connection refused"
    assert (rows[3]["sent_ns"], rows[3]["http_status"], rows[3]["output_tokens"], rows[3]["icl_ms"]) == (
        None,
        None,
        None,
        [],
    )
    assert rows[0]["asked_output_tokens"] == TOKENS


def test_an_unfinished_window_ends_at_the_last_thing_noted(tmp_path: Path) -> None:
    found = reduced(tmp_path, [regular(0, OPENED), regular(1, OPENED + 1)], closed=None)
    assert found.window["partial"] is True
    assert found.window["end_ns"] == CLOSED + 5
    assert found.gate("window_complete").passed is False


@pytest.mark.parametrize("name", ["requests-0.bin", "segments-0.bin", "events-0.jsonl"])
def test_a_file_that_was_cut_off_loses_only_its_end(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    write(out, [regular(k, OPENED + k) for k in range(20)])
    path = out / name
    kept = path.read_bytes()
    path.write_bytes(kept[: len(kept) - 7])
    found = reduce(simple_plan(tmp_path / "plan"), out, drive=None, table=tmp_path / "t.parquet", slo={})
    rows = pq.read_table(found.table).num_rows
    assert rows == (19 if name == "requests-0.bin" else 20)


def test_a_million_gaps_more_than_are_kept_exactly_stay_within_a_bin() -> None:
    rng = np.random.default_rng(1)
    values = rng.lognormal(2, 1, EXACT_LIMIT + 1000).astype(np.float32)
    pool = Pool()
    for part in np.array_split(values, 7):
        pool.add(part)
    for p in (0.5, 0.9, 0.99):
        exact = stats.percentile(values, p)
        assert pool.quantile(p).value == pytest.approx(exact, rel=0.001)
    assert "bins" in pool.quantile(0.5).note
    assert pool.quantile(1 - 1e-7, failures=True).value == pytest.approx(float(values.max()), rel=0.05)


def test_tokens_are_conserved_or_the_gate_says_by_how_much(tmp_path: Path) -> None:
    found = reduced(tmp_path, [regular(k, OPENED + k) for k in range(20)])
    assert found.window["totals"] == {"prompt_tokens": 60, "generation_tokens": 100, "uncounted_requests": 0}
    assert token_conservation(found.window, prompt_tokens=60, generation_tokens=100).passed is True
    assert token_conservation(found.window, prompt_tokens=60, generation_tokens=101).passed is False
    assert token_conservation(found.window, prompt_tokens=None, generation_tokens=None).passed is None


def test_requests_without_usage_leave_conservation_open(tmp_path: Path) -> None:
    found = reduced(tmp_path, [regular(0, OPENED, n_out=-1, n_in=-1), regular(1, OPENED)])
    gate = token_conservation(found.window, prompt_tokens=60, generation_tokens=100)
    assert gate.passed is None
    assert "1 requests without usage" in gate.message


def test_instants_out_of_order_fail_the_clock_gate(tmp_path: Path) -> None:
    odd = regular(0, OPENED)
    odd.e = odd.l - 5 * MS
    assert reduced(tmp_path, [odd, regular(1, OPENED)]).gate("clock_order").passed is False


def test_a_clock_step_fails_the_clock_gate(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, [regular(k, OPENED + k) for k in range(3)])
    with (out / "events-0.jsonl").open("a") as file:
        file.write(json.dumps({"event": "clock_step", "t": OPENED + 5, "step_ns": 3_600_000_000_000}) + "\n")
    gate = reduce(simple_plan(tmp_path / "plan"), out, drive=None, table=tmp_path / "t.parquet", slo={}).gate(
        "clock_order"
    )
    assert gate.passed is False
    assert "stepped" in gate.message


OPEN_LOOP = {
    "kind": "open", "law": "constant", "rate": 10.0, "concurrency": 1, "in_flight": 64, "requests": None,
    "duration_s": 10.0, "profile": [{"seconds": 10.0, "start": 10.0, "end": 10.0}],
}  # fmt: skip


@pytest.mark.parametrize(("late", "passed"), [(0, True), (1, True), (2, False)])
def test_an_open_load_achieved_its_rate_when_what_was_due_was_written_within_a_hundredth(
    tmp_path: Path, late: int, passed: bool
) -> None:
    """A hundred requests, some of the last of them written after the window had closed."""
    made = [regular(k, OPENED + k * 100 * MS, wait=300 * MS if k >= 100 - late else MS) for k in range(100)]
    gate = reduced(tmp_path, made, arrivals=OPEN_LOOP).gate("achieved_rate")
    assert (gate.observed, gate.limit, gate.passed) == ((100 - late) / 10, 10, passed)


def test_an_unknown_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'ttft'"):
        reduced(tmp_path, [regular(0, OPENED)], slo={"tttf": 5})


def test_the_record_format_and_its_description_agree() -> None:
    assert layout.request_dtype().itemsize == layout.REQUEST.size == 128
    made = regular(7, 5, n_reason=2, n_cached=1, m=1, empties=4, bytes=99, f_lag=3, attempts=2, flags=5)
    row = np.frombuffer(made.pack(), dtype=layout.request_dtype())[0]
    same = "s w w_end r o f c l e n_out n_in n_reason n_cached m empties bytes f_lag attempts seq body status flags"
    for name in same.split():
        assert row[name] == getattr(made, name), name
    assert row["chunks"] == TOKENS


def test_shuffled_ends_change_nothing(tmp_path: Path) -> None:
    made = [regular(k, OPENED + k * MS, ttft=(20 + 7 * k % 50) * MS, chunks=1 + k % 9) for k in range(60)]
    shuffled = list(made)
    random.Random(1).shuffle(shuffled)
    copies = [array("q", one.chunks) for one in made]
    first = reduced(tmp_path / "a", made)
    for one, chunks in zip(made, copies, strict=True):
        one.chunks = chunks
    second = reduced(tmp_path / "b", shuffled)
    assert {m.key: m.value for m in first.metrics} == pytest.approx({m.key: m.value for m in second.metrics})
    assert pq.read_table(first.table).equals(pq.read_table(second.table))
