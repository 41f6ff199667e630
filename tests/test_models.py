"""Model references: where they lead, what is known of what is found there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_hub import SHA, FakeHub

from neuronbench import config, modelfiles, models, packaged
from neuronbench.catalog import load_table
from neuronbench.config import Settings
from neuronbench.model import Json


def safetensors(**tensors: tuple[str, tuple[int, ...]]) -> bytes:
    """A valid file with tensors of zeros: name → dtype, shape."""
    header, data = {}, b""
    for name, (dtype, shape) in tensors.items():
        size = {"F32": 4, "BF16": 2, "I64": 8, "U8": 1}[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + size]}
        data += bytes(size)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + data


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 12, "max_position_embeddings": 64, "dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": [2, 3],
}  # fmt: skip
TOKENIZER = {
    "model": {"vocab": {f"t{i}": i for i in range(10) if i != 7}},
    "added_tokens": [{"id": 0, "content": "<pad>", "special": True}, {"id": 11, "content": "<x>"}],
}
WEIGHTS = safetensors(a=("BF16", (4, 3)), b=("BF16", (5,)), positions=("I64", (8,)))
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": json.dumps(TOKENIZER).encode(),
    "model.safetensors": WEIGHTS,
}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return dataclasses.replace(config.load(tmp_path, environ={}), cache_dir=tmp_path / "cache")


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the network nor this user's cache."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


# -- local folders


def test_a_local_folder(settings: Settings, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", FILES)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    for reference in (str(folder), "m", "file:m", f"file:{folder}"):
        model = models.resolve(reference, settings)
        assert (model.path, model.source, model.reference) == (folder, "local", reference)
    assert model.files == {"model.safetensors": digest}
    assert model.weights_digest == hashlib.sha256(f"{digest}  model.safetensors\n".encode()).hexdigest()
    assert (model.architecture, model.dtype, model.max_model_len) == ("LlamaForCausalLM", "bfloat16", 64)
    assert model.parameter_count == 17
    assert model.vocabulary is not None
    assert (model.vocabulary.size, model.vocabulary.max_model_len) == (10, 64)
    assert model.vocabulary.special_ids == (0, 1, 2, 3, 7)
    json.dumps(model.facts())


@pytest.mark.parametrize("reference", ["/no/such/folder", "./nothing", "~/nothing-here", "file:nothing"])
def test_a_path_that_does_not_exist(reference: str, settings: Settings) -> None:
    with pytest.raises(models.ModelError, match="there is no folder") as caught:
        models.resolve(reference, settings)
    assert caught.value.kind == "model_not_found"


def test_a_folder_that_is_no_model(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(models.ModelError, match=r"no config\.json") as caught:
        models.resolve("m", settings)
    assert caught.value.kind == "model_config_missing"
    write(tmp_path / "n", {**FILES, "config.json": b"{nonsense"})
    with pytest.raises(models.ModelError, match="not valid JSON"):
        models.resolve("n", settings)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a safetensors file"),
        (b"garbage" * 100, "its header claims"),
        (WEIGHTS[:-5], "is incomplete or damaged"),
        (WEIGHTS + b"x", "is incomplete or damaged"),
        ((4).to_bytes(8, "little") + b"{[1]", "its header is not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "its header is not an object"),
        ((8).to_bytes(8, "little") + b'{"a":{}}', "without offsets"),
    ],
)
def test_damaged_weights_are_refused_before_anything_boots(
    data: bytes, words: str, settings: Settings, tmp_path: Path
) -> None:
    write(tmp_path / "m", {**FILES, "model.safetensors": data})
    with pytest.raises(models.ModelError, match=words) as caught:
        models.resolve("m", settings)
    assert caught.value.failure().kind == "weights_corrupt"
    assert caught.value.failure().remedy


def test_a_shard_that_is_missing(settings: Settings, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    write(tmp_path / "m", {**FILES, "model.safetensors.index.json": json.dumps(index).encode()})
    with pytest.raises(models.ModelError, match=r"model-2\.safetensors"):
        models.resolve("m", settings)


def test_digests_are_kept_until_a_file_changes(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "m", {**FILES, "sub/extra.bin": b"1", "training_args.bin": b"2", ".hidden/x.bin": b"3"})
    first = models.resolve("m", settings)
    assert list(first.files) == ["model.safetensors", "sub/extra.bin"]
    original = hashlib.sha256
    hashed: list[str] = []
    monkeypatch.setattr("neuronbench.modelfiles.hashlib.sha256", lambda *data: hashed.append("x") or original(*data))
    assert models.resolve("m", settings).files == first.files
    assert len(hashed) == 1  # the combined one
    time.sleep(0.01)
    (folder / "sub/extra.bin").write_bytes(b"4")
    changed = models.resolve("m", settings)
    assert changed.files["sub/extra.bin"] != first.files["sub/extra.bin"]
    assert changed.files["model.safetensors"] == first.files["model.safetensors"]
    assert changed.weights_digest != first.weights_digest


def test_a_cache_that_cannot_be_written_is_no_error(settings: Settings, tmp_path: Path) -> None:
    write(tmp_path / "m", FILES)
    (tmp_path / "cache").write_text("a file, not a folder", encoding="utf-8")
    assert models.resolve("m", settings).files


# -- vocabulary and lengths


@pytest.mark.parametrize(
    ("files", "size", "special"),
    [
        ({"config.json": {"vocab_size": 5, "bos_token_id": 1}}, 5, (1,)),
        ({"config.json": {"vocab_size": 5}, "tokenizer.json": {"model": {"vocab": [["a", 0.1]] * 4}}}, 4, ()),
        ({"config.json": {"text_config": {"vocab_size": 6, "eos_token_id": 2}}}, 6, (2,)),
        ({"config.json": {"vocab_size": 6}, "added_tokens.json": {"<a>": 5}}, 6, (5,)),
        ({"config.json": {"vocab_size": 6}, "tokenizer_config.json": {"added_tokens_decoder": {"4": {}}}}, 6, (4,)),
        ({"config.json": {"vocab_size": 6}, "generation_config.json": {"eos_token_id": [3, 99]}}, 6, (3,)),
        ({"config.json": {}, "tokenizer.json": {"model": {"vocab": {"a": 0, "[unused1]": 1, "b": 2}}}}, 3, (1,)),
    ],
)
def test_vocabularies(files: dict[str, Json], size: int, special: tuple[int, ...], tmp_path: Path) -> None:
    write(tmp_path, {name: json.dumps(data).encode() for name, data in files.items()})
    found = modelfiles.vocabulary(tmp_path)
    assert found is not None
    assert (found.size, found.special_ids) == (size, special)


def test_an_unknown_vocabulary(tmp_path: Path) -> None:
    assert modelfiles.vocabulary(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({"config.json": {"n_positions": 7}}, 7),
        ({"config.json": {"max_position_embeddings": 9}, "sentence_bert_config.json": {"max_seq_length": 5}}, 5),
        ({"config.json": {}, "tokenizer_config.json": {"model_max_length": 1e30}}, None),
        ({"config.json": {}, "tokenizer_config.json": {"model_max_length": 512}}, 512),
    ],
)
def test_context_lengths(files: dict[str, Json], length: int | None, tmp_path: Path) -> None:
    write(tmp_path, {name: json.dumps(data).encode() for name, data in files.items()})
    assert modelfiles.max_model_len(tmp_path, modelfiles.read_config(tmp_path)) == length


def test_packed_weights_have_no_parameter_count() -> None:
    header = {"a": {"dtype": "U8", "shape": [1 << 10, 1 << 10]}, "s": {"dtype": "F32", "shape": [4]}}
    assert modelfiles.parameter_count({"m": header}) is None
    assert modelfiles.parameter_count({}) is None


# -- references that lead nowhere


def test_everything_that_was_tried_is_listed(settings: Settings) -> None:
    with pytest.raises(models.ModelError) as caught:
        models.resolve("org/nothing", settings)
    text = str(caught.value)
    for words in ("local path", "cache of the hub", "hub: HF_HUB_OFFLINE is set", "packaged weights", "To do:"):
        assert words in text
    failure = caught.value.failure()
    assert (failure.kind, failure.phase) == ("hub_unreachable", "boot")
    assert "HF_HUB_OFFLINE" in failure.cause


@pytest.mark.parametrize(
    ("reference", "tried"),
    [
        ("hub:org/nothing", ["cache of the hub", "hub"]),
        ("packaged:nothing", ["packaged weights"]),
        ("smollm2-135m-instruct@v1", ["local path", "cache of the hub", "hub"]),
    ],
)
def test_a_scheme_forces_the_place(reference: str, tried: list[str], settings: Settings) -> None:
    with pytest.raises(models.ModelError) as caught:
        models.resolve(reference, settings)
    assert [line.partition(":")[0].partition(" /")[0] for line in caught.value.tried] == tried


def test_a_near_miss_is_pointed_out(settings: Settings) -> None:
    with pytest.raises(models.ModelError, match="did you mean 'smollm2-135m-instruct'"):
        models.resolve("smollm2-135m-instrukt", settings)
    with pytest.raises(models.ModelError, match="a model reference is a path"):
        models.resolve(" ", settings)


def test_metadata_without_fetching(settings: Settings, tmp_path: Path) -> None:
    write(tmp_path / "m", FILES)
    assert models.metadata("m", settings).max_model_len == 64
    known = models.metadata("packaged:SmolLM2-135M-Instruct", settings)
    assert (known.max_model_len, known.architecture) == (8192, "LlamaForCausalLM")
    assert models.metadata("HuggingFaceTB/SmolLM2-135M-Instruct", settings).max_model_len == 8192
    assert models.metadata("org/unknown", settings) == models.ModelMetadata()
    assert models.metadata("", settings) == models.ModelMetadata()


# -- the hub


def on_hub(hub: FakeHub, tmp_path: Path, reference: str, *, offline: bool = False, token: str = "") -> dict[str, Json]:
    """Resolve in a process of its own, because `huggingface_hub` reads its environment once."""
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom neuronbench import config, models\n"
        "s = config.load(Path(sys.argv[1]))\n"
        "try:\n    r = models.resolve(sys.argv[2], s)\n    print(json.dumps(r.facts()))\n"
        "except models.ModelError as e:\n    print(json.dumps({'kind': e.kind, 'text': str(e)}))\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(Path(__file__).parent.parent),
        "HF_HUB_DISABLE_XET": "1", "NEURONBENCH_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    if offline:
        env["HF_HUB_OFFLINE"] = "1"
    if token:
        env["HF_TOKEN"] = token
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), reference], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Json] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_fetched_from_the_hub_then_from_its_cache(tmp_path: Path) -> None:
    extra = {"original/big.pth": b"x", "pytorch_model.bin": b"x", "onnx/model.onnx": b"x"}
    with FakeHub({**FILES, **extra}) as hub:
        first = on_hub(hub, tmp_path, "org/name")
        assert (first["source"], first["revision"]) == ("hub", SHA)
        assert list(first["files"]) == ["model.safetensors"]
        assert not [path for path in hub.asked if "resolve" in path and path.endswith((".pth", ".bin", ".onnx"))]
        again = on_hub(hub, tmp_path, "hub:org/name", offline=True)
    assert (again["source"], again["revision"]) == ("cache", SHA)
    assert again["files"] == first["files"]


def test_an_incomplete_copy_in_the_cache_is_not_used(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}).encode()
    with FakeHub({**FILES, "model.safetensors.index.json": index, "model-2.safetensors": WEIGHTS}) as hub:
        folder = Path(on_hub(hub, tmp_path, "org/name")["path"])
        (folder / "model-2.safetensors").unlink()
        assert "no complete copy" in on_hub(hub, tmp_path, "org/name", offline=True)["text"]
        assert on_hub(hub, tmp_path, "org/name")["source"] == "hub"
        assert on_hub(hub, tmp_path, "org/name")["source"] == "cache"


@pytest.mark.parametrize(
    ("refuse", "kind", "words"),
    [
        ((403, "GatedRepo"), "hub_auth", "is gated (a token is set)"),
        ((401, ""), "hub_auth", "401"),
        ((404, "RepoNotFound"), "model_not_found", "there is no org/name"),
        ((404, "RevisionNotFound"), "model_not_found", "has no revision"),
        ((500, ""), "hub_unreachable", "500"),
    ],
)
def test_what_the_hub_refuses(refuse: tuple[int, str], kind: str, words: str, tmp_path: Path) -> None:
    with FakeHub({}, refuse=refuse) as hub:
        found = on_hub(hub, tmp_path, "org/name", token="hf_abcdefghijklmnopqrstuvwx")
    assert found["kind"] == kind
    assert words in found["text"]
    assert "hf_abc" not in found["text"]


# -- packaged weights


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """A stack with a distribution that carries weights; its interpreter is this one, with other packages."""
    site = tmp_path / "site"
    write(
        site,
        {
            "zoo_weights/zoo.gguf": b"GGUF weights",
            "zoo_weights/__init__.py": b"raise RuntimeError('must not be imported')",
            "zoo_weights-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: zoo-weights\nVersion: 1.0\n",
            **{f"zoo_weights/model/{name}": data for name, data in FILES.items()},
        },
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return python


def entry(format_: str = "gguf", **changes: str) -> dict[str, Json]:
    file, data = ("zoo.gguf", b"GGUF weights") if format_ == "gguf" else ("model/model.safetensors", WEIGHTS)
    source = {
        "distribution": "zoo-weights", "version": "1.0", "format": format_, "file": f"zoo_weights/{file}",
        "sha256": hashlib.sha256(data).hexdigest(), "dtype": "bfloat16", "note": "decoded",
    }  # fmt: skip
    return {"name": "zoo", "hub": "org/zoo", "packaged": {**source, **changes}}


CONVERTER = """
import json, pathlib, sys
here = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
with open({count!r}, "a") as file: file.write("x")
for name, data in {files!r}.items(): (here / name).write_bytes(data)
{then}
print(json.dumps({{"parameters": 17}}))
"""


@pytest.fixture
def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Replaces the conversion; returns the file that counts its runs."""

    def make(then: str = "") -> Path:
        count = tmp_path / "count"
        script = tmp_path / "convert.py"
        script.write_text(CONVERTER.format(files=FILES, count=str(count), then=then), encoding="utf-8")
        monkeypatch.setattr(packaged, "CONVERTER", script)
        return count

    return make


def obtain(stack: Path | None, tmp_path: Path, made: dict[str, Json], *, seconds: float = 30.0) -> tuple[Path, str]:
    said: list[str] = []
    return packaged.obtain(
        made, tmp_path / "cache", python=stack, progress=said.append, spawn=None, deadline=time.monotonic() + seconds
    )


def test_converted_once_and_kept(stack: Path, tmp_path: Path, converter: Callable[[str], Path]) -> None:
    count = converter("")
    folder, version = obtain(stack, tmp_path, entry())
    assert version == "1.0"
    assert obtain(None, tmp_path, entry()) == (folder, version)
    assert count.read_text(encoding="utf-8") == "x"
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    provenance = json.loads((folder / packaged.PROVENANCE).read_text(encoding="utf-8"))
    assert provenance["source"]["sha256"] == entry()["packaged"]["sha256"]
    assert provenance["conversion"] == {"parameters": 17}
    assert not list(folder.parent.glob("*.tmp-*"))


@pytest.mark.parametrize(
    ("then", "kind", "words"),
    [
        ("raise SystemExit('no gguf package')", "conversion_failed", "status 1"),
        ("import nothing_like_it", "conversion_failed", "No module named 'nothing_like_it'"),
        ("raise OSError(28, 'No space left on device')", "disk_full", "No space left"),
        ("raise SystemExit(0)", "conversion_failed", "gave no result"),
    ],
)
def test_a_conversion_that_fails_leaves_nothing_behind(
    then: str, kind: str, words: str, stack: Path, tmp_path: Path, converter: Callable[[str], Path]
) -> None:
    converter(then)
    with pytest.raises(packaged.NotAvailable, match=words) as caught:
        obtain(stack, tmp_path, entry())
    assert caught.value.kind == kind
    assert [path for path in (tmp_path / "cache/models/packaged").iterdir() if path.is_dir()] == []


def test_a_conversion_does_not_outlive_its_deadline(
    stack: Path, tmp_path: Path, converter: Callable[[str], Path]
) -> None:
    converter("import time; time.sleep(3600)")  # longer than a test may take
    with pytest.raises(packaged.NotAvailable, match="not done") as caught:
        obtain(stack, tmp_path, entry(), seconds=1.0)
    assert caught.value.kind == "boot_timeout"


def test_leftovers_of_a_killed_conversion_are_removed(
    stack: Path, tmp_path: Path, converter: Callable[[str], Path]
) -> None:
    converter("")
    stale = write(tmp_path / "cache/models/packaged/zoo-1.0-bfloat16.tmp-1", FILES)
    obtain(stack, tmp_path, entry())
    assert not stale.exists()


def test_a_packaged_folder_is_used_where_it_is(stack: Path, tmp_path: Path) -> None:
    folder, _ = obtain(stack, tmp_path, entry("folder"))
    assert folder == tmp_path / "site/zoo_weights/model"


@pytest.mark.parametrize(
    ("changes", "words", "kind"),
    [
        ({"distribution": "absent"}, "absent is not installed", ""),
        ({"version": "2.0"}, "zoo-weights 1.0 is installed in the stack, 2.0 is known", ""),
        ({"file": "zoo_weights/none"}, "is not there", ""),
        ({"sha256": "0" * 64}, "is expected", "weights_corrupt"),
    ],
)
def test_packages_that_will_not_do(changes: dict[str, str], words: str, kind: str, stack: Path, tmp_path: Path) -> None:
    with pytest.raises(packaged.NotAvailable, match=words) as caught:
        obtain(stack, tmp_path, entry("folder", **changes))
    assert caught.value.kind == kind


def test_no_stack_to_look_in(tmp_path: Path) -> None:
    with pytest.raises(packaged.NotAvailable, match="no stack to look for zoo-weights in"):
        obtain(None, tmp_path, entry())


def test_the_catalogue_is_complete() -> None:
    names: list[str] = []
    for row in load_table("models.toml")["model"]:
        names += [row["name"], *row["aliases"]]
        assert row["licence"]
        assert row["hub"].count("/") == 1
        assert len(row["packaged"]["sha256"]) == 64
        assert row["packaged"]["note"]
        assert models.known(row["hub"].upper()) == row
    assert len({name.lower() for name in names}) >= len(load_table("models.toml")["model"])
