"""The protocol and every way in which a worker can fail, with real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from neuronbench.protocols import DeadlineExceeded, PointFailure
from neuronbench.stacks import clean_environment
from neuronbench.testing import toy_model
from neuronbench.worker import client, main
from neuronbench.worker.batches import to_tensors
from neuronbench.worker.client import Worker

OWN_TIME = Path(__file__).parent / "own_time"
BATCH = {
    "input_ids": np.arange(16, dtype="int64").reshape(2, 8),
    "attention_mask": np.ones((2, 8), dtype="int64"),
}


def end(worker: Worker, how: str, deadline_s: float = 200.0) -> Any:
    return worker.call("end", {"how": how}, deadline_s=deadline_s).value


def failure_of(worker: Worker, how: str, deadline_s: float = 200.0) -> Any:
    with pytest.raises(PointFailure) as caught:
        end(worker, how, deadline_s)
    return caught.value.failure


def test_a_worker_says_who_it_is_and_does_what_its_handler_can(start) -> None:
    worker = start()
    assert worker.hello["protocol"] == main.PROTOCOL
    assert worker.hello["pid"] == worker.pid
    facts = worker.call("facts", deadline_s=200).value
    assert facts["device"] == "pause"
    assert facts["executable"] == sys.executable
    assert end(worker, "nothing") == "well"
    worker.stop()
    assert not psutil.pid_exists(worker.pid)
    worker.stop()  # again is no error


def test_tensors_travel_both_ways_and_leave_no_file(start, tmp_path: Path) -> None:
    worker = start()
    answer = worker.call("outputs", inputs=to_tensors(BATCH), deadline_s=200).tensors["hidden"].numpy()
    ids = BATCH["input_ids"]
    assert np.allclose(answer, ids + ids.mean(axis=1, keepdims=True))
    assert answer.dtype == np.float32
    assert list((tmp_path / "toy.io").iterdir()) == []


def test_progress_is_heard_while_the_answer_is_awaited(start, tmp_path: Path) -> None:
    heard: list[str] = []
    start().call("compile", {"target": str(tmp_path)}, deadline_s=200, progress=heard.append)
    assert heard == ["pausing instead of compiling"]


def test_a_worker_is_pinned_to_the_cores_it_is_told(start) -> None:
    core = min(os.sched_getaffinity(0))
    assert psutil.Process(start(cores=[core]).pid).cpu_affinity() == [core]


def test_what_is_printed_goes_to_the_log_and_not_to_the_protocol(start) -> None:
    worker = start()
    assert end(worker, "print") == "well"
    text = worker.log.read_text()
    assert "chatter of a library" in text
    assert "chatter below Python" in text
    assert worker.noise_bytes == 0


@pytest.mark.parametrize(
    "data", ["garbage without an end", "a\nb\n\n", '{"nb": 7}\n', "[1]\n", "\x00\xff\n", '{"nb": 1}\n']
)
def test_garbage_on_the_pipe_is_put_aside(start, data: str) -> None:
    worker = start()
    assert worker.call("spoil", {"data": data}, deadline_s=200).value == "well"
    assert end(worker, "nothing") == "well"
    assert worker.noise_bytes > 0
    assert "[on the protocol's pipe]" in worker.log.read_text(errors="replace")


def test_an_interpreter_that_prints_as_it_starts_is_tolerated(start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello from the site')\n")
    worker = start(env={**clean_environment(), "PYTHONPATH": str(tmp_path)})
    assert end(worker, "nothing") == "well"
    assert worker.noise_bytes == len("hello from the site")


def test_endless_garbage_is_a_failure(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "NOISE_LIMIT_BYTES", 1 << 16)
    worker = start()
    with pytest.raises(PointFailure) as caught:
        worker.call("spoil", {"data": "x" * 1023 + "\n", "times": 10_000}, deadline_s=200)
    assert caught.value.failure.kind == "worker_protocol"
    assert not worker.alive()


def test_an_exception_is_classified_and_the_worker_lives_on(start) -> None:
    worker = start()
    failure = failure_of(worker, "raise")
    assert failure.kind == "worker_exception"
    assert failure.phase == "window"
    assert failure.causal_line == "ValueError: the toy was told to raise"
    assert "toy.py" in failure.traceback
    assert failure.log == "toy.log"
    assert worker.alive()
    assert end(worker, "nothing") == "well"


def test_memory_that_cannot_be_had_is_out_of_memory(start) -> None:
    failure = failure_of(start(), "memory")
    assert failure.kind == "host_oom"
    assert failure.remedy


@pytest.mark.parametrize(("how", "kind", "status"), [("kill", "killed", -signal.SIGKILL), ("exit", "worker_exited", 3)])
def test_a_worker_that_ends_is_classified_by_how_it_ended(start, how: str, kind: str, status: int) -> None:
    worker = start()
    failure = failure_of(worker, how)
    assert (failure.kind, failure.exit_status) == (kind, status)
    assert "busy with 'end'" in failure.message
    assert not worker.alive()


def test_a_worker_killed_while_idle_says_so(start) -> None:
    worker = start()
    os.kill(worker.pid, signal.SIGKILL)
    worker.process.wait(100)
    assert not worker.alive()
    failure = worker.diagnose("window")
    assert failure is not None
    assert failure.kind == "killed"
    assert "idle" in failure.message
    with pytest.raises(PointFailure, match="killed"):
        end(worker, "nothing")


def test_a_worker_that_does_not_answer_is_ended_at_the_deadline(start) -> None:
    worker = start()
    with pytest.raises(DeadlineExceeded) as caught:
        end(worker, "hang", deadline_s=3.0)
    failure = caught.value.failure
    assert failure.kind == "worker_timeout"
    assert failure.causal_line == "about to hang"
    assert not psutil.pid_exists(worker.pid)


def test_a_worker_left_in_the_middle_of_an_answer_is_of_no_more_use(start) -> None:
    worker = start()
    worker.begin("end", {"how": "hang"})
    assert not worker.alive()
    with pytest.raises(RuntimeError, match="one request at a time"):
        worker.begin("facts")


@pytest.mark.parametrize("how", ["not_json", "not_a_number"])
def test_an_answer_that_cannot_be_written_is_the_handlers_error(start, how: str) -> None:
    worker = start()
    assert failure_of(worker, how).kind == "worker_exception"
    assert end(worker, "nothing") == "well"


def test_a_verb_that_is_not_there_is_named(start) -> None:
    with pytest.raises(PointFailure, match="no verb 'fly'"):
        start().call("fly", deadline_s=200)
    with pytest.raises(PointFailure, match="no verb '_wait'"):
        start(name="other").call("_wait", deadline_s=200)


def test_an_interpreter_that_is_not_there_is_a_missing_stack(start, tmp_path: Path) -> None:
    with pytest.raises(PointFailure) as caught:
        start(python=tmp_path / "no" / "python")
    assert caught.value.failure.kind == "stack_missing"
    assert not (tmp_path / "toy.io").exists()


def test_a_handler_that_cannot_be_imported_is_classified_and_nothing_stays(start, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import a_module_that_is_not_there\n")
    with pytest.raises(PointFailure) as caught:
        start(handlers=tmp_path, module="broken", arguments={})
    assert caught.value.failure.kind == "missing_module"
    assert caught.value.failure.phase == "boot"
    assert not list((tmp_path / "pids").iterdir())


def test_a_program_that_speaks_another_protocol_is_refused(spawn, tmp_path: Path) -> None:
    other = tmp_path / "other.sh"
    other.write_text('#!/bin/sh\necho \'{"nb": 1, "type": "hello", "protocol": 99}\'\nsleep 600\n')
    other.chmod(0o755)
    launch = toy_model.launch(python=other)
    with pytest.raises(PointFailure) as caught:
        Worker.start(launch, name="other", folder=tmp_path, spawn=spawn, deadline_s=200)
    assert caught.value.failure.kind == "worker_protocol"
    assert "99" in caught.value.failure.message


MEETING = """
import os, time


class Handler:
    def __init__(self, progress, folder):
        self.folder = folder

    def meet(self, name, other):
        open(os.path.join(self.folder, name), "w").close()
        until = time.monotonic() + 200
        while not os.path.exists(os.path.join(self.folder, other)):
            if time.monotonic() > until:
                raise RuntimeError("the other one is not busy")
            time.sleep(0.01)
        return "met"
"""


def test_two_workers_are_busy_at_the_same_time(start, tmp_path: Path) -> None:
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "meeting.py").write_text(MEETING)
    names = ["one", "other"]
    workers = [
        start(name=name, handlers=tmp_path / "handlers", module="meeting", arguments={"folder": str(tmp_path)})
        for name in names
    ]
    for worker, name, other in zip(workers, names, reversed(names), strict=True):
        worker.begin("meet", {"name": name, "other": other})  # neither ends before the other has begun
    assert [worker.finish(deadline_s=250).value for worker in workers] == ["met", "met"]


def test_windows_of_two_workers_have_the_same_edges(start) -> None:
    workers = [start(name=f"toy-{index}", work_us=1000, handlers=OWN_TIME) for index in range(2)]
    for worker in workers:
        worker.call("bind", inputs=to_tensors(BATCH), deadline_s=200)
    go = time.monotonic_ns() + 300_000_000
    close = go + 200_000_000
    for worker in workers:
        worker.begin("run_throughput", {"go_ns": go, "close_ns": close, "capacity": 1, "limit": 10_000})
    replies = [worker.finish(deadline_s=200) for worker in workers]
    begun = [reply.value["begun_ns"] + reply.value["clock_offset_ns"] for reply in replies]
    ended = [reply.tensors["stamps_ns"].numpy()[-1] + reply.value["clock_offset_ns"] for reply in replies]
    assert all(go <= instant < go + 1_000_000 for instant in begun)
    assert all(close <= instant < close + 2_000_000 for instant in ended)


def test_the_program_needs_nothing_but_the_standard_library() -> None:
    import ast

    folder = Path(main.__file__).parent
    for name in ("main.py", "loops.py", "tensors.py"):
        tree = ast.parse((folder / name).read_text())
        top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = {alias.name.split(".")[0] for node in top if isinstance(node, ast.Import) for alias in node.names}
        names |= {(node.module or "").split(".")[0] for node in top if isinstance(node, ast.ImportFrom)}
        assert names <= sys.stdlib_module_names, name
