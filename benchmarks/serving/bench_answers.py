"""A fast server can be wrong: its greedy tokens beside those of the same weights in fp32 on the host.

Performance of a server stands on this: it runs first of all points of its model; without it they are provisional.
"""

from pathlib import Path

import pytest

import neuronbench as nb

PASSAGES = (Path(__file__).parent / "passages.txt").read_text(encoding="utf-8").splitlines()
"""Beginnings of plain prose, each of 32 tokens and more with any tokenizer."""


@nb.bench(lane="serving", grid="serving/accuracy")
def bench_accuracy(endpoint, measure, point):
    """Each token after the reference's own beginning, so that one near tie does not spoil all that follows."""
    if endpoint.facts.get("external"):
        pytest.skip("somebody else runs this server: its weights are not known, so there is no reference for it")
    measure.token_accuracy(
        endpoint,
        PASSAGES[: point["prompts"]],
        prompt_tokens=point["prompt_tokens"],
        output_tokens=point["output_tokens"],
        likelihoods=point["likelihoods"],
    )
