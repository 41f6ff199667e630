"""Receipts through a store: whole or absent, never overwritten, and damage is found and gone around."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from neuronbench.cli import build, main
from neuronbench.model import Environment, FrozenMap, Outcome, Point, Record
from neuronbench.plugins import Plugins
from neuronbench.receipts import ReceiptStore
from neuronbench.shipping import Listing, ReceiptShelf, open_shelf, pull
from neuronbench.sinks.contents import RestoreError, contents
from neuronbench.weights import LocalBlobs, StoreError

Tree = dict[str, bytes]


def measured(root: Path, session: str, name: str, *, text: str = "a log\n") -> Path:
    """A receipt with a file in a folder, and a marker of a sink, which is none of it."""
    store = ReceiptStore(root)
    point = Point(benchmark="bench_a.py::bench_a", lane="serving", backend="cpu", params=FrozenMap(), id=name)
    record = Record(point=point, session=session, started_at="2026-11-30T01:23:45+00:00", environment=Environment())
    staging = store.open(record)
    (staging.folder / "logs").mkdir()
    (staging.folder / "logs" / "server.log").write_text(text, encoding="utf-8")
    (staging.folder / "empty.bin").touch()
    record.attachments = ["logs/server.log", "empty.bin"]
    record.close(Outcome.OK, ended_at="2026-11-30T01:23:46+00:00", duration_s=1.0)
    folder = store.commit(record, staging)
    store.mark(folder, "mlflow", state="delivered")
    return folder


def tree(folder: Path) -> Tree:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Faulty(LocalBlobs):
    """A store that cuts off the first body of some objects, and fails after so many writes."""

    def __init__(self, folder: Path, *, cut: Callable[[str], bool] = lambda key: False, writes: int = 10**9) -> None:
        super().__init__(folder)
        self.cut, self.writes = cut, writes
        self.done: set[str] = set()

    def write(self, key: str, chunks: Iterable[bytes], size_bytes: int) -> bool:
        if self.writes == 0:
            raise StoreError("store_unreachable", "the line is dead", remedy="wait")
        self.writes -= 1
        if self.cut(key) and key not in self.done:
            self.done.add(key)
            super().write(key, [b"".join(chunks)[:-3]], size_bytes)
            return True
        return super().write(key, chunks, size_bytes)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here" / "receipts"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "there" / "receipts"


@pytest.fixture
def session(here: Path) -> str:
    return ReceiptStore(here).begin_session(command=["pytest"], planned=["a--r1", "b--r1"])


def test_there_and_back_are_the_same_bytes_and_nothing_happens_twice(
    here: Path, there: Path, session: str, tmp_path: Path
) -> None:
    folder = measured(here, session, "a")
    shelf = ReceiptShelf(LocalBlobs(tmp_path / "store"), "runs/r1/receipts/")
    assert shelf.put(folder) == "sent"
    stored = tree(tmp_path / "store")
    assert shelf.put(folder) == "there"
    assert tree(tmp_path / "store") == stored
    assert shelf.names() == Listing(whole=((session, "a--r1"),), sessions=(session,))
    assert not any("sinks" in key for key in stored)

    first = pull(shelf, there)
    assert (first.fetched, first.kept, first.refused) == ([f"{session}/a--r1"], [], [])
    assert contents(there / session / "a--r1") == contents(folder)
    assert {p.name for p in (there / session).iterdir()} == {"a--r1"}  # nothing half-done is left
    assert ReceiptStore(there).read(f"{session}/a--r1").record.outcome is Outcome.OK
    again = pull(shelf, there)
    assert (again.fetched, again.kept, again.ok) == ([], [f"{session}/a--r1"], True)
    known = {(session, "a--r1")}
    assert pull(shelf, there, known=known).kept == []


def test_an_upload_that_broke_is_no_receipt_and_goes_on_where_it_was(
    here: Path, there: Path, session: str, tmp_path: Path
) -> None:
    folder = measured(here, session, "a")
    for writes in range(len(contents(folder)) + 1):  # after each of its objects
        blobs = Faulty(tmp_path / f"store-{writes}", writes=writes)
        shelf = ReceiptShelf(blobs)
        with pytest.raises(StoreError, match="the line is dead"):
            shelf.put(folder)
        assert shelf.names().whole == ()
        assert shelf.names().unfinished == (((session, "a--r1"),) if writes else ())
        result = pull(shelf, there)
        assert (result.fetched, result.ok) == ([], True)
        with pytest.raises(RestoreError, match="no manifest of it"):
            shelf.get(there, session, "a--r1")
        blobs.writes = 10**9
        assert shelf.put(folder) == "sent"
        assert shelf.names() == Listing(whole=((session, "a--r1"),), sessions=(session,))


@pytest.mark.parametrize("damaged", ["record.json", "server.log", "MANIFEST.json", "session.begun.json", ""])
def test_bodies_that_were_cut_short_are_found_and_sent_again_beside(
    here: Path, there: Path, session: str, tmp_path: Path, damaged: str
) -> None:
    folder = measured(here, session, "a")
    shelf = ReceiptShelf(
        Faulty(tmp_path / "store", cut=lambda key: key.endswith(damaged) and key[-7] not in "~-" and "~" not in key)
    )
    assert shelf.put(folder) == "sent"
    shelf.put_session(folder.parent, ended=False)
    stored = tree(tmp_path / "store")
    result = pull(shelf, there)
    assert (result.fetched, result.refused) == ([f"{session}/a--r1"], [])
    assert contents(there / session / "a--r1") == contents(folder)
    assert ReceiptStore(there).manifest(session).planned == ("a--r1", "b--r1")
    assert tree(tmp_path / "store") == stored
    assert shelf.put(folder) == "there"


def test_a_store_that_never_gives_back_what_it_got_is_said_and_not_asked_for_ever(
    here: Path, session: str, tmp_path: Path
) -> None:
    folder = measured(here, session, "a")
    shelf = ReceiptShelf(Faulty(tmp_path / "store", cut=lambda key: "server.log" in key))
    with pytest.raises(StoreError, match="9 times the store gave back other bytes"):
        shelf.put(folder)
    assert shelf.names().whole == ()


def test_another_receipt_of_the_same_name_is_kept_beside_and_reported(
    here: Path, there: Path, session: str, tmp_path: Path
) -> None:
    shelf = ReceiptShelf(LocalBlobs(tmp_path / "store"))
    one = measured(here, session, "a")
    other = measured(tmp_path / "elsewhere", session, "a", text="another log\n")
    assert shelf.put(one) == "sent"
    stored = tree(tmp_path / "store")
    assert shelf.put(other) == "other"
    assert shelf.put(other) == "other"
    assert stored.items() <= tree(tmp_path / "store").items()
    assert len(shelf.names().whole) == len(shelf.names().others) == 1
    result = pull(shelf, there)
    assert result.fetched == [f"{session}/a--r1"]
    assert [name for name, _ in result.refused] == [f"{session}/a--r1"]
    assert "another receipt was sent under this name" in result.refused[0][1]
    assert contents(there / session / "a--r1") == contents(one)


def test_changed_objects_are_refused_by_name_and_the_others_come(
    here: Path, there: Path, session: str, tmp_path: Path
) -> None:
    shelf = ReceiptShelf(LocalBlobs(tmp_path / "store"))
    for name in ("a", "b", "c", "d"):
        shelf.put(measured(here, session, name))

    def change(key: str, data: bytes) -> None:
        path = tmp_path / "store" / session / key
        path.chmod(0o644)
        path.write_bytes(data)

    change("a--r1/files/logs/server.log", b"A log\n")
    (tmp_path / "store" / session / "b--r1" / "files" / "empty.bin").unlink()
    change("c--r1/MANIFEST.json", (tmp_path / "store" / session / "d--r1" / "MANIFEST.json").read_bytes())
    result = pull(shelf, there)
    assert result.fetched == [f"{session}/d--r1"]
    assert [name for name, _ in result.refused] == [f"{session}/{name}--r1" for name in "abc"]
    texts = [text for _, text in result.refused]
    assert "logs/server.log: expected 6 bytes" in texts[0]
    assert "empty.bin is missing" in texts[1]
    assert "its manifest is that of" in texts[2]
    assert {p.name for p in (there / session).iterdir()} == {"d--r1"}


@pytest.mark.parametrize("path", ["../../escaped", "/escaped", "sinks/mlflow.json", "a/../../b"])
def test_a_manifest_that_leads_out_of_its_folder_is_none(
    here: Path, there: Path, session: str, tmp_path: Path, path: str
) -> None:
    from neuronbench.shelved import manifest_text

    shelf = ReceiptShelf(LocalBlobs(tmp_path / "store"))
    shelf.put(measured(here, session, "a"))
    key = tmp_path / "store" / session / "a--r1" / "MANIFEST.json"
    found = shelf.manifest(session, "a--r1")
    hostile = manifest_text(found).replace("empty.bin", path)
    body = {name: value for name, value in json.loads(hostile).items() if name != "sha256"}
    key.chmod(0o644)
    import hashlib

    from neuronbench.canonical import canonical_json

    key.write_text(canonical_json({**body, "sha256": hashlib.sha256(canonical_json(body).encode()).hexdigest()}))
    result = pull(shelf, there)
    assert [name for name, _ in result.refused] == [f"{session}/a--r1"]
    assert not list(tmp_path.rglob("escaped"))


def test_two_that_send_and_two_that_fetch_at_the_same_time_make_one_set(
    here: Path, there: Path, session: str, tmp_path: Path
) -> None:
    folders = [measured(here, session, name, text=name * 100_000) for name in "abcdefgh"]
    store = LocalBlobs(tmp_path / "store")
    done: list[list[str]] = []
    both = threading.Barrier(2)

    def send() -> None:
        both.wait()
        done.append([ReceiptShelf(store).put(folder) for folder in folders])

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each for one in done for each in one} <= {"sent", "there"}
    assert len(done) == 2
    keys = list(store.keys(""))
    assert len(keys) == len(set(keys)) == 8 * 4  # three files and their manifest, and nothing beside them
    program = (
        "import sys; from pathlib import Path; from neuronbench.shipping import ReceiptShelf, pull;"
        "from neuronbench.weights import LocalBlobs; print('ready', flush=True); sys.stdin.readline();"
        "came = pull(ReceiptShelf(LocalBlobs(Path(sys.argv[1]))), Path(sys.argv[2]));"
        "print(len(came.fetched), len(came.kept), len(came.refused))"
    )
    fetching = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(store.folder), str(there)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in fetching:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in fetching:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [[int(word) for word in process.communicate(timeout=120)[0].split()] for process in fetching]
    assert [fetched + kept for fetched, kept, _ in told] == [8, 8]
    assert sum(fetched for fetched, _, _ in told) == 8
    assert [refused for _, _, refused in told] == [0, 0]
    assert [contents(there / session / folder.name) for folder in folders] == [contents(folder) for folder in folders]


def test_a_different_receipt_here_is_not_touched(here: Path, there: Path, session: str, tmp_path: Path) -> None:
    shelf = ReceiptShelf(LocalBlobs(tmp_path / "store"))
    shelf.put(measured(here, session, "a"))
    mine = measured(there, session, "a", text="mine\n")
    before = tree(mine)
    result = pull(shelf, there)
    assert "is there already and is another receipt" in result.refused[0][1]
    assert tree(mine) == before


def test_what_is_no_receipt_is_not_sent(tmp_path: Path) -> None:
    folder = tmp_path / "session" / "a--r1"
    folder.mkdir(parents=True)
    (folder / "server.log").touch()
    with pytest.raises(RestoreError, match=r"expected a receipt with its record\.json"):
        ReceiptShelf(LocalBlobs(tmp_path / "store")).put(folder)
    assert not (tmp_path / "store").exists()


def test_the_manifest_of_a_session_comes_when_it_begins_and_again_when_it_has_ended(
    here: Path, there: Path, session: str, tmp_path: Path
) -> None:
    shelf = ReceiptShelf(LocalBlobs(tmp_path / "store"))
    shelf.put(measured(here, session, "a"))
    pull(shelf, there)
    assert not (there / session / "session.json").exists()
    shelf.put_session(here / session, ended=False)
    pull(shelf, there)
    assert ReceiptStore(there).manifest(session).ended_at == ""
    ReceiptStore(here).end_session(session, 3)
    shelf.put_session(here / session, ended=True)
    shelf.put_session(here / session, ended=False)
    pull(shelf, there)
    assert ReceiptStore(there).manifest(session).exit_status == 3
    ReceiptStore(there).update_session(session, user="somebody")  # what is here and ended stays
    pull(shelf, there)
    assert ReceiptStore(there).manifest(session).user == "somebody"


def test_the_command_pulls_from_a_run_by_its_place(
    here: Path, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "store" / "runs" / "r1"
    shelf = open_shelf(str(runs))
    assert open_shelf(f"{runs}/receipts/").url == shelf.url.rstrip("/")
    shelf.put(measured(here, session, "a"))
    shelf.put_session(here / session, ended=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    app = build(Plugins())
    for where in (str(runs), str(runs / "receipts")):
        done = CliRunner().invoke(app, ["pull", where, "--json"])
        assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kept"] == [f"{session}/a--r1"]
    found = ReceiptStore(tmp_path / "project" / "mlruns" / "receipts")
    assert contents(found.root / session / "a--r1") == contents(here / session / "a--r1")
    assert CliRunner().invoke(app, ["pull", "--from", str(runs), "--session", session[:8]]).exit_code == 0

    log = runs / "receipts" / session / "a--r1" / "files" / "logs" / "server.log"
    log.chmod(0o644)
    log.write_bytes(b"a lag\n")
    assert main(["--root", str(tmp_path / "project"), "pull", str(runs)]) == 0  # it is here already, and right
    (tmp_path / "other").mkdir()
    assert main(["--root", str(tmp_path / "other"), "pull", str(runs)]) == 1
    assert f"refused: {session}/a--r1" in capsys.readouterr().err
    assert main(["pull", "s3://x"]) == 2
    assert main(["pull", str(runs), "--tag", "a=b"]) == 2
    assert main(["pull", str(runs), "--from", str(runs)]) == 2
