"""The study against itself: what it published, computed again, and what our gates find in its receipts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from neuronbench.importers.base import Checked, Imported
from neuronbench.importers.study import figures
from neuronbench.importers.study.figures import ABSENT, MATCH, MISMATCH, Verdict
from neuronbench.model import Gate, Json

TITLES: Final = {
    "timer_escapes_device": "step timers that stop before the device has finished",
    "aliased": "utilisation that aliases",
    "hidden_tokens": "tokens that were generated and not counted",
    "tokens_counted": "tokens that were not counted at all",
    "achieved_rate": "an open loop that does not keep its rate",
    "in_flight_cap": "an open loop that a cap closed",
    "compiler_flags": "compiler flags that differ from those of the runs beside it",
    "no_effect": "options that changed nothing",
    "samples": "percentiles of too few requests: null",
    "implausible": "more than the hardware can do",
    "non_finite_loss": "losses that are not finite",
    "reranked": "a reranker that failed while its probes passed",
    "answer": "wrong answers",
    "accuracy": "less accurate than the reference",
    "finite_outputs": "outputs that are not finite",
    "output_length": "answers of another length than asked for",
    "unfinished": "transcripts that were cut off",
    "errors": "failed requests",
    "telemetry": "no telemetry",
    "compiled_at_boot": "boots called cold in which nothing was compiled, or warm in which something was",
    "overtaken": "failures beside a later success",
    "receipt_readable": "damaged receipts",
    "withdrawn": "receipts that the study withdrew",
}
"""Gates in the order in which their findings are told, and what they are in words."""


def check(path: Path, found: Sequence[Imported]) -> Checked:
    """Figures and findings. Raises `ImportFailure` for a damaged receipt."""
    verdicts, seen = figures.verdicts(path), findings(found)
    columns = ("id", "where", "what", "printed", "recomputed", "verdict")
    tables: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = [
        ("published, and not what the receipts say", columns, [_row(v) for v in verdicts if v.verdict == MISMATCH]),
        ("published, and what the receipts say", columns, [_row(v) for v in verdicts if v.verdict == MATCH]),
        ("published of receipts that are not here", ("id", "where", "what", "printed", ABSENT),
         [_absent(v) for v in verdicts if v.verdict == ABSENT]),
    ]  # fmt: skip
    for id_ in dict.fromkeys(gate.id for _, gate in seen):
        rows = [_finding(name, gate) for name, gate in seen if gate.id == id_]
        title = f"found: {TITLES[id_]} ({id_})" if id_ in TITLES else f"found: {id_}"
        tables.append((title, ("receipt", "observed", "limit", "finding"), rows))
    return Checked(
        tables=[one for one in tables if one[2]],
        summary=_summary(verdicts, seen),
        data={
            "figures": [one.to_json() for one in verdicts],
            "counts": {kind: dict(figures.counted(verdicts, kind)) for kind in ("figure", "claim")},
            "findings": [
                {
                    "gate": gate.id,
                    "receipt": name,
                    "observed": gate.observed,
                    "limit": gate.limit,
                    "unit": gate.unit,
                    "severity": gate.severity,
                    "message": gate.message,
                }
                for name, gate in seen
            ],
        },
    )


def findings(found: Sequence[Imported]) -> list[tuple[str, Gate]]:
    """Every gate that failed, with the receipt, by kind."""
    order = {name: index for index, name in enumerate(TITLES)}
    failed = [(one.name, gate) for one in found for gate in one.gates if gate.passed is False]
    return sorted(failed, key=lambda pair: (order.get(pair[1].id, len(order)), pair[0]))


def _row(one: Verdict) -> tuple[str, ...]:
    row = one.row
    words = " ".join(text for text in (row.what, f"({row.note})" if row.note else "") if text)
    value = figures.told(one.value) + (f" ({one.why})" if one.why else "")
    return (row.id, row.where, words, row.printed, value, one.verdict)


def _absent(one: Verdict) -> tuple[str, ...]:
    return (one.row.id, one.row.where, one.row.what, one.row.printed, one.why)


def _finding(name: str, gate: Gate) -> tuple[str, ...]:
    return (name, _quantity(gate.observed, gate), _quantity(gate.limit, gate), gate.message)


def _quantity(value: Json, gate: Gate) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    if gate.unit == "share":
        return f"{value:.1%}"
    return f"{value:.4g} {gate.unit}".rstrip()


def _summary(verdicts: Sequence[Verdict], seen: Sequence[tuple[str, Gate]]) -> list[str]:
    lines = []
    for kind, word in (("figure", "figures"), ("claim", "claims")):
        counts = figures.counted(verdicts, kind)
        wrong = ", ".join(one.row.id for one in verdicts if one.row.kind == kind and one.verdict == MISMATCH)
        lines.append(
            f"{word}: {counts[MATCH]} match, {counts[MISMATCH]} do not{f' ({wrong})' if wrong else ''}, "
            f"of {counts[ABSENT]} the receipt is not here"
        )
    each: dict[str, int] = {}
    for _, gate in seen:
        each[gate.id] = each.get(gate.id, 0) + 1
    lines.append(f"findings: {len(seen)}")
    lines += [f"  {count:3d}  {gate}: {TITLES.get(gate, '')}".rstrip(": ") for gate, count in each.items()]
    return lines
