"""Receipts that others send: what is in them is read within bounds, shown as it is, and obeyed by nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neuronbench import cli
from neuronbench.canonical import printable, printable_json
from neuronbench.compare.reading import Reader
from neuronbench.definitions import metric
from neuronbench.model import (
    Environment,
    Failure,
    FrozenMap,
    Gate,
    Outcome,
    Point,
    Record,
    ResourceRef,
)
from neuronbench.receipts import ReceiptError, ReceiptStore
from neuronbench.sinks.contents import contents

EVIL = "<img src=x onerror=hack(1)>\"'|\n# heading\n[/x][link=http://e]a[/link]\x1b[2J\x07\r\x9b1m\u202e`@a"
"""Markup of pages, of Markdown and of rich; what clears a terminal, rings, overwrites a line, writes backwards."""
OBEYED = "\x1b\x07\r\x9b\u202e"
KEPT = frozenset(
    {"schema_version", "kind", "provenance", "outcome", "validity", "severity", "better", "definition", "stat", "unit",
     "started_at", "ended_at", "fingerprint", "log"}
)  # fmt: skip
"""What a reader refuses in another form."""
SESSIONS = ("20261101-000001-0001", "20261101-000002-0002")


def record(session: str, name: str, **fields: Any) -> Record:
    facts = FrozenMap({"backend.name": "cpu", "host.arch": "x86_64", "git.commit": "a" * 40})
    point = Point(
        benchmark="b.py::bench_x", lane="serving", backend="cpu", params=FrozenMap(concurrency=1, model="m"),
        axes=("concurrency",), id=name,
    )  # fmt: skip
    made = Record(
        session=session, point=point, started_at="2026-11-01T12:00:00.000000+00:00",
        environment=Environment(facts=facts, key="e1"), workload={"digest": "d"}, notes=["a note"], **fields,
    )  # fmt: skip
    made.resource = ResourceRef(id="r", kind="endpoint", spec=FrozenMap(model="m"), facts=FrozenMap(argv=["a"]))
    made.add(metric("ttft", 50.0, stat="p50", n=400, note="a note"), metric("output_throughput", 100.0, n=400))
    made.gate(Gate(id="late", passed=False, observed=3.0, limit=1.0, severity="provisional", message="it was late"))
    return made


def documents(session: str) -> dict[str, dict[str, Any]]:
    """One of each form that is shown in a way of its own."""
    made = {name: record(session, name) for name in ("point", "failed", "boot", "compile")}
    made["failed"].error = Failure(kind="oom", phase="boot", message="m", causal_line="Killed", remedy="r", log="x.log")
    made["failed"].close(Outcome.ERROR, ended_at="", duration_s=None)
    for kind in ("boot", "compile"):
        made[kind].kind = kind  # type: ignore[assignment]
        made[kind].add(metric("boot_time", 3.0))
    skipped = record(session, "skipped", reason="no hardware")
    skipped.close(Outcome.SKIPPED, ended_at="", duration_s=None)
    for one in made.values():
        if not one.closed:
            one.close(Outcome.OK, ended_at="2026-11-01T12:00:09.000000+00:00", duration_s=9.0)
    return {name: one.to_json() for name, one in {**made, "skipped": skipped}.items()}


def evil(value: Any, key: str = "") -> Any:
    """`value` with something hostile at the end of each text."""
    if isinstance(value, str):
        return value if key in KEPT or not value else value + EVIL
    if isinstance(value, dict):
        return {name: evil(item, name) for name, item in value.items()}
    return [evil(item, key) for item in value] if isinstance(value, list) else value


def texts(value: Any) -> list[str]:
    if isinstance(value, (dict, list)):
        return [text for item in (value.values() if isinstance(value, dict) else value) for text in texts(item)]
    return [value] if isinstance(value, str) else []


def write(folder: Path, document: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(document))
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "neuronbench.toml").write_text("")
    monkeypatch.setenv("NEURONBENCH_TRACKING_URI", "off")
    for session in SESSIONS:
        for name, document in documents(session).items():
            write(tmp_path / "mlruns" / "receipts" / session / name, evil(document))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",), ("list", "--json"), ("list", "--session", "last"), ("list", "--session", "last", "--json"),
        ("compare", "--boots", "--all"), ("compare", "--format", "markdown"), ("compare", "--format", "junit"),
        ("compare", "--allow", "invalid", "--metric", "*"), ("history",), ("history", "--format", "markdown"),
        ("report", "--format", "markdown", "--out", "-"), ("report", "--out", "-"),
        ("report", "--compare", "latest~1", "--out", "-"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_a_receipt_says_is_shown_and_not_obeyed(
    arguments: tuple[str, ...], project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--root", str(project), *arguments]) == 0
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    for stream in (said.out, said.err):
        assert not [character for character in OBEYED if character in stream.replace("\r\n", "\n")]
    if "json" not in " ".join(arguments) and arguments[0] in ("list", "compare", "history") and len(arguments) > 1:
        assert "\ufffd[2J" in said.out.replace("\\", "")  # it is there, and can be seen
    if "markdown" in arguments or arguments[0] == "report":
        assert "<img" not in said.out
    if "markdown" in arguments:
        assert "\n# heading" not in said.out
    if "--json" in arguments:
        assert any(text.endswith(EVIL) for text in texts(json.loads(said.out)))


def test_what_json_says_is_the_same_when_it_can_be_printed() -> None:
    text = json.dumps({"a": EVIL + "\ud800"}, ensure_ascii=False)
    assert printable_json(text).encode()
    assert json.loads(printable_json(text)) == json.loads(text)
    assert printable("a\tb\nc é 漢") == "a\tb\nc é 漢"
    assert printable(EVIL).count("\ufffd") == len(OBEYED)


# -- what a record may not be ------------------------------------------------------------------------------------------

DEEP: list[Any] = []
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["gates"][0].update(passed=0), r"gates\[0\]\.passed: expected true, false or null, found 0"),
        (lambda d: d["gates"][0].update(passed=1.0), r"gates\[0\]\.passed"),
        (lambda d: d["gates"][0].update(passed=[]), r"gates\[0\]\.passed"),
        (lambda d: d["metrics"]["ttft_p50_ms"].update(value=10**400), r"ttft_p50_ms\.value: expected a number"),
        (lambda d: d["metrics"]["ttft_p50_ms"].update(low=10**400), r"ttft_p50_ms\.low: expected a number"),
        (lambda d: d["metrics"]["ttft_p50_ms"].update(value=float("nan")), "NaN is not JSON"),
        (lambda d: d["workload"].update(x=float("inf")), "Infinity is not JSON"),
        (lambda d: d["point"]["params"].update(x=float("nan")), "NaN is not JSON"),
        (lambda d: d["workload"].update(x=10**4000, y=DEEP), r"workload: expected at most 100"),
        (lambda d: d.update(duration_s=10**400), "duration_s: expected a number"),
        (lambda d: d["point"]["params"].update(x=DEEP), r"point\.params: expected at most 100 lists and objects"),
        (lambda d: d["environment"]["facts"].update(x=DEEP), r"environment\.facts: expected at most 100"),
        (lambda d: d["resource"]["spec"].update(x=DEEP), r"resource\.spec: expected at most 100"),
        (lambda d: d["workload"].update(x=DEEP), r"workload: expected at most 100"),
        (lambda d: d["gates"][0].update(observed=DEEP), "nested too deeply"),
        (lambda d: d.update(tables={"requests": "../../other/requests.parquet"}), "tables: expected files inside"),
        (lambda d: d.update(tables={"requests": "/etc/passwd"}), "tables: expected files inside"),
        (lambda d: d.update(attachments=["logs/../../x"]), "attachments: expected files inside"),
        (lambda d: d.update(attachments=["/etc/passwd"]), "attachments: expected files inside"),
        (lambda d: d.update(tags={"a": 1}), "tags: expected an object of texts"),
        (lambda d: d["point"].update(id="x" * 5_000_000, lane=3), r"point\.lane"),
        (lambda d: d["point"].update(lane=["x"] * 100_000), r"point\.lane: expected text, found list of 100,000"),
    ],
    ids=range(22),
)  # fmt: skip
def test_a_record_that_is_none_is_refused_by_its_key(
    change: Callable[[dict[str, Any]], object], said: str, tmp_path: Path
) -> None:
    document = documents(SESSIONS[0])["failed"]
    change(document)
    write(tmp_path / SESSIONS[0] / "x", document)
    store = ReceiptStore(tmp_path)
    with pytest.raises(ReceiptError, match=said) as caught:
        store.read(tmp_path / SESSIONS[0] / "x")
    assert len(str(caught.value)) < 1_000
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("make", ["pipe", "device", "folder", "sparse", "deep"])
def test_a_file_that_is_no_record_is_refused_without_waiting_or_reading_it(make: str, tmp_path: Path) -> None:
    folder = tmp_path / SESSIONS[0] / "x"
    folder.mkdir(parents=True)
    path = folder / "record.json"
    if make == "pipe":
        os.mkfifo(path)
    elif make == "device":
        path.symlink_to("/dev/zero")
    elif make == "folder":
        path.mkdir()
    elif make == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.write_text('{"a":' * 100_000)
    store, problems = ReceiptStore(tmp_path), []
    for read in (lambda: store.read(folder), lambda: list(store.headers(SESSIONS[0]))):
        with pytest.raises(ReceiptError, match=str(path)):
            read()
    assert Reader(on_error=problems.append).read([folder]) == []
    assert str(path) in str(problems[0])


def test_links_out_of_a_receipt_are_not_followed(tmp_path: Path) -> None:
    """A table is read and a log is sent on only when they are in the receipt itself."""
    secret = tmp_path / "credentials.parquet"
    pq.write_table(pa.table({"secret": ["s"]}), secret)
    document = documents(SESSIONS[0])["point"]
    document.update(tables={"requests": "requests.parquet"}, attachments=["server.log"])
    folder = write(tmp_path / "receipts" / SESSIONS[0] / "x", document)
    for name in ("requests.parquet", "server.log"):
        (folder / name).symlink_to(secret)
    receipt = ReceiptStore(tmp_path / "receipts").read(folder)
    with pytest.raises(ReceiptError, match=r"requests\.parquet: expected a Parquet table inside the receipt"):
        receipt.table("requests")
    assert set(contents(folder)) == {"record.json"}
    (folder / "requests.parquet").unlink()
    shutil.copy(secret, folder / "requests.parquet")
    assert receipt.table("requests").num_rows == 1
    assert set(contents(folder)) == {"record.json", "requests.parquet"}


@pytest.mark.parametrize(("log", "linked"), [("x.log", True), ("../secret.log", False), ("link.log", False)])
def test_a_log_is_linked_when_it_is_in_the_receipt(
    log: str, linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURONBENCH_TRACKING_URI", "off")
    (tmp_path / "neuronbench.toml").write_text("")
    document = documents(SESSIONS[0])["failed"]
    document["error"]["log"] = log
    folder = write(tmp_path / "mlruns" / "receipts" / SESSIONS[0] / "x", document)
    for path in (folder / "x.log", folder.parent / "secret.log"):
        path.write_text("Killed")
    (folder / "link.log").symlink_to(folder.parent / "secret.log")
    assert cli.main(["--root", str(tmp_path), "report", "--format", "markdown", "--out", "-"]) == 0
    assert ("log)" in capfd.readouterr().out) is linked


def test_a_pipe_in_the_place_of_a_table_is_not_waited_for(tmp_path: Path) -> None:
    document = documents(SESSIONS[0])["point"]
    document.update(tables={"requests": "requests.parquet"})
    folder = write(tmp_path / SESSIONS[0] / "x", document)
    os.mkfifo(folder / "requests.parquet")
    with pytest.raises(ReceiptError, match="expected a Parquet table inside the receipt, found none"):
        ReceiptStore(tmp_path).read(folder).table("requests")


@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324, -0.0], ids=str)
def test_absurd_numbers_cost_no_figure_of_the_others(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURONBENCH_TRACKING_URI", "off")
    (tmp_path / "neuronbench.toml").write_text("")
    for concurrency, rate in ((1, 100.0), (2, 200.0), (3, value)):
        made = record(SESSIONS[0], f"c{concurrency}").to_json()
        made["point"]["params"]["concurrency"] = concurrency
        made["gates"] = []
        made["metrics"]["output_throughput_tok_s"]["value"] = rate
        made["metrics"]["ttft_p50_ms"]["value"] = abs(value) if concurrency == 3 else 50.0
        made.update(outcome="ok", validity="valid")
        write(tmp_path / "mlruns" / "receipts" / SESSIONS[0] / f"c{concurrency}", made)
    assert cli.main(["--root", str(tmp_path), "report", "--out", "-"]) == 0
    page = capfd.readouterr().out
    assert page.count("<svg") >= 1
    assert cli.main(["--root", str(tmp_path), "compare", SESSIONS[0], SESSIONS[0], "--metric", "*"]) == 0
