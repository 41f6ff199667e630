"""The audits of one server: some forty small requests, one after the other, outside of any window."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from neuronbench.audit import checks, prompts
from neuronbench.audit.asking import Asker, NoAnswer, Said, api_of
from neuronbench.model import Gate, Json
from neuronbench.protocols import Endpoint

PAIRS: Final = 12
_CACHED_TOKENS: Final = 4
_ANSWER_TOKENS: Final = 24
_HITS: Final = "vllm:prefix_cache_hits"
_OLD_HITS: Final = "vllm:gpu_prefix_cache_hits"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was found."""

    gates: Sequence[Gate]
    facts: Mapping[str, Json] = field(default_factory=dict)
    """How it was looked into: medians, counts, the seed of the prompts."""

    @property
    def passed(self) -> bool:
        """No audit found something that makes numbers invalid."""
        return not any(gate.passed is False and gate.severity == "invalid" for gate in self.gates)


def audit(
    endpoint: Endpoint,
    *,
    forbid_caching: bool = False,
    deadline_s: float = 300.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Look into three ways to have better numbers than one earns; one gate each.

    `audit_caching`: is a prompt that was asked before answered faster than new ones of its length? `forbid_caching`
    says that nothing may be answered from memory; else a cache that the server's usage or counters tell of is only
    reported. `audit_first_token`: is the first token of a stream the first of the answer, and did it take the work?
    `audit_output_tokens`: are answers as long as the usage says? A gate whose question the server did not answer is
    neither passed nor failed.
    """
    asker = Asker(endpoint=endpoint, api=api_of(endpoint), until=time.monotonic() + deadline_s)
    facts: dict[str, Json] = {"api": asker.api}
    gates = []
    parts: tuple[tuple[str, str, Callable[[], Gate]], ...] = (
        (checks.CACHING, "prompts that repeat", lambda: _caching(asker, facts, forbid_caching)),
        (checks.FIRST, "first tokens", lambda: _first(asker, facts)),
        (checks.COUNTED, "lengths of answers", lambda: _counts(asker, facts)),
    )
    for id, what, look in parts:
        progress(f"audit: {what}")
        try:
            gates.append(look())
        except NoAnswer as error:
            gates.append(checks.unknown(id, str(error)))
    facts["requests"] = asker.asked
    return Audit(gates=gates, facts=facts)


def _caching(asker: Asker, facts: dict[str, Json], forbidden: bool) -> Gate:
    endpoint = asker.endpoint
    # Drawn anew each time: the new prompts of one audit would be old ones in the next.
    seed = int.from_bytes(os.urandom(6), "big")
    length = endpoint.facts.get("max_model_len")
    vocabulary = endpoint.vocabulary if asker.api == "completions" else None
    limit = vocabulary.max_model_len if vocabulary else length if isinstance(length, int) else None
    same, *new = prompts.equal(PAIRS + 2, seed, vocabulary, limit)
    before = _hits(endpoint)
    for prompt in (new.pop(), same):
        asker.stream(prompt, tokens=_CACHED_TOKENS)
    distinct: list[Said] = []
    repeated: list[Said] = []
    for number, prompt in enumerate(new):
        turn = [(prompt, distinct), (same, repeated)]
        for each, into in turn if number % 2 else reversed(turn):
            into.append(asker.stream(each, tokens=_CACHED_TOKENS))
    after = _hits(endpoint)
    told = any(said.cached for said in repeated)
    counted = None if before is None or after is None else after > before
    facts["caching"] = {
        "seed": seed,
        "prompt_tokens": len(same) if isinstance(same, list) else None,
        "new_ttft_ms": [round(said.ttft_ms, 3) for said in distinct],
        "same_ttft_ms": [round(said.ttft_ms, 3) for said in repeated],
        "declared_by_usage": told,
        "declared_by_counters": counted,
    }
    return checks.caching_gate(distinct, repeated, declared=told or counted, forbidden=forbidden)


def _hits(endpoint: Endpoint) -> float | None:
    """Prompt tokens that the server says it found in its prefix cache so far; None where it does not count them."""
    from neuronbench.telemetry.prometheus import Prometheus, ScrapeError

    if not endpoint.metrics_url:
        return None
    counters = Prometheus(url=endpoint.metrics_url, prefixes=[_HITS, _OLD_HITS], api_key=endpoint.api_key)
    try:
        series = counters.read()
    except (ScrapeError, OSError):
        return None
    finally:
        counters.close()
    values = [value for name, value in series.items() if value is not None and "_created" not in name]
    return sum(values) if values else None


def _first(asker: Asker, facts: dict[str, Json]) -> Gate:
    streamed = [asker.stream(text, tokens=_ANSWER_TOKENS) for text in prompts.TEXTS]
    whole = [asker.say(text, tokens=_ANSWER_TOKENS) for text in prompts.TEXTS]
    facts["first_token"] = {
        "streamed": [said.chunks[0][1] for said in streamed],
        "whole": [said.text[:40] for said in whole],
        "ttft_ms": [round(said.ttft_ms, 3) for said in streamed],
        "first_gap_ms": [round(said.gaps_ms[0], 3) if said.gaps_ms else None for said in streamed],
    }
    return checks.first_token_gate(streamed, whole)


def _counts(asker: Asker, facts: dict[str, Json]) -> Gate:
    counts = []
    for text in prompts.TEXTS[:4]:
        said = asker.say(text, tokens=2 * _ANSWER_TOKENS)
        if said.tokens is None:
            return checks.unknown(checks.COUNTED, "the server gives no usage")
        counts.append((said.tokens, asker.count(said.text)))
    facts["output_tokens"] = {"usage": [pair[0] for pair in counts], "in_text": [pair[1] for pair in counts]}
    return checks.count_gate(counts)
