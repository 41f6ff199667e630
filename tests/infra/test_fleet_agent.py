"""What must not go wrong at the seams: kills between two steps, a slow or full disk, two runs, two scripts at once."""

from __future__ import annotations

import errno
import hashlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aws_stand_in import Command, CommandResult
from fleet_project import project
from local_box import LocalBox, Metadata, until
from neuronbench_fleet import bundle
from neuronbench_fleet.remote import bootstrap
from neuronbench_fleet.remote.agent import BOX_LOCK, Agent, _only_one
from neuronbench_fleet.remote.agent import main as agent
from neuronbench_fleet.remote.keys import PieceKey
from neuronbench_fleet.remote.pieces import Pieces
from neuronbench_fleet.remote.shipper import Shipper
from neuronbench_fleet.remote.state import Order, State
from neuronbench_fleet.remote.watch import Limits
from neuronbench_fleet.runs import exit_status
from neuronbench_fleet.stream import Follower

from neuronbench.model import Environment, FrozenMap, Outcome, Point, Record
from neuronbench.receipts import ReceiptStore, recover
from neuronbench.shipping import ReceiptShelf
from neuronbench.weights import LocalBlobs, StoreError


@pytest.fixture
def store(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "store")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """A box's disk with an order to terminate it at the run's end; `down` is there once it was told to go down."""
    monkeypatch.setenv("NEURONBENCH_AGENT_PACE", "0.01")
    monkeypatch.setenv("NEURONBENCH_IMDS", "http://127.0.0.1:9")
    monkeypatch.setenv("NEURONBENCH_SHUTDOWN", f"/usr/bin/touch {tmp_path / 'down'}")
    monkeypatch.setenv("PATH", "")
    found = State(tmp_path / "runs" / "r1")
    order = {
        "run": "r1", "bucket": "b", "instance": "i-1", "code": str(tmp_path), "pytest_args": [], "after": "terminate",
        "usd_per_hour": 10.0,
    }  # fmt: skip
    (found.folder / "run.json").write_text(json.dumps(order), encoding="utf-8")
    return found


def put(root: Path, session: str, name: str) -> None:
    receipts = ReceiptStore(root)
    point = Point(benchmark="b.py::b", lane="serving", backend="cpu", params=FrozenMap(), id=name)
    record = Record(point=point, session=session, started_at="2026-11-30T01:23:45+00:00", environment=Environment())
    staging = receipts.open(record)
    record.close(Outcome.OK, ended_at="2026-11-30T01:23:46+00:00", duration_s=1.0)
    receipts.commit(record, staging)


# -- the agent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("refused", "ended"), [(0, True), (1, False)])
def test_an_agent_killed_before_it_ended_the_box_ends_it_at_its_next_start(
    state: State, store: LocalBlobs, tmp_path: Path, refused: int, ended: bool
) -> None:
    state.write("done", exit_code=0, refused=refused)
    assert agent([str(state.folder)], connect=lambda order: store) == 0
    assert (tmp_path / "down").exists() == ended  # what is nowhere else keeps the box


@pytest.mark.timeout(120)
def test_a_run_ends_though_a_look_at_everything_takes_longer_than_a_poll(
    state: State, store: LocalBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Shipper._found

    def slowly(self: Shipper) -> list[Path]:
        threading.Event().wait(0.5)  # so long that no scheduling makes up for it
        return found(self)

    monkeypatch.setattr(Shipper, "_found", slowly)
    session = ReceiptStore(state.receipts).begin_session(command=[])
    put(state.receipts, session, "a")
    state.write("ended", exit_code=0, reason="", text="")  # and the agent that wrote it was killed
    assert agent([str(state.folder)], connect=lambda order: store) == 0
    assert (tmp_path / "down").exists()
    assert f"runs/r1/receipts/{session}/session.json" in set(store.keys("runs/"))  # nothing will change it any more


def test_what_other_boxes_have_taken_is_counted_once_also_after_a_kill(state: State, store: LocalBlobs) -> None:
    line = json.dumps({"kind": "progress", "hours": 3.0, "usd": 30.0}).encode() + b"\n"
    piece = PieceKey(box="i-0", what="events", boot=1, number=1, hash=hashlib.sha256(line).hexdigest()[:16])
    store.write(piece.key("r1"), [line], len(line))
    order = Order.read(state.folder)
    Agent(state, order, store)  # killed before it asked what there was
    for _ in range(2):
        one = Agent(state, order, store)
        assert one._fetch()
        assert 3.0 <= one.hours < 3.5
        assert one.usd is not None
        assert 30.0 <= one.usd < 35.0
    assert one.boot == 3


def test_two_runs_that_start_at_the_same_boot_go_one_after_the_other(
    state: State, store: LocalBlobs, capsys: pytest.CaptureFixture[str]
) -> None:
    state.write("ended", exit_code=0, reason="", text="")
    held = _only_one(state.folder.parent, BOX_LOCK)
    assert held is not None
    seen: list[Any] = []

    def other() -> None:
        until(lambda: (state.folder / "boots.json").exists(), "the agent starts")
        seen.extend(store.keys("runs/"))
        held.close()

    thread = threading.Thread(target=other)
    thread.start()
    assert agent([str(state.folder)], connect=lambda order: store) == 0
    thread.join()
    assert "r1 waits: another run has this box" in capsys.readouterr().out
    assert seen == []
    assert state.read("done")


def cancel(state: State, text: str = '{"by": "me@desk", "at": "2026-11-30T04:15:00+00:00"}') -> None:
    """As the desk's script does it."""
    (state.folder / "cancel.json").write_text(text, encoding="utf-8")


def finished(store: LocalBlobs) -> Mapping[str, Any]:
    follower = Follower(store=store, run="r1")
    pieces = follower.poll()
    assert not any(event["kind"] == "started" for piece in pieces for event in piece.events()), "pytest was started"
    assert follower.end is not None
    return follower.end


@pytest.mark.parametrize(
    ("text", "said"), [('{"by": "me@desk"}', "cancelled by me@desk"), ("{", "cancelled by somebody")]
)
def test_a_run_that_was_cancelled_starts_no_pytest_sends_what_there_is_and_leaves_the_box(
    state: State, store: LocalBlobs, tmp_path: Path, text: str, said: str
) -> None:
    receipts = ReceiptStore(state.receipts)
    session = receipts.begin_session(command=[])
    put(state.receipts, session, "a")
    cancel(state, text)
    for _ in range(2):  # the second finds it over, and leaves the box, too
        assert agent([str(state.folder)], connect=lambda order: store) == 0
    end = finished(store)
    assert (end["reason"], end["text"], end["exit_code"], end["after"]) == ("cancelled", said, 2, "keep")
    assert exit_status(end) == 12
    assert ReceiptShelf(store, "runs/r1/receipts/").names().whole == ((session, "a--r1"),)
    assert f"runs/r1/receipts/{session}/session.json" in set(store.keys("runs/"))
    assert state.read("done")["reason"] == "cancelled"
    assert not (tmp_path / "down").exists()


def test_a_run_that_had_ended_when_it_was_cancelled_says_how_and_leaves_the_box(
    state: State, store: LocalBlobs, tmp_path: Path
) -> None:
    state.write("ended", exit_code=0, reason="", text="")  # it is being sent
    cancel(state)
    assert agent([str(state.folder)], connect=lambda order: store) == 0
    end = finished(store)
    assert (end["reason"], end["exit_code"], end["after"]) == ("", 0, "keep")
    assert exit_status(end) == 0
    assert not (tmp_path / "down").exists()


def test_a_run_that_is_cancelled_while_another_has_the_box_does_not_wait_for_it(
    state: State, store: LocalBlobs, capsys: pytest.CaptureFixture[str]
) -> None:
    held = _only_one(state.folder.parent, BOX_LOCK)
    assert held is not None
    with held:

        def desk() -> None:
            until(lambda: "waits: another run" in capsys.readouterr().out, "it waits")
            cancel(state)

        thread = threading.Thread(target=desk)
        thread.start()
        assert agent([str(state.folder)], connect=lambda order: store) == 0
        thread.join()
    assert finished(store)["reason"] == "cancelled"


def test_a_run_that_is_cancelled_while_the_store_is_away_ends_when_it_is_back(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(LocalBlobs):
        away = True

        def keys(self, prefix: str) -> Iterator[str]:
            if self.away:
                raise StoreError("store_unreachable", "it is away", remedy="wait")
            return super().keys(prefix)

    store = Away(tmp_path / "store")

    def back(*arguments: Any, **more: Any) -> Any:
        store.away = False
        return recover(*arguments, **more)

    monkeypatch.setattr(
        "neuronbench_fleet.remote.agent.recover", back
    )  # after everything that would ask the store first
    cancel(state)
    assert agent([str(state.folder)], connect=lambda order: store) == 0
    assert finished(store)["reason"] == "cancelled"


def test_a_full_disk_keeps_neither_the_agent_nor_receipts_back(
    state: State, store: LocalBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    receipts = tmp_path / "receipts"
    session = ReceiptStore(receipts).begin_session(command=[])
    put(receipts, session, "a")
    console = tmp_path / "console-0001.log"
    console.write_bytes(b"one\n")
    trouble: list[str] = []
    one = Agent(state, Order.read(state.folder), store)
    with monkeypatch.context() as patch:
        patch.setattr(Agent, "_append", full)
        patch.setattr(State, "write", full)
        patch.setattr(Pieces, "_note", full)
        one.event("progress")
        one._keep_clock()
        shipper = Shipper(
            store, ReceiptShelf(store, "runs/r1/receipts/"), "r1", receipts,
            [Pieces(console, box="i-1", what="log", boot=1)], flush_s=0.01, sent_list=tmp_path / "no" / "sent.txt",
            on_shipped=lambda receipt: None, on_trouble=trouble.append,
        )  # fmt: skip
        shipper.start()
        until(lambda: f"{session}/a--r1" in shipper.sent, "the receipt is sent")
        until(lambda: trouble, "the trouble is told")
        assert not shipper.drain(0.05)
    assert shipper.drain(30)  # there is space again
    shipper.stop()
    assert "No space left" in trouble[0]
    assert [piece.data for piece in Follower(store=store, run="r1").poll()] == [b"one\n"]


def test_who_waits_for_everything_does_not_wait_for_the_end_of_a_pause(tmp_path: Path) -> None:
    class Away(LocalBlobs):
        away = True

        def write(self, key: str, chunks: Any, size_bytes: int) -> bool:
            if self.away:
                raise StoreError("store_auth", "the role was taken away", remedy="wait")
            return super().write(key, chunks, size_bytes)

    store = Away(tmp_path / "store")
    session = ReceiptStore(tmp_path / "receipts").begin_session(command=[])
    put(tmp_path / "receipts", session, "a")
    trouble: list[str] = []
    shipper = Shipper(
        store, ReceiptShelf(store), "r1", tmp_path / "receipts", [], flush_s=600.0, sent_list=tmp_path / "sent.txt",
        on_shipped=lambda receipt: None, on_trouble=trouble.append,
    )  # fmt: skip
    shipper.start()
    until(lambda: trouble, "the trouble is told")  # from here it pauses for half a minute at least
    store.away = False
    assert shipper.drain(20)  # a spot box has two minutes in all
    shipper.stop()


def test_an_end_without_a_zone_is_in_utc() -> None:
    assert Limits(expires="2026-11-30T08:00:00").reached(hours=0, usd=None, expires="2020-01-01") is not None


# -- the script --------------------------------------------------------------------------------------------------------


class Bench:
    """A box without AWS: the script gets the code from a file."""

    def __init__(self, box: LocalBox, code: bundle.Bundle) -> None:
        self.box, self.code = box, code

    def execute(
        self, *, setup: str, args: list[str] | None = None, run: str = "r1", python: str = "/bin/true"
    ) -> CommandResult:
        order = {"run": run, "bucket": "b", "instance": "i-1", "pytest_args": args or []}
        text = bootstrap.script(
            order, sha256=self.code.sha256, url=f"file://{self.code.path}", setup=setup, python=python, pace=0
        )
        done = self.box.execute(
            Command(id="c", instance="i-1", document="", parameters={"commands": text.splitlines()})
        )
        if done.code == 0:  # its unit does nothing, and until that has ended the box is another run's
            until(lambda: not self.box.units(), "the unit ends")
        return done

    @property
    def folder(self) -> Path:
        return self.box.root / "opt" / "neuronbench" / self.code.sha256

    def count(self) -> int:
        """Times a set-up that says so was made."""
        told = self.box.root / "made.txt"
        return len(told.read_text().splitlines()) if told.exists() else 0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    metadata = Metadata()
    box = LocalBox(tmp_path / "box", metadata, {})
    try:
        yield Bench(box, bundle.make(project(tmp_path / "project"), tmp_path / "code.tar.gz"))
    finally:
        box.power_off(pulled=True)
        metadata.close()


COUNTED = 'echo made >>"$NEURONBENCH_BOX_ROOT/made.txt"'


def test_words_of_others_arrive_as_they_are(bench: Bench) -> None:
    args = ["-k", "a and 'b'; rm -rf /", "$(reboot) `id` @ROOT@ @UNIT@ {{ssm:x}}", "ü\n\udcff", "--x=%h\\"]
    setup = "printf '%s' \"it's $((1 + 1)) } {{ @URL@\" >said"
    assert bench.execute(setup=setup, args=args).code == 0
    assert Order.read(bench.box.state("r1")).pytest_args == args
    assert (bench.folder / "said").read_text() == "it's 2 } {{ @URL@"


def test_a_set_up_counts_only_when_all_of_it_was_done_and_for_itself_alone(bench: Bench) -> None:
    done = bench.execute(setup=f"{COUNTED}\nfalse\ntrue")
    assert (done.code, bench.count()) == (87, 1)
    assert "cannot be set up" in done.stderr
    assert bench.execute(setup=COUNTED).code == 0
    assert bench.execute(setup=COUNTED, run="r2").code == 0
    assert bench.count() == 2  # made, and there
    assert bench.execute(setup=f"{COUNTED} && true").code == 0
    assert bench.count() == 3  # the same code in another way


def test_a_set_up_without_the_agent_is_found_out_before_a_unit_fails_unheard(bench: Bench) -> None:
    for python, setup in (
        ("@CODE@/.venv/bin/python", "true"),
        ("@CODE@/python", f"printf '#!/bin/sh\nexec {sys.executable} -IS \"$@\"\n' >python; chmod +x python"),
    ):
        done = bench.execute(setup=setup, python=python)
        assert done.code == 87
        assert f"{python.replace('@CODE@', str(bench.folder))} has no neuronbench-fleet" in done.stderr
    assert bench.box.units() == []


def test_a_box_that_went_down_in_the_middle_of_a_set_up_begins_it_again(bench: Bench) -> None:
    bench.folder.mkdir(parents=True)
    (bench.folder / "half").touch()
    bench.folder.with_name(f"{bench.code.sha256}.part").mkdir()
    assert bench.execute(setup=COUNTED).code == 0
    assert bench.count() == 1
    assert not (bench.folder / "half").exists()
    assert (bench.folder / "conftest.py").exists()


@pytest.mark.parametrize(
    ("fails", "setup"), [("curl", "true"), ("tar", "true"), ("", "echo 'No space left on device'; false")]
)
def test_a_full_disk_is_what_a_set_up_is_said_to_fail_for(bench: Bench, fails: str, setup: str) -> None:
    tools = {"df": "echo F; echo x 9 9 0 100% /", **({fails: "echo 'cannot write' >&2; exit 23"} if fails else {})}
    for name, text in tools.items():
        tool = bench.box.root / "bin" / name
        tool.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        tool.chmod(0o755)
    done = bench.execute(setup=setup)
    assert done.code == bootstrap.EXIT_NO_ROOM
    assert "the disk of this box is full (0 KiB are left on" in done.stderr
    assert "cannot write" in done.stderr or "No space left" in done.stderr
    assert "Does the box reach S3" not in done.stderr


def test_sent_twice_at_the_same_time_it_is_done_once(bench: Bench) -> None:
    ended: list[int] = []
    threads = [threading.Thread(target=lambda: ended.append(bench.execute(setup=COUNTED).code)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == [0, 0]
    assert bench.count() == 1


def test_a_set_up_has_a_home_and_leaves_no_lock_behind(bench: Bench) -> None:
    del bench.box.environ["HOME"]  # Run Command sets none on some images
    # something that a set-up leaves running must not keep the next run from this box
    left = f"{sys.executable} -c 'import time; time.sleep(600)' >/dev/null 2>&1 &"
    assert bench.execute(setup=f'test -n "$HOME"\n{left}').code == 0
    until(lambda: len(bench.box.processes()) == 1, "it is all that still runs")
    assert bench.execute(setup="true", run="r2").code == 0
