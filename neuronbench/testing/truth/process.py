"""A truth server in a process of its own, for tests and calibrations."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from neuronbench.testing.truth.settings import Settings


class TruthServer:
    """Runs a truth server while the `with` block lasts; keyword arguments are those of `Settings`.

        with TruthServer(ttft_ms=50, tpot_ms=10, max_concurrency=8) as server:
            measure(server.url)
            records = server.truth()["requests"]

    It is a separate process under this interpreter, so that its work does not run inside the client's. It ends when
    the block does, and by itself when this process dies, however it dies.
    Raises RuntimeError when it does not listen within `deadline_s`.
    """

    def __init__(self, *, deadline_s: float = 20.0, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.url = ""
        self.pid = 0
        self._deadline_s = deadline_s
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> TruthServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process and wait until it listens."""
        if self._process is not None:
            raise RuntimeError("this truth server has been started already; make another one")
        command = [sys.executable, "-m", "neuronbench.testing.truth_server", *arguments(self.settings)]
        command += ["--with-parent", str(os.getpid())]
        # The child finds the same neuronbench, also when it is not installed.
        root = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        line = self._ready_line()
        try:
            ready = json.loads(line)
        except ValueError:
            self.stop()
            raise RuntimeError(
                f"the truth server did not start within {self._deadline_s:g} s (exit status {self.returncode}); "
                f"expected a JSON line, found {line!r}. Try: {' '.join(command)}"
            ) from None
        self.url, self.pid = ready["url"], ready["pid"]

    def _ready_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + self._deadline_s
        while (left := deadline - time.monotonic()) > 0:
            # The line comes in one write, so that readable means readline does not block.
            if select.select([self._process.stdout], [], [], left)[0]:
                return self._process.stdout.readline()
        return ""

    def stop(self) -> int | None:
        """End the process (SIGTERM, after five seconds SIGKILL) and return its exit status."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        if process.stdout is not None:
            process.stdout.close()
        return process.returncode

    @property
    def returncode(self) -> int | None:
        """Exit status of the process; None while it runs or before it did."""
        return self._process.poll() if self._process is not None else None

    def truth(self, *, chunks: bool = True, records: bool = True) -> dict[str, Any]:
        """What the server did: `summary` (its own lateness, outcomes), `frozen_ns`, and `requests`, one per request."""
        data: dict[str, Any] = json.loads(self._get(f"/truth?chunks={int(chunks)}&records={int(records)}"))
        return data

    def reset(self) -> None:
        """Forget all records, and what scenarios count. The Prometheus counters go on."""
        with urllib.request.urlopen(urllib.request.Request(self.url + "/truth/reset", method="POST"), timeout=30):
            pass

    def metrics(self) -> str:
        """The text of /metrics."""
        return self._get("/metrics")

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            text: str = response.read().decode()
        return text


def arguments(settings: Settings) -> list[str]:
    """The command line that gives these settings; those at their defaults are left out."""
    words: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value == field.default:
            continue
        flag = "--" + field.name.replace("_", "-")
        if field.name == "models":
            words += [word for name in value for word in ("--model", name)]
        elif isinstance(value, bool):
            words.append(flag)
        else:
            words += [flag, str(value)]
    return words
