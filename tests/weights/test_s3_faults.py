"""S3 that breaks: uploads and downloads go on where they stopped, what is wrong is found, nobody destroys another's."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from s3_stand_in import BUCKET, PART, StandIn, running

from neuronbench import cli
from neuronbench.weights import FileEntry, Manifest, StoreError, WeightStore
from neuronbench.weights.meter import Meter
from neuronbench.weights.s3 import S3Blobs, _connect
from neuronbench.weights.s3_upload import Part, _same, composite_of

PARTS = 11
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    pytest.importorskip("moto", reason="moto is not installed; `make harness` installs it")
    with running() as found:
        yield found


@pytest.fixture
def s3(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in without faults; what this process and its children do goes there."""
    for name, value in {
        "AWS_ENDPOINT_URL_S3": server.url, "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1", "NEURONBENCH_S3_PART_BYTES": str(PART), "AWS_MAX_ATTEMPTS": "3",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr("neuronbench.weights.s3_reading._PAUSE_S", 0.001)
    monkeypatch.setattr("botocore.retryhandler.delay_exponential", lambda *words, **more: 0.01)
    server.clear()
    yield server
    server.clear()


@pytest.fixture
def place(s3: StandIn, tmp_path: Path) -> S3Blobs:
    return blobs(s3, tmp_path)


def blobs(s3: StandIn, tmp_path: Path) -> S3Blobs:
    """Of a test's own prefix; making a client takes long."""
    if s3.client is None:
        s3.client = _connect("s3://of-tests", 8)
    return S3Blobs(BUCKET, tmp_path.name, client=s3.client, part_bytes=PART)


def model(folder: Path, parts: int = PARTS) -> Path:
    """A model whose weights have so many parts, no two of them equal, the last one short."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    state = b"".join(hashlib.sha256(f"{folder.name} {number}".encode()).digest() for number in range(parts))
    body = b"".join(state[32 * number : 32 * number + 32] * (PART // 32) for number in range(parts))
    (folder / "model.safetensors").write_bytes(body[: -PART // 2])
    return folder


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.01)


def open_uploads(place: S3Blobs) -> list[Any]:
    return list(place.uploads())


def run(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> tuple[int, str, str]:
    status = cli.main(["--root", str(root), "weights", *words])
    said = capsys.readouterr()
    return status, said.out, said.err


# -- up


def test_an_upload_whose_process_is_killed_goes_on_in_another_with_the_parts_that_are_missing(
    s3: StandIn, place: S3Blobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path / "model")
    hanging = s3.fault("hang", "UploadPart", times=99, meets=lambda call: call.part > 6)
    process = subprocess.Popen(
        [sys.executable, "-c",
         "import sys; from pathlib import Path; from neuronbench import weights\n"
         "weights.store(sys.argv[1]).put(Path(sys.argv[2]))", place.url, str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: len(s3.parts()) == 6 and hanging.met.is_set())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (left,) = open_uploads(place)
    assert left.size_bytes == 6 * PART
    with s3.lock:
        s3.faults.clear()  # what hangs goes on hanging: it is of a process that is gone
        s3.done.clear()
    status, out, err = run(capsys, tmp_path, "put", str(folder), "--store", place.url, "--json")
    assert status == 0, err
    told = json.loads(out)
    assert sorted(s3.parts()) == list(range(7, PARTS + 1))
    assert (s3.count("CreateMultipartUpload"), s3.count("CompleteMultipartUpload")) == (0, 1)
    assert told["resumed_bytes"] == 6 * PART
    assert told["checksum_bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert told["read_back_bytes"] == 0
    assert open_uploads(place) == []
    WeightStore(place).verify(told["digest"])


def test_a_connection_that_breaks_in_the_middle_of_a_part_costs_that_part(
    s3: StandIn, place: S3Blobs, tmp_path: Path
) -> None:
    s3.fault("cut", "UploadPart", times=2)
    done = WeightStore(place).put(model(tmp_path / "model"))
    assert sorted(s3.parts()) == list(range(1, PARTS + 1))
    assert done.retries == 2
    assert done.checksum_bytes == done.manifest.size_bytes


def test_what_has_arrived_is_kept_when_the_network_stays_away(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    s3.fault("cut", "UploadPart", times=99, meets=lambda call: call.part == PARTS)
    with pytest.raises(StoreError, match="have arrived and are kept") as caught:
        WeightStore(place).put(folder)
    assert caught.value.kind == "store_unreachable"
    assert "goes on where it stopped" in caught.value.remedy
    arrived = set(s3.parts())
    s3.clear()
    done = WeightStore(place).put(folder)
    assert set(s3.parts()) == set(range(1, PARTS + 1)) - arrived
    assert done.resumed_bytes == len(arrived) * PART


def test_throttling_is_waited_out_and_in_the_end_named(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    s3.fault("503 SlowDown", "UploadPart", times=2)
    s3.fault("503 SlowDown", "PutObject", times=1)
    done = WeightStore(place).put(model(tmp_path / "model"))
    assert done.retries == 3
    s3.fault("503 SlowDown", "UploadPart", times=99)
    with pytest.raises(StoreError, match="SlowDown") as caught:
        WeightStore(place).put(model(tmp_path / "other"))
    assert caught.value.kind == "store_throttled"


def test_a_writer_of_the_same_object_that_is_in_the_way_is_waited_for(
    s3: StandIn, place: S3Blobs, tmp_path: Path
) -> None:
    s3.fault("409 ConditionalRequestConflict", "PutObject", times=2)
    s3.fault("409 ConditionalRequestConflict", "CompleteMultipartUpload")
    done = WeightStore(place).put(model(tmp_path / "model"))
    assert open_uploads(place) == []
    WeightStore(place).verify(done.manifest.digest)


def test_what_is_changed_on_its_way_up_is_refused_and_sent_again(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    s3.fault("corrupt", "UploadPart", times=2)
    s3.fault("corrupt", "PutObject", meets=lambda call: "/blobs/" in call.key)
    done = WeightStore(place).put(model(tmp_path / "model"))
    assert done.retries == 3
    WeightStore(place).verify(done.manifest.digest)
    s3.fault("corrupt", "UploadPart", times=99)
    folder = model(tmp_path / "other")
    with pytest.raises(StoreError, match="BadDigest") as caught:
        WeightStore(place).put(folder)
    assert caught.value.kind == "weights_mismatch"
    with pytest.raises(StoreError, match="has no model"):
        WeightStore(place).get(Manifest.of(folder).digest, tmp_path / "out")


def test_two_who_send_one_model_at_once_share_an_upload_and_both_succeed(
    s3: StandIn, place: S3Blobs, tmp_path: Path
) -> None:
    folder = model(tmp_path / "model")
    hanging = s3.fault("hang", "UploadPart", meets=lambda call: call.part == 3)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(WeightStore(place).put, folder)
        assert hanging.met.wait(DEADLINE_S)
        second = WeightStore(blobs(s3, tmp_path)).put(folder)  # ends while the first hangs
        hanging.go_on.set()
        done = first.result(DEADLINE_S)
    assert s3.count("CreateMultipartUpload") == 1
    assert second.manifest == done.manifest
    assert second.moved_bytes + done.moved_bytes >= PARTS * PART - PART // 2
    assert open_uploads(place) == []
    WeightStore(place).verify(done.manifest.digest)


def weights_of(folder: Path) -> tuple[str, Path, FileEntry]:
    entry = Manifest.of(folder).files["model.safetensors"]
    return f"blobs/{entry.sha256[:2]}/{entry.sha256}", folder / "model.safetensors", entry


def test_parts_of_other_contents_under_the_key_are_replaced(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    key, path, entry = weights_of(model(tmp_path / "model"))
    target = {"Bucket": BUCKET, "Key": place.prefix + key}
    upload = place._client.create_multipart_upload(**target, ChecksumAlgorithm="SHA256")["UploadId"]
    right = path.read_bytes()[PART : 2 * PART]
    for number, body in ((1, b"x" * PART), (2, right), (3, b"too short")):
        place._client.upload_part(**target, UploadId=upload, PartNumber=number, Body=body)
    s3.clear()
    sent = place.write_file(key, path, entry, Meter(None, entry.size_bytes))
    assert sorted(s3.parts()) == [1, *range(3, PARTS + 1)]
    assert sent.resumed_bytes == PART
    assert b"".join(place.read(key)) == path.read_bytes()


def test_an_upload_that_somebody_gives_up_meanwhile_is_begun_anew(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    key, path, entry = weights_of(model(tmp_path / "model"))
    hanging = s3.fault("hang", "UploadPart", meets=lambda call: call.part == 2)
    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(place.write_file, key, path, entry, Meter(None, entry.size_bytes))
        assert hanging.met.wait(DEADLINE_S)
        (upload,) = open_uploads(place)
        place.abort(upload)
        place.abort(upload)  # twice is no error
        hanging.go_on.set()
        sent = coming.result(DEADLINE_S)
    assert not sent.there
    assert b"".join(place.read(key)) == path.read_bytes()


def test_without_the_right_to_look_an_upload_begins_anew(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    s3.fault("403 AccessDenied", "ListMultipartUploads", times=9)
    done = WeightStore(place).put(model(tmp_path / "model"))
    assert done.moved_bytes == done.manifest.size_bytes


def test_a_file_that_changes_while_it_is_sent_in_parts_leaves_nothing(
    s3: StandIn, place: S3Blobs, tmp_path: Path
) -> None:
    key, path, entry = weights_of(model(tmp_path / "model"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="changed while it was stored") as caught:
        place.write_file(key, path, entry, Meter(None, entry.size_bytes))
    assert (caught.value.expected, caught.value.found) == (entry.sha256, hashlib.sha256(data).hexdigest())
    assert open_uploads(place) == []
    assert place.size(key) is None


def test_what_the_service_has_hashed_need_not_be_read_back(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    first = WeightStore(place).put(folder)
    again = WeightStore(place).put(folder)
    assert (again.there, again.moved_bytes, again.checksum_bytes) == (True, 0, first.manifest.size_bytes)
    reads = [call for call in s3.done if call.operation == "GetObject" and "/blobs/" in call.key]
    assert reads == []
    full = WeightStore(place).put(folder, verify="full")
    assert (full.checksum_bytes, full.read_back_bytes) == (0, first.manifest.size_bytes)
    key, path, entry = weights_of(folder)
    wrong = FileEntry(sha256="0" * 64, size_bytes=entry.size_bytes)
    path.write_bytes(b"x" * entry.size_bytes)
    assert place.checked(key, path, entry) is False  # another file: the hash over its parts differs
    assert place.checked("config.json", path, wrong) is False


def test_a_part_is_known_by_its_hash_where_its_tag_is_none(tmp_path: Path) -> None:
    data, sha256 = b"part", "abc="
    assert _same(Part(size_bytes=4, tag='"not-an-md5"', sha256=sha256), data, sha256)
    assert not _same(Part(size_bytes=4, tag='"not-an-md5"', sha256="other"), data, sha256)
    assert not _same(Part(size_bytes=4, tag='"not-an-md5"', sha256=""), data, sha256)
    assert _same(Part(size_bytes=4, tag=f'"{hashlib.md5(data).hexdigest()}"', sha256=""), data, sha256)
    (tmp_path / "f").write_bytes(b"ab")
    assert composite_of(tmp_path / "f", 1).endswith("-2")


def test_unfinished_uploads_are_shown_and_given_up(
    s3: StandIn, place: S3Blobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.fault("403 AccessDenied", "UploadPart", times=99, meets=lambda call: call.part == PARTS)
    status, _, err = run(capsys, tmp_path, "put", str(model(tmp_path / "model")), "--store", place.url)
    assert status == 1
    assert "Allow s3:PutObject on s3://" in err
    young = ["uploads", "--store", place.url, "--abort", "--older-than", "9999w", "--json"]
    (told,) = json.loads(run(capsys, tmp_path, *young)[1])
    assert told["bytes"] > 0
    assert (told["there_whole"], told["aborted"]) == (False, False)
    assert "1 unfinished, 1 given up" in run(capsys, tmp_path, "uploads", "--store", place.url, "--abort")[1]
    assert open_uploads(place) == []


# -- down


def kept(tmp_path: Path, name: str = "out") -> list[Path]:
    return list(tmp_path.glob(f".{name}.*.partial"))


def test_a_download_whose_process_is_killed_goes_on_in_another(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    put = WeightStore(place).put(model(tmp_path / "model"))
    digest = put.manifest.digest
    hanging = s3.fault("hang", "GetObject", times=99, meets=lambda call: call.range.startswith(f"bytes={6 * PART}-"))
    process = subprocess.Popen(
        [sys.executable, "-c",
         "import sys; from pathlib import Path; from neuronbench import weights\n"
         "weights.store(sys.argv[1]).get(sys.argv[2], Path(sys.argv[3]))", place.url, digest, str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def arrived() -> bool:
        found = [path / "model.safetensors" for path in kept(tmp_path)]
        return bool(found) and found[0].exists() and found[0].stat().st_size > PART and hanging.met.is_set()

    try:
        until(arrived)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "out").exists()
    with s3.lock:
        s3.faults.clear()
    got = WeightStore(place).get(digest, tmp_path / "out")
    assert got.resumed_bytes > PART
    assert got.moved_bytes + got.resumed_bytes == put.manifest.size_bytes
    assert Manifest.of(tmp_path / "out") == put.manifest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_streams_that_end_early_are_taken_up_where_they_ended(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    put = WeightStore(place).put(model(tmp_path / "model"))
    key, _, _ = weights_of(tmp_path / "model")
    s3.fault("truncate", "GetObject", times=4, meets=lambda call: call.key.endswith(key))
    got = WeightStore(place).get(put.manifest.digest, tmp_path / "out")
    assert got.moved_bytes == put.manifest.size_bytes
    assert Manifest.of(tmp_path / "out") == put.manifest


def test_what_is_changed_on_its_way_down_is_named_by_both_hashes(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    put = WeightStore(place).put(model(tmp_path / "model"))
    entry = put.manifest.files["model.safetensors"]
    s3.fault("corrupt", "GetObject", meets=lambda call: call.range.startswith(f"bytes={3 * PART}-"))
    with pytest.raises(StoreError, match="was changed") as caught:
        WeightStore(place).get(put.manifest.digest, tmp_path / "out")
    assert caught.value.expected == entry.sha256
    assert caught.value.found not in ("", entry.sha256)
    assert caught.value.found in caught.value.message
    (partial,) = kept(tmp_path)
    assert [path.name for path in partial.iterdir()] == ["config.json"]
    got = WeightStore(place).get(put.manifest.digest, tmp_path / "out")
    assert got.moved_bytes == entry.size_bytes


def test_what_an_earlier_try_left_and_is_wrong_is_fetched_anew(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    """A host that lost its power may have kept a file's length and not its contents."""
    put = WeightStore(place).put(model(tmp_path / "model"))
    partial = tmp_path / f".out.{put.manifest.digest[:16]}.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(bytes(5 * PART))
    (partial / "config.json").symlink_to(tmp_path / "elsewhere")
    (partial / "stranger").write_text("of somebody else")
    got = WeightStore(place).get(put.manifest.digest, tmp_path / "out")
    assert got.resumed_bytes == 0
    assert Manifest.of(tmp_path / "out") == put.manifest
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_becomes_full_keeps_what_has_arrived(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    put = WeightStore(place).put(model(tmp_path / "model"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * PART, hard))
    try:
        with pytest.raises(StoreError, match=r"is full: .* have arrived when model\.safetensors") as caught:
            WeightStore(place).get(put.manifest.digest, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.kind == "disk_full"
    (partial,) = kept(tmp_path)
    assert str(partial) in caught.value.message
    got = WeightStore(place).get(put.manifest.digest, tmp_path / "out")
    assert got.resumed_bytes == 8 * PART + 2
    assert Manifest.of(tmp_path / "out") == put.manifest


def test_of_two_who_get_one_folder_one_waits(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    put = WeightStore(place).put(model(tmp_path / "model"))
    hanging = s3.fault("hang", "GetObject", meets=lambda call: bool(call.range))
    waiting = threading.Event()

    def said(text: str) -> None:
        if text.startswith("waiting for another process"):
            waiting.set()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(WeightStore(place).get, put.manifest.digest, tmp_path / "out")
        assert hanging.met.wait(DEADLINE_S)
        second = threads.submit(
            WeightStore(blobs(s3, tmp_path)).get, put.manifest.digest, tmp_path / "out", progress=said
        )
        assert waiting.wait(DEADLINE_S)
        hanging.go_on.set()
        assert first.result(DEADLINE_S).moved_bytes == put.manifest.size_bytes
        done = second.result(DEADLINE_S)
    assert (done.there, done.moved_bytes) == (True, 0)


def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed(s3: StandIn, place: S3Blobs, tmp_path: Path) -> None:
    key, path, entry = weights_of(model(tmp_path / "model"))
    place.write_file(key, path, entry, Meter(None, entry.size_bytes))
    hanging = s3.fault("hang", "GetObject", meets=lambda call: bool(call.range))
    pieces = place.read(key)
    next(pieces)
    assert hanging.met.wait(DEADLINE_S)
    place._client.put_object(Bucket=BUCKET, Key=place.prefix + key, Body=b"y" * entry.size_bytes)
    hanging.go_on.set()
    with pytest.raises(StoreError, match="PreconditionFailed"):
        list(pieces)
