"""A store's bytes in S3. The one module that imports boto3, late; it comes with the extra `neuronbench[s3]`.

Credentials, region and endpoint are boto3's own affair (AWS_PROFILE, AWS_ENDPOINT_URL_S3, an instance's role, ...).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NoReturn

from neuronbench.weights.manifest import CHUNK, StoreError

PART_BYTES: Final = 32 << 20
"""Larger objects go up in parts of this size, or of as much more as keeps them below `_MOST_PARTS`."""
_MOST_PARTS: Final = 9000
"""S3 allows 10,000."""
_AT_ONCE: Final = 4
"""Parts on their way at a time; so many are in memory."""
_ATTEMPTS: Final = 5
"""Connections that may break within one object."""
_THERE: Final = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict"})
_UNKNOWN: Final = frozenset({"NotImplemented", "501"})


class S3Blobs:
    """Objects below `s3://bucket/prefix`.

    Nothing is overwritten: writes are conditional (If-None-Match). A service that does not know that is asked first
    whether the object is there.
    """

    def __init__(self, bucket: str, prefix: str = "", *, client: Any = None, part_bytes: int = PART_BYTES) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._client = client if client is not None else _connect(self.url)
        self._part_bytes = part_bytes

    def size(self, key: str) -> int | None:
        try:
            found = self._client.head_object(Bucket=self.bucket, Key=self.prefix + key)
        except Exception as error:
            if _code(error) in ("404", "NoSuchKey", "NotFound"):
                return None
            self._fail(error, "look up", key)
        return int(found["ContentLength"])

    def write(self, key: str, chunks: Iterable[bytes], size_bytes: int) -> bool:
        if self.size(key) is not None:
            return False
        parts = _parts(chunks, max(self._part_bytes, -(-size_bytes // _MOST_PARTS)))
        first = next(parts, b"")
        second = next(parts, None)
        if second is None:
            return self._conditional(self._client.put_object, key, Body=first)
        return self._in_parts(key, itertools.chain((first, second), parts))

    def read(self, key: str) -> Iterator[bytes]:
        try:
            answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key)
        except Exception as error:
            if _code(error) in ("404", "NoSuchKey", "NotFound"):
                raise KeyError(key) from None
            self._fail(error, "read", key)
        return self._pieces(answer, key)

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

    # -- parts

    def _pieces(self, answer: Any, key: str) -> Iterator[bytes]:
        """The body; where a connection breaks, the rest is asked for again, of the same object."""
        done = 0
        for attempt in itertools.count(1):
            try:
                with contextlib.closing(answer["Body"]) as body:
                    for piece in body.iter_chunks(CHUNK):
                        yield piece
                        done += len(piece)
                return
            except Exception as error:  # the connection broke, or fewer bytes came than were announced
                if attempt == _ATTEMPTS:
                    self._fail(error, "read", key)
            try:
                answer = self._client.get_object(
                    Bucket=self.bucket, Key=self.prefix + key, Range=f"bytes={done}-", IfMatch=answer["ETag"]
                )
            except Exception as error:
                self._fail(error, "read", key)

    def _conditional(self, call: Callable[..., Any], key: str, **more: Any) -> bool:
        """Make an object appear unless there is one; False when there is."""
        target = {"Bucket": self.bucket, "Key": self.prefix + key, **more}
        try:
            call(**target, IfNoneMatch="*")
        except Exception as error:
            code = _code(error)
            if code in _THERE:
                return False
            if code not in _UNKNOWN:
                self._fail(error, "write", key)
            if self.size(key) is not None:
                return False
            try:
                call(**target)
            except Exception as again:
                self._fail(again, "write", key)
        return True

    def _in_parts(self, key: str, parts: Iterator[bytes]) -> bool:
        target = {"Bucket": self.bucket, "Key": self.prefix + key}
        try:
            upload = self._client.create_multipart_upload(**target)["UploadId"]
        except Exception as error:
            self._fail(error, "write", key)
        done = False
        try:
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="nb-s3") as threads:
                sent: list[Future[Any]] = []
                for number, part in enumerate(parts, start=1):
                    if number > _AT_ONCE:
                        self._result(sent[number - 1 - _AT_ONCE], key)
                    sent.append(
                        threads.submit(
                            self._client.upload_part, **target, UploadId=upload, PartNumber=number, Body=part
                        )
                    )
                tags = [
                    {"PartNumber": number, **_told(self._result(future, key))}
                    for number, future in enumerate(sent, start=1)
                ]
            done = self._conditional(
                self._client.complete_multipart_upload, key, UploadId=upload, MultipartUpload={"Parts": tags}
            )
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

    def _fail(self, error: Exception, verb: str, key: str) -> NoReturn:
        if isinstance(error, StoreError):
            raise error
        code = _code(error)
        text = " ".join(str(error).split())[:300]
        kind, remedy = "store_unreachable", "Check the network and the endpoint; then do the same again."
        if code in ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken") or (
            type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")
        ):
            kind, remedy = "store_auth", f"Give credentials that may read and write {self.url} (AWS_PROFILE, a role)."
        elif code in ("NoSuchBucket", "InvalidBucketName"):
            kind, remedy = "store_not_found", "Create the bucket, or give another."
        raise StoreError(
            kind, f"{self.url}: cannot {verb} {key}: {type(error).__name__}: {text}", remedy=remedy
        ) from error


def _connect(url: str) -> Any:
    try:
        import boto3
    except ImportError as error:
        raise StoreError(
            "extra_missing", f"{url} needs boto3, which is not installed here",
            remedy='Install it: pip install "neuronbench[s3]", or use a folder as store.',
        ) from error  # fmt: skip
    try:
        return boto3.session.Session().client("s3")
    except Exception as error:
        raise StoreError(
            "store_unreachable", f"{url}: {type(error).__name__}: {error}",
            remedy="Set the region and the profile as for the aws command (AWS_REGION, AWS_PROFILE).",
        ) from error  # fmt: skip


def _code(error: Exception) -> str:
    """The service's own code for an error; empty when it did not come from the service."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


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
