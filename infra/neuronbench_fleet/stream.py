"""Following a run: what its boxes write to the bucket, in order, each piece once, and damaged pieces named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from neuronbench.weights import Blobs
from neuronbench.words import counted
from neuronbench_fleet.costs import cost_text
from neuronbench_fleet.remote.keys import PieceKey, What, boxes_prefix, parse_piece
from neuronbench_fleet.remote.prior import read_piece

_ALL_EVERY: Final = 12
"""Looks of which one finds new boxes, and new starts of agents; the others see only how known streams go on."""
_SHOWN: Final = frozenset(
    {"boot", "fetched", "left_over", "started", "stopping", "suspended", "crashed", "cost", "trouble", "failed",
     "finished"}
)  # fmt: skip
"""Events that people want to see as they come; of points and pytest's own words the console tells."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What came: a piece of one stream of one box."""

    box: str
    what: What
    boot: int
    data: bytes

    def events(self) -> Iterator[Mapping[str, Any]]:
        for line in self.data.splitlines() if self.what == "events" else ():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


@dataclass(kw_only=True)
class Follower:
    """The pieces of a run since the last look. Where it is, is in here and nowhere else."""

    store: Blobs
    run: str
    problems: list[str] = field(default_factory=list)
    """Pieces that are not what their names say; each is named once."""
    boots: dict[str, str] = field(default_factory=dict)
    """Box → instant of its latest start of an agent."""
    last: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Box → its latest event."""
    finished: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Box → the event with which the run ended there."""
    _read: set[tuple[str, str, int, int]] = field(default_factory=set)
    _at: dict[tuple[str, What], tuple[int, int]] = field(default_factory=dict)
    """Stream → boot and number of its latest piece that was read."""
    _polls: int = 0

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The event that ended the run: that of the box that was started last. None while it goes on."""
        return self.finished.get(self.latest_box)

    @property
    def latest_box(self) -> str:
        """The box whose agent was started last; empty before the first."""
        return max(self.boots, key=lambda box: self.boots[box], default="")

    def poll(self, *, everything: bool = False) -> list[Piece]:
        """What is new, box by box in the order it was written. Raises `StoreError`.

        `everything`: also of boxes and starts that are new, which else are found by some looks only. Before a run is
        said to be over this has to be asked for, or the end of what it printed may be missed.
        """
        waiting: dict[tuple[str, What], dict[tuple[int, int], list[PieceKey]]] = {}
        for key in self._keys(everything):
            piece = parse_piece(self.run, key)
            if piece is not None and (piece.box, piece.what, piece.boot, piece.number) not in self._read:
                stream = waiting.setdefault((piece.box, piece.what), {})
                stream.setdefault((piece.boot, piece.number), []).append(piece)
        came: list[Piece] = []
        for (box, what), stream in sorted(waiting.items()):
            for position in sorted(stream):
                found = self._first_right(sorted(stream[position]))
                if found is None:
                    if position == max(stream):
                        break  # its writer finds out, and puts the right one beside it
                    self.problems.append(f"{sorted(stream[position])[0].key(self.run)} is not what was written")
                self._read.add((box, what, *position))
                self._at[(box, what)] = max(position, self._at.get((box, what), position))
                if found is not None:
                    came.append(Piece(box=box, what=what, boot=position[0], data=found))
        for piece_ in came:
            for event in piece_.events():
                self._hear(piece_.box, event)
        return came

    def _keys(self, everything: bool) -> Iterator[str]:
        """Keys of pieces that may be new. All of a run are listed now and then only: a day makes ten thousand."""
        self._polls += 1
        if everything or not self._at or self._polls % _ALL_EVERY == 1:
            yield from self.store.keys(boxes_prefix(self.run))
            return
        for (box, what), (boot, number) in list(self._at.items()):
            for block in sorted({number // 100, (number + 1) // 100}):
                yield from self.store.keys(f"{boxes_prefix(self.run)}{box}/{what}/{boot:04d}-{block:04d}")

    def _first_right(self, candidates: list[PieceKey]) -> bytes | None:
        return next((data for one in candidates if (data := read_piece(self.store, self.run, one)) is not None), None)

    def _hear(self, box: str, event: Mapping[str, Any]) -> None:
        self.last[box] = event
        kind = event.get("kind")
        if kind == "boot":
            self.boots[box] = str(event.get("at", ""))
            self.finished.pop(box, None)
        elif kind == "finished":
            self.finished[box] = event


def line_of(box: str, event: Mapping[str, Any]) -> str:
    """An event for people; empty for those that the console tells of anyway."""
    kind = str(event.get("kind"))
    if kind not in _SHOWN:
        return ""
    text = str(event.get("text") or "")
    if kind == "boot":
        text = f"the agent starts on {box} (start {event.get('boot')}, {event.get('hours') or 0:.1f} h so far)"
    elif kind == "started":
        text = str(event.get("command"))
    elif kind == "fetched":
        count = int(event.get("receipts") or 0)
        were = "was" if count == 1 else "were"
        text = (
            f"{counted(count, 'receipt')} of the run {were} fetched from the bucket: what they measured is not repeated"
        )
    elif kind == "finished":
        text = ended_text(event)
    return f"-- {str(event.get('at', ''))[11:19]} {kind}: {text}"


def ended_text(event: Mapping[str, Any]) -> str:
    """How a run ended, by the event that says so."""
    why = f", {event['text']}" if event.get("text") else ""
    count = counted(int(event.get("shipped") or 0), "receipt")
    return f"exit status {event.get('exit_code')}{why}; {count} in the bucket; {so_far(event)}"


def so_far(event: Mapping[str, Any]) -> str:
    """Hours and money of the run up to an event."""
    return f"{event.get('hours') or 0:.2f} h, {cost_text(event.get('usd'))}"
