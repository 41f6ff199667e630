"""What happened in equal bins of the window: the series on which steadiness and the spread of rates are judged."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

BINS: Final = 1200
"""Has many divisors: bins are joined into 10, 12, 15, 16, 20, ... equal parts of the window, whatever its length."""
MOST_PARTS: Final = 40
LEAST_PARTS: Final = 10
_THIRDS: Final = 3


class BinnedSeries:
    """Tokens and ends of requests per bin, requests in flight at the middle of each, and how long requests take."""

    def __init__(self, opened: int, closed: int) -> None:
        self.opened = opened
        self.width = (closed - opened) / BINS
        self.tokens = np.zeros(BINS)
        self.ended = np.zeros(BINS)
        self._begun = np.zeros(BINS + 1, dtype=np.int64)
        self._left = np.zeros(BINS + 1, dtype=np.int64)
        self._lives = np.zeros((_THIRDS, 2))

    def _bin(self, at: npt.NDArray[Any], offset: float = 0.0) -> npt.NDArray[np.int64]:
        """Bin of each instant; before the window 0, after it one more than there are."""
        index = np.floor((at - self.opened) / self.width + offset)
        clipped: npt.NDArray[np.int64] = np.clip(index, 0, BINS).astype(np.int64)
        return clipped

    def add_tokens(self, at: npt.NDArray[Any], weights: npt.NDArray[Any]) -> None:
        """Tokens emitted at instants inside the window."""
        index = np.minimum(self._bin(at), BINS - 1)
        self.tokens += np.bincount(index, weights=weights, minlength=BINS)

    def add_ends(self, at: npt.NDArray[Any]) -> None:
        """Successful requests that ended at instants inside the window."""
        index = np.minimum(self._bin(at), BINS - 1)
        self.ended += np.bincount(index, minlength=BINS)

    def add_intervals(self, start: npt.NDArray[Any], end: npt.NDArray[Any]) -> None:
        """Requests in flight from `start` to `end`."""
        self._begun += np.bincount(self._bin(start, 0.5), minlength=BINS + 1)
        self._left += np.bincount(self._bin(end, 0.5), minlength=BINS + 1)

    def add_lives(self, scheduled: npt.NDArray[Any], took_ms: npt.NDArray[Any]) -> None:
        """How long successful requests took that were scheduled inside the window; NaN are left out."""
        known = ~np.isnan(took_ms)
        third = np.minimum(self._bin(scheduled[known]) * _THIRDS // BINS, _THIRDS - 1)
        self._lives[:, 0] += np.bincount(third, weights=took_ms[known], minlength=_THIRDS)
        self._lives[:, 1] += np.bincount(third, minlength=_THIRDS)

    @property
    def in_flight(self) -> npt.NDArray[np.int64]:
        flying: npt.NDArray[np.int64] = np.cumsum(self._begun - self._left)[:BINS]
        return flying

    def lives(self, *, shortest: bool = False) -> float | None:
        """How many typical requests, one after the other, the window holds; None without a successful request.

        Typical is the mean over the window; with `shortest` that of its first or last third, whichever is less: in a
        queue that grows (or is worked off) requests take longer and longer, and only one end shows what one takes.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self._lives[:, 0] / self._lives[:, 1]
        total, count = self._lives.sum(axis=0)
        if not count:
            return None
        ends = [float(mean) for mean in (means[0], means[-1]) if np.isfinite(mean)]
        typical = min([*ends, float(total / count)]) if shortest else float(total / count)
        return self.width * BINS / 1e6 / typical if typical > 0 else float("inf")


def parts(wanted: float, most: int = MOST_PARTS) -> int | None:
    """The largest number of equal parts the bins can be joined into that is at most `wanted`; None when too few."""
    limit = min(wanted, most)
    found = [count for count in range(LEAST_PARTS, MOST_PARTS + 1) if BINS % count == 0 and count <= limit]
    return found[-1] if found else None


def joined(series: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
    """Means of `count` equal parts of a series."""
    means: npt.NDArray[np.float64] = np.asarray(series, dtype=np.float64).reshape(count, -1).mean(axis=1)
    return means
