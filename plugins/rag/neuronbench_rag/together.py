"""Embedder and language model beside each other: does one slow the other down, and do they have cores of their own?

Each stage is timed alone, then both without pause, then alone again: the pair is of one session, the same processes
and the same inputs, and the second time alone tells whether the machine has changed meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from neuronbench import Gate
from neuronbench_rag.generate import Said, ask, messages
from neuronbench_rag.pipeline import ANSWER_S

if TYPE_CHECKING:
    from neuronbench import Endpoint, Resource
    from neuronbench_rag.assemble import Assembled

IDLE_SHARE: Final = 0.05
"""Of a core: a side whose busiest thread used less of it did not compute here."""
BUSY_SHARE: Final = 0.25
"""Of what the busiest thread of its side used: a thread with less only looks after the others."""
DRIFT_LIMIT: Final = 0.1


def measure_together(measure: Any, setup: Assembled, *, seconds: float) -> None:
    """Alone, together, alone; `seconds` each. Records the pairs and where the threads ran."""
    pipeline = setup.pipeline
    endpoint = pipeline.endpoint
    assert endpoint is not None
    texts = [question.text for question in setup.corpus.questions]
    prompts = [
        messages(question.text, [setup.corpus.passages[id] for id in list(question.grades)[: pipeline.shown]])
        for question in setup.corpus.questions
    ]

    def embed(number: int) -> dict[str, float]:
        begun = time.monotonic_ns()
        setup.embedder.embed([texts[number % len(texts)]])
        return {"embed": (time.monotonic_ns() - begun) / 1e6}

    def answer(number: int) -> dict[str, float]:
        said = ask(endpoint, prompts[number % len(prompts)], max_tokens=pipeline.max_tokens, timeout_s=ANSWER_S)
        return _of(said)

    embed(0)
    answer(0)
    alone = [_phase([embed], seconds), _phase([answer], seconds)]
    before = _threads(setup, endpoint)
    both = _phase([embed, answer], seconds)
    cores_gate(measure, before, _threads(setup, endpoint), seconds)
    again = [_phase([embed], seconds), _phase([answer], seconds)]
    for stage in ("embed", "prefill", "decode"):
        first = [time for phase in alone for time in phase.get(stage, ())]
        second = [time for phase in again for time in phase.get(stage, ())]
        _pair(measure, stage, first, second, both.get(stage, []))


def _of(said: Said) -> dict[str, float]:
    found = {"prefill": (said.first_ns - said.sent_ns) / 1e6}
    if said.output_tokens and said.output_tokens > 1:
        found["decode"] = (said.last_ns - said.first_ns) / 1e6 / (said.output_tokens - 1)
    return found


def _phase(steps: Sequence[Callable[[int], dict[str, float]]], seconds: float) -> dict[str, list[float]]:
    """Each step in a thread of its own, over and over; what ended within the time, by stage."""
    found: dict[str, list[float]] = {}
    failed: list[BaseException] = []
    until = time.monotonic() + seconds

    def again(step: Callable[[int], dict[str, float]]) -> None:
        try:
            number = 0
            while time.monotonic() < until:
                times = step(number)
                number += 1
                if time.monotonic() < until or number == 1:
                    for stage, took in times.items():
                        found.setdefault(stage, []).append(took)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=again, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return found


def _pair(measure: Any, stage: str, first: list[float], second: list[float], both: list[float]) -> None:
    alone = [*first, *second]
    if not (first and second and both):
        measure.metric("slowdown", None, stat=stage, note="the stage did not end once in one of the phases: longer")
        return
    calm, busy = float(np.median(alone)), float(np.median(both))
    per = "a token" if stage == "decode" else "a query"
    measure.metric("alone", calm, stat=f"{stage}_p50", n=len(alone), note=per)
    measure.metric("together", busy, stat=f"{stage}_p50", n=len(both), note=per)
    measure.metric("slowdown", busy / calm, stat=stage, n=len(both))
    one, other = float(np.median(first)), float(np.median(second))
    drift = abs(other / one - 1)
    measure.gate(
        Gate(
            id=f"alone_is_stable_{stage}", passed=drift <= DRIFT_LIMIT, observed=round(drift, 4), limit=DRIFT_LIMIT,
            unit="share", severity="provisional",
            message="" if drift <= DRIFT_LIMIT else f"alone before {one:.4g} ms, after {other:.4g} ms: what else ran?",
        )
    )  # fmt: skip


# -- where the threads are


def _threads(setup: Assembled, endpoint: Endpoint) -> dict[str, dict[int, tuple[float, frozenset[int]]]]:
    """Side → thread → CPU seconds and the host's cores it may use; empty where the system does not tell."""
    sides = {"embedder": setup.leased.get("compiled_model") or setup.leased.get("embed_endpoint"), "model": endpoint}
    return {side: _of_tree(resource) if resource is not None else {} for side, resource in sides.items()}


def _of_tree(resource: Resource) -> dict[int, tuple[float, frozenset[int]]]:
    import psutil

    found: dict[int, tuple[float, frozenset[int]]] = {}
    for pid in resource.pids():
        try:
            root = psutil.Process(pid)
            tree = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        for process in tree:
            for task in Path(f"/proc/{process.pid}/task").glob("[0-9]*"):
                try:
                    fields = (task / "stat").read_text().rpartition(")")[2].split()
                    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                    found[int(task.name)] = (used, frozenset(os.sched_getaffinity(int(task.name))))
                except (OSError, ValueError, IndexError):
                    continue  # it has ended
    return found


def cores_gate(
    measure: Any,
    before: dict[str, dict[int, tuple[float, frozenset[int]]]],
    after: dict[str, dict[int, tuple[float, frozenset[int]]]],
    seconds: float,
) -> None:
    """Whether the threads that computed while both worked could use a core in common."""
    cores: dict[str, set[int]] = {}
    for side, threads in after.items():
        used = {number: total - before[side].get(number, (0.0,))[0] for number, (total, _) in threads.items()}
        most = max(used.values(), default=0.0)
        if most >= IDLE_SHARE * seconds:
            busy = [threads[number][1] for number, took in used.items() if took >= BUSY_SHARE * most]
            cores[side] = set().union(*busy)
    shown = {side: sorted(found) for side, found in cores.items()}
    measure.record.workload["together"] = {"host_cores": shown, "phase_s": seconds}
    if len(cores) < 2:
        passed, why = None, "no thread of one side was seen to compute on this host: its device does, or it was idle"
    else:
        shared = set.intersection(*cores.values())
        passed = not shared
        why = (
            ""
            if passed
            else f"both may use the host's cores {sorted(shared)}: pin them (embed_threads, omp_threads_bind)"
        )
    measure.gate(Gate(id="cores_are_disjoint", passed=passed, observed=str(shown), severity="provisional", message=why))
