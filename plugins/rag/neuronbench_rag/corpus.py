"""Passages and graded questions: the ones that come with the lane, or a folder of one's own.

Two files of tab-separated values, UTF-8, no header:

* `passages.tsv`: id, text.
* `questions.tsv`: id, question, accepted answers separated by `|`, graded passages as `id:grade,id:grade`. Grade 2
  answers the question, grade 1 helps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SHIPPED: Final = Path(__file__).parent / "data"
GRADES: Final = (1, 2, 3)
MARKERS: Final = ("<|", "|>", "[INST]", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>")
"""What chat templates take for their own: in a passage it would end the passage and speak in another's voice."""


class CorpusError(ValueError):
    """A corpus that cannot be used: which file and line, what was expected, what was found."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question whose answer can be checked without a judge."""

    id: str
    text: str
    accepted: tuple[str, ...]
    grades: Mapping[str, int] = field(hash=False)
    """Passage → grade; passages that are not named have grade 0."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Passages by id, and the questions about them."""

    name: str
    passages: Mapping[str, str]
    questions: Sequence[Question]
    digest: str
    """Of both files: results of different corpora are not to be compared."""

    @property
    def ids(self) -> list[str]:
        return list(self.passages)


def load(reference: str | None = None, *, questions: int | None = None) -> Corpus:
    """The corpus in the folder `reference`, or the one that comes with the lane (`builtin:harbour`).

    `questions`: only so many, spread evenly over the file. Raises `CorpusError`.
    """
    builtin = reference in (None, "builtin:harbour")
    folder = SHIPPED if builtin else Path(str(reference)).expanduser()
    if not folder.is_dir():
        raise CorpusError(f"corpus: expected 'builtin:harbour' or a folder, found {reference!r}, which is neither")
    digest = hashlib.sha256()
    passages: dict[str, str] = {}
    for where, (id, text) in _rows(folder / "passages.tsv", 2, digest):
        _once(where, id, passages)
        if not text.strip():
            raise CorpusError(f"{where}: passage {id!r} has no text")
        _clean(where, text)
        passages[id] = text
    if not passages:
        raise CorpusError(f"{folder / 'passages.tsv'}: expected passages, found none")
    asked: dict[str, Question] = {}
    for where, (id, text, accepted, graded) in _rows(folder / "questions.tsv", 4, digest):
        _once(where, id, asked)
        _clean(where, text)
        answers = tuple(part.strip() for part in accepted.split("|") if part.strip())
        if not text.strip() or not answers:
            raise CorpusError(f"{where}: expected a question and an accepted answer, found {text!r} and {accepted!r}")
        asked[id] = Question(id=id, text=text, accepted=answers, grades=_grades(where, graded, passages))
    if not asked:
        raise CorpusError(f"{folder / 'questions.tsv'}: expected questions, found none")
    chosen = list(asked.values())
    if questions is not None:
        if questions < 1:
            raise CorpusError(f"questions: expected 1 or more, found {questions}")
        count = min(questions, len(chosen))
        chosen = [chosen[index * len(chosen) // count] for index in range(count)]
    name = "builtin:harbour" if builtin else folder.name
    return Corpus(name=name, passages=passages, questions=chosen, digest=f"sha256:{digest.hexdigest()}")


def _rows(path: Path, columns: int, digest: hashlib._Hash) -> list[tuple[str, list[str]]]:
    """Place and columns of each line that is not blank."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise CorpusError(f"{path}: there is no such file; a corpus has passages.tsv and questions.tsv") from None
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: expected UTF-8, found something else at byte {error.start}") from None
    digest.update(data)
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        parts = line.rstrip("\r").split("\t")
        if len(parts) != columns:
            raise CorpusError(f"{path}:{number}: expected {columns} columns separated by tabs, found {len(parts)}")
        found.append((f"{path}:{number}", parts))
    return found


def _once(where: str, id: str, known: Mapping[str, object]) -> None:
    if not id.strip() or id in known:
        raise CorpusError(f"{where}: expected an id of its own, found {id!r}{' a second time' if id in known else ''}")


def _clean(where: str, text: str) -> None:
    if "\0" in text:
        raise CorpusError(f"{where}: a NUL character, which PostgreSQL cannot store: remove it")
    found = next((marker for marker in MARKERS if marker in text), None)
    if found:
        raise CorpusError(f"{where}: {found!r} is what chat templates take for their own marks: remove it or space it")


def _grades(where: str, text: str, passages: Mapping[str, str]) -> dict[str, int]:
    grades: dict[str, int] = {}
    for part in text.split(","):
        passage, _, grade = part.strip().rpartition(":")
        if passage not in passages:
            raise CorpusError(f"{where}: expected ID:GRADE of a passage there is, found {part.strip()!r}")
        if grade not in {str(each) for each in GRADES}:
            raise CorpusError(f"{where}: a grade is one of {', '.join(map(str, GRADES))}, found {grade!r}")
        grades[passage] = int(grade)
    return grades
