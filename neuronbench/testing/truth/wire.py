"""Scripts and events into the bytes of an HTTP response."""

from __future__ import annotations

from neuronbench.testing.truth.dialects import Event
from neuronbench.testing.truth.script import Script

# Wide enough for any CLOCK_MONOTONIC reading of a machine's life, so that an event's length is known beforehand;
# JSON allows the blanks that pad it.
STAMP = b',"x_mono_ns":%-19d}'
DONE = Event(b"", b"[DONE]")
COMMENT = b": keep-alive"


def encode(script: Script, event: Event, ns: int) -> bytes:
    """The event as text/event-stream, stamped with the instant it is sent at."""
    newline, field = script.newline, b"data:" + script.blank
    if event is DONE:
        return field + DONE.head + newline * 2
    payload = event.head + STAMP % ns
    if script.multiline:
        payload = payload.replace(b',"x_mono_ns"', b"," + newline + field + b'"x_mono_ns"')
        payload = payload.replace(b',"choices"', newline + field + b',"choices"')
    name = b"event:" + script.blank + event.name + newline if event.name else b""
    return name + field + payload + newline * 2


def frame(script: Script, data: bytes) -> bytes:
    """One piece of the body as the transfer coding wants it."""
    return b"%x\r\n%b\r\n" % (len(data), data) if script.body == "chunked" else data


def pieces(script: Script, data: bytes) -> list[bytes]:
    """The event in three parts: cut inside its first character of several bytes and inside its blank line."""
    wide = next((at for at, byte in enumerate(data) if byte >= 0x80), len(data) // 2 - 1) + 1
    parts = [data[:wide], data[wide:-1], data[-1:]]
    if script.split_chunks:
        return [frame(script, part) for part in parts]
    framed = frame(script, data)
    start = framed.index(data)
    return [framed[: start + wide], framed[start + wide : start + len(data) - 1], framed[start + len(data) - 1 :]]


def terminator(script: Script) -> bytes:
    """What ends the body."""
    return b"0\r\n\r\n" if script.body == "chunked" else b""


def stream_headers(script: Script, request_id: str, length: int | None) -> bytes:
    """Status line and headers of a streamed answer; `length` when the script wants it announced."""
    lines = b"HTTP/1.1 100 Continue\r\n\r\n" * script.continues
    lines += b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    if script.body == "chunked":
        lines += b"transfer-encoding: chunked\r\n"
    elif script.body == "length":
        lines += b"content-length: %d\r\n" % (length or 0)
    if script.body == "close" or script.after == "header":
        lines += b"connection: close\r\n"
    return lines + b"x-request-id: %b\r\n\r\n" % request_id.encode("latin-1", "replace")
