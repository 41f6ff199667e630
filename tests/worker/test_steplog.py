"""The step log of a rank and its timer: what cannot be said out of order, or without a barrier."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from neuronbench.training import steps
from neuronbench.worker.training.steplog import StepLog, StepTimer, Timed, plain


class Queue:
    """A device whose calls return at once; the work is done when somebody waits for it."""

    def __init__(self) -> None:
        self.done_ns = 0

    def submit(self, ms: float) -> None:
        self.done_ns = max(self.done_ns, time.monotonic_ns()) + round(ms * 1e6)

    def wait(self) -> None:
        while time.monotonic_ns() < self.done_ns:
            time.sleep(0.001)


def started(folder: Path, rank: int = 0) -> StepLog:
    log = StepLog(folder, rank)
    log.start(world_size=1, data_shard=[rank, 1], barrier="toy", job="j")
    return log


def entries(log: StepLog) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(log.path).read_text(encoding="utf-8").splitlines()]


def test_a_step_ends_when_the_device_has_finished_and_its_values_are_there() -> None:
    device = Queue()
    timer = StepTimer(device.wait, name="toy queue")
    timer.begin()
    device.submit(40)
    order: list[bool] = []

    def fetch() -> dict[str, float]:
        order.append(time.monotonic_ns() >= device.done_ns)
        return {"loss": 1.5}

    timed = timer.finish(fetch)
    assert order == [True]
    assert timed.end_ns >= device.done_ns > timed.returned_ns >= timed.begin_ns
    assert timed.values == {"loss": 1.5}
    begin, end = timer.total()
    assert begin == timed.begin_ns
    assert end >= timed.end_ns


@pytest.mark.parametrize("barrier", [None, "synchronize", 0])
def test_there_is_no_timer_without_a_barrier(barrier: Any) -> None:
    with pytest.raises(TypeError, match="waits until the device has finished"):
        StepTimer(barrier, name="none")
    with pytest.raises(ValueError, match="what the barrier is"):
        StepTimer(lambda: None, name=" ")


def test_a_timer_is_not_to_be_used_out_of_order() -> None:
    timer = StepTimer(lambda: None, name="n")
    with pytest.raises(RuntimeError, match="not been begun"):
        timer.finish()
    timer.begin()
    with pytest.raises(RuntimeError, match="not been finished"):
        timer.begin()
    with pytest.raises(RuntimeError, match="middle of a step"):
        timer.total()
    timer.abandon()
    timer.begin()
    timer.finish()
    timer.total()


def test_a_log_is_what_the_reader_reads(tmp_path: Path) -> None:
    log = started(tmp_path)
    timer = StepTimer(lambda: None, name="toy")
    counts = {"tokens": 8, "padding_tokens": 0, "sequences": 1, "micro_batches": 1}
    for number, loss in enumerate((2.0, float("nan"), float("-inf")), start=1):
        timer.begin()
        timed = timer.finish(lambda loss=loss: {"loss": loss})  # type: ignore[misc]
        log.step(number, timed, grad_norm=0.5, learning_rate=1e-3, **counts)
        assert len(entries(log)) == 1 + number  # each line is there when the call returns
    log.checkpoint(3, 1, 2, size_bytes=10, digest="d")
    log.evaluation(3, 1.0, 100, name="holdout")
    log.end(timer.total(), steps=3, reason="done", final_digest="f")
    read = steps.read(tmp_path)
    assert read.complete
    assert read.first_bad == 2
    assert read.losses[0] == 2.0
    assert read.first.checkpoints[0]["bytes"] == 10
    raw = entries(log)
    assert [entry.get("loss") for entry in raw if entry["kind"] == "step"] == [2.0, "nan", "-inf"]
    assert raw[0]["kind"] == "start"
    assert abs(raw[0]["utc_ns"] - time.time_ns()) < 600e9


def test_lines_come_in_order_only(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    with pytest.raises(RuntimeError, match="no start yet"):
        log.step(1, Timed(0, 0, 0))
    log.start()
    with pytest.raises(RuntimeError, match="started before"):
        log.start()
    with pytest.raises(ValueError, match="reason: expected done"):
        log.end((0, 0), steps=0, reason="fine")
    log.end((0, 0), steps=0, reason="stopped")
    with pytest.raises(RuntimeError, match="closed"):
        log.step(1, Timed(0, 0, 0))
    with pytest.raises(FileExistsError):
        StepLog(tmp_path)
    StepLog(tmp_path, rank=1).close()


def test_values_that_json_does_not_have() -> None:
    inf = float("inf")
    assert plain({"a": [inf, -inf, 1.0], "b": {"c": float("nan")}, "d": "x"}) == {
        "a": ["inf", "-inf", 1.0], "b": {"c": "nan"}, "d": "x",
    }  # fmt: skip


def test_it_needs_nothing_but_the_standard_library() -> None:
    folder = Path(steps.__file__).parent.parent / "worker" / "training"
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import steplog; print(steplog.REASONS)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
