"""An S3 on loopback that fails when told to: moto's server behind a proxy that counts, cuts, throttles and corrupts.

The proxy does what S3 does and moto does not: it refuses a body that is not what its SHA-256 says, and it knows that
an upload is no longer there.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

BUCKET = "of-faults"
PART = 64 << 10
"""S3 takes no parts below 5 MiB; the server here is told to."""


@dataclass
class Call:
    operation: str
    key: str
    part: int
    range: str


@dataclass
class Fault:
    """What happens to the next `times` calls that `meets`."""

    what: str
    """`cut`, `truncate`, `corrupt`, `hang`, or a status and a code: `503 SlowDown`."""
    operation: str
    times: int = 1
    meets: Callable[[Call], bool] = lambda call: True
    go_on: threading.Event = field(default_factory=threading.Event)
    """What is hanging goes on."""
    met: threading.Event = field(default_factory=threading.Event)
    """Somebody has met it."""


class StandIn:
    """The proxy and what it has seen."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.client: Any = None
        """Of whoever tests: kept here from test to test."""
        self.faults: list[Fault] = []
        self.done: list[Call] = []
        """Calls that were answered with success."""
        self.lock = threading.Lock()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def do(self) -> None:
                stand_in.answer(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do

            def log_message(self, *words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.clear()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
        if self.client is not None:
            self.client.close()

    def clear(self) -> None:
        """No faults any more, and nothing seen."""
        with self.lock:
            for fault in self.faults:
                fault.go_on.set()
            self.faults.clear()
            self.done.clear()

    def fault(self, what: str, operation: str, times: int = 1, **more: Any) -> Fault:
        made = Fault(what, operation, times, **more)
        with self.lock:
            self.faults.append(made)
        return made

    def count(self, operation: str) -> int:
        with self.lock:
            return Counter(call.operation for call in self.done)[operation]

    def parts(self) -> list[int]:
        """Numbers of parts that have arrived, in order of arrival."""
        with self.lock:
            return [call.part for call in self.done if call.operation == "UploadPart"]

    def answer(self, request: Any) -> None:
        call = _call(request)
        fault = self._meets(call)
        what = fault.what if fault else ""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0) // (2 if what == "cut" else 1))
        if what == "cut":
            request.connection.close()
            request.close_connection = True
            return
        if what == "hang":
            assert fault is not None
            fault.go_on.wait(60)
        if what[:3].isdigit():
            self._complain(request, int(what[:3]), what[4:])
            return
        if what == "corrupt" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        told = request.headers.get("x-amz-checksum-sha256")
        if told and body and base64.b64encode(hashlib.sha256(body).digest()).decode() != told:
            self._complain(request, 400, "BadDigest")
            return
        status, headers, answer = self._forward(request, body)
        if status == 500 and call.operation in ("UploadPart", "CompleteMultipartUpload", "ListParts"):
            self._complain(request, 404, "NoSuchUpload")
            return
        if what == "corrupt" and answer:
            answer = bytes([answer[0] ^ 1]) + answer[1:]
        if status < 300:
            with self.lock:
                self.done.append(call)
        request.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                request.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), str(len(answer)))
        request.send_header("Content-Length", length if request.command == "HEAD" else str(len(answer)))
        request.end_headers()
        if what == "truncate":
            request.wfile.write(answer[: len(answer) // 2])
            request.wfile.flush()
            request.connection.close()
            request.close_connection = True
            return
        request.wfile.write(answer)

    def _meets(self, call: Call) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.operation == call.operation and fault.meets(call):
                    fault.times -= 1
                    fault.met.set()
                    return fault
        return None

    def _forward(self, request: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        to = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() != "expect"}
            to.request(request.command, request.path, body=body or None, headers=headers)
            came = to.getresponse()
            return came.status, came.getheaders(), came.read()
        finally:
            to.close()

    def _complain(self, request: Any, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>said so</Message></Error>".encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/xml")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(text)


def _call(request: Any) -> Call:
    told = urlsplit(request.path)
    query = parse_qs(told.query, keep_blank_values=True)
    key = told.path.lstrip("/").partition("/")[2]
    part = int(query.get("partNumber", ["0"])[0])
    names = {
        ("PUT", True): "UploadPart" if part else "PutObject", ("PUT", False): "PutObject",
        ("POST", True): "CompleteMultipartUpload", ("POST", False): "CreateMultipartUpload",
        ("GET", True): "ListParts", ("HEAD", False): "HeadObject", ("DELETE", True): "AbortMultipartUpload",
        ("GET", False): "GetObject" if key else "ListMultipartUploads" if "uploads" in query else "ListObjectsV2",
    }  # fmt: skip
    return Call(
        operation=names.get((request.command, "uploadId" in query), "?"), key=key, part=part,
        range=request.headers.get("Range") or "",
    )  # fmt: skip


@contextlib.contextmanager
def running() -> Iterator[StandIn]:
    """A stand-in with an empty bucket."""
    import boto3
    from moto.s3 import models
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    smallest, models.S3_UPLOAD_PART_MIN_SIZE = models.S3_UPLOAD_PART_MIN_SIZE, 1
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", aws_access_key_id="id",
        aws_secret_access_key="secret",
    )  # fmt: skip
    client.create_bucket(Bucket=BUCKET)
    stand_in = StandIn(port)
    try:
        yield stand_in
    finally:
        stand_in.stop()
        client.close()
        server.stop()
        models.S3_UPLOAD_PART_MIN_SIZE = smallest
