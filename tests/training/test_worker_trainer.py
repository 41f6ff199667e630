"""Training in real workers, the log read while it grows, and every way in which a run can end early."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from neuronbench.protocols import DeadlineExceeded, PointFailure, Trainer
from neuronbench.testing.toy_trainer import toy_job
from neuronbench.training import steps
from neuronbench.training.steps import StepLogError

DEADLINE_S = 30.0


def trained(trainer: Any, job: Any, folder: Path, **options: Any) -> steps.Steps:
    return steps.read(trainer.train(job, folder=folder, deadline_s=DEADLINE_S, **options))


def test_a_run_is_logged_watched_and_verified(toy: Any, tmp_path: Path) -> None:
    trainer, job = toy(work_ms=30.0), toy_job(steps=8, checkpoint_every=5, holdout=0.25)
    assert isinstance(trainer, Trainer)
    seen: list[tuple[str, float]] = []
    found = trained(
        trainer, job, tmp_path / "run", watch=lambda entry: seen.append((entry["kind"], time.monotonic_ns()))
    )
    steps.verify(found, job)
    told = ["start", "evaluation", *["step"] * 5, "checkpoint", *["step"] * 3, "evaluation", "end"]
    assert [kind for kind, _ in seen] == told
    end_ns = found.first.end["train_end_ns"]
    assert seen[2][1] < end_ns  # heard of the first step while the run went on
    assert found.complete
    assert found.reason == "done"
    assert found.numbers == list(range(1, 9))
    assert found.losses[-1] < found.losses[0]
    consumed = found.start["dataset"].pop("consumed")
    assert found.start["dataset"] == trainer.prepare(job)
    assert consumed["tokens"] == sum(found.column("tokens"))
    assert found.start["parameters"]["trainable"] == 2_000
    assert trainer.describe(job)["init_digest"] == found.start["init_digest"]


def test_the_table_has_every_step_of_every_rank_and_its_units(toy: Any, tmp_path: Path) -> None:
    job = toy_job(steps=5, world_size=2)
    found = trained(toy(world_size=2), job, tmp_path / "run")
    steps.verify(found, job)
    found.write(tmp_path / "steps.parquet")
    table = parquet.read_table(tmp_path / "steps.parquet")
    assert table.column_names == list(steps.COLUMNS)
    assert table.num_rows == 10
    assert set(table["rank"].to_pylist()) == {0, 1}
    assert table.schema.field("begin_ns").metadata == {
        b"unit": b"ns",
        b"meaning": steps.COLUMNS["begin_ns"][2].encode(),
    }
    assert json.loads(table.schema.metadata[b"neuronbench.units"])["tokens"] == "tokens"
    assert table.schema.metadata[b"neuronbench.complete"] == b"true"
    wall, begin, end = (table[name].to_pylist()[:5] for name in ("wall_ns", "begin_ns", "end_ns"))
    assert wall[1:] == [b - a for a, b in itertools.pairwise(end)]
    assert wall[0] == end[0] - begin[0]
    first, second = (found.column("tokens", rank) for rank in (0, 1))
    assert (first != second).any()  # each its own share of the data
    assert found.shards == {0: 0, 1: 1}


def test_the_state_that_was_trained_is_evaluated_and_exported(toy: Any, tmp_path: Path) -> None:
    trainer, job = toy(), toy_job(holdout=0.25)
    trained(trainer, job, tmp_path / "run")
    answer = trainer.evaluate(job, folder=tmp_path / "run")
    assert answer["loss"] < 1
    assert answer["tokens"] == 16 * job.sequence_length
    files = trainer.export(job, folder=tmp_path / "run", into=tmp_path / "out")["files"]
    ((name, said),) = files.items()
    data = (tmp_path / "out" / name).read_bytes()
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (said["sha256"], said["bytes"])


def test_a_run_starts_from_nothing_unless_it_resumes(toy: Any, tmp_path: Path) -> None:
    trainer, job = toy(), toy_job()
    one, other = (trained(trainer, job, tmp_path / name) for name in ("one", "other"))
    assert one.losses == other.losses
    with pytest.raises(ValueError, match="is not empty; train into a new folder"):
        trained(trainer, job, tmp_path / "one")
    with pytest.raises(ValueError, match="world_size: this trainer has 1 ranks, the job asks for 2"):
        trained(trainer, toy_job(world_size=2), tmp_path / "two")


ENDS = {
    "die_kill": ("killed", ""),
    "die_torn": ("killed", ""),
    "die_exit": ("worker_exited", ""),
    "die_raise": ("worker_exception", "ValueError: the toy was told to raise"),
    "die_memory": ("host_oom", "MemoryError"),
}


@pytest.mark.parametrize("behaviour", ENDS)
def test_every_end_is_classified_and_its_steps_are_kept_but_are_no_result(
    toy: Any, tmp_path: Path, behaviour: str
) -> None:
    trainer, job = toy(behaviour, at=4), toy_job()
    kind, causal = ENDS[behaviour]
    with pytest.raises(PointFailure) as caught:
        trained(trainer, job, tmp_path / "run")
    failure = caught.value.failure
    assert (failure.kind, failure.phase) == (kind, "window")
    assert failure.causal_line.startswith(causal)
    found = steps.read(tmp_path / "run")
    assert found.numbers == [1, 2, 3]
    assert found.first.torn is (behaviour == "die_torn")
    assert not found.complete
    assert trainer.alive() is (behaviour in ("die_raise", "die_memory"))
    assert found.table().schema.metadata[b"neuronbench.complete"] == b"false"
    with pytest.raises(StepLogError, match="rank 0 ended after step 3 of 12 without an end") as refused:
        steps.verify(found, job)
    assert refused.value.kind == "training_unfinished"


def test_a_run_that_hangs_is_ended_at_its_deadline(toy: Any, tmp_path: Path) -> None:
    trainer = toy("die_hang", at=2)
    with pytest.raises(DeadlineExceeded) as caught:
        trainer.train(toy_job(), folder=tmp_path / "run", deadline_s=1.0)
    assert caught.value.failure.causal_line == "about to hang"
    assert not trainer.alive()
    assert steps.read(tmp_path / "run").numbers == [1]


def test_a_killed_run_goes_on_from_its_checkpoint_with_the_same_losses(toy: Any, tmp_path: Path) -> None:
    job = toy_job(steps=12, checkpoint_every=4)
    whole = trained(toy(), job, tmp_path / "whole")
    with pytest.raises(PointFailure):
        trained(toy("die_kill", at=7), job, tmp_path / "run", resume=True)
    resumed = trained(toy("die_kill", at=7), job, tmp_path / "run", resume=True)
    steps.verify(resumed, job)
    assert resumed.resumed_from == 4
    assert resumed.numbers == list(range(5, 13))
    assert resumed.losses == whole.losses[4:]
    assert resumed.first.end["final_digest"] == whole.first.end["final_digest"]
    assert steps.read(tmp_path / "run" / "attempts" / "1").numbers == [1, 2, 3, 4, 5, 6]


def test_a_run_of_another_job_is_not_gone_on_with(toy: Any, tmp_path: Path) -> None:
    trainer = toy()
    trained(trainer, toy_job(checkpoint_every=4), tmp_path / "run", resume=True)
    with pytest.raises(StepLogError, match=r"holds a run of job .* cannot go on from it"):
        trained(trainer, toy_job(checkpoint_every=4, seed=1), tmp_path / "run", resume=True)


def test_a_loss_that_is_not_finite_ends_the_run_or_not_as_asked(toy: Any, tmp_path: Path) -> None:
    trainer = toy("nan_at", at=5)
    for asked, numbers in (("stop", 5), ("continue", 12)):
        job = toy_job(on_non_finite=asked)
        found = trained(trainer, job, tmp_path / asked)
        steps.verify(found, job)
        assert len(found.numbers) == numbers
        assert found.first_bad == 5
        assert math.isnan(found.losses[4])
        assert found.reason == ("non_finite" if asked == "stop" else "done")


REFUSED = {
    "no_barrier": ("no_barrier", "without a barrier of the device"),
    "short": ("training_unfinished", r"ended after step 2 of 12 \(done\): a shorter run"),
    "endless": ("training_unfinished", "ended after step 12 of 12 without an end"),
    "ranks_disagree": ("steps_contradict", "step 1: rank 0 has loss .*, rank 1 has .*must agree"),
}


@pytest.mark.parametrize("behaviour", REFUSED)
def test_what_is_no_account_of_a_whole_run_is_refused(toy: Any, tmp_path: Path, behaviour: str) -> None:
    job = toy_job(world_size=2)
    found = trained(toy(behaviour, world_size=2), job, tmp_path / "run")
    kind, says = REFUSED[behaviour]
    with pytest.raises(StepLogError, match=says) as refused:
        steps.verify(found, job)
    assert refused.value.kind == kind


def test_a_log_of_another_job_or_of_fewer_ranks_is_refused(toy: Any, tmp_path: Path) -> None:
    job = toy_job(world_size=2)
    found = trained(toy(world_size=2), job, tmp_path / "run")
    with pytest.raises(StepLogError, match="trained job"):
        steps.verify(found, job.changed(seed=1))
    (tmp_path / "run" / "steps-rank1.jsonl").unlink()
    with pytest.raises(StepLogError, match=r"2 ranks were to train; no log of rank \[1\]"):
        steps.verify(steps.read(tmp_path / "run"), job)


def edited(folder: Path, number: int, **changes: Any) -> steps.Steps:
    """The log with one of its steps changed."""
    path = folder / "steps-rank0.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in entries:
        if entry.get("step") == number and entry["kind"] == "step":
            entry.update({name: value(entry) for name, value in changes.items()})
    other = folder.parent / f"edited-{number}-{'-'.join(changes)}"
    other.mkdir(exist_ok=True)
    (other / path.name).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return steps.read(other)


def test_contradictions_within_a_log_are_refused(toy: Any, tmp_path: Path) -> None:
    job, folder = toy_job(), tmp_path / "run"
    trained(toy(), job, folder)
    for changes, says in (
        ({"step": lambda e: 9}, "step 3 expected, found 9"),
        ({"end_ns": lambda e: e["begin_ns"] - 1}, "are not one after the other"),
        ({"returned_ns": lambda e: e["end_ns"] + 1}, "are not one after the other"),
        ({"begin_ns": lambda e: e["begin_ns"] - 10**9}, "are not one after the other"),
        ({"tokens": lambda e: -1}, "a count below 0"),
    ):
        with pytest.raises(StepLogError, match=says):
            steps.verify(edited(folder, 3, **changes), job)
    for changes, says in (
        ({"tokens": lambda e: None}, "tokens: expected a whole number, found None"),
        ({"loss": lambda e: "high"}, "loss: expected a number, found 'high'"),
        ({"kind": lambda e: "stride"}, "kind 'stride'; known: start, step"),
    ):
        with pytest.raises(StepLogError, match=says) as refused:
            edited(folder, 3, **changes)
        assert refused.value.kind == "steps_unreadable"


def test_a_folder_without_a_log_is_a_run_that_never_began(tmp_path: Path) -> None:
    (tmp_path / "steps-rank0.jsonl").write_bytes(b'{"kind": "sta')
    with pytest.raises(StepLogError, match="rank 0 has written no step log"):
        steps.read(tmp_path)


def test_a_trainer_whose_worker_died_is_started_again_by_the_next_job(toy: Any, tmp_path: Path) -> None:
    trainer = toy("die_kill", at=4)
    with pytest.raises(PointFailure):
        trained(trainer, toy_job(), tmp_path / "first")
    assert not trainer.alive()
    assert trainer.pids() == []
    job = toy_job(steps=3)
    steps.verify(trained(trainer, job, tmp_path / "second"), job)
    assert trainer.alive()
    assert [path.is_file() for path in trainer.logs] == [True, True]
