"""Compiled models through pytest: compile records, loops, traps, failures, pytest-benchmark; with real toy workers."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow.parquet as parquet
import pytest


@pytest.fixture
def project(project: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs of a process of their own, by the host's clock."""
    project.in_process = False
    monkeypatch.setenv("NEURONBENCH_CACHE_DIR", str(project.path / "cache"))
    return project


def of_file(project: Any, name: str, param: str = "behaviour") -> dict[str, dict[str, Any]]:
    """Records of the benchmarks in that file, by a parameter."""
    return {
        record["point"]["params"].get(param): record
        for record in project.records()
        if record["point"]["benchmark"].startswith(f"bench_{name}.py")
    }


def failed_gates(record: dict[str, Any]) -> set[str]:
    return {gate["id"] for gate in record["gates"] if gate["passed"] is False and gate["severity"] == "invalid"}


LOOPS = """
@nb.bench(lane="encoder", params={"work_us": 2000})
def bench_latency(compiled_model, measure):
    timed = measure.latency(compiled_model, calls=400)
    assert timed["latency_p50_ms"] >= 2

@nb.bench(lane="encoder", params={"work_us": 2000})
def bench_throughput(compiled_model, measure):
    measure.throughput(compiled_model, seconds=1.5, workers=1)
    measure.check("throughput_items_s", at_most=2 / 0.002)

@nb.bench(lane="encoder", params={"work_us": 2000})
def bench_both_and_agreement(compiled_model, measure):
    measure.latency(compiled_model, calls=20)
    measure.throughput(compiled_model, seconds=0.3, workers=1)
    measure.agreement(compiled_model, compiled_model.batch(seed=3))
    measure.check("max_abs_err", at_most=1e-6)
"""


TRAPS = {
    "asynchronous": "timer_escapes_device",
    "queued": "timer_escapes_device",
    "nan": "non_finite_output",
    "turns_nan": "non_finite_output",
    "too_fast": "implausible",
    "ignores_mask": "mask_ignored",
}
TRAP_BENCH = f"""
@pytest.mark.parametrize("behaviour", {["plain", *TRAPS]!r})
@nb.bench(lane="encoder", params={{"work_us": 2000}})
def bench_trap(compiled_model, measure, behaviour):
    measure.latency(compiled_model, calls=150)
"""
WAYS = {
    "end_kill": "killed",
    "end_exit": "worker_exited",
    "end_raise": "worker_exception",
    "end_memory": "host_oom",
}
WAYS_BENCH = f"""
@pytest.mark.parametrize("behaviour", {[name for way in WAYS for name in (way, f"after_{way}")]!r})
@nb.bench(lane="encoder")
def bench_way(compiled_model, measure, behaviour):
    measure.latency(compiled_model, calls=30)

@pytest.mark.parametrize("again", [1, 2])
@nb.bench(lane="encoder", params={{"behaviour": "end_kill"}})
def bench_again(compiled_model, measure, again):
    measure.latency(compiled_model, calls=30)
"""
GARBAGE_BENCH = """
@pytest.mark.parametrize("behaviour", ["end_print", "end_garbage", "end_babble", "after_babble"])
@nb.bench(lane="encoder", params={"work_us": 500})
def bench_garbage(compiled_model, measure, behaviour):
    measure.latency(compiled_model, calls=60)
"""
HANG_BENCH = """
@pytest.mark.parametrize("behaviour", ["end_hang", "after_hang"])
@nb.bench(lane="encoder", params={"work_us": 400})
def bench_hang(compiled_model, behaviour):
    if behaviour == "end_hang":
        compiled_model._plan.call_deadline_s = 5.0
    compiled_model.latency(calls=30)
"""
BY_BENCHMARK = """
@pytest.mark.parametrize("behaviour", ["asynchronous", "too_fast", "nan", "ignores_mask"])
@nb.bench(lane="encoder", params={"work_us": 3000})
def bench_call(compiled_model, benchmark, behaviour):
    benchmark.pedantic(compiled_model.call, rounds=10)
"""


@pytest.fixture(scope="module")
def ran(whole: Any) -> Any:
    """One run for all tests that look at what loops, traps and ends leave: by the toys' own clock."""
    project = whole(
        bench_loops=LOOPS, bench_traps=TRAP_BENCH, bench_ways=WAYS_BENCH, bench_garbage=GARBAGE_BENCH,
        bench_hang=HANG_BENCH, bench_by_benchmark=BY_BENCHMARK,
    )  # fmt: skip
    project.outcomes = project.run("-m", "fake and encoder", "-v")
    return project


def test_every_point_runs_whatever_became_of_the_one_before(ran: Any) -> None:
    assert ran.outcomes == {"passed": 3 + 7 + 4 + 3 + 1 + 4, "failed": 4 + 2 + 1 + 1}, ran.said


def test_loops_are_recorded_with_bounds_gates_and_every_call_and_one_compile_serves_them(ran: Any) -> None:
    project = ran
    assert re.search(r"PASSED .*p50.*ms", ran.said)
    assert re.search(r"^compiles: 1 compiled, \d+ from the cache$", ran.said, re.MULTILINE)
    first = next(record for record in project.records() if record["point"]["benchmark"].endswith("bench_latency"))
    (made,) = [
        each for each in project.records("compile")
        if f"{each['session']}/{each['name']}" == first["resource"]["boot_receipt"]
    ]  # fmt: skip
    assert made["outcome"] == "ok"
    assert made["name"].startswith("compile-compiled_model-")
    compiled = [each for each in project.records("compile") if each["outcome"] == "ok"]
    assert sum(each["metrics"]["cache_misses_artifacts"]["value"] for each in compiled) == 1
    records = {
        record["point"]["benchmark"].rpartition("bench_")[2]: record
        for record in project.records()
        if record["point"]["benchmark"].startswith("bench_loops.py")
    }
    assert len(records) == 3
    assert all(record["resource"]["boot_receipt"] == f"{made['session']}/{made['name']}" for record in records.values())

    latency = records["latency"]
    assert latency["validity"] == "provisional"  # until something has shown that the model answers right
    assert [gate["id"] for gate in latency["gates"] if gate["passed"] is False] == ["accuracy_evidence"]
    assert failed_gates(latency) == set()
    p50 = latency["metrics"]["latency_p50_ms"]
    assert 2 <= p50["low"] <= p50["value"] <= p50["high"]
    assert p50["n"] == 400
    assert latency["metrics"]["latency_wall_ms"]["value"] >= 2
    assert latency["metrics"]["worker_rss_max_MiB"]["value"] > 1
    folder = project.receipts / latency["session"] / latency["name"]
    calls = parquet.read_table(folder / latency["tables"]["calls"])
    assert calls.num_rows == 400
    assert min(calls["duration_ns"].to_pylist()) >= 2_000_000
    assert parquet.read_table(folder / latency["tables"]["telemetry"]).num_rows > 0
    assert latency["workload"]["loops"][0]["batch_size"] == 2

    rate = records["throughput"]["metrics"]["throughput_items_s"]
    rows = parquet.read_table(project.receipts / latency["session"] / records["throughput"]["name"] / "calls.parquet")
    assert rate["value"] == pytest.approx(2 * sum(rows["in_window"].to_pylist()) / 1.5)
    assert records["throughput"]["metrics"]["throughput_wall_items_s"]["value"] <= 2 / 0.002
    both = records["both_and_agreement"]
    assert both["metrics"]["latency_p50_ms"]["n"] == 20  # of the first measurement; results are never overwritten
    assert len(both["workload"]["loops"]) == 2
    assert both["metrics"]["max_abs_err"]["value"] == 0


def test_every_trap_is_invalid_by_its_gate_and_honest_points_around_it_are_not(ran: Any) -> None:
    records = of_file(ran, "traps")
    assert failed_gates(records["plain"]) == set()
    for behaviour, gate in TRAPS.items():
        assert gate in failed_gates(records[behaviour]), behaviour
        assert records[behaviour]["validity"] == "invalid"
        assert records[behaviour]["metrics"]["latency_mean_ms"]["n"] == 150
    assert re.search(r"INVALID.*p50.*ms", ran.said)
    assert re.search(r"invalid: mask_ignored.*padding", ran.said)


def test_every_way_of_failing_is_classified_and_the_next_point_runs(ran: Any) -> None:
    records = {record["point"]["id"]: record for record in ran.records()}
    for way, kind in WAYS.items():
        failed = records[f"encoder.way-fake-behaviour={way}"]
        assert failed["outcome"] == "error", way
        assert failed["error"]["kind"] == kind
        assert failed["error"]["phase"] == "window"
        assert failed["error"]["message"]
        assert records[f"encoder.way-fake-behaviour=after_{way}"]["outcome"] == "ok"
    raised = records["encoder.way-fake-behaviour=end_raise"]
    assert raised["error"]["causal_line"] == "ValueError: the toy was told to raise"
    assert raised["error"]["log"] in raised["attachments"]
    # A model that was killed is made again for the next point that needs it, from the artifact that is there.
    assert [record["error"]["kind"] for id, record in records.items() if "again" in id] == ["killed", "killed"]
    boots = [record["resource"]["boot_receipt"] for id, record in records.items() if "again" in id]
    assert len(set(boots)) == 2
    assert sum(name.endswith("-2") for name in boots) == 1


def test_garbage_of_a_worker_is_put_aside_or_classified_and_the_next_point_runs(ran: Any) -> None:
    records = of_file(ran, "garbage")
    for behaviour in ("end_print", "end_garbage", "after_babble"):
        assert records[behaviour]["outcome"] == "ok", behaviour
        assert failed_gates(records[behaviour]) == set(), behaviour
        assert records[behaviour]["metrics"]["latency_mean_ms"]["n"] == 60
    lost = records["end_babble"]
    assert (lost["outcome"], lost["error"]["kind"], lost["error"]["phase"]) == ("error", "worker_protocol", "window")
    assert "MiB" in lost["error"]["message"]
    assert lost["error"]["log"] in lost["attachments"]


def test_a_worker_that_hangs_is_a_timeout(ran: Any) -> None:
    records = of_file(ran, "hang")
    hung = records["end_hang"]
    assert (hung["outcome"], hung["error"]["kind"]) == ("timeout", "worker_timeout")
    assert hung["error"]["causal_line"] == "about to hang"
    assert records["after_hang"]["outcome"] == "ok"


BENCH = '@nb.bench(lane="encoder", params={"work_us": 100, "flags": FLAGS})\ndef bench_it(compiled_model):\n    pass\n'


def test_a_second_session_compiles_nothing_and_says_so_and_another_flag_compiles_again(project) -> None:
    project.bench(BENCH.replace("FLAGS", "{}"))
    project.run("-m", "fake and encoder").stdout.fnmatch_lines(["compiles: 1 compiled, 0 from the cache"])
    again = project.run("-m", "fake and encoder")
    again.stdout.fnmatch_lines(["compiles: nothing was compiled, 1 from the cache"])
    first, second = project.records("compile")
    assert (first["resource"]["facts"]["artifact"]["cache"], second["resource"]["facts"]["artifact"]["cache"]) == (
        "miss",
        "hit",
    )
    assert second["metrics"]["cache_hits_artifacts"]["value"] == 1
    project.bench(BENCH.replace("FLAGS", "{'fast': True}"))
    project.run("-m", "fake and encoder").stdout.fnmatch_lines(["compiles: 1 compiled, 0 from the cache"])
    journal = (project.path / "cache" / "artifacts" / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in journal] == ["miss", "published", "hit", "miss", "published"]


def test_a_compile_that_fails_is_a_record_and_is_tried_again_in_the_next_session(project) -> None:
    kinds = {"break": "worker_exception", "die": "killed"}
    project.bench(
        f'@pytest.mark.parametrize("flags", [{{"break": True}}, {{"die": True}}], ids={list(kinds)!r})\n'
        '@nb.bench(lane="encoder", params={"work_us": 100})\ndef bench_it(compiled_model, flags):\n    pass\n'
    )
    for _ in range(2):
        project.run("-m", "fake and encoder").assert_outcomes(errors=2)
    for flag, kind in kinds.items():
        both = [made for made in project.records("compile") if flag in made["resource"]["spec"]["flags"]]
        assert len(both) == 2
        for record in both:
            assert record["outcome"] == "error"
            assert record["error"]["kind"] == kind
            assert record["error"]["phase"] == "boot"
    failures = list((project.path / "cache" / "artifacts").glob("*.failure.json"))
    assert [json.loads(failure.read_text())["times"] for failure in failures] == [2, 2]
    for failure in failures:
        failure.unlink()


CALL = """
@nb.bench(lane="encoder", params={"work_us": 3000})
def bench_call(compiled_model, benchmark):
    benchmark.pedantic(compiled_model.call, rounds=30, warmup_rounds=2)

@pytest.mark.benchmark(group="mine", min_rounds=3, max_time=0.05)
@nb.bench(lane="encoder", params={"work_us": 3000})
def bench_calibrated(compiled_model, benchmark):
    benchmark(compiled_model.call)
"""


def test_pytest_benchmark_times_a_compiled_model_by_the_workers_clock(project) -> None:
    project.bench(CALL)
    result = project.run("-m", "fake and encoder", "--benchmark-json", "out.json", "--benchmark-save", "one")
    result.assert_outcomes(passed=2)
    output = json.loads((project.path / "out.json").read_text())
    entries = {entry["name"].partition("[")[0]: entry for entry in output["benchmarks"]}
    call = entries["bench_call"]
    assert call["stats"]["rounds"] == 30
    assert call["stats"]["min"] >= 0.003
    assert entries["bench_calibrated"]["group"] == "mine"
    assert entries["bench_calibrated"]["options"]["timer"] == "worker_clock"
    assert output["machine_info"]["neuronbench"]["cpu_model"]
    assert output["machine_info"]["neuronbench"]["backends"]["fake"]["fake.version"] == "1"

    records = {record["point"]["benchmark"].rpartition("bench_")[2]: record for record in project.records()}
    record = records["call"]
    told = call["extra_info"]["neuronbench"]
    assert told["receipt"].endswith(record["name"])
    assert told["validity"] == record["validity"]
    latency = record["metrics"]["latency_mean_ms"]
    assert latency["n"] == 30
    assert latency["value"] == pytest.approx(1e3 * call["stats"]["mean"])
    assert {gate["id"] for gate in record["gates"]} == {
        "timer_escapes_device", "implausible", "non_finite_output", "mask_ignored", "telemetry", "accuracy_evidence",
    }  # fmt: skip
    assert {"worker_cpu_mean_pct", "worker_rss_max_MiB"} <= record["metrics"].keys()
    folder = project.receipts / record["session"] / record["name"]
    assert parquet.read_table(folder / record["tables"]["telemetry"]).num_rows > 0
    assert not list(folder.glob(".rounds*"))
    window = record["workload"]["pytest_benchmark"]["window"]
    assert window["end_ns"] - window["start_ns"] >= 30 * 3_000_000  # thirty calls, one after the other
    assert record["workload"]["pytest_benchmark"]["timer"] == "worker_clock"
    rounds = parquet.read_table(project.receipts / record["session"] / record["name"] / record["tables"]["rounds"])
    durations = rounds["duration_ns"].to_pylist()
    assert rounds["round"].to_pylist() == list(range(30))
    assert sum(durations) / 30 == pytest.approx(1e6 * latency["value"])
    assert min(durations) == pytest.approx(1e9 * call["stats"]["min"])
    assert durations != sorted(durations)  # in the order they ran
    again = project.run("-m", "fake and encoder", "--benchmark-compare", "--benchmark-compare-fail", "mean:5000%")
    again.assert_outcomes(passed=2)
    for row in ("*bench_call*(NOW)*", "*bench_call*(0001_one)*"):
        again.stdout.fnmatch_lines([row])


def test_traps_do_not_pass_by_pytest_benchmark_either(ran: Any) -> None:
    records = of_file(ran, "by_benchmark")
    assert "timer_escapes_device" in failed_gates(records["asynchronous"])
    assert "implausible" in failed_gates(records["too_fast"])
    assert "non_finite_output" in failed_gates(records["nan"])
    assert "mask_ignored" in failed_gates(records["ignores_mask"])


PLAIN = """
import pytest

@pytest.mark.parametrize("size", [10, 100])
def test_sum(benchmark, size):
    benchmark(sum, range(size))

def test_wrong(benchmark):
    benchmark.pedantic(sum, args=([1],), rounds=5)
    assert 1 == 2

def test_nothing():
    pass
"""


def test_any_test_that_pytest_benchmark_timed_can_leave_a_receipt(project) -> None:
    project.pytester.makepyfile(test_plain=PLAIN)
    project.run("--benchmark-max-time", "0.01").assert_outcomes(passed=3, failed=1)
    assert project.records() == []
    result = project.run("--benchmark-max-time", "0.01", "--nb-record-benchmarks", "--benchmark-json", "out.json")
    result.assert_outcomes(passed=3, failed=1)
    records = {record["point"]["id"]: record for record in project.records()}
    assert set(records) == {
        "microbench.test_sum-cpu-size=10", "microbench.test_sum-cpu-size=100", "microbench.test_wrong-cpu",
    }  # fmt: skip
    small = records["microbench.test_sum-cpu-size=10"]
    assert small["outcome"] == "ok"
    assert small["point"]["params"] == {"size": 10}
    assert small["metrics"]["call_time_mean_ms"]["value"] > 0
    wrong = records["microbench.test_wrong-cpu"]
    assert wrong["outcome"] == "failed"
    assert wrong["metrics"]["call_time_mean_ms"]["n"] == 5
    kept = parquet.read_table(project.receipts / wrong["session"] / wrong["name"] / wrong["tables"]["rounds"])
    assert kept.num_rows == 5  # also those of a test that failed
    assert "assert 1 == 2" in wrong["error"]["message"]
    entries = json.loads((project.path / "out.json").read_text())["benchmarks"]
    cited = {entry["name"]: entry["extra_info"]["neuronbench"]["receipt"] for entry in entries}
    assert cited["test_sum[10]"].endswith(small["name"])
    result.stdout.fnmatch_lines(["*microbench: *"])
