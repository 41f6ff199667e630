"""One answer as it arrives: server-sent events found by byte search, and what they amount to.

Most events of a stream differ only in their text, and perhaps in numbers after it. The first one is parsed; after that
an event that is the same around a text without quotation marks must mean the same, which a few comparisons of bytes
decide without parsing. Whatever else comes (role, usage, finish, errors, escapes) is parsed in full.
"""

from __future__ import annotations

import re
from array import array
from typing import Final

import orjson

from neuronbench.load import layout
from neuronbench.load.apis import Api, Event
from neuronbench.load.outcomes import Kind, Phase

_BREAK: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LINE: Final = re.compile(rb"\r\n|\n|\r")
_STRING_END: Final = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL)
_RELEARN: Final = 4
"""Templates learned per answer; a server whose events never repeat is parsed in full instead."""
_FINISH: Final = {"stop": layout.FINISH_STOP, "length": layout.FINISH_LENGTH}
_FINISHED: Final = layout.FINISH_STOP | layout.FINISH_LENGTH | layout.FINISH_OTHER
MAX_BODY_BYTES: Final = 64 << 20
"""A plain answer longer than this is not one we asked for."""


_VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*', re.DOTALL)
_patterns: dict[bytes, re.Pattern[bytes]] = {}
"""Rest of an event → its pattern. A handful per server; numbers are taken out before the look-up."""
_PATTERNS_KEPT: Final = 256


def _rest_pattern(suffix: bytes) -> re.Pattern[bytes] | None:
    """Pattern of a text and what follows it, with any numbers where `suffix` has numbers; None when it has none."""
    parts, at, numbers = [], 1, False
    for match in _VALUE.finditer(suffix, 1):
        if match[0].startswith(b'"'):
            continue
        parts += [re.escape(suffix[at : match.start()]), rb"-?[0-9][0-9.eE+-]*"]
        at, numbers = match.end(), True
    if not numbers:
        return None
    source = rb'[^"\\]+"' + b"".join(parts) + re.escape(suffix[at:])
    if source not in _patterns:
        if len(_patterns) >= _PATTERNS_KEPT:
            _patterns.clear()
        _patterns[source] = re.compile(source)
    return _patterns[source]


class Stream:
    """A request and the answer to it, from its schedule to its end. All instants are monotonic ns, 0 for none."""

    __slots__ = (
        "api", "attempts", "body", "body_bytes", "bytes", "c", "cancel_after", "chunks", "count", "e", "empties",
        "error", "exact", "f", "f_lag", "flags", "kind", "l", "learned", "m", "n_cached", "n_in", "n_out",
        "n_reason", "o", "pattern", "phase", "plain", "prefix", "prefix_len", "r", "s", "seq", "slot", "status",
        "suffix", "suffix_len", "tail", "tokens", "told", "w", "w_end",
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
        self.suffix = b""
        self.pattern: re.Pattern[bytes] | None = None
        """Matches text and rest of an event where the rest has numbers; otherwise the rest is compared as it is."""
        self.prefix_len = self.suffix_len = self.learned = 0
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
        start = 0
        prefix, suffix, pattern = self.prefix, self.suffix, self.pattern
        if b"\r" in data:
            return self._feed_slow(data, t, lag)
        while (end := data.find(b"\n\n", start)) >= 0:
            if (
                prefix is not None
                and data.startswith(prefix, start)
                and (
                    end - start > self.prefix_len + self.suffix_len
                    and data.endswith(suffix, start, end)
                    and data.find(b'"', start + self.prefix_len, end - self.suffix_len) < 0
                    if pattern is None
                    else pattern.fullmatch(data, start + self.prefix_len, end) is not None
                )
            ):
                self.chunks.append(t)
                self.count += 1
                if self.tokens is not None:
                    self.tokens.append(0)
            else:
                self.event(data[start:end], t, lag)
                prefix, suffix, pattern = self.prefix, self.suffix, self.pattern
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
        if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
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
        payload = b"\n".join(parts)
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
        found = list(re.finditer(rb'"' + seen.key.encode() + rb'"\s*:\s*"', block))
        if len(found) != 1 or b"\n" in block:
            return
        start = found[0].end()
        closing = _STRING_END.match(block, start)
        if closing is None or orjson.loads(block[start - 1 : closing.end()]) != seen.text:
            return
        end = closing.end() - 1
        self.prefix, self.suffix = block[:start], block[end:]
        self.prefix_len, self.suffix_len = len(self.prefix), len(self.suffix)
        self.pattern = _rest_pattern(self.suffix)
        self.learned += 1

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
