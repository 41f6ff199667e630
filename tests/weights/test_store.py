"""The store of models: what goes in comes out, in a folder and in S3; what is wrong is found and named by hashes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuronbench import keylocks, modelfiles, weights
from neuronbench.weights import FileEntry, LocalBlobs, Manifest, StoreError, WeightStore
from neuronbench.weights.blobs import Blobs, blobs

BUCKET = "models"
PART = 64 << 10
"""S3 takes none below 5 MiB; the server here is told to."""


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A client of an S3 server on loopback."""
    pytest.importorskip("moto", reason="moto is not installed; `make harness` installs it")
    import boto3
    from botocore.config import Config
    from moto.s3 import models
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    smallest, models.S3_UPLOAD_PART_MIN_SIZE = models.S3_UPLOAD_PART_MIN_SIZE, 1
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", aws_access_key_id="id",
        aws_secret_access_key="secret", config=Config(retries={"max_attempts": 1}),
    )  # fmt: skip
    client.create_bucket(Bucket=BUCKET)
    yield client
    client.close()
    server.stop()
    models.S3_UPLOAD_PART_MIN_SIZE = smallest


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty place of each kind."""
    if request.param == "local":
        return LocalBlobs(tmp_path / "store")
    from neuronbench.weights.s3 import S3Blobs

    return S3Blobs(BUCKET, f"runs/{tmp_path.name}", client=request.getfixturevalue("s3"), part_bytes=PART)


def model(folder: Path, *, seed: int = 0, big: int = 0) -> Path:
    """A folder as a trainer exports it; `big` bytes of weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["Toy"]}')
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    body = hashlib.sha256(str(seed).encode()).digest() * max(1, big // 32)
    (folder / "model.safetensors").write_bytes(body)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "junk").write_text("not a part of the model")
    return folder


def damage(place: Blobs, entry: FileEntry, data: bytes | None) -> None:
    """Change an object behind the store's back; None removes it."""
    key = f"blobs/{entry.sha256[:2]}/{entry.sha256}"
    overwrite(place, key, data)


def overwrite(place: Blobs, key: str, data: bytes | None) -> None:
    if isinstance(place, LocalBlobs):
        path = place.folder / key
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
        return
    client, full = place._client, place.prefix + key  # type: ignore[attr-defined]
    if data is None:
        client.delete_object(Bucket=BUCKET, Key=full)
    else:
        client.put_object(Bucket=BUCKET, Key=full, Body=data)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- there and back


def test_what_goes_in_comes_out(place: Blobs, tmp_path: Path) -> None:
    store = WeightStore(place)
    folder = model(tmp_path / "model", big=PART * 2 + 17)
    said: list[str] = []
    put = store.put(folder, progress=said.append)
    assert (put.moved_bytes, put.reused_bytes) == (put.manifest.size_bytes, 0)
    assert list(store.digests()) == [put.manifest.digest]
    assert store.verify(put.manifest.digest) == put.manifest
    got = store.get(put.manifest.digest, tmp_path / "there" / "model")
    shutil.rmtree(folder / ".cache")
    assert contents(tmp_path / "there" / "model") == contents(folder)
    assert Manifest.of(tmp_path / "there" / "model").digest == put.manifest.digest == got.manifest.digest
    assert any("model.safetensors" in text for text in said)
    assert json.loads(json.dumps(put.facts()))["files"]["config.json"]["bytes"] == 26


def test_the_weights_digest_is_the_one_of_endpoints(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    (folder / "optimizer.pt").write_bytes(b"state of training")
    manifest = Manifest.of(folder)
    assert manifest.weights_digest == modelfiles.combined(modelfiles.digests(folder, cache_dir=tmp_path / "cache"))
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_shared_files_are_kept_once_and_nothing_is_written_twice(place: Blobs, tmp_path: Path) -> None:
    store = WeightStore(place)
    first = store.put(model(tmp_path / "a", seed=1))
    again = store.put(tmp_path / "a")
    assert (again.moved_bytes, again.reused_bytes) == (0, first.manifest.size_bytes)
    other = store.put(model(tmp_path / "b", seed=2))
    assert other.moved_bytes == other.manifest.files["model.safetensors"].size_bytes
    assert sorted(store.digests()) == sorted([first.manifest.digest, other.manifest.digest])


def test_an_object_is_never_overwritten(place: Blobs) -> None:
    assert place.write("blobs/x", [b"one"], 3)
    assert not place.write("blobs/x", [b"two"], 3)
    assert b"".join(place.read("blobs/x")) == b"one"
    assert place.size("blobs/x") == 3
    assert place.size("blobs/y") is None
    if isinstance(place, LocalBlobs):
        assert stat.S_IMODE((place.folder / "blobs/x").stat().st_mode) == 0o444


@pytest.mark.parametrize("size", [3, PART * 2])
def test_a_writer_that_is_late_does_not_overwrite(place: Blobs, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both saw no object; the second to finish must find that out, also of a large object."""

    def chunks() -> Iterator[bytes]:
        yield b"l" * size
        overwrite(place, "blobs/race", b"first")
        yield b"l"

    assert not place.write("blobs/race", chunks(), size + 1)
    assert b"".join(place.read("blobs/race")) == b"first"
    leftovers(place)


def test_an_empty_file(place: Blobs, tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    (folder / "empty.txt").touch()
    store = WeightStore(place)
    digest = store.put(folder).manifest.digest
    store.get(digest, tmp_path / "out")
    assert (tmp_path / "out" / "empty.txt").read_bytes() == b""


# -- faults


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing"])
def test_a_damaged_object_is_found(place: Blobs, how: str, tmp_path: Path) -> None:
    store = WeightStore(place)
    manifest = store.put(model(tmp_path / "model", big=4096)).manifest
    entry = manifest.files["model.safetensors"]
    data = (tmp_path / "model" / "model.safetensors").read_bytes()
    wrong = {"flipped": bytes([data[0] ^ 1]) + data[1:], "truncated": data[:1000], "missing": None}[how]
    damage(place, entry, wrong)
    for attempt in (
        lambda: store.verify(manifest.digest),
        lambda: store.get(manifest.digest, tmp_path / "out"),
    ):
        with pytest.raises(StoreError) as caught:
            attempt()
        assert entry.sha256 in str(caught.value)
        if wrong is None:
            assert caught.value.kind == "weights_missing"
        else:
            assert caught.value.kind == "weights_mismatch"
            assert hashlib.sha256(wrong).hexdigest() == caught.value.found
            assert caught.value.found in str(caught.value)
            assert caught.value.expected == entry.sha256
    partial = f".out.{manifest.digest[:16]}.partial"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "store") == [partial, "model"]
    assert sorted(contents(tmp_path / partial)) == ["config.json"]  # what has come and is right stays
    if wrong is not None:  # putting it in again does not hide that what is there is damaged
        with pytest.raises(StoreError, match="was changed"):
            store.put(tmp_path / "model")


def test_a_changed_list_of_files_is_found(place: Blobs, tmp_path: Path) -> None:
    store = WeightStore(place)
    manifest = store.put(model(tmp_path / "model")).manifest
    other = Manifest(files={"config.json": manifest.files["config.json"]})
    overwrite(place, f"models/{manifest.digest}.json", other.text().encode())
    with pytest.raises(StoreError) as caught:
        store.get(manifest.digest, tmp_path / "out")
    assert (caught.value.expected, caught.value.found) == (manifest.digest, other.digest)


class CutOff(RuntimeError):
    pass


@pytest.mark.parametrize("size", [PART // 2, PART * 2 + 5, PART * 7])
def test_an_upload_that_is_cut_off_leaves_nothing(place: Blobs, size: int) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * (size // 2)
        yield b"x" * (size // 2)
        raise CutOff

    with pytest.raises(CutOff):
        place.write("blobs/cut", chunks(), size)
    assert place.size("blobs/cut") is None
    leftovers(place)


def test_what_a_killed_writer_left_in_a_folder_goes_and_what_another_writes_stays(tmp_path: Path) -> None:
    place = LocalBlobs(tmp_path / "store")
    (tmp_path / "store" / "blobs").mkdir(parents=True)
    left, held, young = (tmp_path / "store" / "blobs" / f".x.{name}" for name in ("1", "2", "3"))
    for path in (left, held, young):
        path.write_bytes(b"half")
    for path in (left, held):
        os.utime(path, (1.0, 1.0))
    lock = keylocks.take(held)
    assert lock is not None
    with lock:
        assert place.write("blobs/x", [b"one"], 3)
    assert [path.exists() for path in (left, held, young)] == [False, True, True]


def leftovers(place: Blobs) -> None:
    """Nothing half-written is left: no temporary file, no open upload."""
    if isinstance(place, LocalBlobs):
        assert not [path for path in place.folder.rglob(".*") if path.is_file()]
    else:
        assert not place._client.list_multipart_uploads(Bucket=BUCKET, Prefix=place.prefix).get("Uploads")  # type: ignore[attr-defined]


def test_a_model_whose_upload_was_cut_off_is_no_model(place: Blobs, tmp_path: Path) -> None:
    class Broken:
        url = place.url
        size, read, keys = place.size, place.read, place.keys

        def write(self, key: str, chunks: Any, size_bytes: int) -> bool:
            if key.startswith("models/"):
                raise CutOff
            return place.write(key, chunks, size_bytes)

    folder = model(tmp_path / "model")
    with pytest.raises(CutOff):
        WeightStore(Broken()).put(folder)
    store = WeightStore(place)
    assert list(store.digests()) == []
    with pytest.raises(StoreError, match="has no model"):
        store.get(Manifest.of(folder).digest, tmp_path / "out")
    assert store.put(folder).moved_bytes == 0  # and the next one finds the bytes that arrived


def test_a_file_that_changes_while_it_is_stored(place: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "model", big=4096)
    entry = Manifest.of(folder).files["model.safetensors"]

    def changing(text: str) -> None:
        if text == "hashing tokenizer/vocab.txt":  # the weights were hashed before it
            (folder / "model.safetensors").write_bytes(b"another training run writes here")

    with pytest.raises(StoreError, match="changed while it was stored") as caught:
        WeightStore(place).put(folder, progress=changing)
    assert caught.value.expected == entry.sha256
    assert caught.value.found == hashlib.sha256(b"another training run writes here").hexdigest()
    assert place.size(f"blobs/{entry.sha256[:2]}/{entry.sha256}") is None
    leftovers(place)


def test_a_folder_that_is_not_what_was_exported(tmp_path: Path) -> None:
    store = weights.store(str(tmp_path / "store"))
    exported = Manifest.of(model(tmp_path / "model"))
    right = hashlib.sha256((tmp_path / "model" / "model.safetensors").read_bytes()).hexdigest()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(StoreError, match="is not what was exported") as caught:
        store.put(tmp_path / "model", expected=exported)
    assert (caught.value.expected, caught.value.found) == (right, hashlib.sha256(b"other").hexdigest())
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(StoreError, match=r"model\.safetensors is missing"):
        store.put(tmp_path / "model", expected=exported)
    assert list(store.digests()) == []


HOSTILE = [
    "../evil",
    "/etc/evil",
    "a/../../evil",
    "a//b",
    ".",
    "",
    "..",
    "a\\..\\evil",
    "a\x00b",
    ".ssh/key",
    "a/.b",
    "x" * 500,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name: str, tmp_path: Path) -> None:
    files = {name: {"sha256": "0" * 64, "bytes": 1}, "model.safetensors": {"sha256": "1" * 64, "bytes": 1}}
    text = json.dumps({"files": files, "format": 1}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    place = LocalBlobs(tmp_path / "store")
    place.write(f"models/{digest}.json", [text.encode()], len(text))
    with pytest.raises(StoreError) as caught:
        WeightStore(place).get(digest, tmp_path / "out" / "model")
    assert caught.value.kind == "weights_unsafe_name"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_a_name_that_is_a_folder_and_a_file_is_refused() -> None:
    entry = FileEntry(sha256="0" * 64, size_bytes=1)
    with pytest.raises(StoreError, match="is called 'a'"):
        Manifest(files={"a": entry, "a/b": entry})


@pytest.mark.parametrize(
    "files",
    [
        {"a": 1},
        {"a": {"sha256": "0" * 63, "bytes": 1}},
        {"a": {"sha256": "0" * 64, "bytes": -1}},
        {"a": {"bytes": 1}},
        {},
    ],
)
def test_a_list_of_files_that_is_none(files: Any) -> None:
    with pytest.raises(StoreError):
        Manifest.parse(json.dumps({"format": 1, "files": files}))


def test_links_are_followed_into_the_store_and_files_come_out(tmp_path: Path) -> None:
    """The hub's cache consists of links."""
    folder = model(tmp_path / "model")
    (tmp_path / "blob").write_bytes(b"weights")
    (folder / "model.safetensors").unlink()
    os.symlink(tmp_path / "blob", folder / "model.safetensors")
    store = weights.store(f"file:{tmp_path / 'store'}")
    store.get(store.put(folder).manifest.digest, tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").is_symlink()
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"weights"


def test_an_occupied_folder_is_left_alone(tmp_path: Path) -> None:
    store = weights.store("store", root=tmp_path)
    digest = store.put(model(tmp_path / "model")).manifest.digest
    assert (tmp_path / "store").is_dir()
    before = contents(tmp_path / "model")
    done = store.get(digest, tmp_path / "model")
    assert (done.there, done.moved_bytes, done.reused_bytes) == (True, 0, done.manifest.size_bytes)
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(StoreError, match=r"config\.json differs") as caught:
        store.get(digest, tmp_path / "model")
    assert caught.value.kind == "store_occupied"
    (tmp_path / "model" / "config.json").write_bytes(before["config.json"].replace(b"Toy", b"Joy"))  # of one size
    with pytest.raises(StoreError, match=r"config\.json differs"):
        store.get(digest, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    assert store.get(digest, tmp_path / "empty").moved_bytes == done.manifest.size_bytes
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="it is no folder"):
        store.get(digest, tmp_path / "file")


@pytest.mark.parametrize("reference", ["s3://", "s3:bucket", "s3://Bucket/x", "https://host/x", "gs://bucket", ""])
def test_a_place_that_is_none(reference: str) -> None:
    with pytest.raises(StoreError, match="s3://BUCKET/PREFIX") as caught:
        blobs(reference)
    assert caught.value.kind == "store_not_found"


def test_a_placeholder_is_told_from_the_name_of_a_bucket() -> None:
    with pytest.raises(StoreError) as caught:
        blobs("s3://BUCKET/runs/RUN")
    said = f"{caught.value.message} {caught.value.remedy}"
    assert "is not of the form" not in said
    assert "3 to 63 lower-case letters" in said
    assert "found bucket 'BUCKET'" in said
    assert "your bucket's name in place of BUCKET" in said


@pytest.mark.parametrize("digest", ["", "abc", "../x", "0" * 64])
def test_a_model_that_is_not_there(digest: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        weights.store(str(tmp_path)).get(digest, tmp_path / "out")
    assert caught.value.kind == "weights_missing"


# -- S3 alone


def test_a_bucket_that_is_not_there(s3: Any, tmp_path: Path) -> None:
    from neuronbench.weights.s3 import S3Blobs

    with pytest.raises(StoreError, match="NoSuchBucket") as caught:
        WeightStore(S3Blobs("no-such-bucket", "x", client=s3)).put(model(tmp_path / "model"))
    assert caught.value.kind == "store_not_found"


def test_a_service_that_cannot_be_reached(tmp_path: Path) -> None:
    import boto3
    from botocore.config import Config

    from neuronbench.weights.s3 import S3Blobs

    client = boto3.client(
        "s3", endpoint_url="http://127.0.0.1:9", region_name="us-east-1", aws_access_key_id="i",
        aws_secret_access_key="s", config=Config(retries={"max_attempts": 1}, connect_timeout=2),
    )  # fmt: skip
    with pytest.raises(StoreError) as caught:
        WeightStore(S3Blobs(BUCKET, client=client)).put(model(tmp_path / "model"))
    assert caught.value.kind == "store_unreachable"


def test_a_broken_connection_is_taken_up_where_it_broke(s3: Any, tmp_path: Path) -> None:
    from neuronbench.weights.s3 import S3Blobs

    asked: list[str] = []

    class Torn:
        """A body that breaks after its first piece."""

        def __init__(self, body: Any) -> None:
            self.body = body

        def iter_chunks(self, size: int) -> Iterator[bytes]:
            for number, piece in enumerate(self.body.iter_chunks(1000)):
                if number == 1 and len(asked) < 4:
                    raise ConnectionError("torn")
                yield piece

        def close(self) -> None:
            self.body.close()

    class Client:
        def __getattr__(self, name: str) -> Any:
            return getattr(s3, name)

        def get_object(self, **more: Any) -> Any:
            asked.append(more.get("Range", ""))
            answer = s3.get_object(**more)
            return {**answer, "Body": Torn(answer["Body"])}

    place = S3Blobs(BUCKET, tmp_path.name, client=Client())
    data = os.urandom(4500)
    place.write("blobs/torn", [data], len(data))
    assert b"".join(place.read("blobs/torn")) == data
    assert asked == ["", "bytes=1000-4499", "bytes=2000-4499", "bytes=3000-4499"]


def test_a_service_without_conditional_writes_is_asked_first(s3: Any, tmp_path: Path) -> None:
    from botocore.exceptions import ClientError

    from neuronbench.weights.s3 import S3Blobs

    class Old:
        def __getattr__(self, name: str) -> Any:
            return getattr(s3, name)

        def put_object(self, **more: Any) -> Any:
            if "IfNoneMatch" in more:
                raise ClientError({"Error": {"Code": "NotImplemented"}}, "PutObject")
            return s3.put_object(**more)

    place = S3Blobs(BUCKET, tmp_path.name, client=Old())
    assert place.write("blobs/x", [b"one"], 3)
    assert not place.write("blobs/x", [b"two"], 3)
    assert b"".join(place.read("blobs/x")) == b"one"


def test_s3_by_reference_uses_the_environment(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.meta.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    store = weights.store(f"s3://{BUCKET}/by-reference/")
    digest = store.put(model(tmp_path / "model")).manifest.digest
    assert store.blobs.url == f"s3://{BUCKET}/by-reference"
    assert s3.head_object(Bucket=BUCKET, Key=f"by-reference/models/{digest}.json")["ContentLength"] > 0
    assert list(store.digests()) == [digest]


def test_without_boto3_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(StoreError, match=r"neuronbench\[s3\]") as caught:
        weights.store("s3://bucket/x")
    assert caught.value.kind == "extra_missing"
