"""What is observed: numbers with all that is needed to quote them, and checks with what they found.

Standard library only, no I/O. `neuronbench.model` has these names too, and is where everything else takes them from.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from neuronbench.canonical import Json, jsonable

Better: TypeAlias = Literal["lower", "higher"] | None
"""Which way a number improves; None where neither is better."""

_UNIT_SLUGS: Final = {"tok/s": "tok_s", "req/s": "req_s", "items/s": "items_s", "%": "pct", "USD": "usd", "B": "bytes"}


def unit_slug(unit: str) -> str:
    """`tok/s` → `tok_s`: the unit as it appears in metric names."""
    return _UNIT_SLUGS.get(unit, re.sub(r"[^A-Za-z0-9]+", "_", unit).strip("_"))


def _number(what: str, value: object) -> float:
    """A finite float; raises for text and for what is not finite: a missing value is None."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{what}: expected a number, found {value!r}")
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{what}: {value!r} is not a JSON number; a missing value is None")
    return number


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number with all that is needed to quote it.

    `value` is None when the quantity is missing (never 0), is not evaluable, or is unbounded (a percentile that falls
    on failed requests); `note` then says why and what would give it.
    """

    id: str
    """Id of the definition in `neuronbench.definitions`, such as `ttft`."""
    value: float | None
    unit: str
    stat: str = ""
    """`p50`, `p99`, `mean`, `max`, ...; empty when the definition is a single number."""
    better: Better = None
    n: int = 0
    """Number of observations the value rests on."""
    low: float | None = None
    high: float | None = None
    """Bounds at `confidence`; None where the data give no such bound."""
    confidence: float | None = None
    version: int = 1
    note: str = ""

    def __post_init__(self) -> None:
        """Raise here, where the caller is, for what could not be read back from a receipt."""
        for name, value in (("id", self.id), ("unit", self.unit), ("stat", self.stat), ("note", self.note)):
            if not isinstance(value, str):
                raise TypeError(f"metric {self.id!r}: {name}: expected text, found {value!r}")
        if not self.id or "@" in self.id:
            raise ValueError(f"metric: id: expected a name without '@', found {self.id!r}")
        if self.better not in ("lower", "higher", None):
            raise ValueError(f"metric {self.id!r}: better: expected 'lower', 'higher' or None, found {self.better!r}")
        for name in ("value", "low", "high", "confidence"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _number(f"metric {self.id!r}: {name}", value))
        try:
            object.__setattr__(self, "n", operator.index(self.n))  # NumPy's integers too
        except TypeError:
            raise TypeError(f"metric {self.id!r}: n: expected a whole number, found {self.n!r}") from None

    @property
    def definition(self) -> str:
        return f"{self.id}@{self.version}"

    @property
    def key(self) -> str:
        """`ttft_p99_ms`, `output_throughput_tok_s`: the name used by `measure.check` and in receipts."""
        return "_".join(part for part in (self.id, self.stat, unit_slug(self.unit)) if part)

    @property
    def path(self) -> str:
        """`ttft/p99_ms`: the name used in MLflow."""
        return self.id + "/" + "_".join(part for part in (self.stat, unit_slug(self.unit)) if part)

    def to_json(self) -> dict[str, Json]:
        return {
            "definition": self.definition,
            "stat": self.stat,
            "value": None if self.value is None else jsonable(float(self.value)),
            "unit": self.unit,
            "better": self.better,
            "n": self.n,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
            "note": self.note,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Metric:
        id_, _, version = data["definition"].partition("@")
        return cls(
            id=id_,
            version=int(version or 1),
            stat=data["stat"],
            value=data["value"],
            unit=data["unit"],
            better=data["better"],
            n=data["n"],
            low=data.get("low"),
            high=data.get("high"),
            confidence=data.get("confidence"),
            note=data.get("note", ""),
        )


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A check with observed value and limit.

    `passed` is None when it could not be evaluated, which is not a pass: `message` says why. A failed gate of severity
    `invalid` makes the record invalid, one of severity `provisional` makes it provisional, `info` only informs.
    """

    id: str
    passed: bool | None
    observed: Json = None
    limit: Json = None
    unit: str = ""
    severity: Literal["invalid", "provisional", "info"] = "invalid"
    message: str = ""

    def __post_init__(self) -> None:
        """Raise here, where the caller is, for what could not be read back; NumPy's values become Python's."""
        item_method = getattr(self.passed, "item", None)
        passed = item_method() if callable(item_method) else self.passed
        if passed is not None and not isinstance(passed, bool):
            raise TypeError(f"gate {self.id!r}: passed: expected True, False or None, found {self.passed!r}")
        object.__setattr__(self, "passed", passed)  # `is False` decides on validity, and numpy.False_ is not False
        if self.severity not in ("invalid", "provisional", "info"):
            raise ValueError(
                f"gate {self.id!r}: severity: expected invalid, provisional or info, found {self.severity!r}"
            )
        for name in ("observed", "limit"):
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                value = str(value)  # an infinite error is what a gate has to be able to say
            object.__setattr__(self, name, jsonable(value))
