"""Chat prompts come out at exactly the length asked for, or not at all."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronbench.load.chatfit import CannotFit, ChatFitter, Tokenizer, fit_text
from neuronbench.testing.truth_server import TruthServer

FIRSTS = ("time", "year", "people")
OVERHEAD = 7


def whole_words(text: str) -> int:
    return OVERHEAD + len(text.split())


def six_bytes(text: str) -> int:
    return OVERHEAD + len(re.findall(r"\S{1,6}", text))


def merging(text: str) -> int:
    """Pairs of short words are one token: adding a word may change nothing."""
    words = text.split()
    merged = sum(len(a) + len(b) <= 6 for a, b in zip(words[::2], words[1::2], strict=False))
    return OVERHEAD + len(words) - merged


@given(st.sampled_from([whole_words, six_bytes, merging]), st.integers(1, 400), st.integers(0, 1000))
@settings(max_examples=150)
def test_any_length_is_met_exactly(count: object, tokens: int, seed: int) -> None:
    text = fit_text(count, OVERHEAD + tokens, random.Random(seed), FIRSTS, OVERHEAD)  # type: ignore[arg-type]
    assert count(text) == OVERHEAD + tokens  # type: ignore[operator]
    assert text.split()[0] in FIRSTS


def test_what_cannot_be_met_is_refused() -> None:
    with pytest.raises(CannotFit, match="no chat prompt of 11 tokens"):
        fit_text(lambda text: 2 * len(text.split()), 11, random.Random(1), FIRSTS, 0)


def test_lengths_are_those_the_server_counts(truth: TruthServer) -> None:
    lengths = [20, 33, 64, 200]
    with ChatFitter(truth.url, model="truth") as fitter:
        texts = fitter.fit(lengths, warmup=1)
    tokenizer = Tokenizer(truth.url, model="truth")
    assert [tokenizer.count(text) for text in texts] == lengths
    tokenizer.close()


def test_a_server_without_tokenize_is_named_with_the_way_out(truth: TruthServer) -> None:
    fitter = ChatFitter(truth.url + "/elsewhere", model="truth")
    with pytest.raises(CannotFit, match=r"HTTP 404 .* Use the completions API"), fitter:
        fitter.fit([20])
    with (
        pytest.raises(CannotFit, match="exact chat prompts need it"),
        ChatFitter("http://127.0.0.1:9", model="m") as none,
    ):
        none.fit([20])
