"""What answers show, as gates. Pure: nothing is asked here.

After MLPerf Inference's compliance tests for language models (a repeated sample may not be more than a tenth faster;
the first token reported is the first token of the output; counts are true), with limits of our own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from neuronbench.audit.asking import Said
from neuronbench.model import Gate

FASTER: Final = 0.9
"""A repeated prompt may take this share of the time of one that was never asked."""
ALIKE: Final = 0.9
"""Share of the pairs that have to agree on it before it is no accident."""
AGREE: Final = 0.5
"""Share of first tokens that have to be those of the whole answer: greedy answers may part on a near tie."""
EARLY_SHARE: Final = 0.5
EARLY_FACTOR: Final = 5.0
COUNT_LIMIT: Final = 0.1
"""A text need not fall into the very tokens it was made of again."""
COUNT_SLACK: Final = 2
"""Tokens per answer that a text does not show: ends, and pieces of characters."""

CACHING: Final = "audit_caching"
FIRST: Final = "audit_first_token"
COUNTED: Final = "audit_output_tokens"


def caching_gate(distinct: Sequence[Said], repeated: Sequence[Said], *, declared: bool | None, forbidden: bool) -> Gate:
    """Whether one prompt asked again and again is answered faster than prompts of its length that are new.

    `declared`: the server's usage or counters say that it reuses prompts; None: it has none that could. A cache that is
    declared is a fact about the server and no cheat, unless it is `forbidden`, as where prompts were promised to be
    computed. One that nobody is told of makes every number suspect.
    """
    shares = {
        "first token": _share([said.ttft_ms for said in distinct], [said.ttft_ms for said in repeated]),
        "whole answer": _share([said.e2e_ms for said in distinct], [said.e2e_ms for said in repeated]),
    }
    what, (share, found) = min(shares.items(), key=lambda item: (not item[1][1], item[1][0]))
    if not found:
        text = f"{len(repeated)} times the same prompt and as many new ones of its length take as long"
        return Gate(id=CACHING, passed=True, observed=round(share, 3), limit=FASTER, unit="share", message=text)
    text = f"the same prompt again has its {what} after {share:.0%} of the time of a new one of its length"
    if declared and not forbidden:
        text += ": the server reuses prompts, and its usage or counters say so; distinct prompts are not affected"
    elif declared:
        text += ": the server reuses prompts, and here all were to be computed: switch its prefix cache off"
    else:
        text += ", and neither usage nor counters say that anything is reused: a cache that nobody is told of"
    return Gate(
        id=CACHING, passed=False, observed=round(share, 3), limit=FASTER, unit="share", message=text,
        severity="info" if declared and not forbidden else "invalid",
    )  # fmt: skip


def _share(new: Sequence[float], again: Sequence[float]) -> tuple[float, bool]:
    """Median of the second over that of the first, and whether that is no accident."""
    share = statistics.median(again) / max(statistics.median(new), 1e-9)
    faster = sum(b < FASTER * a for a, b in zip(new, again, strict=True))
    return share, share <= FASTER and faster >= math.ceil(ALIKE * len(new))


def first_token_gate(streamed: Sequence[Said], whole: Sequence[Said]) -> Gate:
    """Whether what comes first in a stream is the beginning of the answer, and came of the work that answers take.

    `whole`: the same questions, not streamed. A first token that is early by the work itself shows in what follows: the
    second then takes most of the time to the second, and many times a later gap.
    """
    agree = [
        bool(one.text) and one.text.startswith(said.chunks[0][1]) for said, one in zip(streamed, whole, strict=True)
    ]
    share = sum(agree) / len(agree)
    firsts = {said.chunks[0][1] for said in streamed}
    early = [_early(said) for said in streamed if len(said.chunks) > 3]
    ahead = bool(early) and sum(early) > len(early) / 2
    passed = share >= AGREE and not ahead
    if share < AGREE:
        words = "always " if len(firsts) == 1 and len(streamed) > 1 else ""
        text = f"streams begin with {words}{streamed[0].chunks[0][1]!r}, the same answers in one piece do not"
    elif ahead:
        gap = statistics.median(said.gaps_ms[0] for said in streamed if said.gaps_ms)
        text = f"the first token comes before the work: the second follows {gap:.0f} ms later, the others soon"
    else:
        text = f"{sum(agree)} of {len(agree)} streams begin as the same answer in one piece"
    return Gate(id=FIRST, passed=passed, observed=round(share, 3), limit=AGREE, unit="share", message=text)


def _early(said: Said) -> bool:
    gaps = said.gaps_ms
    return gaps[0] > EARLY_SHARE * (said.ttft_ms + gaps[0]) and gaps[0] > EARLY_FACTOR * max(
        statistics.median(gaps[1:]), 0.1
    )


def count_gate(counts: Sequence[tuple[int, int]]) -> Gate:
    """Whether answers are as long as the server's usage says: pairs of usage and tokens of the text by `/tokenize`."""
    said, found = sum(pair[0] for pair in counts), sum(pair[1] for pair in counts)
    apart = max(abs(said - found) - COUNT_SLACK * len(counts), 0) / max(said, 1)
    return Gate(
        id=COUNTED,
        passed=apart <= COUNT_LIMIT,
        observed=round(apart, 3),
        limit=COUNT_LIMIT,
        unit="share",
        message=f"{said} tokens by the usage of {len(counts)} answers, {found} in their texts by /tokenize",
    )


def unknown(id: str, why: str) -> Gate:
    """An audit that could not be made."""
    return Gate(id=id, passed=None, message=f"could not be looked into: {why}")
