"""Compile caches of Neuron in `neuronbench cache`: locks and their owners, sharing between hosts, what stays apart."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from neuronbench_neuron import caches
from neuronbench_neuron.caches import CompileCache, locks, places

from neuronbench import cli
from neuronbench.artifacts import ArtifactCache
from neuronbench.caches import Locked, Shared, Stateful
from neuronbench.protocols import Cache
from neuronbench.testing.neuron import FakeBox
from neuronbench.weights import LocalBlobs, StoreError
from neuronbench.weights.entries import EntryStore

VERSION = "2.21.33363.0+82129205"
COMPILER = f"neuronxcc-{VERSION}"
LONG_AGO = time.time() - 3600


def module(
    root: Path, graph: str, *, neff: bytes = b"neff", flags: tuple[str, ...] = ("--target=trn1",), log: str = ""
) -> Path:
    folder = root / COMPILER / f"MODULE_{graph}+d41d8cd9"
    folder.mkdir(parents=True)
    (folder / "model.hlo_module.pb").write_bytes(graph.encode())
    (folder / "compile_flags.json").write_text(json.dumps(flags))
    if log:
        (folder / "model.log").write_text(log)
    else:
        (folder / "model.neff").write_bytes(neff)
        (folder / "model.done").touch()
    return folder


def lock(folder: Path, text: str = "", *, at: float = LONG_AGO) -> Path:
    path = folder / "model.hlo_module.pb.lock"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))
    return path


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "r+")
(fcntl.flock if sys.argv[2] == "flock" else fcntl.lockf)(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder() -> Iterator[Any]:
    """Starts processes that hold a lock on a file, and ends them."""
    started: list[subprocess.Popen[str]] = []

    def hold(path: Path, how: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, path, how], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


# -- locks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_a_lock_that_a_process_holds_stays_until_that_process_has_ended(tmp_path: Path, holder: Any, how: str) -> None:
    cache = CompileCache(tmp_path, "xla")
    path = lock(module(tmp_path, "1"))
    process = holder(path, how)
    (found,) = cache.locks()
    assert (found.state, found.key) == ("held", f"{COMPILER}/MODULE_1+d41d8cd9")
    assert cache.entries()[0].in_use is True
    assert cache.remove(found.key) is False
    assert cache.unlock(found) is False
    assert path.exists()
    process.kill()
    process.wait()
    (found,) = cache.locks()
    assert found.state == "stale"
    assert cache.unlock(found) is True
    assert not path.exists()
    assert cache.entries()[0].in_use is False


def test_who_made_a_lock_is_read_in_every_way_it_is_written() -> None:
    assert locks.owner("123\nhost-1\n") == (123, "host-1")
    assert locks.owner("123@host.example") == (123, "host.example")
    assert locks.owner("host-1:123") == (123, "host-1")
    assert locks.owner('{"pid": 7, "hostname": "h"}') == (7, "h")
    assert locks.owner("123") == (123, "")
    assert locks.owner("") == locks.owner("compiling now") == (None, "")


def test_a_lock_is_judged_by_process_host_age_and_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = socket.gethostname()

    def judged(text: str, at: float = LONG_AGO) -> tuple[str, str]:
        path = lock(tmp_path / COMPILER / "MODULE_9+a", text, at=at)
        (found,) = locks.locks(tmp_path)
        path.unlink()
        return found.state, found.why

    now = time.time()
    assert judged(f"{os.getpid()}\n{here}", at=now)[0] == "held"
    assert judged(f"{os.getpid()}\n{here}")[0] == "stale"  # this process began later: the number was given again
    assert judged(f"{ended_pid()}\n{here}")[0] == "stale"
    assert judged("4711\nelsewhere.example") == (
        "unknown", "it is of process 4711 on another host, elsewhere.example",
    )  # fmt: skip
    assert judged("") == ("stale", "no process has it locked")
    assert judged("", at=now)[0] == "unknown"  # it may not be locked yet
    network = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4")]
    monkeypatch.setattr(locks, "_partitions", lambda: network)
    assert judged("")[0] == "unknown"
    assert "nfs4" in judged("")[1]
    assert judged(f"{ended_pid()}")[0] == "unknown"  # a number of some host that shares the files


def test_a_compiler_that_is_at_work_on_a_module_keeps_its_lock(tmp_path: Path) -> None:
    path = lock(tmp_path / COMPILER / "MODULE_88+ab")
    compiler = subprocess.Popen(
        [sys.executable, "-c", "input()", "neuronx-cc", f"model.{path.parent.name}.hlo_module.pb"],
        stdin=subprocess.PIPE,
    )  # fmt: skip
    try:
        (found,) = locks.locks(tmp_path)
        assert (found.state, found.why) == ("held", f"process {compiler.pid} is at work on MODULE_88+ab")
    finally:
        compiler.communicate()
    assert locks.locks(tmp_path)[0].state == "stale"


def test_a_lock_that_was_taken_meanwhile_is_not_removed(tmp_path: Path) -> None:
    path = lock(tmp_path / COMPILER / "MODULE_1+a")
    (found,) = locks.locks(tmp_path)
    assert found.state == "stale"
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert locks.remove(found, tmp_path) is False
    path.write_text(f"{os.getpid()}")
    assert locks.remove(found, tmp_path) is False  # by its text it is this living process's now
    path.unlink()
    assert locks.remove(found, tmp_path) is False


# -- where caches are -------------------------------------------------------------------------------------------------


def test_variables_say_where_the_caches_are_and_the_flag_wins(tmp_path: Path) -> None:
    def told(**environ: str) -> list[tuple[str, str, str]]:
        return [(each.kind, each.url, each.source) for each in places({"HOME": "/h", **environ}, tmp_path)]

    default = ("vllm", "/h/.cache/vllm/neuron/compile_cache", "the default")
    assert told() == [("xla", f"{tmp_path}/var/tmp/neuron-compile-cache", "the default"), default]
    assert told(NEURON_COMPILE_CACHE_URL="/c")[0] == ("xla", "/c", "NEURON_COMPILE_CACHE_URL")
    flag = told(NEURON_COMPILE_CACHE_URL="/c", NEURON_CC_FLAGS="--verbose=1 --cache_dir '/d e'")[0]
    assert flag == ("xla", "/d e", "--cache_dir in NEURON_CC_FLAGS")
    elsewhere = places({"HOME": "/h", "NEURON_COMPILE_CACHE_URL": "s3://b/c"}, tmp_path)[0]
    assert (elsewhere.folder, elsewhere.url) == (None, "s3://b/c")
    assert told(XDG_CACHE_HOME="/x")[1][1] == "/x/vllm/neuron/compile_cache"
    assert told(VLLM_CACHE_ROOT="/v", XDG_CACHE_HOME="/x")[1] == ("vllm", "/v/neuron/compile_cache", "VLLM_CACHE_ROOT")
    more = told(VLLM_NEURON_REMOTE_CACHE="/r", NEURON_COMPILED_ARTIFACTS="/a")[2:]
    assert more == [("vllm", "/r", "VLLM_NEURON_REMOTE_CACHE"), ("nxdi", "/a", "NEURON_COMPILED_ARTIFACTS")]
    (tmp_path / "tmp" / "vllm_neuron_wdir_me").mkdir(parents=True)
    assert told(USER="me")[2][:2] == ("vllm", f"{tmp_path}/tmp/vllm_neuron_wdir_me")


# -- sharing ----------------------------------------------------------------------------------------------------------


def cache_of(root: Path, *, core: str = "v2", compilers: tuple[str, ...] = (VERSION,)) -> CompileCache:
    return CompileCache(root, "xla", core=core, stacks=lambda: [{"neuronx-cc": each} for each in compilers])


def test_a_scope_is_compiler_and_cores_and_nothing_is_guessed(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, core="v3-lnc2")
    assert all(isinstance(cache, kind) for kind in (Cache, Stateful, Locked, Shared))
    keys = {}
    for graph, flags in (
        ("1", ("--target=inf2",)), ("2", ("--target", "trn2", "-lnc", "1")), ("3", ("--target=trn2",)), ("4", ()),
    ):  # fmt: skip
        module(tmp_path, graph, flags=flags)
        keys[graph] = f"{COMPILER}/MODULE_{graph}+d41d8cd9"
    assert cache.scope(keys["1"]) == f"neuron-xla/{COMPILER}/v2"
    assert cache.scope(keys["2"]) == f"neuron-xla/{COMPILER}/v3-lnc1"
    assert cache.scope(keys["3"]) == cache.scope(keys["4"]) == f"neuron-xla/{COMPILER}/v3-lnc2"
    assert cache.scopes() == [f"neuron-xla/{COMPILER}/v3-lnc2"]
    nowhere = cache_of(tmp_path, core="")
    assert nowhere.scopes() == []
    with pytest.raises(ValueError, match="for which cores"):
        nowhere.scope(keys["3"])
    module(tmp_path, "5", log="[F137] Killed")
    with pytest.raises(ValueError, match="its compile failed"):
        cache.scope(f"{COMPILER}/MODULE_5+d41d8cd9")
    for wrong in ("../x", f"{COMPILER}/../x", f"{COMPILER}/MODULE_1+d/../../x", "/etc", COMPILER):
        with pytest.raises(ValueError, match="no entry of"):
            cache.files(wrong)


def test_a_model_of_nxdi_is_of_use_to_the_same_nxdi_and_torch_alone(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"saved by torch")
    (folder / "neuron_config.json").write_text("{}")
    one = {"neuronx-cc": VERSION, "neuronx-distributed-inference": "0.5.9", "torch": "2.8.0"}

    def cache(*stacks: dict[str, str]) -> CompileCache:
        return CompileCache(tmp_path, "nxdi", core="v3-lnc2", stacks=lambda: stacks)

    scope = f"neuron-nxdi/{COMPILER}+nxdi-0.5.9+torch-2.8.0/v3-lnc2"
    assert cache(one, {"neuronx-cc": VERSION}).scope("llama") == scope  # the other stack has no NxDI
    assert cache(one, {"neuronx-cc": VERSION}).scopes() == [scope]
    for other in ({**one, "torch": "2.9.0"}, {**one, "neuronx-distributed-inference": "0.6.0"}):
        assert scope not in cache(other).scopes()
        with pytest.raises(ValueError, match="which neuronx-cc with neuronx-distributed-inference with torch made it"):
            cache(one, other).scope("llama")
    store = EntryStore(LocalBlobs(tmp_path / "store"))
    assert store.put(scope, "llama", cache(one).files("llama"))[0] == "sent"
    assert store.scopes() == [scope]


def test_graphs_of_vllm_lie_apart_by_compiler_and_by_cores_of_one_grouping(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 64)
    folder.mkdir()
    (folder / "command.txt").write_text("neuronx-cc compile graph.hlo --framework XLA --target trn2 -lnc 1")
    (folder / f"graph_{'a' * 64}.neff").write_bytes(b"n" * 40)
    (folder / ".compilation_complete").write_text("completed:1\nneff_size:40\n")
    cache = CompileCache(tmp_path, "vllm", core="v3-lnc2", stacks=lambda: [{"neuronx-cc": VERSION}])
    assert cache.scope("a" * 64) == f"neuron-vllm/{COMPILER}/v3-lnc1"
    assert cache.scopes() == [f"neuron-vllm/{COMPILER}/v3-lnc2"]  # what is grouped otherwise is not fetched


def test_an_entry_is_one_pullers_at_a_time(tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "a")
    key = f"{COMPILER}/MODULE_1+d41d8cd9"
    lock = cache.reserve(key)
    assert lock is not None
    with lock:
        assert cache.reserve(key) is None
        assert cache.workshop(key) == cache.workshop(key)
        cache.workshop(key).mkdir()
        assert cache.entries() == []
        assert cache.locks() == []
    again = cache.reserve(key)
    assert again is not None
    again.close()


def test_an_entry_goes_whole_and_checked_from_one_host_to_another_and_is_never_overwritten(tmp_path: Path) -> None:
    first, second = cache_of(tmp_path / "a"), cache_of(tmp_path / "b")
    folder = module(tmp_path / "a", "1", neff=b"x" * 5000)
    lock(folder)
    key = f"{COMPILER}/MODULE_1+d41d8cd9"
    store = EntryStore(LocalBlobs(tmp_path / "store"))
    scope = first.scope(key)
    assert store.put(scope, key, first.files(key)) == ("sent", 5000 + 1 + len('["--target=trn1"]'))
    assert store.put(scope, key, first.files(key)) == ("there", 0)
    (entry,) = store.entries(scope)
    assert sorted(entry.files) == ["compile_flags.json", "model.done", "model.hlo_module.pb", "model.neff"]  # no lock
    work = second.workshop(key)
    store.fetch(entry, work)
    (work / "left-over").touch()
    assert store.fetch(entry, work) == 0  # what has come is hashed and kept, what does not belong there goes
    assert not (work / "left-over").exists()
    assert second.install(key, work) is True
    assert caches.snapshot(tmp_path / "b").of("done") == (key,)
    store.fetch(entry, work)
    assert second.install(key, work) is False
    (tmp_path / "b" / key / "model.neff").write_bytes(b"compiled here")
    assert store.put(scope, key, second.files(key)) == ("other", 0)
    assert store.scopes() == [scope]


def test_what_was_changed_in_a_store_or_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    cache = cache_of(tmp_path / "a")
    module(tmp_path / "a", "1", neff=b"x" * 5000)
    key = f"{COMPILER}/MODULE_1+d41d8cd9"
    store = EntryStore(LocalBlobs(tmp_path / "store"))
    scope = cache.scope(key)
    store.put(scope, key, cache.files(key))
    (entry,) = store.entries(scope)
    blob = next(
        path for path in (tmp_path / "store" / "blobs").rglob("*") if path.is_file() and path.stat().st_size == 5000
    )
    blob.chmod(0o644)
    blob.write_bytes(b"y" * 5000)
    with pytest.raises(StoreError, match="was changed"):
        store.fetch(entry, tmp_path / "into")
    assert not (tmp_path / "into" / "model.neff").exists()
    blob.unlink()
    with pytest.raises(StoreError, match="is missing from"):
        store.fetch(entry, tmp_path / "into")
    with pytest.raises(StoreError, match="cache/compiler/cores"):
        store.put("neuron-xla", key, cache.files(key))
    with pytest.raises(StoreError, match="no plain relative name"):
        store.put(scope, "../../x", cache.files(key))
    (listed,) = (tmp_path / "store" / "entries").rglob("*.json")
    listed.chmod(0o644)
    listed.write_text(listed.read_text().replace('"model.neff"', '"../../model.neff"'))
    with pytest.raises(StoreError, match=r"\.\./model\.neff"):
        list(store.entries(scope))


# -- the command ------------------------------------------------------------------------------------------------------


class Bench:
    """A project on a made-up host with a compile cache."""

    def __init__(self, box: FakeBox, root: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.box, self.root, self.patch, self.capsys = box, root, patch, capsys
        self.cache = box.root / "var/tmp/neuron-compile-cache"
        (root / "neuronbench.toml").write_text("")

    def on(self, box: FakeBox) -> None:
        for name, value in box.environ(HOME=str(self.root / "home")).items():
            self.patch.setenv(name, value)
        self.patch.setenv("NEURONBENCH_CACHE_DIR", str(self.root / "cache"))
        self.patch.delenv("NEURON_COMPILE_CACHE_URL", raising=False)

    def run(self, *arguments: str) -> tuple[int, str]:
        status = cli.main(["--root", str(self.root), "cache", *arguments])
        said = self.capsys.readouterr()
        return status, said.out + said.err


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    with FakeBox("trn1.2xlarge", tmp_path / "box") as box:
        box.venv("aws_neuronx_venv_pytorch_2_9", packages={"neuronx-cc": VERSION})
        (tmp_path / "project").mkdir()
        made = Bench(box, tmp_path / "project", monkeypatch, capsys)
        made.on(box)
        yield made


def test_status_verify_and_clean_locks_speak_of_compile_caches(bench: Bench) -> None:
    module(bench.cache, "1")
    module(bench.cache, "2", log="noise\n[NCC_INLA001] Unhandled exception\n")
    stale = lock(bench.cache / COMPILER / "MODULE_3+d41d8cd9")
    other = lock(bench.cache / COMPILER / "MODULE_4+d41d8cd9", "12\nanother-host")
    bench.patch.setenv("NEURON_COMPILE_CACHE_DIR", "/x")
    status, said = bench.run("status")
    assert status == 0
    assert (
        "Neuron's compile cache: 1 compiled; 1 failed and kept; 2 unfinished; 2 locks, of which nobody holds 1" in said
    )
    assert "NEURON_COMPILE_CACHE_DIR is set, which nothing reads" in said
    (found,) = [each for each in json.loads(bench.run("status", "--json")[1]) if each["name"] == "neuron-xla"]
    assert found["states"] == {"compiled": 1, "failed and kept": 1, "unfinished": 2}
    assert {each["state"] for each in found["locks"]} == {"stale", "unknown"}
    status, said = bench.run("verify")
    assert status == 1
    assert "a failure is kept, which later runs get at once: [NCC_INLA001] Unhandled exception" in said
    status, said = bench.run("clean-locks", "--dry-run")
    assert (status, stale.exists()) == (0, True)
    assert "1 lock would be removed, 1 left" in said
    status, said = bench.run("clean-locks")
    assert (status, stale.exists(), other.exists()) == (0, False, True)
    assert f"removed {stale}" in said
    assert "it is of process 12 on another host, another-host" in said
    bench.run("prune", "--max-size", "1GB")
    assert caches.snapshot(bench.cache).of("failed") == ()
    assert caches.snapshot(bench.cache).of("done") == (f"{COMPILER}/MODULE_1+d41d8cd9",)


def test_a_place_that_is_no_folder_is_said(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    bench.patch.setenv("NEURON_COMPILE_CACHE_URL", str(tmp_path / "file"))
    status, said = bench.run("status")
    assert status == 0
    assert f"{tmp_path / 'file'} (NEURON_COMPILE_CACHE_URL) is no folder" in " ".join(said.split())


def test_compiled_artifacts_of_neuron_are_a_hit_on_a_box_of_the_same_kind_alone(bench: Bench, tmp_path: Path) -> None:
    store = str(tmp_path / "store")

    def told(target: str, core: str) -> dict[str, Any]:
        versions = {"neuronx-cc": VERSION, "torch": "2.9"}
        return {
            "compiler": "neuronx-cc", "versions": versions, "target": {"target": target, "core": core, "lnc": 1},
        }  # fmt: skip

    def obtained(target: str, core: str) -> bool:
        def compile(folder: Path) -> dict[str, Any]:
            (folder / "main.neff").write_text("neff")
            return {}

        found = ArtifactCache(bench.root / "cache").obtain(
            told(target, core), compile, progress=lambda text: None, deadline_s=30.0
        )
        found.release()
        return found.hit

    assert obtained("trn1", "v2") is False
    status, said = bench.run("push", store)
    assert (status, f"as artifacts/neuronx-cc-{VERSION}/v2-lnc1-trn1" in said) == (0, True)
    shutil.rmtree(bench.root / "cache")
    for kind, hits in (("inf2.xlarge", False), ("trn2.3xlarge", False), ("trn1.2xlarge", True)):
        with FakeBox(kind, tmp_path / kind) as box:
            box.venv("aws_neuronx_venv_pytorch_2_9", packages={"neuronx-cc": VERSION})
            bench.on(box)
            status, said = bench.run("pull", store)
            assert (status, "1 entry fetched" in said) == (0, hits)
    assert obtained("trn1", "v2") is True


def test_models_that_servers_compiled_are_shown_sent_and_fetched(bench: Bench, tmp_path: Path) -> None:
    """NxD Inference keeps a model whole; what neuronbench had it compile is hours, and lies in neuronbench's cache."""
    store = str(tmp_path / "store")
    packages = {"neuronx-cc": VERSION, "neuronx-distributed-inference": "0.7.1", "torch": "2.8.0"}
    kept = bench.root / "cache" / caches.SERVED
    model = kept / "5f0e"
    (model / "weights").mkdir(parents=True)
    (model / "weights" / "tp0.safetensors").write_bytes(b"w" * 2000)
    (model / "model.pt").write_bytes(b"m" * 1000)
    (model / "neuron_config.json").write_text("{}")
    with FakeBox("inf2.xlarge", tmp_path / "one") as one, FakeBox("inf2.xlarge", tmp_path / "two") as two:
        for box in (one, two):
            box.venv("aws_neuronx_venv_vllm", packages=packages)
        bench.on(one)
        said = bench.run("status")[1]
        assert "models compiled for serving: 1 compiled" in said
        assert "and not pruned" not in said
        status, said = bench.run("push", store)
        assert f"as {caches.SERVED}/{COMPILER}+nxdi-0.7.1+torch-2.8.0/v2" in said
        with caches.served(kept).use("5f0e"):
            (entry,) = caches.served(kept).entries()
            assert entry.in_use
            bench.run("prune", "--max-size", "1B")
            assert model.is_dir()  # a server loads it
        assert not caches.served(kept).entries()[0].in_use
        shutil.rmtree(kept)
        bench.on(two)
        status, said = bench.run("pull", store)
        assert (status, "1 entry fetched" in said) == (0, True)
        assert (model / "weights" / "tp0.safetensors").read_bytes() == b"w" * 2000
        bench.run("prune", "--max-size", "1B")
        assert not model.exists()


def test_what_was_compiled_on_one_host_is_pulled_on_another_of_its_kind_alone(bench: Bench, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    module(bench.cache, "1", neff=b"x" * 3000)
    module(bench.cache, "2", log="ERROR")
    status, said = bench.run("push", store, "--dry-run")
    assert (status, Path(store).exists()) == (0, False)
    status, said = bench.run("push", store)
    assert status == 0
    assert f"as neuron-xla/{COMPILER}/v2" in said
    assert "1 entry sent (3 KB), 0 there already, 0 other than those there, 1 left" in said
    assert "0 entries sent (0 B), 1 there already" in bench.run("push", store)[1]
    with FakeBox("inf2.xlarge", tmp_path / "inf2") as same, FakeBox("trn2.3xlarge", tmp_path / "trn2") as newer:
        for box in (same, newer):
            box.venv("aws_neuronx_venv_pytorch_2_9", packages={"neuronx-cc": VERSION})
        bench.on(same)
        status, said = bench.run("pull", store)
        assert status == 0
        assert "1 entry fetched (3 KB), 0 here already" in said
        there = same.root / "var/tmp/neuron-compile-cache"
        assert caches.snapshot(there).of("done") == (f"{COMPILER}/MODULE_1+d41d8cd9",)
        assert "0 entries fetched (0 B), 1 here already" in bench.run("pull", store)[1]
        kept = there / COMPILER / "MODULE_1+d41d8cd9"
        for name in ("model.neff", "model.done"):
            (kept / name).unlink()
        (kept / "model.log").write_text("[F137] Killed")
        status, said = bench.run("pull", store)
        assert "left neuron-xla/" in said  # a failure that is kept is not covered up
        assert "[F137] Killed; to have the store's: neuronbench cache prune" in said
        bench.run("prune", "--max-size", "1GB")
        assert "1 entry fetched" in bench.run("pull", store)[1]
        bench.on(newer)
        status, said = bench.run("pull", store)
        assert status == 0
        assert "nothing for this host's compiler and cores (" in said
        assert f"neuron-xla/{COMPILER}/v3-lnc2" in said
        assert f"it has: neuron-xla/{COMPILER}/v2" in said
        assert not (newer.root / "var/tmp/neuron-compile-cache" / COMPILER).exists()
    assert bench.run("pull", "gs://elsewhere")[0] == 1
