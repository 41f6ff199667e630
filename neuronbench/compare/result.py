"""What a comparison says: verdicts, outcome changes, and all they rest on. Plain data, ready to be shown."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuronbench.compare.noise import Floor
from neuronbench.compare.protocol import Difference
from neuronbench.compare.reading import MetricKind
from neuronbench.model import Json

SCHEMA: Final = 1
"""Version of the JSON form."""


class Verdict(enum.StrEnum):
    """What can be said of a metric at a point. In order: what needs attention first comes first."""

    REGRESSED = "regressed"
    INCOMPARABLE = "incomparable"
    INCONCLUSIVE = "inconclusive"
    IMPROVED = "improved"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, kw_only=True)
class Values:
    """The repeats of one side."""

    repeats: Sequence[float]
    centre: float | None
    """Geometric mean on the scale of logarithms, else the mean; None without repeats."""

    @property
    def n(self) -> int:
        return len(self.repeats)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric at one point."""

    point: str
    lane: str
    backends: tuple[str, str]
    metric: MetricKind
    verdict: Verdict
    base: Values
    head: Values
    log: bool = True
    """Whether `change`, `low` and `high` are ln(head/base); else they are head − base in the metric's unit."""
    change: float | None = None
    low: float | None = None
    """Bounds of the change at 95 %."""
    high: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    """After Benjamini–Hochberg over all rows of the comparison that have one."""
    floor: Floor | None = None
    spread: str = ""
    """What the interval rests on."""
    more: int | None = None
    """Inconclusive: how many more repeats a side would settle it; None when no reasonable number would."""
    sd: float = 0.0
    """Standard deviation of one repeat, on the scale of `change`: what the interval was made from."""
    detectable: float | None = None
    """The smallest true change that so many repeats find with a chance of 80 %, on the scale of `change`."""
    reason: str = ""
    """Why it is inconclusive or incomparable."""
    lone: bool = False
    """One session against another, and no history: nothing shows how far apart two sessions are by themselves."""
    differences: Sequence[Difference] = ()
    marks: Sequence[str] = ()
    """What has to be said beside the verdict: `provisional (...)`, `imported`, `advisory`, what was allowed."""

    @property
    def percent(self) -> float | None:
        """The change in per cent of base, where it is a ratio."""
        return None if self.change is None or not self.log else 100 * math.expm1(min(self.change, 700.0))

    @property
    def severity(self) -> float:
        """How large the change is, in noise floors."""
        return abs(self.change or 0.0) / self.floor.size if self.floor is not None and self.floor.size > 0 else 0.0

    def to_json(self) -> dict[str, Json]:
        ratio = math.exp if self.log else float
        return {
            "point": self.point,
            "lane": self.lane,
            "backends": list(self.backends),
            "metric": self.metric.key,
            "definition": self.metric.definition,
            "unit": self.metric.unit,
            "better": self.metric.better,
            "verdict": self.verdict.value,
            "base": {"n": self.base.n, "centre": self.base.centre, "repeats": list(self.base.repeats)},
            "head": {"n": self.head.n, "centre": self.head.centre, "repeats": list(self.head.repeats)},
            "scale": "ratio" if self.log else "difference",
            "change": _through(ratio, self.change),
            "low": _through(ratio, self.low),
            "high": _through(ratio, self.high),
            "confidence": 0.95 if self.low is not None else None,
            "p": self.p,
            "p_adjusted": self.p_adjusted,
            "noise_floor": None if self.floor is None else {"size": ratio(self.floor.size), "source": self.floor.text},
            "spread": {"sd": self.sd, "source": self.spread} if self.spread else None,
            "more_repeats": self.more,
            "detectable": _through(ratio, self.detectable),
            "reason": self.reason,
            "differences": [difference.to_json() for difference in self.differences],
            "marks": list(self.marks),
        }


def _through(scale: Any, value: float | None) -> float | None:
    if value is None:
        return None
    found = float(scale(value)) if value < 700 else math.inf
    return found if math.isfinite(found) else None


@dataclass(frozen=True, kw_only=True)
class OutcomeChange:
    """A point that ended otherwise, or is on one side only. These come before any number."""

    point: str
    lane: str
    kind: str
    """`broken`, `fixed`, `slo_missed`, `slo_met`, `invalidated`, `validated`, `failing`, `gone`, `new`."""
    text: str

    @property
    def worse(self) -> bool:
        return self.kind in ("broken", "slo_missed", "invalidated")

    def fails(self, conditions: Sequence[str]) -> bool:
        """Whether one of `conditions` names it: `outcome` what ended worse, `gone` what is not there any more."""
        return (self.worse and "outcome" in conditions) or (self.kind == "gone" and "gone" in conditions)

    def to_json(self) -> dict[str, Json]:
        return {"point": self.point, "lane": self.lane, "kind": self.kind, "worse": self.worse, "text": self.text}


@dataclass(frozen=True, kw_only=True)
class Overall:
    """A metric over all points where it could be compared: the geometric mean of the ratios."""

    metric: MetricKind
    points: int
    change: float
    low: float | None
    high: float | None
    """Over points, at 95 %; None for two points."""

    def to_json(self) -> dict[str, Json]:
        return {
            "metric": self.metric.key,
            "points": self.points,
            "ratio": math.exp(self.change),
            "low": _through(math.exp, self.low),
            "high": _through(math.exp, self.high),
        }


@dataclass(frozen=True, kw_only=True)
class Described:
    """One side in a few words."""

    label: str
    sessions: tuple[str, ...]
    receipts: int
    context: Mapping[str, Sequence[Json]]

    def to_json(self) -> dict[str, Json]:
        context = {name: list(values) for name, values in self.context.items()}
        return {"label": self.label, "sessions": list(self.sessions), "receipts": self.receipts, "context": context}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All of it, worst first."""

    base: Described
    head: Described
    by: str
    rows: Sequence[Row]
    outcomes: Sequence[OutcomeChange]
    overall: Sequence[Overall]
    notes: Sequence[str] = ()

    @property
    def counts(self) -> dict[Verdict, int]:
        counted = Counter(row.verdict for row in self.rows)
        return {verdict: counted[verdict] for verdict in Verdict}

    @property
    def points(self) -> int:
        return len({(row.lane, row.point) for row in self.rows})

    def failing(self, conditions: Sequence[str]) -> list[str]:
        """What of `conditions` (verdicts, `outcome`, `gone`) is found: a line each, empty when all is well."""
        found = [
            f"{change.kind}: {change.point}: {change.text}" for change in self.outcomes if change.fails(conditions)
        ]
        found += [
            f"{row.verdict.value}: {row.point} {row.metric.key}" for row in self.rows if row.verdict.value in conditions
        ]
        return found

    def to_json(self) -> dict[str, Json]:
        return {
            "schema": SCHEMA,
            "base": self.base.to_json(),
            "head": self.head.to_json(),
            "by": self.by or None,
            "counts": {verdict.value: count for verdict, count in self.counts.items()},
            "outcomes": [change.to_json() for change in self.outcomes],
            "rows": [row.to_json() for row in self.rows],
            "overall": [each.to_json() for each in self.overall],
            "notes": list(self.notes),
        }
