"""Compiled artifacts between hosts: a hit on boxes of one kind, nothing on any other, nothing that is not whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neuronbench import artifacts, cli, keylocks
from neuronbench.backends.cpu import compiled as cpu
from neuronbench.caches import Shared
from neuronbench.model import Json
from neuronbench.weights import LocalBlobs
from neuronbench.weights.entries import EntryStore
from neuronbench.weights.shared_artifacts import SharedArtifacts, scope_part

TRN2 = {"target": "trn2", "core": "v3", "lnc": 2}


def parts(version: str = "2.21", target: Mapping[str, Json] = TRN2, **more: Json) -> dict[str, Json]:
    return {
        "compiler": "neuronx-cc",
        "versions": {"neuronx-cc": version, "torch": "2.9"},
        "target": dict(target),
        **more,
    }


def made(cache: artifacts.ArtifactCache, told: Mapping[str, Json], text: str = "neff") -> artifacts.Artifact:
    def compile(folder: Path) -> Mapping[str, Json]:
        (folder / "graph").mkdir()
        (folder / "graph" / "main.neff").write_text(text)
        return {"seconds": 1.5}

    found = cache.obtain(told, compile, progress=lambda text: None, deadline_s=30.0)
    found.release()
    return found


def pulled(store: EntryStore, cache: SharedArtifacts, scope: str) -> list[str]:
    keys = []
    for entry in store.entries(scope):
        lock = cache.reserve(entry.key)
        assert lock is not None
        with lock:
            store.fetch(entry, cache.workshop(entry.key))
            assert cache.install(entry.key, cache.workshop(entry.key))
        keys.append(entry.key)
    return keys


def test_what_was_pulled_is_a_hit_where_the_same_would_be_compiled_and_nowhere_else(tmp_path: Path) -> None:
    here, there = SharedArtifacts(tmp_path / "a"), SharedArtifacts(tmp_path / "b")
    assert isinstance(here, Shared)
    artifact = made(here, parts(shape={"batch_size": 2, "scale": 0.1}))
    scope = here.scope(artifact.key)
    assert scope == "artifacts/neuronx-cc-2.21/v3-lnc2-trn2"
    store = EntryStore(LocalBlobs(tmp_path / "store"))
    assert store.put(scope, artifact.key, here.files(artifact.key))[0] == "sent"
    assert pulled(store, there, scope) == [artifact.key]
    found = made(there, parts(shape={"batch_size": 2, "scale": 0.1}), "never made")
    assert (found.hit, (found.folder / "graph" / "main.neff").read_text()) == (True, "neff")
    assert [event["event"] for event in there.journal()] == ["pulled", "hit"]
    for other in (
        parts(shape={"batch_size": 4, "scale": 0.1}), parts("2.22", shape={"batch_size": 2, "scale": 0.1}),
        parts(target={**TRN2, "lnc": 1}, shape={"batch_size": 2, "scale": 0.1}),
        parts(target={"target": "inf2", "core": "v2", "lnc": 1}, shape={"batch_size": 2, "scale": 0.1}),
    ):  # fmt: skip
        assert made(there, other).hit is False
    scopes = {there.scope(entry.key) for entry in there.entries()}
    assert scopes == {
        "artifacts/neuronx-cc-2.21/v3-lnc2-trn2", "artifacts/neuronx-cc-2.22/v3-lnc2-trn2",
        "artifacts/neuronx-cc-2.21/v3-lnc1-trn2", "artifacts/neuronx-cc-2.21/v2-lnc1-inf2",
    }  # fmt: skip


def test_an_artifact_under_the_name_of_another_or_with_more_than_it_says_is_refused(tmp_path: Path) -> None:
    cache = SharedArtifacts(tmp_path / "a")
    right, other = made(cache, parts()), made(cache, parts("2.22"))
    work = cache.workshop("0" * 24)
    shutil.copytree(right.folder, work)
    with pytest.raises(ValueError, match=f"it says {right.key}"):
        cache.install("0" * 24, work)
    manifest = json.loads((work / artifacts.MANIFEST).read_text())
    manifest["key"] = other.key  # a key that its parts do not make
    (work / artifacts.MANIFEST).write_text(json.dumps(manifest))
    cache.remove(other.key)
    with pytest.raises(ValueError, match=f"what it was made of makes {right.key}"):
        cache.install(other.key, work)
    shutil.rmtree(work)
    shutil.copytree(right.folder, work)
    (work / "more.so").touch()
    cache.remove(right.key)
    with pytest.raises(ValueError, match="more.so is not among its files".replace(".", r"\.")):
        cache.install(right.key, work)
    (work / "more.so").unlink()
    (work / "graph" / "main.neff").write_text("fen")
    with pytest.raises(ValueError, match="has other contents"):
        cache.install(right.key, work)
    for wrong in ("../x", "a/b", "", ".."):
        with pytest.raises(ValueError, match="no key of"):
            cache.files(wrong)


def test_what_is_damaged_unfinished_or_of_unknown_origin_is_not_sent(tmp_path: Path) -> None:
    cache = SharedArtifacts(tmp_path / "a")
    artifact = made(cache, parts())
    (artifact.folder / "graph" / "main.neff").write_text("other")
    with pytest.raises(ValueError, match="it is damaged: graph/main"):
        cache.scope(artifact.key)
    with pytest.raises(ValueError, match="never finished"):
        cache.scope("abc.tmp-12")
    with pytest.raises(ValueError, match="does not say for which"):
        cache.scope(made(cache, {"compiler": "x"}).key)


def test_nobody_compiles_what_is_being_pulled(tmp_path: Path) -> None:
    cache = SharedArtifacts(tmp_path / "a")
    key = artifacts.key_of(parts())
    lock = cache.reserve(key)
    assert lock is not None
    with lock:
        assert cache.reserve(key) is None
        with pytest.raises(artifacts.Busy):
            cache.obtain(parts(), lambda folder: {}, progress=lambda text: None, deadline_s=0.0)
    assert keylocks.is_held(cache.folder / f"{key}.lock") is False


def test_the_scope_of_an_artifact_of_the_cpu_is_the_one_its_host_asks_for() -> None:
    stack = SimpleNamespace(packages={"torch": "2.13.0"})
    backend: Any = SimpleNamespace(stack=lambda kind, settings: stack)
    settings: Any = None
    (scope,) = cpu.scopes(settings, backend)
    assert scope == scope_part("aoti", "2.13.0", cpu.target())
    assert scope.startswith("aoti-2.13.0/")
    assert len(scope.split("/")) == 2
    assert scope != scope_part("aoti", "2.13.0", {**cpu.target(), "flags": "of another processor"})


def test_the_command_sends_artifacts_gets_them_and_refuses_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> tuple[int, str]:
        status = cli.main(["--root", str(tmp_path), "cache", *words])
        said = capsys.readouterr()
        return status, said.out + said.err

    monkeypatch.setenv("NEURONBENCH_PLUGINS", "")
    monkeypatch.setenv("NEURONBENCH_CACHE_DIR", str(tmp_path / "a"))
    key = made(SharedArtifacts(tmp_path / "a"), parts()).key
    other = made(SharedArtifacts(tmp_path / "a"), parts("2.22")).key
    scope = "artifacts/neuronx-cc-2.21/v3-lnc2-trn2"
    assert "2 entries would be sent" in run("push", "store", "--dry-run")[1]
    told = json.loads(run("push", "store", "--json")[1])
    assert {(each["entry"], each["done"]) for each in told["entries"]} == {
        (f"artifacts/{key}", "sent"), (f"artifacts/{other}", "sent"),
    }  # fmt: skip
    monkeypatch.setenv("NEURONBENCH_CACHE_DIR", str(tmp_path / "b"))
    assert "nothing for this host's compiler and cores" in run("pull", "store")[1]  # this is no trn2
    assert "1 entry would be fetched" in run("pull", "store", "--scope", scope, "--dry-run")[1]
    (blob,) = [
        path for path in (tmp_path / "store" / "blobs").rglob("*") if path.is_file() and path.read_text() == "neff"
    ]
    blob.chmod(0o644)
    blob.write_text("fen!")
    status, said = run("pull", "store", "--scope", scope)
    assert status == 1
    assert f"refused artifacts/{key}" in said
    assert "0 entries fetched (0 B), 0 here already, 1 refused" in said
    blob.write_text("neff")
    assert f"got artifacts/{key}" in run("pull", "store", "--scope", scope)[1]
    assert made(SharedArtifacts(tmp_path / "b"), parts()).hit
    (told,) = json.loads(run("pull", "store", "--scope", scope, "--json")[1])["entries"]
    assert told["done"] == "there"
