"""Training through pytest: what is recorded, every trap by its gate, cut-off runs, resumes; with real toy workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

JOB = {
    "method": "lora_sft",
    "model": "toy",
    "steps": 16,
    "sequence_length": 32,
    "batch_size": 2,
    "packing": False,
    "work_ms": 6.0,
}
BENCH = """
@pytest.mark.parametrize("behaviour", {behaviours!r})
@nb.bench(lane="lora_sft", params={params!r})
def bench_it(trainer, measure, point, behaviour):
    measure.train(trainer, nb.TrainJob.from_point(point))
"""


@pytest.fixture
def project(project: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs of a process of their own, by the host's clock."""
    project.in_process = False
    monkeypatch.setenv("NEURONBENCH_CACHE_DIR", str(project.path / "cache"))
    return project


@pytest.fixture(scope="module")
def ran(whole: Any) -> Any:
    """One run for all tests that look at what honest jobs, traps and ends leave: by the toys' own clock."""
    project = whole(
        bench_honest=BENCH.format(
            behaviours=["plain", "lazy"], params={**JOB, "checkpoint_every": 6, "accumulation": 3}
        ),
        bench_traps=trap_bench(),
        bench_ends=BENCH.format(behaviours=[*ENDS, "plain", "crash_after_end"], params={**JOB, "at": 5}),
        bench_seeds=DETERMINISM.format(params=JOB),
        bench_checkpoints=CHECKPOINT.format(params={**JOB, "checkpoint_every": 10}),
        bench_ladder=LADDER.format(params={**JOB, "behaviour": "die_kill", "at": 8}),
    )
    project.outcomes = project.run("-m", "fake", "-v")
    return project


def of_file(project: Any, name: str, param: str = "behaviour") -> dict[str, dict[str, Any]]:
    """Records of the benchmarks in that file, by a parameter."""
    return {
        record["point"]["params"].get(param): record
        for record in project.records()
        if record["point"]["benchmark"].startswith(f"bench_{name}.py")
    }


def test_every_point_runs_whatever_became_of_the_one_before(ran: Any) -> None:
    failed = len(ENDS)
    assert ran.outcomes == {"passed": 2 + len(TRAPS) + 2 + 3 + 1 + 1, "failed": failed}, ran.said


def failed_gates(record: dict[str, Any]) -> set[str]:
    return {gate["id"] for gate in record["gates"] if gate["passed"] is False and gate["severity"] == "invalid"}


def folder_of(project: Any, record: dict[str, Any]) -> Path:
    return Path(project.receipts / record["session"] / record["name"])


def steps_of(project: Any, record: dict[str, Any], table: str = "steps") -> Any:
    return parquet.read_table(folder_of(project, record) / record["tables"][table])


def value(record: dict[str, Any], key: str) -> float:
    return float(record["metrics"][key]["value"])


def test_a_run_is_recorded_and_a_lazy_device_gives_the_same_rates_by_barrier_and_by_wall(ran: Any) -> None:
    project, records = ran, of_file(ran, "honest")
    for behaviour, record in records.items():
        assert failed_gates(record) == set(), behaviour
        assert record["outcome"] == "ok"
        table = steps_of(project, record)
        assert table["step"].to_pylist() == list(range(1, 17))
        assert value(record, "loss_first") == table["loss"][0].as_py()
        assert value(record, "loss_last") == table["loss"][15].as_py()
        assert value(record, "step_time_p50_ms") == pytest.approx(18, abs=0.1)
        barrier, wall = value(record, "train_throughput_barrier_tok_s"), value(record, "train_throughput_tok_s")
        assert abs(barrier / wall - 1) <= 0.05
        assert value(record, "trainable_parameters_parameters") == 2_000
        assert value(record, "worker_rss_max_MiB") > 1
        assert 0 < value(record, "mfu_pct") < 100
        assert parquet.read_table(folder_of(project, record) / "telemetry.parquet").num_rows
        (run,) = record["workload"]["training"]
        assert run["job"]["steps"] == 16
        assert (run["complete"], run["reason"], run["resumed_from"], run["attempts"]) == (True, "done", 0, 1)
        assert [one["step"] for one in run["checkpoints"]] == [6, 12]
        assert run["data"]["padding_tokens"] > 0
    lazy = steps_of(project, records["lazy"])
    begin, returned, end, tokens = (lazy[name].to_numpy() for name in ("begin_ns", "returned_ns", "end_ns", "tokens"))
    naive, honest = (float(tokens[1:].sum() / (x - begin)[1:].sum()) for x in (returned, end))
    assert naive > 1.5 * honest  # what a timer that trusts the calls would have said
    boots = {record["resource"]["boot_receipt"] for record in records.values()}
    made = [boot for boot in project.records("boot") if f"{boot['session']}/{boot['name']}" in boots]
    assert {boot["point"]["lane"] for boot in made} == {"lora_sft"}
    assert len(made) == 2
    assert list((project.path / "cache" / "training").rglob("*.json")) == []  # checkpoints go with the point


TRAPS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("", {}),
    "ranks": ("", {"world_size": 2}),
    "timer": ("timer_escapes_device", {"behaviour": "lazy_lying_barrier"}),
    "queue": ("timer_escapes_device", {"behaviour": "naive_queue"}),
    "accumulation": ("timer_escapes_device", {"behaviour": "lazy_lying_barrier", "accumulation": 8, "steps": 8}),
    "padding": ("tokens_counted", {"behaviour": "padding_counted"}),
    "world_size": ("tokens_counted", {"behaviour": "world_multiplied", "world_size": 2}),
    "adapter": ("parameters_consistent", {"behaviour": "counts_before_adapter"}),
    "nan": ("non_finite_loss", {"behaviour": "nan_at"}),
    "nan_and_on": ("non_finite_loss", {"behaviour": "nan_at", "at": 8, "on_non_finite": "continue"}),
    "peak": ("implausible", {"peak_flops": 1e6}),
}
TRAP_BENCH = """
@pytest.mark.parametrize(("trap", {names}), {rows!r}, ids={ids!r})
@nb.bench(lane="lora_sft", params={params!r})
def bench_it(trainer, measure, point, trap, {names_plain}):
    measure.train(trainer, nb.TrainJob.from_point(point))
"""


def trap_bench() -> str:
    defaults = {
        "behaviour": "plain", "world_size": 1, "accumulation": 1, "steps": 12, "at": 3, "on_non_finite": "stop",
        "peak_flops": 1e11,
    }  # fmt: skip
    rows = [(trap, *({**defaults, **changes}.values())) for trap, (_, changes) in TRAPS.items()]
    return TRAP_BENCH.format(
        names=", ".join(map(repr, defaults)), names_plain=", ".join(defaults), rows=rows, ids=list(TRAPS),
        params={**JOB, "work_ms": 8.0},
    )  # fmt: skip


def test_every_trap_is_invalid_by_its_gate_and_honest_runs_beside_it_are_not(ran: Any) -> None:
    project, records = ran, of_file(ran, "traps", "trap")
    for trap, (gate, _) in TRAPS.items():
        found = failed_gates(records[trap])
        assert (gate in found) if gate else not found, (trap, found)
        assert (records[trap]["validity"] == "invalid") is bool(gate)
    assert re.search(r"bench_it.*timer.*INVALID", ran.said)
    # Eight micro-batches and three in the queue: the timer sees most of a step, which looks like a step time.
    table = steps_of(project, records["accumulation"])
    assert float(np.median(table["end_ns"].to_numpy() - table["begin_ns"].to_numpy())) > 0.25 * 8 * 8e6
    # Each rank has its own share of the data, and all of them are counted once.
    table = steps_of(project, records["ranks"])
    assert table.num_rows == 24
    assert value(records["ranks"], "tokens_tokens") == sum(table["tokens"].to_pylist())
    # A loss that is not finite ends the run, unless asked not to; nothing from there on is in a number.
    assert steps_of(project, records["nan"])["step"].to_pylist() == [1, 2, 3]
    assert steps_of(project, records["nan_and_on"])["step"].to_pylist() == list(range(1, 13))
    assert records["nan_and_on"]["workload"]["training"][0]["first_bad_step"] == 8
    assert records["nan_and_on"]["metrics"]["train_throughput_tok_s"]["n"] == 6
    assert (
        records["nan_and_on"]["metrics"]["loss_last"]["value"]
        == steps_of(project, records["nan_and_on"])["loss"][6].as_py()
    )


ENDS = {
    "die_kill": "killed",
    "die_raise": "worker_exception",
    "die_memory": "host_oom",
    "no_barrier": "no_barrier",
    "short": "training_unfinished",
}


def test_a_run_that_is_cut_off_is_an_error_that_keeps_its_steps_and_the_next_point_runs(ran: Any) -> None:
    project, records = ran, of_file(ran, "ends")
    assert records["plain"]["outcome"] == "ok"
    for behaviour, kind in ENDS.items():
        record = records[behaviour]
        assert (record["outcome"], record["validity"]) == ("error", "invalid"), behaviour
        assert record["error"]["kind"] == kind
        assert not any(key.startswith(("train_throughput", "step_time", "mfu", "loss")) for key in record["metrics"])
        done = 16 if behaviour == "no_barrier" else 4
        assert steps_of(project, record)["step"].to_pylist() == list(range(1, done + 1))
        assert record["workload"]["training"][0]["last_step"] == done
    after = records["crash_after_end"]  # the run is whole; that an interpreter crashed while it ended is told
    assert (after["outcome"], after["workload"]["training"][0]["last_step"]) == ("ok", 16)
    assert after["notes"] == ["run 1: done by all ranks, then rank 0: ended by SIGSEGV"]
    killed = records["die_kill"]
    assert "after step 4 of 16" in killed["error"]["message"]
    assert not (folder_of(project, killed) / "steps-rank0.jsonl").exists()
    raised = records["die_raise"]["error"]
    assert raised["causal_line"] == "ValueError: the toy was told to raise"
    assert raised["log"] in records["die_raise"]["attachments"]


DETERMINISM = """
@pytest.mark.parametrize("behaviour", ["plain", "seed_ignored", "unrepeatable"])
@nb.bench(lane="determinism", params={params!r})
def bench_it(trainer, measure, point, behaviour):
    job = nb.TrainJob.from_point(point)
    one, again = measure.train(trainer, job), measure.train(trainer, job)
    other = measure.train(trainer, job.changed(seed=job.seed + 1))
    measure.same_losses(one, again)
    measure.different_losses(one, other)
    with pytest.raises(ValueError, match="these differ in seed 42 and 43"):
        measure.same_losses(one, other)
"""


def test_a_seed_that_does_nothing_and_one_that_is_not_enough_are_caught(ran: Any) -> None:
    project, records = ran, of_file(ran, "seeds")
    assert failed_gates(records["plain"]) == set()
    assert failed_gates(records["seed_ignored"]) == {"losses_differ"}
    assert failed_gates(records["unrepeatable"]) == {"losses_repeat"}
    assert value(records["plain"], "loss_difference_max") == 0
    assert value(records["unrepeatable"], "loss_difference_max") > 0
    (gate,) = [gate for gate in records["seed_ignored"]["gates"] if gate["id"] == "losses_differ"]
    assert gate["message"].endswith("what was changed (seed 42 and 43) has no effect")
    record = records["plain"]
    assert sorted(record["tables"]) == ["steps", "steps-2", "steps-3", "telemetry", "telemetry-2", "telemetry-3"]
    assert steps_of(project, record)["loss"].to_pylist() == steps_of(project, record, "steps-2")["loss"].to_pylist()
    assert [run["job"]["seed"] for run in record["workload"]["training"]] == [42, 42, 43]


CHECKPOINT = """
@nb.bench(lane="checkpoint", params={params!r})
def bench_it(trainer, measure, point):
    whole = measure.train(trainer, nb.TrainJob.from_point(point))
    again = measure.train(trainer, whole.job, resume=whole)
    assert again.steps.resumed_from == 10
    measure.same_losses(whole, again)
    with pytest.raises(ValueError, match="choose checkpoint_every so that it does not divide steps"):
        measure.train(trainer, whole.job.changed(steps=10), resume=measure.train(trainer, whole.job.changed(steps=10)))
"""


def test_a_finished_run_can_be_gone_on_with_from_its_checkpoint_to_compare_the_losses(ran: Any) -> None:
    project = ran
    (record,) = of_file(ran, "checkpoints").values()
    assert failed_gates(record) == set()
    assert record["metrics"]["loss_difference_max"]["n"] == 6
    assert [run["resumed_from"] for run in record["workload"]["training"]] == [0, 10, 0]
    assert steps_of(project, record, "steps-2")["step"].to_pylist() == list(range(11, 17))
    assert value(record, "restore_time_s") >= 0


RESUMED = """
@nb.bench(lane="lora_sft", params={params!r})
def bench_it(trainer, measure, point):
    measure.train(trainer, nb.TrainJob.from_point(point), resume=True)
"""


def test_a_killed_run_is_gone_on_with_by_the_next_session_and_the_record_says_so(project: Any) -> None:
    params = {**JOB, "checkpoint_every": 4, "behaviour": "die_kill", "at": 7}
    project.bench(RESUMED.format(params=params))
    project.run("-m", "fake and lora_sft").assert_outcomes(failed=1)
    (killed,) = project.records()
    assert (killed["outcome"], killed["error"]["kind"]) == ("error", "killed")
    assert killed["error"]["remedy"].endswith("it goes on from the checkpoint of step 4.")
    project.run("-m", "fake and lora_sft").assert_outcomes(passed=1)
    (_, resumed) = sorted(project.records(), key=lambda record: record["started_at"])
    assert resumed["outcome"] == "ok"
    (run,) = resumed["workload"]["training"]
    assert (run["resumed_from"], run["attempts"], run["last_step"], run["complete"]) == (4, 2, 16, True)
    assert steps_of(project, resumed)["step"].to_pylist() == list(range(5, 17))
    assert value(resumed, "tokens_tokens") <= sum(steps_of(project, resumed)["tokens"].to_pylist())
    assert list((project.path / "cache" / "training").rglob("*.json")) == []


SUICIDE = """
import os, pathlib, signal, threading, time
@nb.bench(lane="lora_sft", params={params!r})
def bench_it(trainer, measure, point):
    live = measure.folder / "steps-rank0.jsonl"
    def end():
        until = time.monotonic() + 200
        while time.monotonic() < until and (not live.exists() or live.read_text().count("step\\"") < 3):
            time.sleep(0.01)
        os.kill(os.getpid(), {signal})
    threading.Thread(target=end, daemon=True).start()
    measure.train(trainer, nb.TrainJob.from_point(point))

@nb.bench(lane="lora_sft", params={after!r})
def bench_other(trainer, measure, point):
    measure.train(trainer, nb.TrainJob.from_point(point))
"""


@pytest.mark.parametrize("signal", ["signal.SIGINT", "signal.SIGKILL"])
def test_when_the_harness_itself_ends_the_run_is_interrupted_and_its_steps_are_kept(project: Any, signal: str) -> None:
    project.bench(SUICIDE.format(params={**JOB, "steps": 5000}, after=JOB, signal=signal))
    project.run("-m", "fake and lora_sft", "-k", "bench_it")
    project.run("-m", "fake and lora_sft", "-k", "bench_other").assert_outcomes(passed=1)
    records = {record["point"]["benchmark"].rpartition("::")[2]: record for record in project.records()}
    assert records["bench_other"]["outcome"] == "ok"
    cut = records["bench_it"]
    assert (cut["outcome"], cut["validity"]) == ("interrupted", "invalid")
    assert not any(key.startswith("train_throughput") for key in cut["metrics"])
    if signal == "signal.SIGINT":
        assert steps_of(project, cut).num_rows >= 2
    else:
        text = (folder_of(project, cut) / "steps-rank0.jsonl").read_text()
        assert json.loads(text.splitlines()[1])["kind"] == "step"
        assert "steps-rank0.jsonl" in cut["attachments"]
    assert list((project.path / "cache" / "training" / "runs").iterdir()) == []


LADDER = """
@nb.bench(lane="batch_ladder", params={params!r})
def bench_it(trainer, measure, point):
    job, fits = nb.TrainJob.from_point(point), 0
    for batch_size, steps in ((1, 4), (2, 12), (4, 4)):
        try:
            measure.train(trainer, job.changed(batch_size=batch_size, steps=steps))
            fits = batch_size
        except nb.PointFailure as error:
            assert error.failure.kind == "killed"
    measure.metric("largest_batch", fits)
"""


def test_a_benchmark_can_go_on_after_a_run_that_killed_its_worker(ran: Any) -> None:
    project = ran
    (record,) = of_file(ran, "ladder").values()
    assert value(record, "largest_batch_sequences") == 4
    assert [run["complete"] for run in record["workload"]["training"]] == [True, False, True]
    assert "run 3: the trainer had died and was started again" in record["notes"]
    assert steps_of(project, record, "steps-2")["step"].to_pylist() == list(range(1, 8))
