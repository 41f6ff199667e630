"""The line a driver prints each second, on standard output, as JSON."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from neuronbench.load.outcomes import NOT_FAILURES
from neuronbench.load.stream import Stream

_RECENT: Final = 2000


class Progress:
    """Counts what happened since the window opened (before that: since the phase began) and says so each second."""

    def __init__(self, asked_rate: float | None) -> None:
        self.asked_rate = asked_rate
        self.sent = self.ended = self.failed = 0
        self._tokens = self._chunks = 0
        """Of all answers that have ended: what a chunk is worth."""
        self._before = 0
        """Chunks that had come when counting began."""
        self._since = time.monotonic_ns()
        self._ttft: deque[int] = deque(maxlen=_RECENT)

    def restart(self, now: int, streams: Iterable[Stream] = ()) -> None:
        """Count from `now` on; `streams` are in flight, and what they have had does not count."""
        self.sent = self.ended = self.failed = 0
        self._before = self._chunks_with(streams)
        self._since = now
        self._ttft.clear()

    def end(self, stream: Stream) -> None:
        self.ended += 1
        self.failed += stream.kind not in NOT_FAILURES
        self._tokens += max(stream.n_out, 0)
        self._chunks += stream.count or max(stream.n_out, 0)  # an answer that is not streamed has no chunks
        if stream.f:
            self._ttft.append(stream.f - stream.w)

    def _chunks_with(self, streams: Iterable[Stream]) -> int:
        return self._chunks + sum(stream.count for stream in streams)

    def line(
        self,
        now: int,
        *,
        phase: str,
        streams: Collection[Stream],
        lags: Sequence[int],
        remaining: float | None,
        unit: str,
    ) -> dict[str, Any]:
        """What a second's line says. `streams` are in flight; `lags` are those of this second's reads, in ns.

        Tokens are counted when an answer ends; those of answers in flight are its chunks times the tokens a chunk had
        in the answers until now. For the eye, not for a record.
        """
        seconds = max((now - self._since) / 1e9, 1e-9)
        ttft = sorted(self._ttft)
        each = self._tokens / self._chunks if self._chunks else 1.0
        return {
            "event": "progress",
            "phase": phase,
            "elapsed_s": round(seconds, 2),
            "asked_req_s": self.asked_rate,
            "achieved_req_s": round(self.sent / seconds, 3),
            "in_flight": len(streams),
            "ended": self.ended,
            "failed": self.failed,
            "tok_s": round((self._chunks_with(streams) - self._before) * each / seconds, 2),
            "ttft_p50_ms": round(ttft[(len(ttft) - 1) // 2] / 1e6, 2) if ttft else None,
            "ttft_p99_ms": round(ttft[-(-len(ttft) * 99 // 100) - 1] / 1e6, 2) if len(ttft) >= 100 else None,
            "lag_max_ms": round(max(lags) / 1e6, 2) if lags else None,
            "remaining": remaining,
            "remaining_unit": unit,
        }


def say(line: str) -> None:
    """Print; a reader that went away is no reason to stop measuring."""
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        pass


def describe(line: dict[str, Any]) -> str:
    """One readable line, what matters most first, for a narrow terminal shows its beginning.

    `window 12 s, 18 s left  7.9 of 8.0 req/s  8 in flight  211 tok/s  TTFT p50 31.0 ms  lag up to 0.3 ms`
    """
    where = f"{line['phase']} {line['elapsed_s']:.0f} s"
    if line.get("remaining") is not None:
        where += f", {line['remaining']:g} {line['remaining_unit']} left"
    rate = f"{line['achieved_req_s']:.1f}"
    if line.get("asked_req_s"):
        rate += f" of {line['asked_req_s']:.1f}"
    parts = [where, f"{rate} req/s", f"{line['in_flight']} in flight", f"{line['tok_s']:.0f} tok/s"]
    if line["failed"]:
        parts.append(f"{line['failed']} FAILED")
    if line.get("ttft_p50_ms") is not None:
        parts.append(f"TTFT p50 {line['ttft_p50_ms']:.1f} ms")
    if line.get("ttft_p99_ms") is not None:
        parts.append(f"p99 {line['ttft_p99_ms']:.1f} ms")
    if line.get("lag_max_ms") is not None:
        parts.append(f"lag up to {line['lag_max_ms']:.1f} ms")
    return "  ".join(parts)
