"""What is right by each measure, on answers small enough to count by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuronbench.accuracy import Labels, Samples, Scores, Similarity, Tensors, Tokens, WordErrors, ZeroShot
from neuronbench.accuracy.words import plain

NAN, INF = float("nan"), float("inf")


def samples(count: int, truth: Any = None, **inputs: Any) -> Samples:
    return Samples(name="s", inputs={"x": np.arange(count)[:, None], **inputs}, truth=truth)


def said(scores: Scores) -> dict[str, float | None]:
    return {metric.key: metric.value for metric in scores.metrics}


def logits(*rows: list[float]) -> dict[str, Any]:
    return {"logits": np.array(rows, dtype="float32")}


def test_labels_by_the_reference_and_by_the_truth() -> None:
    ours = logits([1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0])
    theirs = logits([2, 0, 0], [0, 2, 0], [0, 2, 0], [0, 2, 0])
    alone = Labels().score(ours, theirs, samples(4))
    assert alone.candidate.tolist() == [1, 1, 0, 0]
    assert alone.reference.tolist() == [1, 1, 1, 1]
    assert not alone.by_truth
    known = Labels().score(ours, theirs, samples(4, truth=[0, 0, 2, 1]))
    assert known.candidate.tolist() == [1, 0, 1, 0]
    assert known.reference.tolist() == [1, 0, 0, 1]
    assert known.same.tolist() == [1, 1, 0, 0]
    assert known.by_truth


def test_rows_that_say_nothing_are_misses_of_either_arm() -> None:
    # argmax of each of these rows is the right class, 0
    bad = logits([NAN, 0, 0], [INF, 0, 0], [0.5, 0.5, 0.5], [1, 0, 0])
    good = logits(*[[1.0, 0, 0]] * 4)
    for truth in (None, [0, 0, 0, 0]):
        one = Labels().score(bad, good, samples(4, truth=truth))
        assert one.candidate.tolist() == [0, 0, 0, 1]
        assert one.reference.tolist() == [1, 1, 1, 1]
        assert one.same.tolist() == [0, 0, 0, 1]
    other = Labels().score(good, bad, samples(4, truth=[0, 0, 0, 0]))
    assert other.candidate.tolist() == [1, 1, 1, 1]
    assert other.reference.tolist() == [0, 0, 0, 1]


def test_an_output_that_is_not_there_or_not_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="has none per item; it has hidden"):
        Labels().score({"hidden": np.zeros((1, 2))}, {"hidden": np.zeros((1, 2))}, samples(1))
    with pytest.raises(ValueError, match="two or more numbers per item"):
        Labels().score({"logits": np.zeros((2, 1))}, {"logits": np.zeros((2, 1))}, samples(2))
    with pytest.raises(ValueError, match="as truth"):
        Labels().score(logits([0, 1]), logits([0, 1]), samples(1, truth=[[0, 1]]))


def test_zero_shot_takes_the_nearest_class() -> None:
    measure = ZeroShot(classes=[[1.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])
    theirs = {"image_embeds": np.array([[3.0, 1.0], [0.1, 0.2], [-9.0, 1.0], [1.0, 0.5]])}
    ours = {"image_embeds": np.array([[3.0, 1.0], [0.2, 0.1], [-9.0, 1.0], [NAN, 0.5]])}
    scores = measure.score(ours, theirs, samples(4, truth=[0, 1, 2, 0]))
    assert scores.reference.tolist() == [1, 1, 1, 1]
    assert scores.candidate.tolist() == [1, 0, 1, 0]
    other = ZeroShot(classes=[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert measure.settings()["classes"] != other.settings()["classes"]


VECTORS = np.array([[1.0, 0.0, 0.1], [1.0, 0.1, 0.0], [0.0, 1.0, 0.1], [0.1, 1.0, 0.0]])


def test_similarity_finds_the_partner_and_says_how_far_the_order_is_kept() -> None:
    measure = Similarity(output="e")
    same = measure.score({"e": VECTORS * 2}, {"e": VECTORS}, samples(4, truth=[1, 0, 3, 2]))
    assert same.candidate.tolist() == same.reference.tolist() == [1, 1, 1, 1]
    assert said(same)["cosine_min"] == pytest.approx(1)
    assert said(same)["rank_agreement"] == pytest.approx(1)
    mixed = VECTORS[[0, 2, 1, 3]]
    other = measure.score({"e": mixed}, {"e": VECTORS}, samples(4, truth=[1, 0, 3, 2]))
    assert other.candidate.tolist() == [0, 0, 0, 0]
    assert said(other)["cosine_min"] < 0.5
    assert said(other)["rank_agreement"] < 0.5
    assert measure.score({"e": mixed}, {"e": VECTORS}, samples(4)).reference.tolist() == [1, 1, 1, 1]


def test_embeddings_that_are_not_finite_are_misses_and_nobodys_neighbour() -> None:
    broken = VECTORS.copy()
    broken[1] = NAN
    scores = Similarity(output="e").score({"e": broken}, {"e": VECTORS}, samples(4, truth=[1, 0, 3, 2]))
    assert scores.candidate.tolist() == [0, 0, 1, 1]
    assert said(scores)["cosine_min"] is None
    assert said(scores)["rank_agreement"] is not None


def test_tokens_are_pooled_without_their_padding() -> None:
    hidden = np.zeros((3, 2, 3))
    hidden[:, 0] = VECTORS[:3]
    hidden[:, 1] = [[9, 9, 9], [NAN, 1, 1], [9, -9, 9]]
    padded = samples(3, attention_mask=np.array([[1, 0]] * 3))
    flat = Similarity(output="e").score({"e": VECTORS[:3]}, {"e": VECTORS[:3]}, samples(3))
    for pooling in ("mean", "first"):
        pooled = Similarity(output="h", pooling=pooling).score({"h": hidden}, {"h": hidden}, padded)
        assert said(pooled) == pytest.approx(said(flat))
    with pytest.raises(ValueError, match="needs the mask"):
        Similarity(output="h").score({"h": hidden}, {"h": hidden}, samples(3))
    with pytest.raises(ValueError, match="pooling"):
        Similarity(output="h", pooling="max").score({"h": hidden}, {"h": hidden}, padded)
    with pytest.raises(ValueError, match="3 or more"):
        Similarity(output="e").score({"e": VECTORS[:2]}, {"e": VECTORS[:2]}, samples(2))


def test_tokens_agree_up_to_the_first_that_differs() -> None:
    theirs = np.array([[5, 6, 7, 2, 0, 0], [5, 6, 7, 8, 2, 0], [5, 2, 0, 0, 0, 0], [5, 6, 7, 8, 9, 9]])
    ours = np.array([[5, 6, 7, 2, 9, 9], [5, 6, 1, 8, 2, 0], [5, 6, 2, 0, 0, 0], [4, 6, 7, 8, 9, 9]])
    scores = Tokens(end=2, padding=0).score({"tokens": ours}, {"tokens": theirs}, samples(4))
    assert scores.candidate.tolist() == [4, 2, 1, 0]  # what follows the end does not count
    assert scores.weight.tolist() == [4, 5, 3, 6]
    assert said(scores) == {
        "exact_match_share": 0.25, "first_divergence_min_tokens": 0, "first_divergence_p50_tokens": 1,
    }  # fmt: skip
    equal = Tokens().score({"tokens": theirs}, {"tokens": theirs}, samples(4))
    assert said(equal)["exact_match_share"] == 1
    assert said(equal)["first_divergence_min_tokens"] is None
    assert equal.weight.tolist() == [6, 6, 6, 6]


def test_tensors_are_right_within_a_share_of_the_items_largest_value() -> None:
    theirs = {"h": np.array([[100.0, 1.0], [1.0, 1.0], [1.0, 1.0]]), "ids": np.array([1, 2, 3])}
    ours = {"h": np.array([[100.09, 1.09], [1.0, 1.0015], [NAN, 1.0]]), "ids": np.array([9, 9, 9])}
    scores = Tensors(tolerance=1e-3).score(ours, theirs, samples(3))
    assert scores.candidate.tolist() == [1, 0, 0]
    assert Tensors(tolerance=2e-3).score(ours, theirs, samples(3)).candidate.tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match="floating point"):
        Tensors().score({"ids": ours["ids"]}, {"ids": theirs["ids"]}, samples(3))


def transcripts(ours: list[str], theirs: list[str], truth: list[str], **settings: Any) -> Scores:
    measure = WordErrors(transcripts=lambda outputs: outputs["text"], decoding="greedy", **settings)
    return measure.score({"text": ours}, {"text": theirs}, samples(len(truth), truth=truth))  # type: ignore[dict-item]


def test_word_errors_are_substitutions_insertions_and_deletions() -> None:
    truth = ["The cat sat, on the mat.", "Don't stop"]
    scores = transcripts(
        ["the cat sit on mat", "do not stop now please"], ["The cat sat on the mat", "don’t stop"], truth
    )
    assert scores.weight.tolist() == [6, 2]
    assert scores.reference.tolist() == [6, 2]
    assert scores.candidate.tolist() == [4, 2 - 4]  # sit, the; do, not, now, please
    assert scores.same.tolist() == [4, 0]
    assert said(scores) == {"wer_share": 6 / 8, "wer_reference_share": 0.0}
    assert "plain@1" in scores.metrics[0].note


def test_silence_is_all_words_missed() -> None:
    scores = transcripts(["", "two three"], ["one", ""], ["one", "two"])
    assert scores.candidate.tolist() == [0, 0]
    assert scores.reference.tolist() == [1, 0]
    assert scores.same.tolist() == [0, 0]


def test_normalisers_are_named_and_only_known_ones_are_taken() -> None:
    assert plain("  It's “FINE”, isn’t it? 'Yes' — rock'n'roll! ") == "it's fine isn't it yes rock'n'roll"
    assert transcripts(["A b"], ["a b"], ["a b"], normaliser="none").candidate.tolist() == [1]
    with pytest.raises(ValueError, match=r"expected one of plain@1, none; found 'whisper'"):
        transcripts(["a"], ["a"], ["a"], normaliser="whisper")
    with pytest.raises(ValueError, match="has no words"):
        transcripts(["a"], ["a"], ["..."])
    with pytest.raises(ValueError, match="transcript for each of 2 texts, found 1"):
        transcripts(["a"], ["a", "b"], ["a", "b"])
    measure = WordErrors(transcripts=lambda outputs: [], decoding="greedy")
    with pytest.raises(ValueError, match="as truth"):
        measure.score({}, {}, samples(1))
