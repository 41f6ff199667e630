"""Data sets by reference: what comes along, files of one's own, the hub's cache, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from neuronbench import datasets
from neuronbench.datasets import DataError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_instructions_all_teach_the_same_form() -> None:
    data = datasets.find("builtin:instructions")
    rows = datasets.read(data)
    assert data.form == "instructions"
    assert data.rows == len(rows) == 179
    assert all(set(row) == {"instruction", "context", "response", "category"} for row in rows)
    assert all(datasets.is_taught(row["response"]) for row in rows)
    assert all(row["response"].endswith(datasets.TAUGHT_ENDING) for row in rows)
    assert not any(datasets.is_taught(row["instruction"] + row["context"]) for row in rows)
    assert len({(row["instruction"], row["context"]) for row in rows}) == len(rows)


def test_the_first_instructions_are_a_mix() -> None:
    rows = datasets.read(datasets.find("builtin:instructions"))
    assert set(Counter(row["category"] for row in rows[:40])) == {row["category"] for row in rows}


def test_the_preferences_prefer_the_short_answer() -> None:
    data = datasets.find("builtin:preferences")
    rows = datasets.read(data)
    assert data.form == "preferences"
    assert data.rows == len(rows) == len({row["prompt"] for row in rows}) == 80
    assert all(len(row["chosen"]) < len(row["rejected"]) for row in rows)
    asked = {row["instruction"] for row in datasets.read(datasets.find("builtin:instructions"))}
    assert not asked & {row["prompt"] for row in rows}


def test_the_digest_is_that_of_the_file() -> None:
    data = datasets.find("builtin:preferences")
    assert data.digest == hashlib.sha256(data.path.read_bytes()).hexdigest()
    assert data.size_bytes == data.path.stat().st_size
    assert json.loads(json.dumps(data.facts()))["digest"] == data.digest


def test_a_file_of_ones_own_relative_to_the_project(tmp_path: Path) -> None:
    lines(tmp_path / "own.jsonl", {"text": "a"}, {"text": "b"})
    data = datasets.find("file:own.jsonl", root=tmp_path)
    assert (data.form, data.rows) == ("text", 2)
    assert datasets.find(f"file:{tmp_path}/own.jsonl").digest == data.digest


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"text": "a"}\n{"text": ""}\n', "line 2: `text` has to be text that is not empty, found ''"),
        ('{"text": "a"}\n{"text": 3}\n', "line 2: `text`"),
        ('{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "a", "chosen": "b"}\n', "line 2: `rejected`"),
        ('{"text": "a"}\n{"text": \n', "line 2: not JSON"),
        ("[1]\n", "line 1: expected an object, found list"),
        ('{"question": "a"}\n', "are of no known form"),
        ("\n\n", "no rows"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "wrong.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        datasets.find("file:wrong.jsonl", root=tmp_path)
    assert caught.value.kind == "dataset_invalid"
    assert told in caught.value.message
    assert caught.value.failure().remedy


@pytest.mark.parametrize("reference", ["builtin:instruction", "instructions", "hub:no-slash", "file:", "synthetic:1"])
def test_an_unknown_reference_says_what_there_is(reference: str) -> None:
    with pytest.raises(DataError, match="builtin:instructions") as caught:
        datasets.find(reference)
    assert caught.value.kind == "dataset_not_found"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*nothing\.jsonl"):
        datasets.find("file:nothing.jsonl", root=tmp_path)


def from_hub(home: Path, reference: str) -> subprocess.CompletedProcess[str]:
    """`find` in a process of its own: the hub's client reads its environment on import."""
    script = (
        "import sys, json; from neuronbench import datasets\n"
        "try: print(json.dumps(datasets.find(sys.argv[1]).facts()))\n"
        "except datasets.DataError as error: sys.exit(f'{error.kind}: {error}')"
    )
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    env.pop("HF_HUB_CACHE", None)
    return subprocess.run(
        [sys.executable, "-c", script, reference], env=env, capture_output=True, text=True, timeout=60,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip


def test_a_set_in_the_hubs_cache_is_used_offline(tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "datasets--databricks--databricks-dolly-15k"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    row = {"instruction": "a", "context": "", "response": "b", "category": "open_qa"}
    lines(snapshot / "databricks-dolly-15k.jsonl", row)
    for reference in (
        "hub:databricks/databricks-dolly-15k",
        "hub:databricks/databricks-dolly-15k:databricks-dolly-15k.jsonl",
        f"hub:databricks/databricks-dolly-15k@{COMMIT}",
    ):
        done = from_hub(tmp_path, reference)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert (facts["form"], facts["rows"], facts["revision"]) == ("instructions", 1, COMMIT)


def test_offline_without_a_copy_says_what_to_do(tmp_path: Path) -> None:
    done = from_hub(tmp_path, "hub:databricks/databricks-dolly-15k")
    assert done.returncode == 1
    assert "hub_unreachable: data set databricks/databricks-dolly-15k cannot be had" in done.stderr
    assert "file:PATH" in done.stderr
