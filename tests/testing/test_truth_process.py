"""The truth server as a process: starting, queueing, ending, and dying with whoever started it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from neuronbench.testing.truth.process import arguments
from neuronbench.testing.truth.settings import Settings
from neuronbench.testing.truth_server import TruthServer, _parser

DEADLINE_S = 20.0


def completion(model: str = "truth", *, n: int = 5) -> dict[str, Any]:
    return {"model": model, "prompt": [1, 2, 3], "max_tokens": n, "ignore_eos": True, "stream": True}


def alive(pid: int) -> bool:
    """Whether the process still runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_in_time(pid: int) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_settings_survive_the_command_line():
    settings = Settings(
        ttft_ms=1.5,
        anchor="parsed",
        max_concurrency=3,
        models=("a", "b/c"),
        prefix_cache=True,
        freeze_at_s=2.0,
        freeze_s=0.5,
        api_key="secret",
        log=Path("/tmp/log"),
    )
    options = vars(_parser().parse_args(arguments(settings)))
    assert Settings(**{name: options[name] for name in Settings.__dataclass_fields__} | {"models": ("a", "b/c")}) == (
        settings
    )
    assert arguments(Settings()) == []


@pytest.mark.parametrize("wrong", [{"ttft_ms": -1}, {"max_concurrency": 0}, {"anchor": "never"}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong)))):
        TruthServer(**wrong)


def test_help_teaches_and_scenarios_are_listed():
    def output(flag: str) -> str:
        command = [sys.executable, "-m", "neuronbench.testing.truth_server", flag]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert "--list-scenarios" in output("--help")
    assert "truth:stall,at=10,ms=5000" in output("--help")
    assert "U+2028" in output("--list-scenarios")


def test_server_that_cannot_listen_says_so(server):
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(RuntimeError, match="did not start"):
        TruthServer(port=port).start()


def test_stop_is_clean_and_the_log_has_every_request(tmp_path, connect):
    log = tmp_path / "truth.jsonl"
    server = TruthServer(ttft_ms=1, tpot_ms=0.5, log=log)
    with server:
        assert server.returncode is None
        client = connect(server)
        for name in ("one", "two"):
            client.ask("/v1/completions", completion(), headers=f"x-request-id: {name}\r\n")
        expected = server.truth()["requests"]
    assert server.returncode == 0
    assert gone_in_time(server.pid)
    assert [json.loads(line) for line in log.read_text().splitlines()] == expected
    assert [record["id"] for record in expected] == ["one", "two"]
    with pytest.raises(RuntimeError, match="started already"):
        server.start()


def test_server_dies_with_its_parent(tmp_path):
    code = (
        "import sys, time\n"
        "from neuronbench.testing.truth_server import TruthServer\n"
        "server = TruthServer()\n"
        "server.start()\n"
        "print(server.pid, server.url, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        pid_text, url = parent.stdout.readline().split()
        pid = int(pid_text)
        assert alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(DEADLINE_S)
        assert gone_in_time(pid)
        host, _, port = url.removeprefix("http://").rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_a_frozen_server_can_be_stopped(connect):
    with TruthServer(ttft_ms=1) as server:
        client = connect(server)
        client.send("/v1/completions", completion("truth:freeze,ms=600000"))
        assert client.read(within_s=0.2).end == "open"
        assert server.stop() == 0


def test_parent_that_is_not_one_is_refused():
    command = [sys.executable, "-m", "neuronbench.testing.truth_server", "--with-parent", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "is not the parent" in ended.stderr


def test_bounded_concurrency_queues_first_come_first_served(connect):
    with TruthServer(ttft_ms=30, tpot_ms=1, max_concurrency=1) as server:
        clients = [connect(server) for _ in range(3)]
        for number, client in enumerate(clients):
            client.send("/v1/completions", completion(), headers=f"x-request-id: r{number}\r\n")
            # Headers come at once, also for those that wait: all three are known to the server.
            client.read(until=lambda reply: reply.status == 200)
        metrics = server.metrics()
        assert 'vllm:num_requests_running{model_name="truth",engine="0"} 1' in metrics
        assert 'vllm:num_requests_waiting{model_name="truth",engine="0"} 2' in metrics
        assert {client.read().end for client in clients} == {"complete"}
        records = server.truth()["requests"]
        assert [record["id"] for record in records] == ["r0", "r1", "r2"]
        for before, after in pairwise(records):
            assert after["admitted_ns"] >= before["done_ns"]
            assert after["due_ns"][0] == after["admitted_ns"] + 30_000_000
        queued_s = sum(record["admitted_ns"] - record["received_ns"] for record in records) / 1e9
        line = next(line for line in server.metrics().splitlines() if "queue_time_seconds_sum" in line)
        assert float(line.split()[-1]) == pytest.approx(queued_s)


def test_client_that_leaves_the_queue_is_forgotten(connect):
    with TruthServer(ttft_ms=1, tpot_ms=1, max_concurrency=1) as server:
        first, second, third = (connect(server) for _ in range(3))
        first.send("/v1/completions", completion("truth:hang,at=1"))
        first.read(until=lambda reply: reply.body != b"")
        second.send("/v1/completions", completion(), headers="x-request-id: impatient\r\n")
        second.read(until=lambda reply: reply.status == 200)
        second.close()
        third.send("/v1/completions", completion(), headers="x-request-id: patient\r\n")
        third.read(until=lambda reply: reply.status == 200)
        first.close()
        assert third.read().end == "complete"
        outcomes = {record["id"]: record["outcome"] for record in server.truth()["requests"]}
        assert outcomes == {"seq-0": "client_closed", "impatient": "client_closed", "patient": "complete"}


def test_reader_that_does_not_read_loses_nothing(connect):
    with TruthServer(ttft_ms=0, tpot_ms=0) as server:
        client = connect(server)
        client.send("/v1/completions", completion(n=120_000))  # 26 MB, more than the kernel keeps
        deadline = time.monotonic() + DEADLINE_S
        while server.truth(chunks=False)["requests"][0]["unsent_waits"] == 0:
            assert time.monotonic() < deadline, "the kernel took everything"
        answer = bytearray()
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            part = client.sock.recv(1 << 20)
            assert part, "the server closed"
            answer += part
        assert answer.count(b'"text"') == 120_000
        assert server.truth(chunks=False)["requests"][0]["completion_tokens"] == 120_000


def test_api_key(connect):
    with TruthServer(ttft_ms=0, api_key="secret") as server:
        client = connect(server)
        assert client.ask("/v1/completions", completion()).status == 401
        assert client.ask("/v1/completions", completion(), headers="Authorization: Bearer secret\r\n").status == 200


def test_prefix_cache_counts_hits_and_shortens_the_first_token(connect):
    with TruthServer(ttft_ms=32, tpot_ms=0, prefix_cache=True) as server:
        client = connect(server)
        shared = list(range(32))
        for tail in (range(100, 132), range(200, 232)):
            client.ask("/v1/completions", completion() | {"prompt": [*shared, *tail]})
        first, second = server.truth()["requests"]
        assert (first["cached_tokens"], second["cached_tokens"]) == (0, 32)
        assert second["due_ns"][0] - second["anchor_ns"] == 16_000_000
        assert 'vllm:prefix_cache_hits_total{model_name="truth",engine="0"} 32' in server.metrics()


def test_freeze_by_the_clock(connect):
    with TruthServer(ttft_ms=1, tpot_ms=1, freeze_at_s=0.05, freeze_s=0.2) as server:
        client = connect(server)
        client.ask("/v1/completions", completion(n=100))
        truth = server.truth()
        ((start_ns, end_ns),) = truth["frozen_ns"]
        assert start_ns >= truth["requests"][0]["anchor_ns"] + 50_000_000
        assert end_ns - start_ns >= 190_000_000


def test_records_kept_are_bounded(connect):
    with TruthServer(ttft_ms=0, tpot_ms=0, keep_records=3) as server:
        client = connect(server)
        for _ in range(5):
            client.ask("/v1/completions", completion())
        truth = server.truth()
        assert [record["seq"] for record in truth["requests"]] == [2, 3, 4]
        assert (truth["summary"]["requests"], truth["summary"]["kept"]) == (5, 3)


def test_anchor_can_be_the_parsing(connect):
    with TruthServer(ttft_ms=1, tpot_ms=1, anchor="parsed") as server:
        connect(server).ask("/v1/completions", completion())
        (record,) = server.truth()["requests"]
        assert record["anchor_ns"] == record["parsed_ns"] > record["received_ns"]


def test_late_server_catches_up_in_fewer_sends(connect):
    with TruthServer(ttft_ms=0, tpot_ms=0.001) as server:
        reply = connect(server).ask("/v1/completions", completion(n=2000))
        assert len(reply.texts) == 2000
        (record,) = server.truth()["requests"]
        assert len(record["sent_ns"]) == 2000
        assert len(set(record["sent_ns"])) < 2000
        assert record["sent_ns"] == sorted(record["sent_ns"])
        stamps = [data["x_mono_ns"] for data in reply.data if isinstance(data, dict)]
        assert stamps == record["sent_ns"]


def test_a_thousand_connections(server):
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    body = json.dumps(completion(n=3)).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    socks = [socket.create_connection((host, int(port)), timeout=DEADLINE_S) for _ in range(1000)]
    try:
        for sock in socks:
            sock.sendall(request)
        for sock in socks:
            data = b""
            while not data.endswith(b"\r\n0\r\n\r\n"):
                part = sock.recv(1 << 16)
                assert part, "the server closed"
                data += part
            assert data.count(b'"text"') == 3
    finally:
        for sock in socks:
            sock.close()
