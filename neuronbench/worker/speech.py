"""Sound for models of speech, made from a seed: shaped like speech, said by nobody.

Each word is a voiced burst: harmonics of a gliding pitch under two resonances that its letters decide, with a pause
behind it. The transcript is known, as that of a recording would be, but nobody could make the words out: a clip is fit
for timing, and says so (`intelligible`). No word error rate may be taken from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy.typing as npt

SAMPLE_RATE: Final = 16_000
WORDS: Final = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "north", "south", "east", "west", "open",
    "close", "left", "right", "start", "stop",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Sound and what is said in it."""

    samples: npt.NDArray[Any]
    """float32 from −1 to 1, at `SAMPLE_RATE`."""
    transcript: str
    intelligible: bool
    """Whether a listener would write down the transcript: of synthesised clips, False."""

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE


def synthesise(samples: int, seed: int = 0) -> Clip:
    """A clip of exactly so many samples, full of words to its end; the same for the same seed."""
    import numpy as np

    draw = np.random.Generator(np.random.PCG64([seed, SAMPLE_RATE]))
    sound = 0.002 * draw.standard_normal(samples)  # a room is never silent
    said: list[str] = []
    at = 0
    while at < samples:
        word = WORDS[int(draw.integers(len(WORDS)))]
        burst = _word(word, pitch_hz=float(draw.uniform(95, 220)), seconds=0.09 * len(word) + 0.1)
        kept = burst[: samples - at]
        sound[at : at + len(kept)] += kept
        if len(kept) == len(burst):
            said.append(word)
        at += len(burst) + int(draw.uniform(0.05, 0.3) * SAMPLE_RATE)
    peak = float(np.abs(sound).max(initial=0.0)) or 1.0
    return Clip(samples=(0.9 * sound / peak).astype("float32"), transcript=" ".join(said), intelligible=False)


def clips(rows: int, samples: int, seed: int = 0) -> list[Clip]:
    """One clip per row of a batch, all different."""
    return [synthesise(samples, seed * 10_000 + row) for row in range(rows)]


def _word(word: str, pitch_hz: float, seconds: float) -> npt.NDArray[Any]:
    import numpy as np

    time_s = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    phase = 2 * np.pi * pitch_hz * (time_s - 0.1 * time_s**2 / seconds)
    letters = [ord(letter) - ord("a") for letter in word]
    first_hz, second_hz = 300 + 25 * letters[len(letters) // 2], 900 + 60 * letters[-1]
    sound = np.zeros_like(time_s)
    for harmonic in range(1, int(4000 / pitch_hz)):
        hz = harmonic * pitch_hz
        weight = 1 / (1 + ((hz - first_hz) / 120) ** 2) + 0.5 / (1 + ((hz - second_hz) / 180) ** 2)
        sound += weight * np.sin(harmonic * phase)
    return sound * np.sin(np.pi * np.arange(len(sound)) / len(sound)) ** 0.5
