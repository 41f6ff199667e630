"""What happens on the way to a team's server, and what is there in the end, as PostgreSQL and S3 say it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic_receipts as synthetic
from sink_helpers import settings_at

from neuronbench.config import Settings
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.mlflow import MlflowSink, push
from neuronbench.sinks.mlflow.patience import Outage
from neuronbench.testing.tracking import boxes
from neuronbench.testing.tracking.audit import audit
from neuronbench.testing.tracking.flaky import KINDS, RESET_AFTER, first_of_each
from neuronbench.testing.tracking.simulation import Outcome, Plan, percentile, simulate
from neuronbench.testing.tracking.team import Team

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def untouched(team: Team) -> Team:
    """The server with nobody's experiment for the lane: that of others gets another name."""
    found = team.call("/api/2.0/mlflow/experiments/search", {"max_results": 1000}, admin=True)
    for each in found.get("experiments", []):
        if each["name"] == f"neuronbench/{boxes.LANE}":
            body = {"experiment_id": each["experiment_id"], "new_name": f"{each['name']} {each['experiment_id']}"}
            team.call("/api/2.0/mlflow/experiments/update", body, admin=True)
    return team


def whole(outcome: Outcome) -> None:
    """Every receipt has its run, and all that is said of them is true."""
    assert outcome.failures == []
    assert outcome.problems == []
    assert outcome.audit.problems == []
    assert outcome.audit.runs == outcome.audit.receipts > 0
    assert (outcome.audit.missing, outcome.audit.doubled, outcome.audit.open) == (0, 0, 0)


def test_boxes_that_push_at_once_with_requests_figures_and_traces(untouched: Team, tmp_path: Path) -> None:
    """They meet in one experiment, which none has made, and in its datasets: all measured the same requests."""
    outcome = simulate(untouched, Plan(boxes=3, points=2, requests_every=2, traces=2), tmp_path)
    whole(outcome)
    assert (outcome.audit.runs, outcome.audit.parents, outcome.delivered) == (9, 3, 9)
    assert outcome.audit.traces == 6
    assert outcome.audit.metrics == 3 * (2 * 40 + 1)


def test_three_pushers_of_the_same_receipts_make_one_set_of_runs(team: Team, tmp_path: Path) -> None:
    outcome = simulate(team, Plan(boxes=3, copies=3, points=3), tmp_path)
    whole(outcome)
    assert (outcome.audit.runs, outcome.audit.parents) == (4, 1)
    assert outcome.delivered + outcome.already == 3 * 4


def test_pushers_that_are_killed_and_a_server_that_is_too(team: Team, tmp_path: Path) -> None:
    """Two hold the same; both are killed in the middle of a receipt, and the server while they are back at it."""
    outcome = simulate(team, Plan(boxes=2, copies=2, points=4, kill_after=1, restart_after=5), tmp_path)
    whole(outcome)
    assert (outcome.audit.runs, outcome.audit.parents) == (5, 1)
    assert team.server.child is not None


def test_a_proxy_that_fails_in_every_way(team: Team, tmp_path: Path) -> None:
    outcome = simulate(team, Plan(boxes=2, points=4, flaky=0.2), tmp_path)
    whole(outcome)
    assert outcome.proxy.keys() >= set(KINDS)
    assert outcome.retries > 0


def test_every_sort_of_request_is_done_and_its_answer_lost(team: Team, tmp_path: Path) -> None:
    plan = Plan(boxes=1, points=2, requests_every=2, traces=1)
    outcome = simulate(team, plan, tmp_path, choose=first_of_each(RESET_AFTER))
    whole(outcome)
    assert outcome.proxy[RESET_AFTER] >= 8  # among them: parents, runs, batches, datasets, artifacts, traces, ends
    assert outcome.audit.taken_back > 0  # the run that was made twice


def test_the_audit_sees_what_is_lost_doubled_open_or_not_whole(team: Team, tmp_path: Path) -> None:
    import psycopg

    simulated = simulate(team, Plan(boxes=1, points=3), tmp_path)
    whole(simulated)
    wanted = list(boxes.expected(tmp_path / "box-000" / "mlruns"))
    points = [each for each in wanted if each.inputs]
    with psycopg.connect(team.database.address(), autocommit=True) as connection:

        def run_of(receipt: str) -> str:
            query = "SELECT run_uuid FROM tags WHERE key = 'nb.receipt' AND value = %s"
            ((run,),) = connection.execute(query, (receipt,)).fetchall()
            return str(run)

        first, second, third = (run_of(each.receipt) for each in points)
        connection.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = %s", (first,))
        connection.execute("UPDATE tags SET value = %s WHERE key = 'nb.receipt' AND run_uuid = %s",
                           (points[2].receipt, second))  # fmt: skip
        connection.execute("UPDATE runs SET status = 'RUNNING' WHERE run_uuid = %s", (third,))
    found = audit(team, wanted)
    assert (found.missing, found.doubled, found.open) == (2, 1, 1)
    assert not found.ok
    shutil.rmtree(tmp_path / "box-000" / "mlruns" / "receipts")
    boot = next(each for each in wanted if not each.inputs)
    bigger = boxes.Expected(**{**vars(boot), "files": {"record.json": 1}, "metrics": 9, "params": 9, "traces": 9})
    told = " ".join(audit(team, [bigger]).problems)
    for word in ("9 with", "expected 9", "of another size, in S3: ['record.json']", "no box has that receipt"):
        assert word in told


# -- without a server --------------------------------------------------------------------------------------------------


def test_the_pauses_grow_differ_and_end() -> None:
    slept: list[float] = []
    outage, said = Outage(100.0, sleep=slept.append), list[str]()
    assert all(outage.wait(said.append) for _ in range(8))
    assert all(pause <= 15.0 for pause in slept)
    assert slept[0] <= 0.5 < slept[2] < slept[-1]
    assert "trying again in" in said[0]
    outage.over()
    assert outage.wait(said.append)
    assert slept[-1] <= 0.5
    assert not Outage(0.0, sleep=slept.append).wait(said.append)


def test_percentiles_are_by_nearest_rank() -> None:
    assert [percentile([1.0, 2.0, 3.0, 4.0], share) for share in (50, 99)] == [2.0, 4.0]
    assert percentile([], 50) is None


def test_what_two_boxes_call_the_same_is_not_taken_for_delivered(
    settings: Settings, store: ReceiptStore, tmp_path: Path
) -> None:
    """Their clocks and their dice agreed on a session id; the second box's receipts must not go under."""
    session = store.begin_session(settings)
    synthetic.put(store, synthetic.record(session, ttft=58.0))
    store.end_session(session, 0)
    assert push(settings).ok
    other = settings_at(tmp_path / "other", tracking_uri=settings.mlflow_uri)
    there = ReceiptStore(other.receipts_dir)
    (there.root / session).mkdir(parents=True)
    path = synthetic.put(there, synthetic.record(session, ttft=99.0))
    result = push(other)
    ((receipt, reason),) = result.failed
    assert (receipt, result.already) == (there.read(path).id, ())
    assert "is of another receipt with the same session and name" in reason


def test_a_receipt_that_another_release_has_laid_out_otherwise_is_known_again(
    settings: Settings, store: ReceiptStore, tmp_path: Path, reader: Callable[..., object]
) -> None:
    session = store.begin_session(settings)
    path = synthetic.put(store, synthetic.record(session))
    store.end_session(session, 0)
    assert push(settings).ok
    import sqlite3

    with sqlite3.connect(settings.database) as database:
        database.execute("UPDATE tags SET value = 'other' WHERE key = 'nb.receipt.digest'")
    database.close()
    (path / "sinks" / "mlflow.json").unlink()
    result = push(settings)
    assert (len(result.already), result.failed) == (1, ())


def test_a_trace_id_fits_into_the_column(settings: Settings, store: ReceiptStore, sink: MlflowSink) -> None:
    from neuronbench.sinks.mlflow.traces import REQUEST_ID_LIMIT, request_id

    assert request_id("s/name/1") == "s/name/1"
    long = [request_id(f"{'x' * 60}{letter}/{'y' * 40}/17") for letter in "ab"]
    assert all(len(each) == REQUEST_ID_LIMIT and each.endswith("/17") for each in long)
    assert long[0] != long[1]
