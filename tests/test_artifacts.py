"""The artifact cache: hits, misses, damage, failures that are not inherited, two compilers of the same key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from neuronbench import artifacts, keylocks
from neuronbench.artifacts import ArtifactCache
from neuronbench.model import Failure

PARTS = {"model": "digest", "shape": [1, 128], "flags": {}, "version": "1"}


def compiler(calls: list[Path], content: str = "code"):
    def compile(folder: Path) -> Mapping[str, Any]:
        calls.append(folder)
        (folder / "model.bin").write_text(content)
        return {"graphs": 1}

    return compile


def obtain(cache: ArtifactCache, compile: Any, parts: Mapping[str, Any] = PARTS, **changes: Any) -> artifacts.Artifact:
    return cache.obtain(parts, compile, progress=lambda text: None, **{"deadline_s": 5.0, **changes})


def events(cache: ArtifactCache) -> list[str]:
    return [event["event"] for event in cache.journal()]


def test_the_first_is_a_miss_and_the_second_a_hit(tmp_path: Path) -> None:
    cache, calls = ArtifactCache(tmp_path), []
    first, second = obtain(cache, compiler(calls)), obtain(ArtifactCache(tmp_path), compiler(calls))
    assert len(calls) == 1
    assert (first.hit, second.hit) == (False, True)
    assert (dict(first.counts), dict(second.counts)) == ({"hits": 0, "misses": 1}, {"hits": 1, "misses": 0})
    assert second.facts == {"graphs": 1}
    assert second.manifest["parts"] == PARTS
    assert second.size_bytes == 4
    assert (second.folder / "model.bin").read_text() == "code"
    assert events(cache) == ["miss", "published", "hit"]


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"shape": [2, 128]}, {"flags": {"fast": True}}, {"version": "2"}], ids=str
)
def test_whatever_differs_makes_another_artifact(tmp_path: Path, change: dict[str, Any]) -> None:
    cache, calls = ArtifactCache(tmp_path), []
    one, other = obtain(cache, compiler(calls)), obtain(cache, compiler(calls), {**PARTS, **change})
    assert one.key != other.key
    assert len(calls) == 2
    assert obtain(cache, compiler(calls)).hit


def test_the_key_is_of_the_content_and_not_of_its_order() -> None:
    assert artifacts.key_of({"a": 1, "b": {"c": 2, "d": 3}}) == artifacts.key_of({"b": {"d": 3, "c": 2}, "a": 1})


@pytest.mark.parametrize("harm", ["changed", "missing", "manifest", "format"])
def test_a_damaged_artifact_is_compiled_anew_and_said_so(tmp_path: Path, harm: str) -> None:
    cache, calls = ArtifactCache(tmp_path), []
    made = obtain(cache, compiler(calls))
    if harm == "changed":
        (made.folder / "model.bin").write_text("edoc")
    elif harm == "missing":
        (made.folder / "model.bin").unlink()
    elif harm == "manifest":
        (made.folder / artifacts.MANIFEST).write_text("{")
    else:
        manifest = json.loads((made.folder / artifacts.MANIFEST).read_text())
        (made.folder / artifacts.MANIFEST).write_text(json.dumps({**manifest, "format": 0}))
    again = obtain(cache, compiler(calls))
    assert not again.hit
    assert len(calls) == 2
    assert "damaged" in again.notes[0]
    assert events(cache)[-3:] == ["corrupt", "miss", "published"]
    assert obtain(cache, compiler(calls)).hit


def test_a_failed_compile_is_never_an_answer_and_is_told_when_tried_again(tmp_path: Path) -> None:
    cache, calls = ArtifactCache(tmp_path), []

    def failing(folder: Path) -> Mapping[str, Any]:
        (folder / "half.bin").write_text("half")
        raise RuntimeError("no such instruction")

    failure = Failure(kind="compile_error", phase="boot", message="m", causal_line="no such instruction")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            obtain(cache, failing, failure_of=lambda error: failure)
    assert [path.name for path in cache.folder.iterdir() if path.is_dir()] == []
    made = obtain(cache, compiler(calls))
    assert "failed 2 time(s)" in made.notes[0]
    assert "compile_error: no such instruction" in made.notes[0]
    assert cache.failure(made.key) is None
    assert events(cache) == ["miss", "failed", "miss", "failed", "miss", "published"]
    assert obtain(cache, compiler(calls)).notes == ()


def test_success_without_a_file_is_a_failure(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    with pytest.raises(RuntimeError, match="left no file"):
        obtain(cache, lambda folder: {})
    assert events(cache) == ["miss", "failed"]


COMPILE = """
import sys, time
from pathlib import Path
from neuronbench.artifacts import ArtifactCache

def compile(folder):
    (folder / "model.bin").write_text("code")
    print("compiling", flush=True)
    time.sleep(float(sys.argv[2]))
    return {"graphs": 1}

found = ArtifactCache(Path(sys.argv[1])).obtain({"a": 1}, compile, progress=lambda text: None, deadline_s=60)
print("hit" if found.hit else "made", flush=True)
"""


def compiling(cache: Path, seconds: float) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE, str(cache), str(seconds)], stdout=subprocess.PIPE, text=True, env=env
    )


def test_two_processes_compile_a_key_once(tmp_path: Path) -> None:
    processes = [compiling(tmp_path, 0.5) for _ in range(3)]
    answers = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(answer[-1] for answer in answers) == ["hit", "hit", "made"]
    assert sum("compiling" in answer for answer in answers) == 1


def test_a_compiler_that_is_killed_leaves_nothing_that_looks_like_an_artifact(tmp_path: Path) -> None:
    process = compiling(tmp_path, 600)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "compiling"
    cache, calls = ArtifactCache(tmp_path), []
    with pytest.raises(artifacts.Busy, match="still compiling"):
        obtain(cache, compiler(calls), {"a": 1}, deadline_s=0.3)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    process.stdout.close()
    made = obtain(cache, compiler(calls), {"a": 1})  # the kernel freed the lock
    assert not made.hit
    assert [path.name for path in cache.folder.glob("*.tmp-*")] == []


def test_a_source_digest_changes_with_any_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("1")
    two.write_text("2")
    before = artifacts.source_digest(one, two)
    assert artifacts.source_digest(two, one) == before
    two.write_text("3")
    assert artifacts.source_digest(one, two) != before


def test_a_source_digest_does_not_depend_on_where_files_lie(tmp_path: Path) -> None:
    found = set()
    for first, second in (("a", "b"), ("z", "b"), ("a", "a")):
        one, two = tmp_path / first / "handler.py", tmp_path / second / "common.py"
        for path in (one, two):
            path.parent.mkdir(exist_ok=True)
            path.write_text(path.name)
        found.add(artifacts.source_digest(one, two))
    assert len(found) == 1


def test_a_journal_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    obtain(cache, compiler([]))
    with (cache.folder / artifacts.JOURNAL).open("a") as file:
        file.write('{"event": "hi')
    assert events(cache) == ["miss", "published"]


# -- looking after it -------------------------------------------------------------------------------------------------


def test_what_is_held_stays_until_it_is_released(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    made = obtain(cache, compiler([]), title="a model")
    (entry,) = cache.entries()
    assert (entry.key, entry.title, entry.in_use) == (made.key, "a model", True)
    assert not cache.remove(made.key)
    assert made.folder.is_dir()
    made.release()
    made.release()
    assert [entry.in_use for entry in cache.entries()] == [False]
    assert cache.remove(made.key)
    assert cache.entries() == []
    assert [path.name for path in cache.folder.iterdir()] == [artifacts.JOURNAL]
    assert events(cache)[-1] == "removed"
    assert not obtain(cache, compiler([])).hit


HOLD = """
import sys
from pathlib import Path
from neuronbench.artifacts import ArtifactCache

held = ArtifactCache(Path(sys.argv[1])).obtain({"a": 1}, None, progress=None, deadline_s=1)
print("holding", flush=True)
sys.stdin.read()
"""


def test_a_process_that_runs_keeps_its_artifact_and_one_that_was_killed_does_not(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    made = obtain(cache, compiler([]), {"a": 1})
    made.release()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline().strip() == "holding"
    assert not cache.remove(made.key)
    process.kill()
    process.wait(20)
    process.stdout.close()
    process.stdin.close()
    assert cache.remove(made.key)


def test_an_artifact_that_is_being_compiled_is_not_removed_and_what_a_killed_compile_left_is(tmp_path: Path) -> None:
    process = compiling(tmp_path, 600)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "compiling"
    cache = ArtifactCache(tmp_path)
    (entry,) = cache.entries()
    assert entry.in_use
    assert "left by a process" in entry.title
    assert not cache.remove(entry.key)
    process.kill()
    process.wait(20)
    process.stdout.close()
    assert [each.in_use for each in cache.entries()] == [False]
    assert cache.damage(entry.key) == "was never finished"
    assert cache.remove(entry.key)
    assert cache.entries() == []


@pytest.mark.parametrize("key", ["", "..", "../x", "a/b"])
def test_nothing_outside_of_the_cache_is_removed(tmp_path: Path, key: str) -> None:
    cache = ArtifactCache(tmp_path)
    cache.folder.mkdir()
    with pytest.raises(ValueError, match="no key of"):
        cache.remove(key)


def test_a_lock_on_a_file_that_was_removed_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "x.use"
    first = keylocks.take(path)
    assert first is not None
    assert keylocks.take(path) is None
    path.unlink()
    second = keylocks.take(path)
    assert second is not None
    assert path.exists()
    assert keylocks.is_held(path)
    first.close()
    assert keylocks.is_held(path)
    second.close()
    assert not keylocks.is_held(path)
    assert not keylocks.is_held(tmp_path / "none")
