"""What a parent run holds of its session: how it ended, its manifest, and the receipts that have no run."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from neuronbench.model import Outcome, Record
from neuronbench.receipts import Receipt
from neuronbench.receipts.files import to_text
from neuronbench.receipts.sessions import MANIFEST
from neuronbench.sinks.contents import FileFact, RestoreError, contents
from neuronbench.sinks.mlflow import mapping

UNMEASURED: Final = "unmeasured.json.gzip"
"""Receipts of points that were skipped or taken from an earlier session: hundreds may be, and none is worth a run."""
_FAILED: Final = frozenset({Outcome.FAILED, Outcome.ERROR, Outcome.TIMEOUT})
_PYTEST_INTERRUPTED: Final = 2


def status(records: Iterable[Record], *, ended: bool, exit_status: int | None) -> str:
    """Status of the parent run: `KILLED` when the session did not come to its end, `FAILED` when something in it did.

    What is invalid was measured, and is marked as such; what was expected to fail has failed as expected.
    """
    outcomes = {record.outcome for record in records}
    if not ended or Outcome.INTERRUPTED in outcomes or exit_status == _PYTEST_INTERRUPTED:
        return "KILLED"
    return "FAILED" if outcomes & _FAILED else "FINISHED"


def stage(folder: Path, receipts: Sequence[Receipt], scratch: Path) -> None:
    """Put the manifest of the session in `folder`, and its receipts without a run, among the parent's artifacts."""
    manifest = folder / MANIFEST
    if manifest.is_file():
        (scratch / MANIFEST).write_bytes(manifest.read_bytes())
    packed = {
        receipt.path.name: {
            name: {
                "sha256": fact.sha256, "bytes": fact.bytes,
                "base64": base64.b64encode((receipt.path / name).read_bytes()).decode(),
            }
            for name, fact in contents(receipt.path).items()
        }
        for receipt in receipts
        if not mapping.has_run(receipt.record)
    }  # fmt: skip
    if packed:
        text = to_text({"schema": 1, "receipts": packed})
        (scratch / UNMEASURED).write_bytes(gzip.compress(text.encode(), mtime=0))


class Unmeasured:
    """A receipt without a run, as `stage` has packed it."""

    def __init__(self, name: str, files: dict[str, tuple[FileFact, str]]) -> None:
        self.name = name
        self._files = files

    @property
    def wanted(self) -> dict[str, FileFact]:
        return {path: fact for path, (fact, _) in self._files.items()}

    def unpack(self, folder: Path) -> None:
        """Write its files into `folder`; the paths are checked by `restore` before."""
        for path, (_, packed) in self._files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(base64.b64decode(packed))


def read_unmeasured(data: bytes, run: str) -> list[Unmeasured]:
    """The receipts in the artifact `UNMEASURED`; raises `RestoreError` for another form."""
    try:
        document = json.loads(gzip.decompress(data))
        if document["schema"] != 1:
            raise ValueError(f"schema {document['schema']!r}, this neuronbench reads 1")
        return [
            Unmeasured(
                str(name),
                {
                    str(path): (FileFact(sha256=str(f["sha256"]), bytes=int(f["bytes"])), str(f["base64"]))
                    for path, f in files.items()
                },
            )
            for name, files in document["receipts"].items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError) as error:
        raise RestoreError(f"run {run}: {UNMEASURED} cannot be read: {type(error).__name__}: {error}") from error
