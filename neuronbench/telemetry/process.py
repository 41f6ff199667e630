"""The telemetry process: `python -m neuronbench.telemetry.process CONFIG.json`.

Takes samples on fixed schedules until its standard input ends or SIGTERM comes, takes one last sample of everything and
ends. Each sampler has a thread and a schedule of its own (start + k × period, missed slots are skipped and counted), so
that one that hangs delays no other. It says `ready` on standard output after the first sample of each.

Configuration: `{"spill": FILE, "samplers": [{"name", "target", "options", "period_s"}]}`.

The spill is text, a JSON value a line, handed to the system every second, so that a kill costs a second at most:
`[wall_ns, mono_ns, sampler, {series: number or null}]` for a sample, `{"error": TEXT, "sampler": NAME}` for a new error
of a sampler, `{"end": REASON}` at the end.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from neuronbench.protocols import Sampler
from neuronbench.telemetry.names import OWN

FLUSH_S: Final = 1.0
FIRST_S: Final = 5.0
"""How long `ready` waits for first samples; a sampler that hangs does not keep the benchmark waiting."""
LAST_S: Final = 3.0
"""How long last samples may take."""


class Spill:
    """The file, shared by the samplers' threads."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def sample(self, sampler: str, wall_ns: int, mono_ns: int, values: Mapping[str, float | None]) -> None:
        self.line([wall_ns, mono_ns, sampler, values])

    def line(self, value: object) -> None:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"
        with self._lock:
            self._file.write(text)

    def flush(self) -> None:
        with self._lock:
            self._file.flush()


class Schedule(threading.Thread):
    """One sampler in its thread."""

    def __init__(self, name: str, sampler: Sampler, period_s: float, spill: Spill, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)  # one that hangs must not keep the process alive
        self.sampler, self.period_s, self.spill, self.stop = sampler, period_s, spill, stop
        self.first = threading.Event()
        self.errors = 0
        self.missed = 0
        self._known: dict[str, None] = {}
        self._last_error = ""

    def run(self) -> None:
        start = time.monotonic()
        slot = 0
        while True:
            self._sample()
            self.first.set()
            passed = int((time.monotonic() - start) / self.period_s)
            self.missed += max(0, passed - slot)
            slot = max(slot, passed) + 1
            if self.stop.wait(max(0.0, start + slot * self.period_s - time.monotonic())):
                self._sample()
                return

    def _sample(self) -> None:
        before_ns = time.monotonic_ns()
        try:
            values = {series: _number(value) for series, value in self.sampler.read().items()}
        except Exception as error:
            self.errors += 1
            values = dict.fromkeys(self._known)
            self._complain(error)
        else:
            self._known.update(dict.fromkeys(values))
        wall_ns, mono_ns = time.time_ns(), time.monotonic_ns()
        half_ns = (mono_ns - before_ns) // 2  # the values are from somewhere between asking and having
        if values:
            self.spill.sample(self.name, wall_ns - half_ns, mono_ns - half_ns, values)

    def _complain(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._last_error:
            self._last_error = text
            self.spill.line({"error": text, "sampler": self.name})


def _number(value: Any) -> float | None:
    """Missing and non-finite values are null."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def build(spec: Mapping[str, Any]) -> Sampler:
    """The sampler of a specification: `target(**options)`."""
    module, _, name = spec["target"].partition(":")
    target = getattr(importlib.import_module(module), name)
    sampler: Sampler = target(**spec["options"])
    return sampler


def run(config: Mapping[str, Any]) -> None:
    wake, wake_write = os.pipe()
    for end in (wake, wake_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    stop = threading.Event()
    answer = os.dup(1)
    os.dup2(2, 1)  # what a sampler prints belongs into the log, not into the conversation
    with open(config["spill"], "w", encoding="utf-8", buffering=1 << 16) as file:
        spill = Spill(file)
        schedules: list[Schedule] = []
        for spec in config["samplers"]:
            try:
                schedules.append(Schedule(spec["name"], build(spec), spec["period_s"], spill, stop))
            except Exception as error:
                text = f"could not be made from {spec['target']}: {type(error).__name__}: {error}"
                spill.line({"error": text, "sampler": spec["name"]})
        for schedule in schedules:
            schedule.start()
        deadline = time.monotonic() + FIRST_S
        for schedule in schedules:
            schedule.first.wait(max(0.0, deadline - time.monotonic()))
        _account(spill, schedules)
        os.write(answer, b"ready\n")

        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(wake, select.POLLIN)
        reason = ""
        while not reason:
            for fd, _ in poll.poll(round(FLUSH_S * 1e3)):
                if fd == wake:
                    os.read(wake, 512)
                    reason = "SIGTERM"
                elif not os.read(0, 4096):
                    reason = "standard input ended"
            _account(spill, schedules)
        stop.set()
        deadline = time.monotonic() + LAST_S
        for schedule in schedules:
            schedule.join(max(0.0, deadline - time.monotonic()))
        _account(spill, schedules)
        spill.line({"end": reason})
        spill.flush()


def _account(spill: Spill, schedules: list[Schedule]) -> None:
    """Write what telemetry itself costs and loses, and hand everything to the system."""
    values: dict[str, float | None] = {"cpu_s": time.process_time()}
    for schedule in schedules:
        values[f"errors/{schedule.name}"] = schedule.errors
        values[f"missed/{schedule.name}"] = schedule.missed
    spill.sample(OWN, time.time_ns(), time.monotonic_ns(), values)
    spill.flush()


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
