"""Whether a server answers after a load as it did before: a few greedy answers, compared.

Load brings out what a single question does not: a cache that hands out another's blocks, a worker that came back with
other weights, memory that has been overwritten. Numbers of a server that does not answer as before are of nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from neuronbench.audit.asking import Asker, NoAnswer, api_of
from neuronbench.audit.prompts import TEXTS
from neuronbench.model import Gate
from neuronbench.protocols import Endpoint

GATE: Final = "outputs_unchanged"
COUNT: Final = 4
TOKENS: Final = 12
EQUAL: Final = 0.5
"""Share of the answers that have to be the same: greedy answers may part on a near tie once a cache is warm."""
DEADLINE_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Greedy answers to the fixed prompts; `problem` when there are none."""

    answers: tuple[str, ...] = ()
    problem: str = ""


def outputs(endpoint: Endpoint, *, deadline_s: float = DEADLINE_S) -> Outputs:
    """Ask the fixed prompts, one after the other, outside of any window."""
    asker = Asker(endpoint=endpoint, api=api_of(endpoint), until=time.monotonic() + deadline_s)
    try:
        return Outputs(answers=tuple(asker.say(text, tokens=TOKENS).text for text in TEXTS[:COUNT]))
    except NoAnswer as error:
        return Outputs(problem=str(error))


def unchanged_gate(before: Outputs, after: Outputs) -> Gate:
    """Passed when at least half of the answers are the same to the letter; neither way when one side is missing."""
    if before.problem or after.problem:
        when = "before" if before.problem else "after"
        why = f"no answers {when} the load to compare: {before.problem or after.problem}"
        return Gate(id=GATE, passed=None, limit=EQUAL, unit="share", message=why)
    pairs = list(zip(before.answers, after.answers, strict=True))
    same = sum(one == other for one, other in pairs)
    message = f"{same} of {len(pairs)} greedy answers are the same after the load as before it"
    if same < EQUAL * len(pairs):
        one, other = next(pair for pair in pairs if pair[0] != pair[1])
        message += f": {one[:60]!r} became {other[:60]!r}"
    return Gate(
        id=GATE, passed=same >= EQUAL * len(pairs), observed=same / len(pairs), limit=EQUAL, unit="share",
        message=message,
    )  # fmt: skip
