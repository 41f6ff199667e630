"""The window's edges and what was noted at them, from the drivers' event files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class Edges:
    """Common edges of all workers, monotonic ns; None where the run did not come that far."""

    started: int | None = None
    ramped: int | None = None
    opened: int | None = None
    closed: int | None = None
    last: int = 0
    """Last instant anything was noted: until then the records are whole."""
    cpu_share: float | None = None
    """CPU of the busiest worker between the edges, as a share of one core."""
    cpu_total: float | None = None
    """CPU of all workers between the edges, in cores."""
    cpu_of: dict[int, float] = field(default_factory=dict)
    """Worker → its share of that."""
    lag_slices: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Worker → the read lags that were noted inside the window."""
    clock_steps: list[int] = field(default_factory=list)
    opened_utc_ns: int | None = None
    failures: list[dict[str, Any]] = field(default_factory=list)
    """A few failures with the server's own words."""

    @property
    def end(self) -> int | None:
        """End of the window as far as it is known: of a run that was cut off, the last instant noted."""
        if self.opened is None:
            return None
        return self.closed if self.closed is not None else max(self.last, self.opened + 1)


def workers_of(out: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in out.glob("events-*.jsonl"))


def events(out: Path, worker: int) -> Iterator[Mapping[str, Any]]:
    """Events of a worker; a last line that was cut off by a kill is left out."""
    with (out / f"events-{worker}.jsonl").open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def read_edges(out: Path) -> Edges:
    """Read and join the edges of all workers."""
    edges = Edges()
    total = 0.0
    for worker in workers_of(out):
        noted: dict[str, Mapping[str, Any]] = {}
        latest: Mapping[str, Any] | None = None
        for event in events(out, worker):
            kind = event["event"]
            if kind == "edge":
                noted[event["name"]] = event
            elif kind == "clock_step":
                edges.clock_steps.append(event["step_ns"])
            elif kind == "failure":
                edges.failures.append({**event, "worker": worker})
            elif kind == "start":
                edges.started = min(edges.started or event["t"], event["t"])
            if kind == "second":
                latest = event
            edges.last = max(edges.last, event.get("noted", event.get("t", 0)))
        if "ramp" in noted:
            edges.ramped = max(edges.ramped or 0, noted["ramp"]["t"])
        if "open" in noted:
            edges.opened = max(edges.opened or 0, noted["open"]["t"])
            edges.opened_utc_ns = edges.opened_utc_ns or noted["open"]["utc_ns"]
            if "close" in noted:
                closed = noted["close"]["t"]
                edges.closed = min(edges.closed or closed, closed)
            last = noted.get("close") or latest
            if last is not None and last.get("noted", last["t"]) > noted["open"]["noted"]:
                seconds = last.get("noted", last["t"]) - noted["open"]["noted"]
                share = (last["cpu_ns"] - noted["open"]["cpu_ns"]) / seconds
                edges.cpu_share = max(edges.cpu_share or 0.0, share)
                total += share
                edges.cpu_of[worker] = share
                edges.cpu_total = total
            edges.lag_slices[worker] = (noted["open"]["lags"], noted["close"]["lags"] if "close" in noted else -1)
    return edges
