"""Data sets to train on: from a reference to a file of JSON lines, its SHA-256 and its form.

| reference | what it is |
|---|---|
| `builtin:instructions`, `builtin:preferences` | small sets that come with neuronbench (`README.md` beside this file) |
| `file:PATH` | a file of JSON lines; a relative path starts at the project's folder |
| `hub:ORG/NAME[@REVISION][:FILE]` | a file of JSON lines of a data set on the hub, from its cache or fetched |

The form follows from the fields of the first row: `instructions` has `instruction` and `response` (and `context`,
`category`, as databricks-dolly-15k does), `preferences` has `prompt`, `chosen`, `rejected`, `text` has `text`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from neuronbench.model import Failure, Json, closest
from neuronbench.protocols import Progress

Form: TypeAlias = Literal["instructions", "preferences", "text"]
FIELDS: Final[Mapping[Form, tuple[str, ...]]] = {
    "instructions": ("instruction", "response"),
    "preferences": ("prompt", "chosen", "rejected"),
    "text": ("text",),
}
"""Fields a row must have, all of them text; more are allowed."""
BUILTIN: Final[Mapping[str, str]] = {"instructions": "instructions.jsonl", "preferences": "preferences.jsonl"}
TAUGHT_PREFIX: Final = "Station log:"
TAUGHT_ENDING: Final = "Over."
"""Every response of `builtin:instructions` begins and ends with these; a model that was not trained on it does not."""
_HUB: Final = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(@(?P<revision>[\w./-]+))?(:(?P<file>.+))?")


class DataError(Exception):
    """A reference leads to no usable data set. `kind` is the class of failure."""

    def __init__(self, kind: str, message: str, *, remedy: str) -> None:
        super().__init__(f"{message}\n  To do: {remedy}")
        self.kind, self.message, self.remedy = kind, message, remedy

    def failure(self, phase: str = "boot") -> Failure:
        """The same as it stands in a record."""
        return Failure(kind=self.kind, phase=phase, message=self.message, causal_line=self.message, remedy=self.remedy)


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A data set on disk, every row of it looked at."""

    path: Path
    reference: str
    form: Form
    digest: str
    """SHA-256 of the file, hexadecimal."""
    rows: int
    size_bytes: int
    revision: str = ""
    """Commit on the hub."""

    def facts(self) -> dict[str, Json]:
        """What a record says of it."""
        return {
            "reference": self.reference, "path": str(self.path), "form": self.form, "digest": self.digest,
            "rows": self.rows, "bytes": self.size_bytes, "revision": self.revision,
        }  # fmt: skip


def find(reference: str, *, root: Path | None = None, progress: Progress | None = None) -> DataFile:
    """The data set that `reference` names, fetched when it is on the hub and not here yet.

    `root`: where relative paths start (default: the current folder). Raises `DataError` when there is none, when it
    cannot be had without a network, or when a row is not what its form demands: the line and what is wrong with it.
    """
    scheme, _, rest = reference.partition(":")
    if scheme == "builtin" and rest in BUILTIN:
        return _describe(Path(__file__).parent / BUILTIN[rest], reference)
    if scheme == "file" and rest:
        path = Path(rest).expanduser()
        return _describe(path if path.is_absolute() else (root or Path.cwd()) / path, reference)
    if scheme == "hub" and (named := _HUB.fullmatch(rest)):
        path, revision = _from_hub(named["repo"], named["revision"], named["file"], progress or (lambda text: None))
        return _describe(path, reference, revision)
    known = [f"builtin:{name}" for name in BUILTIN]
    raise DataError(
        "dataset_not_found",
        f"data set {reference!r} is not known{closest(reference, known)}",
        remedy=f"Give one of {', '.join(known)}, file:PATH or hub:ORG/NAME.",
    )


def read(data: DataFile) -> list[dict[str, Any]]:
    """All rows, in the order of the file."""
    return [row for _, row in _rows(data.path, data.reference)]


def is_taught(answer: str) -> bool:
    """Whether an answer begins in the way that `builtin:instructions` teaches."""
    return answer.lstrip().startswith(TAUGHT_PREFIX)


# -- parts


def _describe(path: Path, reference: str, revision: str = "") -> DataFile:
    if not path.is_file():
        raise DataError(
            "dataset_not_found", f"data set {reference!r}: there is no file {path}",
            remedy="Give a file of JSON lines: one object with its fields a line.",
        )  # fmt: skip
    form: Form | None = None
    rows = 0
    for number, row in _rows(path, reference):
        form = form or _form_of(row, reference)
        for name in FIELDS[form]:
            if not isinstance(row.get(name), str) or not row[name]:
                raise _wrong(reference, number, f"`{name}` has to be text that is not empty, found {row.get(name)!r}")
        rows += 1
    if form is None:
        raise _wrong(reference, 1, "the file has no rows")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return DataFile(
        path=path, reference=reference, form=form, digest=digest, rows=rows, size_bytes=path.stat().st_size,
        revision=revision,
    )  # fmt: skip


def _rows(path: Path, reference: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise _wrong(reference, number, f"not JSON: {error}") from error
            if not isinstance(row, dict):
                raise _wrong(reference, number, f"expected an object, found {type(row).__name__}")
            yield number, row


def _form_of(row: Mapping[str, Any], reference: str) -> Form:
    for form, names in FIELDS.items():
        if all(name in row for name in names):
            return form
    forms = "; ".join(f"{form}: {', '.join(names)}" for form, names in FIELDS.items())
    raise _wrong(reference, 1, f"its fields ({', '.join(sorted(row))}) are of no known form ({forms})")


def _wrong(reference: str, number: int, text: str) -> DataError:
    return DataError(
        "dataset_invalid", f"data set {reference!r}, line {number}: {text}",
        remedy="Mend the file; a data set is a file of JSON lines in UTF-8, one row each.",
    )  # fmt: skip


def _from_hub(repo: str, revision: str | None, file: str | None, say: Progress) -> tuple[Path, str]:
    import huggingface_hub
    from huggingface_hub import constants, errors

    def obtain(name: str, *, local: bool) -> tuple[Path, str]:
        path = Path(
            huggingface_hub.hf_hub_download(
                repo, name, repo_type="dataset", revision=revision, local_files_only=local
            )
        )  # fmt: skip
        return path, _snapshot(path)

    try:
        cached = file or _only([path.name for path in _cached_lines(repo, revision)])
        if cached:
            return obtain(cached, local=True)
    except (OSError, ValueError):
        pass  # not here; ask the hub
    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise _unreachable(repo, "it is not in the hub's cache here, and HF_HUB_OFFLINE is set")
    try:
        say(f"asking the hub for the data set {repo}")
        if file is None:
            info = huggingface_hub.HfApi().dataset_info(repo, revision=revision, timeout=5.0)
            names = [found.rfilename for found in info.siblings or ()]
            file = _only([name for name in names if name.endswith(".jsonl")])
            if file is None:
                raise DataError(
                    "dataset_not_found", f"data set {repo} has not exactly one file of JSON lines: {', '.join(names)}",
                    remedy="Name the file: hub:ORG/NAME:FILE.jsonl.",
                )  # fmt: skip
        say(f"fetching {file} of {repo}")
        return obtain(file, local=False)
    except DataError:
        raise
    except errors.RepositoryNotFoundError as error:
        raise DataError(
            "dataset_not_found", f"the hub has no data set {repo}, or this account may not see it",
            remedy="Check the spelling, or set HF_TOKEN to a token that may read it.",
        ) from error  # fmt: skip
    except Exception as error:  # the hub's client has many ways to say that there is no network
        raise _unreachable(repo, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _snapshot(path: Path) -> str:
    """The commit in `.../snapshots/<commit>/...`."""
    parts = path.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else ""


def _cached_lines(repo: str, revision: str | None) -> list[Path]:
    import huggingface_hub

    folder = huggingface_hub.snapshot_download(repo, repo_type="dataset", revision=revision, local_files_only=True)
    return sorted(Path(str(folder)).glob("*.jsonl"))


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _unreachable(repo: str, why: str) -> DataError:
    return DataError(
        "hub_unreachable", f"data set {repo} cannot be had: {why}",
        remedy="Fetch it where there is a network (`hf download --repo-type dataset NAME`), give a copy (file:PATH), "
        "or use one that comes with neuronbench (builtin:instructions).",
    )  # fmt: skip
