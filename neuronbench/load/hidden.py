"""Tokens that were generated and not counted: by the time that was spent against the number that was counted.

A client that counts chunks of text misses tokens without text, and everything after an end that was to be ignored. The
server still takes its time for them, so the time per token of the requests that were counted whole says how many there
were. With the server's own counters `gates.token_conservation` says it exactly.
"""

from __future__ import annotations

from typing import Final

from neuronbench.model import Gate

LIMIT: Final = 0.02
EXACT: Final = 0.001
"""Counts this near to what was asked for are whole: there is nothing left that could be hidden."""


def hidden_tokens_gate(
    counted: int,
    requests: int,
    asked: int | None,
    *,
    e2e_ms: float | None,
    ttft_ms: float | None,
    tpot_ms: float | None,
) -> Gate:
    """Tokens that the time had room for / tokens counted − 1.

    `asked` tokens a request; `e2e_ms` and `ttft_ms` are means, `tpot_ms` the median, which is one of a request that was
    counted whole as long as most of them were.
    """
    if counted < 1 or requests < 1:
        return _gate(None, None, "no token was counted")
    if asked and abs(counted - requests * asked) <= EXACT * requests * asked:
        return _gate(True, 0.0, f"all {asked} tokens of all {requests} requests were counted")
    if e2e_ms is None or ttft_ms is None or not tpot_ms or tpot_ms <= 0:
        return _gate(None, None, "no time per token is known")
    room = requests * (1 + (e2e_ms - ttft_ms) / tpot_ms)
    share = room / counted - 1
    short = f", {requests * asked:,} were asked for" if asked else ""
    return _gate(share <= LIMIT, share, f"{counted:,} tokens counted{short}; the time had room for {room:,.0f}")


def _gate(passed: bool | None, observed: float | None, message: str) -> Gate:
    return Gate(id="hidden_tokens", passed=passed, observed=observed, limit=LIMIT, unit="share", message=message)
