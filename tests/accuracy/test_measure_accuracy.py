"""`measure.accuracy` with real workers: each trap by its gate, the honest model, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neuronbench import accuracy, config, measure_accuracy
from neuronbench.accuracy import Answers, Labels, Samples
from neuronbench.measure import Measure
from neuronbench.model import FrozenMap, Gate, Outcome, Point, Record, ResourceRef, Validity
from neuronbench.plugins import Plugins
from neuronbench.protocols import PointFailure
from neuronbench.receipts import accuracy_evidence, artifact_hash
from neuronbench.session import Session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    settings = config.load(tmp_path, environ={})
    made = Session(settings, Plugins(entry_points=False))
    made._sinks = []
    yield made
    made.close(0)


class Bench:
    """A point that is being measured."""

    def __init__(self, session: Session, name: str) -> None:
        point = Point(benchmark="b.py::f", lane="encoder", backend="fake", params=FrozenMap(), id=name)
        self.session, self.opened = session, session.open_record(point)
        self.measure = Measure(session, self.opened)

    @property
    def record(self) -> Record:
        return self.opened.record

    def gates(self) -> dict[str, Gate]:
        return {gate.id: gate for gate in self.record.gates}

    def failed(self) -> set[str]:
        return {id for id, gate in self.gates().items() if gate.passed is False}

    def end(self, model: Any, outcome: Outcome = Outcome.OK) -> Record:
        self.record.resource = ResourceRef(
            id="m", kind="compiled_model", spec=FrozenMap(), facts=FrozenMap(model.facts)
        )
        self.session.commit(self.opened, outcome)
        return self.record


@pytest.fixture
def bench(session: Session) -> Callable[..., Bench]:
    return lambda name="p": Bench(session, name)


TRAPS = {
    "nan": {"finite_outputs", "accuracy"},
    "ignores_mask": {"mask_respected"},  # its labels happen to be right all the same
    "constant": {"outputs_distinct", "accuracy"},
    "flat": {"constant_rows", "outputs_distinct", "accuracy"},
    "wrong_labels": {"accuracy"},
}


@pytest.mark.parametrize("behaviour", TRAPS)
def test_each_trap_is_invalid_by_its_gates(behaviour: str, bench, classifier, rows) -> None:
    model, point = classifier(behaviour), bench()
    found = point.measure.accuracy(model, rows(), measure=Labels())
    assert found.passed is False
    assert point.failed() >= TRAPS[behaviour]
    if behaviour == "wrong_labels":
        assert point.failed() == {"accuracy"}
        assert point.record.metrics["agreement_share"].value == pytest.approx(0.97)
        assert "label level: 0.9700 of the reference's accuracy" in point.gates()["accuracy"].message
    record = point.end(model)
    assert record.validity is Validity.INVALID
    assert all(point.gates()[id].message for id in point.failed())


@pytest.mark.parametrize("behaviour", ["plain", "rounded"])
def test_an_honest_model_is_valid_and_everything_is_recorded(behaviour: str, bench, classifier, rows, session) -> None:
    model, point, samples = classifier(behaviour), bench(), rows(protocol={"tokenizer": "none"})
    found = point.measure.accuracy(model, samples, measure=Labels(), seed=7)
    assert found.passed is True
    assert {id: gate.passed for id, gate in point.gates().items()} == dict.fromkeys(
        ("finite_outputs", "constant_rows", "outputs_distinct", "mask_respected", "accuracy", "accuracy_samples"), True
    )
    record = point.end(model)
    assert record.validity is Validity.VALID
    assert record.metrics["accuracy_ratio"].value == 1
    assert record.metrics["accuracy_ratio"].n == 200
    (part,) = record.workload["accuracy"]
    assert part["artifact"] == artifact_hash(model.facts) == f"key-{behaviour}"
    assert part["passed"] is True
    assert part["samples"] == samples.digest
    assert part["protocol"]["tokenizer"] == "none"
    assert part["protocol"]["model.weights_digest"] == "w1"
    assert part["bootstrap"] == {"resamples": 2000, "seed": 7, "confidence": 0.95}
    assert "fp32" in part["reference"]
    evidence = accuracy_evidence(session.store, f"key-{behaviour}")
    assert evidence is not None
    assert (evidence.receipt, evidence.passed) == (record.receipt_id, True)


def test_the_reference_is_asked_in_one_worker_that_ends(bench, classifier, rows, tmp_path: Path) -> None:
    model, point = classifier(), bench()
    point.measure.accuracy(model, rows(), measure=Labels())
    assert len(list(tmp_path.glob("*-reference.log"))) == 1
    assert len(list((tmp_path / "pids").glob("*.json"))) == 1  # the model's own worker


def test_the_reference_is_asked_once_for_all_models_of_the_same_weights(
    bench, classifier, rows, tmp_path: Path
) -> None:
    for name, behaviour, cache in (("first", "plain", "miss"), ("second", "plain", "hit"), ("third", "nan", "hit")):
        model, point = classifier(behaviour), bench(name)
        found = point.measure.accuracy(model, rows(), measure=Labels())
        assert found.passed is (behaviour == "plain")
        (part,) = point.record.workload["accuracy"]
        assert part["kept"]["cache"] == cache
    assert len(list(tmp_path.glob("*-reference.log"))) == 1
    (file,) = tmp_path.glob("cache/references/*/answers.npz")
    file.write_bytes(b"x" + file.read_bytes()[1:])
    point = bench("fourth")
    assert point.measure.accuracy(classifier(), rows(), measure=Labels()).passed
    assert "the reference in the cache was damaged" in point.record.notes[0]


def test_truth_lets_the_error_rate_decide_too(bench, classifier, rows) -> None:
    samples: Samples = rows()
    model = classifier("wrong_labels")
    answers = measure_accuracy.reference_of(model, samples, {}).outputs["logits"].argmax(axis=1)
    known = rows(truth=answers.tolist())
    point = bench()
    found = point.measure.accuracy(model, known, measure=Labels())
    assert found.verdict.by_truth
    assert "where there is none in the reference's" in point.gates()["accuracy"].message


def test_answers_made_elsewhere_are_refused_under_another_protocol(bench, classifier, rows) -> None:
    model, samples = classifier(), rows(protocol={"tokenizer": "a"})
    protocol = measure_accuracy.protocol_of(model, samples, Labels())
    wanted = measure_accuracy.reference_of(model, samples, protocol)
    assert bench("same").measure.accuracy(model, samples, measure=Labels(), reference=wanted).passed is True
    other = Answers(samples=samples.digest, outputs=wanted.outputs, protocol={**protocol, "tokenizer": "b"})
    point = bench("other")
    with pytest.raises(PointFailure) as caught:
        point.measure.accuracy(model, samples, measure=Labels(), reference=other)
    assert caught.value.failure.kind == "incomparable"
    assert caught.value.failure.cause == "they differ in: tokenizer"
    assert point.record.metrics == {}
    with pytest.raises(PointFailure, match=r"measure\.output"):
        point.measure.accuracy(model, samples, measure=Labels(output="scale"), reference=wanted)


def test_a_model_that_fails_leaves_its_last_words_in_the_receipt(bench, classifier, rows) -> None:
    model, point = classifier("raises"), bench()
    with pytest.raises(PointFailure) as caught:
        point.measure.accuracy(model, rows(), measure=Labels())
    assert caught.value.failure.kind == "worker_exception"
    assert "told to raise" in (point.opened.folder / caught.value.failure.log).read_text()


def test_text_needs_a_tokenizer_and_tokens(classifier) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer.json in seeded weights"):
        accuracy.encode(classifier(), ["a"], name="s")


# -- performance stands on it -----------------------------------------------------------------------------------------


def performance(point: Bench, model: Any) -> Record:
    point.measure.metric("latency", 1.0, stat="p50", n=10)
    return point.end(model)


def test_performance_is_provisional_until_accuracy_of_the_same_artifact_stands_beside_it(
    bench, classifier, rows, session
) -> None:
    model, other = classifier("plain", artifact="one"), classifier("plain", artifact="two")
    before = performance(bench("before"), model)
    assert before.validity is Validity.PROVISIONAL
    gate = before.gates[-1]
    assert (gate.id, gate.passed, gate.severity) == ("accuracy_evidence", False, "provisional")
    assert "no accuracy record of artifact one" in gate.message
    judged = bench("accuracy")
    judged.measure.accuracy(model, rows(), measure=Labels())
    shown = judged.end(model)
    assert "accuracy_evidence" not in judged.gates()  # it has no performance
    after = performance(bench("after"), model)
    assert after.validity is Validity.VALID
    assert after.gates[-1].observed == shown.receipt_id
    assert performance(bench("other"), other).validity is Validity.PROVISIONAL


def test_performance_of_an_artifact_that_answers_wrong_is_invalid(bench, classifier, rows) -> None:
    model = classifier("wrong_labels")
    judged = bench("accuracy")
    judged.measure.accuracy(model, rows(), measure=Labels())
    shown = judged.end(model)
    after = performance(bench("after"), model)
    assert after.validity is Validity.INVALID
    assert shown.receipt_id in after.gates[-1].message


def test_one_record_may_have_both(bench, classifier, rows) -> None:
    model, point = classifier(), bench()
    point.measure.accuracy(model, rows(), measure=Labels())
    record = performance(point, model)
    assert record.validity is Validity.VALID
    assert record.gates[-1].observed == record.receipt_id


def test_a_point_without_numbers_of_speed_needs_no_evidence(bench, classifier) -> None:
    point = bench()
    point.measure.metric("max_abs_err", 0.0)
    assert point.end(classifier()).gates == []
