"""What runs on a box, part by part: pieces, the thread that sends, limits and notices, the unit and the script."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_box import Metadata, until
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.errors import UsageError
from neuronbench_fleet.remote import bootstrap, child, prior
from neuronbench_fleet.remote.agent import main as agent
from neuronbench_fleet.remote.keys import PieceKey, parse_piece
from neuronbench_fleet.remote.pieces import LARGEST, Pieces
from neuronbench_fleet.remote.shipper import Shipper
from neuronbench_fleet.remote.state import Order, State
from neuronbench_fleet.remote.watch import Limits, SpotWatch
from neuronbench_fleet.stream import Follower, line_of

from neuronbench.model import Environment, FrozenMap, Outcome, Point, Record
from neuronbench.receipts import ReceiptStore
from neuronbench.shipping import ReceiptShelf
from neuronbench.weights import LocalBlobs, StoreError


class Store(LocalBlobs):
    """A store that can be away, and that can cut off what it is sent."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.away, self.cut = False, 0

    def write(self, key: str, chunks: Iterable[bytes], size_bytes: int) -> bool:
        if self.away:
            raise StoreError("store_unreachable", "it is away", remedy="wait")
        if self.cut:
            self.cut -= 1
            return super().write(key, [b"".join(chunks)[:-1]], size_bytes)
        return super().write(key, chunks, size_bytes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def console(store: Store, run: str = "r1") -> bytes:
    return b"".join(piece.data for piece in Follower(store=store, run=run).poll() if piece.what == "log")


# -- pieces ------------------------------------------------------------------------------------------------------------


def test_names_of_pieces_there_and_back() -> None:
    key = PieceKey(box="i-1", what="events", boot=2, number=13, hash="0f" * 8)
    assert key.key("r1") == "runs/r1/boxes/i-1/events/0002-000013-0f0f0f0f0f0f0f0f.jsonl"
    assert parse_piece("r1", key.key("r1")) == key
    again = PieceKey(box="i-1", what="log", boot=2, number=13, hash="0f" * 8, again=2)
    assert parse_piece("r1", again.key("r1")) == again
    assert parse_piece("r2", key.key("r1")) is None
    assert parse_piece("r1", "runs/r1/request.json") is None


def test_a_file_goes_in_pieces_whose_ends_survive_a_kill(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "console-0001.log"
    file.write_bytes(b"one\ntwo\nhal")
    pieces = Pieces(file, box="i-1", what="log", boot=1)
    pieces.cut(all_of_it=False)
    store.away = True
    with pytest.raises(StoreError):
        pieces.send(store, "r1")
    with file.open("ab") as more:
        more.write(b"f\nthree")
    index = tmp_path / "console-0001.log.pieces"
    with index.open("ab") as broken:
        broken.write(b"[2, 8,")  # killed within a line
    store.away = False
    again = Pieces(file, box="i-1", what="log", boot=1)
    assert again.waiting
    again.cut(all_of_it=False)
    assert again.send(store, "r1") == 2
    (tmp_path / "console-0001.log.sent").unlink()  # killed between sending and noting it
    third = Pieces(file, box="i-1", what="log", boot=1)
    third.cut(all_of_it=True)
    third.send(store, "r1")
    assert not third.waiting
    assert console(store) == b"one\ntwo\nhalf\nthree"
    assert len(list(store.keys("runs/r1/boxes/i-1/log/"))) == 3


def test_long_output_goes_in_bounded_pieces(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "console-0001.log"
    file.write_bytes(b"x" * (2 * LARGEST + 5))  # not a single line's end
    pieces = Pieces(file, box="i-1", what="log", boot=1)
    pieces.cut(all_of_it=False)
    pieces.cut(all_of_it=True)
    assert pieces.send(store, "r1") == 3
    assert console(store) == file.read_bytes()


def test_a_piece_that_was_cut_short_is_sent_beside_and_readers_take_the_right_one(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "console-0001.log"
    file.write_bytes(b"one\n")
    pieces = Pieces(file, box="i-1", what="log", boot=1)
    pieces.cut(all_of_it=True)
    store.cut = 2
    pieces.send(store, "r1")
    assert {key[-7:] for key in store.keys("runs/")} >= {"-r2.txt", "-r3.txt"}
    assert console(store) == b"one\n"


def test_a_follower_waits_for_what_may_come_and_names_what_was_changed(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "console-0001.log"
    pieces = Pieces(file, box="i-1", what="log", boot=1)
    for line in (b"one\n", b"two\n"):
        with file.open("ab") as stream:
            stream.write(line)
        pieces.cut(all_of_it=True)
    pieces.send(store, "r1")
    first, second = sorted(store.keys("runs/"))
    (store.folder / second).chmod(0o644)
    (store.folder / second).write_bytes(b"tw")
    follower = Follower(store=store, run="r1")
    assert [piece.data for piece in follower.poll()] == [b"one\n"]
    assert follower.poll() == []  # its writer may be about to put the right one beside it
    assert follower.problems == []
    with file.open("ab") as stream:
        stream.write(b"three\n")
    pieces.cut(all_of_it=True)
    pieces.send(store, "r1")
    assert [piece.data for piece in follower.poll()] == [b"three\n"]
    assert follower.problems == [f"{second} is not what was written"]
    assert first


def test_a_follower_sees_every_piece_and_new_boots_though_it_seldom_lists_all(store: Store, tmp_path: Path) -> None:
    listed: list[str] = []

    class Seen(Store):
        def keys(self, prefix: str) -> Iterator[str]:
            listed.append(prefix)
            return super().keys(prefix)

    file = tmp_path / "console-0001.log"
    pieces = Pieces(file, box="i-1", what="log", boot=1)
    follower = Follower(store=Seen(store.folder), run="r1")
    came = []
    for number in range(105):  # over the end of a block
        with file.open("ab") as stream:
            stream.write(f"{number}\n".encode())
        pieces.cut(all_of_it=True)
        pieces.send(store, "r1")
        came += [piece.data for piece in follower.poll()]
    assert b"".join(came) == file.read_bytes()
    assert listed.count("runs/r1/boxes/") < len(listed) / 8
    other = tmp_path / "console-0002.log"
    other.write_bytes(b"again\n")
    second = Pieces(other, box="i-1", what="log", boot=2)
    second.cut(all_of_it=True)
    second.send(store, "r1")
    came = [piece.data for _ in range(12) for piece in follower.poll()]
    assert came == [b"again\n"]


# -- sending -----------------------------------------------------------------------------------------------------------


def put(root: Path, session: str, name: str) -> Path:
    receipts = ReceiptStore(root)
    point = Point(benchmark="b.py::b", lane="serving", backend="cpu", params=FrozenMap(), id=name)
    record = Record(point=point, session=session, started_at="2026-11-30T01:23:45+00:00", environment=Environment())
    staging = receipts.open(record)
    record.close(Outcome.OK, ended_at="2026-11-30T01:23:46+00:00", duration_s=1.0)
    return receipts.commit(record, staging)


def test_receipts_wait_on_the_disk_while_the_store_is_away_and_each_goes_once(store: Store, tmp_path: Path) -> None:
    receipts = tmp_path / "receipts"
    session = ReceiptStore(receipts).begin_session(command=[])
    log = tmp_path / "console-0001.log"
    log.write_bytes(b"a line\n")
    shipped: list[str] = []
    trouble: list[str] = []

    def shipper() -> Shipper:
        return Shipper(
            store, ReceiptShelf(store, "runs/r1/receipts/"), "r1", receipts,
            [Pieces(log, box="i-1", what="log", boot=1)], flush_s=0.01, sent_list=tmp_path / "sent.txt",
            on_shipped=shipped.append, on_trouble=trouble.append,
        )  # fmt: skip

    store.away = True
    one = shipper()
    put(receipts, session, "a")
    one.start()
    until(lambda: trouble, "the trouble is told")
    assert not one.drain(0.05)
    store.away = False
    assert one.drain(30)
    put(receipts, session, "b")
    (receipts / session / ".open-c--r1").mkdir()  # being measured
    (receipts / session / ".open-c--r1" / "record.json").touch()
    assert one.drain(30)
    one.stop()
    assert shipped == [f"{session}/a--r1", f"{session}/b--r1"]
    assert "it is away" in trouble[0]
    again = shipper()
    again.start()
    assert again.drain(30)
    again.stop()
    assert len(shipped) == 2
    assert console(store) == b"a line\n"
    assert sorted(name for _, name in ReceiptShelf(store, "runs/r1/receipts/").names().whole) == ["a--r1", "b--r1"]


def test_a_receipt_that_cannot_be_sent_is_named_and_does_not_hold_up_the_others(store: Store, tmp_path: Path) -> None:
    receipts = tmp_path / "receipts"
    session = ReceiptStore(receipts).begin_session(command=[])
    put(receipts, session, "a")
    put(receipts, session, "b")
    odd = receipts / session / "a--r1" / "record.json"
    real = ReceiptShelf(store, "")

    class Shelf(ReceiptShelf):
        def put(self, folder: Path, **more: Any) -> Any:
            if folder == odd.parent:
                raise StoreError("store_corrupt", "9 times other bytes", remedy="look")
            return real.put(folder)

    trouble: list[str] = []
    shipper = Shipper(
        store, Shelf(store), "r1", receipts, [], flush_s=0.01, sent_list=tmp_path / "sent.txt",
        on_shipped=lambda receipt: None, on_trouble=trouble.append,
    )  # fmt: skip
    shipper.start()
    assert shipper.drain(30)
    shipper.stop()
    assert list(shipper.refused) == [f"{session}/a--r1"]
    assert shipper.sent == {f"{session}/b--r1"}
    assert "stays on this box" in trouble[0]


# -- limits and notices ------------------------------------------------------------------------------------------------


def test_limits_of_time_money_and_the_boxs_own_end() -> None:
    now = dt.datetime(2026, 11, 30, 4, 0, tzinfo=dt.UTC)
    limits = Limits(max_hours=2, max_usd=20, expires="2026-11-30T08:00:00Z")
    assert limits.reached(hours=1.9, usd=19.9, now=now) is None
    for hours, usd, word in ((2.0, 1.0, "hours"), (1.0, 20.0, "USD")):
        notice = limits.reached(hours=hours, usd=usd, now=now)
        assert notice is not None
        assert (notice.kind, word in notice.text) == ("limit", True)
    late = limits.reached(hours=0, usd=None, now=now + dt.timedelta(hours=3, minutes=56))
    assert late is not None
    assert (late.kind, "in 4 min" in late.text) == ("expiry", True)
    moved = limits.reached(hours=0, usd=None, expires="2026-11-30T12:00:00Z", now=now + dt.timedelta(hours=4))
    assert moved is None
    assert Limits().reached(hours=1e9, usd=1e9) is None


def test_the_notice_of_a_spot_box_is_asked_for_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = Metadata()
    try:
        monkeypatch.setenv("NEURONBENCH_IMDS", metadata.url)
        assert SpotWatch().ask() is None
        metadata.action = {"action": "stop", "time": "2026-11-30T04:15:00Z"}
        metadata.expires = "2026-11-30T09:00:00Z"
        watch = SpotWatch(every_s=0.01)
        watch.start()
        notice = until(lambda: watch.notice, "the notice is seen")
        assert (notice.kind, notice.text) == ("spot", "the spot box is taken away (stop) at 2026-11-30T04:15:00Z")
        assert until(lambda: watch.expires, "the tag is read") == metadata.expires
        watch.stop()
    finally:
        metadata.close()
    assert SpotWatch().ask() is None  # no such service is no notice


# -- the agent ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> State:
    found = State(tmp_path / "state")
    code = tmp_path / "code"
    code.mkdir()
    order = {
        "run": "r1", "bucket": "b", "instance": "i-1", "code": str(code), "pytest_args": ["bench_no.py"],
        "environment": {"NEURONBENCH_CODE_SHA256": "0f" * 32}, "unknown": "of a later version",
    }  # fmt: skip
    (found.folder / "run.json").write_text(json.dumps(order), encoding="utf-8")
    return found


def test_pytests_command_and_variables_are_the_same_on_every_box_of_a_run(state: State) -> None:
    order = Order.read(state.folder)
    assert child.command(order) == [sys.executable, "-m", "pytest", "bench_no.py", "--nb-resume=last"]
    made = child.environment(order, state, {"PATH": "/bin", "HOME": "/root"})
    assert made["NEURONBENCH_TRACKING_URI"] == "off"
    assert made["NEURONBENCH_CODE_SHA256"] == "0f" * 32
    assert made["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert made["PATH"].endswith("/opt/aws/neuron/bin")
    own = Order(
        run="r1", bucket="b", instance="i-1", code=order.code,
        pytest_args=["--nb-resume=20261130-041503-ab12", "--nb-tracking-uri=http://mlflow:5000"],
    )  # fmt: skip
    assert child.command(own)[-1] == "--nb-tracking-uri=http://mlflow:5000"
    assert "NEURONBENCH_TRACKING_URI" not in child.environment(own, state, {})


def test_an_agent_ends_when_another_works_on_the_run_and_when_it_is_over(
    state: State, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    from neuronbench_fleet.remote.agent import _only_one

    lock = _only_one(state.folder)
    assert lock is not None
    assert agent([str(state.folder)], connect=lambda order: store) == 0
    assert "another agent works on r1" in capsys.readouterr().out
    lock.close()
    state.write("done", exit_code=0)
    assert agent([str(state.folder)], connect=lambda order: store) == 0
    assert "r1 is over" in capsys.readouterr().out
    assert not list(store.keys("runs/"))


def test_an_agent_that_finds_pytest_ended_only_sends_what_is_left(
    state: State, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setenv("NEURONBENCH_AGENT_PACE", "0.01")
    monkeypatch.setenv("NEURONBENCH_IMDS", "http://127.0.0.1:9")
    monkeypatch.setenv("PATH", "")  # neither systemctl nor shutdown: it ends all the same
    session = ReceiptStore(state.receipts).begin_session(command=[])
    put(state.receipts, session, "a")
    state.write("ended", exit_code=1, reason="", text="")
    state.write("boots", boots=1)
    state.console(1).write_text("the last words\n", encoding="utf-8")
    assert agent([str(state.folder)], connect=lambda order: store) == 0
    follower = Follower(store=store, run="r1")
    pieces = follower.poll()
    assert b"the last words\n" in [piece.data for piece in pieces]
    assert follower.end is not None
    assert (follower.end["exit_code"], follower.end["shipped"], follower.end["boot"]) == (1, 1, 2)
    assert ReceiptShelf(store, "runs/r1/receipts/").names().whole == ((session, "a--r1"),)
    assert state.read("done")["exit_code"] == 1
    lines = [line_of(piece.box, event) for piece in pieces for event in piece.events()]
    assert any("finished: exit status 1; 1 receipt in the bucket" in line for line in lines)
    assert prior.spent(store, "r1")[0] >= 0


# -- unit and script ---------------------------------------------------------------------------------------------------


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = bootstrap.unit("r1", sha256="0f" * 32, python=sys.executable).replace("@ROOT@", "")
    assert "@" not in re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    for word in (
        "Restart=on-failure", "WantedBy=multi-user.target", "KillMode=mixed", "TimeoutStopSec=300",
        "StartLimitBurst=10",
    ):  # fmt: skip
        assert word in text
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze here")
    path = tmp_path / "neuronbench-run-r1.service"
    code = tmp_path / "code"
    path.write_text(text.replace(f"/opt/neuronbench/{'0f' * 32}", str(code)), encoding="utf-8")
    code.mkdir()
    done = subprocess.run([verify, "verify", "--man=no", str(path)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "neuronbench-run" in line or "Unknown" in line]
    assert complaints == []


def test_the_script_is_shell_and_says_what_is_to_be_run_without_secrets() -> None:
    order = {"run": "r1", "pytest_args": ["-k", "a 'b' and \"c\" $(reboot)"], "bucket": "b"}
    text = bootstrap.script(order, sha256="0f" * 32, url="https://b.s3/x?X-Amz-Signature=1&y=2", setup="make harness")
    assert subprocess.run(["sh", "-n"], input=text, text=True).returncode == 0
    assert "$(reboot)" not in text
    packed = re.search(r"printf '%s' '([A-Za-z0-9+/=]+)' \| base64 -d \| sed", text)
    assert packed is not None
    assert json.loads(base64.b64decode(packed[1]))["pytest_args"] == order["pytest_args"]
    assert len(text) < 20_000
    cancel = bootstrap.cancel_script("r1", by="o'me $(reboot)@desk", at="2026-11-30T04:15:00+00:00")
    assert subprocess.run(["sh", "-n"], input=cancel, text=True).returncode == 0
    assert "$(reboot)" not in cancel
    assert "@" not in cancel.partition("set -eu")[2]
    with pytest.raises(UsageError):
        bootstrap.cancel_script("../x", by="me", at="")
    for wrong in ("R1", "a b", "../x", ""):
        with pytest.raises(UsageError):
            bootstrap.script({"run": wrong}, sha256="0f" * 32, url="https://x")
    with pytest.raises(UsageError, match="without spaces"):
        bootstrap.unit("r1", sha256="0f" * 32, python="/opt/my python")


def test_the_code_is_had_by_the_regions_own_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    url = Aws(region="sa-east-1").presigned("lab-results", "code/x.tar.gz", expires_s=60)
    assert url.startswith(
        "https://lab-results.s3.sa-east-1.amazonaws.com/code/x.tar.gz?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    )
    assert "X-Amz-Expires=60" in url
