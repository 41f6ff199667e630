"""A candidate's answers against the reference's: refused when not of the same question, else numbers and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuronbench.accuracy import checks, rule
from neuronbench.accuracy.measures import Measure, is_float
from neuronbench.accuracy.rule import Verdict, judge
from neuronbench.accuracy.samples import Answers, Arrays, Samples, demand_comparable
from neuronbench.definitions import metric
from neuronbench.model import Gate, Json, Metric


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came of it."""

    verdict: Verdict
    metrics: Sequence[Metric]
    gates: Sequence[Gate]
    facts: Mapping[str, Json]

    @property
    def passed(self) -> bool | None:
        """Whether this is evidence for the candidate (True), against it (False), or neither (None)."""
        if any(gate.passed is False and gate.severity == "invalid" for gate in self.gates):
            return False
        return True if self.verdict.passed and self.verdict.enough else None


def compare(
    candidate: Answers,
    reference: Answers,
    samples: Samples,
    measure: Measure,
    *,
    seed: int = 0,
    resamples: int = rule.RESAMPLES,
    mask: Gate | None = None,
) -> Comparison:
    """Score both arms by `measure` and apply the rule and the checks.

    Raises `Incomparable` when digest or protocol differ, `ValueError` when the outputs are not what the measure reads.
    `mask` is the gate of a mask that was tried (`checks.mask_respected`).
    """
    demand_comparable(candidate, reference)
    if candidate.samples != samples.digest:
        raise ValueError(f"the answers are to samples {candidate.samples}, expected {samples.digest} ({samples.name})")
    for arm in (candidate, reference):
        short = {name: len(values) for name, values in arm.outputs.items() if len(values) != samples.count}
        if short:
            raise ValueError(f"{arm.made_by or 'answers'}: expected {samples.count} items, found {short}")
    scores = measure.score(candidate.outputs, reference.outputs, samples)
    verdict = judge(
        scores.candidate, scores.reference, scores.weight, by_truth=scores.by_truth, seed=seed, resamples=resamples
    )
    metrics = [*_metrics(verdict, measure, float(scores.same.sum())), *scores.metrics]
    known = {each.key for each in metrics}
    metrics += [each for each in tensor_metrics(candidate.outputs, reference.outputs, samples) if each.key not in known]
    gates = [
        checks.finite_outputs(candidate.outputs),
        checks.constant_rows(candidate.outputs, reference.outputs),
        checks.outputs_distinct(candidate.outputs, reference.outputs, samples.inputs),
        *([mask] if mask is not None else []),
        accuracy_gate(verdict, measure),
        samples_gate(verdict, measure),
    ]
    return Comparison(
        verdict=verdict, metrics=metrics, gates=gates, facts=_facts(verdict, candidate, reference, measure)
    )


def accuracy_gate(verdict: Verdict, measure: Measure) -> Gate:
    """The rule as a gate."""
    return Gate(
        id="accuracy", passed=verdict.passed, observed=None if verdict.ratio is None else round(verdict.ratio, 9),
        limit=rule.RATIO, message=f"{measure.level} level: {verdict.reason}" if verdict.reason else "",
    )  # fmt: skip


def samples_gate(verdict: Verdict, measure: Measure) -> Gate:
    """Whether there are enough samples for the rule to tell anything."""
    what = f"{measure.level}s"
    why = f"with {verdict.weight:g} {what} one miss weighs more than the rule allows; use {rule.ENOUGH} or more"
    return Gate(
        id="accuracy_samples", passed=verdict.enough, observed=verdict.weight, limit=rule.ENOUGH, unit=what,
        severity="provisional", message="" if verdict.enough else why,
    )  # fmt: skip


def _metrics(verdict: Verdict, measure: Measure, same: float) -> list[Metric]:
    n, level = verdict.n, f"level {measure.level}"
    low, high = verdict.ratio_bounds or (None, None)
    by = "by the truth of the samples" if verdict.by_truth else "the reference's answers are the truth"
    increase = "" if verdict.error_increase is not None else "the reference makes no error"
    return [
        metric("agreement", same / verdict.weight if verdict.weight else None, n=n, note=level),
        metric("accuracy", verdict.candidate, stat="candidate", n=n, note=f"{level}; {by}"),
        metric("accuracy", verdict.reference, stat="reference", n=n, note=f"{level}; {by}"),
        metric("accuracy_ratio", verdict.ratio, n=n, low=low, high=high,
               confidence=None if low is None else rule.CONFIDENCE,
               note=f"{level}; paired bootstrap of {verdict.resamples} resamples, seed {verdict.seed}"),
        metric("error_increase", verdict.error_increase, n=n, note=increase if verdict.by_truth else by),
    ]  # fmt: skip


def tensor_metrics(outputs: Arrays, reference: Arrays, samples: Samples) -> list[Metric]:
    """Largest differences and least cosine over all outputs of floating point; of outputs per token, the real ones."""
    import numpy as np

    absolute, relative, cosine, n, finite = 0.0, 0.0, 1.0, 0, True
    for name, theirs in reference.items():
        if name not in outputs or not is_float(theirs):
            continue
        ours = _real(outputs[name], samples).astype("f8").reshape(samples.count, -1)
        wanted = _real(theirs, samples).astype("f8").reshape(samples.count, -1)
        if ours.shape != wanted.shape:
            raise ValueError(
                f"output {name!r}: expected the reference's shape {theirs.shape}, found {outputs[name].shape}"
            )
        n += wanted.size
        finite = finite and bool(np.isfinite(ours).all() and np.isfinite(wanted).all())
        if not finite:
            continue
        worst = float(np.abs(ours - wanted).max(initial=0.0))
        scale = float(np.abs(wanted).max(initial=0.0))
        absolute, relative = (
            max(absolute, worst),
            max(relative, worst / scale if scale else 0.0 if not worst else np.inf),
        )
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(wanted, axis=1)
        if wanted.shape[1] > 1 and (lengths > 0).all():
            cosine = min(cosine, float(((ours * wanted).sum(axis=1) / lengths).min(initial=1.0)))
    if not n:
        return []
    note = "" if finite else "an answer is not finite"
    bounded = finite and np.isfinite(relative)
    return [
        metric("max_abs_err", absolute if finite else None, n=n, note=note or "against fp32, not compiled"),
        metric("max_rel_err", relative if bounded else None, n=n, note=note or "of the reference's largest value"),
        metric("cosine", cosine if finite else None, stat="min", n=samples.count, note=note),
    ]


def _real(values: Any, samples: Samples) -> Any:
    """Outputs per token with zeros where the item has padding; others as they are."""
    import numpy as np

    for name, mask in samples.inputs.items():
        if name.endswith("attention_mask") and mask.ndim == 2 and values.shape[:2] == mask.shape:
            real = mask.astype(bool).reshape(*mask.shape, *[1] * (values.ndim - 2))
            return np.where(real, values, 0)
    return values


def _facts(verdict: Verdict, candidate: Answers, reference: Answers, measure: Measure) -> dict[str, Json]:
    return {
        "measure": measure.name,
        "level": measure.level,
        "by_truth": verdict.by_truth,
        "items": verdict.n,
        "weight": verdict.weight,
        "samples": candidate.samples,
        "protocol": dict(candidate.protocol),
        "candidate": candidate.made_by,
        "reference": reference.made_by,
        "rule": {"ratio": rule.RATIO, "error_increase": rule.ERROR_INCREASE},
        "bootstrap": {"resamples": verdict.resamples, "seed": verdict.seed, "confidence": rule.CONFIDENCE},
    }
