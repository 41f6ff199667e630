"""How records read as runs: keys MLflow takes, limits kept, nothing quotable that is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import synthetic_receipts as synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronbench.definitions import metric
from neuronbench.model import Failure, FrozenMap, Metric, Outcome, Provenance, Record, ResourceRef
from neuronbench.sinks.mlflow import mapping, notes, summary
from neuronbench.sinks.mlflow.gateway import mlflow_quiet


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_becomes_a_key_that_mlflow_takes(text: str) -> None:
    with mlflow_quiet({}):
        from mlflow.utils import validation
    key = mapping.safe_key(text)
    validation._validate_metric_name(key)
    validation._validate_param_name(key)
    validation._validate_tag_name(key)
    assert len(key) <= 250


def test_metric_names_are_their_paths() -> None:
    chosen, left_out = mapping.choose(synthetic.record("s").metrics.values())
    assert chosen == {
        "ttft/p50_ms": 58.0,
        "tpot/p50_ms": 11.0,
        "output_throughput/tok_s": 1251.0,
        "error_rate/share": 0.04,
    }
    assert left_out == 0  # ttft_p99 has no value: it is missing, not left out


def test_many_metrics_are_cut_at_the_limit_usual_ones_first() -> None:
    odd = [Metric(id=f"m{n}", stat="p37", value=1.0, unit="ms") for n in range(80)]
    usual = [Metric(id=f"m{n}", stat="p50", value=2.0, unit="ms") for n in range(20)]
    chosen, left_out = mapping.choose([*odd, *usual])
    assert len(chosen) == 60
    assert left_out == 40
    assert sum(value == 2.0 for value in chosen.values()) == 20


def test_keys_that_clean_to_the_same_stay_apart() -> None:
    chosen, _ = mapping.choose([Metric(id="a?", value=1.0, unit=""), Metric(id="a!", value=2.0, unit="")])
    assert chosen == {"a_": 1.0, "a_-2": 2.0}
    record = synthetic.record("s", point=synthetic.point(**{"x=y": 1, "x@y": 2, "nested": {"b": [1], "a": None}}))
    found = mapping.params(record)
    assert (found["x_y"], found["x_y-2"]) == ("1", "2")
    assert found["nested"] == '{"a":null,"b":[1]}'
    assert found["resource.dtype"] == "bfloat16"
    assert "resource.model" not in found  # the point says it
    assert found["backend"] == "cpu"


def test_values_and_numbers_of_parameters_are_bounded() -> None:
    record = synthetic.record("s", point=synthetic.point(**{f"p{n:03}": "v" * 7_000 for n in range(150)}))
    found = mapping.params(record)
    assert len(found) == 100
    assert all(len(value) <= 1_000 for value in found.values())
    other = synthetic.record("s", point=synthetic.point(p000="v" * 7_001))
    assert mapping.params(other)["p000"] != found["p000"]  # a digest tells what was cut


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.OK, "FINISHED"),
        (Outcome.SLO_MISS, "FINISHED"),
        (Outcome.FAILED, "FAILED"),
        (Outcome.ERROR, "FAILED"),
        (Outcome.TIMEOUT, "FAILED"),
        (Outcome.XFAILED, "FAILED"),
        (Outcome.INTERRUPTED, "KILLED"),
    ],
)
def test_status(outcome: Outcome, status: str) -> None:
    record = synthetic.record("s")
    record.close(outcome, ended_at="", duration_s=None)
    assert mapping.status(record) == status
    assert mapping.has_run(record)


def test_environment_tags_are_flat_few_and_the_useful_ones_first() -> None:
    facts = {f"aaa.{n}": n for n in range(100)} | synthetic.FACTS.to_json() | {"env.OMP_NUM_THREADS": "2"}
    tags = mapping.environment_tags(FrozenMap(facts))
    assert len(tags) == 25
    assert tags["env.host.cpu_model"] == "Some CPU | with a bar"
    assert tags["env.git.dirty"] == "true"
    assert tags["env.OMP_NUM_THREADS"] == "2"
    assert "env.host.turbo" not in tags  # null is not a value
    assert "env.harness.argv" not in tags


def test_times_of_records_without_any() -> None:
    record = synthetic.record("s")
    assert mapping.times(record)[0] == mapping.times(record)[1] == mapping.millis("2026-11-30T01:23:45Z")
    record.started_at = ""
    assert mapping.times(record) == (0, 0)


def test_names_say_what_may_not_be_quoted() -> None:
    assert mapping.run_name(synthetic.record("s", repeat=2)) == "serving-closed_loop-c8 #r2"
    marked = synthetic.invalid("s", provenance=Provenance.SIMULATED)
    assert mapping.run_name(marked) == "serving-closed_loop-c8 #r1 (invalid, simulated)"
    assert mapping.run_name(synthetic.boot("s")) == "boot-endpoint-1a2b3c4d"


def test_a_session_is_named_by_day_machine_and_commit() -> None:
    record = synthetic.record("s")
    assert mapping.session_name("20261129-010203-ab12", record) == "2026-11-29 cpu 3f2a91c ab12"
    assert mapping.session_name("vllm import", record) == "vllm import"
    facts = FrozenMap({"backend.instance_type": "inf2.48xlarge"})
    record.environment = dataclasses.replace(record.environment, facts=facts)
    assert mapping.session_name("20261129-010203-ab12", record) == "2026-11-29 inf2.48xlarge ab12"


# -- notes ---------------------------------------------------------------------------------------------------


def note_of(record: Record) -> str:
    return notes.note(record, receipt=Path("/data/r"), manifest=None)


def test_the_note_of_an_invalid_record_begins_with_that() -> None:
    text = note_of(synthetic.invalid("s", provenance=Provenance.SIMULATED))
    assert text.startswith("**INVALID: these numbers must not be quoted.**")
    assert text.index("SIMULATED") < text.index("client_lag") < text.index("ttft_p50_ms")
    assert "the client was \\| late" in text
    assert "Could not be checked: noise" in text
    assert "Receipt: `s/serving-closed_loop-c8--r1` at `/data/r`" in text
    assert "pytest benchmarks/serving/bench_closed_loop.py::bench_closed_loop -m cpu --nb-set concurrency=8" in text


def test_the_note_of_a_failure_has_cause_and_remedy() -> None:
    text = note_of(synthetic.failing("s"))
    for part in ("server_died", "RuntimeError: out of | memory", "Cause: no memory", "Remedy: use a smaller model"):
        assert part in text
    assert "exit status: -9" in notes.error_text(synthetic.failing("s").error or Failure(kind="", phase="", message=""))


def test_a_huge_note_is_cut_and_says_so() -> None:
    record = synthetic.failing("s")
    record.error = dataclasses.replace(record.error or Failure(kind="", phase="", message=""), message="ü" * 50_000)
    record.notes = ["n" * 5_000] * 50
    text = note_of(record)
    assert len(text.encode()) <= 7_500
    assert text.endswith("… the rest is in `record.json`")


def test_a_missing_value_is_a_dash_with_its_reason() -> None:
    table = notes.metric_table([metric("ttft", None, stat="p99", n=9, note="needs 368 requests")])
    assert "| ttft_p99_ms | – | 9 | needs 368 requests |" in table


def test_imports_and_boots_have_no_command() -> None:
    assert notes.reproduce(synthetic.record("s", provenance=Provenance.IMPORTED), None) == ""
    assert notes.reproduce(synthetic.boot("s"), None) == ""


# -- summaries ---------------------------------------------------------------------------------------------------


def test_a_summary_has_medians_count_and_spread() -> None:
    records = [synthetic.record("s", repeat=n, ttft=value) for n, value in ((1, 50.0), (2, 70.0), (3, 60.0))]
    found = summary.summary_metrics(records)
    assert found["ttft/p50_ms"] == 60.0
    assert found["output_throughput/tok_s"] == 1252.0
    assert found["repeats/n"] == 3.0
    assert found["spread_share/ttft_p50_ms"] == pytest.approx(20 / 60)


def test_a_metric_that_one_repeat_lacks_has_no_median() -> None:
    first, second = synthetic.record("s", repeat=1), synthetic.record("s", repeat=2)
    first.add(metric("e2e", 5.0, stat="p50"))
    second.add(metric("e2e", None, stat="p50", note="failed"))
    first.add(metric("goodput", 5.0))
    found = summary.summary_metrics([first, second])
    assert "e2e/p50_ms" not in found
    assert "goodput/req_s" not in found
    assert "ttft/p50_ms" in found


def test_a_summary_keeps_to_the_limit_and_to_its_names() -> None:
    records = []
    for repeat in (1, 2):
        record = synthetic.record("s", repeat=repeat)
        record.add(*(Metric(id=f"m{n}", stat="p50", value=float(n), unit="ms") for n in range(100)))
        records.append(record)
    found = summary.summary_metrics(records)
    assert len(found) == 60
    assert found["repeats/n"] == 2.0
    assert summary.spread_share([0.0, 0.0]) is None


def test_tags_carry_what_filters_need() -> None:
    record = synthetic.failing("s")
    record.resource = ResourceRef(id="endpoint-1", kind="endpoint", spec=FrozenMap(), boot_receipt="s/boot")
    record.tags = {"team": "a"}
    record.close(Outcome.ERROR, ended_at="", duration_s=None)
    tags = mapping.tags(record, fingerprint="f" * 16, manifest=None, left_out=3)
    assert tags["nb.session"] == "s"
    assert tags["nb.point"] == "f" * 16
    assert (tags["nb.outcome"], tags["nb.validity"], tags["nb.provenance"]) == ("error", "invalid", "measured")
    assert (tags["nb.error.kind"], tags["nb.error.phase"], tags["nb.resource"]) == (
        "server_died",
        "window",
        "endpoint-1",
    )
    assert (tags["nb.kind"], tags["nb.receipt"]) == ("point", "s/serving-closed_loop-c8--r1")
    assert tags["mlflow.source.name"] == record.point.benchmark
    assert (tags["mlflow.source.git.commit"], tags["mlflow.source.git.dirty"]) == ("3f2a91c0", "true")
    assert tags["tag.team"] == "a"
    assert tags["nb.metrics.left_out"] == "3"
    boot = synthetic.boot("s")
    boot.close(Outcome.OK, ended_at="", duration_s=None)
    assert mapping.tags(boot, fingerprint="f", manifest=None, left_out=0)["nb.kind"] == "resource"
