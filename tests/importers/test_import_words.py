"""What `neuronbench import` says: of a file that is no JSON, and while it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_tools import SOURCES

from neuronbench import cli
from neuronbench.importers import KINDS, ImportFailure, gather
from neuronbench.words import counted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found an empty file"),
        ("hello, world", "found 'hello, world' in line 1, column 1, where a value should be"),
        ('{"a": 1,\n "b": ', "found the end of the file in line 2, column 7, where a value should be"),
        ('{"a" 1}', "found '1}' in line 1, column 6, where a colon should be"),
        ('{"a": 1 "b": 2}', "found '\"b\": 2}' in line 1, column 9, where a comma should be"),
        ('{"a": 1} and more of it, much more', "found 'and more of it, much…' in line 1, column 10, where its end"),
    ],
)
def test_what_is_no_json_is_said_in_words(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(text)
    with pytest.raises(ImportFailure) as caught:
        gather(KINDS["vllm"], path)
    assert f"{path}: expected JSON, {said}" in str(caught.value)
    assert "Expecting" not in str(caught.value)


def test_progress_is_of_what_is_read_and_a_short_import_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, sample = SOURCES["vllm"]
    path = tmp_path / name
    path.write_text(json.dumps(sample))
    said: list[str] = []
    gather(KINDS["vllm"], path, progress=said.append)
    assert said == [f"reading {name}, file 1; 0 results before it"]
    assert cli.main(["import", "vllm", str(path), "--out", str(tmp_path / "receipts")]) == 0
    printed = capsys.readouterr()
    assert "imported: " in printed.out
    assert printed.err == ""


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(0, "file", "0 files"), (1, "file", "1 file"), (2, "file", "2 files"), (2, "box", "2 boxes"),
     (2, "series", "2 series"), (3, "failed request", "3 failed requests")],
)  # fmt: skip
def test_a_number_and_its_noun_agree(count: int, noun: str, said: str) -> None:
    assert counted(count, noun) == said
    assert counted(2, "record is", "records are") == "2 records are"
