"""Following a run from the desk: console and events as they come, receipts fetched as they come, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from neuronbench.commands import host
from neuronbench.shipping import Name, ReceiptShelf, pull
from neuronbench.weights import Blobs, StoreError
from neuronbench.weights.s3 import S3Blobs
from neuronbench.words import counted
from neuronbench_fleet import boxes
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.errors import BOX_LOST, TRANSIENT, AwsError
from neuronbench_fleet.remote.keys import receipts_prefix
from neuronbench_fleet.runs import HASH_MISMATCH, Asked, exit_status, pause
from neuronbench_fleet.stream import Follower, Piece, line_of, so_far

EVERY_S: Final = 5.0
RECEIPTS_EVERY: Final = 12
"""Looks of which one lists the receipts, whatever the events say."""
SILENCE_S: Final = 300.0
"""An agent says something every fifteen seconds; after this long the user hears that it does not."""
COST_EVERY_S: Final = 600.0


@dataclass(kw_only=True)
class Receipts:
    """Receipts of a run on their way into this data root."""

    shelf: ReceiptShelf
    root: Path
    known: set[Name] = field(default_factory=set)
    fetched: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    unkept: str = ""
    """Why the last look could not keep what came, such as a full disk; empty when it could."""

    def fetch(self) -> None:
        """Fetch what is new. Raises `StoreError`. What is refused is said once, and asked for again each time, as is
        what cannot be kept here: that is no trouble of the run's."""
        try:
            came = pull(self.shelf, self.root, known=self.known)
        except OSError as error:
            if not self.unkept:
                host.complain(f"receipts cannot be kept in {self.root}: {error}; they are in the bucket")
            self.unkept = str(error)
            return
        self.unkept = ""
        self.fetched += len(came.fetched)
        now = dict(came.refused)
        for receipt, reason in now.items():
            if receipt not in self.refused:
                host.complain(f"refused: {receipt}: {reason}")
        self.refused = now


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How following ended."""

    status: int
    lost: str = ""
    """What became of the box, where that ended it."""


def receipts_of(store: S3Blobs, asked: Asked, into: Path) -> Receipts:
    return Receipts(shelf=ReceiptShelf(store, receipts_prefix(asked.run)), root=into)


class Screen:
    """Prints pieces: console lines as they are, events marked, cost now and then."""

    def __init__(self, *, tail: int | None = None, console: bool = True) -> None:
        """`tail`: of what is there at the first look, only so many lines."""
        self._tail, self._console = tail, console
        self._progress = host.ProgressLine(heartbeat_s=COST_EVERY_S)
        self._half: dict[str, bytes] = {}

    def show(self, pieces: list[Piece]) -> None:
        lines = [line for piece in pieces for line in self._lines(piece)]
        if self._tail is not None and pieces:
            lines, self._tail = (lines[-self._tail :] if self._tail else []), None
        if lines:
            self._progress.done()
        for line in lines:
            host.say(line)
        for piece in pieces:
            for event in piece.events():
                if event.get("kind") == "progress":
                    self._progress(_progress(event))

    def end(self) -> None:
        """Print what came without a line's end."""
        self._progress.done()
        for data in self._half.values():
            if data:
                host.say(data.decode("utf-8", "replace"))
        self._half.clear()

    def _lines(self, piece: Piece) -> list[str]:
        if piece.what == "events":
            return [line for event in piece.events() if (line := line_of(piece.box, event))]
        if not self._console:
            return []
        *whole, self._half[piece.box] = (self._half.get(piece.box, b"") + piece.data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]


def follow(
    aws: Aws, store: Blobs, asked: Asked, receipts: Receipts | None, *, box: str = "", tail: int | None = None,
    console: bool = True,
) -> Ended:  # fmt: skip
    """Follow a run to its end, or to that of its box. `box`: the one it was started on; empty: where it was last.

    Nothing that happens here changes anything on the box: stop following and start again as often as you like.
    """
    follower, screen = Follower(store=store, run=asked.run), Screen(tail=tail, console=console)
    heard = asked_state = aws.pace.now_s()
    troubled = silent = False
    looks = 0
    lost = ""
    while True:
        over = bool(lost) or (follower.finished.get(box) if box else follower.end) is not None
        try:
            pieces = follower.poll(everything=over)
            screen.show(pieces)
            for problem in follower.problems:
                host.complain(f"damaged: {problem}")
            follower.problems.clear()
            news = lost or follower.finished or any(e.get("kind") == "shipped" for p in pieces for e in p.events())
            if receipts is not None and (news or looks % RECEIPTS_EVERY == 0):
                receipts.fetch()
            looks += 1
            troubled = False
        except StoreError as error:
            if error.kind == "store_auth":  # asking again does not help: somebody has to sign in
                raise
            pieces = []
            if not troubled:
                host.complain(f"the bucket cannot be read, and is asked again: {error.message}")
            troubled = True
        end = follower.finished.get(box) if box else follower.end
        if over and not pieces and not troubled:  # that was a look at everything
            screen.end()
            return Ended(status=BOX_LOST, lost=lost) if end is None else Ended(status=_status(end, receipts))
        now = aws.pace.now_s()
        if pieces:
            heard, silent = now, False
        if now - asked_state > boxes.STATE_EVERY_S and not lost:
            asked_state = now
            lost = boxes.lost(aws, box or follower.latest_box)
        if now - heard > SILENCE_S and not silent and not lost:
            silent = True
            lost = "" if box or follower.latest_box else _nowhere(aws, asked)
            if lost:
                continue
            host.complain(
                f"nothing was heard from {box or follower.latest_box or 'the box'} for {SILENCE_S / 60:.0f} min; it may"
                " have no way to S3, or its agent has failed: journalctl -u 'neuronbench-run-*' on the box"
            )
        pause(aws, EVERY_S)


def _status(end: Mapping[str, Any], receipts: Receipts | None) -> int:
    status = exit_status(end)
    kept = end.get("refused") or {}
    for receipt, reason in kept.items():
        host.complain(f"on the box only: {receipt}: {reason}")
    if receipts is not None and receipts.unkept:
        host.complain(f"not all receipts are here ({receipts.unkept}): make room, then neuronbench fleet pull")
        status = status or 1
    if status in (0, 1) and (kept or (receipts is not None and receipts.refused)):
        return HASH_MISMATCH
    return status


def _nowhere(aws: Aws, asked: Asked) -> str:
    """That no box has a run of which nothing was ever heard; empty where one has it, or nobody knows."""
    try:
        live = boxes.list_boxes(aws, asked.deployment, asked.fleet, states=boxes.LIVE)
    except AwsError as error:
        if error.kind in TRANSIENT:
            return ""
        raise
    if any(box.run == asked.run for box in live):
        return ""
    return f"{asked.run} was asked for at {asked.asked_at}, has never said anything, and no box has it"


def _progress(event: Mapping[str, Any]) -> str:
    line = str(event.get("line") or "")
    count = counted(int(event.get("receipts") or 0), "receipt")
    return f"{so_far(event)}; {count}, {event.get('shipped')} in the bucket  {line}".rstrip()
