"""What goes on on boxes, by what they wrote to the bucket: their runs, last events, receipts that are not here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench_fleet.aws import Aws
from neuronbench_fleet.deployment import Deployment
from neuronbench_fleet.errors import FleetError

if TYPE_CHECKING:
    from neuronbench.weights import Blobs
    from neuronbench_fleet.remote.keys import PieceKey

_LATEST: Final = 10
"""Runs of a fleet that are looked at."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """One run, as far as it went on certain boxes."""

    run: str
    box: str
    """The one whose agent was started last."""
    finished: bool
    reason: str
    """Of one that is finished: what has ended it (`cancelled`, `limit`, `expiry`); empty where pytest did by itself."""
    last: str
    """Its last event, for people."""
    last_at: dt.datetime | None
    unfetched: int
    """Whole receipts in the bucket that are not in this project."""

    def to_json(self) -> dict[str, Any]:
        at = None if self.last_at is None else self.last_at.isoformat(timespec="seconds")
        return {**vars(self), "last_at": at}


def runs_on(aws: Aws, deployment: Deployment, fleet: str, boxes: Collection[str], receipts: Path) -> list[RunState]:
    """The latest runs of a fleet that were on one of `boxes`, the oldest first. Raises `FleetError`.

    `receipts`: the project's receipts, to know which of them are here.
    """
    from neuronbench.weights import StoreError
    from neuronbench_fleet import runs

    try:
        store = runs.bucket_of(aws, deployment)
        found = [
            _state(store, run, boxes, receipts) for run in runs.runs_of(aws, deployment, fleet)[-_LATEST:]
        ]  # fmt: skip
    except StoreError as error:
        raise FleetError(f"runs in {deployment.bucket}: {error}") from error
    return [state for state in found if state is not None]


def at_work(states: Sequence[RunState]) -> dict[str, str]:
    """Box → what it is at, for people; where nothing goes on, how its last run ended."""
    return {state.box: f"{state.run}: {state.last}" for state in sorted(states, key=lambda one: not one.finished)}


def idle_s(states: Sequence[RunState], launched: Mapping[str, dt.datetime], now: dt.datetime) -> dict[str, float]:
    """Box → seconds since it had anything to do: since its start, or the end of its last run."""
    since: dict[str, dt.datetime] = dict(launched)
    for state in states:
        if not state.finished:
            since.pop(state.box, None)
        elif state.box in since and state.last_at is not None:
            since[state.box] = max(since[state.box], state.last_at)
    return {box: max((now - instant).total_seconds(), 0.0) for box, instant in since.items()}


def _state(store: Blobs, run: str, boxes: Collection[str], receipts: Path) -> RunState | None:
    from neuronbench_fleet.remote.keys import boxes_prefix, parse_piece
    from neuronbench_fleet.remote.prior import events_of

    newest: dict[str, PieceKey] = {}
    for key in store.keys(boxes_prefix(run)):
        piece = parse_piece(run, key)
        if piece is not None and piece.what == "events" and piece.box in boxes:
            newest[piece.box] = max(piece, newest.get(piece.box, piece))
    last: dict[str, Any] = {}
    box = ""
    for piece in newest.values():
        for event in events_of(store, run, piece):
            if str(event.get("at", "")) >= str(last.get("at", "")):
                last, box = event, piece.box
    if not box:
        return None
    finished = last.get("kind") == "finished"
    text = " ".join(str(last.get("text") or "").split())[:60]
    if finished and not text and last.get("exit_code") is not None:
        text = f"exit status {last['exit_code']}"
    return RunState(
        run=run, box=box, finished=finished, reason=str(last.get("reason") or "") if finished else "",
        last=f"{last.get('kind')}{f' ({text})' if text else ''}", last_at=_instant(last.get("at")),
        unfetched=_unfetched(store, run, receipts),
    )  # fmt: skip


def _unfetched(store: Blobs, run: str, receipts: Path) -> int:
    from neuronbench.shipping import ReceiptShelf
    from neuronbench_fleet.remote.keys import receipts_prefix

    whole = ReceiptShelf(store, receipts_prefix(run)).names().whole
    return sum(not (receipts / session / name).is_dir() for session, name in whole)


def _instant(told: Any) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(str(told))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
