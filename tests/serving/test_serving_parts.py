"""Ports, small requests, log following, verification of a generation, attaching to a running server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neuronbench.model import FrozenMap, ResourceSpec
from neuronbench.protocols import BootContext, BootError, Endpoint
from neuronbench.serving import http, ports, verify
from neuronbench.serving.openai_server import attach
from neuronbench.serving.phases import PLAIN, VLLM, LogFollower
from neuronbench.testing.truth_server import TruthServer

LOG = Path(__file__).parent.parent / "data" / "vllm" / "boot_ok.log"


@pytest.fixture(scope="module")
def truth() -> Iterator[TruthServer]:
    with TruthServer(ttft_ms=1, tpot_ms=1, api_key="k3y", models=("second",)) as server:
        yield server


def external(url: str, model: str | None = None) -> ResourceSpec:
    settings = FrozenMap(url=url, model=model)
    return ResourceSpec(kind="endpoint", backend="fake", provider="external", settings=settings, cores=0)


# -- ports


def test_a_free_port_and_a_given_one() -> None:
    port = ports.choose(0)
    assert 1024 <= port <= 65535
    assert ports.choose(port) == port


def test_a_taken_port_names_its_owner() -> None:
    import os

    with socket.socket() as taken:
        taken.bind((ports.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ports.PortInUse) as caught:
            ports.choose(port)
        assert caught.value.owner is not None
        assert caught.value.owner.pid == os.getpid()
        assert ports.in_tree(os.getpid(), os.getppid())
        assert not ports.in_tree(os.getppid(), os.getpid())
    assert ports.owner_of(port) is None


# -- requests


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ("http://h:1", "http://h:1"),
        ("h:1/v1/", "http://h:1"),
        ("https://h/base/v1", "https://h/base"),
        ("http://h:1/?x=1", "http://h:1"),
    ],
)
def test_addresses(given: str, clean: str) -> None:
    assert http.clean_url(given) == clean


@pytest.mark.parametrize("given", ["", "ftp://h", "http://"])
def test_addresses_that_are_none(given: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        http.clean_url(given)


@pytest.mark.parametrize(
    "script",
    [
        b"",  # nothing at all
        b"HTTP/1.1 200 OK\r\nX: ",  # an unfinished header, then drops of it
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",  # a body without a length, dripping
    ],
)
def test_a_dripping_server_does_not_outlast_the_deadline(script: bytes) -> None:
    stop = threading.Event()
    with socket.socket() as listener:
        listener.bind((ports.LOOPBACK, 0))
        listener.listen()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    connection.sendall(script)
                    while not stop.wait(0.05):
                        connection.sendall(b"x" if script else b"")
                except OSError:
                    pass

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises(http.Unreachable, match=r"no answer within 0\.5 s"):
            http.request(f"http://127.0.0.1:{listener.getsockname()[1]}", "/health", timeout_s=0.5)
        stop.set()
        thread.join(10)


def test_a_closed_port_is_unreachable() -> None:
    with pytest.raises(http.Unreachable, match="Refused"):
        http.request(f"http://127.0.0.1:{ports.choose(0)}", "/health", timeout_s=5)


# -- following a log


def test_stages_and_times_of_a_real_start(tmp_path: Path) -> None:
    """Written in pieces that cut lines and characters anywhere."""
    path = tmp_path / "server.log"
    follower = LogFollower(path, VLLM)
    follower.poll()
    assert follower.stage == "starting the process"
    stages = [follower.stage]
    with path.open("ab", buffering=0) as file:
        data = LOG.read_bytes()
        for start in range(0, len(data), 333):
            file.write(data[start : start + 333])
            follower.poll()
            if follower.stage != stages[-1]:
                stages.append(follower.stage)
    assert stages == [
        "starting the process", "starting the engine", "loading weights", "compiling and sizing the cache",
        "starting the API server", "first generation",
    ]  # fmt: skip
    assert (follower.weights_s, follower.engine_s) == (0.63, 2.35)
    assert follower.load_begins_ns is not None
    assert follower.engine_ready_ns is not None
    assert follower.load_begins_ns < follower.engine_ready_ns
    assert follower.readings == {"kv_cache_tokens": "46,592", "max_concurrency": "22.75", "bound_cores": "0"}
    assert follower.offset == len(data)


def test_the_slowest_worker_counts(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("Loading weights took 1.5 seconds\nLoading weights took 0.5 seconds\n", encoding="utf-8")
    follower = LogFollower(path, VLLM)
    follower.poll()
    assert follower.weights_s == 1.5


def test_a_plain_server_tells_nothing() -> None:
    follower = LogFollower(LOG, PLAIN)
    follower.poll()
    assert (follower.weights_s, follower.engine_s, follower.readings) == (None, None, {})


# -- what a generation must be


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (" Paris.", ""),
        ("巴黎。", ""),
        ("ok \ufffd", ""),
        ("", "is empty"),
        (" \n\t", "is empty"),
        ("a\x00b", "contains NUL characters"),
        ("\ufffd\ufffd\ufffda", "is mostly unprintable"),
        ("\x01\x02", "is mostly unprintable"),
        (None, "is not text"),
        (["x"], "is not text"),
    ],
)
def test_what_is_wrong_with_a_text(text: object, wrong: str) -> None:
    assert verify.what_is_wrong(text) == wrong


# -- attaching


def test_attach_to_a_running_server(
    truth: TruthServer, context: Callable[..., BootContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURONBENCH_API_KEY", "k3y")
    server = attach(external(f"{truth.url}/v1"), context())
    assert isinstance(server, Endpoint)
    assert server.facts["external"] is True
    assert (server.model, server.base_url, server.api_key) == ("second", truth.url, "k3y")
    assert list(server.pids()) == [truth.pid]
    assert server.alive()
    assert server.diagnose("window") is None
    assert "k3y" not in str(server.facts)
    values = {m.id: m.value for m in server.boot_metrics}
    assert values["boot_time"] is None
    assert values["boot_first_token"] is not None
    server.stop()
    assert server.alive()  # it is not ours to stop
    assert attach(external(truth.url, "truth"), context()).model == "truth"


def test_attach_says_what_is_served(
    truth: TruthServer, context: Callable[..., BootContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURONBENCH_API_KEY", "k3y")
    with pytest.raises(BootError, match=r"second, truth, not 'third'") as caught:
        attach(external(truth.url, "third"), context())
    assert caught.value.failure.kind == "model_name_mismatch"


def test_attach_without_the_key(truth: TruthServer, context: Callable[..., BootContext]) -> None:
    with pytest.raises(BootError) as caught:
        attach(external(truth.url), context())
    assert caught.value.failure.kind == "endpoint_auth"
    assert "NEURONBENCH_API_KEY" in caught.value.failure.remedy


def test_attach_to_nothing(context: Callable[..., BootContext]) -> None:
    with pytest.raises(BootError) as caught:
        attach(external(f"http://127.0.0.1:{ports.choose(0)}"), context())
    assert caught.value.failure.kind == "endpoint_unreachable"
    with pytest.raises(BootError) as caught:
        attach(external("ftp://nowhere"), context())
    assert caught.value.failure.kind == "bad_arguments"


def test_an_external_server_that_went_away(context: Callable[..., BootContext]) -> None:
    with TruthServer(ttft_ms=1, tpot_ms=1) as server:
        endpoint = attach(external(server.url), context())
    assert not endpoint.alive()
    failure = endpoint.diagnose("window")
    assert failure is not None
    assert failure.kind == "endpoint_unreachable"
