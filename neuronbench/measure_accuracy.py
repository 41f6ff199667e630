"""Asking a compiled model and its reference the same samples, and recording what came of it.

First the candidate answers all samples, batch by batch, and its mask is tried on some of them; then the reference does,
in a worker of its own that ends afterwards. What is compared, and how, is `neuronbench.accuracy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from neuronbench.accuracy import checks
from neuronbench.accuracy.compare import Comparison, compare
from neuronbench.accuracy.measures import Measure
from neuronbench.accuracy.samples import Answers, Incomparable, Samples, stacked
from neuronbench.measure_workers import or_logs
from neuronbench.model import Failure, Gate, Json
from neuronbench.protocols import CompiledModel, PointFailure
from neuronbench.receipts.evidence import PART, artifact_hash

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session

MASK_BATCHES: Final = 8
"""Calls that try the mask, at most; spread over the samples."""
REFERENCE: Final = "same weights in fp32, not compiled, on this host"


def accuracy(
    session: Session,
    opened: OpenRecord,
    model: CompiledModel,
    samples: Samples,
    *,
    measure: Measure,
    reference: Answers | None,
    seed: int,
) -> Comparison:
    """See `Measure.accuracy`."""
    point = opened.record.point.id
    protocol = protocol_of(model, samples, measure)
    logged = {path: path.stat().st_size for path in model.logs if path.is_file()}

    def ask() -> tuple[Answers, Gate, Answers]:
        session.progress(f"{point}: {samples.count} samples, {model.spec.id}")
        answers, mask = answers_of(model, samples, protocol)
        if reference is not None:
            return answers, mask, reference
        session.progress(f"{point}: {samples.count} samples, the reference in fp32")
        return answers, mask, reference_of(model, samples, protocol)

    answers, mask, wanted = or_logs(opened, model, logged, ask)
    try:
        found = compare(answers, wanted, samples, measure, seed=seed, mask=mask)
    except Incomparable as error:
        raise PointFailure(
            Failure(
                kind="incomparable", phase="check", message=str(error), causal_line=str(error),
                cause=f"they differ in: {', '.join(error.fields)}",
                remedy="Make the reference's answers again, from these samples and under this protocol.",
            )
        ) from error  # fmt: skip
    record = opened.record
    record.add(*(each for each in found.metrics if each.key not in record.metrics))
    record.gate(*found.gates)
    part = {"name": samples.name, "artifact": artifact_hash(model.facts), "passed": found.passed, **found.facts}
    kept = getattr(model, "reference_source", None)
    if kept and reference is None:
        part["kept"] = dict(kept)
        record.notes += [f"reference: {note}" for note in kept["notes"]]
    record.workload.setdefault(PART, []).append(part)
    return found


def protocol_of(model: CompiledModel, samples: Samples, measure: Measure) -> dict[str, Json]:
    """All that must be equal for two arms to be compared: the samples' protocol, the measure's, the model's weights."""
    weights = model.facts.get("model")
    known = weights if isinstance(weights, Mapping) else {}
    identity = {name: known.get(name) for name in ("weights_digest", "weights", "seed", "architecture")}
    return {
        **samples.protocol,
        "measure": measure.name,
        **{f"measure.{name}": value for name, value in measure.settings().items()},
        **{f"model.{name}": value for name, value in identity.items() if value not in (None, "")},
        "task": model.spec.settings.get("task"),
    }


def answers_of(model: CompiledModel, samples: Samples, protocol: Mapping[str, Json]) -> tuple[Answers, Gate]:
    """The compiled model's answers, and whether it minds its mask."""
    size = model.batch_size
    parts, probes, masks = [], [], []
    calls = -(-samples.count // size)
    every = max(1, -(-calls // MASK_BATCHES))
    missing = "the model has no tokens with a mask"
    mask_name = next((spec.name for spec in model.inputs if spec.kind == "attention_mask"), None)
    for index, (batch, count) in enumerate(samples.batches(size)):
        parts.append((model.outputs(batch), count))
        if index % every == 0 and mask_name is not None:
            probe = checks.mask_probe(model.inputs, batch)
            if probe is None:
                missing = "the samples are too short to turn tokens into padding"
                continue
            probes.append((model.outputs(probe[0]), model.outputs(probe[1])))
            masks.append(probe[0][mask_name])
    gate = checks.mask_respected(probes, masks, str(model.spec.settings.get("dtype", "float32")), missing)
    outputs = stacked(parts, size)
    return Answers(samples=samples.digest, outputs=outputs, protocol=protocol, made_by=model.spec.id), gate


def reference_of(model: CompiledModel, samples: Samples, protocol: Mapping[str, Json]) -> Answers:
    """The reference's answers to the same calls."""
    given = list(samples.batches(model.batch_size))
    several = getattr(model, "references", None)
    batches = [batch for batch, _ in given]
    answers = several(batches) if callable(several) else [model.reference(batch) for batch in batches]
    parts = [(answer, count) for answer, (_, count) in zip(answers, given, strict=True)]
    outputs = stacked(parts, model.batch_size)
    return Answers(samples=samples.digest, outputs=outputs, protocol=protocol, made_by=REFERENCE)


__all__ = ["accuracy", "answers_of", "protocol_of", "reference_of"]
