"""Run the steps of a set-up so that one sees what is going on, and why when it fails. Standard library only."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HEARTBEAT_S: Final = 20.0

_CANNOT_REACH: Final = "the package index cannot be reached; check the network, or pip's configuration"
_HINTS: Final = (
    ("No space left on device", "free some space: the CPU stack takes 4 GB, and as much again while it is made"),
    ("Temporary failure in name resolution", _CANNOT_REACH),
    ("Connection refused", _CANNOT_REACH),
    (
        "No matching distribution found",
        "a pin is not to be had for this Python or platform; try make PYTHON=python3.11",
    ),
    ("Failed building wheel", "a package had to be compiled and could not be; try make PYTHON=python3.11"),
)


class SetupError(Exception):
    """The set-up cannot go on. The text is complete: what was needed, what was found, what to do."""


class Reporter:
    """Numbered steps with their elapsed time: one line that moves on a terminal, heartbeat lines elsewhere."""

    def __init__(self, title: str, steps: int) -> None:
        self.title, self.steps, self.step = title, steps, 0
        self.terminal = sys.stdout.isatty()

    @contextmanager
    def doing(self, what: str) -> Iterator[Callable[[str], None]]:
        """Announce a step; the function it gives is called again and again while the step runs."""
        self.step += 1
        line = f"[{self.title} {self.step}/{self.steps}] {what}"
        started = said = time.monotonic()
        if not self.terminal:
            print(line, flush=True)

        def tick(detail: str = "") -> None:
            nonlocal said
            now = time.monotonic()
            if self.terminal:
                width = shutil.get_terminal_size().columns - 1
                print("\r\x1b[K" + f"{line} … {now - started:.0f} s {detail}"[:width], end="", flush=True)
            elif now - said >= HEARTBEAT_S:
                said = now
                print(f"    … {now - started:.0f} s {detail}".rstrip(), flush=True)

        tick()
        try:
            yield tick
        except BaseException:
            print(f"\r\x1b[K{line}: failed" if self.terminal else "    failed", flush=True)
            raise
        took = time.monotonic() - started
        print(f"\r\x1b[K{line}: {took:.1f} s" if self.terminal else f"    done in {took:.1f} s", flush=True)


def run(
    command: Sequence[str | Path],
    *,
    what: str,
    log: Path,
    cwd: Path,
    tick: Callable[[str], None],
    environ: dict[str, str] | None = None,
) -> None:
    """Run a command with its output in `log`; raise `SetupError` with the log's last lines when it fails."""
    with log.open("a", encoding="utf-8") as out:
        out.write(f"\n$ {shlex.join(map(str, command))}\n")
        out.flush()
        start = log.stat().st_size
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=cwd, env=environ)
        try:
            while (status := _wait(process, 0.5)) is None:
                tick(_newest_line(log, start))
        except BaseException:
            process.terminate()
            if _wait(process, 10) is None:
                process.kill()
                process.wait()
            raise
    if status:
        text = log.read_bytes()[start:].decode(errors="replace")
        tail = "\n".join("    | " + line for line in text.strip().splitlines()[-15:])
        hint = next((f"\n  do:     {hint}" for sign, hint in _HINTS if sign in text), "")
        raise SetupError(f"error: {what} failed with exit status {status}.\n{tail}\n  log:    {log}{hint}")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def _newest_line(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 400))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    told = [line for line in lines if line.startswith(("Collecting", "Installing", "Downloading"))]
    return f"({told[-1][:60]})" if told else ""
