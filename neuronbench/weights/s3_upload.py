"""Large files to S3 in parts, so that an upload that was cut off goes on where it stopped, from any process.

What has arrived lies in S3 as an open upload under the file's key. Keys are digests of contents, so whoever writes a
key writes the same bytes; parts of an open upload are compared with the file one by one all the same (SHA-256 as the
service has it, else the tag where that is an MD5), and only what is equal is kept. Two who write one key at a time use
one upload: parts that both send are equal, and who ends it second learns that the object is there.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from neuronbench.weights import s3_errors
from neuronbench.weights.blobs import Sent, changed
from neuronbench.weights.manifest import FileEntry, StoreError, mismatch
from neuronbench.weights.meter import Meter, said_bytes

ROUNDS: Final = 4
"""Times an upload is begun anew because somebody else ended it."""
_SENDS: Final = 4
"""Times a part is sent that arrives damaged."""
_MD5: Final = re.compile(r"[0-9a-f]{32}")


class Ended(Exception):
    """Somebody else ended the upload, or replaced a part of it."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part that S3 has."""

    size_bytes: int
    tag: str
    sha256: str
    """In base 64; empty where the service does not say."""


@dataclass(kw_only=True)
class Open:
    """An upload that is not ended."""

    id: str
    parts: dict[int, Part] = field(default_factory=dict)
    ours: bool = False
    """Whether this process began it."""


class Upload:
    """One file on its way up."""

    def __init__(self, client: Any, target: Mapping[str, str], url: str, *, part_bytes: int, at_once: int) -> None:
        """`target`: bucket and key as the client wants them; `url`: of the store, for messages."""
        self._client, self._target, self._url = client, target, url
        self._part_bytes, self._at_once = part_bytes, at_once
        self._checksums = True
        self.retries = self.moved_bytes = 0
        self._lock = threading.Lock()

    def run(self, path: Path, entry: FileEntry, meter: Meter, exists: Callable[[], bool]) -> Sent:
        """Raises `StoreError`; what has arrived stays in S3 unless the file is not what `entry` says."""
        resumed = 0
        key = self._target["Key"]
        for number in range(1, ROUNDS + 1):
            upload = self._found(entry) or self._begin()
            before = meter.done_bytes
            try:
                kept, parts = self._send(upload, path, entry, meter)
                resumed = kept if number == 1 else resumed
                checked = self._complete(upload, entry, parts, exists)
            except Ended:
                if exists():
                    meter.lost(meter.done_bytes - before)
                    meter.there(entry.size_bytes)
                    return Sent(moved_bytes=self.moved_bytes, there=True, retries=self.retries)
                meter.lost(meter.done_bytes - before)
                continue
            if checked is None:
                return Sent(moved_bytes=self.moved_bytes, there=True, retries=self.retries)
            return Sent(
                moved_bytes=self.moved_bytes, resumed_bytes=resumed, checked=checked, retries=self.retries
            )  # fmt: skip
        raise StoreError(
            "store_unreachable", f"{self._url}: {ROUNDS} uploads of {key} were ended by somebody else before they "
            "were whole", remedy="Find out what aborts uploads there (a rule of the bucket, another program).",
        )  # fmt: skip

    # -- what there is

    def _found(self, entry: FileEntry) -> Open | None:
        """The open upload of this key that has most of the file; None when there is none that could be gone on with."""
        best: Open | None = None
        try:
            for page in self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._target["Bucket"], Prefix=self._target["Key"]
            ):
                for each in page.get("Uploads", ()):
                    hashed = str(each.get("ChecksumAlgorithm") or "")
                    if each["Key"] != self._target["Key"] or hashed != ("SHA256" if self._checksums else ""):
                        continue
                    found = Open(id=each["UploadId"], parts=self._parts(each["UploadId"], entry))
                    if best is None or len(found.parts) > len(best.parts):
                        best = found
        except Exception as error:
            # Without the right to look, or where the service cannot, an upload begins anew; the rest is for the caller.
            if s3_errors.forbidden(error) or s3_errors.code(error) in s3_errors.UNKNOWN:
                return None
            if s3_errors.code(error) in s3_errors.LOST:
                return best
            raise s3_errors.told(error, self._url, "look for open uploads of", self._target["Key"]) from error
        return best

    def _parts(self, upload: str, entry: FileEntry) -> dict[int, Part]:
        """Those that have the size they should have; contents are compared when the file is read."""
        found = {}
        for page in self._client.get_paginator("list_parts").paginate(**self._target, UploadId=upload):
            for each in page.get("Parts", ()):
                number, size = int(each["PartNumber"]), int(each["Size"])
                start = (number - 1) * self._part_bytes
                if size == min(self._part_bytes, entry.size_bytes - start) and size > 0:
                    found[number] = Part(
                        size_bytes=size, tag=str(each["ETag"]), sha256=str(each.get("ChecksumSHA256") or "")
                    )
        return found

    def _begin(self) -> Open:
        more = {"ChecksumAlgorithm": "SHA256"} if self._checksums else {}
        try:
            return Open(id=self._client.create_multipart_upload(**self._target, **more)["UploadId"], ours=True)
        except Exception as error:
            if self._checksums and s3_errors.code(error) in s3_errors.UNKNOWN:
                self._checksums = False
                return self._begin()
            raise s3_errors.told(error, self._url, "write", self._target["Key"]) from error

    # -- the parts

    def _send(self, upload: Open, path: Path, entry: FileEntry, meter: Meter) -> tuple[int, list[dict[str, Any]]]:
        """Bytes that S3 had of it, and what completing has to say of each part."""
        state, results = hashlib.sha256(), []
        sent: list[Future[tuple[int, dict[str, Any]]]] = []
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="nb-s3") as threads, path.open("rb") as file:
            try:
                number = 0
                while data := file.read(self._part_bytes):
                    number += 1
                    state.update(data)
                    if number > self._at_once:
                        results.append(sent[number - 1 - self._at_once].result())
                    sent.append(threads.submit(self._part, upload, number, data, meter))
                results += [future.result() for future in sent[len(results) :]]
            except BaseException as error:
                for future in sent:
                    future.cancel()
                if isinstance(error, (Ended, StoreError)) or not isinstance(error, Exception):
                    raise
                raise self._kept(error, meter) from error
        if state.hexdigest() != entry.sha256:
            if upload.ours:  # its parts are of no use to anybody
                self._abort(upload)
            raise changed(path, entry, state.hexdigest())
        return sum(kept for kept, _ in results), [told for _, told in results]

    def _part(self, upload: Open, number: int, data: bytes, meter: Meter) -> tuple[int, dict[str, Any]]:
        """Send a part unless S3 has it: bytes that it had, and what completing has to say of it."""
        sha256 = _base64(hashlib.sha256(data).digest())
        known = upload.parts.get(number)
        if known is not None and _same(known, data, sha256):
            meter.there(len(data))
            return len(data), {"PartNumber": number, "ETag": known.tag, **self._sum(sha256)}
        for attempt in range(1, _SENDS + 1):
            try:
                answer = self._client.upload_part(
                    **self._target, UploadId=upload.id, PartNumber=number, Body=data, **self._sum(sha256)
                )
                break
            except Exception as error:
                if s3_errors.code(error) in s3_errors.LOST:
                    raise Ended from error
                if s3_errors.code(error) not in s3_errors.DAMAGED or attempt == _SENDS:
                    raise
        with self._lock:
            self.retries += attempt - 1 + int(answer.get("ResponseMetadata", {}).get("RetryAttempts", 0))
            self.moved_bytes += len(data)
        meter.moved(len(data))
        return 0, {"PartNumber": number, "ETag": answer["ETag"], **self._sum(sha256)}

    def _sum(self, sha256: str) -> dict[str, str]:
        return {"ChecksumSHA256": sha256} if self._checksums else {}

    # -- the end

    def _complete(
        self, upload: Open, entry: FileEntry, parts: list[dict[str, Any]], exists: Callable[[], bool]
    ) -> bool | None:
        """Make the object appear. Whether the service has hashed it and agrees; None when another was first."""
        ask: dict[str, Any] = {**self._target, "UploadId": upload.id, "MultipartUpload": {"Parts": parts}}
        try:
            answer = self._client.complete_multipart_upload(**ask, IfNoneMatch="*")
        except Exception as error:
            code = s3_errors.code(error)
            if code in s3_errors.THERE:
                self._abort(upload)
                return None
            if code in s3_errors.LOST or code in s3_errors.CONFLICT:
                raise Ended from error
            if code not in s3_errors.UNKNOWN:
                raise s3_errors.told(error, self._url, "write", self._target["Key"]) from error
            if exists():
                self._abort(upload)
                return None
            try:
                answer = self._client.complete_multipart_upload(**ask)
            except Exception as again:
                raise s3_errors.told(again, self._url, "write", self._target["Key"]) from again
        found = str(answer.get("ChecksumSHA256") or "")
        if not found:
            return False
        wanted = composite([part.get("ChecksumSHA256", "") for part in parts])
        if found.partition("-")[0] != wanted.partition("-")[0]:
            raise mismatch(
                f"{self._url}: {self._target['Key']} (of SHA-256 {entry.sha256}) arrived otherwise than it was sent, "
                "by the service's hash over the hashes of its parts", wanted, found,
                "Remove that object from the store and put it in again.",
            )  # fmt: skip
        return True

    def _abort(self, upload: Open) -> None:
        with contextlib.suppress(Exception):
            self._client.abort_multipart_upload(**self._target, UploadId=upload.id)

    def _kept(self, error: Exception, meter: Meter) -> StoreError:
        """An upload was cut off: what has arrived is not lost."""
        found = s3_errors.told(error, self._url, "write", self._target["Key"])
        kept = f"{said_bytes(meter.done_bytes)} of {said_bytes(meter.total_bytes)} have arrived and are kept"
        return StoreError(found.kind, f"{found.message} ({kept})", remedy=found.remedy)


def composite(sums: list[str]) -> str:
    """S3's checksum of an object in parts, from those of its parts (SHA-256 in base 64)."""
    joined = b"".join(base64.b64decode(each) for each in sums)
    return f"{_base64(hashlib.sha256(joined).digest())}-{len(sums)}"


def composite_of(path: Path, part_bytes: int) -> str:
    """The same of a file here."""
    sums = []
    with path.open("rb") as file:
        while data := file.read(part_bytes):
            sums.append(_base64(hashlib.sha256(data).digest()))
    return composite(sums)


def _same(known: Part, data: bytes, sha256: str) -> bool:
    if known.sha256:
        return known.sha256 == sha256
    tag = known.tag.strip('"')  # the MD5 where S3 keeps the bytes as they are, or under a key of its own
    return bool(_MD5.fullmatch(tag)) and hashlib.md5(data, usedforsecurity=False).hexdigest() == tag


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
