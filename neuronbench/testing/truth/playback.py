"""Sending one answer at its instants.

Deadlines are absolute: a late chunk does not make the next one late. Every instant noted is read right before the
bytes are handed to the kernel, and the same number is inside the event.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import orjson

from neuronbench.testing.truth import dialects, tokens, wire
from neuronbench.testing.truth.connection import Connection
from neuronbench.testing.truth.counters import Counters
from neuronbench.testing.truth.dialects import Dialect, Event
from neuronbench.testing.truth.loop import Play
from neuronbench.testing.truth.records import RequestRecord
from neuronbench.testing.truth.requests import Generation
from neuronbench.testing.truth.script import Script

CATCH_UP = 64  # tokens of one stream in one send, at most


class Owner(Protocol):
    """Who is told that an answer ended."""

    counters: Counters

    def finish(self, answer: Answer, outcome: str) -> None: ...

    def close_idle(self, connection: Connection, after_ns: int) -> None: ...


class Answer:
    """A request being answered."""

    __slots__ = ("beats", "connection", "dialect", "keep_alive", "owner", "payload", "record", "request", "script")

    def __init__(
        self,
        owner: Owner,
        connection: Connection,
        record: RequestRecord,
        script: Script,
        *,
        keep_alive: bool,
        dialect: Dialect | None = None,
        request: Generation | None = None,
        payload: dict[str, Any] | None = None,
    ) -> None:
        self.owner = owner
        self.connection = connection
        self.record = record
        self.script = script
        self.keep_alive = keep_alive
        self.dialect = dialect
        self.request = request
        self.payload = payload
        self.beats: list[Beat] | None = None

    def begin(self) -> None:
        """What a server sends before it has computed anything: the headers of a stream."""
        record, script = self.record, self.script
        record.status = 200
        if not record.stream:
            return
        length = None
        if not script.plain:
            self.beats = compose(self)
            if script.body == "length":
                length = sum(len(wire.encode(script, event, 0)) for beat in self.beats for event in beat.events)
        if script.headers:
            self.connection.write(wire.stream_headers(script, record.id, length))

    def play(self) -> Play:
        """The plays of this answer; the anchor must be set."""
        if not self.record.stream:
            return _unary(self)
        return _plain(self) if self.beats is None else _scripted(self, self.beats)

    def usage(self) -> dict[str, Any]:
        record, script = self.record, self.script
        return dialects.usage(
            record.prompt_tokens,
            script.tokens,
            reasoning=min(script.reasoning, script.tokens),
            cached=record.cached_tokens if script.tells_cached else 0,
        )

    def end(self, outcome: str = "complete") -> None:
        """Everything is sent: close the books, then free the connection as the script says."""
        script, connection = self.script, self.connection
        self.record.done_ns = time.monotonic_ns()
        self.owner.finish(self, outcome)
        if script.after == "reuse":
            connection.drop_next = True
        elif script.after == "idle":
            self.owner.close_idle(connection, script.idle_ns)
        connection.done(
            keep_alive=self.keep_alive and script.after not in ("header", "close") and script.body != "close"
        )


def _plain(answer: Answer) -> Play:
    """One token a chunk and nothing odd: the path that must cost little."""
    connection, record, script, dialect = answer.connection, answer.record, answer.script, answer.dialect
    assert dialect is not None
    assert answer.request is not None
    clock, write, send, backlog = time.monotonic_ns, connection.write, connection.send, connection.backlog
    note_due, note_sent = record.due_ns.append, record.sent_ns.append
    due, step, last = record.anchor_ns + script.ttft_ns, script.tpot_ns, script.tokens - 1
    encode, frame, word = wire.encode, wire.frame, tokens.word
    opening = dialect.opening()

    yield due
    ns = clock()
    first = dialect.chunk(word(0).decode(), script.finish if last == 0 else None)
    if not write(b"".join(frame(script, encode(script, event, ns)) for event in (*opening, first))):
        return
    note_due(due)
    note_sent(ns)
    answer.owner.counters.prompt_tokens += record.prompt_tokens

    if last > 1:
        before, after = dialects.plain_parts(dialect)
        head, tail = b"data: " + before, after + b',"x_mono_ns":'
        size = len(head) + len(tokens.WORDS[0]) + len(tail) + 22
        head = b"%x\r\n%b" % (size, head)
        whole = len(head) + size - len(b"data: " + before) + 2
        words = tokens.WORDS
        k = 0
        while (k := k + 1) < last:
            due += step
            yield due
            ns = clock()
            data = b"%b%b%b%-19d}\n\n\r\n" % (head, words[k & 4095], tail, ns)
            size = whole
            if due + step <= ns:
                # Late by more than a token: what is due goes in one send, or a busy server would never catch up.
                parts = [data]
                while due + step <= ns and k + 1 < last and len(parts) < CATCH_UP:
                    note_due(due)
                    note_sent(ns)
                    k += 1
                    due += step
                    parts.append(b"%b%b%b%-19d}\n\n\r\n" % (head, words[k & 4095], tail, ns))
                data = b"".join(parts)
                size = whole * len(parts)
            if backlog:
                record.unsent_waits += 1
                backlog.append(data)
            else:
                try:
                    sent = send(data)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    connection.lose()
                    return
                if sent != size:
                    record.unsent_waits += 1
                    connection.keep(data[sent:])
            note_due(due)
            note_sent(ns)

    # The last token, usage, [DONE] and the end of the body belong to one instant: one send.
    rest = [dialect.usage_event(answer.usage()), wire.DONE] if answer.request.usage else [wire.DONE]
    if last > 0:
        due += step
        yield due
        rest.insert(0, dialect.chunk(word(last).decode(), script.finish))
    ns = clock()
    if write(b"".join([frame(script, encode(script, event, ns)) for event in rest]) + b"0\r\n\r\n"):
        if last > 0:
            note_due(due)
            note_sent(ns)
        answer.end()


class Beat(NamedTuple):
    """What leaves at one instant (counted from the anchor): events, and for each chunk among them its tokens."""

    at_ns: int
    events: list[Event]
    chunks: tuple[int, ...]


def compose(answer: Answer) -> list[Beat]:
    """All beats of a scripted answer up to where it ends or breaks off."""
    script, dialect, request = answer.script, answer.dialect, answer.request
    assert dialect is not None
    assert request is not None
    beats: list[Beat] = []
    usage = answer.usage()
    held = dialect.opening() + (dialect.tool_opening() if script.delta == "tool_calls" else [])
    if script.role_ns is not None:
        beats.append(Beat(script.role_ns, held, ()))
        held = []
    groups = list(_groups(script))
    ahead_ns = script.tpot_ns * (len(groups[0]) - 1) if groups else 0
    broken = False
    for j, group in enumerate(groups):
        # A chunk leaves with its last token; the clock of TPOT starts at the first chunk, whatever its size.
        at_ns = script.steps_ns(j) if script.steps else script.due_ns(group[-1]) - ahead_ns
        if script.stop_at == j:
            return [*beats, Beat(at_ns, [], ())]
        if script.error_at == j:
            beats.append(Beat(at_ns, [*held, _error(dialect, script)], ()))
            held, broken = [], True
            break
        running = None
        if script.usage == "continuous" or request.continuous_usage:
            running = dialects.usage(answer.record.prompt_tokens, group[-1] + 1)
        finish = script.finish if group[-1] == script.tokens - 1 else None
        field = script.reasoning_field if group[0] < script.reasoning else script.delta
        text = script.first_text if j == 0 and script.first_text else _text(script, group)
        ids = _ids(script, group) if request.token_ids else None
        events = [*held, dialect.chunk(text, finish, field, running, ids)]
        if script.usage == "early" and j == 0 and dialect.ends_with_done:
            events.append(dialect.usage_event(usage))
        beats.append(Beat(at_ns, events, (len(group),)))
        held = []
    beats = _coalesced(beats, script.coalesce)
    end_ns = beats[-1].at_ns if groups and beats else script.ttft_ns
    tail: list[Event] = held
    if not broken:
        if not groups:
            tail.append(dialect.chunk("", script.finish, script.delta))
        answered = [token for group in groups for token in group if token >= script.reasoning]
        closing = dialect.closing(_text(script, answered), script.finish, usage)
        tail += closing if script.done else closing[:-1]
        if dialect.ends_with_done and script.usage == "choices":
            tail.append(dialect.usage_event(usage, choices=True))
        elif dialect.ends_with_done and (
            script.usage == "continuous" or (request.usage and script.usage not in ("absent", "early"))
        ):
            tail.append(dialect.usage_event(usage))
    if script.done and dialect.ends_with_done and not (broken and script.error_form == "event"):
        tail.append(wire.DONE)
    return [*beats, Beat(end_ns, tail, ())]


def _groups(script: Script) -> Iterator[list[int]]:
    """The visible tokens, as they share chunks. Hidden ones are those after the first."""
    visible = [k for k in range(script.tokens) if not 1 <= k <= script.hidden]
    for part in (
        [k for k in visible if k < script.reasoning],
        [k for k in visible if k >= script.reasoning],
    ):
        start, number, size = 0, 0, script.first_chunk or script.per_chunk
        while start < len(part):
            yield part[start : start + size]
            start, number = start + size, number + 1
            size = script.step(number)[1] + 1 if script.steps else script.per_chunk


def _text(script: Script, group: list[int]) -> str:
    words = (tokens.word(_shown(script, k)).decode() for k in group if k not in script.empty)
    text = "".join(script.odd_text + word for word in words)
    if script.delta == "tool_calls" and group:
        text = ('{"q":"' if group[0] == 0 else "") + text + ('"}' if group[-1] == script.tokens - 1 else "")
    return text


def _shown(script: Script, k: int) -> int:
    """The word that stands at token k."""
    other = script.differs_at is not None and k >= script.differs_at
    return k + script.text_from + (1000 if other else 0)


def _ids(script: Script, group: list[int]) -> list[int]:
    return [_shown(script, k) % len(tokens.WORDS) for k in group]


def _error(dialect: Dialect, script: Script) -> Event:
    event = dialect.error("the engine core died while it generated this answer")
    return Event(b"error", event.head) if script.error_form == "event" else event


def _coalesced(beats: list[Beat], size: int) -> list[Beat]:
    if size == 1:
        return beats
    merged = []
    for start in range(0, len(beats), size):
        part = beats[start : start + size]
        events = [event for beat in part for event in beat.events]
        merged.append(Beat(part[-1].at_ns, events, tuple(n for beat in part for n in beat.chunks)))
    return merged


def _scripted(answer: Answer, beats: list[Beat]) -> Play:
    connection, record, script = answer.connection, answer.record, answer.script
    record.chunk_tokens = array("l")
    chunks = 0
    for beat in beats:
        due = record.anchor_ns + beat.at_ns
        yield due
        ns = time.monotonic_ns()
        encoded = [wire.encode(script, event, ns) for event in beat.events]
        if script.comment_every and beat.chunks and chunks % script.comment_every == 0:
            encoded.insert(0, wire.COMMENT + script.newline * 2)
        if script.split_gap_ns is not None and beat.chunks:
            parts = [part for data in encoded for part in wire.pieces(script, data)]
            for number, part in enumerate(parts):
                if number:
                    yield time.monotonic_ns() + script.split_gap_ns
                if not connection.write(part):
                    return
            yield time.monotonic_ns() + script.split_gap_ns  # nothing else shares the last segment
        elif encoded and not connection.write(b"".join(wire.frame(script, data) for data in encoded)):
            return
        for size in beat.chunks:
            record.due_ns.append(due)
            record.sent_ns.append(ns)
            record.chunk_tokens.append(size)
            if chunks == 0:
                answer.owner.counters.prompt_tokens += record.prompt_tokens
            elif script.drafted:
                # As in vLLM, what is kept beyond the end of the answer has been counted already.
                drafted, kept = script.step(chunks) if script.steps else (script.drafted, size - 1)
                if drafted:
                    answer.owner.counters.accept(drafted, kept)
            chunks += 1
    answer.owner.counters.accepted_tokens += script.overcounted
    if script.stop_at is not None or script.ending != "complete":
        _break_off(answer)
    elif connection.write(wire.terminator(script)):
        answer.end("error_event" if script.error_at is not None else "complete")


def _break_off(answer: Answer) -> None:
    """End an answer in the way no client likes."""
    connection, script = answer.connection, answer.script
    if script.ending == "hang":
        return  # until the client leaves
    if script.ending == "die":
        os._exit(script.exit_code)
    if script.ending == "cut":
        assert answer.dialect is not None
        whole = wire.frame(script, wire.encode(script, answer.dialect.chunk(" cut"), time.monotonic_ns()))
        connection.write(whole[: len(whole) // 2])
    answer.record.done_ns = time.monotonic_ns()
    answer.owner.finish(answer, {"reset": "reset", "cut": "cut"}.get(script.ending, "closed"))
    if script.ending == "reset":
        connection.reset()
    else:
        connection.close_soon()


def _unary(answer: Answer) -> Play:
    """An answer in one piece, at the instant its last token would be ready."""
    connection, record, script = answer.connection, answer.record, answer.script
    due = record.anchor_ns + script.due_ns(max(0, script.tokens - 1))
    yield due
    payload = answer.payload
    if payload is None:
        assert answer.dialect is not None
        if script.error_at is not None:
            record.status = 500
            payload = dialects.error_body("the engine core died while it generated this answer", "internal_error", 500)
        else:
            shown = [k for k in range(script.tokens) if not 1 <= k <= script.hidden]
            parts = {
                script.reasoning_field: _text(script, [k for k in shown if k < script.reasoning]),
                script.delta: _text(script, [k for k in shown if k >= script.reasoning]),
            }
            if not script.reasoning:
                del parts[script.reasoning_field]
            payload = answer.dialect.whole(parts, script.finish, answer.usage())
            if answer.request is not None and answer.request.token_ids and "choices" in payload:
                payload["choices"][0]["token_ids"] = _ids(script, shown)
    ns = time.monotonic_ns()
    body = orjson.dumps(payload)[:-1] + wire.STAMP % ns
    if script.ending != "complete":
        if script.ending == "cut":
            connection.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                + body[: len(body) // 2]
            )
            script.ending = "close"
        _break_off(answer)
        return
    closing = b"connection: close\r\n" if script.after == "header" or not answer.keep_alive else b""
    connection.respond(
        record.status, body, extra=closing + b"x-request-id: %b\r\n" % record.id.encode("latin-1", "replace")
    )
    if not connection.open:
        return
    record.due_ns.append(due)
    record.sent_ns.append(ns)
    record.chunk_tokens = array("l", [script.tokens])
    answer.owner.counters.prompt_tokens += record.prompt_tokens
    answer.end("complete" if record.status == 200 else "status")
