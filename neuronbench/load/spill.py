"""The driver's records on disk, flushed about once a second: what a killed driver leaves behind is whole up to then."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neuronbench.load import layout
from neuronbench.load.outcomes import Kind, Phase
from neuronbench.load.stream import Stream

_ERRORS_KEPT = 5


class Spill:
    """Append-only files of one worker; see `layout`."""

    def __init__(self, folder: Path, worker: int = 0) -> None:
        self._folder, self._worker = folder, worker
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._files = {
            name: os.open(folder / f"{name}-{worker}{'.jsonl' if name == 'events' else '.bin'}", flags, 0o644)
            for name in ("requests", "segments", "chunks", "tokens", "lags", "events")
        }
        self._requests = bytearray()
        self._segments = bytearray()
        self._chunks = bytearray()
        self._tokens = bytearray()
        self._events: list[str] = []
        self._written = 0
        self._lags_written = 0
        self._errors: dict[tuple[int, int], int] = {}

    def end(self, stream: Stream) -> None:
        """The stream has ended: its remaining chunks and its record."""
        self._take_chunks(stream)
        self._requests += stream.pack()
        if stream.error:
            key = (int(stream.kind), stream.status)
            seen = self._errors[key] = self._errors.get(key, 0) + 1
            if seen <= _ERRORS_KEPT:
                self.event("failure", seq=stream.seq, failure=int(stream.kind), status=stream.status, text=stream.error)

    def _take_chunks(self, stream: Stream) -> None:
        count = len(stream.chunks)
        if not count:
            return
        self._segments += layout.SEGMENT.pack(stream.seq, count, self._written)
        self._chunks += stream.chunks.tobytes()
        self._tokens += stream.tokens.tobytes() if stream.tokens is not None else bytes(2 * count)
        self._written += count
        stream.l = stream.chunks[-1]
        del stream.chunks[:]
        if stream.tokens is not None:
            del stream.tokens[:]

    def event(self, kind: str, /, **fields: Any) -> None:
        self._events.append(json.dumps({"event": kind, **fields}, separators=(",", ":")))

    def lags_so_far(self, pending: int) -> int:
        """Number of lags recorded, those not yet written included."""
        return self._lags_written + pending

    def flush(self, lags: array[int], in_flight: Iterable[Stream] = ()) -> None:
        """Write everything down, with a snapshot of the requests in flight."""
        for stream in in_flight:
            self._take_chunks(stream)
            self._requests += stream.pack(Kind.OPEN)
        self._write("chunks", self._chunks)
        self._write("tokens", self._tokens)
        self._write("segments", self._segments)
        self._write("requests", self._requests)
        if lags:
            self._lags_written += len(lags)
            self._write("lags", bytearray(lags.tobytes()))
            del lags[:]
        if self._events:
            self._write("events", bytearray(("\n".join(self._events) + "\n").encode()))
            self._events.clear()

    def _write(self, name: str, data: bytearray) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._files[name], view) :]
        view.release()
        data.clear()

    def close(self, result: dict[str, Any]) -> None:
        """Write `driver-<worker>.json`, which says that the driver ended by itself, and how."""
        for fd in self._files.values():
            os.close(fd)
        path = self._folder / f"driver-{self._worker}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(result), encoding="utf-8")
        temporary.replace(path)


def phase_of(s: int, opened: int, closed: int) -> Phase:
    """Phase of a request scheduled at `s`; edges of 0 are still to come."""
    if not opened or s < opened:
        return Phase.RAMP
    return Phase.TAIL if closed and s >= closed else Phase.WINDOW
