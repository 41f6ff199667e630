"""What the timed loops of one or several workers gave, and how much of it escaped the timers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One worker's loop. Instants are of the monotonic clock, all in ns."""

    worker: int
    begun_ns: int
    stopped_ns: int
    """The timers' last."""
    ended_ns: int
    """The last output was on the host."""
    transfer_ns: int
    """What bringing a finished output to the host takes; no part of a call."""
    bookkeeping_ns: int
    """What the loop itself took outside its timers, by an empty loop of as many turns."""
    durations_ns: npt.NDArray[Any]
    """Of each call, in order."""
    ends_ns: npt.NDArray[Any]
    """The instant at which each call ended."""
    probe_escape: float | None = None
    """Share of the wall that escaped the timers in short loops."""

    @property
    def wall_ns(self) -> int:
        """From the first call to the last output on the host, without the transfer."""
        return max(self.ended_ns - self.begun_ns - self.transfer_ns, 1)

    @property
    def escape(self) -> float:
        """Share of the wall that no timer saw."""
        seen = int(self.durations_ns.sum()) + self.bookkeeping_ns
        return max(self.wall_ns - seen, 0) / self.wall_ns


@dataclass(frozen=True, kw_only=True)
class Run:
    """Loops that ran at the same time."""

    loops: Sequence[Loop]
    batch_size: int
    batch_digest: str
    window_ns: tuple[int, int] | None = None
    """Open and close of the window, of loops that ran against the clock."""
    warmup: int = 0
    cores: Mapping[int, Sequence[int] | None] = field(default_factory=dict)
    """Worker → the cores it was pinned to."""

    @property
    def calls(self) -> int:
        return sum(len(loop.durations_ns) for loop in self.loops)

    @property
    def span_ns(self) -> tuple[int, int]:
        """The window, or from the first call to the end of the last."""
        if self.window_ns is not None:
            return self.window_ns
        return min(loop.begun_ns for loop in self.loops), max(loop.stopped_ns for loop in self.loops)

    def inside(self, loop: Loop) -> npt.NDArray[Any]:
        """Which calls of `loop` ended inside the window."""
        import numpy as np

        if self.window_ns is None:
            return np.ones(len(loop.ends_ns), dtype=bool)
        start, end = self.window_ns
        inside: npt.NDArray[Any] = (loop.ends_ns > start) & (loop.ends_ns <= end)
        return inside

    def durations_ms(self) -> npt.NDArray[Any]:
        """Of all calls that ended inside the window, sorted."""
        import numpy as np

        kept = [loop.durations_ns[self.inside(loop)] for loop in self.loops]
        return np.sort(np.concatenate(kept)) / 1e6

    @property
    def escape(self) -> float:
        """The worst loop's share of time that escaped the timers."""
        return max(loop.escape for loop in self.loops)

    @property
    def probe_escape(self) -> float | None:
        found = [loop.probe_escape for loop in self.loops if loop.probe_escape is not None]
        return max(found, default=None)

    def rate(self) -> float:
        """Items per second that finished inside the window."""
        start, end = self.span_ns
        finished = sum(int(self.inside(loop).sum()) for loop in self.loops)
        return self.batch_size * finished / ((end - start) / 1e9)

    def wall_rate(self) -> float:
        """Items per second of the whole loops, the last output on the host included: each worker by its own wall."""
        return sum(self.batch_size * len(loop.durations_ns) / (loop.wall_ns / 1e9) for loop in self.loops)


def timed(worker: int, facts: Mapping[str, int], durations_ns: Any) -> Loop:
    """A loop that timed each call."""
    import numpy as np

    offset = facts["clock_offset_ns"]
    # The bookkeeping is spread evenly: the end of a call is where its successors begin, within some 100 ns.
    each = facts["bookkeeping_ns"] / max(len(durations_ns), 1)
    ends = facts["begun_ns"] + np.cumsum(durations_ns) + (each * np.arange(1, len(durations_ns) + 1)).astype("int64")
    return Loop(
        worker=worker,
        durations_ns=durations_ns,
        ends_ns=ends + offset,
        probe_escape=facts["probe_escape_ppm"] / 1e6,
        **_instants(facts),
    )


def windowed(worker: int, facts: Mapping[str, int], stamps_ns: Any) -> Loop:
    """A loop against the clock, which noted when each call ended: from one end to the next is one call."""
    import numpy as np

    facts = {**facts, "bookkeeping_ns": 0}  # part of the gaps between stamps
    durations = np.diff(np.concatenate([[facts["begun_ns"]], stamps_ns]))
    return Loop(
        worker=worker,
        durations_ns=durations,
        ends_ns=stamps_ns + facts["clock_offset_ns"],
        probe_escape=facts["probe_escape_ppm"] / 1e6,
        **_instants(facts),
    )


def _instants(facts: Mapping[str, int]) -> dict[str, int]:
    offset = facts["clock_offset_ns"]
    return {
        "begun_ns": facts["begun_ns"] + offset,
        "stopped_ns": facts["stopped_ns"] + offset,
        "ended_ns": facts["ended_ns"] + offset,
        "transfer_ns": facts["transfer_ns"],
        "bookkeeping_ns": facts["bookkeeping_ns"],
    }
