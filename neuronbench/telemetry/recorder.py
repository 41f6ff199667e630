"""The harness's side of telemetry: start the process, stop it, have the table.

Telemetry that fails never fails a benchmark: what went wrong is `Telemetry.problem`, and the gate on telemetry marks
the numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from neuronbench.model import jsonable
from neuronbench.protocols import SamplerSpec
from neuronbench.telemetry.live import Live
from neuronbench.telemetry.table import Delta, SamplerErrors, Series, Telemetry, Window

__all__ = ["Delta", "Recorder", "SamplerErrors", "Series", "Telemetry", "Window"]

TABLE: Final = "telemetry.parquet"
STOP_S: Final = 6.0
"""How long the process may take for its last samples; it gives up on those by itself before."""


class Recorder:
    """A running telemetry process. Made by `start`; `stop` ends it and reads what it wrote."""

    def __init__(self, folder: Path, samplers: Sequence[SamplerSpec] = ()) -> None:
        self.problem = ""
        self._folder = folder
        self._spill, self._log = folder / "telemetry.spill", folder / "telemetry.log"
        self.live = Live(self._spill, samplers)
        """What it says at this moment."""
        self._process: Any = None
        self._result: Telemetry | None = None

    @classmethod
    def start(
        cls,
        samplers: Sequence[SamplerSpec],
        folder: Path,
        spawn: Callable[..., Any],
        deadline_s: float = 10.0,
    ) -> Self:
        """Start sampling and return once each sampler has taken its first sample.

        The table will be `folder/telemetry.parquet`. `spawn` is `neuronbench.processes.spawn` or a partial of it.
        A process that does not start, or is not ready within `deadline_s`, is a `problem` and not an exception. Raises
        `ValueError` for samplers that share a name and `TypeError` for options that are not JSON.
        """
        names = [sampler.name for sampler in samplers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two samplers are called {name!r}; a name says which sampler a series is from")
            if not name or "/" in name:
                raise ValueError(f"a sampler's name is not empty and has no '/'; found {name!r}")
        recorder = cls(folder, samplers)
        config = {"spill": str(recorder._spill.resolve()), "samplers": jsonable(list(samplers))}
        recorder._begin(config, spawn, deadline_s)
        return recorder

    def stop(self) -> Telemetry:
        """Take the last samples, end the process and write the table. Idempotent; never raises for dead telemetry."""
        if self._result is None:
            returncode = self._end()
            self._result = self._collect(returncode)
        return self._result

    # -- parts

    def _begin(self, config: dict[str, Any], spawn: Callable[..., Any], deadline_s: float) -> None:
        # Not beside the receipt: options may hold a key. mkdtemp gives a folder that only we can read.
        private = Path(tempfile.mkdtemp(prefix="neuronbench-"))
        try:
            path = private / "telemetry.json"
            path.write_text(json.dumps(config), encoding="utf-8")
            self._process = spawn(
                [sys.executable, "-m", "neuronbench.telemetry.process", str(path)],
                name="telemetry",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
                log=self._log,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._await_ready(time.monotonic() + deadline_s, deadline_s)
        except (OSError, RuntimeError) as error:
            self.problem = f"the telemetry process could not be started: {error}"
        except BaseException:
            if self._process is not None:
                self._process.terminate(0.0)
            raise
        finally:
            shutil.rmtree(private, ignore_errors=True)

    def _await_ready(self, deadline: float, deadline_s: float) -> None:
        said = b""
        fd = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while b"ready\n" not in said:
            if not poll.poll(max(0.0, (deadline - time.monotonic()) * 1e3)):
                self.problem = f"telemetry was not ready within {deadline_s:g} s"
                return
            data = os.read(fd, 4096)
            if not data:
                self.problem = f"the telemetry process ended before it was ready{self._last_words()}"
                return
            said += data

    def _end(self) -> int | None:
        """End the process in order, or else; its exit status."""
        process = self._process
        if process is None:
            return None
        with contextlib.suppress(OSError):  # it is dead already
            process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._note(f"the telemetry process did not end within {STOP_S:g} s and was killed")
        try:
            process.terminate(0.5)
        except RuntimeError as error:  # something hangs in the kernel: what was written can be read all the same
            self._note(str(error))
        status: int | None = process.returncode
        return status

    def _collect(self, returncode: int | None) -> Telemetry:
        try:
            telemetry, end = Telemetry.read_spill(self._spill)
        except FileNotFoundError:
            telemetry, end = Telemetry(), ""
        if not end:
            self._note(f"the telemetry process ended early (exit status {returncode}){self._last_words()}")
        for sampler, errors in telemetry.errors.items():
            self._note(f"sampler {sampler!r} failed {errors.count} times, last: {errors.last}")
        if len(telemetry):
            try:
                telemetry.write(self._folder / TABLE)
                self._spill.unlink()
            except OSError as error:
                self._note(f"{TABLE} could not be written ({error}); the samples are in {self._spill}")
        if self._log.exists() and not self._log.stat().st_size:
            self._log.unlink()
        telemetry.problem = self.problem
        return telemetry

    def _note(self, text: str) -> None:
        self.problem = f"{self.problem}; {text}" if self.problem else text

    def _last_words(self) -> str:
        """The last line of its log."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f": {lines[-1]}" if lines else ""


def _import_path() -> list[str]:
    """What this interpreter can import, the telemetry process can: a sampler may live in a project's own folder."""
    return [os.path.abspath(entry) for entry in sys.path if not entry.endswith(".zip")]
