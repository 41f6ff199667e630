"""Objects out of S3: a small one in one stream, a large one in ranges that come side by side and leave in order."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from neuronbench.weights import s3_errors
from neuronbench.weights.manifest import CHUNK

ATTEMPTS: Final = 6
"""Connections that may break within one range before the next byte has come."""
_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0


class Absent(Exception):
    """There is no such object."""


@dataclass(frozen=True, kw_only=True)
class OpenUpload:
    """An upload that was begun and not ended."""

    key: str
    id: str
    begun_at: float
    """Seconds since the epoch."""
    size_bytes: int
    """That have arrived, and are paid for."""


def open_upload(client: Any, bucket: str, prefix: str, told: Mapping[str, Any]) -> OpenUpload:
    """One of those that S3 lists. Raises what the client raises."""
    size = 0
    with contextlib.suppress(LookupError):
        for page in client.get_paginator("list_parts").paginate(
            Bucket=bucket, Key=told["Key"], UploadId=told["UploadId"]
        ):
            size += sum(int(part["Size"]) for part in page.get("Parts", ()))
    return OpenUpload(
        key=str(told["Key"])[len(prefix) :], id=str(told["UploadId"]), begun_at=told["Initiated"].timestamp(),
        size_bytes=size,
    )  # fmt: skip


def pieces(
    client: Any,
    target: Mapping[str, str],
    start: int,
    *,
    part_bytes: int,
    at_once: int,
    fail: Callable[[BaseException], NoReturn],
) -> Iterator[bytes]:
    """An object from byte `start` on, in order. Raises `Absent`; everything else through `fail`.

    All of it is of one object: of the one whose tag was seen first.
    """
    more = {"Range": f"bytes={start}-"} if start else {}
    try:
        answer = client.get_object(**target, **more)
    except Exception as error:
        if s3_errors.code(error) in s3_errors.ABSENT:
            raise Absent from None
        fail(error)
    size = start + int(answer["ContentLength"])
    reading = _Reading(client, target, str(answer["ETag"]), fail)
    if size - start <= part_bytes:
        return reading.stream(answer, start, size)
    return reading.side_by_side(answer, start, size, part_bytes, at_once)


class _Reading:
    def __init__(self, client: Any, target: Mapping[str, str], tag: str, fail: Callable[[BaseException], NoReturn]):
        self._client, self._target, self._tag, self._fail = client, target, tag, fail
        self._stopped = threading.Event()

    def side_by_side(self, answer: Any, start: int, size: int, part_bytes: int, at_once: int) -> Iterator[bytes]:
        """The first range from the stream that is open already; the rest in ranges of their own."""
        coming: deque[Future[list[bytes]]] = deque()
        ranges = iter(range(start + part_bytes, size, part_bytes))

        def whole(begin: int) -> list[bytes]:
            return list(self.stream(None, begin, min(begin + part_bytes, size)))

        with ThreadPoolExecutor(at_once, thread_name_prefix="nb-s3") as threads:
            try:
                for begin in itertools.islice(ranges, at_once):
                    coming.append(threads.submit(whole, begin))
                yield from self.stream(answer, start, start + part_bytes)
                while coming:
                    found = coming.popleft().result()
                    following = next(ranges, None)
                    if following is not None:
                        coming.append(threads.submit(whole, following))
                    yield from found
            finally:
                self._stopped.set()
                for future in coming:
                    future.cancel()

    def stream(self, answer: Any, begin: int, end: int) -> Iterator[bytes]:
        """Bytes `begin` to `end`; where a connection breaks, the rest is asked for again, of the same object."""
        done, broken = begin, 0
        while True:
            try:
                if answer is None:
                    asked = f"bytes={done}-{end - 1}"
                    answer = self._client.get_object(**self._target, Range=asked, IfMatch=self._tag)
                with contextlib.closing(answer["Body"]) as body:
                    for piece in body.iter_chunks(CHUNK):
                        left = end - done
                        done += min(len(piece), left)
                        broken = 0
                        yield piece[:left] if len(piece) > left else piece
                        if done == end or self._stopped.is_set():
                            return
                if done < end:
                    raise ConnectionError(f"the stream ended at byte {done} of {end}")
                return
            except Exception as error:  # the connection broke, or fewer bytes came than were announced
                broken += 1
                if broken == ATTEMPTS or self._stopped.is_set() or s3_errors.code(error):
                    self._fail(error)
            answer = None
            if broken > 1:
                self._stopped.wait(min(_PAUSE_S * 2**broken, _LONGEST_PAUSE_S))
