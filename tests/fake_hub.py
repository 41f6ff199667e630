"""A hub on loopback that speaks as much of the protocol as `huggingface_hub` needs; standard library only."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"
RESOLVED = (f"/org/name/resolve/{SHA}/", "/org/name/resolve/main/")


class FakeHub:
    """Serves `files` as the repository `org/name`; `refuse` (status, code) answers everything else than that."""

    def __init__(self, files: dict[str, bytes], *, refuse: tuple[int, str] | None = None) -> None:
        self.files, self.refuse = files, refuse
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def answer(self) -> None:
                path = urlsplit(self.path).path
                hub.asked.append(path)
                if hub.refuse:
                    self.send(hub.refuse[0], b"{}", {"X-Error-Code": hub.refuse[1], "X-Error-Message": hub.refuse[1]})
                elif path.startswith("/api/models/org/name/tree/"):
                    tree = [
                        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                        for name, data in hub.files.items()
                    ]
                    self.send(200, json.dumps(tree).encode(), {})
                elif path.startswith("/api/models/org/name"):
                    names = [{"rfilename": name} for name in hub.files]
                    self.send(200, json.dumps({"id": "org/name", "sha": SHA, "siblings": names}).encode(), {})
                elif path.startswith(RESOLVED) and path.split("/", 5)[5] in hub.files:
                    data = hub.files[path.split("/", 5)[5]]
                    etag = f'"{hashlib.sha1(data).hexdigest()}"'
                    self.send(200, data, {"ETag": etag, "X-Repo-Commit": SHA})
                else:
                    self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

            def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
