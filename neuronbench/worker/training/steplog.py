"""The step log as a rank writes it, and the timer that cannot stop before the device has.

Standard library only: this runs in the stack, in the worker (`from nb_worker.training.steplog import ...`) and in each
rank of a distributed run. What a log must have to count as a result is said by `neuronbench.training.steps`, which
reads it.

    log, timer = StepLog(folder, rank), StepTimer(device.synchronize, name="torch.cpu: synchronous")
    log.start(world_size=1, barrier=timer.name, ...)
    for step in ...:
        timer.begin()
        loss = train(batch)                              # on some devices the call only queues the work
        timed = timer.finish(lambda: {"loss": loss.item()})
        log.step(step, timed, learning_rate=..., tokens=...)
    log.end(timer.total(), steps=..., reason="done")
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

REASONS = ("done", "non_finite", "stopped")
NO_NUMBERS = "NEURONBENCH_NO_NUMBERS"
"""Where this variable is set no step log can be begun: the process computes nothing (it collects graphs), and whatever
it would log is no result."""


class Timed(NamedTuple):
    """Instants of the monotonic clock around a step, and what was brought to the host before the last of them."""

    begin_ns: int
    returned_ns: int
    """The calls of the step had come back: where a timer without a barrier stops."""
    end_ns: int
    """The device had finished and the step's values were on the host."""
    values: Mapping[str, Any] = {}


class StepTimer:
    """Times steps of a device. The only way to an end leads through the device's barrier and the step's values.

    `barrier` returns when the device has finished all that was given to it; on a device whose calls are done when they
    return, it is a function that does nothing, and `name` says so. There is no default: times without one are of
    calls, not of work.
    """

    def __init__(self, barrier: Callable[[], Any], *, name: str) -> None:
        if not callable(barrier):
            raise TypeError(
                f"barrier: expected a function that waits until the device has finished, found {barrier!r}; "
                "a step timed without one is the time of its calls, not of its work"
            )
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"name: expected words that say what the barrier is, found {name!r}")
        self._barrier = barrier
        self.name = name
        self._begin_ns: int | None = None
        self._first_ns: int | None = None

    def begin(self) -> None:
        """A step begins, its batches not yet given to the device. Call it right before the step's work."""
        if self._begin_ns is not None:
            raise RuntimeError("a step was begun while the one before it had not been finished")
        self._begin_ns = time.monotonic_ns()
        if self._first_ns is None:
            self._first_ns = self._begin_ns

    def finish(self, fetch: Callable[[], Mapping[str, Any]] | None = None) -> Timed:
        """The step's calls have come back: note that, wait for the device, bring `fetch`'s values to the host, end."""
        if self._begin_ns is None:
            raise RuntimeError("a step was finished that had not been begun")
        returned_ns = time.monotonic_ns()
        self._barrier()
        values = fetch() if fetch is not None else {}
        end_ns = time.monotonic_ns()
        timed = Timed(self._begin_ns, returned_ns, end_ns, values)
        self._begin_ns = None
        return timed

    def abandon(self) -> None:
        """Forget a step that was begun and will not be finished."""
        self._begin_ns = None

    def total(self) -> tuple[int, int]:
        """(begin of the first step, now after a last barrier): the wall of the training."""
        if self._begin_ns is not None:
            raise RuntimeError("training cannot end in the middle of a step")
        self._barrier()
        now_ns = time.monotonic_ns()
        return (now_ns if self._first_ns is None else self._first_ns), now_ns


class StepLog:
    """`steps-rank<r>.jsonl` of one attempt. Each line is with the operating system before the call returns.

    The file must not exist: an attempt never writes into another's log. Lines come in order: one `start`, then steps
    and what happens between them, one `end`. Numbers that are not finite are written as text (`nan`, `inf`, `-inf`).
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int = 0) -> None:
        if os.environ.get(NO_NUMBERS):
            raise RuntimeError(
                f"a step log was begun in a run that computes nothing ({NO_NUMBERS} is set): its steps are no result"
            )
        self.rank = rank
        self.path = os.path.join(os.fspath(folder), f"steps-rank{rank}.jsonl")
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._state = "new"

    def start(self, **fields: Any) -> None:
        """What is trained on what, and the barrier's name. Begins the log; both clocks are read here."""
        self._expect("new", "start")
        now = {"mono_ns": time.monotonic_ns(), "utc_ns": time.time_ns()}
        self._write({"kind": "start", "rank": self.rank, **fields, **now})
        self._state = "open"

    def step(self, step: int, timed: Timed, **fields: Any) -> None:
        """An optimiser step, counted from 1 since the very beginning. `timed.values` are columns like `fields`."""
        self._expect("open", "step")
        times = {"begin_ns": timed.begin_ns, "returned_ns": timed.returned_ns, "end_ns": timed.end_ns}
        self._write({"kind": "step", "step": step, **times, **timed.values, **fields})

    def checkpoint(self, step: int, begin_ns: int, end_ns: int, *, size_bytes: int, digest: str) -> None:
        """A checkpoint was written and is whole on disk."""
        self._expect("open", "checkpoint")
        span = {"begin_ns": begin_ns, "end_ns": end_ns}
        self._write({"kind": "checkpoint", "step": step, **span, "bytes": size_bytes, "digest": digest})

    def restore(self, step: int, begin_ns: int, end_ns: int, **fields: Any) -> None:
        """State was read back from the checkpoint of `step`."""
        self._expect("open", "restore")
        self._write({"kind": "restore", "step": step, "begin_ns": begin_ns, "end_ns": end_ns, **fields})

    def evaluation(self, step: int, loss: float, tokens: int, *, name: str, **fields: Any) -> None:
        """Mean loss per token of the set called `name`, by the state after `step`."""
        self._expect("open", "evaluation")
        self._write({"kind": "evaluation", "step": step, "loss": loss, "tokens": tokens, "name": name, **fields})

    def end(self, total: tuple[int, int], *, steps: int, reason: str, **fields: Any) -> None:
        """Training is over, the device has finished, every result is on the host. `total` is `StepTimer.total()`."""
        self._expect("open", "end")
        if reason not in REASONS:
            raise ValueError(f"reason: expected {', '.join(REASONS)}; found {reason!r}")
        span = {"train_begin_ns": total[0], "train_end_ns": total[1]}
        self._write({"kind": "end", **span, "steps": steps, "reason": reason, **fields})
        self.close()

    def close(self) -> None:
        """Close the file; a log that has no `end` by then is that of an unfinished run. Idempotent."""
        if self._state != "closed":
            self._state = "closed"
            os.close(self._file)

    def _expect(self, state: str, what: str) -> None:
        if self._state != state:
            text = {"new": "has no start yet", "open": "was started before", "closed": "is closed"}[self._state]
            raise RuntimeError(f"{what!r} in the wrong place: the step log {text}")

    def _write(self, entry: dict[str, Any]) -> None:
        data = memoryview((json.dumps(plain(entry), allow_nan=False) + "\n").encode())
        while data:
            data = data[os.write(self._file, data) :]


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: floats that are not finite become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value
