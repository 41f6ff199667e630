"""The step log of a training run: reading what all ranks wrote, refusing what is no account of a whole run, the table.

Each rank writes `steps-rank<r>.jsonl` as it goes: a `start`, a `step` for every optimiser step, `checkpoint`, `restore`
and `evaluation` as they happen, and an `end` once the device has finished and all results are on the host. `read` takes
what there is, also of a run that was killed; `verify` raises for all that cannot count as a result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Json

if TYPE_CHECKING:
    import numpy.typing as npt

    from neuronbench.training.job import TrainJob

PATTERN: Final = "steps-rank*.jsonl"
TABLE: Final = "steps.parquet"
ATTEMPTS: Final = "attempts"
"""Folder of the logs of earlier attempts, `1`, `2`, ..."""
LOSS_TOLERANCE: Final = 1e-5
"""Relative; ranks report the loss averaged over all of them, so theirs differ by rounding at most."""
COLUMNS: Final[Mapping[str, tuple[str, str, str]]] = {
    "rank": ("int16", "", "rank that wrote the row"),
    "step": ("int32", "", "optimiser step, from 1, counted from the very beginning also after a resume"),
    "begin_ns": ("int64", "ns", "monotonic clock: the step began"),
    "returned_ns": ("int64", "ns", "monotonic clock: its calls had come back, the device not necessarily done"),
    "end_ns": ("int64", "ns", "monotonic clock: after the device's barrier, with the loss on the host"),
    "wall_ns": (
        "int64",
        "ns",
        "from the end of the step before (of the first: from the start of training) to its own end",
    ),
    "loss": ("float64", "", "training loss"),
    "grad_norm": ("float64", "", "norm of the gradient before clipping"),
    "learning_rate": ("float64", "", "of this step"),
    "tokens": ("int64", "tokens", "tokens of this rank's batches that are not padding"),
    "padding_tokens": ("int64", "tokens", "padding of this rank's batches"),
    "sequences": ("int64", "sequences", "sequences of this rank's batches"),
    "micro_batches": ("int64", "micro-batches", "forward and backward passes in the step"),
}
"""Of `steps.parquet`: name → type, unit, meaning."""
_INSTANTS: Final = ("begin_ns", "returned_ns", "end_ns")
_COUNTS: Final = ("tokens", "padding_tokens", "sequences", "micro_batches")


class StepLogError(ValueError):
    """The log is not that of a whole run. `kind` is the class of the failure."""

    def __init__(self, kind: str, text: str, *, remedy: str = "") -> None:
        super().__init__(text)
        self.kind, self.remedy = kind, remedy


@dataclass(frozen=True, kw_only=True)
class RankLog:
    """What one rank wrote, as it stands in the file; numbers that are not finite are floats."""

    rank: int
    start: Mapping[str, Json]
    steps: Sequence[Mapping[str, Json]] = ()
    checkpoints: Sequence[Mapping[str, Json]] = ()
    restores: Sequence[Mapping[str, Json]] = ()
    evaluations: Sequence[Mapping[str, Json]] = ()
    end: Mapping[str, Json] | None = None
    torn: bool = False
    """Whether the last line is cut off: the process ended while it wrote."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The logs of one attempt at a run, rank 0 first."""

    ranks: Sequence[RankLog]

    @property
    def first(self) -> RankLog:
        """Rank 0."""
        return self.ranks[0]

    @property
    def start(self) -> Mapping[str, Json]:
        """Rank 0's start line: parameters, data set, barrier, ..."""
        return self.first.start

    @property
    def world_size(self) -> int:
        return int(self.start["world_size"])

    @property
    def shards(self) -> Mapping[int, int]:
        """Rank → its data shard. Ranks of one shard see the same data, and its tokens count once."""
        return {log.rank: int(log.start["data_shard"][0]) for log in self.ranks}

    @property
    def complete(self) -> bool:
        """Whether every rank wrote its end."""
        return len(self.ranks) == self.world_size and all(log.end is not None for log in self.ranks)

    @property
    def reason(self) -> str:
        """Why it ended (`done`, `non_finite`, `stopped`); empty when it was not seen to its end."""
        return str(self.first.end["reason"]) if self.first.end is not None else ""

    @property
    def resumed_from(self) -> int:
        """Step of the checkpoint this attempt began from; 0 for a fresh start."""
        return int(self.start.get("resumed_from") or 0)

    @property
    def numbers(self) -> list[int]:
        """Step numbers, by rank 0."""
        return [int(row["step"]) for row in self.first.steps]

    @property
    def losses(self) -> list[float]:
        """Loss of each step, by rank 0."""
        return [float(row["loss"]) for row in self.first.steps]

    @property
    def first_bad(self) -> int | None:
        """The first step of any rank whose loss is not finite."""
        bad = [int(row["step"]) for log in self.ranks for row in log.steps if not math.isfinite(row["loss"])]
        return min(bad, default=None)

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """First step's begin → end of training (the last step's, where that was not seen); None without steps."""
        if not any(log.steps for log in self.ranks):
            return None
        begins = [int(log.steps[0]["begin_ns"]) for log in self.ranks if log.steps]
        ends = [int(log.end["train_end_ns"] if log.end else log.steps[-1]["end_ns"]) for log in self.ranks if log.steps]
        return min(begins), max(ends)

    def column(self, name: str, rank: int = 0) -> npt.NDArray[Any]:
        """One of `COLUMNS`, of one rank, in the order of steps."""
        import numpy as np

        log = next(each for each in self.ranks if each.rank == rank)
        return np.array([row[name] for row in _rows(log)], dtype=COLUMNS[name][0])

    def table(self) -> Any:
        """A `pyarrow.Table` of `COLUMNS`; each field's metadata has its `unit` and `meaning`."""
        import pyarrow as arrow

        rows = [row for log in self.ranks for row in _rows(log)]
        schema = arrow.schema(
            [
                arrow.field(name, getattr(arrow, kind)(), metadata={"unit": unit, "meaning": meaning})
                for name, (kind, unit, meaning) in COLUMNS.items()
            ],
            metadata={
                "neuronbench.units": json.dumps({name: unit for name, (_, unit, _) in COLUMNS.items()}),
                "neuronbench.complete": str(self.complete).lower(),
                "neuronbench.resumed_from": str(self.resumed_from),
                "neuronbench.job": str(self.start.get("job", "")),
            },
        )
        return arrow.table({name: [row[name] for row in rows] for name in COLUMNS}, schema=schema)

    def write(self, path: Path) -> None:
        """Write the table as Parquet."""
        import pyarrow.parquet as parquet

        parquet.write_table(self.table(), path, compression="zstd")


def _rows(log: RankLog) -> Iterator[dict[str, Json]]:
    before = None
    if log.end is not None:
        before = int(log.end["train_begin_ns"])
    for row in log.steps:
        begun = int(row["begin_ns"]) if before is None else before
        yield {**{name: row.get(name) for name in COLUMNS}, "rank": log.rank, "wall_ns": int(row["end_ns"]) - begun}
        before = int(row["end_ns"])


# --------------------------------------------------------------------------------------------------------------------
# reading


def read(folder: Path) -> Steps:
    """What all ranks wrote in `folder`. A last line that is cut off is left out.

    Raises `StepLogError` (`training_unfinished`) when rank 0 has not even begun, `steps_unreadable` for what is no log.
    """
    found = sorted((rank_of(path), path) for path in folder.glob(PATTERN))
    logs = [read_rank(path, rank) for rank, path in found]
    begun = [log for log in logs if log is not None]
    if not begun or begun[0].rank != 0:
        raise StepLogError("training_unfinished", f"rank 0 has written no step log in {folder}: nothing was trained")
    return Steps(ranks=begun)


def set_aside(folder: Path, job_digest: str) -> int:
    """Make room for the logs of another attempt at the same job; returns how many attempts there were before.

    Raises `StepLogError` (`steps_contradict`) when the folder holds another job's: runs of different jobs never
    continue each other.
    """
    logs = sorted(folder.glob(PATTERN))
    earlier = folder / ATTEMPTS
    count = sum(1 for path in earlier.iterdir() if path.is_dir()) if earlier.is_dir() else 0
    if not logs:
        return count
    for path in logs:
        log = read_rank(path, rank_of(path))
        if log is not None and log.start.get("job") != job_digest:
            raise StepLogError(
                "steps_contradict",
                f"{folder} holds a run of job {log.start.get('job')!r}; job {job_digest!r} cannot go on from it",
                remedy="remove the folder to train from the beginning",
            )
    target = earlier / str(count + 1)
    target.mkdir(parents=True)
    for path in logs:
        path.replace(target / path.name)
    return count + 1


def rank_of(path: Path) -> int:
    """The rank in a log's name."""
    text = path.stem.removeprefix("steps-rank")
    if not text.isdigit():
        raise StepLogError("steps_unreadable", f"{path.name}: expected steps-rank<number>.jsonl")
    return int(text)


def read_rank(path: Path, rank: int) -> RankLog | None:
    """One rank's log; None when not even its start is whole."""
    lines = path.read_bytes().split(b"\n")
    torn = bool(lines.pop())  # what is whole ends with a line feed
    by_kind: dict[str, list[Mapping[str, Json]]] = {}
    for number, line in enumerate(lines, 1):
        entry = parse(line, path.name, number)
        by_kind.setdefault(entry["kind"], []).append(entry)
    starts, ends = by_kind.get("start", []), by_kind.get("end", [])
    if not starts:
        if any(by_kind.values()):
            raise StepLogError("steps_unreadable", f"{path.name}: expected a start line first, found none")
        return None
    if len(starts) > 1 or len(ends) > 1:
        raise StepLogError("steps_unreadable", f"{path.name}: {len(starts)} starts and {len(ends)} ends in one log")
    start = starts[0]
    if start.get("rank") != rank:
        raise StepLogError("steps_unreadable", f"{path.name}: its start says rank {start.get('rank')!r}")
    return RankLog(
        rank=rank,
        start=start,
        steps=by_kind.get("step", []),
        checkpoints=by_kind.get("checkpoint", []),
        restores=by_kind.get("restore", []),
        evaluations=by_kind.get("evaluation", []),
        end=ends[0] if ends else None,
        torn=torn,
    )


KINDS: Final = ("start", "step", "checkpoint", "restore", "evaluation", "end")


def parse(line: bytes, name: str, number: int) -> dict[str, Json]:
    """A line of a log; a loss or norm that is not finite stands there as text and becomes a float."""
    try:
        entry = json.loads(line)
        kind = entry["kind"]
    except (ValueError, TypeError, KeyError) as error:
        text = f"{name}, line {number}: expected a JSON object with a kind, found {line[:80]!r}"
        raise StepLogError("steps_unreadable", text) from error
    if kind not in KINDS:
        raise StepLogError("steps_unreadable", f"{name}, line {number}: kind {kind!r}; known: {', '.join(KINDS)}")
    if kind == "step":
        for column in ("step", *_INSTANTS, *_COUNTS):
            if not isinstance(entry.get(column), int):
                text = f"{name}, line {number}: {column}: expected a whole number, found {entry.get(column)!r}"
                raise StepLogError("steps_unreadable", text)
    for column in ("loss", "grad_norm"):
        if column in entry and entry[column] is not None:
            try:
                entry[column] = float(entry[column])
            except (TypeError, ValueError) as error:
                text = f"{name}, line {number}: {column}: expected a number, found {entry[column]!r}"
                raise StepLogError("steps_unreadable", text) from error
    if kind == "step" and entry.get("loss") is None:
        raise StepLogError("steps_unreadable", f"{name}, line {number}: a step without a loss")
    return dict(entry)


# --------------------------------------------------------------------------------------------------------------------
# refusing


def verify(steps: Steps, job: TrainJob) -> None:
    """Raise `StepLogError` unless the logs are a consistent account of all of `job`, seen to its end by every rank."""
    for log in steps.ranks:
        _verify_start(log, job)
    missing = sorted(set(range(job.world_size)) - {log.rank for log in steps.ranks})
    if missing or len(steps.ranks) != job.world_size:
        raise StepLogError("training_unfinished", f"{job.world_size} ranks were to train; no log of rank {missing}")
    for log in steps.ranks:
        _verify_steps(log)
    _verify_agreement(steps)
    for log in steps.ranks:
        _verify_end(log, job)


def _verify_start(log: RankLog, job: TrainJob) -> None:
    said = log.start.get("barrier")
    if not isinstance(said, str) or not said.strip():
        raise StepLogError(
            "no_barrier",
            f"rank {log.rank} timed its steps without a barrier of the device: such times are of calls, not of work",
            remedy="give the handler a barrier that returns when the device has finished (StepTimer asks for one)",
        )
    if log.start.get("job") != job.digest:
        raise StepLogError(
            "steps_contradict", f"rank {log.rank} trained job {log.start.get('job')!r}, asked was {job.digest!r}"
        )
    if log.start.get("world_size") != job.world_size:
        found = log.start.get("world_size")
        raise StepLogError("steps_contradict", f"rank {log.rank}: world size {found!r}, asked was {job.world_size}")


def _verify_steps(log: RankLog) -> None:
    expected = int(log.start.get("resumed_from") or 0) + 1
    before_ns = None
    for row in log.steps:
        if row["step"] != expected:
            raise StepLogError("steps_contradict", f"rank {log.rank}: step {expected} expected, found {row['step']}")
        begin, returned, end = (int(row[name]) for name in _INSTANTS)
        if not begin <= returned <= end or (before_ns is not None and begin < before_ns):
            text = f"rank {log.rank}, step {expected}: begin, return and end are not one after the other"
            raise StepLogError("steps_contradict", f"{text} ({begin}, {returned}, {end}; before: {before_ns})")
        if any(row[name] < 0 for name in _COUNTS):
            raise StepLogError("steps_contradict", f"rank {log.rank}, step {expected}: a count below 0")
        before_ns = end
        expected += 1


def _verify_agreement(steps: Steps) -> None:
    lengths = {log.rank: len(log.steps) for log in steps.ranks}
    if len(set(lengths.values())) > 1:
        raise StepLogError("training_unfinished", f"ranks made different numbers of steps: {lengths}")
    for log in steps.ranks[1:]:
        for ours, theirs in zip(steps.first.steps, log.steps, strict=True):
            one, other = float(ours["loss"]), float(theirs["loss"])
            same = math.isclose(one, other, rel_tol=LOSS_TOLERANCE) or (math.isnan(one) and math.isnan(other))
            if not same:
                text = f"step {ours['step']}: rank 0 has loss {one!r}, rank {log.rank} has {other!r}"
                raise StepLogError(
                    "steps_contradict", f"{text}; the loss of a step is the mean over all ranks, so they must agree"
                )


def _verify_end(log: RankLog, job: TrainJob) -> None:
    last = int(log.steps[-1]["step"]) if log.steps else int(log.start.get("resumed_from") or 0)
    how_far = f"rank {log.rank} ended after step {last} of {job.steps}"
    if log.end is None:
        raise StepLogError("training_unfinished", f"{how_far} without an end: the run was cut off")
    if not log.steps:
        raise StepLogError("training_unfinished", f"{how_far} and made no step in this attempt")
    reason = log.end.get("reason")
    if reason == "non_finite":
        if all(math.isfinite(row["loss"]) for row in log.steps):
            raise StepLogError("steps_contradict", f"{how_far} for a loss that is not finite, and all of them are")
    elif reason != "done" or last != job.steps:
        raise StepLogError(
            "training_unfinished", f"{how_far} ({reason}): a shorter run is not the one that was asked for"
        )
    if int(log.end["train_end_ns"]) < int(log.steps[-1]["end_ns"]):
        raise StepLogError("steps_contradict", f"rank {log.rank}: training ended before its last step did")
    if int(log.end["train_begin_ns"]) > int(log.steps[0]["begin_ns"]):
        raise StepLogError("steps_contradict", f"rank {log.rank}: training began after its first step did")
