"""What a server is doing while it starts, read from its log as it is written."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

Pattern: TypeAlias = re.Pattern[str]


@dataclass(frozen=True, kw_only=True)
class Flavour:
    """How a kind of server words the stages of its start. A pattern that is None: it says nothing about that."""

    name: str
    stages: tuple[tuple[Pattern, str], ...] = ()
    """Line → what the server does from then on, in the order they come."""
    load_begins: Pattern | None = None
    """The engine begins to load the model."""
    weights_took: Pattern | None = None
    """Group 1: seconds that loading weights took. Several workers: the longest counts."""
    engine_took: Pattern | None = None
    """Group 1: seconds that compilation, profiling and the set-up of caches took; the engine is ready then."""
    readings: tuple[tuple[Pattern, str], ...] = ()
    """Line → name of a figure that the server works out for itself; group 1 is its value."""


VLLM: Final = Flavour(
    name="vllm",
    stages=(
        (re.compile(r"Resolved architecture|Using max model len"), "starting the engine"),
        (re.compile(r"Starting to load model|Loading (model|weights) from|Loading drafter model"), "loading weights"),
        (re.compile(r"Loading weights took"), "compiling and sizing the cache"),
        (re.compile(r"init engine .* took"), "starting the API server"),
        (re.compile(r"Application startup complete"), "first generation"),
    ),
    load_begins=re.compile(r"Starting to load model"),
    weights_took=re.compile(r"Loading weights took ([\d.]+) ?s"),
    engine_took=re.compile(r"init engine \(.*\) took ([\d.]+) ?s"),
    readings=(
        (re.compile(r"KV cache size: ([\d,]+) tokens"), "kv_cache_tokens"),
        (re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"), "max_concurrency"),
        (re.compile(r"torch\.compile takes ([\d.]+) s"), "torch_compile_s"),
        (re.compile(r"local_rank=\d+, core ids=\[([\d, ]*)\]"), "bound_cores"),
    ),
)
PLAIN: Final = Flavour(name="plain")
"""A server of which nothing is known."""


@dataclass
class LogFollower:
    """Reads what was added to a log and notes when each stage began. Instants are those of reading, in ns."""

    path: Path
    flavour: Flavour
    stage: str = "starting the process"
    load_begins_ns: int | None = None
    engine_ready_ns: int | None = None
    weights_s: float | None = None
    engine_s: float | None = None
    readings: dict[str, str] = field(default_factory=dict)
    offset: int = 0
    """Bytes read so far."""
    _rest: bytes = b""
    _reached: int = -1

    def poll(self) -> None:
        """Take in what is new; cheap when nothing is."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return
        if not data:
            return
        self.offset += len(data)
        now = time.monotonic_ns()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line.decode("utf-8", errors="replace"), now)

    def _line(self, line: str, now: int) -> None:
        flavour = self.flavour
        for position, (pattern, text) in enumerate(flavour.stages):
            if position > self._reached and pattern.search(line):
                self._reached, self.stage = position, text
        if self.load_begins_ns is None and flavour.load_begins and flavour.load_begins.search(line):
            self.load_begins_ns = now
        if flavour.weights_took and (match := flavour.weights_took.search(line)):
            self.weights_s = max(self.weights_s or 0.0, float(match[1]))
        if flavour.engine_took and (match := flavour.engine_took.search(line)):
            self.engine_s = max(self.engine_s or 0.0, float(match[1]))
            self.engine_ready_ns = now
        for pattern, name in flavour.readings:
            if match := pattern.search(line):
                self.readings[name] = match[1].replace(", ", ",")
