"""The whole pass against a server of known timings: boot, measure, record, in a throw-away project."""

from __future__ import annotations

import json
import os
import re
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

from neuronbench import stats

BENCH = """
@pytest.mark.parametrize("concurrency", [1, 4])
def bench_load(endpoint, measure, concurrency):
    served = measure.serve(endpoint, nb.closed_loop(concurrency, requests=20),
                           nb.synthetic(input_tokens=32, output_tokens=8))
    assert served["ttft_p50_ms"] > 0
    measure.check("error_rate_share", at_most=0)
"""
LOGGED = """
import pathlib
LOG = str(pathlib.Path(__file__).with_name("truth.jsonl"))

@pytest.mark.parametrize("concurrency", [1, 4])
@nb.bench(lane="serving", params={"server_args": ["--log", LOG]})
def bench_load(endpoint, measure, concurrency):
    served = measure.serve(endpoint, nb.closed_loop(concurrency, requests=60 * concurrency),
                           nb.synthetic(input_tokens=32, output_tokens=8))
    assert served["ttft_p50_ms"] > 0
    measure.check("error_rate_share", at_most=0)
"""
IMPATIENT = """
import dataclasses
from neuronbench.testing.fake_backend import TruthProvider

class Impatient(TruthProvider):
    def boot(self, spec, context):
        if "--accept-delay-ms" in spec.settings["server_args"]:  # no patience with what never answers, all with others
            context = dataclasses.replace(context, deadline_s=4.0)
        return super().boot(spec, context)
"""
NEXT = """
@nb.bench(lane="serving", params={"ttft_ms": 21})
def bench_next(endpoint, measure):
    measure.serve(endpoint, nb.closed_loop(1, requests=5), nb.synthetic(input_tokens=8, output_tokens=4))
"""
SAMPLED = """
@nb.bench(lane="serving", params={"ttft_ms": 22})
def bench_sampled(endpoint, measure, telemetry):
    telemetry.add(nb.SamplerSpec(name="ramp", target="mysampler:Ramp", period_s=0.1))
    measure.serve(endpoint, nb.closed_loop(1, requests=20), nb.synthetic(input_tokens=8, output_tokens=4))
    assert telemetry.result is not None
"""
RAMP = """
class Ramp:
    def __init__(self): self.n = 0
    def read(self):
        self.n += 1
        return {"n": float(self.n)}
"""


def scenario(
    name: str, scenario: str, *, length: str = "requests=20", args: tuple[str, ...] = (), concurrency: int = 2
) -> str:
    return f"""
@nb.bench(lane="serving", params={{"scenario": {scenario!r}, "server_args": {list(args)!r}}})
def bench_{name}(endpoint, measure):
    measure.serve(endpoint, nb.closed_loop({concurrency}, {length}),
                  nb.synthetic(input_tokens=32, output_tokens=16))
    measure.check("error_rate_share", at_most=0)
"""


@pytest.fixture
def project(project):
    """Runs of a process of their own."""
    project.in_process = False
    return project


@pytest.fixture(scope="module")
def ran(whole):
    """One run for all tests that look at what good servers, bad ones and those that never come leave."""
    project = whole(
        fakes=IMPATIENT,
        truth="fakes:Impatient",
        mysampler=RAMP,
        bench_1_load=LOGGED,
        bench_2_dies=scenario("dies", "die,after=20", length="duration_s=150"),
        bench_3_next=NEXT,
        bench_4_fails=scenario("fails", "no_done"),
        bench_5_never=scenario("never", "plain", args=("--accept-delay-ms", "600000")),
        bench_6_cannot=scenario("cannot", "plain", args=("--no-such-option",)),
        bench_7_sampled=SAMPLED,
    )
    project.outcomes = project.run("-m", "truth", "-v", "--nb-deadline", "point=200")
    project.left_running = survivors(project)
    return project


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


def wait_for(condition, *, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_every_point_runs_whatever_became_of_the_one_before_and_no_process_is_left(ran) -> None:
    assert ran.outcomes == {"passed": 2 + 1 + 1, "failed": 2, "error": 2}, ran.said
    assert ran.left_running == []


def boot_of(project, record):
    boots = {f"{boot['session']}/{boot['name']}": boot for boot in project.records("boot")}
    return boots[record["resource"]["boot_receipt"]]


def test_the_whole_pass_gives_the_truth_tables_and_one_boot(ran) -> None:
    records = [record for record in ran.records() if record["point"]["benchmark"].endswith("bench_load")]
    assert len(records) == 2
    (boot,) = {json.dumps(boot_of(ran, record)) for record in records}
    boot = json.loads(boot)
    assert boot["outcome"] == "ok"
    assert boot["metrics"]["boot_time_s"]["value"] > 0
    answered = [json.loads(line) for line in (ran.path / "truth.jsonl").read_text().splitlines()]
    answered = [record for record in answered if record["stream"]]
    rows = []
    for record in records:
        metrics = record["metrics"]
        assert record["outcome"] == "ok"
        assert record["provenance"] == "simulated"
        folder = ran.folder_of(record)
        requests = parquet.read_table(folder / record["tables"]["requests"]).to_pylist()
        rows += requests
        inside = [row for row in requests if row["in_window"]]
        assert len(inside) == metrics["ttft_p50_ms"]["n"] >= 60
        # Never less than the truth; how much more, a busy host decides: the numbers are those of the table,
        # and the table is the server's own log.
        assert metrics["ttft_p50_ms"]["value"] >= 20
        waits = [(row["first_output_ns"] - row["sent_ns"]) / 1e6 for row in inside]
        steps = [(row["last_output_ns"] - row["first_output_ns"]) / 7e6 for row in inside]
        assert metrics["ttft_p50_ms"]["value"] == pytest.approx(stats.percentile(waits, 0.5))
        assert metrics["tpot_p50_ms"]["value"] == pytest.approx(stats.percentile(steps, 0.5))
        assert metrics["output_throughput_tok_s"]["value"] > 0
        assert metrics["server_rss_max_MiB"]["value"] > 1
        assert metrics["ttft_p50_ms"]["definition"] == "ttft@1"
        assert parquet.read_table(folder / record["tables"]["telemetry"]).num_rows > 0
        assert not list(folder.glob(".load*"))
    assert len(answered) == len(rows)
    left, seen, over = (
        sorted(each[name] for each in of)
        for of, name in ((answered, "first_sent_ns"), (rows, "first_output_ns"), (answered, "done_ns"))
    )
    assert all(a <= b <= c for a, b, c in zip(left, seen, over, strict=True))
    assert re.search(r"bench_load.*TTFT p50.*tok/s", ran.said)  # PASSED, or INVALID where the host was busy


def test_a_server_that_dies_in_the_window_is_an_error_with_its_cause_and_the_next_point_boots_anew(ran) -> None:
    records = ran.named()
    dead = records["dies"]
    assert dead["outcome"] == "error"
    assert dead["error"]["phase"] == "window"
    assert dead["error"]["kind"]
    assert dead["error"]["message"] or dead["error"]["causal_line"]
    assert dead["error"]["remedy"]
    assert dead["validity"] == "invalid"
    assert dead["tables"]["requests"]
    assert records["next"]["outcome"] == "ok"
    assert boot_of(ran, records["next"])["outcome"] == "ok"


def test_a_server_that_freezes_is_a_timeout_within_the_deadline(project) -> None:
    project.bench(scenario("silent", "silent", length="duration_s=1.0") + NEXT)
    # seconds for the next one, too, which a busy host needs to start its processes
    result = project.run("-m", "truth", "--nb-deadline", "point=12", "--nb-deadline", "request=3600")
    records = project.named()
    assert records["silent"]["outcome"] == "timeout"
    assert records["silent"]["error"]["kind"] == "point_timeout"
    assert records["next"]["outcome"] == "ok"
    result.assert_outcomes(failed=1, passed=1)


def test_a_server_that_fails_every_request_is_found_in_the_warm_up(ran) -> None:
    failed = ran.named()["fails"]
    assert failed["outcome"] == "error"
    assert failed["error"]["kind"] == "all_requests_failed"
    assert "no_done" in failed["error"]["message"]
    assert failed["validity"] == "invalid"


def test_failed_requests_count_in_the_tail_and_by_class(project) -> None:
    # frozen by a request of the window: after the warm-up's and the ramp's, well before the last
    project.bench(scenario("frozen", "freeze,after=60,ms=2500", length="requests=100"))
    project.run("-m", "truth", "--nb-deadline", "request=1.0").assert_outcomes(failed=1)
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


def test_a_server_that_never_becomes_ready_is_a_timeout_of_the_boot(ran) -> None:
    records = ran.named()
    boot = boot_of(ran, records["never"])
    assert (boot["outcome"], records["never"]["outcome"]) == ("timeout", "timeout")
    assert boot["error"]["kind"] == "boot_timeout"
    assert boot["error"]["remedy"]
    assert "server.log" in boot["attachments"]


def test_a_server_that_cannot_start_is_an_error_with_the_causal_line(ran) -> None:
    boot = boot_of(ran, ran.named()["cannot"])
    assert boot["outcome"] == "error"
    assert "--no-such-option" in boot["error"]["causal_line"]
    assert boot["error"]["exit_status"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_pytest_ends_in_a_window_no_process_survives_and_receipts_stay(project, number) -> None:
    project.bench(BENCH.replace("requests=20", "**({'duration_s': 250} if concurrency == 4 else {'requests': 10})"))
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
    output, _ = process.communicate(timeout=200)
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


def test_telemetry_can_be_asked_for_more_and_read_after(ran) -> None:
    table = ran.folder_of(ran.named()["sampled"]) / "telemetry.parquet"
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
