"""The samplers against real processes, this machine and a real endpoint."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from neuronbench.telemetry.host import Host
from neuronbench.telemetry.process_tree import ProcessTree
from neuronbench.telemetry.prometheus import Prometheus, ScrapeError, series_name

SERIES = {"cpu_percent", "rss_bytes", "threads", "processes"}


def until(condition: Callable[[], object], what: str, seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def test_tree_of_a_process_and_its_child() -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=sys.stdin).wait()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        until(lambda: psutil.Process(process.pid).children(), "the child")
        tree = ProcessTree([process.pid])
        first = tree.read()
        assert first.keys() == SERIES
        assert first["cpu_percent"] is None  # nothing to compare with yet
        assert first["processes"] == 2
        assert first["threads"] == 2
        rss = psutil.Process(process.pid).memory_info().rss
        assert first["rss_bytes"] is not None
        assert first["rss_bytes"] > rss > 0
        second = tree.read()
        assert second["cpu_percent"] is not None
        assert second["cpu_percent"] >= 0
    finally:
        process.communicate()


def test_a_busy_process_uses_a_core() -> None:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        tree, own = ProcessTree([process.pid]), psutil.Process(process.pid)

        def spent() -> tuple[float, float]:
            times = own.cpu_times()
            return time.monotonic(), times.user + times.system

        before = spent()
        tree.read()
        after = spent()
        until(lambda: spent()[1] > after[1] + 0.3, "some CPU to be used")
        then = spent()
        percent = tree.read()["cpu_percent"]
        end = spent()
        # What the system says of it, between two looks before and two looks after; half a core or less on a busy host.
        assert percent is not None
        least = 100 * (then[1] - after[1]) / (end[0] - before[0])
        most = 100 * (end[1] - before[1]) / (then[0] - after[0])
        assert 0 < least <= percent <= most
    finally:
        process.kill()
        process.wait()


def test_children_come_and_go() -> None:
    code = """
import subprocess, sys
for line in sys.stdin:
    if line == "start\\n":
        child = subprocess.Popen(["sleep", "60"])
    else:
        child.kill()
        child.wait()
    print("done", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        tree = ProcessTree([process.pid], refresh_s=0.0)
        assert tree.read()["processes"] == 1
        for order, count in ((b"start\n", 2), (b"stop\n", 1)):
            process.stdin.write(order)
            process.stdin.flush()
            process.stdout.readline()
            assert tree.read()["processes"] == count
        rare = ProcessTree([process.pid], refresh_s=3600.0)
        assert rare.read()["processes"] == 1
        process.stdin.write(b"start\n")
        process.stdin.flush()
        process.stdout.readline()
        assert rare.read()["processes"] == 1  # it looks for new ones rarely
    finally:
        process.communicate(b"stop\n")


def test_a_tree_that_is_gone_has_no_values() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    tree = ProcessTree([process.pid])
    assert tree.read()["processes"] == 1
    process.kill()
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "its end")
    until(lambda: tree.read() == dict.fromkeys(SERIES), "an empty tree")  # still a zombie
    process.communicate()
    assert tree.read() == dict.fromkeys(SERIES)
    assert ProcessTree([process.pid]).read() == dict.fromkeys(SERIES)
    assert ProcessTree([]).read() == dict.fromkeys(SERIES)


def test_one_root_of_two() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    process.communicate()
    assert (ProcessTree([process.pid, os.getpid()]).read()["processes"] or 0) >= 1


def test_host() -> None:
    host = Host(frequency_every=2)
    first = host.read()
    assert first["cpu_percent"] is None
    assert first["load_1m"] is not None
    assert 0 < (first["available_bytes"] or 0) <= psutil.virtual_memory().total
    time.sleep(0.05)
    second = host.read()
    assert 0 <= (second["cpu_percent"] or 0) <= 100
    assert 0 <= (second.get("steal_percent") or 0) <= 100
    assert (second["ctxt"] or 0) > (first["ctxt"] or 0)
    assert "frequency_mhz" not in second
    assert ("frequency_mhz" in host.read()) == ("frequency_mhz" in first)


PAGE = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="a \\"b\\" \\\\ c",engine="0"} 17.0
# HELP vllm:prompt_tokens_created Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{model_name="m",engine="0"} 1.7e+09

# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3"} 3.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf"} 4.0
vllm:request_queue_time_seconds_count{engine="0"} 4.0
vllm:request_queue_time_seconds_sum{engine="0"} 0.5
# TYPE vllm:odd gauge
vllm:odd NaN
vllm:plain 3
http_requests_total{method="GET"} 9.0
"""


@pytest.fixture
def scraper() -> Iterator[Callable[..., Prometheus]]:
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(contextlib.closing(Prometheus(*args, **kwargs)))


def test_scrape(metrics_server: Any, scraper: Callable[..., Prometheus]) -> None:
    metrics_server.answer = lambda: (200, PAGE)
    sampler = scraper(metrics_server.url, prefixes=["vllm:"], api_key="secret")
    values = dict(sampler.read())
    odd = values.pop("vllm:odd")
    assert odd != odd
    assert values == {
        'vllm:prompt_tokens_total{engine="0",model_name="a \\"b\\" \\\\ c"}': 17.0,
        'vllm:request_queue_time_seconds_count{engine="0"}': 4.0,
        'vllm:request_queue_time_seconds_sum{engine="0"}': 0.5,
        "vllm:plain": 3.0,
    }
    for _ in range(3):
        assert sampler.read()["vllm:plain"] == 3.0
    assert len(metrics_server.connections) == 1  # kept open
    path, headers = metrics_server.requests[0]
    assert path == "/metrics"
    assert headers["Authorization"] == "Bearer secret"


def test_scrape_of_everything_with_buckets(metrics_server: Any, scraper: Callable[..., Prometheus]) -> None:
    metrics_server.answer = lambda: (200, PAGE)
    values = scraper(f"{metrics_server.url}?name[]=x", buckets=True).read()
    assert values['http_requests_total{method="GET"}'] == 9.0
    assert values['vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf"}'] == 4.0
    assert metrics_server.requests[0][0] == "/metrics?name[]=x"
    assert "Authorization" not in metrics_server.requests[0][1]


def test_a_connection_that_the_server_closed_is_opened_again(
    metrics_server: Any, scraper: Callable[..., Prometheus]
) -> None:
    metrics_server.answer = lambda: (200, PAGE)
    metrics_server.close_after = True
    sampler = scraper(metrics_server.url, prefixes=["vllm:plain"])
    for _ in range(3):
        assert sampler.read() == {"vllm:plain": 3.0}
    assert len(metrics_server.connections) == 3


def test_an_endpoint_that_is_wrong_hangs_or_vanishes(metrics_server: Any, scraper: Callable[..., Prometheus]) -> None:
    sampler = scraper(metrics_server.url, prefixes=["vllm:"], timeout_s=2.0)
    metrics_server.answer = lambda: (404, "not here")
    with pytest.raises(ScrapeError, match="expected status 200, found 404 Not Found"):
        sampler.read()
    metrics_server.answer = lambda: (200, PAGE)
    assert sampler.read()["vllm:plain"] == 3.0  # and works again
    metrics_server.hang.set()
    with pytest.raises(TimeoutError):
        sampler.read()
    metrics_server.hang.clear()
    assert sampler.read()["vllm:plain"] == 3.0
    metrics_server.end()
    with pytest.raises(ConnectionRefusedError):
        sampler.read()


def test_an_endpoint_that_drips(scraper: Callable[..., Prometheus]) -> None:
    """Each byte comes in time, the answer never does."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            try:
                while not ended.wait(0.01):
                    connection.sendall(b"#")
            except OSError:
                pass

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        sampler = scraper(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics", timeout_s=0.2)
        with pytest.raises(ScrapeError, match=r"took longer than 0\.2 s"):
            sampler.read()
    finally:
        ended.set()
        thread.join()
        listener.close()


@pytest.mark.parametrize("url", ["127.0.0.1:8000/metrics", "ftp://host/metrics", "http:///metrics"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="expected a URL such as"):
        Prometheus(url)


def test_series_names_do_not_depend_on_the_order_of_labels() -> None:
    assert series_name("n", {}) == "n"
    assert series_name("n", {"b": "2", "a": "x\ny"}) == series_name("n", {"a": "x\ny", "b": "2"})
    assert series_name("n", {"b": "2", "a": "x\ny"}) == 'n{a="x\\ny",b="2"}'
