"""A growing file that goes to a store in numbered pieces, each written once, and stays on disk.

Where the pieces end is written down before the first byte of one is sent. So an agent that was killed cuts the same
pieces again, and what was sent already is found to be there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronbench.receipts import write_atomic
from neuronbench.weights import Blobs, StoreError
from neuronbench_fleet.remote.keys import HASH_DIGITS, PieceKey, What

LARGEST: Final = 1 << 20
"""Bytes of a piece."""
_TRIES: Final = 9


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A range of bytes of the file."""

    number: int
    start: int
    end: int


class Pieces:
    """The pieces of one file of one boot. One thread uses it at a time."""

    def __init__(self, file: Path, *, box: str, what: What, boot: int) -> None:
        self.file, self.box, self.what, self.boot = file, box, what, boot
        self._index = file.with_name(f"{file.name}.pieces")
        self._mark = file.with_name(f"{file.name}.sent")
        self._cut = list(self._read_index())
        self._sent = int(self._mark.read_text()) if self._mark.is_file() else 0

    @property
    def waiting(self) -> bool:
        """Whether anything is not in the store yet, cut or not."""
        return self._sent < len(self._cut) or self._size() > self._end()

    def cut(self, *, all_of_it: bool) -> None:
        """Make pieces of what is new. Up to the end of the last line; with `all_of_it` up to the last byte."""
        if not self.file.is_file():
            return
        with self.file.open("rb") as file:
            while True:
                start = self._end()
                file.seek(start)
                data = file.read(LARGEST)
                if len(data) < LARGEST and not all_of_it:
                    data = data[: data.rfind(b"\n") + 1]
                if not data:
                    return
                os.fsync(file.fileno())  # what the index names must be there after a power cut, too
                self._note(Piece(number=len(self._cut) + 1, start=start, end=start + len(data)))

    def send(self, blobs: Blobs, run: str) -> int:
        """Send what was cut and is not there; returns how many pieces. Raises `StoreError`; the rest goes next time."""
        count = 0
        while self._sent < len(self._cut):
            piece = self._cut[self._sent]
            with self.file.open("rb") as file:
                file.seek(piece.start)
                data = file.read(piece.end - piece.start)
            self._put(blobs, run, piece.number, data)
            self._sent += 1
            write_atomic(self._mark, str(self._sent))
            count += 1
        return count

    # -- parts

    def _put(self, blobs: Blobs, run: str, number: int, data: bytes) -> None:
        hashed = hashlib.sha256(data).hexdigest()[:HASH_DIGITS]
        for again in range(1, _TRIES + 1):
            name = PieceKey(box=self.box, what=self.what, boot=self.boot, number=number, hash=hashed, again=again)
            key = name.key(run)
            blobs.write(key, [data], len(data))
            if b"".join(blobs.read(key)) == data:
                return
        raise StoreError(
            "store_corrupt", f"{blobs.url}: {key}: {_TRIES} times the store gave back other bytes than it was sent",
            remedy="Look at what is between here and the store; what was written is still on the box.",
        )  # fmt: skip

    def _note(self, piece: Piece) -> None:
        with self._index.open("a", encoding="utf-8") as file:
            file.write(json.dumps([piece.number, piece.start, piece.end]) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._cut.append(piece)

    def _read_index(self) -> Iterator[Piece]:
        if not self._index.is_file():
            return
        raw = self._index.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):  # the agent was killed within a line
            os.truncate(self._index, len(whole))
        for line in whole.splitlines():
            number, start, end = json.loads(line)
            yield Piece(number=number, start=start, end=end)

    def _size(self) -> int:
        return self.file.stat().st_size if self.file.is_file() else 0

    def _end(self) -> int:
        return self._cut[-1].end if self._cut else 0
