"""Files between plan, driver and reduction: fixed-size little-endian records, append-only, no header.

Plan folder: `plan.json`, `bodies.bin`, and one `<column>.i64` per column of the index. Spill folder, per worker `i`:
`requests-i.bin` (128-byte records; the last one of a sequence number counts), `segments-i.bin` (which stretch of the
chunk files belongs to which request), `chunks-i.bin` (instant of every output chunk, int64 ns), `tokens-i.bin` (tokens
of that chunk, uint16, 0 = unknown), `lags-i.bin` (read lag in ns of every read, int32), `events-i.jsonl`, and at the
end `driver-i.json`. Writes go chunks, tokens, segments, requests, so a cut-off file never refers to what is not there.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

PLAN_COLUMNS: Final = (
    "offset",
    "length",
    "input_tokens",
    "output_tokens",
    "due_ns",
    "cancel_after",
    "session",
    "think_ns",
)
"""Index of the bodies. Lengths of -1 are unknown; `due_ns` is relative to the start of the schedule, -1 for none."""

REQUEST: Final = struct.Struct("<IIBBHI9qiiiiIIIIII")
"""See `REQUEST_FIELDS`; 128 bytes."""

REQUEST_FIELDS: Final = (
    ("seq", "<u4"),  # number of the request within its worker
    ("body", "<u4"),  # index into the plan's bodies; warm-up bodies have an index of their own
    ("phase", "u1"),
    ("kind", "u1"),
    ("status", "<u2"),  # HTTP status, 0 when none was received
    ("flags", "<u4"),
    ("s", "<i8"),  # scheduled
    ("w", "<i8"),  # first byte written
    ("w_end", "<i8"),  # last byte written
    ("r", "<i8"),  # first byte of the response
    ("o", "<i8"),  # first event of the stream, output or not (the role chunk, where there is one)
    ("f", "<i8"),  # first output
    ("c", "<i8"),  # first answer output
    ("l", "<i8"),  # last output
    ("e", "<i8"),  # end of the body, or of the attempt
    ("n_out", "<i4"),  # by the server's usage; -1 unknown
    ("n_in", "<i4"),
    ("n_reason", "<i4"),
    ("n_cached", "<i4"),
    ("chunks", "<u4"),  # output chunks
    ("m", "<u4"),  # tokens in the first chunk, 0 unknown
    ("empties", "<u4"),  # chunks with an empty text
    ("bytes", "<u4"),  # body bytes received
    ("f_lag", "<u4"),  # read lag of the first output, ns
    ("attempts", "<u4"),  # 2 when an idle connection turned out closed and the request went out again
)

SEGMENT: Final = struct.Struct("<IIq")
"""Sequence number, count, first entry in the chunk file."""
SEGMENT_FIELDS: Final = (("seq", "<u4"), ("count", "<u4"), ("start", "<i8"))

# flags
KERNEL_STAMPED: Final = 1
REUSED: Final = 2
USAGE: Final = 4
DONE: Final = 8
FINISH_STOP: Final = 16
FINISH_LENGTH: Final = 32
FINISH_OTHER: Final = 64
CHUNK_TOKENS: Final = 128
"""The server said how many tokens every chunk carried."""
EARLY_USAGE: Final = 256


def request_dtype() -> np.dtype[Any]:
    import numpy as np

    dtype = np.dtype(list(REQUEST_FIELDS))
    assert dtype.itemsize == REQUEST.size
    return dtype


def segment_dtype() -> np.dtype[Any]:
    import numpy as np

    return np.dtype(list(SEGMENT_FIELDS))
