"""Adapters and the base they belong to: recorded by digest, brought along, and never paired with another."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neuronbench import cli
from neuronbench.weights import Base, LocalBlobs, Manifest, StoreError, WeightStore, store
from neuronbench.weights.adapters import BASE, base_in, is_adapter, write_base
from neuronbench.weights.pairs import base_named, get_base
from neuronbench.worker.trainer import WorkerTrainer


def base(folder: Path, weights: bytes = b"base", tokenizer: str = "{}") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def adapter(folder: Path, of: Base | None = None) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base", "r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(b"low rank")
    if of is not None:
        write_base(folder, of)
    return folder


def place(tmp_path: Path) -> WeightStore:
    return store(str(tmp_path / "store"))


def test_a_base_in_the_store_is_found_by_the_digest_that_the_trainer_left(tmp_path: Path) -> None:
    shelf = place(tmp_path)
    model = shelf.put(base(tmp_path / "base")).manifest
    put = shelf.put(adapter(tmp_path / "adapter", Base(reference="org/base", weights_digest=model.weights_digest)))
    assert put.base == Base(reference="org/base", digest=model.digest, weights_digest=model.weights_digest)
    assert put.facts()["kind"] == "adapter"
    got = shelf.get(put.manifest.digest, tmp_path / "a")
    assert got.base == put.base
    pair = get_base(shelf, put.manifest.digest, tmp_path / "a", tmp_path / "b")
    assert Manifest.of(tmp_path / "b") == model == pair.manifest
    assert get_base(shelf, put.manifest.digest, tmp_path / "a", tmp_path / "b").there


def test_a_name_is_no_digest_and_what_is_told_later_counts(tmp_path: Path) -> None:
    shelf = place(tmp_path)
    folder = adapter(tmp_path / "adapter")
    put = shelf.put(folder)
    assert put.base == Base(reference="org/base")
    with pytest.raises(StoreError, match=r"by its name alone \(org/base\)") as caught:
        get_base(shelf, put.manifest.digest, folder, tmp_path / "b")
    assert caught.value.kind == "adapter_base_unknown"
    model = shelf.put(base(tmp_path / "base")).manifest
    again = shelf.put(folder, base=base_named(shelf, model.digest[:10], root=tmp_path))
    assert again.manifest == put.manifest
    assert again.base is not None
    assert (again.base.digest, again.base.reference) == (model.digest, "org/base")
    assert shelf.adapters.adapters() == {put.manifest.digest}
    assert shelf.put(folder).base == again.base  # it is not forgotten


def test_another_base_is_refused_with_both_digests(tmp_path: Path) -> None:
    shelf = place(tmp_path)
    right, wrong = base(tmp_path / "right"), base(tmp_path / "wrong", b"other")
    folder = adapter(tmp_path / "adapter", Base(weights_digest=Manifest.of(right).weights_digest))
    with pytest.raises(StoreError, match="belongs to a base of digest") as caught:
        shelf.put(folder, base=base_named(shelf, "wrong", root=tmp_path))
    digests = {caught.value.expected, caught.value.found}
    assert digests == {Manifest.of(right).weights_digest, Manifest.of(wrong).weights_digest}
    put = shelf.put(folder, base=base_named(shelf, str(right), root=tmp_path))
    with pytest.raises(StoreError, match="belongs to a base of digest") as caught:
        get_base(shelf, put.manifest.digest, folder, wrong)
    assert caught.value.kind == "adapter_base_mismatch"
    # Another tokenizer beside the same weights is no other base.
    same = base(tmp_path / "same", tokenizer='{"version": "2"}')
    assert get_base(shelf, put.manifest.digest, folder, same).there
    with pytest.raises(StoreError, match="does not have the base"):
        get_base(shelf, put.manifest.digest, folder, tmp_path / "nowhere")
    with pytest.raises(StoreError, match="is no adapter"):
        shelf.put(right, base=Base(digest="0" * 64))


def test_two_who_know_of_two_bases_are_an_error_and_what_was_changed_is_found(tmp_path: Path) -> None:
    shelf = place(tmp_path)
    digest = shelf.put(adapter(tmp_path / "adapter")).manifest.digest
    shelf.adapters.tell(digest, Base(digest="1" * 64))
    with pytest.raises(StoreError, match="belongs to a base of digest"):
        shelf.adapters.tell(digest, Base(digest="2" * 64))
    blobs = shelf.blobs
    assert isinstance(blobs, LocalBlobs)
    (first, *_) = sorted((blobs.folder / "about" / digest).iterdir())
    text = first.read_text()
    first.unlink()
    first.write_text(text.replace("adapter", "adopter"))
    with pytest.raises(StoreError, match="cannot be used"):
        shelf.adapters.base(digest)


def test_readers_of_before_see_a_model_like_any_other(tmp_path: Path) -> None:
    """The list of files is of format 1, and says nothing of bases."""
    shelf = place(tmp_path)
    manifest = shelf.put(adapter(tmp_path / "adapter")).manifest
    assert is_adapter(manifest)
    told = json.loads((tmp_path / "store" / "models" / f"{manifest.digest}.json").read_text())
    assert (told["format"], sorted(told)) == (1, ["files", "format"])
    assert list(shelf.digests()) == [manifest.digest]


def test_a_base_that_cannot_be_read(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "adapter")
    (folder / BASE).write_text('{"weights_digest": "no digest"}')
    with pytest.raises(StoreError, match="is no SHA-256"):
        base_in(folder)
    (folder / BASE).write_text("{")
    with pytest.raises(StoreError, match="is not valid JSON"):
        base_in(folder)


class Exporting:
    """A worker that exports an adapter."""

    log = Path("log")

    def alive(self) -> bool:
        return True

    def call(self, verb: str, arguments: dict[str, Any], **more: Any) -> Any:
        Path(arguments["into"], "adapter_config.json").write_text("{}")
        return SimpleNamespace(value={"files": {"adapter_config.json": {"sha256": "0" * 64, "bytes": 2}}})


@pytest.mark.parametrize(
    ("model", "merged", "told"),
    [
        ({"weights": "pretrained", "weights_digest": "a" * 64, "reference": "org/x"}, False, True),
        ({"weights": "pretrained", "weights_digest": "a" * 64}, True, False),
        ({"weights": "seeded", "weights_digest": "a" * 64}, False, False),
        ({"weights": "pretrained", "weights_digest": ""}, False, False),
    ],
)
def test_a_trainer_leaves_the_digest_of_the_base_beside_the_adapter(
    model: dict[str, str], merged: bool, told: bool, tmp_path: Path
) -> None:
    from neuronbench.training.job import TrainJob

    spec: Any = SimpleNamespace()
    worker: Any = Exporting()
    trainer = WorkerTrainer(
        spec, worker, world_size=1, cores=1, peak=None, facts={"model": model}, boot_metrics=(), call_deadline_s=1.0
    )  # fmt: skip
    job = TrainJob.from_point({"method": "lora_sft", "model": "m", "dataset": "builtin:chat", "steps": 1})
    files = trainer.export(job, folder=tmp_path, into=tmp_path / "out", merged=merged)["files"]
    assert (BASE in files) is told
    if told:
        data = (tmp_path / "out" / BASE).read_bytes()
        assert files[BASE] == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        assert base_in(tmp_path / "out") == Base(reference="org/x", weights_digest="a" * 64)


def test_the_command_speaks_of_adapters_and_brings_the_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        status = cli.main(["--root", str(tmp_path), "weights", *words])
        said = capsys.readouterr()
        return status, said.out + said.err

    base(tmp_path / "base")
    adapter(tmp_path / "adapter")
    model = run("put", "base", "--store", "s")[1].split()[0]
    assert "2 files, 55 B would be transferred" in run("put", "adapter", "--store", "s", "--dry-run")[1]
    assert "base known by its name alone: org/base" in run("put", "adapter", "--store", "s")[1]
    status, said = run("put", "adapter", "--store", "s", "--base", model[:8])
    digest = said.split()[0]
    assert (status, f"adapter; base {model[:16]} (org/base)" in said) == (0, True)
    listed = run("list", "--store", "s")[1]
    assert f"base {model[:16]} (org/base)" in listed
    kinds = {each["digest"]: each["kind"] for each in json.loads(run("list", "--store", "s", "--json")[1])}
    assert kinds == {model: "model", digest: "adapter"}
    assert "--base-into FOLDER brings it along" in run("get", digest, "--store", "s", "--into", "a")[1]
    status, said = run("get", digest[:8], "--store", "s", "--into", "a", "--base-into", "b")
    assert (status, "a: is there already, whole and equal" in said, "b: 12 B in" in said) == (0, True, False)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == b"base"
    (tmp_path / "b" / "model.safetensors").write_bytes(b"bass")
    status, said = run("get", digest, "--store", "s", "--into", "a", "--base-into", "b")
    assert status == 1
    assert "belongs to a base of digest" in said
    assert "no model that begins with" in run("get", "abcdef", "--store", "s", "--into", "x")[1]
    assert "only S3 keeps uploads" in run("uploads", "--store", "s")[1]
