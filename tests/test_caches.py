"""Pruning: which entries go, and `neuronbench cache` over real caches."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from neuronbench import BackendInfo, cli, hookimpl
from neuronbench.artifacts import REFERENCES, Artifact, ArtifactCache
from neuronbench.caches import age_s, doomed, said_age, said_size, size_bytes
from neuronbench.commands import cache as command
from neuronbench.commands.host import Host
from neuronbench.plugins import Plugins
from neuronbench.protocols import Cache, CacheEntry, Probe

DAY = 86400.0


class FakeCache:
    """Entries by key: (days unused, bytes, in use)."""

    def __init__(self, folder: Path, **entries: tuple[float, int, bool]) -> None:
        self.name, self.title, self.folder, self._entries = "fake", "things of a fake", folder, entries

    def entries(self) -> list[CacheEntry]:
        return [
            CacheEntry(key=key, title=f"thing {key}", size_bytes=size, created_at=0, used_at=100 * DAY - days * DAY,
                       in_use=used)
            for key, (days, size, used) in self._entries.items()
        ]  # fmt: skip

    def damage(self, key: str) -> str:
        return ""

    def remove(self, key: str) -> bool:
        return self._entries.pop(key, None) is not None


@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        ({}, []),
        ({"older_than_s": 5 * DAY}, ["old", "older"]),
        ({"max_bytes": 250}, ["old", "older"]),
        ({"max_bytes": 0}, ["new", "old", "older"]),
        ({"older_than_s": 5 * DAY, "max_bytes": 150}, ["new", "old", "older"]),
        ({"older_than_s": 5 * DAY, "max_bytes": 200}, ["old", "older"]),
    ],
    ids=str,
)
def test_the_longest_unused_go_first_and_what_is_used_stays(tmp_path: Path, limits: Any, gone: list[str]) -> None:
    cache = FakeCache(tmp_path, new=(1, 100, False), used=(50, 100, True), old=(10, 100, False), older=(20, 100, False))
    assert isinstance(cache, Cache)
    chosen = doomed([cache], now=100 * DAY, **limits)
    assert sorted(each.entry.key for each in chosen) == gone
    assert all(each.why for each in chosen)


def test_ages_and_sizes_are_read_and_said() -> None:
    assert [age_s(text) for text in ("30d", "12h", "1.5m", "9s", "2w")] == [30 * DAY, 43200, 90, 9, 14 * DAY]
    assert [size_bytes(text) for text in ("20GB", "500mb", "0", "1.5 K", "7B")] == [20 * 10**9, 5 * 10**8, 0, 1500, 7]
    for wrong in ("", "30", "d", "-1d"):
        with pytest.raises(ValueError, match="expected a time"):
            age_s(wrong)
    for wrong in ("", "GB", "20 apples", "-1"):
        with pytest.raises(ValueError, match="expected a size"):
            size_bytes(wrong)
    assert [said_size(count) for count in (0, 1500, 2.5e6, 3e12)] == ["0 B", "2 KB", "2.5 MB", "3000.0 GB"]
    assert [said_age(seconds) for seconds in (-1, 59, 61, 7200, 3 * DAY)] == ["0 s", "59 s", "1 min", "2 h", "3 d"]


# -- the command ------------------------------------------------------------------------------------------------------


class Shelf:
    """A project whose caches have three entries: an artifact, an old one, and a reference."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "cache"
        self.artifacts = ArtifactCache(self.folder)
        self.references = ArtifactCache(self.folder, "references", REFERENCES)
        self.young = self.put(self.artifacts, 1, "young")
        self.old = self.put(self.artifacts, 2, "old", unused_s=40 * DAY)
        self.reference = self.put(self.references, 3, "reference")

    def put(self, cache: ArtifactCache, number: int, title: str, unused_s: float = 0.0) -> Artifact:
        def make(folder: Path) -> dict[str, Any]:
            (folder / "data.bin").write_bytes(b"x" * 1000 * number)
            return {}

        made = cache.obtain({"number": number}, make, progress=lambda text: None, deadline_s=5, title=title)
        made.release()
        if unused_s:
            then = time.time() - unused_s
            manifest = json.loads((made.folder / "artifact.json").read_text())
            manifest["created_at"] = "2020-01-01T00:00:00+00:00"
            (made.folder / "artifact.json").write_text(json.dumps(manifest))
            os.utime(cache.folder / f"{made.key}.use", (then, then))
        return made

    def run(self, *arguments: str) -> int:
        return cli.main(["--root", str(self.root), "cache", *arguments])

    def there(self) -> set[str]:
        return {entry.title for cache in (self.artifacts, self.references) for entry in cache.entries()}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    (tmp_path / "neuronbench.toml").write_text("")
    monkeypatch.setenv("NEURONBENCH_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("NEURON_COMPILE_CACHE_URL", "VLLM_CACHE_ROOT"):  # plugins show what this host has
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("NEURON_CC_FLAGS", "VLLM_NEURON_REMOTE_CACHE", "NEURON_COMPILED_ARTIFACTS"):
        monkeypatch.delenv(name, raising=False)
    return Shelf(tmp_path)


def test_status_shows_what_is_there(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    (shelf.folder / "models").mkdir()
    (shelf.folder / "models" / "weights.bin").write_bytes(b"x" * 5000)
    assert shelf.run("status", "--entries") == 0
    said = capsys.readouterr().out
    assert "compiled artifacts" in said
    assert "40 d" in said
    assert shelf.young.key in said
    assert "not pruned: models 5 KB" in said
    assert shelf.run("status", "--json") == 0
    found = {cache["name"]: cache["entries"] for cache in json.loads(capsys.readouterr().out)}
    assert {entry["title"] for entry in found["artifacts"]} == {"young", "old"}
    assert [entry["title"] for entry in found["references"]] == ["reference"]


def test_verify_names_what_is_damaged_and_prune_removes_it(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert shelf.run("verify") == 0
    assert "3 entries, 0 damaged" in capsys.readouterr().out
    (shelf.reference.folder / "data.bin").write_bytes(b"y" * 3000)
    assert shelf.run("verify") == 1
    assert f"references/{shelf.reference.key} (reference): data.bin has other contents" in capsys.readouterr().out
    assert shelf.run("prune") == 0
    assert shelf.there() == {"young", "old"}


def test_prune_says_what_it_does_and_leaves_what_is_used(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert shelf.run("prune", "--older-than", "30d", "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"would remove artifacts/{shelf.old.key} (old), " in said
    assert "not used for 40 d" in said
    assert shelf.there() == {"young", "old", "reference"}
    assert shelf.run("prune", "--older-than", "30d") == 0
    assert shelf.there() == {"young", "reference"}
    held = shelf.put(shelf.artifacts, 9, "held")
    used = shelf.artifacts.obtain({"number": 9}, lambda folder: {}, progress=lambda text: None, deadline_s=5)
    assert used.key == held.key
    assert shelf.run("prune", "--max-size", "0") == 0
    assert "running sessions use the rest" in capsys.readouterr().out
    assert shelf.there() == {"held"}
    used.release()


@pytest.mark.parametrize("words", [("--older-than", "soon"), ("--max-size", "much")])
def test_a_limit_that_cannot_be_read_is_wrong_usage(shelf: Shelf, words: tuple[str, str], capsys: Any) -> None:
    assert shelf.run("prune", *words) == 2
    assert words[0] in capsys.readouterr().err
    assert shelf.there() == {"young", "old", "reference"}


class CachingBackend:
    def __init__(self, info: BackendInfo) -> None:
        self.info = info

    def probe(self) -> Probe:
        return Probe(available=False, reason="never")

    def caches(self, settings: Any) -> list[FakeCache]:
        if self.info.name == "broken":
            raise OSError("no such disk")
        return [FakeCache(settings.cache_dir / "fake", one=(3, 500, False))]


class Offers:
    @hookimpl
    def register_backends(self, register: Any) -> None:
        for name in ("here", "there", "broken"):
            register(BackendInfo(name=name, title=name, target=f"{__name__}:CachingBackend", family="fake"))


def test_a_backend_may_have_caches_and_one_that_fails_is_named(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins = Plugins(entry_points=False)
    plugins.register(Offers(), name="offers", source="test")
    found = command.caches_of(Host(plugins=plugins, root=shelf.root))
    assert [cache.name for cache in found] == ["artifacts", "references", "fake"]  # of one family: told once
    assert "caches of broken: OSError: no such disk" in capsys.readouterr().err
