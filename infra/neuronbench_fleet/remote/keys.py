"""Keys of a run in its bucket, as box and desk both know them. Every key is written once.

```text
code/<sha256>.tar.gz
runs/<run>/request.json
runs/<run>/boxes/<instance>/events/<boot>-<number>-<hash>.jsonl
runs/<run>/boxes/<instance>/log/<boot>-<number>-<hash>.txt
runs/<run>/receipts/...                                           (neuronbench.shipping)
```

The hash in the name of a piece is the start of its SHA-256: a reader knows a damaged one without asking anybody, and
the writer puts the right one beside it (`-r2`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

What: TypeAlias = Literal["events", "log"]
SUFFIX: Final[dict[str, str]] = {"events": "jsonl", "log": "txt"}
HASH_DIGITS: Final = 16
RUN_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
"""It is part of keys, of a folder's name and of a unit's name."""
_PIECE: Final = re.compile(
    r"boxes/(?P<box>[^/]+)/(?P<what>events|log)/(?P<boot>\d{4})-(?P<number>\d{6})-(?P<hash>[0-9a-f]{16})"
    r"(?:-r(?P<again>\d))?\.(?:jsonl|txt)"
)


def run_prefix(run: str) -> str:
    return f"runs/{run}/"


def request_key(run: str) -> str:
    return f"runs/{run}/request.json"


def receipts_prefix(run: str) -> str:
    return f"runs/{run}/receipts/"


def boxes_prefix(run: str) -> str:
    return f"runs/{run}/boxes/"


@dataclass(frozen=True, order=True, kw_only=True)
class PieceKey:
    """A piece of a box's events or console. Pieces sort as they were written, box by box."""

    box: str
    what: What
    boot: int
    """How many times the agent had been started there, from 1."""
    number: int
    """Within the boot, from 1."""
    hash: str
    again: int = 1

    def key(self, run: str) -> str:
        more = f"-r{self.again}" if self.again > 1 else ""
        return (
            f"{boxes_prefix(run)}{self.box}/{self.what}/{self.boot:04d}-{self.number:06d}-{self.hash}{more}"
            f".{SUFFIX[self.what]}"
        )


def parse_piece(run: str, key: str) -> PieceKey | None:
    """The piece that a key of the run names; None for any other key."""
    found = _PIECE.fullmatch(key.removeprefix(run_prefix(run)))
    if found is None:
        return None
    return PieceKey(
        box=found["box"], what="events" if found["what"] == "events" else "log", boot=int(found["boot"]),
        number=int(found["number"]), hash=found["hash"], again=int(found["again"] or 1),
    )  # fmt: skip
