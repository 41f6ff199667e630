"""Gates in lines for people: of several records together, the range that was observed and what the worst one says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from neuronbench.model import Gate
from neuronbench.words import counted

UNJUDGED: Final = "not judged"
"""Of a gate that could not be evaluated: it speaks neither for nor against a number."""


def gate_line(gates: Sequence[Gate], records: int | None = None, verdict: str = "") -> str:
    """`provisional: host_contended, 3 records: 41.9 to 135.4 % (limit 20): ...` of gates of one name, one a record.

    `gates` may be fewer than there are `records` (then the range is of those looked at); `verdict` replaces the
    severity. The words are of the observation farthest from its limit.
    """
    count = len(gates) if records is None else records
    gate = max(gates, key=_excess)
    parts = [f"{verdict or gate.severity}: {gate.id}, {counted(count, 'record')}", _range(gates, count)]
    return ": ".join(part for part in (*parts, gate.message) if part)


def unjudged_lines(gates: Iterable[Gate]) -> list[str]:
    """A line for each gate that would mark a number and could not be evaluated, for those who would quote it."""
    groups: dict[str, list[Gate]] = {}
    for gate in gates:
        if gate.passed is None and gate.severity != "info":
            groups.setdefault(gate.id, []).append(gate)
    return [gate_line(members, verdict=UNJUDGED) for members in groups.values()]


def _excess(gate: Gate) -> float:
    """How far beyond its limit, by its limit where that is no zero; below everything where there are no numbers."""
    if not _is_number(gate.observed):
        return -1.0
    if not _is_number(gate.limit):
        return abs(float(gate.observed))
    return float(abs(gate.observed - gate.limit) / (abs(gate.limit) or 1.0))


def _range(gates: Sequence[Gate], records: int) -> str:
    seen = [gate.observed for gate in gates if _is_number(gate.observed)]
    if not seen:
        return ""
    words = list(dict.fromkeys(_short(value) for value in (min(seen), max(seen))))
    limits = dict.fromkeys(_short(gate.limit) for gate in gates if gate.limit is not None)
    text = f"{' to '.join(words)} {gates[0].unit}".strip()
    if len(gates) < records:
        text += f" in {len(gates)} of them"
    return text + (f" (limit {next(iter(limits))})" if len(limits) == 1 else "")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
