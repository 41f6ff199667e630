"""The line a driver prints each second, on standard output, as JSON."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, Final

from neuronbench.load.outcomes import NOT_FAILURES
from neuronbench.load.stream import Stream

_RECENT: Final = 2000


class Progress:
    """Counts what happened since the window opened (before that: since the phase began) and says so each second."""

    def __init__(self, asked_rate: float | None) -> None:
        self.asked_rate = asked_rate
        self.sent = self.ended = self.failed = self.tokens = 0
        self._since = time.monotonic_ns()
        self._ttft: deque[int] = deque(maxlen=_RECENT)

    def restart(self, now: int) -> None:
        self.sent = self.ended = self.failed = self.tokens = 0
        self._since = now
        self._ttft.clear()

    def end(self, stream: Stream) -> None:
        self.ended += 1
        self.failed += stream.kind not in NOT_FAILURES
        self.tokens += max(stream.n_out, 0)
        if stream.f:
            self._ttft.append(stream.f - stream.w)

    def line(self, now: int, *, phase: str, in_flight: int, remaining: float | None, unit: str) -> dict[str, Any]:
        seconds = max((now - self._since) / 1e9, 1e-9)
        ttft = sorted(self._ttft)
        return {
            "event": "progress",
            "phase": phase,
            "elapsed_s": round(seconds, 2),
            "asked_req_s": self.asked_rate,
            "achieved_req_s": round(self.sent / seconds, 3),
            "in_flight": in_flight,
            "ended": self.ended,
            "failed": self.failed,
            "tok_s": round(self.tokens / seconds, 2),
            "ttft_p50_ms": round(ttft[(len(ttft) - 1) // 2] / 1e6, 2) if ttft else None,
            "ttft_p99_ms": round(ttft[-(-len(ttft) * 99 // 100) - 1] / 1e6, 2) if len(ttft) >= 100 else None,
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
    """One readable line: `window 12 s  8.0 req/s  8 in flight  211 tok/s  TTFT p50 31 ms  0 failed  18 s left`."""
    parts = [f"{line['phase']} {line['elapsed_s']:.0f} s"]
    rate = f"{line['achieved_req_s']:.1f} req/s"
    if line.get("asked_req_s"):
        rate += f" of {line['asked_req_s']:.1f}"
    parts += [rate, f"{line['in_flight']} in flight", f"{line['tok_s']:.0f} tok/s"]
    if line.get("ttft_p50_ms") is not None:
        parts.append(f"TTFT p50 {line['ttft_p50_ms']:.1f} ms")
    if line.get("ttft_p99_ms") is not None:
        parts.append(f"p99 {line['ttft_p99_ms']:.1f} ms")
    if line["failed"]:
        parts.append(f"{line['failed']} FAILED")
    if line.get("remaining") is not None:
        parts.append(f"{line['remaining']:g} {line['remaining_unit']} left")
    return "  ".join(parts)
