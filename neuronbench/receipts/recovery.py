"""What a killed run left open becomes receipts: the outcome is `interrupted`, and nothing that was there is lost."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from neuronbench.model import Failure, Outcome, Record
from neuronbench.receipts.codec import decode_record
from neuronbench.receipts.documents import Document, Fields, ReceiptError, parse
from neuronbench.receipts.files import locked, to_text, write_atomic
from neuronbench.receipts.owner import may_be_alive
from neuronbench.receipts.receipt import RECORD, Receipt
from neuronbench.receipts.store import OPEN, OPEN_PREFIX, OnError, ReceiptStore


def recover(root: Path, *, on_error: OnError | None = None) -> list[Receipt]:
    """Turn every staging whose process is dead into a receipt; returns those receipts.

    A staging whose process lives, or ran on another host, is left alone. One whose trace cannot be read is reported
    to `on_error` (raised without it) and left where it is. Several processes may recover at once.
    """
    store = ReceiptStore(root)
    recovered: list[Receipt] = []
    found = [
        Path(entry.path)
        for session in store.sessions()
        for entry in os.scandir(store.root / session)
        if entry.name.startswith(OPEN_PREFIX) and entry.is_dir()
    ]
    if not found:
        return []
    with locked(store.root / ".recover.lock", timeout_s=30.0, purpose="recovering receipts"):
        for folder in sorted(found):
            try:
                receipt = _recover_one(store, folder)
            except ReceiptError as error:
                if on_error is None:
                    raise
                on_error(error)
                continue
            if receipt is not None:
                recovered.append(receipt)
    return recovered


def _recover_one(store: ReceiptStore, folder: Path) -> Receipt | None:
    if not folder.is_dir():
        return None  # another process recovered or committed it meanwhile
    path = folder / OPEN
    if not path.is_file():
        if _killed_at_birth(folder):
            shutil.rmtree(folder)
        return None
    trace = parse(path)
    if may_be_alive(Fields(path, trace).mapping("owner")):
        return None
    whole = folder / RECORD
    if whole.is_file():  # killed between the record's last byte and the rename: the measurement had ended
        record = decode_record(parse(whole), whole)
    else:
        record = _interrupted(folder, path, trace)
        write_atomic(whole, to_text(record.to_json()))
    return store.read(store._publish(folder, record))


def _killed_at_birth(folder: Path) -> bool:
    """Whether the process died between making the folder and leaving its trace: there is nothing in it since long."""
    age_s = datetime.now(UTC).timestamp() - folder.stat().st_mtime
    return age_s > 60 and all(item.name.endswith(".tmp") for item in folder.iterdir())


def _interrupted(folder: Path, path: Path, trace: Document) -> Record:
    f = Fields(path, trace)
    record = decode_record(f.mapping("record"), path)
    if record.closed:
        raise ReceiptError(f"{path}: record.outcome: expected null in the trace of an open record")
    owner = f.at("owner")
    files = {
        item.relative_to(folder).as_posix(): item
        for item in sorted(folder.rglob("*"))
        if item.is_file() and item != path and not item.name.endswith(".tmp")
    }
    kept = {name: file for name, file in record.tables.items() if file in files and _is_parquet(files[file])}
    for file, item in files.items():
        if file not in kept.values() and "/" not in file and item.suffix == ".parquet" and _is_parquet(item):
            kept[item.stem] = file
    lost = sorted(set(record.tables.values()) - set(kept.values()))
    lost += [file for file in files if file.endswith(".parquet") and file not in kept.values() and file not in lost]
    record.tables = kept
    record.attachments = [file for file in files if file not in kept.values()]
    record.notes.append("the harness was killed while this was measured; what it had written until then is kept")
    if lost:
        record.notes.append(f"not readable as tables, because their writing was cut short: {', '.join(sorted(lost))}")
    record.error = record.error or Failure(
        kind="harness_killed",
        phase=f.text("phase", "window"),
        message=f"the harness (pid {owner.whole('pid')} on {owner.text('host')}) ended without closing this record",
        cause="it was killed, ran out of memory, or the machine went down",
        remedy="measure again with --nb-resume: finished points are not repeated",
    )
    last = max((item.stat().st_mtime for item in (path, *files.values())), default=path.stat().st_mtime)
    ended_at = datetime.fromtimestamp(last, UTC).isoformat(timespec="microseconds")
    record.close(Outcome.INTERRUPTED, ended_at=ended_at, duration_s=None)
    return record


def _is_parquet(path: Path) -> bool:
    """Whether the file has both of Parquet's marks: the closing one is written last."""
    with path.open("rb") as stream:
        if stream.read(4) != b"PAR1" or path.stat().st_size < 12:
            return False
        stream.seek(-4, os.SEEK_END)
        return stream.read(4) == b"PAR1"
