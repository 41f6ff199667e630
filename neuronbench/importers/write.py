"""From what was read to receipts: all of it or nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronbench.importers.base import UNKNOWN, Imported, Kind, read, text
from neuronbench.importers.plausible import checked
from neuronbench.importers.safe import LIMIT_RESULTS, ImportFailure, files, read_bytes
from neuronbench.model import (
    Environment,
    FrozenMap,
    Gate,
    Json,
    Outcome,
    Point,
    Provenance,
    Record,
    slug,
)
from neuronbench.receipts import ReceiptStore
from neuronbench.words import counted

PREFIX: Final = "imported-"
TELEMETRY: Final = "telemetry.parquet"
COPY_LIMIT_BYTES: Final = 2 * 1024 * 1024
"""A source file up to this size is kept beside the receipt; of a larger one the digest."""
COPIES_LIMIT_BYTES: Final = 16 * 1024 * 1024
"""A file with so many results that its copies would be larger than this is kept with the first of them only."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """What an import made."""

    session: str
    folder: Path
    records: Sequence[Record]
    existed: bool
    """The very same sources had been imported there before; nothing was written."""


def gather(kind: Kind, path: Path, *, progress: Callable[[str], None] = lambda text: None) -> list[Imported]:
    """Read everything below `path`. One bad file fails it all: a set with a hole is not what was measured.

    Raises `ImportFailure`.
    """
    found: list[Imported] = []
    for index, one in enumerate((kind.files or files)(path, kind.suffixes), start=1):
        progress(f"reading {_printable(one.name)}, file {index}; {counted(len(found), 'result')} before it")
        found += map(checked, read(kind, one))
        if len(found) > LIMIT_RESULTS:
            raise ImportFailure(f"{path}: more than {LIMIT_RESULTS:,} results; import a part of it")
    if not found:
        raise ImportFailure(f"{path}: holds no result of {kind.title}")
    return found if kind.finish is None else list(kind.finish(found))


def store(
    kind: Kind,
    path: Path,
    found: Sequence[Imported],
    root: Path,
    *,
    backend: str | None = None,
    params: Mapping[str, Json] | None = None,
) -> Import:
    """Write the receipts of `found` into a session of their own below `root`, by one rename.

    The session's name comes from the content of the sources: importing them again gives the same one and writes
    nothing. `backend` and `params` say what the sources do not, and may not contradict them. Raises `ImportFailure`.
    """
    for item in found:
        _no_contradiction(item, backend, params or {})
    digests = {
        one: _digest(one) for one in dict.fromkeys(path for item in found for path in (item.source, *item.beside))
    }
    told = f"{kind.name}|{backend}|{sorted((params or {}).items())}"
    identity = hashlib.sha256("\n".join([told, *digests.values()]).encode()).hexdigest()[:10]
    session = f"{PREFIX}{kind.name}-{identity}"
    records = [_record(kind, item, session, digests, backend, params or {}, path) for item in found]
    _distinct(records)
    target = root / session
    if target.is_dir():
        return Import(session=session, folder=target, records=records, existed=True)
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".importing-", dir=root))
    try:
        receipts = ReceiptStore(scratch)
        uses, kept = Counter(item.source for item in found), set[Path]()
        for item, record in zip(found, records, strict=True):
            staging = receipts.open(record)
            for name, one in _copies(item, uses, kept):
                # The content, through the same checks as before: what was named may be a link, and stay one.
                (staging.folder / name).write_bytes(read_bytes(one, COPY_LIMIT_BYTES))
                record.attachments.append(name)
            if item.telemetry is not None:
                item.telemetry.write(staging.folder / TELEMETRY)
                record.tables["telemetry"] = TELEMETRY
            tried = Outcome.OK if item.error is None else Outcome.FAILED
            outcome = Outcome.SKIPPED if item.not_run else tried
            record.close(outcome, ended_at=item.measured_at, duration_s=None)
            receipts.commit(record, staging)
        os.rename(scratch / session, target)
    except OSError as error:
        if target.is_dir():  # another import of the same was faster
            return Import(session=session, folder=target, records=records, existed=True)
        raise ImportFailure(f"{root}: receipts cannot be written: {error.strerror}; name another --out") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Import(session=session, folder=target, records=records, existed=False)


def _no_contradiction(item: Imported, backend: str | None, params: Mapping[str, Json]) -> None:
    """What the source says stands: a number under another name than its own would be nobody's."""
    if backend and item.backend not in (UNKNOWN, backend):
        raise ImportFailure(f"{item.source}: {item.name} is of {item.backend}, not of {backend}: leave --backend out")
    for name, value in params.items():
        if name in item.params and item.params[name] != value:
            raise ImportFailure(
                f"{item.source}: {item.name} says {name}={item.params[name]}, not {value}: leave --set {name} out "
                f"(neuronbench compare --allow params.{name} compares in spite of it)"
            )


def _copies(item: Imported, uses: Mapping[Path, int], kept: set[Path]) -> list[tuple[str, Path]]:
    """Name in the receipt → file, of those that are small enough to be kept; `kept` are those that have been once."""
    named = [(f"source{item.source.suffix.lower()}", item.source)]
    named += [(f"beside-{index}{one.suffix.lower()}", one) for index, one in enumerate(item.beside, start=1)]
    chosen = []
    for name, one in named:
        size = one.stat().st_size
        if size <= COPY_LIMIT_BYTES and (one not in kept or size * uses.get(one, 1) <= COPIES_LIMIT_BYTES):
            chosen.append((name, one))
            kept.add(one)
    return chosen


def _record(
    kind: Kind,
    item: Imported,
    session: str,
    digests: Mapping[Path, str],
    backend: str | None,
    params: Mapping[str, Json],
    top: Path,
) -> Record:
    record = Record(
        session=session,
        kind=item.record,
        point=Point(
            benchmark=f"imported/{kind.name}",
            lane=item.lane,
            backend=backend or item.backend,
            params=FrozenMap({**item.params, **params}),
            axes=tuple(item.params),
            id=slug(f"{kind.name}.{item.name}"),
        ),
        provenance=Provenance.IMPORTED,
        environment=Environment(facts=FrozenMap(item.facts)),
        error=item.error,
        reason=item.not_run,
        started_at=item.measured_at,
    )
    record.add(*item.metrics)
    record.gate(
        Gate(
            id="imported",
            passed=None,
            severity="info",
            message=f"measured by {kind.title}; what it added to its numbers is not known here",
        ),
        *item.gates,
    )
    base = top if top.is_dir() else top.parent
    record.workload["source"] = {
        "kind": kind.name,
        "file": _printable(item.source.relative_to(base).as_posix()),
        "sha256": digests[item.source],
        "own_figures": dict(item.own),
    }
    if item.beside:
        record.workload["source"]["beside"] = {one.relative_to(base).as_posix(): digests[one] for one in item.beside}
    record.notes += list(item.notes)
    return record


def _printable(name: str) -> str:
    """A file's name as text: bytes that are no UTF-8 as escapes, so that it can be printed and be in JSON."""
    return text(name.encode("utf-8", "backslashreplace").decode(), limit=1_000)


def _distinct(records: Sequence[Record]) -> None:
    """Give results of one name their numbers, as repeats of one point where the parameters agree."""
    seen: dict[str, int] = {}
    for record in records:
        seen[record.point.id] = seen.get(record.point.id, 0) + 1
        record.repeat = seen[record.point.id]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
