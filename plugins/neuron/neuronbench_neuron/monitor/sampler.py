"""The sampler over `neuron-monitor`: runs in the telemetry process, which starts the tool and ends with it.

A sample is a report that has come since the read before, so none is counted twice; a read without one gives nothing.
Counts of a period are added up to counters that only grow. A tool that ends, or says nothing for three periods, is an
error of the sample that notices it and is started again, once in a session of sampling; after that every read is an
error. Nothing is ever repeated from an older report.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from neuronbench.redaction import redact
from neuronbench_neuron.monitor.config import configuration, period_for
from neuronbench_neuron.monitor.report import ERRORS, OUTCOMES, Report, ReportError, Runtime, parse

RESTARTS: Final = 1
LONGER: Final = 4
"""Times the period may be made longer: each is a gap in the samples."""
FIRST_S: Final = 4.0
"""What the first report may take."""
QUIET_PERIODS: Final = 3
QUIET_S: Final = 5.0
"""A tool that says nothing for so many periods, and for so long, is taken for dead."""
LINE_LIMIT: Final = 8 << 20
"""Bytes of a line, at most; a report of 128 cores has about 60 kB."""
_IDENTIFIER = re.compile(r"\b(?:i|ami|subnet|vpc|eni)-[0-9a-f]{6,}\b|\b\d{1,3}(?:\.\d{1,3}){3}\b")


class NeuronMonitorError(RuntimeError):
    """`neuron-monitor` cannot be read; the text says what it did and whether it was started again."""


class NeuronMonitor:
    """Sampler of `neuron-monitor`. Series, all null where the tool does not say:

    `utilization_percent` (mean over the cores of `cores`; of all that are in use without them), `period_s` (of the
    report), `covered_s` (since the one before), `execution_s` (the longest executions), `device_latency_p50_s`,
    `..._p99_s`, `total_latency_p50_s`, `..._p99_s` (of the slowest runtime), `device_bytes`, `host_bytes`,
    `runtimes`, `other_runtimes` (that have none of `cores`); `core/N/utilization_percent`, `core/N/flops`,
    `core/N/memory_bytes`, `core/N/nc_v3.M/utilization_percent`; counters `outcome/...`, `error/...`, `reports`,
    `unreadable`, `odd_fields`, `restarts`; `ecc/DEVICE/...` since the driver was loaded.
    """

    def __init__(
        self, tool: str, cores: Sequence[int] | None = None, period_s: float | None = None, adapt: bool = True
    ) -> None:
        """`cores`: ids of those whose work is measured. `adapt`: let the period follow the executions."""
        self._tool, self._cores, self._adapt = tool, None if cores is None else frozenset(cores), adapt
        self._period_s = period_for(None) if period_s is None else period_s
        self._counters: dict[str, float] = dict.fromkeys(("reports", "unreadable", "odd_fields", "restarts"), 0.0)
        self._lengthened = 0
        self._folder = tempfile.TemporaryDirectory(prefix="neuronbench-monitor-")
        self._running: _Tool | None = None
        self._reported_s: float | None = None
        """When the report before came, of the tool that runs now."""
        self._covered_s: float | None = None
        self._dead = ""

    # -- sampler

    def read(self) -> Mapping[str, float | None]:
        if self._dead:
            raise NeuronMonitorError(self._dead)
        if self._running is None:
            self._running = self._start()
            self._running.wait(FIRST_S)
        reports = self._take(self._running)
        why = self._running.silence(self._period_s)
        if why:
            self._replace(self._running, why)
        if not reports:
            return {}
        own = [runtime for report in reports for runtime in self._own(report)]
        self._follow(own)
        return self._values(reports[-1])

    def close(self) -> None:
        """End the tool. Idempotent."""
        if self._running is not None:
            self._running.end()
            self._running = None
        self._folder.cleanup()

    # -- the tool

    def _start(self) -> _Tool:
        path = Path(self._folder.name, "neuron-monitor.json")
        path.write_text(configuration(self._period_s), encoding="utf-8")
        try:
            self._reported_s = None
            return _Tool(self._tool, path)
        except OSError as error:
            self._dead = f"{self._tool} cannot be run: {error.strerror or error}; install aws-neuronx-tools"
            raise NeuronMonitorError(self._dead) from None

    def _replace(self, tool: _Tool, why: str) -> None:
        """It is dead: say so, once with another in its place."""
        tool.end()
        self._running = None
        if self._counters["restarts"] >= RESTARTS:
            self._dead = f"{why}; it had been started again before and is left alone now"
            raise NeuronMonitorError(self._dead)
        self._counters["restarts"] += 1
        self._running = self._start()
        raise NeuronMonitorError(f"{why}; it was started again")

    def _follow(self, runtimes: Iterable[Runtime]) -> None:
        """Make the period longer when executions turn out to be long for it."""
        longest = max((found for runtime in runtimes if (found := runtime.longest_s) is not None), default=None)
        wanted = period_for(longest)
        if not self._adapt or wanted <= self._period_s or self._lengthened >= LONGER or self._running is None:
            return
        self._running.end()
        self._period_s = wanted
        self._lengthened += 1
        self._running = self._start()

    def _take(self, tool: _Tool) -> list[Report]:
        reports = []
        self._covered_s = None
        for at_s, line in tool.lines():
            try:
                report = parse(line)
            except ReportError:
                self._counters["unreadable"] += 1
                continue
            if self._reported_s is not None:
                self._covered_s = (self._covered_s or 0.0) + at_s - self._reported_s
            self._reported_s = at_s
            reports.append(report)
            self._count(report)
        return reports

    def _count(self, report: Report) -> None:
        """Counts of a period onto the counters. One that a report does not have leaves its counter as it is."""
        self._counters["reports"] += 1
        self._counters["odd_fields"] += len(report.odd)
        for runtime in self._own(report):
            for kind, counts, names in (("error", runtime.errors, ERRORS), ("outcome", runtime.outcomes, OUTCOMES)):
                for name in names:
                    count = counts.get(name)
                    if count is not None:
                        key = f"{kind}/{name}"
                        self._counters[key] = self._counters.get(key, 0.0) + count

    # -- values

    def _own(self, report: Report) -> list[Runtime]:
        """Runtimes with a core that is ours; one that does not say which it has is nobody's in particular."""
        if self._cores is None:
            return list(report.runtimes)
        return [runtime for runtime in report.runtimes if self._cores & runtime.cores.keys()]

    def _values(self, report: Report) -> dict[str, float | None]:
        own = self._own(report)
        values: dict[str, float | None] = {
            "utilization_percent": self._utilization(own),
            "covered_s": self._covered_s,
            "period_s": _largest(runtime.period_s for runtime in own),
            "execution_s": _largest(runtime.longest_s for runtime in own),
            "device_bytes": _sum([runtime.device_bytes for runtime in own]),
            "host_bytes": _sum([runtime.host_bytes for runtime in own]),
            "runtimes": float(len(own)),
            "other_runtimes": float(len(report.runtimes) - len(own)),
        }
        for name in ("p50", "p99"):
            values[f"device_latency_{name}_s"] = _largest(runtime.device_latency_s.get(name) for runtime in own)
            values[f"total_latency_{name}_s"] = _largest(runtime.total_latency_s.get(name) for runtime in own)
        for runtime in own:
            for number, core in sorted(runtime.cores.items()):
                if self._cores is not None and number not in self._cores:
                    continue
                at = f"core/{number}"
                values[f"{at}/utilization_percent"] = core.utilization_pct
                values[f"{at}/flops"] = core.flops
                values[f"{at}/memory_bytes"] = core.memory_bytes
                for part, share in core.physical.items():
                    values[f"{at}/{part.replace('/', '_')}/utilization_percent"] = share
        for device, events in sorted(report.ecc.items()):
            for name, count in events.items():
                values[f"ecc/{device}/{name}"] = count
        values.update(self._counters)
        return values

    def _utilization(self, own: Sequence[Runtime]) -> float | None:
        """Mean over the cores. A leased core that no runtime holds does nothing, once any of them is held: it counts
        as idle. Null when nothing is held, and when a core's own figure is missing: a mean of some is no mean."""
        found: dict[int, float | None] = {}
        for runtime in own:
            for number, core in runtime.cores.items():
                if self._cores is None or number in self._cores:
                    found[number] = core.utilization_pct
        values = [value for value in found.values() if value is not None]
        if not found or len(values) < len(found):
            return None
        return sum(values) / (len(found) if self._cores is None else len(self._cores))


class _Tool:
    """A running `neuron-monitor`; two threads take what it says off its pipes."""

    def __init__(self, tool: str, config: Path) -> None:
        self._process = subprocess.Popen(
            [tool, "-c", str(config)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PATH": f"{Path(tool).parent}{os.pathsep}{os.environ.get('PATH', '')}"},
        )  # fmt: skip
        self._name = Path(tool).name
        self._lines: deque[tuple[float, bytes]] = deque()
        self._said: deque[bytes] = deque(maxlen=5)
        self._count = 0
        self._heard_at = time.monotonic()
        self._first = threading.Event()
        self._closed = threading.Event()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._words, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError):  # closed by `end`
            while line := pipe.readline(LINE_LIMIT):
                if not line.strip():
                    continue
                self._heard_at = time.monotonic()
                self._lines.append((self._heard_at, line))
                self._count += 1
                self._first.set()
        self._closed.set()
        self._first.set()

    def _words(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(ValueError, OSError):
            while line := pipe.readline(LINE_LIMIT):
                self._said.append(line)

    def wait(self, seconds: float) -> None:
        """For the first line, or the end."""
        self._first.wait(seconds)

    def lines(self) -> list[tuple[float, bytes]]:
        """What has come since the last time, and when."""
        found = []
        while self._lines:
            found.append(self._lines.popleft())
        return found

    def silence(self, period_s: float) -> str:
        """Why nothing will come any more; empty while it is well."""
        if self._closed.is_set() and not self._lines:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._threads[1].join(1.0)
            status = self._process.returncode
            how = "closed its output" if status is None else f"was ended by {signal.Signals(-status).name}" \
                if status < 0 else f"ended with status {status}"  # fmt: skip
            return f"{self._name} {how} after {self._count} reports{self._last_words()}"
        quiet_s = time.monotonic() - self._heard_at
        if quiet_s > max(QUIET_PERIODS * period_s, QUIET_S):
            return (
                f"{self._name} has said nothing for {quiet_s:.1f} s, its period is {period_s:g} s{self._last_words()}"
            )
        return ""

    def _last_words(self) -> str:
        text = b" ".join(self._said).decode("utf-8", "replace")
        text = _IDENTIFIER.sub("[identifier]", redact(" ".join(text.split())))
        return f": {text[-300:]}" if text else ""

    def end(self) -> None:
        """End it and take its pipes down."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5.0)
        for thread in self._threads:
            thread.join(2.0)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _sum(values: Sequence[float | None]) -> float | None:
    """None when any is missing, for a part is no sum; None of nothing."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
