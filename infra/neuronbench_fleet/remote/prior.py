"""What a run has taken so far on other boxes, by the events that they sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from neuronbench.weights import Blobs
from neuronbench_fleet.remote.keys import HASH_DIGITS, PieceKey, boxes_prefix, parse_piece


def spent(blobs: Blobs, run: str) -> tuple[float, float]:
    """Hours and USD up to the last event of any box. Raises `StoreError`."""
    hours = usd = 0.0
    last: dict[str, PieceKey] = {}
    for key in blobs.keys(boxes_prefix(run)):
        piece = parse_piece(run, key)
        if piece is not None and piece.what == "events":
            last[piece.box] = max(piece, last.get(piece.box, piece))
    for piece in last.values():
        for event in events_of(blobs, run, piece):
            hours, usd = max(hours, event.get("hours") or 0.0), max(usd, event.get("usd") or 0.0)
    return hours, usd


def read_piece(blobs: Blobs, run: str, piece: PieceKey) -> bytes | None:
    """The bytes of a piece; None when they are not those that its name has the hash of, or it is gone."""
    try:
        data = b"".join(blobs.read(piece.key(run)))
    except KeyError:
        return None
    return data if hashlib.sha256(data).hexdigest()[:HASH_DIGITS] == piece.hash else None


def events_of(blobs: Blobs, run: str, piece: PieceKey) -> Iterator[dict[str, Any]]:
    """The events of a piece, in their order."""
    for line in (read_piece(blobs, run, piece) or b"").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
