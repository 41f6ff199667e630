"""Open loop: requests leave at their instants whatever the server does, and latency counts from those instants."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from load_helpers import LONG, VOCABULARY, Ran, Run, check_achieved, check_in_flight, mean_between

from neuronbench.load import arrivals as at
from neuronbench.load.plan import make_plan
from neuronbench.load.run import drive, reduce_run
from neuronbench.load.workload import synthetic, warm_up
from neuronbench.processes import spawn
from neuronbench.testing.truth_server import TruthServer


def test_requests_leave_at_their_instants(run: Run) -> None:
    ran = run(at.poisson(60, duration_s=2, lead_s=0.5, tail_s=2))
    assert ran.drive.status == "ok"
    assert ran.reduction.window["seconds"] == pytest.approx(2)
    rows = [row for row in ran.rows if not row["warmup"]]
    due = ran.plan.column("due_ns")
    begun = {row["scheduled_ns"] - int(due[row["body"]]) for row in rows}
    assert len(begun) == 1  # every request keeps the schedule's own instant
    assert all(row["sent_ns"] >= row["scheduled_ns"] for row in rows)
    inside = ran.inside
    opened = begun.pop() + 500_000_000
    assert {row["body"] for row in inside} == {
        k for k, d in enumerate(due.tolist()) if d >= 0 and 0 <= d - 500_000_000 < 2_000_000_000
    }
    assert ran.drive.opened_ns == opened
    check_achieved(ran)
    assert ran.plan.arrivals["scheduled"]["count"] == len(inside)


def with_records(ran: Ran, records: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Rows of the load in the order in which they left, each with what the server wrote down of it."""
    rows = sorted((row for row in ran.rows if not row["warmup"]), key=lambda row: row["sent_ns"])
    by_arrival = sorted(records, key=lambda record: record["received_ns"])
    return list(zip(rows, by_arrival[-len(rows) :], strict=True))


def test_trap_coordinated_omission_a_frozen_server_is_in_every_due_request(run: Run) -> None:
    """The server freezes for a second. Requests due meanwhile waited from their instant, and the metrics say so."""
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        ran = run(
            at.constant(50, duration_s=4, lead_s=0.5, tail_s=3),
            workload=synthetic(input_tokens=8, output_tokens=4),
            model="truth:freeze,after=75,ms=1000",
            url=server.url,
            warmup=warm_up(0),
        )
        truth = server.truth()
    assert ran.drive.status == "ok"
    inside = ran.inside
    assert len(inside) == 200  # none was left out because the server was slow
    ((frozen, thawed),) = truth["frozen_ns"]
    caught = [row for row in inside if frozen < row["scheduled_ns"] < thawed - 100_000_000]
    # of 50 requests a second due in that second, their waits go down evenly from 1,000 ms: a quarter of the window
    assert len(caught) == pytest.approx(45, abs=1)
    for row in caught:
        assert row["ttft_due_ms"] >= (thawed - row["scheduled_ns"]) / 1e6 > 100
    assert max(row["ttft_due_ms"] for row in caught) > 900
    assert ran["ttft_due_p99_ms"] > 900  # type: ignore[operator]
    third = sorted((thawed - row["sent_ns"]) / 1e6 for row in caught)[-3]
    assert ran["ttft_p99_ms"] >= third  # type: ignore[operator]  # the third largest of 200 is p99
    # And no wait is made up: by the server's own stamps each lies between its token's leaving and the answer's end.
    for row, record in with_records(ran, truth["requests"]):
        assert record["first_sent_ns"] <= row["first_output_ns"] <= record["done_ns"]


def test_a_saturated_server_queues_and_the_load_stays_open(run: Run) -> None:
    """50 requests a second against a server that does 20: a closed loop would slow down, this one must not."""
    with TruthServer(ttft_ms=40, tpot_ms=5, max_concurrency=1) as server:
        ran = run(
            at.constant(50, duration_s=1, lead_s=0, tail_s=0.5),
            workload=synthetic(input_tokens=4, output_tokens=2),
            url=server.url,
            warmup=warm_up(1),
        )
        records = server.truth()["requests"]
    assert ran.drive.status == "ok"
    assert len(ran.inside) == 50
    check_achieved(ran)
    opened, closed = ran.drive.opened_ns, ran.drive.closed_ns
    assert opened is not None
    assert closed is not None
    rows = [row for row in ran.rows if not row["warmup"]]
    assert ran["in_flight_requests"] == pytest.approx(mean_between(rows, "sent_ns", opened, closed))
    last = max(row["sent_ns"] for row in ran.inside)
    assert sum(row["sent_ns"] <= last < row["end_ns"] for row in rows) > 10
    pairs = [pair for pair in with_records(ran, records) if pair[0]["in_window"]]
    queued = [(record["admitted_ns"] - record["received_ns"]) / 1e6 for _, record in pairs]
    assert all(row["ttft_ms"] >= waited + 40 for (row, _), waited in zip(pairs, queued, strict=True))
    assert queued[-1] > 5 * 40
    assert queued[-1] > queued[0]


def test_sessions_wait_for_the_answer_and_the_think_time(run: Run) -> None:
    ran = run(
        at.sessions(20, turns=3, think_s=0.05, duration_s=2.5, lead_s=0.3, tail_s=1),
        workload=synthetic(input_tokens=6, output_tokens=3),
    )
    assert ran.drive.status == "ok"
    closed = ran.drive.closed_ns
    assert closed is not None
    by_session: dict[int, list[dict[str, int]]] = {}
    for row in ran.rows:
        if not row["warmup"]:
            by_session.setdefault(row["session"], []).append(row)
    think = ran.plan.column("think_ns")
    whole = 0
    for rows in by_session.values():
        rows.sort(key=lambda row: row["scheduled_ns"])
        assert [row["body"] for row in rows] == sorted(row["body"] for row in rows)
        for before, after in itertools.pairwise(rows):
            assert after["scheduled_ns"] == before["end_ns"] + think[after["body"]]
            assert after["input_tokens"] == before["input_tokens"] + 3 + 6
        whole += len(rows) == 3
        if len(rows) < 3:  # only because the load had come to its end
            assert rows[-1]["end_ns"] + think[rows[-1]["body"] + 1] >= closed
    assert whole >= 15


def test_a_failed_turn_ends_its_session(run: Run) -> None:
    ran = run(
        at.sessions(20, turns=3, think_s=0.0, duration_s=1, lead_s=0.1, tail_s=0.5),
        workload=synthetic(input_tokens=6, output_tokens=3),
        model="truth:bad_request",
        warmup=warm_up(0),
    )
    sessions = [row["session"] for row in ran.rows]
    assert len(sessions) == len(set(sessions))


def test_a_trace_is_replayed(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        "".join(f'{{"at_s": {k / 40}, "input_tokens": {4 + k % 5}, "output_tokens": {1 + k % 3}}}\n' for k in range(60))
    )
    trace = at.trace(path, format="jsonl", speed=2)
    ran = run(trace, workload=trace)
    assert ran.drive.status == "ok"
    assert ran.reduction.failures == {}
    assert len(ran.inside) == 60
    assert ran.reduction.gate("input_length").passed is True
    assert ran.reduction.window["seconds"] == pytest.approx(59 / 80, abs=0.01)


def test_a_burst_arrives_at_once(run: Run) -> None:
    ran = run(at.burst(40, size=10, duration_s=1, lead_s=0, tail_s=0.2))
    instants = [row["scheduled_ns"] for row in ran.inside]
    assert sorted(instants.count(i) for i in set(instants)) == [10, 10, 10, 10]


@pytest.mark.parametrize("processes", [2, 3])
def test_one_schedule_over_several_processes(run: Run, processes: int) -> None:
    ran = run(at.poisson(60, duration_s=1.5, lead_s=0.5, tail_s=1), processes=processes)
    assert ran.drive.status == "ok"
    assert len(ran.drive.workers) == processes
    rows = [row for row in ran.rows if not row["warmup"]]
    due = ran.plan.column("due_ns")
    assert len({row["scheduled_ns"] - int(due[row["body"]]) for row in rows}) == 1
    bodies = [row["body"] for row in rows]
    assert len(bodies) == len(set(bodies))
    assert {row["worker"] for row in rows} == set(range(processes))
    inside = {row["body"] for row in ran.inside}
    lead = 500_000_000
    assert inside == {k for k, d in enumerate(due.tolist()) if d >= 0 and 0 <= d - lead < 1_500_000_000}


def test_few_arrivals_at_a_low_rate_are_dealt_to_as_many_processes_as_there_are_requests(run: Run) -> None:
    arrivals = at.constant(2, duration_s=3, lead_s=0, tail_s=0)
    ran = run(arrivals, processes=6)  # more than are in flight at once, at two in a second
    assert int(ran.plan.arrivals["in_flight"]) < 6
    assert ran.drive.status == "ok"
    assert sorted(row["worker"] for row in ran.rows if not row["warmup"]) == list(range(6))
    with pytest.raises(ValueError, match=r"processes: expected 1 to 6 \(arrivals in all\), found 7"):
        run(arrivals, processes=7)


@pytest.mark.parametrize("arrivals", [at.closed_loop(5, requests=40), at.closed_loop(5, duration_s=0.7)])
def test_a_closed_loop_over_several_processes_keeps_its_concurrency(run: Run, arrivals: at.ClosedLoop) -> None:
    ran = run(arrivals, processes=2, model="truth:ttft=80")
    assert ran.drive.status == "ok", ran.drive.message
    check_in_flight(ran, 5)
    assert {row["worker"] for row in ran.inside} == {0, 1}
    bodies = [row["body"] for row in ran.rows]
    assert len(bodies) == len(set(bodies))
    if arrivals.requests:
        assert len(ran.inside) >= arrivals.requests


def test_one_worker_that_dies_ends_the_others(truth: TruthServer, tmp_path: Path) -> None:
    started: list[Any] = []
    killed: list[int] = []

    def remembering(*args: Any, **options: Any) -> Any:
        started.append(spawn(*args, **options))
        return started[-1]

    def progress(text: str) -> None:
        if text.startswith("window") and not killed:
            killed.append(started[1].pid)
            os.kill(started[1].pid, signal.SIGKILL)

    plan = make_plan(
        tmp_path / "plan",
        arrivals=at.closed_loop(4, duration_s=120),
        workload=synthetic(input_tokens=4, output_tokens=4),
        api="completions",
        model="truth",
        vocabulary=VOCABULARY,
    )
    result = drive(
        plan, base_url=truth.url, out=tmp_path / "out", spawn=remembering, processes=2, deadline_s=200, timeouts=LONG,
        progress=progress,
    )  # fmt: skip
    assert killed
    assert result.status == "killed"
    assert result.seconds < 100
    assert reduce_run(plan, tmp_path / "out", drive=result).gate("window_complete").passed is False
