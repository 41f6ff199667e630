"""What is asked. Plain descriptions; the plan turns them into encoded request bodies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Prompts of an exact length in tokens, answers of an exact length (`ignore_eos`)."""

    input_tokens: int
    output_tokens: int
    seed: int = 0


def synthetic(*, input_tokens: int, output_tokens: int, seed: int = 0) -> Synthetic:
    """Prompts drawn from the model's vocabulary from `seed`; every prompt is different."""
    for name, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        if value < 1:
            raise ValueError(f"{name}: expected a whole number from 1, found {value!r}")
    return Synthetic(input_tokens=input_tokens, output_tokens=output_tokens, seed=seed)


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
