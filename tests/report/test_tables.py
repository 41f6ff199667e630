"""Tables for a terminal: what is in them, what later records have changed, and that a person can read them."""

from __future__ import annotations

from typing import Any

from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Gate, Metric, Outcome, Point, Record, ResourceRef, Validity
from neuronbench.receipts.evidence import evidence_gate
from neuronbench.report import compiles, tables


def record(name: str = "x", *metrics: Metric, gates: tuple[Gate, ...] = (), **more: Any) -> Record:
    point = Point(
        benchmark=f"b::bench_{name}", lane="seq2seq", backend="cpu", params=FrozenMap(), id=f"seq2seq.{name}-cpu-b1"
    )
    made = Record(session="s", point=point, **more)
    made.add(*metrics)
    made.gate(*gates)
    made.close(Outcome.OK, ended_at="2026-11-30T01:01:00.000000+00:00", duration_s=1.0)
    return made


def test_a_title_stands_in_one_line_however_narrow_the_table_is() -> None:
    table = tables.lane_table("seq2seq: a benchmark with a long name on cpu", [record()], ())
    first = tables.render(table, width=80).splitlines()[0]
    assert first == "seq2seq: a benchmark with a long name on cpu"


def test_names_of_columns_go_on_in_the_next_line_and_none_is_cut() -> None:
    assert tables.heading(metric("memory_bandwidth", 1.0, stat="t2", n=1)) == "memory\nbandwidth\nt2\nGB/s"
    made = record(
        "x", metric("latency", 3.7, stat="p50", n=9), metric("latency_per_token", 0.08, stat="p50", n=9),
        metric("latency_per_token", 0.3, stat="p99", n=9), metric("total_token_throughput", 17408.0, n=9),
        metric("output_token_throughput", 5803.0, n=9),
    )  # fmt: skip
    unsure = record("b1-workers=all", *made.metrics.values(), gates=(evidence_gate("a", None),))
    text = tables.render(tables.lane_table("t", [made, unsure], tuple(made.metrics)), width=80)
    assert "…" not in text
    for word in ("tokens", "all", "output", "17408", "5803", "0.080"):
        assert word in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_what_came_of_accuracy_is_shown_in_every_lane() -> None:
    judged = record("accuracy", metric("agreement", 0.95, n=128), metric("accuracy_ratio", 1.0, n=8))
    text = tables.render(tables.lane_table("t", [judged], ("latency_p50_ms",)), width=80)
    assert "agreement" in text
    assert "95%" in text
    assert "1.000" in text
    assert tables.headline(judged, ("latency_p50_ms",)) == "accuracy ratio 1.000"
    assert tables.headline(record("plain", metric("max_abs_err", 3.4e-6, n=2)), ("max_abs_err",)) == (
        "max abs err 3.4e-06"
    )


def test_what_accuracy_showed_later_is_told_once_and_its_gate_no_more() -> None:
    unsure = Gate(id="host_contended", passed=False, severity="provisional", message="somebody else")
    first, second, third = (
        record(name, gates=gates)
        for name, gates in (
            ("first", (evidence_gate("a", None),)), ("second", (evidence_gate("b", None),)), ("third", (unsure,)),
        )
    )  # fmt: skip
    now = {first.receipt_id: Validity.VALID, second.receipt_id: Validity.INVALID}
    assert [tables.verdict(each, now) for each in (first, second, third)] == ["ok", "ok INVALID", "ok provisional"]
    assert tables.verdict(first) == "ok provisional"
    assert [line.partition(",")[0] for line in tables.gate_lines([first, second, third], now)] == [
        "provisional: host_contended"
    ]
    assert tables.later_lines([first, second, third], now) == [
        "valid by accuracy that was measured later: seq2seq.first-cpu-b1--r1",
        "INVALID by accuracy that was measured later: seq2seq.second-cpu-b1--r1",
    ]
    assert tables.later_lines([first], {}) == []


def test_a_compile_shows_the_shape_that_goes_in_and_what_the_model_is_for() -> None:
    def made(inputs: dict[str, list[int]], **spec: Any) -> Record:
        facts = FrozenMap(artifact={"cache": "hit", "inputs": inputs})
        given = FrozenMap({"dtype": "float32", "batch_size": 1, "sequence_length": 128, **spec})
        return record("c", kind="compile", resource=ResourceRef(id="m", kind="compiled_model", spec=given, facts=facts))

    rows = [
        made({"audio": [1, 48000]}, architecture={"model_type": "whisper"}, task="transcribe"),
        made({"input_ids": [1, 128], "attention_mask": [1, 128]}, model="packaged:all-MiniLM-L6-v2", task="embed"),
        made({}, model="hub:org/name"),
    ]
    text = tables.render(compiles.compile_table(rows), width=100)
    for part in ("whisper transcribe", "1×48000 float32", "all-MiniLM-L6-v2 embed", "1×128 float32", "org/name"):
        assert part in text
    assert "packaged:" not in text


def test_references_are_counted_and_what_became_of_damaged_ones_is_told() -> None:
    def judged(name: str, kept: Any) -> Record:
        return record(name, workload={"accuracy": [{"artifact": "a", "passed": True, "kept": kept}]})

    assert compiles.reference_line([record()]) == ""
    hit, miss = {"cache": "hit", "notes": []}, {"cache": "miss", "notes": ["the reference in the cache was damaged"]}
    assert compiles.reference_line([judged("one", hit)]) == "references: nothing was computed, 1 from the cache"
    assert compiles.reference_line([judged("one", hit), judged("two", miss)]) == (
        "references: 1 computed, 1 from the cache\n  the reference in the cache was damaged"
    )
