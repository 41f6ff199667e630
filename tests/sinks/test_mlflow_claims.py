"""Who makes a run when several make it at once, in every order, on a real store; and locks that are waited for once."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import synthetic_receipts as synthetic
from sink_helpers import QUICK, Reader

from neuronbench.config import Settings
from neuronbench.receipts import ReceiptStore, locked
from neuronbench.receipts.owner import this_process
from neuronbench.sinks.mlflow import MlflowSink, claims
from neuronbench.sinks.mlflow.gateway import LOCK_NAME, PUSH

TAG = "nb.receipt"


class Maker:
    """Claims as one host does. `before` and `after` happen around the moment its run is made."""

    def __init__(self, client: Any, experiment: str, *, writer: dict[str, Any] | None = None) -> None:
        self.client, self.experiment = client, experiment
        self.writer = {**this_process(), "host": "elsewhere"} if writer is None else writer
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.made: list[str] = []

    def make(self) -> Any:
        self.before()
        tags = {TAG: "s/x", claims.WRITER: json.dumps(self.writer)}
        run = self.client.create_run(self.experiment, tags=tags)
        self.made.append(run.info.run_id)
        self.after()
        return run

    def claim(self, wait_s: float = 0.5) -> tuple[str, bool]:
        run, ours = claims.claim(self.client, self.experiment, TAG, "s/x", self.make, wait_s=wait_s)
        return run.info.run_id, ours

    def fill(self, run_id: str) -> None:
        self.client.set_terminated(run_id, "FINISHED")


@pytest.fixture
def place(settings: Settings, reader: Callable[..., Reader]) -> tuple[Any, str]:
    client = reader(settings.mlflow_uri).client
    return client, client.create_experiment("neuronbench/serving")


def there(place: tuple[Any, str]) -> list[Any]:
    return claims.runs(*place, TAG, "s/x")


def test_the_first_makes_it_and_the_next_finds_it(place: tuple[Any, str]) -> None:
    first, second = Maker(*place), Maker(*place)
    run, ours = first.claim()
    assert ours
    first.fill(run)
    assert second.claim() == (run, False)
    assert second.made == []


@pytest.mark.parametrize("rival_ends", [True, False], ids=["ends", "is cut off"])
@pytest.mark.parametrize("turn", range(4))  # ids are at random: both orders come up
def test_one_that_looked_before_the_other_made_it(place: tuple[Any, str], rival_ends: bool, turn: int) -> None:
    """The slow one saw nothing; then the fast one made its run and looked; then the slow one makes its own."""
    slow, fast = Maker(*place), Maker(*place)

    def rival() -> None:
        slow.before = lambda: None
        run, ours = fast.claim()
        assert ours
        if rival_ends:
            fast.fill(run)

    slow.before = rival
    run, ours = slow.claim()
    assert [each.info.run_id for each in there(place)] == [run]
    if rival_ends:
        assert (run, ours) == (fast.made[0], False)
    else:
        assert ours  # either run may stay; nobody else will end it
        assert run == min(slow.made[0], fast.made[0])


@pytest.mark.parametrize("turn", range(4))
def test_both_made_one_before_either_looked(place: tuple[Any, str], turn: int) -> None:
    slow, fast = Maker(*place), Maker(*place)
    outcome: list[tuple[str, bool]] = []

    def rival() -> None:
        slow.after = lambda: None
        outcome.append(fast.claim(wait_s=0.3))
        if outcome[0][1]:
            fast.fill(outcome[0][0])

    slow.after = rival
    run, ours = slow.claim()
    assert [each.info.run_id for each in there(place)] == [run]
    assert outcome[0][0] == run or not ours


def test_a_run_of_a_dead_process_is_taken_over_at_once(place: tuple[Any, str]) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        dead = pool.apply(this_process)
    first = Maker(*place, writer=dead)
    run, _ = first.claim()
    second = Maker(*place)
    assert second.claim(wait_s=1e6) == (run, True)
    (left,) = there(place)
    assert json.loads(left.data.tags[claims.WRITER])["pid"] == this_process()["pid"]


def test_several_left_by_dead_processes_become_one(place: tuple[Any, str]) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        dead = pool.apply(this_process)
    first = Maker(*place, writer=dead)
    made = sorted(first.make().info.run_id for _ in range(3))
    assert Maker(*place).claim(wait_s=1e6) == (made[0], True)
    assert [run.info.run_id for run in there(place)] == [made[0]]


def test_a_writer_whose_run_was_taken_back_finds_the_one_that_stayed(
    sink: MlflowSink, store: ReceiptStore, session: str, reader: Callable[..., Reader], settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Another host waited for it in vain, deleted its run and made its own, while it was still at it."""
    path = synthetic.put(store, synthetic.record(session))
    mlflow = reader(settings.mlflow_uri)
    fill, taken = sink.writer._fill, []

    def slow(client: Any, experiment: str, run: Any, *rest: Any) -> None:
        if not taken:
            taken.append(run.info.run_id)
            client.delete_run(run.info.run_id)
            other = client.create_run(experiment, tags={TAG: f"{session}/{path.name}"})
            client.set_terminated(other.info.run_id)
        fill(client, experiment, run, *rest)

    monkeypatch.setattr(sink.writer, "_fill", slow)
    delivery = sink.write(path)
    (run,) = mlflow.runs(nb_receipt=f"{session}/{path.name}")
    assert (delivery.state, delivery.reference) == ("delivered", run.info.run_id)
    assert run.info.run_id not in taken


def test_parents_of_two_hosts_become_one_with_all_children(
    sink: MlflowSink, store: ReceiptStore, session: str, reader: Callable[..., Reader], settings: Settings
) -> None:
    for repeat in (1, 2):
        sink.write(synthetic.put(store, synthetic.record(session, repeat=repeat)))
    mlflow = reader(settings.mlflow_uri)
    (parent,) = mlflow.runs(nb_kind="session")
    other = mlflow.client.create_run(
        parent.info.experiment_id, tags={"nb.kind": "session", "nb.session.lane": f"{session} serving"}
    )
    child = mlflow.run(f"{session}/serving-closed_loop-c8--r2")
    mlflow.client.set_tag(child.info.run_id, "mlflow.parentRunId", other.info.run_id)
    sink.close()
    (left,) = mlflow.runs(nb_kind="session")
    assert left.info.run_id == min(parent.info.run_id, other.info.run_id)
    assert left.info.status == "FINISHED"
    children = [run for run in mlflow.runs() if run.info.run_id != left.info.run_id]
    assert len(children) == 3
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {left.info.run_id}


# -- locks -------------------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from neuronbench.receipts import locked
with locked(Path(sys.argv[1]), timeout_s=5, purpose="test"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of the data root until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(settings.data_root / LOCK_NAME)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "held\n"
        yield child
        child.stdin.close()


def test_a_held_lock_is_waited_for_once_and_not_for_each_receipt(
    settings: Settings,
    store: ReceiptStore,
    session: str,
    holder: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    def counting(*args: Any, timeout_s: float, **kwargs: Any) -> Any:
        waits.append(timeout_s)
        return locked(*args, timeout_s=timeout_s, **kwargs)

    monkeypatch.setattr("neuronbench.sinks.mlflow.gateway.locked", counting)
    sink = MlflowSink(settings, patience=replace(QUICK, lock_s=0.2))
    paths = [synthetic.put(store, synthetic.record(session, repeat=repeat)) for repeat in (1, 2, 3)]
    for path in paths:
        delivery = sink.write(path)
        assert delivery.state == "pending"
        assert "has held" in delivery.reason
        assert "more than 0.2 s" in delivery.reason
    assert waits == [0.2, 0.0, 0.0]
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait(20)
    assert sink.write(paths[0]).state == "delivered"
    sink.write(paths[1])
    assert waits[-1] == 0.2  # it was free: patience is back
    assert PUSH.lock_s > 10
