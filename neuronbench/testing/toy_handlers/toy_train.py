"""A training handler whose device is a thread with a queue: standard library only. Made to misbehave on demand.

Loaded by a worker (see `neuronbench.testing.toy_trainer`), never imported. What it trains is one number that falls to
1; what it is asked to do wrong is its `behaviour`:

| behaviour | what is wrong |
|---|---|
| `plain` | nothing; calls are done when they return |
| `lazy` | nothing: calls only queue work, and the barrier waits for the device |
| `lazy_lying_barrier` | the same with a barrier that returns at once; the wait is paid after the step's timer |
| `naive_queue` | the same, and nobody waits before the end: what is left in the queue was in no timer |
| `no_barrier` | lazy, and steps are timed by hand, without any barrier |
| `nan_at` | from step `at` on the loss is not a number |
| `seed_ignored` | the seed changes nothing |
| `unrepeatable` | the same seed gives other losses each time |
| `world_multiplied` | every rank counts the tokens of all ranks as its own |
| `padding_counted` | padding is counted as tokens |
| `counts_before_adapter` | parameters are those of the model before the adapter was attached |
| `short` | training stops before `at` and says that it is done |
| `endless` | the end is never written |
| `crash_after_end` | all is done, and then the interpreter crashes while it ends |
| `ranks_disagree` | ranks report their own losses instead of the mean |
| `die_kill`, `die_raise`, `die_memory`, `die_hang`, `die_exit`, `die_torn` | ends so in step `at`, unless resumed |
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import queue
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from nb_worker.handlers.training.launch import AFTER  # type: ignore[import-not-found]
from nb_worker.training.steplog import StepLog, StepTimer, Timed  # type: ignore[import-not-found]

LAYERS, HIDDEN, HEADS, VOCABULARY = 2, 16, 2, 100
FROZEN, ADAPTER = 50_000, 2_000
RATE = 0.1
LAZY = ("lazy", "lazy_lying_barrier", "naive_queue", "no_barrier")
EXAMPLES = 64


class Device:
    """Does what it is given, one thing after the other, each in `work_s`; `room` things may wait in its queue."""

    def __init__(self, work_s: float, room: int) -> None:
        self._work_s = work_s
        self._queue: queue.Queue[None] = queue.Queue(maxsize=max(room, 1))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._queue.get()
            time.sleep(self._work_s)
            self._queue.task_done()

    def submit(self) -> None:
        """Returns as soon as there is room."""
        self._queue.put(None)

    def wait(self) -> None:
        """Returns when all is done."""
        self._queue.join()


class Handler:
    """See the README of `neuronbench/training`."""

    def __init__(
        self,
        progress: Callable[[str], None],
        behaviour: str = "plain",
        at: int = 3,
        work_ms: float = 4.0,
        queue_depth: int = 3,
    ) -> None:
        self._progress, self._behaviour, self._at = progress, behaviour, at
        self._device = Device(work_ms / 1e3, queue_depth)

    # -- data

    def prepare(self, job: dict[str, Any]) -> dict[str, Any]:
        self._progress("drawing lengths instead of tokenising")
        lengths = self._lengths(job)
        held = round(len(lengths) * job["holdout"])
        train, size = lengths[: len(lengths) - held], job["sequence_length"]
        return {
            "name": job["dataset"],
            "digest": sha256(lengths),
            "sequences": len(train),
            "tokens": sum(train),
            "padding_tokens": len(train) * size - sum(train),
            "holdout_sequences": held,
            "holdout_digest": sha256(lengths[len(train) :]) if held else None,
        }

    @staticmethod
    def _lengths(job: dict[str, Any]) -> list[int]:
        """Tokens of each sequence that are not padding."""
        return drawn(job["dataset"], job["dataset_limit"] or EXAMPLES, job["sequence_length"], job["packing"])

    # -- training

    def describe(self, job: dict[str, Any]) -> dict[str, Any]:
        adapter = job["adapter"] is not None
        trainable, frozen = (ADAPTER, FROZEN) if adapter else (FROZEN, 0)
        held_by_optimizer = trainable
        if self._behaviour == "counts_before_adapter":
            trainable, frozen = FROZEN, 0
        return {
            "barrier": "toy: waits for the queue" if self._behaviour in LAZY else "toy: synchronous",
            "parameters": {
                "trainable": trainable, "frozen": frozen, "total": trainable + frozen, "optimizer": held_by_optimizer,
                "adapter": adapter, "layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "vocabulary": VOCABULARY,
                "embedding": VOCABULARY * HIDDEN, "tied": True, "tp_degree": 1,
            },
            "dataset": {**self.prepare(job), "consumed": self._to_consume(job)},
            "init_digest": sha256([self._first_state(job)]),
            "recompute": job["recompute"],
            "attention": "causal",
        }  # fmt: skip

    def train(self, job: dict[str, Any], folder: str, resume: bool) -> dict[str, Any]:
        world = job["world_size"]
        step, state = self._resumed(folder, job) if resume else (0, self._first_state(job))
        lying = self._behaviour in ("lazy_lying_barrier", "naive_queue")
        timer = StepTimer((lambda: None) if lying or self._behaviour not in LAZY else self._device.wait, name="toy")
        logs = [StepLog(folder, rank) for rank in range(world)]
        described = self.describe(job)
        if self._behaviour == "no_barrier":
            described["barrier"] = None
        for rank, log in enumerate(logs):
            log.start(world_size=world, data_shard=[rank, world], resumed_from=step, job=job["digest"], **described)
        if step:
            now = time.monotonic_ns()
            for log in logs:
                log.restore(step, now, time.monotonic_ns())
        else:
            self._hold_out(logs[0], job, 0, state)
        resumed, last, reason = step > 0, job["steps"], "done"
        if self._behaviour == "short":
            last = self._at - 1
        while step < last:
            step += 1
            if step == self._at and self._behaviour.startswith("die_") and not resumed:
                self._die(logs[0])
            timed, loss, state = self._step(timer, job, step, state)
            for rank, log in enumerate(logs):
                own = loss + (0.01 * rank if self._behaviour == "ranks_disagree" else 0.0)
                rate = job["learning_rate"]
                log.step(
                    step, timed, loss=own, grad_norm=abs(state - 1), learning_rate=rate, **self._counts(job, step, rank)
                )
            if loss != loss and job["on_non_finite"] == "stop":
                reason = "non_finite"
                break
            if job["checkpoint_every"] and step % job["checkpoint_every"] == 0:
                begin = time.monotonic_ns()
                size, digest = self._checkpoint(folder, job, step, state)
                for log in logs:
                    log.checkpoint(step, begin, time.monotonic_ns(), size_bytes=size, digest=digest)
        self._device.wait()  # nothing can be brought to the host before it has been computed
        digest = self._checkpoint(folder, job, step, state, name="final.json")[1]
        total = timer.total()
        self._hold_out(logs[0], job, step, state)
        if self._behaviour != "endless":
            for log in logs:
                log.end(total, steps=step, reason=reason, final_digest=digest)
        if self._behaviour == "crash_after_end":
            with open(os.path.join(folder, AFTER), "w", encoding="utf-8") as file:
                file.write("rank 0: ended by SIGSEGV\n")
        return {"steps": step, "reason": reason}

    def _hold_out(self, log: Any, job: dict[str, Any], step: int, state: float) -> None:
        held = self.prepare(job)["holdout_sequences"]
        if held:
            log.evaluation(step, (state - 1) ** 2 + 0.05, held * job["sequence_length"], name="holdout", preferred=0.75)

    def _step(self, timer: Any, job: dict[str, Any], step: int, state: float) -> tuple[Any, float, float]:
        synchronous = self._behaviour not in LAZY
        by_hand = time.monotonic_ns()
        if self._behaviour != "no_barrier":
            timer.begin()
        for _ in range(job["accumulation"]):
            self._device.submit()
            if synchronous:
                self._device.wait()
        loss, state = self._learn(job, step, state)
        if self._behaviour == "no_barrier":
            now = time.monotonic_ns()
            return Timed(by_hand, now, now), loss, state
        timed = timer.finish()
        if self._behaviour == "lazy_lying_barrier":
            self._device.wait()  # the loss is read for the log, and the wait for it is in no timer
        return timed, loss, state

    def _learn(self, job: dict[str, Any], step: int, state: float) -> tuple[float, float]:
        seed = 0 if self._behaviour == "seed_ignored" else job["seed"]
        noise = random.Random(f"{seed} {step}").random()
        if self._behaviour == "unrepeatable":
            noise = random.SystemRandom().random()
        loss = (state - 1) ** 2 + 0.05 * noise
        if self._behaviour == "nan_at" and step >= self._at:
            loss = float("nan")
        return loss, state - RATE * 2 * (state - 1) + 0.001 * (noise - 0.5)

    @staticmethod
    def _first_state(job: dict[str, Any]) -> float:
        return 2.5 + random.Random(job["weights_seed"]).random()

    def _taken(self, job: dict[str, Any], step: int, rank: int) -> list[int]:
        """Lengths of the sequences that a rank takes in a step."""
        lengths = self._lengths(job)
        lengths = lengths[: len(lengths) - round(len(lengths) * job["holdout"])]
        count = job["batch_size"] * job["accumulation"]
        at = ((step - 1) * job["world_size"] + rank) * count
        return [lengths[(at + index) % len(lengths)] for index in range(count)]

    def _to_consume(self, job: dict[str, Any]) -> dict[str, int]:
        """What all ranks see in a whole run, by the order of sequences and their lengths alone."""
        ranks, steps = range(job["world_size"]), range(1, job["steps"] + 1)
        taken = [length for step in steps for rank in ranks for length in self._taken(job, step, rank)]
        tokens = sum(taken)
        return {
            "sequences": len(taken), "tokens": tokens, "padding_tokens": len(taken) * job["sequence_length"] - tokens,
        }  # fmt: skip

    def _counts(self, job: dict[str, Any], step: int, rank: int) -> dict[str, int]:
        taken = self._taken(job, step, rank)
        per_rank = len(taken)
        tokens, padding = sum(taken), per_rank * job["sequence_length"] - sum(taken)
        if self._behaviour == "world_multiplied":
            tokens, padding = tokens * job["world_size"], padding * job["world_size"]
        if self._behaviour == "padding_counted":
            tokens, padding = tokens + padding, 0
        return {
            "tokens": tokens, "padding_tokens": padding, "sequences": per_rank, "micro_batches": job["accumulation"],
        }  # fmt: skip

    # -- checkpoints

    @staticmethod
    def _checkpoint(
        folder: str, job: dict[str, Any], step: int, state: float, name: str = "checkpoint.json"
    ) -> tuple[int, str]:
        text = json.dumps({"job": job["digest"], "step": step, "state": state.hex()})
        path = os.path.join(folder, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)
        return len(text), hashlib.sha256(text.encode()).hexdigest()

    def _resumed(self, folder: str, job: dict[str, Any]) -> tuple[int, float]:
        try:
            return self._saved(folder, job, "checkpoint.json")
        except FileNotFoundError:
            return 0, self._first_state(job)

    @staticmethod
    def _saved(folder: str, job: dict[str, Any], name: str) -> tuple[int, float]:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            found = json.load(file)
        if found["job"] != job["digest"]:
            raise ValueError(f"the checkpoint is of job {found['job']}, asked was {job['digest']}")
        return found["step"], float.fromhex(found["state"])

    # -- what was trained

    def evaluate(self, job: dict[str, Any], folder: str, split: str) -> dict[str, Any]:
        _, state = self._saved(folder, job, "final.json")
        facts = self.prepare(job)
        tokens = facts["tokens"] if split == "train" else facts["holdout_sequences"] * job["sequence_length"]
        return {"loss": (state - 1) ** 2 + 0.05, "tokens": tokens}

    def export(self, job: dict[str, Any], folder: str, into: str, merged: bool) -> dict[str, Any]:
        _, state = self._saved(folder, job, "final.json")
        header = json.dumps({"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}).encode()
        data = len(header).to_bytes(8, "little") + header + int(state * 1e9).to_bytes(8, "little")
        name = "model.safetensors" if merged else "adapter_model.safetensors"
        with open(os.path.join(into, name), "wb") as file:
            file.write(data)
        return {"files": {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}}}

    # -- ends of all kinds

    def _die(self, log: Any) -> None:
        how = self._behaviour.removeprefix("die_")
        if how == "torn":
            os.write(log._file, b'{"kind": "step", "ste')
        if how in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "exit":
            os._exit(3)
        elif how == "raise":
            raise ValueError("the toy was told to raise")
        elif how == "memory":
            limit = 1 << 30
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            bytearray(4 * limit)
        elif how == "hang":
            print("about to hang", flush=True)
            time.sleep(600)


@functools.cache
def drawn(name: str, count: int, size: int, packed: bool) -> list[int]:
    draw = random.Random(name)
    return [size if packed else draw.randint(size // 2, size) for _ in range(count)]


def sha256(values: list[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()
