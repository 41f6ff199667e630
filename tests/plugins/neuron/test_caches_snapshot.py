"""What is read out of the compilers' caches, and what two looks at one tell of the time between them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from neuronbench_neuron import caches
from neuronbench_neuron.caches import layout

COMPILER = "neuronxcc-2.21.33363.0+82129205"


def xla(root: Path, graph: str, *names: str, flags: list[str] | None = None, **contents: str) -> Path:
    """A module with files of some bytes."""
    folder = root / COMPILER / f"MODULE_{graph}+d41d8cd9"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.hlo_module.pb", *names):
        (folder / name).write_bytes(b"" if name == "model.done" else b"x" * 10)
    (folder / "compile_flags.json").write_text(json.dumps(flags or ["--target=trn1", "--auto-cast=none"]))
    for name, text in contents.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def vllm(root: Path, digest: str, *, complete: bool, told: int | None = None, log: str = "") -> Path:
    folder = root / digest
    folder.mkdir(parents=True)
    (folder / "command.txt").write_text("neuronx-cc compile graph.hlo --framework XLA --target trn2 -lnc 2")
    if log:
        (folder / "log-neuron-cc.txt").write_text(log)
    else:
        (folder / f"graph_{digest}.neff").write_bytes(b"n" * 40)
    if complete:
        (folder / ".compilation_complete").write_text(f"completed:1\nneff_size:{told or 40}\n")
    return folder


def test_every_state_of_a_module_is_told_by_its_files(tmp_path: Path) -> None:
    xla(tmp_path, "1", "model.neff", "model.done")
    xla(tmp_path, "2", model_log="first line\n[NCC_INLA001] Unhandled exception\nlast line\n")
    xla(tmp_path, "3", "model.hlo_module.pb.lock")
    xla(tmp_path, "4", "model.done")
    xla(tmp_path, "5", "model.neff")  # not marked as whole: the compiler may have been killed while it wrote
    xla(tmp_path, "6", model_error="it broke")
    xla(tmp_path, "7", "model.neff", "model.done", model_log="PASS")
    (tmp_path / COMPILER / "not-a-module").mkdir()
    (tmp_path / "something-else").mkdir()
    found = caches.snapshot(tmp_path)
    states = {key.partition("MODULE_")[2].partition("+")[0]: each.state for key, each in found.modules.items()}
    assert states == {
        "1": "done", "2": "failed", "3": "partial", "4": "damaged", "5": "partial", "6": "failed", "7": "done",
    }  # fmt: skip
    by_graph = {key.partition("MODULE_")[2].partition("+")[0]: each for key, each in found.modules.items()}
    assert by_graph["2"].why == "[NCC_INLA001] Unhandled exception"
    assert by_graph["4"].why == "model.done without a model.neff"
    assert by_graph["6"].why == "it broke"
    assert by_graph["1"].compiler == "2.21.33363.0+82129205"
    assert by_graph["1"].target == "trn1"
    assert [path.name for path in by_graph["3"].locks] == ["model.hlo_module.pb.lock"]
    assert found.compilers == ("2.21.33363.0+82129205",)
    assert found.of("failed") == (f"{COMPILER}/MODULE_2+d41d8cd9", f"{COMPILER}/MODULE_6+d41d8cd9")
    assert found.size_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


def test_the_layout_of_vllm_is_told_apart_and_its_marker_is_held_against_the_neff(tmp_path: Path) -> None:
    vllm(tmp_path, "a" * 32, complete=True)
    vllm(tmp_path, "b" * 32, complete=True, told=41)
    vllm(tmp_path, "c" * 32, complete=False)
    vllm(tmp_path, "d" * 32, complete=False, log="INFO ok\nERROR: neuronx-cc compilation failed with 70\n")
    vllm(tmp_path, "e" * 32, complete=False, log="INFO still at it\n")
    (tmp_path / "nki").mkdir()
    found = caches.snapshot(tmp_path)
    assert found.kind == "vllm"
    assert {key[0]: module.state for key, module in found.modules.items()} == {
        "a": "done", "b": "damaged", "c": "partial", "d": "failed", "e": "partial",
    }  # fmt: skip
    assert "compilation_complete says 41" in found.modules["b" * 32].why
    assert found.modules["d" * 32].why == "ERROR: neuronx-cc compilation failed with 70"
    assert (found.modules["a" * 32].target, layout.lnc_of(found.modules["a" * 32].flags)) == ("trn2", 2)


def test_artifacts_of_nxdi_are_a_module_each(tmp_path: Path) -> None:
    for name, files in (("one", ("model.pt", "neuron_config.json")), ("two", ("neuron_config.json",))):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("{}")
    found = caches.snapshot(tmp_path)
    assert (found.kind, found.of("done"), found.of("partial")) == ("nxdi", ("one",), ("two",))
    assert caches.snapshot(tmp_path / "one").of("done") == ("one",)


def test_a_delta_says_what_the_compiler_did_meanwhile(tmp_path: Path) -> None:
    nothing = caches.snapshot(tmp_path / "absent")
    assert nothing.modules == {}
    assert nothing.delta(nothing).state == "empty"
    xla(tmp_path, "1", "model.neff", "model.done")
    again = xla(tmp_path, "2", "model.neff", "model.done")
    gone = xla(tmp_path, "3", "model.neff", "model.done")
    mended = xla(tmp_path, "4", model_log="[F137] forcibly killed")
    before = caches.snapshot(tmp_path)
    same = before.delta(caches.snapshot(tmp_path))
    assert (same.state, same.cold, same.compiles, same.kept) == ("warm", False, 0, 3)
    xla(tmp_path, "5", "model.neff", "model.done")
    xla(tmp_path, "6", model_log="ERROR")
    xla(tmp_path, "7", "model.hlo_module.pb.lock")
    for name in ("model.neff", "model.done"):
        (mended / name).write_bytes(b"y")
    os.utime(again / "model.neff", ns=(1, 1))  # compiled once more in place
    for path in gone.iterdir():
        path.unlink()
    gone.rmdir()
    happened = before.delta(caches.snapshot(tmp_path))
    name = f"{COMPILER}/MODULE_%s+d41d8cd9"
    assert happened.compiled == tuple(name % each for each in "245")
    assert happened.failed == (name % 6,)
    assert happened.begun == (name % 7,)
    assert happened.removed == (name % 3,)
    assert (happened.state, happened.compiles, happened.kept) == ("cold", 5, 1)
    assert happened.to_json()["compiled"] == [name % each for each in "245"]


def test_what_is_no_folder_is_refused_and_so_are_two_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only a cache in a folder"):
        caches.snapshot("s3://bucket/cache")
    with pytest.raises(ValueError, match="two folders"):
        caches.snapshot(tmp_path).delta(caches.snapshot(tmp_path / "x"))
    assert caches.snapshot(f"file://{tmp_path}").folder == tmp_path


def test_flags_are_read_in_both_ways_of_writing_them() -> None:
    assert layout.target_of(("--target", "inf2")) == layout.target_of(("--target=inf2",)) == "inf2"
    assert layout.target_of(("--target",)) == layout.target_of(()) == ""
    assert [layout.lnc_of(flags) for flags in (("-lnc", "1"), ("--lnc=2",), ("--logical-nc-config=2",), ())] == [
        1, 2, 2, None,
    ]  # fmt: skip
