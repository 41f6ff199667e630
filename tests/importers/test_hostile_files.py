"""Files that are damaged, enormous or hostile: a clear error naming the file, nothing written, nothing executed."""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import socket
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import aws_pages
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tools import GUIDELLM_FIRST, SOURCES

from neuronbench import cli
from neuronbench.canonical import canonical_json
from neuronbench.importers import KINDS, Imported, ImportFailure, gather, safe, store, write
from neuronbench.importers.base import read
from neuronbench.receipts import ReceiptStore

TEXTS: dict[str, tuple[str, str, str]] = {
    **{kind: (kind, name, json.dumps(sample)) for kind, (name, sample) in SOURCES.items()},
    "guidellm-0.1": ("guidellm", "guidellm_report.json", json.dumps(GUIDELLM_FIRST)),
    "aws-html": ("aws", "page.html", aws_pages.page_html(2)),
    "aws-text": ("aws", "page.txt", aws_pages.page_text(aws_pages.as_tabs, 2)),
    "aws-paragraphs": ("aws", "page.txt", aws_pages.page_text(aws_pages.as_paragraphs, 2)),
    "aws-csv": (
        "aws",
        "throughput_data_encoder.csv",
        aws_pages.csv_text(aws_pages.ENCODER, aws_pages.rows("encoder")[:4]),
    ),
}
"""Form → kind, name of the file, a whole file. Every kind that is imported, but the one with a test file of its own."""
HOSTILE = ["../../../etc/x", "<script>alert(1)</script>", "a\x01b", "C:\\x", "x" * 5000, "\u202egnp", "", "$(id)`id`",
           "=cmd|' /C calc'!A0", "\n\n# heading\n| a |", "file:///etc/passwd", "%s%n{0}", "\ud800"]  # fmt: skip
"""Names that are paths, markup, commands, formulas, control characters, halves of characters."""


def test_every_kind_is_tried_here() -> None:
    assert {kind for kind, _, _ in TEXTS.values()} == set(KINDS) - {"study"}


def refused(kind: str, path: Path) -> str:
    with pytest.raises(ImportFailure) as caught:
        gather(KINDS[kind], path)
    assert str(path.name) in str(caught.value)
    return str(caught.value)


def read_unless_refused(kind: str, path: Path) -> list[Imported]:
    """What is read; nothing where the file is refused, which then names it."""
    refusal = ""
    try:
        return gather(KINDS[kind], path)
    except ImportFailure as error:
        refusal = str(error)
    assert path.name in refusal
    return []


@pytest.fixture(params=sorted(TEXTS))
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=sorted(SOURCES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_samples_themselves_are_read(form: str, tmp_path: Path) -> None:
    kind, name, content = TEXTS[form]
    (tmp_path / name).write_text("\ufeff" + content, encoding="utf-8")  # a byte order mark is no error
    assert gather(KINDS[kind], tmp_path / name)


def test_truncated_anywhere(kind: str, tmp_path: Path) -> None:
    name, sample = SOURCES[kind]
    whole = json.dumps(sample)
    for part in range(0, len(whole), max(1, len(whole) // 40)):
        path = tmp_path / name
        path.write_text(whole[:part])
        refused(kind, path)


@pytest.mark.parametrize("form", ["aws-text", "aws-csv"])
def test_of_rows_that_are_cut_off_no_number_is_made_up(form: str, tmp_path: Path) -> None:
    """A file of lines that ends between two of them is a shorter table; what is read is of the whole one."""
    _, name, whole = TEXTS[form]
    path = tmp_path / name
    path.write_text(whole)
    known = {canonical_json(dict(item.own)) for item in gather(KINDS["aws"], path)}
    ends = [match.end() for match in re.finditer("\n", whole)]
    counts = set()
    for part in sorted({*range(0, len(whole), 31), *ends}):
        path.write_text(whole[:part])
        found = read_unless_refused("aws", path)
        counts.add(len(found))
        for item in found[:-1]:
            assert canonical_json(dict(item.own)) in known
    assert counts == set(range(len(known) + 1))


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", "null", "3", '"text"', "[" * 100_000, '{"a":' * 100_000, "1" * 5_000_000, "not json", "", "\x00\x01",
     '{"benchmarks": 3}', '{"benchmarks": [{}]}', '{"metrics": [], "metadata": {}}', '{"successes": []}'],
    ids=range(15),
)  # fmt: skip
def test_another_form(kind: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / SOURCES[kind][0]
    path.write_text(content)
    refused(kind, path)


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """50 kB that are 50 MB."""
    return gzip.compress(b"\0" * 50_000_000)


def test_archives_pipes_folders_and_missing_files(form: str, bomb: bytes, tmp_path: Path) -> None:
    kind, name, content = TEXTS[form]
    packed = tmp_path / name
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escape.json", b"0" * 1_000_000)
    assert "zip" in refused(kind, packed)
    packed.write_bytes(bomb)
    assert "gzip" in refused(kind, packed)
    for magic, what in ((b"BZh9", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")):
        packed.write_bytes(magic + b"0" * 100)
        assert what in refused(kind, packed)
    packed.unlink()
    with tarfile.open(packed, "w") as archive:
        archive.addfile(tarfile.TarInfo("../../escape.json"))
    refused(kind, packed)
    packed.unlink()
    os.mkfifo(packed)
    assert "pipe" in refused(kind, packed)  # and does not wait for a writer
    packed.unlink()
    refused(kind, packed)
    packed.write_bytes(b"\xff\xfe" + content.encode("utf-16-le"))
    assert "UTF-8" in refused(kind, packed)
    packed.write_bytes(content.encode("utf-16-le"))
    assert "zero byte" in refused(kind, packed)
    packed.write_bytes(content[:30].encode() + b"\xe9" + content[30:].encode())
    assert "0xe9 at 30" in refused(kind, packed)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom", "/dev/tty"])
def test_devices_are_not_read(device: str, form: str) -> None:
    refused(TEXTS[form][0], Path(device))


def test_sockets_are_not_read(form: str, tmp_path: Path) -> None:
    kind, name, _ = TEXTS[form]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(tmp_path / name))
        assert "cannot be read" in refused(kind, tmp_path / name)


def test_an_enormous_file_is_refused_without_being_read(form: str, tmp_path: Path) -> None:
    kind, name, _ = TEXTS[form]
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(b"{")
        file.truncate(1024**3)  # sparse: costs no disk
    assert f"at most {16 if kind == 'aws' else 64} MiB" in refused(kind, path)


def test_a_name_that_is_given_twice(kind: str, tmp_path: Path) -> None:
    name, sample = SOURCES[kind]
    first = next(iter(sample))
    path = tmp_path / name
    path.write_text("{" + f'"{first}": 1, ' + json.dumps(sample)[1:])
    assert f"'{first}' twice" in refused(kind, path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400])
def test_numbers_that_are_none_are_refused_or_missing(number: str, kind: str, tmp_path: Path) -> None:
    """In place of every number, one after the other: what is stored has no number that JSON does not."""
    name, sample = SOURCES[kind]
    whole = json.dumps(sample)
    path = tmp_path / name
    for match in re.finditer(r"(?<=[:\[ ])\d+(\.\d+)?(?=[,}\]])", whole):
        path.write_text(whole[: match.start()] + number + whole[match.end() :])
        for item in read_unless_refused(kind, path):
            json.dumps([metric.to_json() for metric in item.metrics], allow_nan=False)
            json.dumps([dict(item.own), dict(item.params)], allow_nan=False, default=dict)


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "secret.json"
    outside.write_text(json.dumps(SOURCES["vllm"][1]))
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "link.json").symlink_to(outside)
    (inside / "folder").symlink_to(tmp_path)
    with pytest.raises(ImportFailure, match="found none below"):
        gather(KINDS["vllm"], inside)


def test_one_bad_file_fails_all_and_writes_nothing(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.json").write_text(json.dumps(SOURCES["vllm"][1]))
    (source / "b.json").write_text("{")
    with pytest.raises(ImportFailure, match=r"b\.json"):
        gather(KINDS["vllm"], source)
    assert not (tmp_path / "receipts").exists()


def test_a_link_that_is_named_is_read_and_its_content_is_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text(json.dumps(SOURCES["vllm"][1]))
    link.symlink_to(real)
    made = store(KINDS["vllm"], link, gather(KINDS["vllm"], link), tmp_path / "receipts")
    (receipt,) = ReceiptStore(tmp_path / "receipts").iter(made.session)
    copy = receipt.path / receipt.record.attachments[0]
    assert not copy.is_symlink()
    assert copy.read_text() == real.read_text()


def replaced(value: Any, text: str) -> Any:
    """`value` with every text in it replaced."""
    if isinstance(value, dict):
        return {key: replaced(one, text) for key, one in value.items()}
    if isinstance(value, list):
        return [replaced(one, text) for one in value]
    return text if isinstance(value, str) else value


def contents(form: str, hostile: str) -> str:
    kind, _, whole = TEXTS[form]
    if kind != "aws":
        return json.dumps(replaced(json.loads(whole), hostile))
    cell = " ".join(hostile.split()).replace("\ud800", "?").replace(",", ";").replace('"', "'")
    return whole.replace("albert-base-v2", html.escape(cell) if form == "aws-html" else cell or "-")


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_names_in_a_file_reach_no_path(hostile: str, form: str, tmp_path: Path) -> None:
    kind, name, _ = TEXTS[form]
    path, root = tmp_path / name, tmp_path / "deep" / "receipts"
    path.write_text(contents(form, hostile), encoding="utf-8")
    found = read_unless_refused(kind, path)
    if not found:
        assert sorted(tmp_path.rglob("*")) == [path]
        return
    made = store(KINDS[kind], path, found[:3], root)
    assert all(each in (path, root, root.parent) or root in each.parents for each in tmp_path.rglob("*"))
    receipts = list(ReceiptStore(root).iter(made.session))
    assert len(receipts) == len(found[:3])
    assert all(receipt.path.resolve().parent == (root / made.session).resolve() for receipt in receipts)
    assert all(receipt.record.point.id.isprintable() for receipt in receipts)


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_terminal_shows_of_names(hostile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    path = tmp_path / "0001.json"
    path.write_text(contents("pytest-benchmark", hostile + "\x1b[31mred"), encoding="utf-8")
    status = cli.main(["--root", str(tmp_path), "import", "pytest-benchmark", str(path)])
    session = next((tmp_path / "mlruns" / "receipts").iterdir()).name
    assert cli.main(["--root", str(tmp_path), "list", "--session", session]) == status == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out
    assert "Traceback" not in said.err


@pytest.mark.parametrize("name", [b"\xff\xfe.json", b"a\nb.json", b"--help.json", b"'; rm -rf x;.json", b"%2e%2e.json"])
def test_names_of_files(name: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    with open(os.fsencode(source) + b"/" + name, "wb") as file:
        file.write(json.dumps(SOURCES["vllm"][1]).encode())
    assert cli.main(["--root", str(tmp_path), "import", "vllm", str(source)]) == 0
    session = next((tmp_path / "mlruns" / "receipts").iterdir()).name
    (receipt,) = ReceiptStore(tmp_path / "mlruns" / "receipts").iter(session)
    assert receipt.record.workload["source"]["file"]
    assert "Traceback" not in capsys.readouterr().err


def test_many_results_are_bounded_and_so_are_their_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = aws_pages.csv_text(aws_pages.ENCODER, aws_pages.rows("encoder") * 3)
    path = tmp_path / "many.csv"
    path.write_text(lines)
    monkeypatch.setattr(write, "COPIES_LIMIT_BYTES", 2 * len(lines))
    made = store(KINDS["aws"], path, gather(KINDS["aws"], path), tmp_path / "receipts")
    receipts = list(ReceiptStore(tmp_path / "receipts").iter(made.session))
    assert len(receipts) == 42
    assert sum(len(receipt.record.attachments) for receipt in receipts) == 1
    assert len({receipt.record.workload["source"]["sha256"] for receipt in receipts}) == 1
    monkeypatch.setattr(write, "LIMIT_RESULTS", 41)
    with pytest.raises(ImportFailure, match="more than 41 results"):
        gather(KINDS["aws"], path)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("vllm", '{"completed": 1, "model_id": "m"}\n' * 200),
        ("guidellm", json.dumps({"benchmarks": [{}] * 200})),
        ("guidellm", json.dumps({"benchmarks": [{"benchmarks": [{}] * 100}] * 2})),
        ("pytest-benchmark", json.dumps({"benchmarks": [{}] * 200})),
        ("nxdi", json.dumps({f"m{index}": {"latency_ms_p50": 1} for index in range(200)})),
        ("aws", aws_pages.csv_text(aws_pages.ENCODER, aws_pages.rows("encoder") * 20)),
    ],
    ids=["vllm", "guidellm", "the first guidellm", "pytest-benchmark", "nxdi", "aws"],
)
def test_a_file_of_too_many_results_is_refused_before_they_are_made(
    kind: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.8 MB of the shortest lines took 700 MB: a file within the limit of bytes would take all there is."""
    path = tmp_path / ("many.csv" if kind == "aws" else "many.json")
    path.write_text(content)
    monkeypatch.setattr(safe, "LIMIT_RESULTS", 199)
    assert "expected at most 199 " in refused(kind, path)


def test_a_result_with_endless_figures(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**SOURCES["vllm"][1], **{f"figure_{index}": index for index in range(6000)}}))
    assert "figures in one result" in refused("vllm", path)


def test_text_of_a_source_is_bounded_in_a_record(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**SOURCES["vllm"][1], "label": "y" * 3_000_000, "z" * 3000: 1}))
    (item,) = gather(KINDS["vllm"], path)
    assert len(canonical_json(dict(item.own))) < 5_000


def mutated(value: Any) -> st.SearchStrategy[Any]:
    """`value` with anything anywhere replaced by something of another kind."""
    junk = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.builds(list), st.builds(dict)
    )
    if isinstance(value, dict) and value:
        keys = st.sampled_from(sorted(value))
        return st.one_of(
            junk, keys.flatmap(lambda key: mutated(value[key]).map(lambda new: {**value, key: new})),
            keys.map(lambda key: {k: v for k, v in value.items() if k != key}),
        )  # fmt: skip
    if isinstance(value, list) and value:
        return st.one_of(junk, mutated(value[0]).map(lambda new: [new, *value[1:]]))
    return junk


def read_or_refused(kind: str, name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, root = Path(folder, name), Path(folder, "receipts")
        path.write_bytes(content)
        refusal = ""
        try:
            found = read(KINDS[kind], path)
            if found:
                made = store(KINDS[kind], path, found[:3], root)
                json.dumps([record.to_json() for record in made.records], allow_nan=False)
        except ImportFailure as error:
            refusal = str(error)
        assert not refusal or (name in refusal and not root.exists())
        assert set(os.listdir(folder)) <= {name, "receipts"}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_whatever_is_changed_it_is_read_or_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(SOURCES)))
    name, sample = SOURCES[kind]
    content = data.draw(mutated(sample))
    read_or_refused(kind, name, json.dumps(content).encode())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_bytes_that_are_cut_or_changed_anywhere_are_read_or_refused(data: st.DataObject) -> None:
    kind, name, text = TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))]
    whole = text.encode()
    at = data.draw(st.integers(0, len(whole)))
    junk = data.draw(
        st.one_of(
            st.binary(max_size=8), st.sampled_from([b"<", b"</table>", b'"', b"\n", b"\t", b",", b"{", b"]", b"&"])
        )
    )
    kept = whole[at:] if data.draw(st.booleans()) else b""
    read_or_refused(kind, name, whole[:at] + junk + kept[data.draw(st.integers(0, 40)) :])


def test_limits_are_what_the_messages_say() -> None:
    assert safe.LIMIT_BYTES == 64 * 1024 * 1024
