"""What happened in equal bins of the window: the series on which steadiness is judged."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

LEAST_BIN_NS: Final = 250_000_000
MOST_BINS: Final = 400


class BinnedSeries:
    """Tokens per bin, and requests in flight at the middle of each."""

    def __init__(self, opened: int, closed: int) -> None:
        self.opened = opened
        self.bins = int(min(max((closed - opened) // LEAST_BIN_NS, 1), MOST_BINS))
        self.width = (closed - opened) / self.bins
        self.tokens = np.zeros(self.bins)
        self._begun = np.zeros(self.bins + 1, dtype=np.int64)
        self._ended = np.zeros(self.bins + 1, dtype=np.int64)

    def _bin(self, at: npt.NDArray[Any], offset: float = 0.0) -> npt.NDArray[np.int64]:
        """Bin of each instant; before the window 0, after it one more than there are."""
        index = np.floor((at - self.opened) / self.width + offset)
        clipped: npt.NDArray[np.int64] = np.clip(index, 0, self.bins).astype(np.int64)
        return clipped

    def add_tokens(self, at: npt.NDArray[Any], weights: npt.NDArray[Any]) -> None:
        """Tokens emitted at instants inside the window."""
        index = np.minimum(self._bin(at), self.bins - 1)
        self.tokens += np.bincount(index, weights=weights, minlength=self.bins)

    def add_intervals(self, start: npt.NDArray[Any], end: npt.NDArray[Any]) -> None:
        """Requests in flight from `start` to `end`."""
        self._begun += np.bincount(self._bin(start, 0.5), minlength=self.bins + 1)
        self._ended += np.bincount(self._bin(end, 0.5), minlength=self.bins + 1)

    @property
    def in_flight(self) -> npt.NDArray[np.int64]:
        flying: npt.NDArray[np.int64] = np.cumsum(self._begun - self._ended)[: self.bins]
        return flying
