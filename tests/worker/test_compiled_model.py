"""A compiled model in workers: inputs, calls, loops, copies, and its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from neuronbench import processes
from neuronbench.protocols import CompiledModel, InputSpec, PointFailure
from neuronbench.testing.toy_model import launch
from neuronbench.worker import batches
from neuronbench.worker.copies import Plan, start_copies


def test_it_is_what_the_protocol_promises(toy) -> None:
    assert isinstance(toy(), CompiledModel)


def test_latency_has_every_call_and_its_digest(toy) -> None:
    model = toy(work_us=500)
    run = model.latency(calls=20, warmup=2)
    (loop,) = run.loops
    assert run.calls == 20
    assert len(run.durations_ms()) == 20
    assert run.durations_ms()[0] >= 0.5
    assert run.batch_digest == batches.digest(model.batch())
    assert loop.begun_ns < loop.ends_ns[0] < loop.ends_ns[-1]
    assert np.allclose(np.diff(loop.ends_ns)[:], loop.durations_ns[1:], atol=200_000)
    assert run.wall_rate() <= 2 / 0.0005


def test_throughput_counts_what_ended_inside_the_window_over_all_copies(toy) -> None:
    model = toy(work_us=2000)
    copies = min(2, model.max_workers)
    run = model.throughput(seconds=0.5, workers=copies)
    start, end = run.span_ns
    assert end - start == 500_000_000
    assert len(run.loops) == copies
    assert len(set(model.pids())) == copies
    for loop in run.loops:
        assert loop.begun_ns <= start
        assert loop.ends_ns[-1] > end
        assert int(run.inside(loop).sum()) == sum(start < instant <= end for instant in loop.ends_ns)
    finished = sum(int(run.inside(loop).sum()) for loop in run.loops)
    assert run.rate() == pytest.approx(2 * finished / 0.5)
    again = model.throughput(seconds=0.1, workers=1)
    assert len(again.loops) == 1  # the other copy stays, idle


def test_more_copies_than_fit_are_refused(toy) -> None:
    model = toy()
    with pytest.raises(ValueError, match=f"workers: expected 1 to {model.max_workers}"):
        model.throughput(seconds=0.1, workers=model.max_workers + 1)
    with pytest.raises(ValueError, match="calls"):
        model.latency(calls=0)
    with pytest.raises(ValueError, match="seconds"):
        model.throughput(seconds=0)


def test_outputs_are_of_the_inputs_given_and_the_batch_in_use_stays(toy) -> None:
    model = toy(work_us=10)
    other = model.batch(seed=5)
    expected = other["input_ids"] + other["input_ids"].mean(axis=1, keepdims=True)
    assert np.allclose(model.outputs(other)["hidden"], expected)
    assert np.allclose(model.reference(other)["hidden"], expected)
    assert not np.allclose(model.outputs()["hidden"], expected)
    assert np.allclose(model.call(other).outputs["hidden"], expected)
    assert np.allclose(model.outputs()["hidden"], expected)  # a call's batch is in use from then on


def test_a_call_has_the_workers_duration_and_tells_the_clock(toy) -> None:
    model = toy(work_us=1000)
    told: list[int] = []
    model.clock = told.append
    first = model.call()
    assert first.duration_ns >= 1_000_000
    assert told == [first.duration_ns]
    calls = model.single_calls()
    assert (calls.count, calls.duration_ns) == (1, first.duration_ns)
    assert calls.cpu_ns > 0
    assert first.outputs["hidden"].shape == (2, 8)
    model.call()
    with pytest.raises(RuntimeError, match="until the next call"):
        _ = first.outputs


def test_single_calls_of_an_asynchronous_device_are_noticed(toy) -> None:
    honest, fast = toy("plain", work_us=2000), toy("asynchronous", work_us=2000)
    assert honest.single_calls_escape() is None
    for model in (honest, fast):
        for _ in range(5):
            model.call()
    assert honest.single_calls_escape() < 0.5 < fast.single_calls_escape()


def test_inputs_of_the_wrong_shape_type_or_name_are_refused(toy) -> None:
    model = toy()
    batch = dict(model.batch())
    with pytest.raises(ValueError, match="expected input_ids, attention_mask; found input_ids"):
        model.outputs({"input_ids": batch["input_ids"]})
    with pytest.raises(ValueError, match=r"compiled for int64 \[2, 8\], found int64 \[1, 8\]"):
        model.outputs({**batch, "input_ids": batch["input_ids"][:1]})
    with pytest.raises(ValueError, match="found float64"):
        model.outputs({**batch, "input_ids": batch["input_ids"].astype(float)})


def test_a_model_that_minds_its_mask_does_not_care_for_the_padding(toy) -> None:
    assert toy("plain", work_us=10).mask_error() == 0.0
    assert toy("ignores_mask", work_us=10).mask_error() > 0.1


def test_a_killed_copy_makes_the_model_dead_with_a_cause(toy) -> None:
    model = toy()
    os.kill(model.pids()[0], signal.SIGKILL)
    with pytest.raises(PointFailure) as caught:
        model.latency(calls=5)
    assert caught.value.failure.kind == "killed"
    assert not model.alive()
    found = model.diagnose("window")
    assert found is not None
    assert found.kind == "killed"


def test_stopping_ends_every_copy(toy) -> None:
    model = toy()
    model.team(model.max_workers)
    pids = list(model.pids())
    model.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert model.pids() == []


SPECS = [
    InputSpec(name="input_ids", dtype="int64", shape=(3, 6), kind="token_ids", low=1, high=50),
    InputSpec(name="attention_mask", dtype="int64", shape=(3, 6), kind="attention_mask"),
    InputSpec(name="types", dtype="int64", shape=(3, 6), kind="zeros"),
    InputSpec(name="pixels", dtype="float32", shape=(3, 4, 4)),
]


def test_batches_are_the_same_for_a_seed_and_padded_as_told() -> None:
    one, same, other = batches.make(SPECS, 1), batches.make(SPECS, 1), batches.make(SPECS, 2)
    assert batches.digest(one) == batches.digest(same) != batches.digest(other)
    assert {name: (str(a.dtype), a.shape) for name, a in one.items()} == {s.name: (s.dtype, s.shape) for s in SPECS}
    assert one["input_ids"].min() >= 1
    assert one["input_ids"].max() < 50
    assert one["attention_mask"].all()
    alone = batches.make(SPECS[3:], 1)
    assert np.array_equal(alone["pixels"], one["pixels"])  # an input more leaves the others as they were
    padded = batches.make(SPECS, 1, lengths=[6, 2, 1])
    assert padded["attention_mask"].sum(axis=1).tolist() == [6, 2, 1]
    assert (padded["input_ids"][1, 2:] == 1).all()
    assert np.array_equal(padded["input_ids"][0], one["input_ids"][0])
    changed = batches.other_padding(SPECS, padded, [6, 2, 1])
    assert changed is not None
    assert (changed["input_ids"][1, 2:] == 49).all()
    assert np.array_equal(changed["input_ids"][1, :2], padded["input_ids"][1, :2])
    assert batches.other_padding(SPECS[3:], alone, [1, 1, 1]) is None


@pytest.mark.parametrize("lengths", [[1, 2], [0, 1, 1], [7, 1, 1]])
def test_lengths_that_do_not_fit_are_refused(lengths) -> None:
    with pytest.raises(ValueError, match="lengths: expected 3 from 1 to 6"):
        batches.make(SPECS, 1, lengths)


MEETING = """
import os, time


class Handler:
    synchronize = None

    def __init__(self, progress):
        pass

    def load(self, folder, wanted):
        open(os.path.join(folder, str(os.getpid())), "w").close()
        until = time.monotonic() + 30
        while len(os.listdir(folder)) < wanted:
            if time.monotonic() > until:
                raise RuntimeError("the others did not come")
            time.sleep(0.01)
        if wanted > 2:
            raise RuntimeError("this one cannot be loaded")
        return {"inputs": [], "outputs": [], "seconds": 0.0}
"""


@pytest.mark.parametrize("wanted", [2, 3])
def test_further_copies_are_loaded_at_the_same_time_or_none_of_them_runs(tmp_path: Path, wanted: int) -> None:
    handlers, meeting = tmp_path / "handlers", tmp_path / "meeting"
    for folder in (handlers, meeting):
        folder.mkdir()
    (handlers / "meeting.py").write_text(MEETING)
    start = launch(handlers=handlers, module="meeting", arguments={})
    started: list[Any] = []

    def spawn(*args: Any, **kwargs: Any) -> Any:
        started.append(processes.spawn(*args, pid_dir=tmp_path / "pids", **kwargs))
        return started[-1]

    plan = Plan(
        launch=lambda index: start, load={"folder": str(meeting), "wanted": wanted}, reference=start, folder=tmp_path,
        spawn=spawn, name="copies", call_deadline_s=60.0, load_deadline_s=60.0,
    )  # fmt: skip
    if wanted == 2:
        workers = start_copies(plan, range(1, 3))
        assert [worker.alive() for worker in workers] == [True, True]
        for worker in workers:
            worker.stop()
    else:
        with pytest.raises(PointFailure, match="this one cannot be loaded"):
            start_copies(plan, range(1, 4))
    assert not any(process.alive() for process in started)
