"""From what a user types (`latest~1`, a session, a folder, `mlflow:...`) to the two sets of readings to compare."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from neuronbench.canonical import closest
from neuronbench.compare.reading import Keep, Reader, Reading
from neuronbench.model import Json, Outcome, Validity, canonical_json
from neuronbench.receipts import ReceiptError, ReceiptStore, accuracy_evidence, naming
from neuronbench.receipts.receipt import RECORD
from neuronbench.words import counted

KINDS: Final = ("point",)
BOOTS: Final = ("point", "boot", "compile")
Resolve = Callable[[str], Sequence[Path]]
"""What follows `mlflow:` → folders of receipts."""
_FILTER: Final = re.compile(r"@(?P<key>[A-Za-z_][\w.]*)=(?P<value>[^@]*)$")


class SelectionError(ValueError):
    """Nothing, or nothing unique, is meant by what was asked for."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two sets."""

    label: str
    """What was asked for, as typed."""
    readings: Sequence[Reading]
    sessions: tuple[str, ...] = ()
    named: str = ""
    """The same with ids of sessions in place of `latest` and of the starts of ids: it means the same for ever."""

    def only(self, label: str, keep: Callable[[Reading], bool]) -> Side:
        return side(label, [reading for reading in self.readings if keep(reading)], self.named)


def side(label: str, readings: Sequence[Reading], named: str = "") -> Side:
    sessions = tuple(sorted({reading.session for reading in readings}))
    return Side(label=label, readings=readings, sessions=sessions, named=named or label)


@dataclass
class Selector:
    """Finds and reads the sets of one comparison.

    `problems` collects receipts that cannot be read, a line each; `remarks` what has to be said of the sessions that
    `latest` was taken for.
    """

    store: ReceiptStore
    mlflow: Resolve | None = None
    kinds: Sequence[str] = KINDS
    keep: Keep | None = None
    """Which metrics to read; all by default."""
    progress: Callable[[str], None] = lambda text: None
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _validity: dict[str, Validity | None] = field(default_factory=dict)
    _cited: dict[str, Reading | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reader = Reader(on_error=self._complain, keep=self.keep)

    def _complain(self, error: ReceiptError) -> None:
        if str(error) not in self.problems:
            self.problems.append(str(error))

    def side(self, asked: str) -> Side:
        """The set that `asked` means. Raises `SelectionError` when it means nothing or holds no receipt."""
        kept: dict[Path, Reading] = {}
        seen, names = 0, []
        for part in [asked] if os.path.isdir(asked) else [part for part in asked.split(",") if part]:
            text, filters = _filters(part)
            place = self._place(text)
            chosen = self._chosen(text) if place is None else self._read(receipts_in(self.store.root / place))
            names.append((place or text) + part.removeprefix(text))
            seen += len(chosen)
            fit = (r for r in chosen if r.kind in self.kinds and all(_has(r, *pair) for pair in filters))
            kept.update((reading.path, reading) for reading in fit)
        if not kept:
            why = f"none of its {counted(seen, 'receipt')} is meant" if seen else "there is no receipt"
            raise SelectionError(f"{asked!r}: {why}" + (f"; {self.problems[-1]}" if self.problems else ""))
        readings = sorted(kept.values(), key=lambda reading: (reading.started_at, reading.session, reading.name))
        return side(asked, readings, ",".join(names))

    def _chosen(self, part: str) -> list[Reading]:
        head, _, rest = part.partition(":")
        if head in ("tag", "commit") and rest:
            return self._everywhere(_wanted(head, rest))
        return self._read(self.folders(part))

    def side_of(self, session: str) -> list[Reading]:
        """The readings of one session of the store."""
        return [r for r in self._read(receipts_in(self.store.root / session)) if r.kind in self.kinds]

    # -- which receipts -----------------------------------------------------------------------------------------------

    def folders(self, part: str) -> list[Path]:
        """Folders of the receipts that one part of a selection means."""
        if part.startswith("mlflow:"):
            if self.mlflow is None:
                raise SelectionError(f"{part!r}: no MLflow is at hand")
            return list(self.mlflow(part.removeprefix("mlflow:")))
        for folder in (self.store.root / part, Path(part).expanduser()):
            if folder.is_dir():
                return receipts_in(folder)
        raise SelectionError(
            f"{part!r}: expected a session, a receipt or a folder, found none of that name; the latest sessions are: "
            f"{', '.join(self.store.sessions()[-5:]) or 'none'}"
        )

    def _place(self, text: str) -> str | None:
        """The session, or the receipt in one (`latest/NAME`), that `text` names; None where it names something else.

        Raises `SelectionError` for the start of several ids, and where `latest` goes back too far.
        """
        head, slash, rest = text.partition("/")
        if slash and (not head or any(folder.is_dir() for folder in (self.store.root / text, Path(text).expanduser()))):
            return None  # a folder as it was typed
        back = naming.back_of(head)
        try:
            if back is None:
                found = naming.starting(self.store.sessions(), head)
            else:
                meant = naming.latest(self.store, back)
                found = [meant.session]
                self._remark(meant)
        except LookupError as error:
            raise SelectionError(str(error)) from error
        if len(found) > 1 and not slash:
            raise SelectionError(f"several sessions start with {text!r}: {', '.join(found[-5:])}")
        if len(found) != 1 or not (self.store.root / found[0] / rest).is_dir():
            return None
        return f"{found[0]}/{rest}" if rest else found[0]

    def _remark(self, found: naming.Latest) -> None:
        lines = [*naming.passed_over(found), *naming.unmeasured(self.store, found)]
        self.remarks += [line for line in lines if line not in self.remarks]

    def _everywhere(self, keep: Callable[[Reading], bool]) -> list[Reading]:
        folders = (folder for name in self.store.sessions() for folder in receipts_in(self.store.root / name))
        return [reading for reading in self._read(folders) if keep(reading)]

    # -- reading them -------------------------------------------------------------------------------------------------

    def _read(self, folders: Iterable[Path]) -> list[Reading]:
        return [self._standing(self._original(reading)) for reading in self.reader.read(self._counted(folders))]

    def _counted(self, folders: Iterable[Path]) -> Iterator[Path]:
        for count, folder in enumerate(folders, start=1):
            if count % 500 == 0:
                self.progress(f"{counted(count, 'receipt')} read")
            yield folder

    def _original(self, reading: Reading) -> Reading:
        """What a resumed session took over from an earlier one stands for itself: the receipt that it names."""
        name = reading.reason.removeprefix("cached: ").split(" ")[0]
        if reading.outcome is not Outcome.CACHED or "/" not in name:
            return reading
        if name not in self._cited:
            folder = self.store.root / name
            inside = ".." not in Path(name).parts and folder.is_dir()
            self._cited[name] = next(iter(self.reader.read([folder])), None) if inside else None
            if self._cited[name] is None:
                self.problems.append(f"{reading.path}: it was taken over from {name}, which is not there")
        return self._cited[name] or reading

    def _standing(self, reading: Reading) -> Reading:
        """With what accuracy records have shown of its artifact since it was written."""
        if not reading.artifact:
            return reading
        if reading.artifact not in self._validity:
            evidence = accuracy_evidence(self.store, reading.artifact)
            says = None if evidence is None else Validity.VALID if evidence.passed else Validity.INVALID
            self._validity[reading.artifact] = says
        says = self._validity[reading.artifact]
        if says is None:
            return reading
        return replace(reading, validity=says, failed=() if says is Validity.VALID else reading.failed)


def receipts_in(folder: Path) -> list[Path]:
    """Folders with a record: `folder` itself, those in it, or those in its folders; by name."""
    if (folder / RECORD).is_file():
        return [folder]
    inside = [Path(entry.path) for entry in _subfolders(folder)]
    found = [path for path in inside if os.path.exists(f"{path}/{RECORD}")]
    if not found:
        found = [Path(e.path) for path in inside for e in _subfolders(path) if os.path.exists(f"{e.path}/{RECORD}")]
    return found


def _subfolders(folder: Path) -> list[os.DirEntry[str]]:
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".") and entry.is_dir()]
    except OSError as error:
        raise SelectionError(f"{folder}: cannot be read: {error.strerror}") from error
    return sorted(entries, key=lambda entry: entry.name)


def _filters(asked: str) -> tuple[str, list[tuple[str, str]]]:
    filters: list[tuple[str, str]] = []
    while (match := _FILTER.search(asked)) is not None:
        filters.append((match["key"], match["value"]))
        asked = asked[: match.start()]
    return asked, filters


def _wanted(head: str, rest: str) -> Callable[[Reading], bool]:
    if head == "commit":
        return lambda reading: str(reading.context.get("git.commit", "")).startswith(rest)
    name, equals, value = rest.partition("=")
    return lambda reading: name in reading.tags and (not equals or reading.tags[name] == value)


def value_of(reading: Reading, key: str) -> Json:
    """Backend, lane, benchmark or a parameter of a reading, by name."""
    point = reading.point
    own: Mapping[str, Json] = {"backend": point.backend, "lane": point.lane, "benchmark": point.benchmark}
    return own[key] if key in own else point.params.get(key)


def _has(reading: Reading, key: str, value: str) -> bool:
    found = value_of(reading, key)
    return value == found or value == canonical_json(found)


def split_by(whole: Side, axis: str) -> tuple[Side, Side]:
    """The two halves of one set by the two values it has of `axis`, in the order they were measured in.

    Points without that axis stand apart where others have two values of it. Raises `SelectionError` for any other
    number of values.
    """
    values: dict[str, Json] = {}
    for reading in whole.readings:
        value = value_of(reading, axis)
        values.setdefault(canonical_json(value), value)
    if len(values) > 2:
        values.pop(canonical_json(None), None)
    if set(values) == {canonical_json(None)}:
        known = sorted({name for reading in whole.readings for name in reading.point.params} | {"backend"})
        differs = [name for name in known if len({canonical_json(value_of(r, name)) for r in whole.readings}) > 1]
        raise SelectionError(
            f"{whole.label!r}: no point has {axis!r}{closest(axis, known)}; what differs within it is: "
            f"{', '.join(differs) or 'nothing'}"
        )
    if len(values) != 2:
        found = ", ".join(text.strip('"') for text in values)
        raise SelectionError(
            f"{whole.label!r}: expected two values of {axis}, found {len(values)} ({found}); "
            f"name two of them: {whole.label}@{axis}=A {whole.label}@{axis}=B"
        )
    first, second = (_half(whole, axis, text) for text in values)
    return first, second


def _half(whole: Side, axis: str, text: str) -> Side:
    name = f"{whole.label}@{axis}={text.strip(chr(34))}"
    return whole.only(name, lambda reading: canonical_json(value_of(reading, axis)) == text)
