"""A receipt's files as artifacts of its run: for the eye, and so that `pull` can make the same receipt of them again.

`files.json` names every file of the receipt with its digest and the artifacts it is in. What people open stands under
its own name: the record, tables, logs (of long ones the end). What those do not hold whole is below `receipt/`:
logs are compressed, large files come in parts, because uploads of larger ones through a server time out.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.receipts import Receipt, ReceiptError
from neuronbench.receipts.files import to_text
from neuronbench.report import figures, training
from neuronbench.report.requests import COLUMNS
from neuronbench.sinks.contents import FileFact, RestoreError, check_path, contents
from neuronbench.sinks.mlflow import notes, traces

if TYPE_CHECKING:
    import pyarrow
    from mlflow import MlflowClient

FILES: Final = "files.json"
WHOLE: Final = "receipt"
PACKED: Final = ".gzip"
"""Not `.gz`: what is called so is unpacked on its way through a server."""
PART_BYTES: Final = 64 * 1024 * 1024
LIMIT_BYTES: Final = 1024 * 1024 * 1024
"""Larger files stay in the receipt."""
TAIL_BYTES: Final = 64 * 1024
_LOGS: Final = (".log", ".txt", ".out", ".err", ".stdout", ".stderr")


@dataclass(frozen=True, kw_only=True)
class Stowed:
    """A file of a receipt and where it is among a run's artifacts."""

    path: str
    fact: FileFact
    at: tuple[str, ...] = ()
    """Artifacts whose bytes, one after the other, are the file's; none when it was too large to be sent."""
    gzip: bool = False
    shown: str = ""
    """The artifact that shows it, or the end of it; empty when none does."""

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path, "bytes": self.fact.bytes, "sha256": self.fact.sha256,
            "artifacts": list(self.at), "gzip": self.gzip,
        }  # fmt: skip


def plan(receipt: Receipt) -> list[Stowed]:
    """Every file of the receipt and the artifacts it becomes."""
    record, taken = receipt.record, set[str]()
    shown = {"record.json": "record.json", **{file: file for file in record.tables.values()}}
    taken.update(shown.values())
    for file in record.attachments:
        name = _free(f"logs/{Path(file).name}", taken)
        taken.add(name)
        shown[file] = name
    return [_stow(path, fact, shown.get(path, ""), taken) for path, fact in contents(receipt.path).items()]


def _stow(path: str, fact: FileFact, shown: str, taken: set[str]) -> Stowed:
    if fact.bytes > LIMIT_BYTES:
        return Stowed(path=path, fact=fact)
    if Path(path).suffix.lower() in _LOGS and fact.bytes > TAIL_BYTES:
        tail = _free(f"{shown}.tail.txt", taken) if shown else ""
        return Stowed(path=path, fact=fact, at=(f"{WHOLE}/{path}{PACKED}",), gzip=True, shown=tail)
    if fact.bytes > PART_BYTES:
        count = -(-fact.bytes // PART_BYTES)
        return Stowed(path=path, fact=fact, at=tuple(f"{WHOLE}/{path}.part-{n:03d}" for n in range(count)))
    if shown:
        return Stowed(path=path, fact=fact, at=(shown,), shown=shown)
    return Stowed(path=path, fact=fact, at=(f"{WHOLE}/{path}",))


def _free(name: str, taken: set[str]) -> str:
    path, number, free = Path(name), 2, name
    while free in taken:
        free, number = path.with_name(f"{path.stem}-{number}{path.suffix}").as_posix(), number + 1
    return free


def files_text(receipt: Receipt, stowed: list[Stowed]) -> str:
    """`files.json`."""
    return to_text({"schema": 1, "receipt": receipt.id, "files": [each.to_json() for each in stowed]})


def digest(receipt: Receipt, stowed: list[Stowed]) -> str:
    """SHA-256 of `files.json`, and so of all that the receipt consists of."""
    return hashlib.sha256(files_text(receipt, stowed).encode()).hexdigest()


def read_files(text: bytes, run: str) -> list[Stowed]:
    """`files.json` of a run; raises `RestoreError` for another form."""
    try:
        document = json.loads(text)
        if document["schema"] != 1:
            raise ValueError(f"schema {document['schema']!r}, this neuronbench reads 1")
        return [
            Stowed(
                path=check_path(each["path"]),
                fact=FileFact(sha256=str(each["sha256"]), bytes=int(each["bytes"])),
                at=tuple(check_path(artifact) for artifact in each["artifacts"]),
                gzip=bool(each["gzip"]),
            )
            for each in document["files"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise RestoreError(f"run {run}: {FILES} cannot be read: {type(error).__name__}: {error}") from error


def same_record(client: MlflowClient, run_id: str, stowed: list[Stowed]) -> bool:
    """Whether a run was made of a receipt with the same record, going by its `files.json`."""
    with tempfile.TemporaryDirectory(prefix="nb-mlflow-") as scratch:
        text = Path(client.download_artifacts(run_id, FILES, scratch)).read_bytes()
    theirs = {each.path: each.fact for each in read_files(text, run_id)}
    mine = {each.path: each.fact for each in stowed}
    return theirs.get("record.json") == mine.get("record.json")


# --------------------------------------------------------------------------------------------------------------------
# sending


def requests_table(receipt: Receipt) -> tuple[Any, str]:
    """The table of requests, or None and what is wrong with it."""
    if "requests" not in receipt.record.tables:
        return None, ""
    try:
        return receipt.table("requests", columns=[*COLUMNS, *traces.DETAILS]), ""
    except ReceiptError as error:
        return None, str(error)


def send(
    place: Any,
    receipt: Receipt,
    stowed: list[Stowed],
    table: pyarrow.Table | None,
    steps: Mapping[int, pyarrow.Table],
    scratch: Path,
) -> list[str]:
    """Send a receipt's files, its error as text and its figures; returns what could not be shown.

    `place` is the run's `ArtifactRepository` of MLflow.
    """
    small = scratch / "small"
    small.mkdir()
    problems = _stage(receipt, stowed, small)
    problems += _draw(receipt, table, steps, small / "figures")
    for each in stowed:
        for artifact in _parts(receipt.path / each.path, each, scratch / "large"):
            place.log_artifact(str(artifact), str(Path(each.at[0]).parent))
            artifact.unlink()
    (small / FILES).rename(scratch / FILES)
    place.log_artifacts(str(small))
    place.log_artifact(str(scratch / FILES))  # the last: when it is there, all of it is
    return problems


def _stage(receipt: Receipt, stowed: list[Stowed], small: Path) -> list[str]:
    """Lay out what goes in one piece."""
    record = receipt.record
    there = {each.path for each in stowed}
    problems = [f"{file} is not in the receipt" for file in (*record.tables.values(), *record.attachments)
                if file not in there]  # fmt: skip
    (small / FILES).write_text(files_text(receipt, stowed), encoding="utf-8")
    for each in stowed:
        source = receipt.path / each.path
        if not each.at:
            problems.append(f"{each.path} ({each.fact.bytes >> 20} MiB) is in the receipt only")
        elif each.gzip:
            with source.open("rb") as plain, gzip.GzipFile(_place(small, each.at[0]), "wb", mtime=0) as packed:
                shutil.copyfileobj(plain, packed)
            if each.shown:
                _tail(source, _place(small, each.shown))
        elif len(each.at) == 1:
            _place(small, each.at[0]).symlink_to(source)
    if record.error is not None:
        text = notes.error_text(record.error)
        (small / "error.txt").write_text(text, encoding="utf-8", errors="replace")
    return problems


def _draw(receipt: Receipt, table: pyarrow.Table | None, steps: Mapping[int, pyarrow.Table], folder: Path) -> list[str]:
    try:
        drawn = {} if table is None else figures.figures_for(receipt.record, table)
        drawn |= training.figures_for(receipt.record, steps) if steps else {}
        for stem, figure in drawn.items():
            folder.mkdir(exist_ok=True)
            figures.save(figure, folder / f"{stem}.png")
    except Exception as error:  # a figure is never worth a run
        return [f"figures: {type(error).__name__}: {error}"]
    return []


def _parts(source: Path, stowed: Stowed, scratch: Path) -> Iterator[Path]:
    """The parts of a large file, one at a time: no more than one is on disk."""
    if len(stowed.at) < 2:
        return
    scratch.mkdir(exist_ok=True)
    with source.open("rb") as stream:
        for artifact in stowed.at:
            part = scratch / Path(artifact).name
            with part.open("wb") as out:
                left = PART_BYTES
                while left and (chunk := stream.read(min(left, 1 << 20))):
                    out.write(chunk)
                    left -= len(chunk)
            yield part


def _place(folder: Path, path: str) -> Path:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _tail(path: Path, target: Path) -> None:
    with path.open("rb") as source, target.open("wb") as out:
        source.seek(-TAIL_BYTES, 2)
        source.readline()  # to the start of a line
        shutil.copyfileobj(source, out)


# --------------------------------------------------------------------------------------------------------------------
# fetching


def fetch(client: MlflowClient, run_id: str, stowed: list[Stowed], folder: Path, scratch: Path) -> None:
    """Make the files of a receipt in `folder` from the artifacts of its run."""
    for each in stowed:
        target = _place(folder, each.path)
        with target.open("wb") as out:
            for artifact in each.at:
                part = Path(client.download_artifacts(run_id, artifact, str(scratch)))
                try:
                    with gzip.open(part) if each.gzip else part.open("rb") as source:
                        shutil.copyfileobj(source, out)
                except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                    raise RestoreError(f"run {run_id}: {artifact} is damaged: {error}; push it again") from error
                part.unlink()
