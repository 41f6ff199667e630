"""Files as input: conversations, prompts, request bodies, arrival traces.

Readers give plain rows and say, for a bad line, which one it is, what was expected and what was found.
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuronbench.load.arrivals import Trace
from neuronbench.load.workload import Dataset


@dataclass(frozen=True, kw_only=True)
class Row:
    """A prompt in one of its forms, and how long its answer is to be."""

    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    ids: tuple[int, ...] | None = None
    raw: Any = None
    """`input` of APIs that take it as it is."""
    body: Mapping[str, Any] | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """One arrival of a trace."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Mooncake: identity of each 512 tokens of the prompt."""


def file_digest(path: Path) -> str:
    """BLAKE2b of the file's bytes: part of the workload's identity."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_rows(source: Dataset) -> list[Row]:
    """All usable rows in file order. Raises `ValueError` when there is none or a line is malformed."""
    path = Path(source.path)
    rows = list({"sharegpt": _sharegpt, "jsonl": _prompts, "bodies": _bodies}[source.format](path))
    if not rows:
        raise ValueError(f"{path}: expected at least one prompt in form {source.format!r}, found none")
    return rows


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{where}: expected a JSON object per line, found {line[:80]!r} ({error})") from error
            if not isinstance(row, dict):
                raise ValueError(f"{where}: expected a JSON object, found {line[:80]!r}")
            yield where, row


def _sharegpt(path: Path) -> Iterator[Row]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected one JSON list of conversations ({error})") from error
    if not isinstance(document, list):
        raise ValueError(f"{path}: expected a JSON list of conversations, found {type(document).__name__}")
    for number, entry in enumerate(document, 1):
        turns = entry.get("conversations") or entry.get("conversation") or [] if isinstance(entry, dict) else []
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise ValueError(
                f"{path}: conversation {number}: expected a list of turns, each an object with from and value, "
                f"found {_shown(turns)}"
            )
        first = next((turn for turn in turns if turn.get("from") in ("human", "user") and turn.get("value")), None)
        if first is not None:
            yield Row(text=str(first["value"]))


def _prompts(path: Path) -> Iterator[Row]:
    for where, row in _lines(path):
        length = row.get("output_tokens")
        if length is not None and (not _whole(length) or length < 1):
            raise ValueError(f"{where}: output_tokens: expected a whole number from 1, found {length!r}")
        if isinstance(row.get("messages"), list):
            if not row["messages"] or not all(isinstance(one, dict) and "role" in one for one in row["messages"]):
                raise ValueError(
                    f"{where}: messages: expected objects with role and content, found {_shown(row['messages'])}"
                )
            yield Row(messages=tuple(row["messages"]), output_tokens=length)
        elif isinstance(row.get("prompt"), str):
            yield Row(text=row["prompt"], output_tokens=length)
        elif isinstance(row.get("input_ids"), list):
            if not row["input_ids"] or not all(_whole(token) and token >= 0 for token in row["input_ids"]):
                raise ValueError(
                    f"{where}: input_ids: expected token ids, whole numbers from 0, found {_shown(row['input_ids'])}"
                )
            yield Row(ids=tuple(row["input_ids"]), output_tokens=length)
        elif "input" in row:
            yield Row(raw=row["input"], output_tokens=length)
        else:
            raise ValueError(f"{where}: expected prompt, messages, input_ids or input, found keys {sorted(row)}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bodies(path: Path) -> Iterator[Row]:
    for _, row in _lines(path):
        yield Row(body=row)


def read_trace(trace: Trace) -> list[TraceRow]:
    """The part of the trace that is replayed, instants in replayed seconds from its first arrival, sorted."""
    path = Path(trace.path)
    reader = {"mooncake": _mooncake, "azure": _azure, "jsonl": _timed}[trace.format]
    rows = sorted(reader(path), key=lambda row: row.at_s)
    if rows:
        begin = rows[0].at_s + trace.start_s
        end = float("inf") if trace.duration_s is None else begin + trace.duration_s
        rows = [row for row in rows if begin <= row.at_s < end]
    if not rows:
        raise ValueError(f"{path}: no arrival in the part that was asked for ({trace.format})")
    origin = rows[0].at_s
    return [
        TraceRow(
            at_s=(row.at_s - origin) / trace.speed,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            blocks=row.blocks,
        )
        for row in rows
    ]


def _number(where: str, row: Mapping[str, Any], key: str, least: float) -> float:
    try:
        value = float(row[key])
    except (KeyError, TypeError, ValueError):
        value = float("nan")
    if not least <= value < float("inf"):
        raise ValueError(f"{where}: {key}: expected a number from {least:g}, found {row.get(key)!r}")
    return value


def _mooncake(path: Path) -> Iterator[TraceRow]:
    for where, row in _lines(path):
        blocks = row.get("hash_ids") or []
        if not isinstance(blocks, list) or not all(_whole(block) for block in blocks):
            raise ValueError(f"{where}: hash_ids: expected a list of whole numbers, found {_shown(blocks)}")
        yield TraceRow(
            at_s=_number(where, row, "timestamp", 0) / 1e3,
            input_tokens=int(_number(where, row, "input_length", 1)),
            output_tokens=int(_number(where, row, "output_length", 1)),
            blocks=tuple(int(block) for block in blocks),
        )


def _timed(path: Path) -> Iterator[TraceRow]:
    for where, row in _lines(path):
        yield TraceRow(
            at_s=_number(where, row, "at_s", 0),
            input_tokens=int(_number(where, row, "input_tokens", 1)),
            output_tokens=int(_number(where, row, "output_tokens", 1)),
        )


def _azure(path: Path) -> Iterator[TraceRow]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        wanted = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
        if not wanted <= set(reader.fieldnames or ()):
            raise ValueError(f"{path}: expected the columns {', '.join(sorted(wanted))}, found {reader.fieldnames}")
        for number, row in enumerate(reader, 2):
            where = f"{path}:{number}"
            yield TraceRow(
                at_s=_stamp(where, row["TIMESTAMP"]),
                input_tokens=int(_number(where, row, "ContextTokens", 1)),
                output_tokens=int(_number(where, row, "GeneratedTokens", 1)),
            )


def _stamp(where: str, text: str) -> float:
    """Seconds of `2023-11-16 18:15:46.6805900`, a trailing offset or Z allowed; fractions of any length."""
    head, dot, fraction = text.strip().partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
    zone = fraction[len(digits) :] or "+00:00"
    try:
        moment = datetime.datetime.fromisoformat(head + (zone if dot else ""))
    except ValueError:
        raise ValueError(f"{where}: TIMESTAMP: expected a date and time, found {text!r}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp() + (int(digits) / 10 ** len(digits) if digits else 0.0)
