"""The worker's program: `<stack python> main.py`, JSON lines on its standard input and output.

Standard library only, started by file path in a stack's interpreter. Requests come on standard input, answers go to
what was standard output; before anything else is imported that pipe is moved out of reach, so that whatever a library
prints goes to the log. What it does is up to the handler it is told to use; see the README beside this file.

    -> {"id": 1, "verb": "use", "arguments": {...}, "folder": "...", "tensors": [...]}
    <- {"nb": 1, "type": "hello", "protocol": 1, ...}
    <- {"nb": 1, "type": "progress", "id": 1, "text": "..."}
    <- {"nb": 1, "type": "result", "id": 1, "value": ..., "tensors": [...], "elapsed_ns": ...}
    <- {"nb": 1, "type": "error", "id": 1, "class": "...", "message": "...", "traceback": "..."}

Each message begins with a line feed as well as ending with one: what something else wrote to the pipe without an end
of line does not spoil the message that follows.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import platform
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

PROTOCOL = 1
EXIT_EOF = 0


class Channel:
    """The two ends of the protocol, out of reach of what prints."""

    def __init__(self) -> None:
        self._incoming = os.fdopen(os.dup(0), "rb")
        self._outgoing = os.dup(1)
        self._lock = threading.Lock()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(line_buffering=True, errors="replace")

    def send(self, **message: Any) -> None:
        data = memoryview(("\n" + json.dumps({"nb": PROTOCOL, **message}, allow_nan=False) + "\n").encode())
        with self._lock:
            while data:
                data = data[os.write(self._outgoing, data) :]

    def requests(self) -> Iterator[dict[str, Any]]:
        """Until the harness closes its end or is gone."""
        for line in self._incoming:
            if line.strip():
                yield json.loads(line)


def package(name: str, folder: str) -> None:
    """Let `name.x` mean `folder/x.py`, with relative imports among them, and without touching `sys.path`."""
    module = types.ModuleType(name)
    module.__path__ = [folder]
    sys.modules[name] = module


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import without the garbage collector, which finds nothing to collect among the million objects of a framework.

    It would take a fifth of the time. What was imported stays, so it is not looked at again by later collections.
    """
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if wanted:
            gc.enable()


class Worker:
    """Carries out requests."""

    def __init__(self, channel: Channel, loops: Any, tensors: Any) -> None:
        self._channel, self._loops, self._tensors = channel, loops, tensors
        self._handler: Any = None
        self._call: Callable[[], Any] | None = None
        self._output: Any = None
        self._request = 0

    # -- one request after the other

    def serve(self) -> None:
        for request in self._channel.requests():
            if request["verb"] == "exit":
                return
            self._request = request["id"]
            started = time.perf_counter_ns()
            try:
                answer = self._answer(request)
                elapsed = time.perf_counter_ns() - started
                self._channel.send(type="result", id=request["id"], elapsed_ns=elapsed, **answer)
            except Exception as error:
                self._complain(request, error)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        folder = request["folder"]
        arguments = dict(request.get("arguments") or {})
        if request.get("tensors"):
            arguments["inputs"] = self._tensors.take(request["tensors"], folder)
        verb = request["verb"]
        own = getattr(self, "do_" + verb, None)
        if own is None:
            value, given = self._method(verb)(**arguments), {}
        else:
            value, given = own(**arguments)
        described = self._tensors.write(given, folder, f"reply-{request['id']}") if given else []
        json.dumps(value, allow_nan=False)  # said here, where the handler's own words are in the traceback
        return {"value": value, "tensors": described}

    def _method(self, verb: str) -> Callable[..., Any]:
        method: Callable[..., Any] | None = None if verb.startswith("_") else getattr(self._handler, verb, None)
        if method is None or not callable(method):
            name = type(self._handler).__module__ if self._handler is not None else "none (nothing was told to use)"
            raise LookupError(f"the worker's handler {name} has no verb {verb!r}")
        return method

    def _complain(self, request: dict[str, Any], error: Exception) -> None:
        text = traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        kind = type(error)
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        self._channel.send(type="error", id=request["id"], **{"class": name}, message=str(error), traceback=text)

    def progress(self, text: str) -> None:
        """What a handler calls to say what it is doing."""
        self._channel.send(type="progress", id=self._request, text=text)

    # -- verbs of the worker itself: each returns a value and tensors

    def do_use(self, folder: str, module: str, arguments: dict[str, Any]) -> Any:
        """Load `module` from `folder`; `module.Handler(progress, **arguments)` does everything else."""
        package("nb_handlers", folder)
        with importing():
            loaded = importlib.import_module(f"nb_handlers.{module}")
        self._handler = loaded.Handler(self.progress, **arguments)
        return {"module": loaded.__file__}, {}

    def do_pin(self, cores: Any) -> Any:
        """Let this process run on these cores only; null where the system cannot."""
        if not hasattr(os, "sched_setaffinity"):
            return None, {}
        os.sched_setaffinity(0, cores)
        return sorted(os.sched_getaffinity(0)), {}

    def do_facts(self) -> Any:
        own = {"python": platform.python_version(), "executable": sys.executable, "pid": os.getpid()}
        facts = getattr(self._handler, "facts", None)
        return {**own, **(facts() if callable(facts) else {})}, {}

    def do_bind(self, inputs: dict[str, Any]) -> Any:
        """Prepare `inputs` on the device: the calls from now on are with these."""
        self._call = self._finished(self._handler.step(inputs))
        self._output = None
        return None, {}

    def do_call(self) -> Any:
        """One timed call; how long its output, by then said to be done, kept the host waiting; and the CPU it had."""
        call, clock, cpu = self._bound(), time.perf_counter_ns, time.process_time_ns
        had = cpu()
        started = clock()
        self._output = call()
        ended = clock()
        had = cpu() - had
        there, transfer = self._loops.barrier(self._handler.tensors, self._output)
        late = max(there - ended - transfer, 0)
        return {"duration_ns": ended - started, "late_ns": late, "cpu_ns": had}, {}

    def do_fetch(self) -> Any:
        """The outputs of the last call, or of a loop's last."""
        if self._output is None:
            raise LookupError("there is no output to fetch: no call was made since the inputs were bound")
        return None, self._handler.tensors(self._output)

    def do_outputs(self, inputs: dict[str, Any]) -> Any:
        """Outputs for `inputs`, leaving what is bound as it is."""
        return None, self._handler.tensors(self._finished(self._handler.step(inputs))())

    def do_reference(self, inputs: dict[str, Any], **arguments: Any) -> Any:
        """What the uncompiled model answers, in fp32."""
        return None, self._handler.reference(inputs, **arguments)

    def do_run_latency(self, calls: int, warmup: int) -> Any:
        facts, durations, self._output = self._loops.latency(self._bound(), self._handler.tensors, calls, warmup)
        facts["clock_offset_ns"] = clock_offset_ns()
        return facts, {"durations_ns": ("int64", (len(durations),), durations.tobytes())}

    def do_warm(self, calls: int) -> Any:
        """Untimed calls, then short loops: what a call takes, its output on the host, and what escaped the timers."""
        call = self._bound()
        for _ in range(max(calls, 1)):
            output = call()
        self._handler.tensors(output)
        with self._loops.undisturbed():
            escape, fastest_ns = self._loops.probe(call, self._handler.tensors)
        return {"call_ns": fastest_ns, "probe_escape_ppm": round(1e6 * escape)}, {}

    def do_run_throughput(self, go_ns: int, close_ns: int, capacity: int, limit: int) -> Any:
        """`go_ns` and `close_ns` are instants of the monotonic clock, which all processes share."""
        offset = clock_offset_ns()
        facts, stamps, self._output = self._loops.window(
            self._bound(), self._handler.tensors, go_ns - offset, close_ns - offset, capacity, limit
        )
        facts["clock_offset_ns"] = offset
        return facts, {"stamps_ns": ("int64", (len(stamps),), stamps.tobytes())}

    # -- parts

    def _bound(self) -> Callable[[], Any]:
        if self._call is None:
            raise LookupError("no inputs are bound; `bind` comes before calls")
        return self._call

    def _finished(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """`step` and the device's own barrier, where the handler has one."""
        synchronize = getattr(self._handler, "synchronize", None)
        if synchronize is None:
            return step

        def call() -> Any:
            output = step()
            synchronize()
            return output

        return call


def clock_offset_ns() -> int:
    """Monotonic clock − the clock of the loops; 0 within a microsecond on Linux, where they are the same."""
    return min((time.monotonic_ns() - time.perf_counter_ns() for _ in range(5)), key=abs)


def main() -> int:
    channel = Channel()
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0] or ".") == here:
        del sys.path[0]  # else `import loops` in any library would find ours
    package("nb_worker", here)
    loops, tensors = (importlib.import_module(f"nb_worker.{name}") for name in ("loops", "tensors"))
    channel.send(
        type="hello", protocol=PROTOCOL, pid=os.getpid(), python=platform.python_version(), executable=sys.executable
    )
    Worker(channel, loops, tensors).serve()
    return EXIT_EOF


if __name__ == "__main__":
    raise SystemExit(main())
