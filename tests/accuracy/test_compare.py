"""Samples, protocols, checks of outputs, and what a comparison records."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from neuronbench.accuracy import Answers, Incomparable, Labels, Samples, Tensors, checks, compare
from neuronbench.accuracy.samples import stacked
from neuronbench.model import Gate
from neuronbench.protocols import InputSpec


def asked(count: int = 120, **more: Any) -> Samples:
    return Samples(name="s", inputs={"x": np.arange(count)[:, None]}, **more)


def answers(samples: Samples, logits: Any, **protocol: Any) -> Answers:
    return Answers(samples=samples.digest, outputs={"logits": np.asarray(logits)}, protocol=protocol)


def scores(count: int = 120, classes: int = 4) -> Any:
    return np.random.default_rng(1).standard_normal((count, classes)).astype("float32")


def gates(comparison: Any) -> dict[str, bool | None]:
    return {gate.id: gate.passed for gate in comparison.gates}


def test_equal_answers_pass_everything() -> None:
    samples = asked()
    found = compare(answers(samples, scores()), answers(samples, scores()), samples, Labels(), resamples=100)
    assert found.passed is True
    assert gates(found) == {
        "finite_outputs": True, "constant_rows": True, "outputs_distinct": True, "accuracy": True,
        "accuracy_samples": True,
    }  # fmt: skip
    values = {metric.key: metric for metric in found.metrics}
    ratio = values["accuracy_ratio"]
    assert (ratio.value, ratio.low, ratio.high, ratio.confidence, ratio.n) == (1, 1, 1, 0.95, 120)
    assert "level label" in ratio.note
    assert "seed 0" in ratio.note
    assert values["agreement_share"].value == 1
    assert values["error_increase_share"].value is None
    assert values["max_abs_err"].value == values["max_rel_err"].value == 0
    assert values["cosine_min"].value == pytest.approx(1)
    assert found.facts["bootstrap"] == {"resamples": 100, "seed": 0, "confidence": 0.95}
    assert found.facts["level"] == "label"


def test_few_samples_are_provisional_and_no_evidence() -> None:
    samples = asked(20)
    found = compare(answers(samples, scores(20)), answers(samples, scores(20)), samples, Labels(), resamples=10)
    assert found.passed is None
    (gate,) = [gate for gate in found.gates if gate.id == "accuracy_samples"]
    assert (gate.passed, gate.severity, gate.observed, gate.limit) == (False, "provisional", 20, 100)
    assert "100 or more" in gate.message


def test_another_digest_or_protocol_is_refused_by_the_names_of_the_fields() -> None:
    samples, other = asked(), asked(truth=[0] * 120)
    one = answers(samples, scores(), tokenizer="a", length=128)
    with pytest.raises(Incomparable, match="samples") as caught:
        compare(one, answers(other, scores(), tokenizer="a", length=128), samples, Labels())
    assert caught.value.fields == ("samples",)
    with pytest.raises(Incomparable) as caught:
        compare(one, answers(samples, scores(), tokenizer="b", length=128, prompt="?"), samples, Labels())
    assert caught.value.fields == ("tokenizer", "prompt")
    assert 'tokenizer: "a" ≠ "b"; prompt: nothing ≠ "?"' in str(caught.value)
    with pytest.raises(ValueError, match="the answers are to samples"):
        compare(one, one, other, Labels())


def test_the_digest_minds_values_types_names_and_truth() -> None:
    base = asked()
    assert base.digest == asked().digest
    changed = [
        asked(truth=[1] * 120),
        asked(shared={"t": np.ones(1)}),
        Samples(name="s", inputs={"y": np.arange(120)[:, None]}),
        Samples(name="s", inputs={"x": np.arange(120, dtype="int32")[:, None]}),
        Samples(name="s", inputs={"x": np.arange(1, 121)[:, None]}),
    ]
    assert len({base.digest, *(each.digest for each in changed)}) == 6
    assert dataclasses.replace(base, name="renamed").digest == base.digest


def test_samples_come_in_whole_batches_of_which_the_rest_does_not_count() -> None:
    samples = Samples(name="s", inputs={"x": np.arange(7)}, shared={"prompt": np.array([9, 9])})
    made = list(samples.batches(3))
    assert [(batch["x"].tolist(), count) for batch, count in made] == [
        ([0, 1, 2], 3), ([3, 4, 5], 3), ([6, 6, 6], 1),
    ]  # fmt: skip
    assert all(batch["prompt"].tolist() == [9, 9] for batch, _ in made)
    parts = [({"y": batch["x"] * 2, "scale": np.array(1.0)}, count) for batch, count in made]
    assert {name: values.tolist() for name, values in stacked(parts, 3).items()} == {"y": list(range(0, 14, 2))}
    with pytest.raises(ValueError, match="first axis"):
        stacked([({"scale": np.array(1.0)}, 3)], 3)
    with pytest.raises(ValueError, match="as many items in each input"):
        Samples(name="s", inputs={"a": np.arange(2), "b": np.arange(3)})
    with pytest.raises(ValueError, match="truth for 3"):
        Samples(name="s", inputs={"a": np.arange(2)}, truth=[1, 2, 3])


def test_answers_for_other_than_all_items_or_of_another_shape_are_refused() -> None:
    samples = asked()
    with pytest.raises(ValueError, match="expected 120 items"):
        compare(answers(samples, scores(119)), answers(samples, scores()), samples, Labels())
    with pytest.raises(ValueError, match="expected the reference's shape"):
        compare(answers(samples, scores(classes=3)), answers(samples, scores()), samples, Labels())


def test_padding_is_no_part_of_the_differences() -> None:
    mask = np.zeros((120, 4), dtype="int64")
    mask[:, :2] = 1
    samples = Samples(name="s", inputs={"attention_mask": mask, "x": np.arange(120)[:, None]})
    hidden = np.random.default_rng(2).standard_normal((120, 4, 3))
    other = hidden.copy()
    other[:, 2:] += 100
    arms = [Answers(samples=samples.digest, outputs={"h": each}) for each in (other, hidden)]
    found = compare(arms[0], arms[1], samples, Tensors(tolerance=1e9), resamples=10)
    values = {metric.key: metric.value for metric in found.metrics}
    assert values["max_abs_err"] == 0
    other[5, 1, 1] += 0.5
    found = compare(arms[0], arms[1], samples, Tensors(tolerance=1e9), resamples=10)
    values = {metric.key: metric.value for metric in found.metrics}
    assert values["max_abs_err"] == pytest.approx(0.5)
    assert values["max_rel_err"] == pytest.approx(0.5 / np.abs(hidden[:, :2]).max())


# -- checks -----------------------------------------------------------------------------------------------------------


def verdict(gate: Gate) -> tuple[bool | None, Any]:
    assert bool(gate.message) is (gate.passed is not True)
    return gate.passed, gate.observed


def test_finite_outputs() -> None:
    rows = scores(4)
    assert verdict(checks.finite_outputs({"a": rows, "ids": np.arange(4)})) == (True, 0)
    rows[1, 1], rows[3] = np.nan, np.inf
    assert verdict(checks.finite_outputs({"a": rows})) == (False, 2)
    assert verdict(checks.finite_outputs({"ids": np.arange(4)})) == (None, None)


def test_constant_rows() -> None:
    rows, flat = scores(4), scores(4)
    flat[2] = 0.25
    assert verdict(checks.constant_rows({"a": flat}, {"a": rows})) == (False, 1)
    assert verdict(checks.constant_rows({"a": flat}, {"a": flat})) == (True, 0)  # so is the reference
    assert verdict(checks.constant_rows({"a": rows}, {})) == (True, 0)
    assert verdict(checks.constant_rows({"one": rows[:, :1], "ids": np.ones((4, 3), dtype=int)}, {})) == (None, None)


def test_outputs_distinct() -> None:
    rows, repeated = scores(5), scores(5)
    repeated[3] = repeated[0]
    inputs = {"x": np.arange(5)}
    assert verdict(checks.outputs_distinct({"a": repeated}, {"a": rows}, inputs)) == (False, 1)
    assert verdict(checks.outputs_distinct({"a": repeated}, {"a": repeated}, inputs)) == (True, 0)
    assert verdict(checks.outputs_distinct({"a": repeated}, {"a": rows}, {"x": np.array([0, 1, 2, 0, 4])})) == (True, 0)
    assert verdict(checks.outputs_distinct({"a": repeated}, {"a": rows}, {"x": np.zeros(5)})) == (None, None)
    assert verdict(checks.outputs_distinct({"a": np.ones((5, 2))}, {"a": rows[:, :2]}, inputs)) == (False, 4)


SPECS = [
    InputSpec(name="ids", dtype="int64", shape=(2, 6), kind="token_ids", low=0, high=50),
    InputSpec(name="mask", dtype="int64", shape=(2, 6), kind="attention_mask"),
]


def test_the_mask_is_tried_with_tokens_where_there_is_padding() -> None:
    batch = {
        "ids": np.array([[1, 2, 3, 4, 5, 6], [0, 0, 7, 8, 9, 10]]),
        "mask": np.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]),
    }
    probe = checks.mask_probe(SPECS, batch)
    assert probe is not None
    empty, full = probe
    assert empty["mask"].tolist() == full["mask"].tolist() == [[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]]
    assert empty["ids"].tolist() == [[1, 2, 3, 4, 0, 0], [0, 0, 7, 8, 9, 0]]
    assert full["ids"].tolist() == [[1, 2, 3, 4, 5, 6], [49, 49, 7, 8, 9, 10]]
    assert checks.mask_probe(SPECS[:1], batch) is None
    short = {"ids": batch["ids"], "mask": np.array([[1, 0, 0, 0, 0, 0]] * 2)}
    assert checks.mask_probe(SPECS, short) is None


def test_only_real_tokens_must_stay_and_16_bits_may_differ_more() -> None:
    mask = np.array([[1, 1, 0]])
    one, other = np.full((1, 3, 2), 2.0), np.full((1, 3, 2), 2.0)
    other[0, 2] = 7
    assert checks.mask_respected([({"h": one}, {"h": other})], [mask], "float32").passed is True
    other[0, 1, 0] = 2.01
    gate = checks.mask_respected([({"h": one}, {"h": other})], [mask], "float32")
    assert gate.passed is False
    assert gate.observed == pytest.approx(0.005)
    assert checks.mask_respected([({"h": one}, {"h": other})], [mask], "bfloat16").passed is True
    assert checks.mask_respected([], [], "float32", "too short").message == "too short"
    pooled = checks.mask_respected([({"p": np.array([[1.0]])}, {"p": np.array([[1.1]])})], [mask], "float32")
    assert pooled.passed is False
