"""Behaves like vLLM's server while it starts and answers; standard library only.

It writes a log that a real server wrote, line by line, then serves. What goes wrong is chosen by FAKE_VLLM:

    ok               nothing
    log:FILE         write FILE and exit with status 1
    hang             never listen
    silent           serve, write nothing to the log
    bind             fail to bind the way asyncio reports it
    empty | nul | garbage | no_usage | no_tokens    a first answer that is none
    error:STATUS     the first answer has that status
    slow             the first answer comes one byte a second
    chat             only chat exists
    other_name       serve under another name
    die_on_request   the process kills itself when asked to generate
    engine_dead      /health answers 503 once something was generated, and the process stays
    crash_later      the process logs a root cause and a wrapper, and exits, once something was generated
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DATA = Path(os.environ.get("FAKE_VLLM_DATA") or Path(__file__).parent.parent / "data" / "vllm")
MODE, _, DETAIL = os.environ.get("FAKE_VLLM", "ok").partition(":")
TEXTS = {"empty": "  \n", "nul": "Paris\0.", "garbage": "\ufffd\ufffd\ufffd\ufffd P"}


def write_log(name: str) -> None:
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        print(line, file=sys.stderr, flush=True)


def crash() -> None:
    print("(Worker pid=9) ERROR 11-30 02:00:00 [worker.py:1] Traceback (most recent call last):", file=sys.stderr)
    print(
        "(Worker pid=9) ERROR 11-30 02:00:00 [worker.py:1] OSError: [Errno 28] No space left on device", file=sys.stderr
    )
    print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr, flush=True)
    os._exit(1)


class Handler(BaseHTTPRequestHandler):
    generated = threading.Event()
    model = ""

    def log_message(self, *args: object) -> None:
        pass

    def reply(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if MODE == "slow" and self.command == "POST":
            for i in range(len(body)):
                self.wfile.write(body[i : i + 1])
                time.sleep(1.0)
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(503 if MODE == "engine_dead" and self.generated.is_set() else 200, {})
        elif self.path == "/v1/models":
            name = "someone-else" if MODE == "other_name" else self.model
            self.reply(200, {"object": "list", "data": [{"id": name, "max_model_len": 2048, "root": "/nowhere"}]})
        elif self.path == "/metrics":
            self.reply(200, {})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = self.path == "/v1/chat/completions"
        if MODE == "die_on_request":
            os.kill(os.getpid(), signal.SIGKILL)
        if MODE == "chat" and not chat:
            self.reply(404, {"detail": "Not Found"})
            return
        if MODE == "error":
            self.reply(int(DETAIL), {"error": {"message": "max_tokens=9 cannot be greater than max_model_len=8"}})
            return
        text = TEXTS.get(MODE, " Paris.")
        tokens = 0 if MODE == "no_tokens" else min(2, asked["max_tokens"])
        choice = {"message": {"content": text}} if chat else {"text": text}
        document = {"choices": [choice], "usage": {"completion_tokens": tokens}}
        if MODE == "no_usage":
            del document["usage"]
        self.reply(200, document)
        self.generated.set()
        if MODE == "crash_later":
            threading.Timer(0.2, crash).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    options, _ = parser.parse_known_args()
    if MODE == "log":
        write_log(DETAIL)
        raise SystemExit(1)
    if MODE == "bind":
        print("OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use",
              file=sys.stderr)  # fmt: skip
        raise SystemExit(1)
    if MODE != "silent":
        write_log("boot_ok.log")
    if MODE == "hang":
        time.sleep(3600)
    Handler.model = options.served_model_name
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
