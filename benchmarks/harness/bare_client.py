"""The least a client can do: an `asyncio.Protocol` per stream that stamps, counts events, and asks again.

    python bare_client.py HOST PORT '{"streams": 64, "requests": 640, "tokens": 64, "model": "truth:ttft=50"}'

With `rate` requests go out at absolute instants instead. Prints JSON: TTFT and send lag per request (ms), CPU seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import time

with contextlib.suppress(ImportError):
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

now = time.monotonic_ns


class Stream(asyncio.Protocol):
    """One connection; `run.next_body()` says what it sends, or None."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.run.idle.append(self)

    def send(self, name: str, due: int = 0) -> None:
        self.name, self.first, self.tail = name, 0, b""
        request = self.run.request(name)
        self.sent = now()
        self.due = due or self.sent
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        at = now()
        if not self.first and b'"text"' in data:
            self.first = at
        self.tail = (self.tail + data)[-5:]
        if self.first and self.tail == b"0\r\n\r\n":  # headers may end like that, too
            self.run.ended(self)


class Run:
    """All streams of one run."""

    def __init__(self, options: dict) -> None:
        self.options, self.count = options, 0
        self.idle: list[Stream] = []
        self.results: list[tuple[str, int, int, int]] = []
        self.done = asyncio.get_running_loop().create_future()

    def request(self, name: str) -> bytes:
        body = json.dumps(
            {
                "model": name,
                "prompt": [7] * 16,
                "max_tokens": self.options["tokens"],
                "stream": True,
                "ignore_eos": True,
            }
        ).encode()
        return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    def name(self) -> str:
        self.count += 1
        return f"{self.options['model']}{self.count:08d}"

    def ended(self, stream: Stream) -> None:
        self.results.append((stream.name, stream.due, stream.sent, stream.first))
        if len(self.results) == self.options["requests"]:
            self.done.set_result(None)
        elif "rate" in self.options:
            self.idle.append(stream)
        elif self.count < self.options["requests"]:
            stream.send(self.name())

    async def go(self, host: str, port: int) -> dict:
        loop = asyncio.get_running_loop()
        for _ in range(self.options["streams"]):
            await loop.create_connection(lambda: Stream(self), host, port)
        gc.freeze()
        gc.disable()
        cpu = os.times()
        if "rate" in self.options:
            await self.schedule(loop)
        else:
            for stream in [self.idle.pop() for _ in range(min(len(self.idle), self.options["requests"]))]:
                stream.send(self.name())
        await self.done
        return {
            "names": [name for name, *_ in self.results],
            "ttft_ms": [(first - sent) / 1e6 for _, _, sent, first in self.results],
            "sent_ns": [sent for _, _, sent, _ in self.results],
            "lag_ms": [(sent - due) / 1e6 for _, due, sent, _ in self.results],
            "user_s": os.times().user - cpu.user,
            "system_s": os.times().system - cpu.system,
        }

    async def schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        start, zero = now() + 50_000_000, loop.time() - now() / 1e9
        for index in range(self.options["requests"]):
            due = start + round(index * 1e9 / self.options["rate"])
            loop.call_at(due / 1e9 + zero, lambda due=due: self.idle.pop().send(self.name(), due))


async def main() -> None:
    host, port, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    print(json.dumps(await Run(options).go(host, port)))


if __name__ == "__main__":
    asyncio.run(main())
