"""What the study published, computed again from its receipts, to the precision it was printed with.

The table `published.csv` is ours: what was printed and where, of which receipts, and by which expression over their
fields (`expressions`). `figure` rows are numbers, `claim` rows what the words around them say. A figure is a match when
the value, rounded or cut to the printed digits, is what was printed.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, InvalidOperation
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from neuronbench.importers import safe
from neuronbench.importers.base import UNKNOWN
from neuronbench.importers.safe import ImportFailure
from neuronbench.importers.study.expressions import evaluate
from neuronbench.importers.study.files import CSV, place, read_samples
from neuronbench.model import Json

MATCH: Final = "match"
MISMATCH: Final = "mismatch"
ABSENT: Final = "receipt not there"
EXTRACT: Final = ".extract.txt"
_NUMBER: Final = re.compile(r"(?<![\d.])-?\d+(?:\.\d+)?")
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_LINE: Final = re.compile(r'"(\w+)":\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of the table."""

    id: str
    kind: str
    """`figure` or `claim`."""
    where: str
    """Section of the report (R) or of its extensions (X)."""
    what: str
    printed: str
    receipts: tuple[str, ...]
    expression: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a row."""

    row: Published
    value: Json
    """Number, text, or a list of them; None where it could not be computed."""
    verdict: str
    why: str = ""
    """Which receipt or field is missing; or that a figure was cut and not rounded."""

    def to_json(self) -> dict[str, Json]:
        row = asdict(self.row)
        told = {key: row[key] for key in ("id", "kind", "what", "where", "printed")}
        found = {"recomputed": self.value, "verdict": self.verdict, "why": self.why}
        return {
            **told,
            **found,
            "receipts": list(self.row.receipts),
            "expression": row["expression"],
            "note": row["note"],
        }


def table() -> Iterator[Published]:
    """All rows, in order."""
    text = files("neuronbench.importers.study").joinpath("published.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        receipts = tuple(name for part in row.pop("receipts").split(";") for name in expanded(part.strip()))
        yield Published(**row, receipts=receipts)


def expanded(pattern: str) -> Iterator[str]:
    """`c{1,4}.json` → `c1.json`, `c4.json`."""
    parts = _BRACES.split(pattern)
    choices = [[part] if index % 2 == 0 else part.split(",") for index, part in enumerate(parts)]
    return ("".join(chosen) for chosen in itertools.product(*choices))


# --------------------------------------------------------------------------------------------------------------------
# receipts


class Receipts:
    """The receipts below a path by their names in the study (`trn1/results/...`), read when asked for."""

    def __init__(self, path: Path) -> None:
        self._paths: dict[str, Path] = {}
        for one in safe.files(path, (".json", CSV, EXTRACT)):
            where = place(one)
            if where.box != UNKNOWN:
                self._paths["/".join((where.box, "results", *where.parts, one.name))] = one
        self._read: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    def __getitem__(self, name: str) -> Any:
        """The receipt as plain data. Raises `ImportFailure`."""
        if name not in self._read:
            path = self._paths[name]
            read = _table if name.endswith(CSV) else _extract if name.endswith(EXTRACT) else safe.read_json
            self._read[name] = read(path)
        return self._read[name]


def _table(path: Path) -> dict[str, Any]:
    samples = read_samples(path)
    busy = samples.busy_pct()
    return {} if busy is None else {"busy_pct": busy}


def _extract(path: Path) -> dict[str, list[float]]:
    """Numbers of a text that a demonstration printed: every name with all its values in order."""
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(safe.read_text(path, 1024 * 1024)):
        found.setdefault(name, []).append(float(value))
    return found


# --------------------------------------------------------------------------------------------------------------------
# verdicts


def verdicts(path: Path) -> list[Verdict]:
    """Every row of the table against the receipts below `path`. Raises `ImportFailure` for a damaged receipt."""
    receipts = Receipts(path)
    return [_verdict(row, receipts) for row in table()]


def _verdict(row: Published, receipts: Receipts) -> Verdict:
    missing = [name for name in row.receipts if name not in receipts]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return Verdict(row=row, value=None, verdict=ABSENT, why=f"{missing[0]}{more}")
    found = [receipts[name] for name in row.receipts]
    names = {"r": found, **dict(zip("ab", found, strict=False))}
    try:
        value = evaluate(row.expression, names)
        agrees, why = compare(row.printed, value)
    except KeyError as error:
        return Verdict(row=row, value=None, verdict=ABSENT, why=f"no {error.args[0]} in it")
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        told = " ".join(str(error).split())[:200]
        raise ImportFailure(
            f"{', '.join(row.receipts)[:300]}: published figure {row.id} needs another form: {told}"
        ) from error
    return Verdict(row=row, value=value, verdict=MATCH if agrees else MISMATCH, why=why)


def compare(printed: str, value: Any) -> tuple[bool, str]:
    """Whether `value` (a number, a word, or several) is what was printed; and, if only by cutting digits off, that.

    Every number of the printed text stands for one value, in order; `<=` in front of one is a bound.
    """
    if isinstance(value, (bool, str)):
        return str(value) == printed, ""
    values = value if isinstance(value, (list, tuple)) else [value]
    told = _NUMBER.findall(printed)
    if len(told) != len(values):
        return False, f"printed {len(told)} numbers, computed {len(values)}"
    if printed.startswith("<="):
        return values[0] <= float(told[0]), ""
    kinds = [_same(text, number) for text, number in zip(told, values, strict=True)]
    return all(kinds), "cut, not rounded" if all(kinds) and "cut" in kinds else ""


def _same(text: str, value: Any) -> str:
    """`rounded` or `cut` when the printed text is the value, else empty."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return ""
    try:
        exact, told = Decimal(repr(round(value, 10))), Decimal(text)
        step = Decimal(1).scaleb(int(told.as_tuple().exponent))
        if told in (exact.quantize(step, ROUND_HALF_UP), exact.quantize(step, ROUND_HALF_EVEN)):
            return "rounded"
        return "cut" if told == exact.quantize(step, ROUND_DOWN) else ""
    except InvalidOperation:  # more digits than a figure can have
        return ""


def told(value: Json) -> str:
    """A recomputed value as a table shows it."""
    if isinstance(value, (list, tuple)):
        return " | ".join(told(one) for one in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    return f"{value:.7g}"


def counted(found: Sequence[Verdict], kind: str) -> Mapping[str, int]:
    """How many rows of a kind there are of each verdict."""
    return {
        name: sum(one.verdict == name and one.row.kind == kind for one in found) for name in (MATCH, MISMATCH, ABSENT)
    }
