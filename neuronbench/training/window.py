"""The steps that rates are of, and what lay between them: several ranks' logs on one axis of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy.typing as npt

    from neuronbench.training.steps import Steps


NO_STEP: Final = "no step after the first: the first has compilation and loading in it and is in no rate"


@dataclass(frozen=True, kw_only=True)
class Window:
    """The steps that rates are of: all after the first of this attempt, up to the last with a finite loss."""

    numbers: npt.NDArray[Any]
    """Step numbers."""
    barrier_ns: npt.NDArray[Any]
    """Begin → end of each step, of the slowest rank."""
    tokens: npt.NDArray[Any]
    """Non-padding, of all distinct data shards."""
    padding: npt.NDArray[Any]
    wall_ns: int
    """From the end of the first step to the end of training, without what was taken out. 0 without a step."""
    taken_out_ns: int
    """Checkpoints and evaluations, wherever they fell."""
    taken_out: int
    unclocked: int
    """Evaluations whose instants were not logged: the whole gap between the steps around them is taken out."""
    tail_ns: tuple[int, int] | None
    """Of the steps after the last thing taken out: by their timers, and by the wall to the device's last word. None
    without such a thing, and below two steps."""
    skew_ns: npt.NDArray[Any]
    """From the first rank's end of a step to the last's."""

    @property
    def steps(self) -> int:
        return len(self.numbers)


def window_of(run: Steps) -> Window:
    """The window of `run`; see `Window`. Ranks of one data shard count their tokens once."""
    import numpy as np

    last = math.inf if run.first_bad is None else run.first_bad - 1
    numbers = np.array(run.numbers, dtype=np.int64)
    kept = np.flatnonzero(numbers <= last)[1:]
    begins = np.array([run.column("begin_ns", rank) for rank in run.shards])
    ends = np.array([run.column("end_ns", rank) for rank in run.shards])
    spans, unclocked = _spans(run, numbers, begins, ends)
    inside = np.array([[covered(spans, int(b), int(e)) for b, e in zip(*row, strict=True)]
                       for row in zip(begins, ends, strict=True)], dtype=np.int64).reshape(begins.shape)  # fmt: skip
    tokens = np.sum([run.column("tokens", rank) for rank in one_of_each(run)], axis=0)
    padding = np.sum([run.column("padding_tokens", rank) for rank in one_of_each(run)], axis=0)
    begin = end = 0
    whole = False
    if len(kept):
        begin = int(ends.max(axis=0)[kept[0] - 1])
        whole = run.first_bad is None and all(log.end is not None for log in run.ranks)
        last_words = [int(log.end["train_end_ns"]) for log in run.ranks if log.end]
        end = max(last_words) if whole else int(ends[:, kept[-1]].max())
    out = covered(spans, begin, end)
    barrier_ns = (ends - begins - inside).max(axis=0)
    since = max((after for _, after in spans if begin < after <= end), default=None)
    tail = kept[:0] if since is None or not whole else kept[begins.min(axis=0)[kept] >= since]
    return Window(
        numbers=numbers[kept], barrier_ns=barrier_ns[kept], tokens=tokens[kept],
        padding=padding[kept], wall_ns=end - begin - out, taken_out_ns=out,
        tail_ns=(int(barrier_ns[tail].sum()), end - int(since or 0)) if len(tail) >= 2 else None,
        taken_out=sum(1 for first, after in spans if after > begin and first < end),
        unclocked=sum(1 for number in unclocked if number in numbers[kept[:-1]] or number + 1 in numbers[kept]),
        skew_ns=(ends.max(axis=0) - ends.min(axis=0))[kept],
    )  # fmt: skip


def one_of_each(run: Steps) -> list[int]:
    """A rank of each distinct data shard."""
    return list({shard: rank for rank, shard in sorted(run.shards.items(), reverse=True)}.values())


def _spans(run: Steps, numbers: Any, begins: Any, ends: Any) -> tuple[list[tuple[int, int]], list[int]]:
    """When ranks did something else than steps: spans in order, apart from each other; and steps after which such a
    thing happened whose instants nobody logged."""
    spans, unclocked = [], []
    for log in run.ranks:
        for one in [*log.checkpoints, *log.evaluations, *log.restores]:
            if one.get("begin_ns") is not None and one.get("end_ns") is not None:
                spans.append((int(one["begin_ns"]), int(one["end_ns"])))
                continue
            (at,) = (numbers == one.get("step")).nonzero()
            if len(at) and at[0] + 1 < len(numbers):
                unclocked.append(int(numbers[at[0]]))
                spans.append((int(ends[:, at[0]].max()), int(begins[:, at[0] + 1].min())))
    apart: list[tuple[int, int]] = []
    for first, after in sorted(span for span in spans if span[1] > span[0]):
        if apart and first <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], after))
        else:
            apart.append((first, after))
    return apart, sorted({*unclocked})


def covered(spans: Sequence[tuple[int, int]], begin: int, end: int) -> int:
    """How much of `begin` to `end` lies in `spans`, which do not overlap."""
    return sum(max(0, min(after, end) - max(first, begin)) for first, after in spans)
