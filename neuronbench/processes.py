"""Children that cannot be left behind: `spawn` starts a program under a guard (see `neuronbench.guard`).

The child and everything it starts end when `Process.terminate` is called, when the child itself ends, and when this
process ends in any way, SIGKILL included. Nothing here knows what the child is for.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from neuronbench import guard
from neuronbench.model import slug

PIPE: Final = subprocess.PIPE

KILL_WAIT_S: Final = 30.0
"""How long the kernel may take to end processes that were sent SIGKILL."""
_START_S: Final = 30.0
"""How long the guard may take to start the child; it needs some 20 ms."""


class ChildrenSurvived(RuntimeError):
    """Processes that SIGKILL did not end in time: they hang in the kernel, often in a device driver."""


class Process:
    """A running child and its descendants. Made by `spawn`; a context manager that terminates on exit."""

    name: str
    pid: int
    """The child itself, not its guard. It leads its own session and process group."""
    guard_pid: int
    log: Path | None
    started_ns: int
    """Monotonic instant just before the program was executed."""
    ended_ns: int | None
    """Monotonic instant at which the guard saw the child end; None while it runs."""
    returncode: int | None
    """Exit status; negative for the signal that ended it; None until `poll` or `wait` has seen the end."""
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def __init__(
        self, popen: subprocess.Popen[bytes], lifeline: int, status: int, *, name: str, log: Path | None, grace_s: float
    ) -> None:
        self.name, self.log, self.guard_pid = name, log, popen.pid
        self.stdin, self.stdout = popen.stdin, popen.stdout
        self.returncode = self.ended_ns = None
        self._popen, self._lifeline, self._status, self._grace_s = popen, lifeline, status, grace_s
        self._buffer = b""
        self._gone = False
        self._lock = threading.RLock()

    # -- look

    def poll(self) -> int | None:
        """The exit status of the child if it has ended, else None."""
        self._pump(0.0)
        return self.returncode

    def alive(self) -> bool:
        """Whether the child runs."""
        return self.poll() is None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the child's end and return its exit status.

        Descendants it left behind are being ended by then; `terminate` waits for them. Raises
        `subprocess.TimeoutExpired` when `timeout` seconds have passed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else deadline - time.monotonic()
            self._pump(left)
            if self.returncode is None and left is not None and left <= 0:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.name, timeout)
        return self.returncode

    # -- end

    def terminate(self, grace_s: float | None = None) -> None:
        """End the child and all its descendants: SIGTERM, `grace_s` seconds, SIGKILL. Returns when all are gone.

        Idempotent. Raises `ChildrenSurvived` when the kernel does not end them within `KILL_WAIT_S` of SIGKILL.
        """
        grace_s = self._grace_s if grace_s is None else grace_s
        with self._lock:
            if not self._gone:
                with contextlib.suppress(OSError):  # the guard is ending by itself
                    os.write(self._lifeline, json.dumps({"stop": grace_s}).encode() + b"\n")
        deadline = time.monotonic() + grace_s + KILL_WAIT_S
        while not self._gone:
            left = deadline - time.monotonic()
            self._pump(left)
            if not self._gone and left <= 0:
                pids = guard.descendants(self.guard_pid)
                raise ChildrenSurvived(
                    f"{self.name}: processes {', '.join(map(str, pids)) or 'unknown'} are still there "
                    f"{KILL_WAIT_S:g} s after SIGKILL; they hang in the kernel. Look at /proc/PID/stack as root; "
                    f"a device driver that does not answer may need a reload or a reboot"
                )
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # unwritten input for a child that is gone
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.terminate()

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"ended with {self.returncode}"
        return f"<Process {self.name!r} pid={self.pid} {state}>"

    # -- what the guard says

    def _started(self) -> None:
        """Wait for the child to run, or raise why it does not."""
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        deadline = time.monotonic() + _START_S
        while b"\n" not in self._buffer:
            if not poll.poll(max(0, round((deadline - time.monotonic()) * 1e3))):
                raise RuntimeError(f"{self.name}: its guard (pid {self.guard_pid}) did not start it in {_START_S:g} s")
            data = os.read(self._status, 1 << 16)
            if not data:
                raise RuntimeError(
                    f"{self.name}: its guard ended with status {self._popen.wait()} before it started anything; "
                    f"{f'see {self.log}' if self.log else 'pass log= to see why'}"
                )
            self._buffer += data
        line, _, rest = self._buffer.partition(b"\n")
        message = json.loads(line)
        if "error" in message:
            raise _StartError(message["what"], message["error"])
        self.pid, self.started_ns = message["pid"], message["started_ns"]
        os.set_blocking(self._status, False)
        self._buffer = b""
        self._take(rest)  # a child that ended at once

    def _pump(self, timeout_s: float | None) -> None:
        """Take in what the guard has said; wait up to `timeout_s` for it to say anything."""
        if self._gone:
            return
        if timeout_s != 0.0:  # outside of the lock: several threads may wait
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            poll.poll(None if timeout_s is None else max(0, round(timeout_s * 1e3)))
        with self._lock:
            while not self._gone:
                try:
                    data = os.read(self._status, 1 << 16)
                except BlockingIOError:
                    return
                if not data:
                    self._guard_died()
                    return
                self._take(data)

    def _take(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            self.ended_ns, self.returncode = message["ended_ns"], message["exit"]
        elif message.get("gone"):
            self._release()

    def _guard_died(self) -> None:
        """Somebody killed the guard. The kernel has killed the child with it; end what is left of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.returncode is None:
            self.ended_ns, self.returncode = time.monotonic_ns(), -int(signal.SIGKILL)
        self._release()

    def _release(self) -> None:
        self._popen.wait()
        os.close(self._lifeline)
        os.close(self._status)
        self._gone = True


class _StartError(Exception):
    def __init__(self, what: str, number: int) -> None:
        super().__init__(what, number)
        self.what, self.number = what, number


def spawn(
    argv: Sequence[str | os.PathLike[str]],
    *,
    name: str,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    log: Path | None = None,
    pid_dir: Path | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    grace_s: float = 10.0,
) -> Process:
    """Start `argv` under a guard and return once the program is being executed.

    `env` is the child's whole environment (default: this one's). Output is appended to `log`, or dropped without one;
    `stdin=PIPE` and `stdout=PIPE` give binary, buffered streams instead (errors still go to `log`); otherwise the
    child reads from the null device. `pid_dir` gets `<name>.json` while anything of the child's tree lives, for
    `neuronbench.reap`. `grace_s` lies between SIGTERM and SIGKILL.

    Safe to call while other threads run. Raises `FileNotFoundError` for a missing program, interpreter line or `cwd`,
    `PermissionError` for one that may not be executed, other `OSError`s as the kernel gives them.
    """
    words = [os.fspath(word) for word in argv]
    if not words:
        raise ValueError(f"{name}: argv is empty; it names the program to start")
    for stream, given in (("stdin", stdin), ("stdout", stdout)):
        if given not in (None, PIPE):
            raise ValueError(f"{name}: {stream} is None or PIPE, found {given!r}")
    environment = dict(os.environ if env is None else env)
    if pid_dir is not None:
        pid_dir.mkdir(parents=True, exist_ok=True)
    order: guard.Order = {
        "argv": words,
        "env": environment,
        "cwd": None if cwd is None else os.fspath(cwd),
        "grace_s": float(grace_s),
        "name": name,
        "owner": {"pid": os.getpid(), "created": guard.created(os.getpid())},
        "pid_file": None if pid_dir is None else str(pid_dir.resolve() / f"{slug(name)}.json"),
    }
    process = _start_guard(name, stdin, stdout, log, grace_s)
    try:
        _send(process, order)
        process._started()
    except _StartError as error:
        _abandon(process)
        raise _explain(error, name, words, environment, order["cwd"]) from None
    except BaseException:
        _abandon(process)
        raise
    return process


def _start_guard(name: str, stdin: int | None, stdout: int | None, log: Path | None, grace_s: float) -> Process:
    with contextlib.ExitStack() as stack:
        sink: int | IO[bytes] = subprocess.DEVNULL
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            sink = stack.enter_context(open(log, "ab"))
        lifeline, lifeline_write = os.pipe()
        stack.callback(os.close, lifeline)
        status, status_write = os.pipe()
        stack.callback(os.close, status_write)
        try:
            popen = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(lifeline), str(status_write), name],
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=sink if stdout is None else stdout,
                stderr=sink,
                pass_fds=(lifeline, status_write),
                start_new_session=True,  # a Ctrl-C in the terminal reaches the harness, which then ends its children
            )
        except BaseException:
            os.close(lifeline_write)
            os.close(status)
            raise
    return Process(popen, lifeline_write, status, name=name, log=log, grace_s=grace_s)


def _send(process: Process, order: guard.Order) -> None:
    data = memoryview(json.dumps(order).encode() + b"\n")
    try:
        while data:
            data = data[os.write(process._lifeline, data) :]
    except BrokenPipeError:
        pass  # the guard is dead; reading its status says so


def _abandon(process: Process) -> None:
    """Nothing runs, or must not: let the guard go and release everything."""
    if process._gone:
        return
    os.close(process._lifeline)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process._popen.wait(process._grace_s + KILL_WAIT_S)
    finally:
        os.close(process._status)


def _explain(error: _StartError, name: str, argv: list[str], env: Mapping[str, str], cwd: str | None) -> OSError:
    program, reason = argv[0], os.strerror(error.number)
    if error.what == "cwd":
        text = f"{name}: the folder to start in is not usable ({reason})"
        return OSError(error.number, text, cwd)
    if error.what == "pid_file":
        return OSError(error.number, f"{name}: its pid file cannot be written ({reason})")
    if error.number == errno.ENOENT:
        where = "" if os.sep in program else f" on the PATH {env.get('PATH', os.defpath)!r}"
        if os.path.exists(os.path.join(cwd or "", program)):
            text = f"{name}: the interpreter that its first line or its ELF header names does not exist"
        else:
            text = f"{name}: program not found{where}; install it or give its full path"
        return FileNotFoundError(error.number, text, program)
    return OSError(error.number, f"{name}: cannot be executed ({reason})", program)
