"""One answer as it arrives: server-sent events found by byte search, and what they amount to.

Most events of a stream differ only in their text, and perhaps in numbers after it. The first one is parsed; after that
an event that is the same around a text without quotation marks must mean the same, which a few comparisons of bytes
decide without parsing. Whatever else comes (role, usage, finish, errors) is parsed in full.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

import orjson

from neuronbench.load import layout
from neuronbench.load.apis import Api, Event
from neuronbench.load.outcomes import Kind, Phase

_BREAK: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LINE: Final = re.compile(rb"\r\n|\n|\r")
_STRING_END: Final = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL)
_LF: Final = 10
_CR: Final = 13
_RELEARN: Final = 4
"""Templates learned per answer; a server whose events never repeat is parsed in full instead."""
_FINISH: Final = {"stop": layout.FINISH_STOP, "length": layout.FINISH_LENGTH}
_FINISHED: Final = layout.FINISH_STOP | layout.FINISH_LENGTH | layout.FINISH_OTHER
MAX_BODY_BYTES: Final = 64 << 20
"""A plain answer longer than this is not one we asked for."""


_VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*', re.DOTALL)


class Rest(NamedTuple):
    """Tells whether the rest of an event, from its text on, is like that of the event it was learned from."""

    in_event: re.Pattern[bytes]
    """Up to the end of the event, without its blank line."""
    in_chunk: re.Pattern[bytes]
    """Up to the end of the HTTP chunk that holds this event and nothing else."""


_keys: dict[str, re.Pattern[bytes]] = {}
"""Where the text of an event begins, by its JSON key."""
_rests: dict[bytes, Rest] = {}
"""By the source of their pattern. A handful per server; the last one is the one last learned."""
_RESTS_KEPT: Final = 256


def _rest(block: bytes, start: int, end: int) -> Rest:
    """For events like `block` with its text at `start:end`: a text without quotation marks and then what follows it
    here, with any numbers where there are numbers."""
    for rest in reversed(_rests.values()):
        if rest.in_event.fullmatch(block, start) is not None:
            return rest  # the same but for its text and numbers
        break
    parts, at = [rb'[^"\r\n]++(?<!\\)"'], end + 1
    for match in _VALUE.finditer(block, at):
        if match[0].startswith(b'"'):
            continue
        parts += [re.escape(block[at : match.start()]), rb"-?[0-9][0-9.eE+-]*+"]
        at = match.end()
    source = b"".join(parts) + re.escape(block[at:])
    known = _rests.pop(source) if source in _rests else Rest(re.compile(source), re.compile(source + rb"\n\n\r\n"))
    if len(_rests) >= _RESTS_KEPT:
        _rests.clear()
    _rests[source] = known
    return known


class Fast(NamedTuple):
    """What a read needs to take in one more event that differs from the one before in its text and numbers only."""

    heads: dict[int, bytes]
    """Size of an HTTP chunk with its framing → how it must begin, up to the event's text. Filled as sizes occur."""
    prefix: bytes
    rest: Callable[[bytes, int], object]
    append: Callable[[int], None]
    """Notes the instant of a chunk."""

    def head(self, size: int) -> bytes:
        """Beginning of a chunk of `size` bytes, framing included; something no chunk begins with when there is none."""
        for digits in range(1, 5):
            line = b"%x\r\n" % max(size - digits - 4, 0)
            if len(line) == digits + 2:
                break
        else:
            line = b"?"
        self.heads[size] = line + self.prefix
        return self.heads[size]


class Stream:
    """A request and the answer to it, from its schedule to its end. All instants are monotonic ns, 0 for none."""

    __slots__ = (
        "api", "attempts", "body", "body_bytes", "bytes", "c", "cancel_after", "chunks", "count", "e", "empties",
        "error", "exact", "f", "f_lag", "fast", "flags", "kind", "l", "learned", "m", "n_cached", "n_in", "n_out",
        "n_reason", "o", "phase", "plain", "prefix", "r", "rest", "s", "seq", "slot", "status", "tail", "tokens",
        "told", "w", "w_end",
    )  # fmt: skip

    def __init__(
        self,
        api: Api,
        *,
        seq: int,
        body: int,
        phase: Phase,
        s: int,
        exact: int = -1,
        cancel_after: int = -1,
        slot: int = 0,
    ) -> None:
        self.api, self.seq, self.body, self.phase, self.s, self.slot = api, seq, body, phase, s, slot
        self.exact = exact
        """Tokens the answer must have, -1 for any number."""
        self.cancel_after = cancel_after
        self.w = self.w_end = self.r = self.o = self.f = self.c = self.l = self.e = 0
        self.n_out = self.n_in = self.n_reason = self.n_cached = -1
        self.kind = Kind.OPEN
        self.status = self.flags = self.empties = self.bytes = self.f_lag = self.m = 0
        self.attempts = 1
        self.count = 0
        """Output chunks so far."""
        self.told = 0
        """Tokens so far by usage given in the chunks themselves."""
        self.chunks = array("q")
        self.tokens: array[int] | None = None
        self.error = ""
        self.reset()

    def reset(self) -> None:
        """Forget what was parsed, for a second attempt."""
        self.tail = b""
        self.prefix: bytes | None = None
        """Beginning of an event like the last one learned from, up to its text."""
        self.rest: Rest | None = None
        self.fast: Fast | None = None
        self.learned = 0
        self.plain = False
        self.body_bytes = bytearray()

    # ------------------------------------------------------------------------------------------------- arriving data

    def feed(self, data: bytes, t: int, lag: int) -> bool:
        """Body bytes that arrived at `t`, read `lag` ns later. True when the client should hang up (planned cancel)."""
        self.bytes += len(data)
        if self.plain:
            if len(self.body_bytes) <= MAX_BODY_BYTES:
                self.body_bytes += data
            return False
        if self.tail:
            data = self.tail + data
            self.tail = b""
        if _CR in data:
            return self._feed_slow(data, t, lag)
        start = 0
        prefix, rest = self.prefix, self.rest
        while (end := data.find(b"\n\n", start)) >= 0:
            if (
                prefix is not None
                and rest is not None
                and data.startswith(prefix, start)
                and rest.in_event.fullmatch(data, start + len(prefix), end) is not None
            ):
                self.chunks.append(t)
                self.count += 1
                if self.tokens is not None:
                    self.tokens.append(0)
            else:
                self.event(data[start:end], t, lag)
                prefix, rest = self.prefix, self.rest
            if self.count == self.cancel_after:
                return True
            start = end + 2
        if start < len(data):
            self.tail = data[start:]
        return False

    def _feed_slow(self, data: bytes, t: int, lag: int) -> bool:
        start = 0
        for match in _BREAK.finditer(data):
            self.event(data[start : match.start()], t, lag)
            start = match.end()
            if self.count == self.cancel_after:
                return True
        self.tail = data[start:]
        return False

    def event(self, block: bytes, t: int, lag: int) -> None:
        """One event, without its closing blank line."""
        name = b""
        if block.startswith(b"data: ") and _LF not in block and _CR not in block:
            parts = [block[6:]]
        else:
            parts = []
            for line in _LINE.split(block):
                field, _, value = line.partition(b":")
                if field == b"data":
                    parts.append(value[1:] if value.startswith(b" ") else value)
                elif field == b"event":
                    name = value.strip()
        if name == b"error":
            self._fail(Kind.ERROR_EVENT, b"\n".join(parts).decode(errors="replace") or "event: error")
            return
        if not parts:
            return  # a comment or an empty event keeps the connection alive and means nothing
        payload = parts[0] if len(parts) == 1 else b"\n".join(parts)
        self.o = self.o or t
        if payload.strip() == b"[DONE]":
            self.flags |= layout.DONE
            return
        try:
            data = orjson.loads(payload)
            seen = self.api.read(data)
        except (orjson.JSONDecodeError, AttributeError, TypeError, IndexError, KeyError) as error:
            self._fail(Kind.PROTOCOL, f"event is not what {self.api.name} sends ({error}): {payload[:200]!r}")
            return
        if seen.error:
            self._fail(Kind.STREAM_ERROR, seen.error)
        self._take(seen, t, lag)
        if seen.key and not seen.finish and len(parts) == 1 and self.learned < _RELEARN:
            self._learn(block, seen)

    def _take(self, seen: Event, t: int, lag: int) -> None:
        tokens = seen.tokens
        if seen.usage is not None:
            usage = seen.usage
            if seen.output and usage.output >= 0:
                tokens = tokens or max(usage.output - self.told, 0)
                self.told = usage.output
            if not self.flags & _FINISHED and not seen.finish:
                self.flags |= layout.EARLY_USAGE
            self.flags |= layout.USAGE
            self.n_out = max(self.n_out, usage.output)
            self.n_in = max(self.n_in, usage.input)
            self.n_reason = max(self.n_reason, usage.reasoning)
            self.n_cached = max(self.n_cached, usage.cached)
        if seen.output:
            if not self.f:
                self.f, self.f_lag, self.m = t, lag, tokens
            if seen.answer and not self.c:
                self.c = t
            self.chunks.append(t)
            self.count += 1
            if tokens and self.tokens is None:
                self.tokens = array("H", bytes(2 * (len(self.chunks) - 1)))
            if self.tokens is not None:
                self.tokens.append(min(tokens, 65535))
        elif seen.empty:
            self.empties += 1
        if seen.finish:
            self.flags |= _FINISH.get(seen.finish, layout.FINISH_OTHER)
        if seen.ends:
            self.flags |= layout.DONE

    def _learn(self, block: bytes, seen: Event) -> None:
        key = _keys.get(seen.key)
        if key is None:
            key = _keys[seen.key] = re.compile(rb'"' + re.escape(seen.key.encode()) + rb'"\s*:\s*"')
        found = key.search(block)
        if found is None or _LF in block:
            return
        start = found.end()
        end = block.find(b'"', start)
        if block[start:end] != seen.text.encode():
            closing = _STRING_END.match(block, start)  # the text has escapes
            if closing is None or orjson.loads(block[start - 1 : closing.end()]) != seen.text:
                return
            end = closing.end() - 1
        if key.search(block, end) is not None:
            return
        self.prefix, self.rest = block[:start], _rest(block, start, end)
        self.fast = None
        self.learned += 1

    def expect(self) -> Fast | None:
        """How to take in the next event from raw bytes, when that needs no more than noting its instant; else None.

        What is asked of the bytes then: they are one HTTP chunk, and it holds one whole event like the last.
        """
        if self.prefix is None or self.rest is None or self.tail or self.tokens is not None or self.cancel_after >= 0:
            return None
        if self.fast is None:
            self.fast = Fast({}, self.prefix, self.rest.in_chunk.fullmatch, self.chunks.append)
        return self.fast

    def _fail(self, kind: Kind, message: str) -> None:
        if self.kind == Kind.OPEN:
            self.kind, self.error = kind, message[:2000]

    # ------------------------------------------------------------------------------------------------------- the end

    def last(self) -> int:
        """Instant of the last output so far."""
        return self.chunks[-1] if self.chunks else self.l

    def finish(self, t: int) -> None:
        """The body ended properly at `t`: decide what became of the request."""
        self.e = t
        if self.tail and not self.plain:
            # the last blank line may be missing; a terminator counts all the same
            self.event(self.tail, t, 0)
            self.tail = b""
        if self.plain:
            self._finish_plain(t)
        self.l = self.last()
        if self.kind != Kind.OPEN:
            return
        self.kind = self._verdict()
        if self.kind == Kind.WRONG_LENGTH:
            self.error = f"asked for exactly {self.exact} tokens, the server counted {self.n_out}"

    def _finish_plain(self, t: int) -> None:
        body = bytes(self.body_bytes)
        if self.status != 200:
            self._fail(Kind.HTTP, f"HTTP {self.status}: {body[:500].decode(errors='replace')}")
            return
        try:
            seen = self.api.read(orjson.loads(body))
        except (orjson.JSONDecodeError, AttributeError, TypeError, IndexError, KeyError) as error:
            self._fail(Kind.PROTOCOL, f"neither an event stream nor JSON ({error}): {body[:200]!r}")
            return
        if seen.error:
            self._fail(Kind.JSON_ERROR, seen.error)
        elif self.api.streaming:
            self._fail(Kind.PROTOCOL, f"asked for an event stream, got one JSON body: {body[:200]!r}")
        else:
            self._take(seen, t, 0)

    def _verdict(self) -> Kind:
        if not self.api.generates:
            return Kind.OK if self.count else Kind.ZERO_TOKENS
        if not self.flags & layout.DONE:
            return Kind.NO_DONE
        if self.n_out == 0 or (self.n_out < 0 and not self.count):
            return Kind.ZERO_TOKENS
        if not self.count:
            return Kind.NO_VISIBLE_OUTPUT
        if not self.flags & _FINISHED:
            return Kind.NO_FINISH
        if self.exact >= 0 and self.n_out >= 0 and self.n_out != self.exact:
            return Kind.WRONG_LENGTH
        return Kind.OK

    def break_off(self, kind: Kind, t: int, message: str = "") -> None:
        """The attempt ended at `t` without a proper end of the body."""
        self.e = self.e or t
        self.l = self.last()
        self._fail(kind, message)

    def pack(self, kind: Kind | None = None) -> bytes:
        """The record, as `layout.REQUEST`."""
        flags = self.flags
        if self.tokens is not None and 0 not in self.tokens:
            flags |= layout.CHUNK_TOKENS
        return layout.REQUEST.pack(
            self.seq, self.body, self.phase, self.kind if kind is None else kind, self.status, flags,
            self.s, self.w, self.w_end, self.r, self.o, self.f, self.c, self.last(), self.e,
            self.n_out, self.n_in, self.n_reason, self.n_cached,
            self.count, self.m, self.empties, min(self.bytes, 0xFFFFFFFF), min(max(self.f_lag, 0), 0xFFFFFFFF),
            self.attempts,
        )  # fmt: skip
