"""What is asked. Plain descriptions; the plan turns them into encoded request bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """A distribution of lengths in tokens, always within `low` and `high`."""

    kind: Literal["uniform", "lognormal", "empirical"]
    low: int
    high: int
    median: float = 0.0
    sigma: float = 0.0
    """Lognormal: standard deviation of the logarithm."""
    values: tuple[int, ...] = ()
    """Empirical: drawn from these with equal chances."""


def uniform(low: int, high: int) -> Lengths:
    """Every length from `low` to `high`, both included, with equal chances."""
    _range(low, high)
    return Lengths(kind="uniform", low=low, high=high)


def lognormal(median: float, sigma: float, *, low: int = 1, high: int) -> Lengths:
    """Log-normal around `median`; draws outside of `low` and `high` are drawn again."""
    _range(low, high)
    if not low <= median <= high or not sigma > 0:
        raise ValueError(f"lognormal: expected {low} ≤ median ≤ {high} and sigma above 0, found {median!r}, {sigma!r}")
    return Lengths(kind="lognormal", low=low, high=high, median=median, sigma=sigma)


def empirical(values: Sequence[int]) -> Lengths:
    """Drawn from observed lengths."""
    if not values or min(values) < 1:
        raise ValueError("empirical: expected lengths from 1, found " + ("none" if not values else str(min(values))))
    return Lengths(kind="empirical", low=min(values), high=max(values), values=tuple(values))


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Prompts of an exact length in tokens, answers of an exact length (`ignore_eos`)."""

    input_tokens: int | Lengths
    output_tokens: int | Lengths
    seed: int = 0
    prefixes: int = 0
    """Number of shared prefixes; each prompt begins with one of them."""
    prefix_tokens: int = 0
    """Their length."""

    @property
    def longest_input(self) -> int:
        return self.input_tokens if isinstance(self.input_tokens, int) else self.input_tokens.high

    @property
    def longest_output(self) -> int:
        return self.output_tokens if isinstance(self.output_tokens, int) else self.output_tokens.high


def synthetic(
    *,
    input_tokens: int | Lengths,
    output_tokens: int | Lengths,
    seed: int = 0,
    prefix_hit_ratio: float | None = None,
    prefixes: int = 1,
    prefix_tokens: int | None = None,
) -> Synthetic:
    """Prompts drawn from the model's vocabulary from `seed`; every prompt is different.

    `prefix_tokens` lets them share one of `prefixes` beginnings of that length. `prefix_hit_ratio` chooses the length
    instead, as that share of a fixed input length; what the server's prefix cache can reach with it (the first use of a
    prefix misses) is worked out in the plan, and what it did reach is in its counters.
    """
    for name, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{name}: expected a whole number from 1, found {value!r}")
    if prefix_hit_ratio is not None:
        if prefix_tokens is not None or not isinstance(input_tokens, int):
            raise ValueError("prefix_hit_ratio: needs a fixed input_tokens and no prefix_tokens")
        if not 0 <= prefix_hit_ratio < 1:
            raise ValueError(f"prefix_hit_ratio: expected a share from 0 to below 1, found {prefix_hit_ratio!r}")
        prefix_tokens = round(prefix_hit_ratio * input_tokens)
    length = prefix_tokens or 0
    shortest = input_tokens if isinstance(input_tokens, int) else input_tokens.low
    if not 0 <= length < shortest:
        raise ValueError(f"prefix_tokens: expected 0 to {shortest - 1} (below the shortest input), found {length!r}")
    if prefixes < 1:
        raise ValueError(f"prefixes: expected a whole number from 1, found {prefixes!r}")
    return Synthetic(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        seed=seed,
        prefixes=prefixes if length else 0,
        prefix_tokens=length,
    )


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Prompts from a file.

    `sharegpt`: a JSON list of `{"conversations": [{"from": "human", "value": ...}, ...]}`; the first human turn is the
    prompt. `jsonl`: JSON lines with `prompt` (text), `messages` (chat), `input_ids` (token ids) or `input`, and
    optional `output_tokens`. `bodies`: JSON lines, each the fields of a whole request body (embeddings, score, rerank,
    anything).
    """

    path: str
    format: Literal["sharegpt", "jsonl", "bodies"]
    output_tokens: int | None = None
    """Length of every answer; None: as the row says, else answers end by themselves, after 256 tokens at the latest."""
    seed: int = 0
    """Order of the rows."""


def dataset(
    path: str | Path,
    *,
    format: Literal["sharegpt", "jsonl", "bodies"],
    output_tokens: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Prompts from a file, in an order drawn from `seed`."""
    if output_tokens is not None and output_tokens < 1:
        raise ValueError(f"output_tokens: expected a whole number from 1, found {output_tokens!r}")
    return Dataset(path=str(path), format=format, output_tokens=output_tokens, seed=seed)


Workload: TypeAlias = Synthetic | Dataset
"""Or the `neuronbench.load.arrivals.Trace` that gives the arrivals."""


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Requests before the load, of prompts it never uses: one alone, then the rest at the load's concurrency."""

    requests: int | None = None
    """How many; None is one more than the load keeps in flight, so that every slot has had one. 0 for none."""


def warm_up(requests: int | None = None) -> Warmup:
    """`requests` warm-up requests; None chooses by the load."""
    if requests is not None and requests < 0:
        raise ValueError(f"warm-up requests: expected 0 or more, found {requests!r}")
    return Warmup(requests=requests)


def _range(low: int, high: int) -> None:
    if not 1 <= low <= high:
        raise ValueError(f"lengths: expected 1 ≤ low ≤ high, found {low!r} and {high!r}")
