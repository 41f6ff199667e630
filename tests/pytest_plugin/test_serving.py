"""The whole pass against a server of known timings: boot, measure, record, in a throw-away project."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pyarrow.parquet as parquet
import pytest

BENCH = """
@pytest.mark.parametrize("concurrency", [1, 4])
def bench_load(endpoint, measure, concurrency):
    served = measure.serve(endpoint, nb.closed_loop(concurrency, duration_s=1.0),
                           nb.synthetic(input_tokens=32, output_tokens=8))
    assert served["ttft_p50_ms"] > 0
    measure.check("error_rate_share", at_most=0)
"""


def scenario(name: str, *, seconds: float = 1.0, args: tuple[str, ...] = (), concurrency: int = 2) -> str:
    return f"""
@nb.bench(lane="serving", params={{"scenario": {name!r}, "server_args": {list(args)!r}}})
def bench_scenario(endpoint, measure):
    measure.serve(endpoint, nb.closed_loop({concurrency}, duration_s={seconds}),
                  nb.synthetic(input_tokens=32, output_tokens=16))
    measure.check("error_rate_share", at_most=0)

@nb.bench(lane="serving")
def bench_next(endpoint, measure):
    measure.serve(endpoint, nb.closed_loop(1, requests=5), nb.synthetic(input_tokens=8, output_tokens=4))
"""


@pytest.fixture(autouse=True)
def own_process(project) -> None:
    project.in_process = False


def survivors(project) -> list[psutil.Process]:
    """Processes of this project's runs that are still there, found by the project's own folder."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = str(project.path) in " ".join([process.cwd(), *process.cmdline()])
            if process.pid != os.getpid() and mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_for(condition, *, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_the_whole_pass_gives_numbers_near_the_truth_tables_and_one_boot(project) -> None:
    project.bench(BENCH)
    result = project.run("-m", "truth", "-v")
    result.assert_outcomes(passed=2)
    (boot,) = project.records("boot")
    assert boot["outcome"] == "ok"
    assert boot["metrics"]["boot_time_s"]["value"] > 0
    for record in project.records():
        metrics = record["metrics"]
        assert record["outcome"] == "ok"
        assert record["provenance"] == "simulated"
        # Never less than the truth; how much more, a busy host decides (tests/load compares with the server's log).
        assert 20 <= metrics["ttft_p50_ms"]["value"] < 600
        assert 1.5 <= metrics["tpot_p50_ms"]["value"] < 60
        assert metrics["output_throughput_tok_s"]["value"] > 0
        assert metrics["server_rss_max_MiB"]["value"] > 1
        assert metrics["ttft_p50_ms"]["definition"] == "ttft@1"
        folder = project.receipts / record["session"] / record["name"]
        requests = parquet.read_table(folder / record["tables"]["requests"]).to_pylist()
        assert sum(row["in_window"] for row in requests) == metrics["ttft_p50_ms"]["n"]
        assert parquet.read_table(folder / record["tables"]["telemetry"]).num_rows > 0
        assert not list(folder.glob(".load*"))
    result.stdout.fnmatch_lines(["*bench_load*TTFT p50*tok/s*"])  # PASSED, or INVALID where the host was busy
    assert survivors(project) == []


def test_a_server_that_dies_in_the_window_is_an_error_with_its_cause_and_the_next_point_boots_anew(project) -> None:
    project.bench(scenario("die,after=20", seconds=5.0))
    result = project.run("-m", "truth", "--nb-deadline", "point=30")
    result.assert_outcomes(failed=1, passed=1)
    records = {record["point"]["benchmark"].rpartition("bench_")[2]: record for record in project.records()}
    dead = records["scenario"]
    assert dead["outcome"] == "error"
    assert dead["error"]["phase"] == "window"
    assert dead["error"]["kind"]
    assert dead["error"]["message"] or dead["error"]["causal_line"]
    assert dead["error"]["remedy"]
    assert dead["validity"] == "invalid"
    assert dead["tables"]["requests"]
    assert records["next"]["outcome"] == "ok"
    assert survivors(project) == []


def test_a_server_that_freezes_is_a_timeout_within_the_deadline(project) -> None:
    project.bench(scenario("silent", seconds=1.0))
    result = project.run("-m", "truth", "--nb-deadline", "point=4", "--nb-deadline", "request=3600")
    records = {record["point"]["benchmark"].rpartition("bench_")[2]: record for record in project.records()}
    assert records["scenario"]["outcome"] == "timeout"
    assert records["scenario"]["error"]["kind"] == "point_timeout"
    assert records["next"]["outcome"] == "ok"
    result.assert_outcomes(failed=1, passed=1)


def test_a_server_that_fails_every_request_is_found_in_the_warm_up(project) -> None:
    project.bench(scenario("no_done"))
    project.run("-m", "truth").assert_outcomes(failed=1, passed=1)
    records = {record["point"]["benchmark"].rpartition("bench_")[2]: record for record in project.records()}
    assert records["scenario"]["outcome"] == "error"
    assert records["scenario"]["error"]["kind"] == "all_requests_failed"
    assert "no_done" in records["scenario"]["error"]["message"]
    assert records["scenario"]["validity"] == "invalid"
    assert records["next"]["outcome"] == "ok"


def test_failed_requests_count_in_the_tail_and_by_class(project) -> None:
    project.bench(scenario("plain", args=("--freeze-at-s", "7.0", "--freeze-s", "2.0"), seconds=10.0))
    project.run("-m", "truth", "-k", "scenario", "--nb-deadline", "request=0.8").assert_outcomes(failed=1)
    (record,) = project.records()
    assert record["outcome"] == "slo_miss"
    assert 0 < record["metrics"]["error_rate_share"]["value"] < 1
    assert set(record["workload"]["failures"]) == {"total_timeout"}
    assert record["metrics"]["ttft_max_ms"]["value"] is None
    assert record["metrics"]["ttft_ok_p50_ms"]["value"] > 0
    assert record["validity"] == "invalid"


def test_a_port_in_use_is_an_error_that_names_it_and_nothing_is_started(project) -> None:
    project.bench(BENCH)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = project.run("-m", "truth", "--nb-port", str(port))
    result.assert_outcomes(errors=2)
    (boot,) = project.records("boot")
    assert boot["outcome"] == "error"
    assert boot["error"]["kind"] == "port_in_use"
    assert str(port) in boot["error"]["message"]
    assert boot["error"]["remedy"]
    assert {record["error"]["kind"] for record in project.records()} == {"port_in_use"}


def test_a_server_that_never_becomes_ready_is_a_timeout_of_the_boot(project) -> None:
    project.bench(scenario("plain", args=("--accept-delay-ms", "60000")))
    project.run("-m", "truth", "--nb-deadline", "boot=10").assert_outcomes(errors=1, passed=1)
    boots = {record["outcome"]: record for record in project.records("boot")}
    assert boots["timeout"]["error"]["kind"] == "boot_timeout"
    assert boots["timeout"]["error"]["remedy"]
    assert "server.log" in boots["timeout"]["attachments"]
    assert boots["ok"]
    assert survivors(project) == []


def test_a_server_that_cannot_start_is_an_error_with_the_causal_line(project) -> None:
    project.bench(scenario("plain", args=("--no-such-option",)))
    project.run("-m", "truth").assert_outcomes(errors=1, passed=1)
    boots = {record["outcome"]: record for record in project.records("boot")}
    assert "--no-such-option" in boots["error"]["error"]["causal_line"]
    assert boots["error"]["error"]["exit_status"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_pytest_ends_in_a_window_no_process_survives_and_receipts_stay(project, number) -> None:
    project.bench(BENCH.replace("duration_s=1.0", "duration_s=120 if concurrency == 4 else 0.5"))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "truth", "--nb-tracking-uri", "off"],
        cwd=project.path,
        env={**os.environ, "PYTHONPATH": str(project.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )

    def spilling() -> bool:
        return any(path.stat().st_size for path in project.receipts.glob("*/.open-*c4*/.load/out/*.bin"))

    wait_for(lambda: spilling() or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0].decode()
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    wait_for(lambda: not survivors(project))
    records = {record["point"]["params"]["concurrency"]: record for record in project.records()}
    assert records[1]["outcome"] == "ok", output.decode()
    assert records[1]["metrics"]["ttft_p50_ms"]["value"] > 0
    if number == signal.SIGKILL:
        assert 4 not in records
        from neuronbench.receipts import recover

        recover(project.receipts)
        records = {record["point"]["params"]["concurrency"]: record for record in project.records()}
    assert records[4]["outcome"] == "interrupted"
    pids = list(project.receipts.glob("*/pids/*.json"))
    assert pids == [] or number == signal.SIGKILL


def test_telemetry_can_be_asked_for_more_and_read_after(project) -> None:
    project.pytester.makepyfile(
        mysampler="class Ramp:\n    def __init__(self): self.n = 0\n"
        "    def read(self):\n        self.n += 1\n        return {'n': float(self.n)}\n"
    )
    project.bench(
        """
def bench_it(endpoint, measure, telemetry):
    telemetry.add(nb.SamplerSpec(name="ramp", target="mysampler:Ramp", period_s=0.1))
    measure.serve(endpoint, nb.closed_loop(1, duration_s=1.0), nb.synthetic(input_tokens=8, output_tokens=4))
    assert telemetry.result is not None
"""
    )
    project.run("-m", "truth").assert_outcomes(passed=1)
    (record,) = project.records()
    table = project.receipts / record["session"] / record["name"] / "telemetry.parquet"
    samplers = set(parquet.read_table(table)["sampler"].to_pylist())
    assert {"ramp", "server", "host"} <= samplers


def test_an_unreachable_mlflow_leaves_receipts_pending_and_push_delivers_them_once(project, monkeypatch) -> None:
    project.bench(BENCH)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    result = project.run("-m", "truth", "--nb-tracking-uri", nowhere, mlflow=True)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*receipts are pending*", "*neuronbench push*"])
    command = [sys.executable, "-m", "neuronbench.cli", "push"]
    for expected in ("3 delivered", "nothing is pending"):
        pushed = subprocess.run(command, cwd=project.path, capture_output=True, text=True, timeout=120, check=False)
        assert pushed.returncode == 0, pushed.stdout + pushed.stderr
        assert expected in pushed.stdout
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{Path(project.path, 'mlruns', 'mlflow.db')}")
    experiment = client.get_experiment_by_name("neuronbench/serving")
    runs = client.search_runs([experiment.experiment_id])
    receipts = [run.data.tags["nb.receipt"] for run in runs if "nb.receipt" in run.data.tags]
    assert sorted(receipts) == sorted(set(receipts))
    assert len(receipts) == 3
    by_receipt = {run.data.tags["nb.receipt"]: run for run in runs if "nb.receipt" in run.data.tags}
    for record in project.records():
        run = by_receipt[f"{record['session']}/{record['name']}"]
        assert run.info.status == "FINISHED"
        assert run.data.metrics["ttft/p50_ms"] == record["metrics"]["ttft_p50_ms"]["value"]
