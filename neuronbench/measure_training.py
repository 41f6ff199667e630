"""Measuring a training run: data prepared, samplers started, the run watched from outside, its log judged and reduced.

The ranks time themselves and write a log; this process reads what rank 0 writes, for the line on the terminal, and
waits. Afterwards the logs of all ranks must be the account of a whole run (`training.steps.verify`), or there is no
result: what had been logged until then is kept as a table, the record is an error, and no shorter run is passed off as
whole. Numbers and gates are made by `training.reduce`.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from neuronbench.definitions import metric
from neuronbench.epoch import clock_epoch
from neuronbench.measure_serving import host_contention
from neuronbench.measure_workers import WORKER, default_samplers, or_logs, record_workers
from neuronbench.model import Failure, Gate, Json, Metric
from neuronbench.protocols import Peak, PointFailure, Trainer
from neuronbench.telemetry.request import TelemetryRequest
from neuronbench.training import folders, steps
from neuronbench.training.steps import StepLogError, Steps
from neuronbench.worker.handlers.training.launch import after_the_end

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session
    from neuronbench.telemetry.table import Telemetry
    from neuronbench.training.job import TrainJob

TRAINING: Final = "training"
"""Part of the workload that describes the runs."""
LIVE: Final = "steps-rank0.jsonl"
"""Copy of rank 0's log in the record's folder while the run lasts: what is left of it if this process is killed."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run gave."""

    job: TrainJob
    metrics: Mapping[str, Metric]
    gates: Sequence[Gate]
    steps: Steps
    folder: Path
    """The run's checkpoints and final state, until the point ends."""
    facts: Mapping[str, Json]
    """What the record says of this run."""

    def __getitem__(self, key: str) -> float | None:
        """Value of a metric, such as `train_throughput_tok_s`."""
        return self.metrics[key].value

    @property
    def losses(self) -> list[float]:
        """Training loss of each step of this attempt, the mean over all ranks."""
        return self.steps.losses


def train(
    session: Session,
    opened: OpenRecord,
    trainer: Trainer,
    job: TrainJob,
    *,
    resume: bool | Trained,
    check_loss: bool,
    telemetry: TelemetryRequest,
    discard: Callable[[Path], None],
) -> Trained:
    """Train and record; see `Measure.train`. `discard` is told of the run's folder once it may go with the point."""
    from neuronbench.telemetry.recorder import Recorder

    record = opened.record
    if isinstance(resume, Trained):
        _check_resumable(resume)
    number = len(record.workload.setdefault(TRAINING, [])) + 1
    label = record.point.id + (f" run {number}" if number > 1 else "")
    facts: dict[str, Any] = {"job": {**job.to_json(), "digest": job.digest}, "epoch": clock_epoch()}
    record.workload[TRAINING].append(facts)
    revive = getattr(trainer, "ready", None)
    if not trainer.alive() and callable(revive):  # an earlier run of this point was the end of its worker
        revive()
        record.notes.append(f"run {number}: the trainer had died and was started again")
    logged = {path: path.stat().st_size for path in trainer.logs if path.is_file()}

    session.progress(f"{label}: preparing data")
    facts["data"] = dict(or_logs(opened, trainer, logged, lambda: trainer.prepare(job)))
    folder = _folder(session, opened, trainer, job, number, resume)
    if resume is not True:
        discard(folder)
    samplers = [*default_samplers(trainer), *telemetry.samplers]
    samplers += session.plugins.telemetry_samplers(record.point, trainer)
    aside = opened.folder if number == 1 else opened.folder / f".run-{number}"
    aside.mkdir(exist_ok=True)
    recorder = Recorder.start(samplers, aside, session.spawn)

    live = opened.folder / LIVE

    def run() -> Path:
        with live.open("w", encoding="utf-8") as copy:
            return trainer.train(
                job, folder=folder, resume=bool(resume), deadline_s=session.settings.deadlines.point,
                watch=Watch(lambda text: session.progress(f"{label}: {recorder.live.after(text)}"), job, copy),
            )  # fmt: skip

    try:
        try:
            or_logs(opened, trainer, logged, lambda: session.plugins.measuring(record.point, trainer, record, run))
        finally:
            sampled = telemetry.result = recorder.stop()
            _move_up(aside, opened.folder, sampled, number)
            kept = _keep_steps(opened, folder, facts, number)
            if kept is not None:
                live.unlink(missing_ok=True)
            _record_telemetry(opened, kept, sampled)
        found = steps.read(folder)
        steps.verify(found, job)
    except StepLogError as error:
        raise PointFailure(_refused(error, kept, job, resume)) from error
    except PointFailure as error:
        raise type(error)(_cut_off(error.failure, kept, job, resume)) from error
    record.notes.extend(f"run {number}: done by all ranks, then {line}" for line in after_the_end(folder))
    if resume is True:
        discard(folder)
    return _reduced(session, opened, trainer, job, found, folder, facts, check_loss)


def _check_resumable(run: Trained) -> None:
    made = [int(one["step"]) for one in run.steps.first.checkpoints]
    if not made or made[-1] >= run.job.steps:
        raise ValueError(
            f"resume: expected a run whose latest checkpoint is before its last step ({run.job.steps}), found "
            f"checkpoints of {made}; choose checkpoint_every so that it does not divide steps"
        )


def _folder(
    session: Session, opened: OpenRecord, trainer: Trainer, job: TrainJob, number: int, resume: bool | Trained
) -> Path:
    record = opened.record
    cache = session.settings.cache_dir
    if isinstance(resume, Trained):
        return resume.folder
    if not resume:
        return folders.fresh(cache, f"{record.session}-{record.receipt_name}-{number}")
    identity = {
        "resource": trainer.spec.key, "job": job.digest, "point": record.point.id, "repeat": record.repeat,
        "run": number,
    }  # fmt: skip
    try:
        return folders.resumable(cache, identity)
    except folders.InUse as error:
        text = str(error)
        raise PointFailure(
            Failure(kind="training_folder_in_use", phase="window", message=text, causal_line=text)
        ) from error


# --------------------------------------------------------------------------------------------------------------------
# while it runs


class Watch:
    """Hears the lines of rank 0's log as they appear: says where the run is, and copies them."""

    def __init__(self, say: Callable[[str], None], job: TrainJob, copy: IO[str]) -> None:
        self._say, self._job, self._copy = say, job, copy
        self._shards = 1
        self._first_end_ns: int | None = None
        self._tokens = self._counted = 0

    def __call__(self, entry: Mapping[str, Json]) -> None:
        self._copy.write(json.dumps(entry) + "\n")
        self._copy.flush()
        kind = entry.get("kind")
        with contextlib.suppress(KeyError, TypeError, ValueError):  # a strange line is for the reader of the whole log
            if kind == "start":
                self._shards = int(entry["data_shard"][1])
                self._say(f"training {self._job.steps} steps")
            elif kind == "step":
                self._step(entry)
            elif kind in ("checkpoint", "restore", "evaluation"):
                self._say(f"step {entry['step']}/{self._job.steps}  {kind}")

    def _step(self, entry: Mapping[str, Json]) -> None:
        step, end_ns = int(entry["step"]), int(entry["end_ns"])
        words = [f"step {step}/{self._job.steps}", f"loss {float(entry['loss']):.4g}"]
        if self._first_end_ns is None:
            self._first_end_ns = end_ns
        else:
            self._counted += 1
            self._tokens += int(entry["tokens"])
            seconds = max(end_ns - self._first_end_ns, 1) / 1e9
            left_s = (self._job.steps - step) * seconds / self._counted
            words += [f"{self._tokens * self._shards / seconds:,.0f} tok/s", f"ETA {clock(left_s)}"]
        self._say("  ".join(words))


def clock(seconds: float) -> str:
    """`4:05`, `1:02:03`."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# --------------------------------------------------------------------------------------------------------------------
# afterwards


def _move_up(aside: Path, folder: Path, sampled: Telemetry, number: int) -> None:
    """Files of a further run's telemetry get its number and stand beside those of the first."""
    if aside == folder:
        return
    for path in sorted(aside.iterdir()):
        target = folder / f"{path.stem}-{number}{path.suffix}"
        path.replace(target)
        if sampled.table == path:
            sampled.table = target
    shutil.rmtree(aside, ignore_errors=True)


def _keep_steps(opened: OpenRecord, folder: Path, facts: dict[str, Any], number: int) -> Steps | None:
    """What was logged becomes a table of the receipt, whatever came of the run; None when there is nothing to keep."""
    try:
        found = steps.read(folder)
    except StepLogError as error:
        opened.record.notes.append(f"steps: {error}")
        return None
    name = steps.TABLE if number == 1 else f"steps-{number}.parquet"
    found.write(opened.folder / name)
    opened.record.tables[Path(name).stem] = name
    facts.update(describe(found, folder))
    return found


def describe(found: Steps, folder: Path) -> dict[str, Json]:
    """The run as the record tells of it: from where to where, on what, with which digests."""
    start, end = found.start, found.first.end
    earlier = folder / steps.ATTEMPTS
    last = found.numbers[-1] if found.numbers else found.resumed_from
    said: dict[str, Json] = {
        name: start.get(name) for name in ("barrier", "parameters", "dataset", "init_digest", "recompute", "attention")
    }
    compiled, backend = start.get("compile"), start.get("backend")
    return {
        **said,
        **({"compile": compiled} if compiled else {}),
        **({"backend": backend} if backend else {}),
        **({"reported": end["reported"]} if end is not None and end.get("reported") else {}),
        "shards": {str(rank): list(log.start["data_shard"]) for rank, log in enumerate(found.ranks)},
        "resumed_from": found.resumed_from,
        "attempts": 1 + (sum(1 for path in earlier.iterdir() if path.is_dir()) if earlier.is_dir() else 0),
        "last_step": last,
        "complete": found.complete,
        "reason": found.reason,
        "first_bad_step": found.first_bad,
        "final_digest": None if end is None else end.get("final_digest"),
        "checkpoints": [
            {name: one.get(name) for name in ("step", "bytes", "digest")} for one in found.first.checkpoints
        ],
        "evaluations": [
            {name: one.get(name) for name in ("step", "name", "loss", "tokens")} for one in found.first.evaluations
        ],
    }


def _record_telemetry(opened: OpenRecord, found: Steps | None, sampled: Telemetry) -> None:
    record = opened.record
    if sampled.table is not None:
        record.tables[sampled.table.stem] = sampled.table.name
    if sampled.problem:
        record.notes.append(f"telemetry: {sampled.problem}")
    span = None if found is None else found.span_ns
    if span is not None:
        rows = [] if found is None else found.first.steps
        # The first step compiles and loads: it is in no rate, and in no utilisation.
        working = (int(rows[0]["end_ns"]), span[1]) if len(rows) > 1 else span
        record_workers(opened, span, sampled, execution_s=_longest_s(rows), device_ns=working)
        window = {"start_ns": span[0], "end_ns": span[1]}
        record.gate(host_contention(window, sampled, own=f"{WORKER}/cpu_percent"))


def _longest_s(rows: Sequence[Mapping[str, Json]]) -> float | None:
    """What no execution on the device takes longer than: the shortest step after the first."""
    return min(((int(row["end_ns"]) - int(row["begin_ns"])) / 1e9 for row in rows[1:]), default=None)


def _refused(error: StepLogError, kept: Steps | None, job: TrainJob, resume: bool | Trained) -> Failure:
    failure = Failure(
        kind=error.kind, phase="reduce", message=str(error), causal_line=str(error), remedy=error.remedy,
        cause="what the ranks logged is not the account of a whole run",
    )  # fmt: skip
    return _cut_off(failure, kept, job, resume) if error.kind == "training_unfinished" else failure


def _cut_off(failure: Failure, kept: Steps | None, job: TrainJob, resume: bool | Trained) -> Failure:
    """The failure and how far the run had come; with `resume`, what another attempt goes on from."""
    last = 0 if kept is None else kept.numbers[-1] if kept.numbers else kept.resumed_from
    message = f"{failure.message} (after step {last} of {job.steps}; the steps are in the receipt, no number is)"
    remedy = failure.remedy
    if resume is True and kept is not None:
        saved = max([kept.resumed_from, *(int(one["step"]) for one in kept.first.checkpoints)])
        if saved:
            remedy = f"{remedy} Run it again: it goes on from the checkpoint of step {saved}.".strip()
    return replace(failure, message=message, remedy=remedy)


def _host_peak(session: Session, trainer: Trainer) -> Peak | str:
    """What a core of this host was measured to do in this session, or why that is not known."""
    from neuronbench.training.peaks import host_peak

    if trainer.peak is None or not trainer.peak.bound:
        return ""  # the hardware has a peak of its own, or it is not this host that trains
    floor = next((record for record in session.records if record.receipt_id == session.host_floor), None)
    return host_peak(floor, trainer.peak.dtype, trainer.cores)


def _reduced(
    session: Session,
    opened: OpenRecord,
    trainer: Trainer,
    job: TrainJob,
    found: Steps,
    folder: Path,
    facts: dict[str, Any],
    check_loss: bool,
) -> Trained:
    from neuronbench.training.holdout import holdout, loss_falls_gate
    from neuronbench.training.reduce import reduce

    record = opened.record
    metrics, gates, more = reduce(found, peak=trainer.peak, cores=trainer.cores, floor=_host_peak(session, trainer))
    metrics += holdout(found)
    gates += [loss_falls_gate(found)] if check_loss else []
    # The metrics of a second run in the same record are left out, for a result is never overwritten.
    record.add(*(each for each in metrics if each.key not in record.metrics))
    record.gate(*gates)
    facts.update(more)
    return Trained(
        job=job, metrics={each.key: each for each in metrics}, gates=gates, steps=found, folder=folder, facts=facts
    )


# --------------------------------------------------------------------------------------------------------------------
# runs beside each other


def compare(opened: OpenRecord, one: Trained, other: Trained, *, same: bool) -> bool:
    """Whether the losses of the steps that two runs share are the same to the bit; a gate on what they should be.

    With `same` the largest difference is recorded too. Raises `ValueError` for runs that share no step, and for runs
    of different jobs that are said to be the same.
    """
    changed = {
        name: (value, other.job.to_json()[name])
        for name, value in one.job.to_json().items()
        if value != other.job.to_json()[name]
    }
    said = ", ".join(f"{name} {first!r} and {second!r}" for name, (first, second) in changed.items())
    if same and changed:
        raise ValueError(f"same_losses: expected runs of one job, these differ in {said}")
    theirs = dict(zip(other.steps.numbers, other.losses, strict=True))
    pairs = [(loss, theirs[n]) for n, loss in zip(one.steps.numbers, one.losses, strict=True) if n in theirs]
    if not pairs:
        raise ValueError("the runs have no step in common, so their losses cannot be compared")
    gaps = [abs(first - second) for first, second in pairs]
    differ = sum(struct.pack("d", first) != struct.pack("d", second) for first, second in pairs)
    record = opened.record
    if same:
        largest = max(gaps) if all(math.isfinite(gap) for gap in gaps) else None  # of a NaN nothing can be said
        made = metric("loss_difference", largest, stat="max", n=len(pairs), note="two runs of one job")
        record.add(*([] if made.key in record.metrics else [made]))
        shown = "a loss is not finite" if largest is None else f"by {largest:.3g} at most"
        why = f"{differ} of {len(pairs)} losses differ ({shown}) although the job is the same"
    else:
        why = f"all {len(pairs)} losses are equal to the bit: what was changed ({said or 'nothing'}) has no effect"
    passed = differ == 0 if same else differ > 0
    record.gate(
        Gate(
            id="losses_repeat" if same else "losses_differ",
            passed=passed,
            observed=differ,
            limit=0 if same else 1,
            unit="steps",
            message="" if passed else why,
        )
    )
    return passed
