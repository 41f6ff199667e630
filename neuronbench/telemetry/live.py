"""What telemetry says at this moment, for the line that is shown while a benchmark runs."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuronbench.protocols import SamplerSpec

TAIL_BYTES: Final = 1 << 16
"""How much of the end of the spill is read: some seconds of all samplers, in a fraction of a millisecond."""
_GIB: Final = 1 << 30


class Live:
    """Latest values of the series that their samplers want shown (`SamplerSpec.live`).

    Read from the end of the file that the telemetry process writes each second: asking costs that process nothing.
    """

    def __init__(self, spill: Path, samplers: Sequence[SamplerSpec]) -> None:
        self._spill = spill
        self._shown = {sampler.name: dict(sampler.live) for sampler in samplers if sampler.live}

    def words(self) -> str:
        """`server CPU 153 %  1.2 GiB  host CPU 81 %`; empty when there is nothing yet. A missing value is left out."""
        if not self._shown:
            return ""
        latest = self._latest()
        parts = []
        for sampler, shown in self._shown.items():
            values = latest.get(sampler, {})
            for series, label in shown.items():
                found = [
                    value for name, value in values.items() if name.partition("{")[0] == series and value is not None
                ]
                if found:
                    parts.append(f"{label} {_shown(series, found)}".strip())
        return "  ".join(parts)

    def after(self, text: str) -> str:
        """`text`, and behind it the words there are."""
        return "  ".join(filter(None, (text, self.words())))

    @contextlib.contextmanager
    def each_second(self, say: Callable[[str], None], what: str) -> Iterator[None]:
        """Say once a second for how long `what` has been going on, and the words there are, until the block ends.

        For loops that may not be asked how far they are: what runs in a worker is left alone until it is over.
        """
        over = threading.Event()
        begun = time.monotonic()

        def run() -> None:
            while not over.wait(1.0):
                say(self.after(f"{what} {time.monotonic() - begun:.0f} s"))

        thread = threading.Thread(target=run, name="live", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _latest(self) -> dict[str, Mapping[str, Any]]:
        """The last sample of each sampler that is in the tail of the spill."""
        try:
            with self._spill.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                lines = file.read().split(b"\n")
        except OSError:
            return {}
        found: dict[str, Mapping[str, Any]] = {}
        for line in reversed(lines[1:] if size > TAIL_BYTES else lines):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # its end is not written yet
            if isinstance(entry, list) and len(entry) == 4 and entry[2] not in found:
                found[entry[2]] = entry[3] or {}
                if len(found) > len(self._shown):
                    break
        return found


def _shown(series: str, values: Sequence[float]) -> str:
    """In the unit of the series' name; several (one per label) are counts that add up, or shares of which the largest
    counts."""
    if series.endswith("_percent"):
        return f"{max(values):.0f} %"
    if series.endswith("_perc"):  # vLLM's name for a share from 0 to 1
        return f"{100 * max(values):.0f} %"
    if series.endswith("_bytes"):
        return f"{sum(values) / _GIB:.1f} GiB"
    return f"{sum(values):g}"
