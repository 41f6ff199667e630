"""A store's bytes in S3. The one module that imports boto3, late; it comes with the extra `neuronbench[s3]`.

Credentials, region and endpoint are boto3's own affair (AWS_PROFILE, AWS_ENDPOINT_URL_S3, an instance's role, ...).
Large objects go up and down in parts, several at a time; how they go on after a cut is said in `s3_upload`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NoReturn

from neuronbench.weights import s3_errors, s3_reading
from neuronbench.weights.blobs import Sent, changed
from neuronbench.weights.manifest import FileEntry, StoreError
from neuronbench.weights.meter import Meter
from neuronbench.weights.s3_upload import Upload, composite_of

PART_BYTES: Final = 32 << 20
"""Larger objects go in parts of this size, or of as much more as keeps them below `_MOST_PARTS`."""
PART_VARIABLE: Final = "NEURONBENCH_S3_PART_BYTES"
"""Another size of parts, in bytes; S3 takes none below 5 MiB. An upload goes on with the size it was begun with."""
_FEW_BYTES: Final = 256 << 10
_MOST_PARTS: Final = 9000
"""S3 allows 10,000."""
_AT_ONCE: Final = 8
"""Parts on their way at a time; so many are in memory."""
_ATTEMPTS: Final = 10
"""Of a request, with growing pauses between them: throttled, or the connection broke."""
_SENDS: Final = 4
"""Times an object is sent that arrives damaged."""
_CONFLICTS: Final = 8
"""Times that another writer of the same object may be in the way."""
_PAUSE_S: Final = 0.1


class S3Blobs:
    """Objects below `s3://bucket/prefix`: `Blobs`, and `Resumable`.

    Nothing is overwritten: writes are conditional (If-None-Match). A service that does not know that is asked first
    whether the object is there.
    """

    def __init__(
        self, bucket: str, prefix: str = "", *, client: Any = None, part_bytes: int = 0, at_once: int = _AT_ONCE
    ) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._client = client if client is not None else _connect(self.url, at_once)
        self._part_bytes, self._at_once = part_bytes or _part_bytes(), at_once

    # -- Blobs

    def size(self, key: str) -> int | None:
        found = self._head(key)
        return None if found is None else int(found["ContentLength"])

    def write(self, key: str, chunks: Iterable[bytes], size_bytes: int) -> bool:
        if self.size(key) is not None:
            return False
        parts = _parts(chunks, self._part(size_bytes))
        first = next(parts, b"")
        second = next(parts, None)
        if second is None:
            return self._conditional(self._client.put_object, key, Body=first) is not None
        return self._in_parts(key, itertools.chain((first, second), parts))

    def read(self, key: str) -> Iterator[bytes]:
        return self._read(key, 0)

    def keys(self, prefix: str) -> Iterator[str]:
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self.prefix + prefix
            )
            for page in pages:
                for found in page.get("Contents", ()):
                    yield str(found["Key"])[len(self.prefix) :]
        except Exception as error:
            self._fail(error, "list", prefix)

    # -- Resumable

    def write_file(self, key: str, path: Path, entry: FileEntry, meter: Meter) -> Sent:
        part = self._part(entry.size_bytes)
        # A file of a few bytes is not asked for first: the write is conditional, one request instead of two.
        if entry.size_bytes > _FEW_BYTES and self.size(key) is not None:
            meter.there(entry.size_bytes)
            return Sent(there=True)
        if entry.size_bytes <= part:
            return self._write_small(key, path, entry, meter)
        upload = Upload(
            self._client, self._target(key), self.url, part_bytes=part, at_once=self._at_once
        )  # fmt: skip
        return upload.run(path, entry, meter, lambda: self.size(key) is not None)

    def checked(self, key: str, path: Path, entry: FileEntry) -> bool:
        found = self._head(key, ChecksumMode="ENABLED")
        told = "" if found is None else str(found.get("ChecksumSHA256") or "")
        if found is None or not told or int(found["ContentLength"]) != entry.size_bytes:
            return False
        if told == _base64(entry.sha256):
            return True
        part = self._part(entry.size_bytes)
        if entry.size_bytes <= part or told.rpartition("-")[2] not in (told, str(-(-entry.size_bytes // part))):
            return False
        return composite_of(path, part).startswith(told)

    def read_from(self, key: str, start: int) -> Iterator[bytes]:
        return self._read(key, start)

    # -- uploads that were not ended

    def uploads(self, prefix: str = "") -> Iterator[s3_reading.OpenUpload]:
        """Uploads below `prefix` that were begun and not ended, and how much of each has arrived."""
        try:
            for page in self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self.prefix + prefix
            ):
                for each in page.get("Uploads", ()):
                    yield s3_reading.open_upload(self._client, self.bucket, self.prefix, each)
        except Exception as error:
            self._fail(error, "list open uploads of", prefix or "all of it")

    def abort(self, upload: s3_reading.OpenUpload) -> None:
        """Give up an upload: the parts that have arrived are gone."""
        try:
            self._client.abort_multipart_upload(**self._target(upload.key), UploadId=upload.id)
        except Exception as error:
            if s3_errors.code(error) not in s3_errors.LOST:
                self._fail(error, "give up the upload of", upload.key)

    # -- parts

    def _target(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.prefix + key}

    def _part(self, size_bytes: int) -> int:
        return max(self._part_bytes, -(-size_bytes // _MOST_PARTS))

    def _head(self, key: str, **more: str) -> Any:
        try:
            return self._client.head_object(**self._target(key), **more)
        except Exception as error:
            if s3_errors.code(error) in s3_errors.ABSENT:
                return None
            self._fail(error, "look up", key)

    def _read(self, key: str, start: int) -> Iterator[bytes]:
        try:
            return s3_reading.pieces(
                self._client, self._target(key), start, part_bytes=self._part_bytes, at_once=self._at_once,
                fail=lambda error: self._fail(error, "read", key),
            )  # fmt: skip
        except s3_reading.Absent:
            raise KeyError(key) from None

    def _write_small(self, key: str, path: Path, entry: FileEntry, meter: Meter) -> Sent:
        data = path.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != entry.sha256:
            raise changed(path, entry, found)
        wanted = _base64(entry.sha256)
        answer = None
        for attempt in range(1, _SENDS + 1):
            try:
                answer = self._conditional(
                    self._client.put_object, key, Body=data, ChecksumAlgorithm="SHA256", ChecksumSHA256=wanted
                )
                break
            except StoreError as error:
                if error.kind != "weights_mismatch" or attempt == _SENDS:
                    raise
        if answer is None:
            meter.there(entry.size_bytes)
            return Sent(there=True)
        meter.moved(entry.size_bytes)
        retries = attempt - 1 + int(answer.get("ResponseMetadata", {}).get("RetryAttempts", 0))
        return Sent(
            moved_bytes=entry.size_bytes, checked=answer.get("ChecksumSHA256") == wanted, retries=retries
        )  # fmt: skip

    def _conditional(self, call: Callable[..., Any], key: str, **more: Any) -> Any:
        """Make an object appear unless there is one: the answer; None when there is."""
        target: dict[str, Any] = {**self._target(key), **more, "IfNoneMatch": "*"}
        for attempt in itertools.count(1):
            try:
                return call(**target)
            except Exception as error:
                code = s3_errors.code(error)
                if code in s3_errors.THERE:
                    return None
                if code in s3_errors.UNKNOWN and "IfNoneMatch" in target:
                    del target["IfNoneMatch"]  # then it is asked first
                elif code in s3_errors.CONFLICT and attempt < _CONFLICTS:
                    time.sleep(_PAUSE_S * attempt)  # somebody else writes the same at this instant
                else:
                    self._fail(error, "write", key)
            if self.size(key) is not None:
                return None
        raise AssertionError

    def _in_parts(self, key: str, parts: Iterator[bytes]) -> bool:
        """An upload of bytes that cannot be had twice: when it is cut off, nothing of it stays."""
        target = self._target(key)
        try:
            upload = self._client.create_multipart_upload(**target)["UploadId"]
        except Exception as error:
            self._fail(error, "write", key)
        done = False
        try:
            with ThreadPoolExecutor(self._at_once, thread_name_prefix="nb-s3") as threads:
                sent: list[Future[Any]] = []
                for number, part in enumerate(parts, start=1):
                    if number > self._at_once:
                        self._result(sent[number - 1 - self._at_once], key)
                    sent.append(
                        threads.submit(
                            self._client.upload_part, **target, UploadId=upload, PartNumber=number, Body=part
                        )
                    )
                tags = [
                    {"PartNumber": number, **_told(self._result(future, key))}
                    for number, future in enumerate(sent, start=1)
                ]
            answer = self._conditional(
                self._client.complete_multipart_upload, key, UploadId=upload, MultipartUpload={"Parts": tags}
            )
            done = answer is not None
            return done
        finally:
            if not done:  # parts that are left lying are paid for
                with contextlib.suppress(Exception):
                    self._client.abort_multipart_upload(**target, UploadId=upload)

    def _result(self, future: Future[Any], key: str) -> Any:
        try:
            return future.result()
        except Exception as error:
            self._fail(error, "write", key)

    def _fail(self, error: BaseException, verb: str, key: str) -> NoReturn:
        raise s3_errors.told(error, self.url, verb, key) from error


def _part_bytes() -> int:
    told = os.environ.get(PART_VARIABLE, "")
    if not told:
        return PART_BYTES
    if not told.isdecimal() or int(told) < 1:
        raise StoreError(
            "bad_parameters", f"{PART_VARIABLE}: expected a number of bytes, found {told!r}",
            remedy="Unset it, or give one such as 67108864.",
        )  # fmt: skip
    return int(told)


def _connect(url: str, at_once: int) -> Any:
    try:
        import boto3
    except ImportError as error:
        raise StoreError(
            "extra_missing", f"{url} needs boto3, which is not installed here",
            remedy='Install it: pip install "neuronbench[s3]", or use a folder as store.',
        ) from error  # fmt: skip
    from botocore.config import Config

    own = {} if "AWS_MAX_ATTEMPTS" in os.environ else {"mode": "standard", "total_max_attempts": _ATTEMPTS}
    # Every byte that comes is hashed here: what the library would compute of it besides is time for nothing.
    config = Config(
        max_pool_connections=2 * at_once, response_checksum_validation="when_required", tcp_keepalive=True,
        **({"retries": own} if own else {}),
    )  # fmt: skip
    try:
        # AWS_REGION goes before the profile's region with AWS' other tools; boto3 reads AWS_DEFAULT_REGION alone
        return boto3.session.Session(region_name=os.environ.get("AWS_REGION")).client("s3", config=config)
    except Exception as error:
        raise StoreError(
            "store_unreachable", f"{url}: {type(error).__name__}: {error}",
            remedy="Set the region and the profile as for the aws command (AWS_REGION, AWS_PROFILE).",
        ) from error  # fmt: skip


def _base64(sha256: str) -> str:
    """As S3 writes a hash."""
    return base64.b64encode(bytes.fromhex(sha256)).decode("ascii")


def _told(answer: Any) -> dict[str, str]:
    """What completing an upload has to say of a part: its tag, and its checksum where there is one."""
    return {
        name: value
        for name, value in answer.items()
        if name == "ETag" or (name.startswith("Checksum") and name != "ChecksumType")
    }


def _parts(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of `size`; the last may be shorter."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)
