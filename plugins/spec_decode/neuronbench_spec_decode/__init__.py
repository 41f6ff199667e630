"""The lane `spec_decode`: what speculative decoding gains, what it costs, and whether it changes a single token.

This module is loaded with every `neuronbench` and every `pytest`: it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from neuronbench import LaneInfo, hookimpl

NEURONBENCH_API = "1.1"

LANE: Final = LaneInfo(
    name="spec_decode",
    title="Speculative decoding",
    headline=(
        "decode_speedup_best_x", "e2e_speedup_best_x", "measured_best_k_tokens", "predicted_best_k_tokens",
        "accepted_per_step_longest_tokens", "acceptance_rate_longest_share",
    ),
    definitions={
        "decode_speedup": (
            "x", "higher",
            "time from the first to the last chunk at k = 0 / the same at k; geometric mean over prompts, each beside "
            "its own baseline",
        ),
        "e2e_speedup": (
            "x", "higher",
            "time from the request's first byte to the last chunk at k = 0 / the same at k; geometric mean over "
            "prompts, each beside its own baseline",
        ),
        "tokens_per_step": (
            "tokens", "higher", "tokens after the first chunk / chunks after the first: what a decode step emits"
        ),
        "decode_step": ("ms", "lower", "time from the first to the last chunk / chunks after the first"),
        "drafted_steps": ("share", None, "decode steps in which anything was drafted / decode steps"),
        "draft_cost": (
            "ms/token", "lower", "slope of the time of a step over the tokens drafted in it, by least squares"
        ),
        "step_floor": ("ms", "lower", "time of a step in which nothing is drafted, by the same fit: its intercept"),
        "step_fit_error": ("ms", "lower", "root mean square of what the fit leaves of the times of steps"),
        "measured_best_k": (
            "tokens", None, "draft length with the shortest decoding of those measured; 0 where none beat the baseline"
        ),
        "predicted_best_k": (
            "tokens", None,
            "draft length with the least time per token by the fitted cost and the measured acceptance, up to the "
            "longest measured",
        ),
        "predicted_speedup": ("x", "higher", "time per token at k = 0 / at the predicted best length, both fitted"),
        "equal_answers": ("share", "higher", "answers that are those of k = 0 token by token / answers at k > 0"),
    },
    benchmarks="neuronbench_spec_decode.benchmarks",
)  # fmt: skip


@hookimpl
def register_lanes(register: Callable[[LaneInfo], None]) -> None:
    register(LANE)
