"""Whole runs: windows, statuses, ends that were not planned."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from load_helpers import SHORT, VOCABULARY, Run, check_in_flight

from neuronbench import stats
from neuronbench.load.arrivals import closed_loop
from neuronbench.load.plan import make_plan
from neuronbench.load.run import Timeouts, drive, reduce_run
from neuronbench.load.workload import synthetic, uniform, warm_up
from neuronbench.processes import spawn
from neuronbench.testing.truth_server import TruthServer

HOST = {"client_lag", "send_lag", "in_flight", "client_cpu", "steady_state"}
"""Gates by which a busy host is found out."""


def test_a_closed_loop_by_number_of_requests(run: Run) -> None:
    ran = run(closed_loop(4, requests=40))
    assert ran.drive.status == "ok"
    assert not ran.drive.partial
    inside = ran.inside
    assert 40 <= len(inside) <= 40 + 4
    assert {row["phase"] for row in inside} == {"window"}
    assert all(row["ok"] for row in ran.rows if row["phase"] != "tail")
    assert ran["error_rate_share"] == 0
    check_in_flight(ran, 4)
    assert ran["output_tokens_mean_tokens"] == 6
    assert ran["input_tokens_mean_tokens"] == 8
    spans = [(row["last_output_ns"] - row["first_output_ns"]) / 1e6 for row in inside]
    assert ran["tpot_p50_ms"] == stats.percentile([span / 5 for span in spans], 0.5)
    assert ran["ttft_p50_ms"] >= 5  # type: ignore[operator]
    assert ran["itl_p50_ms"] == ran["icl_p50_ms"]
    assert {gate.id for gate in ran.reduction.gates if gate.passed is False and gate.severity == "invalid"} <= HOST


def test_the_window_opens_when_every_slot_has_had_its_first_and_nothing_drains(run: Run) -> None:
    # lengths differ, so that the four slots do not end in step, with nobody in flight at that instant
    ran = run(closed_loop(4, requests=30), workload=synthetic(input_tokens=8, output_tokens=uniform(2, 30)),
              model="truth:ttft=20,tpot=5")  # fmt: skip
    rows = sorted((row for row in ran.rows if not row["warmup"]), key=lambda row: row["scheduled_ns"])
    ramp = [row for row in rows if row["phase"] == "ramp"]
    opened, closed = ran.drive.opened_ns, ran.drive.closed_ns
    assert opened is not None
    assert closed is not None
    assert len(ramp) >= 4
    assert sum(row["end_ns"] <= opened for row in ramp) >= 4
    # load goes on across both edges: every slot has a request at each
    for edge in (opened, closed):
        assert sum(row["scheduled_ns"] <= edge < row["end_ns"] for row in rows) == 4
    check_in_flight(ran, 4)
    tail = [row for row in rows if row["phase"] == "tail"]
    assert tail
    assert all((row["phase"] == "window") == (opened <= row["scheduled_ns"] < closed) for row in rows)


def test_a_closed_loop_by_duration(run: Run) -> None:
    ran = run(closed_loop(2, duration_s=0.5))
    assert ran.reduction.window["seconds"] == pytest.approx(0.5)
    tokens = sum(
        1
        for row in ran.rows
        if not row["warmup"]
        for at in instants(row)
        if ran.drive.opened_ns <= at < ran.drive.closed_ns
    )
    assert ran["output_throughput_tok_s"] == pytest.approx(tokens / 0.5)


def instants(row: dict[str, Any]) -> list[int]:
    at = [row["first_output_ns"]] if row["first_output_ns"] else []
    for gap in row["icl_ms"]:
        at.append(at[-1] + round(gap * 1e6))
    return at


def test_warm_up_uses_its_own_prompts_and_is_in_no_metric(run: Run) -> None:
    ran = run(closed_loop(2, requests=6), warmup=warm_up(5))
    warm = [row for row in ran.rows if row["warmup"]]
    assert len(warm) == 5
    assert {row["body"] for row in warm} == set(range(5))
    assert not {row["body"] for row in ran.rows if not row["warmup"]} & set(range(5))
    assert not any(row["in_window"] for row in warm)


def test_the_client_agrees_with_the_server_on_every_instant(truth: TruthServer, run: Run) -> None:
    truth.reset()
    ran = run(closed_loop(2, requests=8))
    sent = sorted(record["first_sent_ns"] for record in truth.truth()["requests"] if record["first_sent_ns"])
    seen = sorted(row["first_output_ns"] for row in ran.rows if row["first_output_ns"])
    assert len(sent) == len(seen)
    assert all(mine >= theirs for mine, theirs in zip(seen, sent, strict=True))


def test_failures_are_in_the_population_of_percentiles(run: Run) -> None:
    ran = run(closed_loop(2, requests=30), model="truth:rate_limited,first=12", warmup=warm_up(0))
    assert ran.drive.status == "ok"
    refused = [row for row in ran.rows if row["failure"] == "http_429"]
    assert len(refused) == 12
    failed = ran.reduction.failures["http_429"]
    assert failed == sum(row["in_window"] for row in refused)
    assert 8 <= failed <= 12
    n = len(ran.inside)
    assert ran["error_rate_share"] == pytest.approx(failed / n)
    metrics = {metric.key: metric for metric in ran.reduction.metrics}
    assert metrics["ttft_p50_ms"].n == n
    assert metrics["ttft_ok_p50_ms"].n == n - failed
    assert metrics["ttft_p90_ms"].value is None
    assert "unbounded" in metrics["ttft_p90_ms"].note
    assert metrics["ttft_ok_p50_ms"].value is not None
    assert metrics["ttft_mean_ms"].value is None
    assert ran.reduction.gate("errors").passed is False
    assert "429" in ran.reduction.gate("errors").message


def test_a_server_without_usage_gets_no_token_metrics(run: Run) -> None:
    ran = run(model="truth:usage,form=absent")
    metrics = {metric.key: metric for metric in ran.reduction.metrics}
    assert metrics["output_throughput_tok_s"].value is None
    assert "no token count" in metrics["output_throughput_tok_s"].note
    assert metrics["tpot_p50_ms"].value is None
    assert metrics["ttft_p50_ms"].value is not None
    assert ran.reduction.gate("output_length").passed is None


def test_hidden_tokens_count_in_throughput(run: Run) -> None:
    plain = run(closed_loop(2, requests=20))
    hidden = run(closed_loop(2, requests=20), model="truth:hidden,count=3")
    for ran in (plain, hidden):
        rows = [row for row in ran.rows if not row["warmup"] and row["output_tokens"]]
        inside = sum(
            row["output_tokens"] / row["chunks"]
            for row in rows
            for at in instants(row)
            if ran.drive.opened_ns <= at < ran.drive.closed_ns
        )
        seconds = ran.reduction.window["seconds"]
        assert ran["output_throughput_tok_s"] == pytest.approx(inside / seconds, rel=0.01)
    assert hidden["tokens_per_chunk_mean_tokens"] == pytest.approx(2)
    assert hidden["itl_p50_ms"] is None


def test_short_answers_fail_the_length_gate(run: Run) -> None:
    ran = run(model="truth:short,by=2")
    assert set(ran.reduction.failures) == {"wrong_length"}
    assert ran.reduction.gate("output_length").passed is False


def test_an_api_key_is_sent_and_never_written_down(tmp_path: Path, run: Run) -> None:
    with TruthServer(ttft_ms=2, tpot_ms=1, api_key="s3cret-key") as server:
        good = run(url=server.url, api_key="s3cret-key")
        bad = run(url=server.url)
    assert good.reduction.failures == {}
    assert bad.drive.status == "all_failed"
    assert "http_401" in {row["failure"] for row in bad.rows}
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"s3cret-key" not in path.read_bytes(), path


def test_when_no_warm_up_request_succeeds_the_run_ends_and_says_why(run: Run) -> None:
    ran = run(model="nobody")
    assert ran.drive.status == "all_failed"
    assert "warm-up" in ran.drive.message
    assert "nobody" in ran.drive.message
    assert ran.reduction.metrics == []
    assert ran.reduction.gate("window_complete").passed is False
    assert {row["failure"] for row in ran.rows} == {"http_404"}


def test_the_deadline_ends_the_run_and_keeps_what_there_is(run: Run) -> None:
    with TruthServer(ttft_ms=40, tpot_ms=4) as server:
        ran = run(closed_loop(2, duration_s=60), url=server.url, deadline_s=6.0)
        answered = [record for record in server.truth()["requests"] if record["outcome"] == "complete"]
    assert ran.drive.status == "timeout"
    assert ran.drive.partial
    assert ran.drive.seconds < 50
    assert ran.reduction.window["partial"] is True
    ended = [row for row in ran.rows if row["ok"]]
    assert len(answered) - 2 <= len(ended) <= len(answered)  # the two in flight may have been left unread
    assert len(ran.inside) > 20
    assert ran.reduction.gate("window_complete").passed is False


def test_a_server_that_dies_ends_the_run_early(run: Run) -> None:
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        ran = run(closed_loop(4, duration_s=60), url=server.url, model="truth:die,after=40", deadline_s=50.0)
    assert ran.drive.status == "server_gone"
    assert ran.drive.seconds < 45
    assert ran.drive.partial
    assert sum(row["ok"] for row in ran.rows) >= 30
    assert {"connect_refused", "disconnected"} & set(ran.reduction.failures)
    assert ran.reduction.gate("window_complete").passed is False


def test_a_killed_driver_leaves_a_partial_result_and_never_a_shorter_success(
    truth: TruthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(
        tmp_path / "plan",
        arrivals=closed_loop(4, duration_s=300),
        workload=synthetic(input_tokens=8, output_tokens=40),
        api="completions",
        model="truth",
        vocabulary=VOCABULARY,
    )
    heard: list[dict[str, Any]] = []
    driver: list[Any] = []
    killed: list[dict[str, Any]] = []
    monkeypatch.setattr("neuronbench.load.run.describe", json.dumps)  # the line as the driver said it

    def remembering(*args: Any, **options: Any) -> Any:
        driver.append(spawn(*args, **options))
        return driver[-1]

    def progress(text: str) -> None:
        line = json.loads(text)
        heard.append(line)
        if line["phase"] == "window" and line["ended"] >= 8 and not killed:
            killed.append(line)
            os.kill(driver[0].pid, signal.SIGKILL)

    result = drive(plan, base_url=truth.url, out=tmp_path / "out", spawn=remembering, progress=progress, deadline_s=200)
    reduced = reduce_run(plan, tmp_path / "out", drive=result)
    assert result.status == "killed"
    assert result.partial
    assert reduced.window["partial"] is True
    assert reduced.gate("window_complete").passed is False
    rows = pq.read_table(reduced.table).to_pylist()
    # rows are written while it runs: all that had ended when the last line was said
    opened = reduced.window["start_ns"]
    assert sum(row["ok"] and row["end_ns"] >= opened for row in rows) >= killed[0]["ended"]
    assert reduced["ttft_p50_ms"] is not None
    # requests in flight at the last flush are there as such
    assert sum(row["failure"] == "open" for row in rows) == killed[0]["in_flight"] == 4


def test_first_token_and_total_time_outs(run: Run) -> None:
    limits = Timeouts(connect_s=30, first_token_s=0.3, inter_token_s=30, total_s=0.6, drain_s=1)
    slow = run(closed_loop(2, requests=4), model="truth:ttft=2000", warmup=warm_up(0), timeouts=limits)
    assert set(slow.reduction.failures) == {"first_token_timeout"}
    limits = Timeouts(connect_s=30, first_token_s=30, inter_token_s=30, total_s=0.6, drain_s=1)
    long = run(closed_loop(2, requests=4), model="truth:tpot=200", warmup=warm_up(0), timeouts=limits)
    assert set(long.reduction.failures) == {"total_timeout"}
    row = long.inside[0]
    assert row["end_ms"] - row["sent_ms"] == pytest.approx(600)
    assert row["e2e_ms"] is None


def test_a_connect_time_out_is_its_own_class(tmp_path: Path, run: Run) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # fill the queue: further connections hang
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        limits = Timeouts(connect_s=0.5, first_token_s=1, inter_token_s=1, total_s=1, drain_s=1)
        ran = run(closed_loop(2, requests=3), url=f"http://127.0.0.1:{port}", timeouts=limits, deadline_s=60.0)
        for filler in fillers:
            filler.close()
    assert ran.drive.status in ("all_failed", "server_gone")
    assert "connect_timeout" in {row["failure"] for row in ran.rows}


def test_every_gate_of_the_load_passes_that_does_not_judge_the_host(run: Run) -> None:
    # that a steady server is found steady is shown where the server has no host: see test_steady
    ran = run(closed_loop(4, requests=120), workload=synthetic(input_tokens=8, output_tokens=20))
    gates = {gate.id: gate for gate in ran.reduction.gates}
    for name in ("window_complete", "input_length", "output_length", "errors", "errors_classified",
                 "clock_order", "prompts_distinct", "warmup", "load_kept_up", "samples"):  # fmt: skip
        assert gates[name].passed is True, gates[name]


def test_prompts_of_fifty_thousand_tokens_are_written_whole(run: Run) -> None:
    ran = run(closed_loop(4, requests=12), workload=synthetic(input_tokens=50_000, output_tokens=4))
    assert ran.drive.status == "ok"
    assert ran.reduction.failures == {}
    assert ran["input_tokens_mean_tokens"] == 50_000
    assert ran.plan.column("length").min() > 250_000
    assert all(row["sent_ns"] <= row["sent_last_ns"] <= row["first_output_ns"] for row in ran.inside)


def test_a_thousand_streams_at_once(run: Run) -> None:
    ran = run(
        closed_loop(1000, requests=1000, ramp_s=0.5),
        workload=synthetic(input_tokens=4, output_tokens=4),
        model="truth:ttft=500",
        warmup=warm_up(10),
    )
    assert ran.drive.status == "ok"
    assert {row["failure"] for row in ran.rows if row["phase"] != "tail"} == {None}
    assert len(ran.inside) >= 1000


def test_progress_is_one_readable_line_a_second(truth: TruthServer, run: Run) -> None:
    lines: list[str] = []
    run(closed_loop(2, duration_s=4), model="truth:ttft=100", progress=lines.append)
    said = [line for line in lines if line.startswith("window") and "TTFT p50" in line]
    assert said
    assert all(re.search(r"s left  [\d.]+ req/s  2 in flight  \d+ tok/s .*lag up to [\d.]+ ms", line) for line in said)


def test_records_of_two_runs_are_never_mixed(truth: TruthServer, tmp_path: Path, run: Run) -> None:
    ran = run()
    with pytest.raises(FileExistsError, match="not empty"):
        drive(ran.plan, base_url=truth.url, out=ran.out, spawn=spawn)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://h:port"])
def test_an_unusable_url_is_refused_before_anything_starts(tmp_path: Path, run: Run, url: str) -> None:
    ran = run()
    with pytest.raises(ValueError, match="base URL"):
        drive(ran.plan, base_url=url, out=tmp_path / "new", spawn=spawn)


def test_the_driver_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; import neuronbench.load.driver; "
        "print([m for m in ('numpy', 'pyarrow', 'pytest', 'scipy', 'asyncio', 'mlflow') if m in sys.modules])"
    )
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=True)
    assert done.stdout.strip() == "[]"


class TlsProxy:
    """Terminates TLS in front of a plain server."""

    def __init__(self, certificate: Path, key: Path, port: int) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, key)
        self.upstream = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            client = self.context.wrap_socket(sock, server_side=True)
        except (ssl.SSLError, OSError):
            sock.close()
            return
        server = socket.create_connection(("127.0.0.1", self.upstream))

        def copy(source: socket.socket, sink: socket.socket) -> None:
            try:
                while data := source.recv(65536):
                    sink.sendall(data)
            except (OSError, ValueError):
                pass
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

        back = threading.Thread(target=copy, args=(server, client), daemon=True)
        back.start()
        copy(client, server)
        back.join(5)
        client.close()
        server.close()


@pytest.fixture
def tls(tmp_path: Path, truth: TruthServer) -> Any:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(certificate, key)
    proxy = TlsProxy(certificate, key, int(truth.url.rsplit(":", 1)[1]))
    yield proxy, certificate
    proxy.listener.close()


def make_certificate(certificate: Path, key: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip


def test_tls(tls: Any, run: Run) -> None:
    proxy, certificate = tls
    url = f"https://127.0.0.1:{proxy.port}"
    ran = run(url=url, ca_file=certificate)
    assert ran.drive.status == "ok"
    assert ran.reduction.failures == {}
    assert all(row["kernel_stamped"] for row in ran.inside)
    untrusted = run(url=url)
    assert untrusted.drive.status in ("all_failed", "server_gone")
    assert "tls" in {row["failure"] for row in untrusted.rows}
    assert "CERTIFICATE_VERIFY_FAILED" in untrusted.drive.message or untrusted.drive.status == "server_gone"


def test_plain_text_where_tls_was_expected_is_a_tls_failure(truth: TruthServer, run: Run) -> None:
    ran = run(url=truth.url.replace("http:", "https:"), timeouts=SHORT, deadline_s=60.0)
    assert "tls" in {row["failure"] for row in ran.rows}
