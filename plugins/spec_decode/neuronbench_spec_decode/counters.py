"""What a server counts of its speculation, and whether that agrees with what came out of it.

vLLM counts a draft when it has verified it: so many tokens drafted, so many of them kept, and of each position how
often it was kept. A step emits what it keeps and one token more, so that of an answer

    tokens = chunks + kept - kept beyond its end

where a chunk is a step, the first of them the one that reads the prompt. What is kept beyond the end of an answer has
been counted before the answer is cut: at most a whole draft.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final

from neuronbench.telemetry.prometheus import Prometheus, ScrapeError
from neuronbench_spec_decode.asking import Answer

SETTLE_S: Final = 2.0
"""How long counters may be behind an answer that has been read."""
_SERIES = re.compile(r"^(?P<name>[^{]+)(?:\{(?P<labels>.*)\})?$")
_POSITION = re.compile(r'position="(\d+)"')
_GENERATED: Final = "vllm:generation_tokens"
_STEPS: Final = "vllm:iteration_tokens_total_count"
_DRAFTS: Final = "vllm:spec_decode_num_drafts"
_DRAFTED: Final = "vllm:spec_decode_num_draft_tokens"
_KEPT: Final = "vllm:spec_decode_num_accepted_tokens"
_KEPT_AT: Final = "vllm:spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counters at one instant, or how much they grew between two. None: the server does not count it."""

    generated: int | None
    engine_steps: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    kept: int | None = None
    kept_at: tuple[int, ...] = ()
    unread: str = ""
    """Why nothing is known of it: the counters could not be read."""

    def since(self, before: Counts) -> Counts:
        """How much has been counted since. What appears only once it is counted was 0 before."""
        if self.unread or before.unread:  # a total since the server's start is no growth
            return Counts(generated=None, unread=self.unread or before.unread)
        at = [*before.kept_at, *[0] * len(self.kept_at)]
        return Counts(
            generated=_grown(self.generated, before.generated),
            engine_steps=_grown(self.engine_steps, before.engine_steps),
            drafts=_grown(self.drafts, before.drafts), drafted=_grown(self.drafted, before.drafted),
            kept=_grown(self.kept, before.kept),
            kept_at=tuple(now - at[position] for position, now in enumerate(self.kept_at)),
        )  # fmt: skip

    def __add__(self, other: Counts) -> Counts:
        length = max(len(self.kept_at), len(other.kept_at))
        mine, theirs = ([*each, *[0] * length][:length] for each in (self.kept_at, other.kept_at))
        return Counts(
            generated=_sum(self.generated, other.generated), engine_steps=_sum(self.engine_steps, other.engine_steps),
            drafts=_sum(self.drafts, other.drafts), drafted=_sum(self.drafted, other.drafted),
            kept=_sum(self.kept, other.kept), kept_at=tuple(a + b for a, b in zip(mine, theirs, strict=True)),
            unread=self.unread or other.unread,
        )  # fmt: skip

    @property
    def went_back(self) -> bool:
        """Whether something is less than before, which no counter of one run is."""
        known = (self.generated, self.engine_steps, self.drafts, self.drafted, self.kept, *self.kept_at)
        return any(each is not None and each < 0 for each in known)


def of(series: Mapping[str, float | None]) -> Counts:
    """Counters from a scrape (`Prometheus.read`): over all engines, with `_total` or without."""
    sums: dict[str, int] = {}
    at: dict[int, int] = {}
    for key, value in series.items():
        found = _SERIES.match(key)
        if found is None or value is None:
            continue
        name = found["name"].removesuffix("_total")
        if name == _KEPT_AT and (position := _POSITION.search(found["labels"] or "")):
            at[int(position[1])] = at.get(int(position[1]), 0) + round(value)
        sums[name] = sums.get(name, 0) + round(value)
    return Counts(
        generated=sums.get(_GENERATED), engine_steps=sums.get(_STEPS), drafts=sums.get(_DRAFTS),
        drafted=sums.get(_DRAFTED), kept=sums.get(_KEPT),
        kept_at=tuple(at.get(position, 0) for position in range(max(at, default=-1) + 1)),
    )  # fmt: skip


class Reader:
    """Reads the counters of one server."""

    def __init__(self, url: str | None, api_key: str | None = None) -> None:
        self._sampler = Prometheus(url, prefixes=("vllm:",), api_key=api_key, timeout_s=5.0) if url else None

    def read(self) -> Counts:
        """The counters now; all None for a server without, or that does not say: `unread` has the reason then."""
        if self._sampler is None:
            return Counts(generated=None)
        try:
            return of(self._sampler.read())
        except (OSError, HTTPException, ScrapeError) as error:
            return Counts(generated=None, unread=f"{type(error).__name__}: {error}")

    def after(self, before: Counts, tokens: int) -> Counts:
        """What was counted since `before`, once `tokens` generated ones are in it; as it is after `SETTLE_S`."""
        until = time.monotonic() + SETTLE_S
        while True:
            grown = self.read().since(before)
            there = grown.generated is None or grown.generated >= tokens or grown.went_back
            if (there and not grown.unread) or before.unread or time.monotonic() > until:
                return grown
            time.sleep(0.01)

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()


def disagreement(answer: Answer, counted: Counts, k: int) -> str:
    """How an answer and the counters of its request contradict each other, in a few words; empty when they do not."""
    tokens = len(answer.tokens)
    if counted.went_back:
        return "the server's counters went back: it was started anew, or somebody reset them"
    if answer.counted != tokens:
        return f"its usage says {answer.counted} tokens, its chunks carry {tokens}"
    if counted.generated is not None and counted.generated != tokens:
        return f"the server counted {counted.generated} generated tokens, its chunks carry {tokens}"
    largest = max(answer.sizes)
    if largest > k + 1:
        return f"a chunk carries {largest} tokens, more than the {k + 1} that a step can emit"
    if counted.drafts is None or counted.drafted is None or counted.kept is None:
        return ""
    if counted.kept_at and sum(counted.kept_at) != counted.kept:
        return f"{counted.kept} tokens kept, {sum(counted.kept_at)} by position"
    if counted.kept > counted.drafted or counted.drafted > k * counted.drafts:
        return f"{counted.kept} tokens kept of {counted.drafted} drafted in {counted.drafts} drafts of at most {k}"
    beyond = counted.kept + len(answer.sizes) - tokens
    if not 0 <= beyond <= k:
        return (
            f"{len(answer.sizes)} steps and {counted.kept} kept tokens make {len(answer.sizes) + counted.kept}, and "
            f"the answer has {tokens}: expected 0 to {k} fewer"
        )
    return ""


def _grown(now: int | None, before: int | None) -> int | None:
    return None if now is None else now - (before or 0)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
