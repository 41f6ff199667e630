"""The harness's side of a worker: start it, ask it, understand why it failed.

Every request has a deadline, and whatever happens to the worker is a classified failure: an exception of the handler
(the worker lives on), an end of any kind, silence, or talk that is not of the protocol.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from neuronbench import failures
from neuronbench.model import Failure, Json
from neuronbench.protocols import DeadlineExceeded, PointFailure, Progress
from neuronbench.worker import main, tensors
from neuronbench.worker.tensors import Tensor

if TYPE_CHECKING:
    from neuronbench.processes import Process

PROGRAM: Final = Path(main.__file__)
NOISE_LIMIT_BYTES: Final = 8 << 20
"""More than this on the pipe that is not of the protocol, without one message, is a failure."""
_SLICE_S: Final = 1.0
"""Longest wait without looking whether the process still runs."""
_IDLE_S: Final = 0.2
"""The same where something else is to be looked at meanwhile."""
_LAST_WORDS_S: Final = 10.0
"""How long the exit status of a worker whose pipe has closed may take."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a worker and what to make it."""

    python: Path
    handlers: Path
    """Folder of the handler's module; modules in it may import each other relatively."""
    module: str
    env: Mapping[str, str]
    arguments: Mapping[str, Json] = field(default_factory=dict)
    """For the handler's constructor."""
    cores: Sequence[int] | None = None
    """Cores of the host the process may use; None for all."""
    rules: Sequence[failures.Rule] = ()
    """The backend's own failure rules."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a request gave."""

    value: Json
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    elapsed_s: float = 0.0
    """By the worker's clock, without the way there and back."""


class Worker:
    """A running worker. Made by `start`; `stop` ends it and all it started. Not for use by several threads."""

    def __init__(self, process: Process, scratch: Path, log: Path, rules: Sequence[failures.Rule]) -> None:
        self.process, self.log, self.name = process, log, process.name
        self.hello: Mapping[str, Json] = {}
        self.noise_bytes = 0
        """How much came on the pipe that was not of the protocol; it is in the log."""
        self._scratch, self._rules = scratch, rules
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._recent_noise = 0
        self._last_id = 0
        self._pending: tuple[int, str] | None = None
        self._log_at = 0
        self._oom_kills = failures.oom_kills()

    @classmethod
    def start(
        cls,
        launch: Launch,
        *,
        name: str,
        folder: Path,
        spawn: Callable[..., Any],
        deadline_s: float,
        phase: str = "boot",
        progress: Progress | None = None,
        wait: bool = True,
    ) -> Worker:
        """Start the process, hear its hello, pin it, and have it load its handler.

        Without `wait` it is at work on that when this returns, and `finish` has the answer: several workers import what
        they need at the same time. `folder` gets `<name>.log`, and side files while they travel. Raises `PointFailure`;
        nothing runs then.
        """
        until = time.monotonic() + deadline_s
        log = folder / f"{name}.log"
        scratch = folder / f"{name}.io"
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            process = spawn(
                [launch.python, PROGRAM], name=name, env=launch.env, cwd=scratch, log=log,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, grace_s=3.0,
            )  # fmt: skip
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise PointFailure(_cannot_start(launch, error, phase)) from error
        worker = cls(process, scratch, log, launch.rules)
        try:
            worker._greet(until, phase)
            if launch.cores is not None:
                worker.call("pin", {"cores": list(launch.cores)}, deadline_s=until - time.monotonic(), phase=phase)
            what = {"folder": str(launch.handlers), "module": launch.module, "arguments": dict(launch.arguments)}
            worker.begin("use", what, phase=phase)
            if wait:
                worker.finish(deadline_s=until - time.monotonic(), phase=phase, progress=progress)
        except BaseException:
            worker.stop()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        """Whether it runs and waits for requests; one that was left in the middle of an answer is of no more use."""
        return self._pending is None and self.process.alive()

    def stop(self) -> None:
        """End it; idempotent."""
        if self.process.stdin is not None and self.alive():
            with contextlib.suppress(OSError, ValueError):
                self._write({"id": 0, "verb": "exit", "folder": ""})
        self.process.terminate()
        shutil.rmtree(self._scratch, ignore_errors=True)

    # -- asking

    def call(
        self,
        verb: str,
        arguments: Mapping[str, Json] | None = None,
        *,
        deadline_s: float,
        phase: str = "window",
        inputs: Mapping[str, Tensor] | None = None,
        progress: Progress | None = None,
    ) -> Reply:
        """Ask and wait for the answer. Raises `PointFailure`, or `DeadlineExceeded` after ending a silent worker."""
        self.begin(verb, arguments, phase=phase, inputs=inputs)
        return self.finish(deadline_s=deadline_s, phase=phase, progress=progress)

    def begin(
        self,
        verb: str,
        arguments: Mapping[str, Json] | None = None,
        *,
        phase: str = "window",
        inputs: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Ask; `finish` has the answer. Lets several workers be busy at the same time."""
        if self._pending is not None:
            raise RuntimeError(f"{self.name} has not answered {self._pending[1]!r} yet; one request at a time")
        self._last_id += 1
        self._pending = (self._last_id, verb)
        self._log_at = self._log_size()
        described = tensors.write(dict(inputs), str(self._scratch), f"ask-{self._last_id}") if inputs else []
        request = {
            "id": self._last_id,
            "verb": verb,
            "arguments": dict(arguments or {}),
            "folder": str(self._scratch),
            "tensors": described,
        }
        try:
            self._write(request)
        except OSError:
            self._ended(phase)

    def finish(
        self,
        *,
        deadline_s: float,
        phase: str = "window",
        progress: Progress | None = None,
        idle: Callable[[], None] | None = None,
    ) -> Reply:
        """Wait for the answer to what `begin` asked; `idle` is called a few times a second meanwhile."""
        assert self._pending is not None, "begin comes before finish"
        number, verb = self._pending
        until = time.monotonic() + deadline_s
        while True:
            message = self._next(until, phase, f"{verb!r} was not answered within {deadline_s:.0f} s", idle)
            if message["type"] == "progress":
                if progress is not None:
                    progress(str(message.get("text", "")))
            elif message.get("id") == number and message["type"] == "result":
                self._pending = None
                return Reply(
                    value=message["value"],
                    tensors=tensors.take(message["tensors"], str(self._scratch)),
                    elapsed_s=message["elapsed_ns"] / 1e9,
                )
            elif message.get("id") == number and message["type"] == "error":
                self._pending = None
                raise PointFailure(self._raised(verb, message, phase))

    # -- the pipe

    def _write(self, request: Mapping[str, Json]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def _greet(self, until: float, phase: str) -> None:
        self._pending = (0, "hello")
        message = self._next(until, phase, "the worker did not say hello in time")
        if message["type"] != "hello" or message.get("protocol") != main.PROTOCOL:
            text = f"expected a hello of protocol {main.PROTOCOL}, found {json.dumps(message)[:200]}"
            raise PointFailure(Failure(kind="worker_protocol", phase=phase, message=text, causal_line=text,
                                       log=self.log.name))  # fmt: skip
        self.hello = message
        self._pending = None

    def _next(self, until: float, phase: str, late: str, idle: Callable[[], None] | None = None) -> dict[str, Any]:
        """The next message; what is not of the protocol goes to the log."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while True:
            while self._lines:
                message = self._message(self._lines.popleft())
                if message is not None:
                    self._recent_noise = 0
                    return message
            if self._recent_noise + len(self._rest) > NOISE_LIMIT_BYTES:
                self._babble(phase)
            left = until - time.monotonic()
            if left <= 0:
                self._late(late, phase)
            ready = poll.poll(1e3 * min(left, _IDLE_S if idle else _SLICE_S))
            if idle is not None:
                idle()
            if not ready:
                if self.process.poll() is not None:  # somebody else holds the pipe open
                    self._ended(phase)
                continue
            data = os.read(descriptor, 1 << 16)
            if not data:
                self._ended(phase)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)

    def _message(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            message = json.loads(line)
            if message["nb"] == main.PROTOCOL and isinstance(message["type"], str):
                return dict(message)
        except (ValueError, TypeError, KeyError):
            pass
        self.noise_bytes += len(line)
        self._recent_noise += len(line)
        with contextlib.suppress(OSError), self.log.open("ab") as file:
            file.write(b"[on the protocol's pipe] " + line[:2000] + b"\n")
        return None

    # -- failures

    def _log_size(self) -> int:
        try:
            return self.log.stat().st_size
        except OSError:
            return 0

    def said(self) -> str:
        """What it logged since it was last asked something."""
        return failures.read_log(self.log, start=self._log_at)

    def _busy_with(self) -> str:
        return f"while it was busy with {self._pending[1]!r}" if self._pending else "while it was idle"

    def diagnose(self, phase: str) -> Failure | None:
        """Why it ended; None while it is well."""
        status = self.process.poll()
        if status is None:
            return None
        now = failures.oom_kills()
        killed = None if now is None or self._oom_kills is None else now > self._oom_kills
        how = failures.describe_exit(status) or "ended"
        found = failures.classify(
            self.said(), phase=phase, exit_status=status, extra_rules=self._rules, log_name=self.log.name,
            message=f"the worker {how} {self._busy_with()}", oom_killed=killed,
        )  # fmt: skip
        if found.kind != failures.UNCLASSIFIED or found.causal_line:
            return found
        cause = "a library in it ended the process without a word"
        return replace(found, kind="worker_exited", cause=cause, remedy="Read the end of the worker's log.")

    def _ended(self, phase: str) -> NoReturn:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_WORDS_S)
        found = self.diagnose(phase)
        self.process.terminate(0.0)
        if found is None:
            text = f"the worker closed its pipe {self._busy_with()}"
            found = Failure(kind="worker_protocol", phase=phase, message=text, causal_line=text, log=self.log.name)
        raise PointFailure(found)

    def _late(self, text: str, phase: str) -> NoReturn:
        self.process.terminate(0.0)
        failure = Failure(
            kind="worker_timeout",
            phase=phase,
            message=text,
            causal_line=failures.tail(self.log, 1) if self.said().strip() else "",
            cause="the device or the code on it does not come back"
            + (f"; {self.noise_bytes} bytes that are not of the protocol came instead" if self.noise_bytes else ""),
            remedy="Read the end of the worker's log; if it works, raise the deadline (--nb-deadline boot=S, point=S).",
            log=self.log.name,
        )
        raise DeadlineExceeded(failure)

    def _babble(self, phase: str) -> NoReturn:
        self.process.terminate(0.0)
        text = f"more than {NOISE_LIMIT_BYTES >> 20} MiB on the protocol's pipe that are not of the protocol"
        raise PointFailure(
            Failure(
                kind="worker_protocol",
                phase=phase,
                message=text,
                causal_line=text,
                log=self.log.name,
                cause="something in the worker writes to a descriptor that is not its own",
                remedy="The beginning of it is in the worker's log.",
            )
        )

    def _raised(self, verb: str, message: Mapping[str, Json], phase: str) -> Failure:
        trace = str(message["traceback"])
        last = f"{message['class']}: {message['message']}".splitlines()[0]
        found = failures.classify(
            self.said(), phase=phase, extra_rules=self._rules, log_name=self.log.name,
            message=f"{verb!r} raised {last}",
        )  # fmt: skip
        if found.kind == failures.UNCLASSIFIED:
            found = replace(
                found, kind="worker_exception", cause=f"{verb!r} of the handler raised {message['class']}",
                remedy="The traceback is in the record and in the worker's log.",
            )  # fmt: skip
        return replace(found, causal_line=found.causal_line or last, traceback=trace)


def _cannot_start(launch: Launch, error: OSError, phase: str) -> Failure:
    return Failure(
        kind="stack_missing", phase=phase, message=f"the worker cannot be started: {error}",
        causal_line=f"{type(error).__name__}: {error}", cause=f"{launch.python} cannot be run",
        remedy="Run `make stack`, or give another: --nb-stack compile=PATH.",
    )  # fmt: skip
