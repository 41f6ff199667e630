"""What can become of a request. The driver writes these codes; the reduction turns them into names and counts."""

from __future__ import annotations

import enum
from typing import Final


class Kind(enum.IntEnum):
    """Class of a request's end. Codes are part of the spill format: add at the end, never renumber."""

    OK = 0
    OPEN = 1
    """Still in flight when the record was written."""
    CONNECT_REFUSED = 2
    CONNECT_TIMEOUT = 3
    CONNECT_FAILED = 4
    """Any other failure to connect: no route, name not found, out of ports."""
    TLS = 5
    HTTP = 6
    """A status other than 200; the status itself is in the record."""
    STREAM_ERROR = 7
    """An error object in the stream."""
    ERROR_EVENT = 8
    """An event of type `error`."""
    JSON_ERROR = 9
    """Status 200 with an error as plain JSON."""
    NO_DONE = 10
    """The stream ended properly but without its terminator."""
    NO_FINISH = 11
    """Terminated, but no finish reason was ever given."""
    ZERO_TOKENS = 12
    WRONG_LENGTH = 13
    """The server's token count is not the exact length that was asked for."""
    NO_VISIBLE_OUTPUT = 14
    """Tokens by the server's count, but no chunk that carried any."""
    DISCONNECTED = 15
    """The server closed or reset the connection before the answer was complete."""
    FIRST_TOKEN_TIMEOUT = 16
    INTER_TOKEN_TIMEOUT = 17
    TOTAL_TIMEOUT = 18
    CLIENT_CANCEL = 19
    """Cancelled because the plan said so; not a failure of the server."""
    PROTOCOL = 20
    """Not HTTP, not an event stream, or an event that is not JSON."""
    NOT_SENT = 21
    """Due, but the client had no connection left to send it on."""
    ABANDONED = 22
    """In flight when the run was ended: bounded drain, deadline, or server gone."""


NAMES: Final = {kind: kind.name.lower() for kind in Kind}
NOT_FAILURES: Final = frozenset({Kind.OK, Kind.CLIENT_CANCEL})


def failure_name(kind: int, status: int) -> str:
    """`http_503`, `no_done`, ...; empty for a success."""
    if kind == Kind.OK:
        return ""
    if kind == Kind.HTTP:
        return f"http_{status}"
    return NAMES[Kind(kind)]


class Phase(enum.IntEnum):
    """When a request was scheduled, relative to the window."""

    WARMUP = 0
    RAMP = 1
    WINDOW = 2
    TAIL = 3
    """After the window closed, to keep the load up while its requests end."""


PHASE_NAMES: Final = {phase: phase.name.lower() for phase in Phase}
