"""Files that are damaged, enormous or hostile: a clear error naming the file, nothing written, nothing executed."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tools import SOURCES

from neuronbench.importers import KINDS, ImportFailure, gather, safe, store
from neuronbench.importers.base import read
from neuronbench.receipts import ReceiptStore


def refused(kind: str, path: Path) -> str:
    with pytest.raises(ImportFailure) as caught:
        gather(KINDS[kind], path)
    assert str(path.name) in str(caught.value)
    return str(caught.value)


@pytest.fixture(params=sorted(SOURCES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_truncated_anywhere(kind: str, tmp_path: Path) -> None:
    name, sample = SOURCES[kind]
    whole = json.dumps(sample)
    for part in range(0, len(whole), max(1, len(whole) // 40)):
        path = tmp_path / name
        path.write_text(whole[:part])
        refused(kind, path)


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


def test_archives_pipes_folders_and_missing_files(kind: str, tmp_path: Path) -> None:
    name, sample = SOURCES[kind]
    packed = tmp_path / name
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escape.json", b"0" * 10_000_000)
    assert "zip" in refused(kind, packed)
    packed.write_bytes(gzip.compress(json.dumps(sample).encode()))
    assert "gzip" in refused(kind, packed)
    packed.unlink()
    os.mkfifo(packed)
    assert "pipe" in refused(kind, packed)  # and does not wait for a writer
    packed.unlink()
    refused(kind, packed)
    packed.write_bytes(b"\xff\xfe" + json.dumps(sample).encode("utf-16-le"))
    assert "UTF-8" in refused(kind, packed)


def test_an_enormous_file_is_refused_without_being_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / SOURCES[kind][0]
    with path.open("wb") as file:
        file.write(b"{")
        file.truncate(1024**3)  # sparse: costs no disk
    assert "at most 64 MiB" in refused(kind, path)


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


@pytest.mark.parametrize(
    "name", ["../../../etc/x", "<script>alert(1)</script>", "a\x00b", "C:\\x", "x" * 5000, "\u202egnp", ""]
)
def test_names_in_a_file_reach_no_path(name: str, tmp_path: Path) -> None:
    source, root = tmp_path / "in", tmp_path / "deep" / "receipts"
    source.mkdir()
    sample: dict[str, Any] = json.loads(json.dumps(SOURCES["pytest-benchmark"][1]))
    sample["benchmarks"][0]["fullname"] = name
    (source / "x.json").write_text(json.dumps(sample))
    before = sorted(path for path in tmp_path.rglob("*"))
    made = store(KINDS["pytest-benchmark"], source, gather(KINDS["pytest-benchmark"], source), root)
    new = [path for path in tmp_path.rglob("*") if path not in before]
    assert all(path == root.parent or path == root or root in path.parents for path in new)
    assert len(list(ReceiptStore(root).iter(made.session))) == 2


def mutated(value: Any) -> st.SearchStrategy[Any]:
    """`value` with anything anywhere replaced by something of another kind."""
    junk = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({})
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


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_is_changed_it_is_read_or_refused(data: st.DataObject) -> None:
    import tempfile

    kind = data.draw(st.sampled_from(sorted(SOURCES)))
    name, sample = SOURCES[kind]
    content = data.draw(mutated(sample))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(json.dumps(content))
        refusal = ""
        try:
            found = read(KINDS[kind], path)
            if found:
                store(KINDS[kind], path, found, Path(folder, "receipts"))
        except ImportFailure as error:
            refusal = str(error)
        assert not refusal or (name in refusal and not Path(folder, "receipts").exists())


def test_limits_are_what_the_messages_say() -> None:
    assert safe.LIMIT_BYTES == 64 * 1024 * 1024
