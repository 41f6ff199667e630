"""Start any OpenAI-compatible server, watch it start, and verify it with one generation.

Which server it is shows only in the command and in its `Flavour` (how its log is worded). `attach` makes the same
resource of a server that somebody else runs.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench import failures
from neuronbench.definitions import metric
from neuronbench.model import Failure, Json, Metric, ResourceSpec
from neuronbench.protocols import BootContext, BootError, Vocabulary
from neuronbench.redaction import is_secret_name, redact, redact_argv
from neuronbench.serving import http, ports, verify
from neuronbench.serving.external import attach as attach
from neuronbench.serving.phases import PLAIN, Flavour, LogFollower
from neuronbench.serving.server import HEALTH_TIMEOUT_S, OpenAIServer, Watch

if TYPE_CHECKING:
    from neuronbench.processes import Process

POLL_S: Final = 0.1
"""Between two looks at the log and the health check; the resolution of boot times."""
LAST_WORDS: Final = 15
"""Lines of the log that a time-out quotes."""


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """How to start a server. `{port}` in words of `argv` and values of `env` becomes the port."""

    argv: Sequence[str]
    env: Mapping[str, str]
    """The whole environment of the server."""
    model_name: str
    """Name under which it serves the model."""
    cwd: Path | None = None
    health: str = "/health"
    shown_env: Sequence[str] = ()
    """Variables whose values belong into the facts."""

    def at(self, port: int) -> tuple[list[str], dict[str, str]]:
        number = str(port)
        return (
            [word.replace("{port}", number) for word in self.argv],
            {name: value.replace("{port}", number) for name, value in self.env.items()},
        )


class _Boot:
    """One start of one server, up to the first verified generation."""

    def __init__(
        self, command: ServerCommand, spec: ResourceSpec, context: BootContext, flavour: Flavour, deadline: float
    ) -> None:
        self.command, self.spec, self.context, self.deadline = command, spec, context, deadline
        self.log = context.folder / "server.log"
        self.follower = LogFollower(self.log, flavour)
        self.watch = Watch(self.log, tuple(context.backend.failure_rules()))
        self.facts: dict[str, Json] = {}
        self.process: Process | None = None
        self.health_ns: int | None = None
        self.done_ns: int | None = None
        self.base_url = ""

    def left(self) -> float:
        return self.deadline - time.monotonic()

    # -- failing

    def error(self, failure: Failure) -> BootError:
        return BootError(failure, metrics=self.metrics(), facts=self.facts)

    def out_of_time(self) -> BootError:
        self.follower.poll()
        words = redact(failures.tail(self.log, LAST_WORDS))
        last = words.rpartition("\n")[2]
        found = failures.match(self.watch.text(), phase="boot", extra_rules=self.watch.rules)
        return self.error(
            Failure(
                kind="boot_timeout",
                phase="boot",
                message=f"not ready after {self.context.deadline_s:g} s; reached: {self.follower.stage}. "
                + (f"Last lines of the log:\n{words}" if words else "The log is empty."),
                causal_line=found[1] if found else last,
                cause=found[0].cause if found else f"it was still {self.follower.stage}",
                remedy=found[0].remedy
                if found
                else "Raise the deadline (`--nb-deadline boot=SECONDS`), or find in the log what takes so long.",
                log=self.log.name,
            )
        )

    def check_alive(self) -> None:
        assert self.process is not None
        status = self.process.poll()
        if status is not None:
            self.follower.poll()
            raise self.error(self.watch.died(status, "boot"))

    def foreign_listener(self, error: ports.PortInUse) -> BootError:
        return self.error(
            Failure(
                kind="port_in_use", phase="boot", message=str(error), causal_line=str(error),
                cause="another process listens on the port",
                remedy=f"End {f'process {error.owner.pid}' if error.owner else 'it'}, choose another port, or let "
                "neuronbench take a free one (port = 0).",
            )
        )  # fmt: skip

    # -- steps

    def run(self, facts: Mapping[str, Json], vocabulary: Vocabulary | None) -> OpenAIServer:
        settings, command = self.context.settings, self.command
        self.facts.update(facts)
        try:
            port = ports.choose(settings.port)
        except ports.PortInUse as error:
            raise self.foreign_listener(error) from error
        argv, env = command.at(port)
        self.base_url = f"http://{ports.LOOPBACK}:{port}"
        shown = {name: env[name] for name in command.shown_env if name in env}
        self.facts.update(
            argv=redact_argv(argv),
            env={name: "set" if is_secret_name(name) else redact(value) for name, value in shown.items()},
            port=port,
            base_url=self.base_url,
        )
        self.context.progress(f"starting {command.model_name}")
        try:
            self.process = self.context.spawn(
                argv, name=self.spec.id, env=env, cwd=command.cwd, log=self.log, grace_s=settings.deadlines.stop
            )
        except OSError as error:
            raise self.error(_cannot_start(error)) from error
        self.facts["pid"] = self.process.pid
        try:
            self.wait_for_health(port)
            self.check_models()
            generation = self.first_generation()
        except BaseException:
            self.process.terminate()
            raise
        self.facts["first_generation"] = {"text": generation.text, "tokens": generation.tokens, "api": generation.api}
        self.follower.poll()  # what it printed since it was last looked at belongs to its start, too
        self.facts["readings"] = dict(self.follower.readings)
        self.watch.ready_at = self.follower.offset
        metrics_url = f"{self.base_url}/metrics"
        if not self.answers("/metrics"):
            metrics_url = ""
        return OpenAIServer(
            spec=self.spec, base_url=self.base_url, model=command.model_name, facts=self.facts,
            boot_metrics=self.metrics(), vocabulary=vocabulary, metrics_url=metrics_url or None, process=self.process,
            watch=self.watch, health=command.health,
        )  # fmt: skip

    def answers(self, path: str) -> bool:
        try:
            return http.request(self.base_url, path, timeout_s=min(HEALTH_TIMEOUT_S, self.left())).status == 200
        except http.Unreachable:
            return False

    def wait_for_health(self, port: int) -> None:
        assert self.process is not None
        while True:
            if self.left() <= 0:
                raise self.out_of_time()
            self.follower.poll()
            self.check_alive()
            if self.answers(self.command.health):
                owner = ports.owner_of(port)
                if owner is not None and not ports.in_tree(owner.pid, self.process.pid):
                    raise self.foreign_listener(ports.PortInUse(port, owner))
                self.health_ns = time.monotonic_ns()
                return
            elapsed = (time.monotonic_ns() - self.process.started_ns) / 1e9
            self.context.progress(f"{self.command.model_name}: {self.follower.stage}, {elapsed:.0f} s")
            time.sleep(max(0.0, min(POLL_S, self.left())))

    def check_models(self) -> None:
        try:
            served = verify.served_models(self.base_url, timeout_s=self.left())
        except (http.Unreachable, verify.GenerationError) as error:
            raise self.unverified(error) from error
        names = [entry["id"] for entry in served]
        if self.command.model_name not in names:
            raise self.error(
                Failure(
                    kind="model_name_mismatch", phase="boot",
                    message=f"the server serves {', '.join(names) or 'nothing'}, not {self.command.model_name!r}",
                    causal_line=f"/v1/models: {names}", cause="it was started under another model name",
                    remedy="Pass the served model's name on the server's command line.",
                )
            )  # fmt: skip
        entry = next(entry for entry in served if entry["id"] == self.command.model_name)
        self.facts["max_model_len"] = entry.get("max_model_len")

    def first_generation(self) -> verify.Generation:
        self.follower.stage = "first generation"
        self.context.progress(f"{self.command.model_name}: {self.follower.stage}")
        try:
            generation = verify.generate(self.base_url, self.command.model_name, timeout_s=self.left())
        except (http.Unreachable, verify.GenerationError) as error:
            raise self.unverified(error) from error
        self.done_ns = time.monotonic_ns()
        return generation

    def unverified(self, error: http.Unreachable | verify.GenerationError) -> BootError:
        """It listened, and then did not do its work: died, ran out of time, or answered wrongly."""
        assert self.process is not None
        if self.left() <= 0:
            return self.out_of_time()
        kind = error.kind if isinstance(error, verify.GenerationError) else "generation_failed"
        status = self.process.poll()
        if status is None and (not isinstance(error, verify.GenerationError) or error.status >= 500):
            # A server that is dying takes a moment to be dead.
            try:
                status = self.process.wait(min(3.0, self.left()))
            except subprocess.TimeoutExpired:
                pass
        self.follower.poll()
        if status is not None:
            return self.error(self.watch.died(status, "boot"))
        cause, remedy, line = "", verify.REMEDY, str(error)
        if kind != "generation_invalid":
            body = error.body if isinstance(error, verify.GenerationError) else ""
            for text in (body, self.watch.text()):
                found = failures.match(text, phase="boot", extra_rules=self.watch.rules)
                if found is not None:
                    kind, line, cause, remedy = found[0].kind, found[1], found[0].cause, found[0].remedy
                    break
        return self.error(
            Failure(
                kind=kind, phase="boot", message=redact(str(error)), causal_line=redact(line), cause=cause,
                remedy=remedy, log=self.log.name,
            )
        )  # fmt: skip

    # -- measured

    def metrics(self) -> list[Metric]:
        """Split times of the start; what the log did not tell, or was not reached, is null with a note."""
        if self.process is None:
            return []
        follower, started = self.follower, self.process.started_ns

        def between(first: int | None, last: int | None) -> float | None:
            return None if first is None or last is None else round((last - first) / 1e9, 3)

        silent = "not in the server's log" if self.done_ns else "not reached"
        values = {
            "boot_time": (between(started, self.done_ns), "not reached"),
            "boot_spawn": (between(started, follower.load_begins_ns), silent),
            "boot_weights": (follower.weights_s, silent),
            "boot_compile": (follower.engine_s, silent),
            "boot_listen": (between(follower.engine_ready_ns, self.health_ns), silent),
            "boot_first_token": (between(self.health_ns, self.done_ns), "not reached"),
        }
        return [
            metric(name, value, n=0 if value is None else 1, note=note if value is None else "")
            for name, (value, note) in values.items()
        ]


def _cannot_start(error: OSError) -> Failure:
    kind = {FileNotFoundError: "command_not_found", PermissionError: "permission_denied"}.get(
        type(error), "spawn_failed"
    )
    return Failure(
        kind=kind, phase="boot", message=f"the server cannot be started: {error}", causal_line=str(error),
        cause="the program of the command line cannot be executed", remedy="Check the stack with `neuronbench doctor`.",
    )  # fmt: skip


def boot(
    command: ServerCommand,
    spec: ResourceSpec,
    context: BootContext,
    *,
    flavour: Flavour = PLAIN,
    facts: Mapping[str, Json] | None = None,
    vocabulary: Vocabulary | None = None,
    deadline: float | None = None,
) -> OpenAIServer:
    """Start the server and return once it has generated something; its log is `context.folder / "server.log"`.

    `facts` are added to those found here (command line, port, pid, what the server says of itself). `deadline` is a
    monotonic instant in seconds, by default `context.deadline_s` from now. Raises `BootError`; nothing runs then.
    """
    end = time.monotonic() + context.deadline_s if deadline is None else deadline
    return _Boot(command, spec, context, flavour, end).run(facts or {}, vocabulary)
