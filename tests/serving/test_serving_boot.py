"""Starting a server: a real process that behaves like vLLM, real sockets."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from neuronbench.failures import Rule
from neuronbench.model import FrozenMap, ResourceSpec, jsonable
from neuronbench.protocols import BootContext, BootError, Endpoint, Vocabulary
from neuronbench.serving import ports
from neuronbench.serving.openai_server import ServerCommand, boot
from neuronbench.serving.phases import PLAIN, VLLM
from neuronbench.serving.server import OpenAIServer
from neuronbench.testing.truth_server import TruthServer

SPEC = ResourceSpec(kind="endpoint", backend="fake", provider="endpoint/fake", settings=FrozenMap(model="m"))
Context = Callable[..., BootContext]
Command = Callable[..., ServerCommand]
Keep = Callable[[OpenAIServer], OpenAIServer]


def failed(command: ServerCommand, context: BootContext, tmp_path: Path) -> BootError:
    """Boot, expect it to fail, and see that nothing is left."""
    with pytest.raises(BootError) as caught:
        boot(command, SPEC, context, flavour=VLLM)
    pid = caught.value.facts.get("pid")
    assert pid is None or not psutil.pid_exists(pid)
    assert not list((tmp_path / "pids").glob("*"))
    jsonable(caught.value.facts)
    return caught.value


def test_a_server_is_ready_when_it_has_generated(
    context: Context, command: Command, keep: Keep, said: list[str]
) -> None:
    vocabulary = Vocabulary(size=10)
    server = keep(
        boot(
            command("ok", "--api-key", "sekrit-0"),
            SPEC,
            context(),
            flavour=VLLM,
            facts={"model": {"reference": "m"}},
            vocabulary=vocabulary,
        )
    )
    assert isinstance(server, Endpoint)
    assert server.alive()
    assert server.diagnose("window") is None
    assert (server.model, server.vocabulary, server.spec) == ("m", vocabulary, SPEC)
    assert server.metrics_url == f"{server.base_url}/metrics"

    metrics = {m.id: m for m in server.boot_metrics}
    assert list(metrics) == [
        "boot_time", "boot_spawn", "boot_weights", "boot_compile", "boot_listen", "boot_first_token",
    ]  # fmt: skip
    assert all(m.value is not None and m.n == 1 for m in metrics.values())
    assert metrics["boot_weights"].value == 0.63
    assert metrics["boot_compile"].value == 2.35
    assert 0 < (metrics["boot_first_token"].value or 0) < (metrics["boot_time"].value or 0)

    facts = server.facts
    assert facts["pid"] in server.pids()
    assert facts["first_generation"] == {"text": " Paris.", "tokens": 2, "api": "completions"}
    assert facts["readings"]["kv_cache_tokens"] == "46,592"
    assert facts["max_model_len"] == 2048
    assert facts["model"] == {"reference": "m"}
    assert "sekrit-0" not in str(facts)
    assert str(facts["port"]) in facts["argv"]
    jsonable(facts)
    assert server.logs[0].read_text(encoding="utf-8").count("Loading weights took") == 1
    assert any("m: " in text for text in said)

    server.stop()
    server.stop()
    assert not server.alive()
    assert not server.pids()
    assert not psutil.pid_exists(facts["pid"])


def test_a_server_that_says_nothing_has_null_splits(context: Context, command: Command, keep: Keep) -> None:
    server = keep(boot(command("silent"), SPEC, context(), flavour=PLAIN))
    metrics = {m.id: m for m in server.boot_metrics}
    assert metrics["boot_time"].value is not None
    assert metrics["boot_first_token"].value is not None
    for name in ("boot_spawn", "boot_weights", "boot_compile", "boot_listen"):
        assert (metrics[name].value, metrics[name].n, metrics[name].note) == (None, 0, "not in the server's log")


def test_chat_is_used_where_completions_do_not_exist(context: Context, command: Command, keep: Keep) -> None:
    server = keep(boot(command("chat"), SPEC, context(), flavour=VLLM))
    assert server.facts["first_generation"]["api"] == "chat"


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("log:arch.log", "unsupported_architecture", "does not recognize this architecture"),
        ("log:trunc.log", "weights_corrupt", "SafetensorError"),
        ("log:badarg.log", "bad_arguments", "--no-such-flag"),
        ("bind", "port_in_use", "address already in use"),
        ("empty", "generation_invalid", "is empty"),
        ("nul", "generation_invalid", "NUL"),
        ("garbage", "generation_invalid", "unprintable"),
        ("no_tokens", "generation_invalid", "counts 0"),
        ("no_usage", "generation_invalid", "lacks text or usage"),
        ("error:400", "context_exceeded", "cannot be greater than max_model_len"),
        ("error:500", "context_exceeded", "cannot be greater than max_model_len"),
        ("other_name", "model_name_mismatch", "someone-else"),
        ("die_on_request", "killed", ""),
    ],
)
def test_failures_are_classified(
    mode: str, kind: str, words: str, context: Context, command: Command, tmp_path: Path
) -> None:
    error = failed(command(mode), context(), tmp_path)
    failure = error.failure
    assert failure.kind == kind
    assert words in failure.causal_line
    assert failure.phase == "boot"
    assert failure.remedy
    assert error.facts["argv"]


def test_rules_of_the_backend_are_used(context: Context, command: Command, tmp_path: Path) -> None:
    rule = Rule(id="x", kind="wrong_chip", pattern="frobnicate", remedy="use another chip")
    assert failed(command("log:arch.log"), context(rules=(rule,)), tmp_path).failure.kind == "wrong_chip"


class FromTheLog:
    """A clock that begins to go when the log says that the server has started, however long a busy host took for it."""

    def __init__(self, log: Path) -> None:
        self.log, self.since = log, 0.0

    def monotonic(self) -> float:
        if not self.since and self.log.exists() and "Application startup complete" in self.log.read_text("utf-8"):
            self.since = time.monotonic()
        return time.monotonic() - self.since if self.since else 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.mark.parametrize(("mode", "stage"), [("hang", "first generation"), ("slow", "first generation")])
def test_the_deadline_holds_in_every_step(
    mode: str, stage: str, context: Context, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = context(3.0)
    monkeypatch.setattr("neuronbench.serving.openai_server.time", FromTheLog(given.folder / "server.log"))
    error = failed(command(mode), given, tmp_path)
    assert error.failure.kind == "boot_timeout"
    assert stage in error.failure.message
    assert "Application startup complete" in error.failure.message
    values = {m.id: m.value for m in error.metrics}
    assert values["boot_time"] is None
    assert values["boot_weights"] == 0.63


def test_a_server_that_never_says_anything_times_out(context: Context, command: Command, tmp_path: Path) -> None:
    silent = command("silent")
    sleeper = dataclasses.replace(silent, argv=[silent.argv[0], "-c", "import time; time.sleep(60)"])
    failure = failed(sleeper, context(1.0), tmp_path).failure
    assert failure.kind == "boot_timeout"
    assert "The log is empty" in failure.message


def test_a_taken_port_is_found_before_anything_starts(context: Context, command: Command, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((ports.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = failed(command("ok"), context(port=port), tmp_path)
    assert error.failure.kind == "port_in_use"
    assert f"port {port} is in use by process {os.getpid()}" in error.failure.message
    assert not (tmp_path / "boot" / "server.log").exists()
    assert error.metrics == []


def test_a_fixed_port_is_used(context: Context, command: Command, keep: Keep) -> None:
    port = ports.choose(0)
    server = keep(boot(command("silent"), SPEC, context(port=port)))
    assert server.base_url == f"http://127.0.0.1:{port}"


def test_somebody_elses_answer_is_not_taken_for_the_servers(
    context: Context, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port was free when looked at; then another process took it and answers the health check."""
    with TruthServer() as other:
        port = int(other.url.rpartition(":")[2])
        fake = command("hang")
        argv = [word.replace("{port}", "1") for word in fake.argv]
        made = dataclasses.replace(fake, argv=argv)
        monkeypatch.setattr("neuronbench.serving.ports.choose", lambda wanted: port)
        failure = failed(made, context(), tmp_path).failure
    assert failure.kind == "port_in_use"


@pytest.mark.parametrize("exists", [False, True])
def test_a_command_that_cannot_be_executed(exists: bool, context: Context, command: Command, tmp_path: Path) -> None:
    program = tmp_path / "python"
    if exists:
        program.write_text("not executable", encoding="utf-8")
    made = dataclasses.replace(command("ok"), argv=[str(program)])
    failure = failed(made, context(), tmp_path).failure
    assert failure.kind == ("permission_denied" if exists else "command_not_found")
    assert str(program) in failure.message


def test_killed_in_the_window(context: Context, command: Command, keep: Keep) -> None:
    server = keep(boot(command("ok"), SPEC, context(), flavour=VLLM))
    os.kill(server.pids()[0], signal.SIGKILL)
    wait_for(lambda: not server.alive())
    failure = server.diagnose("window")
    assert failure is not None
    assert (failure.kind, failure.phase, failure.exit_status) == ("killed", "window", -9)
    assert "SIGKILL" in failure.message


def test_a_crash_in_the_window_is_explained_by_what_it_logged_then(
    context: Context, command: Command, keep: Keep
) -> None:
    server = keep(boot(command("crash_later"), SPEC, context(), flavour=VLLM))
    wait_for(lambda: not server.alive())
    failure = server.diagnose("window")
    assert failure is not None
    assert (failure.kind, failure.exit_status) == ("disk_full", 1)
    assert "[Errno 28]" in failure.causal_line
    assert failure.log == "server.log"


def test_a_dead_engine_in_a_live_process(
    context: Context, command: Command, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuronbench.serving.server.ENDING_S", 0.3)
    server = keep(boot(command("engine_dead"), SPEC, context(), flavour=VLLM))
    assert server.alive()
    failure = server.diagnose("window")
    assert failure is not None
    assert failure.kind == "server_unresponsive"


def wait_for(condition: Callable[[], bool], timeout_s: float = 100.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_an_interrupted_start_leaves_nothing(context: Context, command: Command, tmp_path: Path) -> None:
    interrupted = context()
    started: list[int] = []

    def progress(text: str) -> None:
        if "first generation" in text:
            started.extend(int(pid) for pid in psutil.pids() if _is_fake(pid, tmp_path))
            raise KeyboardInterrupt

    interrupted.progress = progress
    with pytest.raises(KeyboardInterrupt):
        boot(command("ok", "--marker", str(tmp_path)), SPEC, interrupted, flavour=VLLM)
    assert started
    assert not [pid for pid in started if psutil.pid_exists(pid)]


def _is_fake(pid: int, marker: Path) -> bool:
    try:
        return str(marker) in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
