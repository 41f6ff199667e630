"""What the server did, request by request, on its own clock."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


class RequestRecord:
    """One request. All instants are CLOCK_MONOTONIC nanoseconds; 0 where nothing happened yet.

    received_ns: the request's last byte reached the kernel; parsed_ns: it was read and understood;
    admitted_ns: it left the queue (equal to the anchor when it never waited); anchor_ns: deadlines count from here.
    due_ns, sent_ns: per chunk that carries tokens, the instant it should leave and the one it was handed to the kernel.
    """

    __slots__ = (
        "admitted_ns",
        "anchor_ns",
        "api",
        "cached_tokens",
        "chunk_tokens",
        "completion_tokens",
        "done_ns",
        "due_ns",
        "finish_reason",
        "id",
        "model",
        "outcome",
        "parsed_ns",
        "prompt_tokens",
        "received_ns",
        "scenario",
        "sent_ns",
        "seq",
        "status",
        "stream",
        "unsent_waits",
    )

    def __init__(self, seq: int, request_id: str, api: str, received_ns: int, parsed_ns: int) -> None:
        self.seq = seq
        self.id = request_id
        self.api = api
        self.received_ns = received_ns
        self.parsed_ns = parsed_ns
        self.anchor_ns = 0
        self.admitted_ns = 0
        self.done_ns = 0
        self.model = ""
        self.scenario = ""
        self.stream = False
        self.status = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.finish_reason: str | None = None
        self.outcome = "open"
        self.due_ns = array("q")
        self.sent_ns = array("q")
        # None: one token in every chunk
        self.chunk_tokens: array[int] | None = None
        # how often the kernel took less than it was given: the stamps before are of the hand-over attempt
        self.unsent_waits = 0

    def generated(self) -> int:
        """Tokens produced so far, hidden ones left out until the end."""
        if self.outcome != "open":
            return self.completion_tokens
        return len(self.sent_ns) if self.chunk_tokens is None else sum(self.chunk_tokens)

    def as_dict(self, *, chunks: bool = True) -> dict[str, Any]:
        """The record as JSON data; without `chunks` only the first and last instants are given."""
        sent = self.sent_ns
        data: dict[str, Any] = {
            "seq": self.seq,
            "id": self.id,
            "api": self.api,
            "model": self.model,
            "scenario": self.scenario,
            "stream": self.stream,
            "status": self.status,
            "outcome": self.outcome,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "received_ns": self.received_ns,
            "parsed_ns": self.parsed_ns,
            "anchor_ns": self.anchor_ns,
            "admitted_ns": self.admitted_ns,
            "first_sent_ns": sent[0] if sent else None,
            "last_sent_ns": sent[-1] if sent else None,
            "done_ns": self.done_ns or None,
            "unsent_waits": self.unsent_waits,
        }
        if chunks:
            data["due_ns"] = self.due_ns.tolist()
            data["sent_ns"] = sent.tolist()
            data["chunk_tokens"] = [1] * len(sent) if self.chunk_tokens is None else self.chunk_tokens.tolist()
        return data


class Records:
    """The last `keep` requests in order of arrival."""

    def __init__(self, keep: int) -> None:
        self._kept: deque[RequestRecord] = deque(maxlen=keep)
        self._seq = 0

    def open(self, request_id: str | None, api: str, received_ns: int, parsed_ns: int) -> RequestRecord:
        """Start a record; without an id of the client's own it gets `seq-N`."""
        record = RequestRecord(self._seq, request_id or f"seq-{self._seq}", api, received_ns, parsed_ns)
        self._seq += 1
        self._kept.append(record)
        return record

    def clear(self) -> None:
        """Forget every record; sequence numbers start again at 0."""
        self._kept.clear()
        self._seq = 0

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self._kept)

    def summary(self, effective_ns: Callable[[int], int]) -> dict[str, Any]:
        """Counts, CPU time of the process (s) and its own lateness (µs, sent minus due) over all chunks kept."""
        late: list[int] = []
        outcomes: dict[str, int] = {}
        for record in self._kept:
            outcomes[record.outcome] = outcomes.get(record.outcome, 0) + 1
            for due, sent in zip(record.due_ns, record.sent_ns, strict=True):
                late.append(sent - effective_ns(due))
        late.sort()
        return {
            "requests": self._seq,
            "kept": len(self._kept),
            "outcomes": outcomes,
            "chunks": len(late),
            "lateness_us": {name: _rank_us(late, share) for name, share in _SHARES.items()},
            "cpu_s": time.process_time(),
        }


_SHARES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}


def _rank_us(ordered: list[int], share: float) -> float | None:
    if not ordered:
        return None
    rank = max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)
    return ordered[rank] / 1000
