"""What the summary says of points that did not run: why they were skipped, and whose receipts stand for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from neuronbench.model import Outcome, Record, Validity
from neuronbench.session import Session
from neuronbench.words import counted

CACHED: Final = "cached: "
"""Beginning of the reason of a point whose receipt is there; the receipt's id follows."""
_TO_DO: Final = " To do: "
"""What parts a reason from its remedy where a provider writes both in a line."""


def skipped_lines(session: Session, records: Sequence[Record]) -> list[str]:
    """A line for each reason, with how many points it holds for, and below it what to do where anybody knows."""
    counts: Counter[tuple[str, str]] = Counter()
    for record in records:
        if record.outcome is Outcome.SKIPPED:
            reason, _, remedy = " ".join(record.reason.split()).partition(_TO_DO)
            backend = record.point.backend
            if not remedy and reason.startswith(f"{backend}: ") and not session.probe(backend).available:
                remedy = "run them where that hardware is, or choose with -m what is here: see `neuronbench doctor`"
            counts[reason, remedy] += 1
    lines: list[str] = []
    for (reason, remedy), count in counts.items():
        lines.append(f"{counted(count, 'point')}: {reason or 'no reason was given'}")
        if remedy:
            lines.append(f"    to do: {remedy}")
    return lines


def cached_line(session: Session, records: Sequence[Record]) -> str:
    """How many points were not measured again, whose receipts stand for them, and which of those may not be quoted."""
    from neuronbench.receipts import validities_now

    cited = [record.reason.removeprefix(CACHED) for record in records if record.outcome is Outcome.CACHED]
    if not cited:
        return ""
    sessions = Counter(receipt.partition("/")[0] for receipt in cited)
    headers = {header.receipt_id: header for name in sessions for header in session.store.headers(name)}
    unsure = [receipt for receipt in cited if receipt in headers and headers[receipt].validity is Validity.PROVISIONAL]
    now = validities_now([session.store.read(headers[receipt].path).record for receipt in unsure], session.store)
    unsure = [receipt for receipt in unsure if now.get(receipt, Validity.PROVISIONAL) is not Validity.VALID]
    if len(sessions) == 1:
        of = f"session {next(iter(sessions))}"
    else:
        of = "sessions " + ", ".join(f"{name} ({count})" for name, count in sorted(sessions.items()))
    line = f"cached: {counted(len(cited), 'point')} of {of}"
    if not unsure:
        return line
    return f"{line}; {len(unsure)} of them provisional: measure those again without --nb-resume"
