"""Runs that are begun together: how receipts are grouped, and who makes a run when several begin the same at once."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic_receipts as synthetic
from sink_helpers import Reader, settings_at

from neuronbench.config import Settings
from neuronbench.receipts import ReceiptStore
from neuronbench.receipts.owner import this_process
from neuronbench.sinks.mlflow import MlflowSink, ahead, claims, push
from neuronbench.sinks.mlflow.patience import PUSH
from neuronbench.testing.tracking.flaky import flaky_proxy
from neuronbench.testing.tracking.team import Team

TAG = "nb.receipt"


# -- groups ------------------------------------------------------------------------------------------------------------


def matched(group: list[str], there: list[str]) -> list[str]:
    """What a database finds with the pattern of a group."""
    pattern = re.escape(ahead._beginning(group)).replace("_", ".")
    return [value for value in there if re.match(pattern, value, re.DOTALL)] if len(group) > 1 else group


@pytest.mark.parametrize(
    "names",
    [
        [f"closed_loop-c{number}--r{repeat}" for number in range(500) for repeat in (1, 2)],
        [f"point-{number:04x}" for number in range(1_000)],
        ["one"],
        [f"it's %odd\\ {letter}{number}" for letter in "µ|\"'" for number in range(30)],
    ],
    ids=["numbers", "digests", "one", "odd"],
)
def test_each_is_in_one_group_and_answers_are_short(names: list[str]) -> None:
    there = [f"s/{name}" for name in names]
    wanted = there[::2]
    found = ahead.groups(wanted, there)
    assert sorted(value for group in found for value in group) == sorted(wanted)
    for group in found:
        assert len(group) <= ahead.LIMIT
        assert set(group) <= set(matched(group, there))
        assert len(matched(group, there)) <= ahead.LIMIT + ahead.SLACK


def test_a_session_that_is_small_is_one_group() -> None:
    names = [f"s/serving.closed_loop-cpu-c{number}--r1" for number in range(20)]
    assert ahead.groups(names, [*names, "s/boot-endpoint"]) == [sorted(names)]


def test_many_are_asked_for_in_few_questions() -> None:
    names = [f"s/serving.closed_loop-cpu-c{number}--r1" for number in range(1_000)]
    assert len(ahead.groups(names, names)) <= 120


# -- who makes it ------------------------------------------------------------------------------------------------------


class Box:
    """A host that begins a group. `before` and `after` happen around the moment its first run is made."""

    def __init__(self, place: tuple[Any, str], *, writer: dict[str, Any] | None = None) -> None:
        self.client, self.experiment = place
        self.writer = {**this_process(), "host": "elsewhere"} if writer is None else writer
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.made: dict[str, str] = {}

    def make(self, value: str) -> Any:
        before, self.before = self.before, lambda: None
        before()
        tags = {TAG: value, claims.WRITER: json.dumps(self.writer)}
        run = self.client.create_run(self.experiment, tags=tags)
        self.made[value] = run.info.run_id
        after, self.after = self.after, lambda: None
        after()
        return run

    def begin(self, values: list[str], *, fresh: bool = False) -> ahead.Begun:
        makers = {value: (lambda value=value: self.make(value)) for value in values}
        return ahead.begin(self.client, self.experiment, TAG, makers, fresh=fresh, aside=lambda error: False)

    def settle(self, value: str, begun: ahead.Begun, wait_s: float = 0.5) -> tuple[str, bool]:
        """As `Writer` does when its turn has come."""
        if value in begun.others:
            ahead.wait(self.client, self.experiment, TAG, begun, wait_s=wait_s)
        run, ours = begun.take(value) or claims.claim(
            self.client, self.experiment, TAG, value, lambda: self.make(value), wait_s=wait_s,
            made=begun.contested.pop(value, None),
        )  # fmt: skip
        return run.info.run_id, ours

    def fill(self, run_id: str) -> None:
        self.client.set_terminated(run_id, "FINISHED")


VALUES = ["s/a1", "s/a2", "s/a3"]


@pytest.fixture
def place(settings: Settings, reader: Callable[..., Reader]) -> tuple[Any, str]:
    client = reader(settings.mlflow_uri).client
    return client, client.create_experiment("neuronbench/serving")


def there(place: tuple[Any, str]) -> dict[str, list[str]]:
    return {value: [run.info.run_id for run in runs] for value, runs in ahead.look(*place, TAG, VALUES).items()}


def test_one_look_finds_each_and_nothing_else(place: tuple[Any, str]) -> None:
    box = Box(place)
    for value in ("s/a1", "s/a1", "s/a3", "s/a11", "s/A2", "t/a2"):
        box.make(value)
    assert [len(runs) for runs in there(place).values()] == [2, 0, 1]


def test_what_is_there_is_not_made_again(place: tuple[Any, str]) -> None:
    first, second = Box(place), Box(place)
    begun = first.begin(VALUES)
    assert set(begun.mine) == set(VALUES)
    ended = begun.mine["s/a1"].info.run_id
    first.fill(ended)
    found = second.begin(VALUES)
    assert second.made == {}
    assert found.take("s/a1") is not None
    assert found.others == {"s/a2", "s/a3"}


@pytest.mark.parametrize("fast_fills", [True, False])
@pytest.mark.parametrize("turn", range(3))  # ids are at random: all orders come up
def test_one_that_looked_before_the_other_began(place: tuple[Any, str], fast_fills: bool, turn: int) -> None:
    """The slow one saw nothing; the fast one began all, and has filled some; then the slow one makes its own."""
    slow, fast = Box(place), Box(place)
    theirs: list[ahead.Begun] = []

    def rival() -> None:
        theirs.append(fast.begin(VALUES))
        if fast_fills:
            fast.fill(theirs[0].mine["s/a1"].info.run_id)

    slow.before = rival
    begun = slow.begin(VALUES)
    assert set(theirs[0].mine) == set(VALUES)  # nobody else was there when it looked
    assert not begun.mine
    if fast_fills:
        assert begun.take("s/a1") is not None
    for value in VALUES[1:]:
        fast.fill(theirs[0].mine[value].info.run_id)
    for value in VALUES[1:] if fast_fills else VALUES:
        if value == "s/a1":
            fast.fill(theirs[0].mine[value].info.run_id)
        assert slow.settle(value, begun) == (fast.made[value], False)
    assert there(place) == {value: [run] for value, run in fast.made.items()}


@pytest.mark.parametrize("turn", range(3))
def test_both_made_theirs_before_either_looked(place: tuple[Any, str], turn: int) -> None:
    slow, fast = Box(place), Box(place)
    theirs: list[ahead.Begun] = []
    slow.after = lambda: theirs.append(fast.begin(VALUES))
    begun = slow.begin(VALUES)
    (other,) = theirs
    for value in sorted(VALUES, key=other.turn):  # the fast one is not waited for by itself
        run, ours = fast.settle(value, other, wait_s=0.2)
        if ours:
            fast.fill(run)
    for value in sorted(VALUES, key=begun.turn):
        run, ours = slow.settle(value, begun, wait_s=0.2)
        if ours:
            slow.fill(run)
    left = there(place)
    assert {len(runs) for runs in left.values()} == {1}


def test_the_answer_to_a_run_that_was_made_is_lost(place: tuple[Any, str]) -> None:
    """It is asked for again, and there are two, both of this process."""
    box = Box(place, writer=this_process())
    box.before = lambda: box.make("s/a1") and None
    begun = box.begin(VALUES, fresh=True)
    assert set(begun.mine) == {"s/a2", "s/a3"}
    run, ours = box.settle("s/a1", begun, wait_s=1e6)  # nobody is waited for
    assert ours
    assert there(place)["s/a1"] == [run]


def test_runs_that_a_process_has_left_are_taken_over_at_once(place: tuple[Any, str]) -> None:
    gone = Box(place, writer={**this_process(), "create_time": 1.0})
    gone.begin(VALUES)
    box = Box(place)
    begun = box.begin(VALUES)
    assert box.made == {}
    assert {box.settle(value, begun, wait_s=1e6) for value in VALUES} == {(run, True) for run in gone.made.values()}


def test_what_a_dead_process_has_left_beside_one_that_ended_is_taken_back(place: tuple[Any, str]) -> None:
    gone, other = Box(place, writer={**this_process(), "create_time": 1.0}), Box(place)
    for value in VALUES:
        gone.make(value)
        other.fill(other.make(value).info.run_id)
    box = Box(place)
    begun = box.begin(VALUES[:2])
    assert [box.settle(value, begun) for value in VALUES[:2]] == [(other.made[value], False) for value in VALUES[:2]]
    assert box.settle("s/a3", ahead.Begun()) == (other.made["s/a3"], False)  # by itself, too
    assert there(place) == {value: [run] for value, run in other.made.items()}


def test_what_others_do_is_waited_for_together(place: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as something ends at each look, however short the patience; then once for all, not for each."""
    other, box = Box(place), Box(place)
    left = list(other.begin(VALUES).mine.values())
    begun = box.begin(VALUES)
    now, pauses = [0.0], list[float]()

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        now[0] += 9.0
        if len(left) > 1:
            other.fill(left.pop(0).info.run_id)

    monkeypatch.setattr("neuronbench.sinks.mlflow.ahead.time.sleep", sleep)
    monkeypatch.setattr("neuronbench.sinks.mlflow.ahead.time.monotonic", lambda: now[0])
    ahead.wait(*place, TAG, begun, wait_s=10.0)
    assert set(begun.ended) == {"s/a1", "s/a2"}
    assert begun.waited == {"s/a3"}
    assert len(pauses) == 4  # two of them ended something
    assert pauses == sorted(pauses)


# -- a whole push ------------------------------------------------------------------------------------------------------


def test_a_push_asks_a_server_little(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[..., Reader]
) -> None:
    """Besides what each receipt costs: one look for rivals of all, and those of the session and its end."""
    for name, value in team.login().items():
        monkeypatch.setenv(name, value)
    asked: Counter[str] = Counter()

    def note(method: str, path: str) -> str:
        asked[f"{method} {path.partition('?')[0].partition('/mlflow')[2].partition('/artifacts/')[0]}"] += 1
        return ""

    with flaky_proxy(team.url, note) as proxy:
        settings = settings_at(tmp_path, tracking_uri=proxy.url, traces=0)
        store = ReceiptStore(settings.receipts_dir)
        session = store.begin_session(settings)
        for concurrency in range(1, 9):
            synthetic.put(store, synthetic.record(session, point=synthetic.point(concurrency=concurrency)))
        store.end_session(session, 0)
        assert len(push(settings).delivered) == 8
    runs = reader(team.url).runs(nb_session=session)
    assert len(runs) == 9
    assert asked["POST /runs/create"] == 9
    assert asked["POST /runs/log-inputs"] == 8
    assert asked["POST /runs/log-batch"] == asked["POST /runs/update"] == 9
    assert asked["PUT -artifacts"] == 8 * 2 + 3  # a record and its `files.json`; the session's three
    assert asked["POST /runs/search"] <= 5  # the parent, before and after; rivals of all; twice at the end
    assert asked["POST /runs/set-tag"] == asked["GET /runs/get"] == 0


def test_a_failure_of_one_does_not_keep_the_others(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[..., Reader]
) -> None:
    for name, value in team.login().items():
        monkeypatch.setenv(name, value)
    settings = settings_at(tmp_path, tracking_uri=team.url, traces=0)
    store = ReceiptStore(settings.receipts_dir)
    session = store.begin_session(settings)
    paths = [
        synthetic.put(store, synthetic.record(session, point=synthetic.point(concurrency=number)))
        for number in (1, 2, 3)
    ]
    sink = MlflowSink(settings, patience=PUSH)
    make = sink.writer._make

    def failing(client: Any, experiment: str, receipt: Any, stowed: Any) -> Any:
        if receipt.path == paths[1]:
            raise ValueError("this one cannot be told")
        return make(client, experiment, receipt, stowed)

    monkeypatch.setattr(sink.writer, "_make", failing)
    assert sink.begin(paths) == [paths[0], paths[2], paths[1]]
    assert [sink.deliver(path)[0].state for path in paths] == ["delivered", "pending", "delivered"]
    monkeypatch.setattr(sink.writer, "_make", make)
    assert sink.deliver(paths[1])[0].state == "delivered"
    assert len(reader(team.url).runs(nb_session=session, nb_kind="point")) == 3
