"""Samples in memory: from the spill or from `telemetry.parquet`, and what a window of them says."""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

_FAR: Final = 0.25
"""A delta whose samples lie further from an edge than this share of the window says nothing about the window."""


@dataclass(frozen=True, kw_only=True)
class SamplerErrors:
    """What went wrong in a sampler. Its samples are null where it failed."""

    count: int
    last: str = ""


@dataclass(frozen=True, kw_only=True)
class Delta:
    """How far a counter went between two of its samples."""

    value: float | None
    """None when there is no such pair of samples, or the counter was reset in between; `note` says which."""
    start_off_ns: int = 0
    """Instant of the first sample − start of the window: negative when it was taken before."""
    end_off_ns: int = 0
    """Instant of the last sample − end of the window."""
    note: str = ""


@dataclass(frozen=True)
class Series:
    """Non-null samples of one series, in order of time."""

    mono_ns: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


class Telemetry:
    """All samples of a recording. Series are addressed as `sampler/series`, instants are monotonic nanoseconds."""

    def __init__(self) -> None:
        self.table: Path | None = None
        """`telemetry.parquet`; None when it could not be written."""
        self.problem: str = ""
        """Why samples are missing, for people; empty when all went well."""
        self.errors: dict[str, SamplerErrors] = {}
        """Samplers that failed at least once."""
        self._names: list[str] = []
        self._codes: dict[str, int] = {}
        # columns, one entry per row
        self._wall_ns, self._mono_ns = array("q"), array("q")
        self._code, self._value = array("i"), array("d")
        self._series: dict[str, Series] | None = None
        self._since: dict[str, int] = {}

    # -- filling

    def add(self, wall_ns: int, mono_ns: int, sampler: str, values: Mapping[str, float | None]) -> None:
        """One sample; `wall_ns` 0 where the source of the samples tells no time of day."""
        self._series = None
        for series, value in values.items():
            name = f"{sampler}/{series}"
            code = self._codes.get(name)
            if code is None:
                code = self._codes[name] = len(self._names)
                self._names.append(name)
            self._wall_ns.append(wall_ns)
            self._mono_ns.append(mono_ns)
            self._code.append(code)
            self._value.append(math.nan if value is None else value)

    # -- reading

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._code)

    def series(self) -> list[str]:
        """Names of all series that have at least one value, sorted."""
        return sorted(self._index())

    def get(self, name: str) -> Series:
        """The values of a series; empty when it has none."""
        return self._index().get(name) or Series()

    def since(self, sampler: str) -> int | None:
        """Instant of the first sample of `sampler` that gave any value."""
        self._index()
        return self._since.get(sampler)

    def window(self, start_ns: int, end_ns: int) -> Window:
        """The samples between two instants, both included."""
        return Window(self, start_ns, end_ns)

    def counter_delta(self, name: str, start_ns: int, end_ns: int) -> Delta:
        """How far a counter went in a window, from the samples nearest to its edges, on either side of them.

        Series of one sampler share their instants, so ratios of two deltas rest on the same stretch of time.
        """
        series = self.get(name)
        times = series.mono_ns
        if not times:
            return Delta(value=None, note="not reported")
        first, last = _nearest(times, start_ns), _nearest(times, end_ns)
        start_off_ns, end_off_ns = times[first] - start_ns, times[last] - end_ns
        limit_ns = _FAR * (end_ns - start_ns)
        if first == last:
            delta = Delta(value=None, note="no two samples of it around the window")
        elif abs(start_off_ns) > limit_ns:
            delta = Delta(value=None, note=f"no sample of it within {limit_ns / 1e9:.2f} s of the window's start")
        elif abs(end_off_ns) > limit_ns:
            delta = Delta(value=None, note=f"no sample of it within {limit_ns / 1e9:.2f} s of the window's end")
        else:
            delta = self._difference(name, series, first, last)
        return replace(delta, start_off_ns=start_off_ns, end_off_ns=end_off_ns)

    def first_last_delta(self, name: str) -> Delta:
        """How far a counter went over the whole recording."""
        series = self.get(name)
        if len(series.mono_ns) < 2:
            return Delta(value=None, note="no two samples of it" if series.mono_ns else "not reported")
        return self._difference(name, series, 0, len(series.mono_ns) - 1)

    def _difference(self, name: str, series: Series, first: int, last: int) -> Delta:
        if first == 0 and series.mono_ns[0] > self._since[name.partition("/")[0]]:
            return Delta(value=None, note="it was not reported at first, so it has no known start")
        values = series.values
        if any(values[i + 1] < values[i] for i in range(first, last)):
            return Delta(value=None, note="the counter was reset in between (the server restarted?)")
        return Delta(value=values[last] - values[first])

    def _index(self) -> dict[str, Series]:
        if self._series is None:
            index: dict[str, Series] = {}
            since: dict[str, int] = {}
            for mono_ns, code, value in sorted(zip(self._mono_ns, self._code, self._value, strict=True)):
                if math.isnan(value):
                    continue
                name = self._names[code]
                series = index.setdefault(name, Series())
                series.mono_ns.append(mono_ns)
                series.values.append(value)
                since.setdefault(name.partition("/")[0], mono_ns)
            self._series, self._since = index, since
        return self._series

    # -- files

    def write(self, path: Path) -> None:
        """Write the table: `utc` (null where unknown), `mono_ns`, `sampler`, `series`, `value` (null where missing), in
        order of arrival."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        def numbers(column: array[Any], kind: str) -> Any:
            return np.array(column, dtype=kind)  # a copy: the columns can still grow

        def words(part: int) -> Any:
            names = pa.array([name.partition("/")[part] for name in self._names], pa.string())
            return pa.DictionaryArray.from_arrays(pa.array(numbers(self._code, "int32")), names).cast(pa.string())

        wall_ns = numbers(self._wall_ns, "int64")
        table = pa.table(
            {
                "utc": pa.array(wall_ns, pa.int64(), mask=wall_ns == 0).cast(pa.timestamp("ns", tz="UTC")),
                "mono_ns": pa.array(numbers(self._mono_ns, "int64"), pa.int64()),
                "sampler": words(0),
                "series": words(2),
                "value": pa.array(numbers(self._value, "float64"), pa.float64(), from_pandas=True),
            }
        )
        pq.write_table(table, path, compression="zstd")
        self.table = path

    @classmethod
    def read(cls, path: Path) -> Telemetry:
        """Read `telemetry.parquet` again."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        telemetry = cls()
        table = pq.read_table(path)
        columns = [table["utc"].cast(pa.int64()), *(table[name] for name in ("mono_ns", "sampler", "series", "value"))]
        for wall_ns, mono_ns, sampler, series, value in zip(*(column.to_pylist() for column in columns), strict=True):
            telemetry.add(wall_ns or 0, mono_ns, sampler, {series: value})
        telemetry.table = path
        return telemetry

    @classmethod
    def read_spill(cls, path: Path) -> tuple[Telemetry, str]:
        """Read what the telemetry process wrote, and why it ended: empty when it was killed.

        A line that was cut off by a kill is left out. Raises `FileNotFoundError` when it never got to write.
        """
        telemetry, end = cls(), ""
        counts: dict[str, int] = {}
        texts: dict[str, str] = {}
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    break  # only the last line can be cut off
                if isinstance(row, list):
                    telemetry.add(*row)
                elif "error" in row:
                    texts[row["sampler"]] = row["error"]
                    counts[row["sampler"]] = counts.get(row["sampler"], 0) + 1
                else:
                    end = row["end"]
        for sampler, text in texts.items():
            accounted = telemetry.get(f"telemetry/errors/{sampler}").values
            count = max(counts[sampler], int(accounted[-1]) if accounted else 0)
            telemetry.errors[sampler] = SamplerErrors(count=count, last=text)
        return telemetry, end


class Window:
    """Samples between two instants. Every figure is None when there is none: a missing value is never 0."""

    def __init__(self, telemetry: Telemetry, start_ns: int, end_ns: int) -> None:
        self.telemetry, self.start_ns, self.end_ns = telemetry, start_ns, end_ns

    def values(self, name: str) -> list[float]:
        series = self.telemetry.get(name)
        first, last = bisect_left(series.mono_ns, self.start_ns), bisect_right(series.mono_ns, self.end_ns)
        return list(series.values[first:last])

    def n(self, name: str) -> int:
        return len(self.values(name))

    def mean(self, name: str) -> float | None:
        return self._of(name, lambda values: math.fsum(values) / len(values))

    def max(self, name: str) -> float | None:
        return self._of(name, max)

    def min(self, name: str) -> float | None:
        return self._of(name, min)

    def p95(self, name: str) -> float | None:
        """Nearest rank: the ⌈0.95 n⌉-th smallest."""
        return self._of(name, lambda values: sorted(values)[-(-95 * len(values) // 100) - 1])

    def counter_delta(self, name: str) -> Delta:
        """See `Telemetry.counter_delta`."""
        return self.telemetry.counter_delta(name, self.start_ns, self.end_ns)

    def _of(self, name: str, figure: Callable[[list[float]], float]) -> float | None:
        values = self.values(name)
        return figure(values) if values else None


def _nearest(times: array[int], instant_ns: int) -> int:
    """Index of the sample that is nearest to an instant."""
    after = bisect_left(times, instant_ns)
    if after == len(times) or (after > 0 and instant_ns - times[after - 1] <= times[after] - instant_ns):
        return after - 1
    return after
