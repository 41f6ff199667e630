"""Checks of outputs that need no truth: what no honest model does, whatever it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from neuronbench.accuracy.measures import is_float
from neuronbench.accuracy.samples import Arrays
from neuronbench.model import Gate
from neuronbench.protocols import InputSpec

if TYPE_CHECKING:
    import numpy.typing as npt

MASK_LIMIT: Final[Mapping[str, float]] = {"float32": 1e-3, "float64": 1e-3}
MASK_LIMIT_SHORT: Final = 2e-2
"""For models with 16-bit arithmetic."""
KEEP: Final = 2 / 3
"""Of an item's tokens that stay when the mask is tried: the rest becomes padding."""


def finite_outputs(outputs: Arrays) -> Gate:
    """No NaN and no infinity in any item's outputs."""
    import numpy as np

    found = [np.isfinite(values.reshape(len(values), -1)).all(axis=1) for _, values in _floats(outputs)]
    if not found:
        return Gate(id="finite_outputs", passed=None, message="no output is of floating point")
    finite = np.all(found, axis=0)
    return _counted("finite_outputs", int((~finite).sum()), len(finite), "have NaN or infinity in their outputs")


def constant_rows(outputs: Arrays, reference: Arrays) -> Gate:
    """No item's output is one number all over, unless the reference's is."""
    import numpy as np

    worst, count = 0, 0
    for name, values in _floats(outputs):
        flat = values.reshape(len(values), -1)
        if flat.shape[1] < 2:
            continue
        count = len(values)
        same = np.isfinite(flat).all(axis=1) & (flat.max(axis=1) == flat.min(axis=1))
        if name in reference:
            theirs = reference[name].reshape(len(values), -1)
            same &= theirs.max(axis=1) > theirs.min(axis=1)
        worst = max(worst, int(same.sum()))
    if not count:
        return Gate(id="constant_rows", passed=None, message="no output has several numbers of floating point")
    return _counted("constant_rows", worst, count, "have an output that is the same number all over")


def outputs_distinct(outputs: Arrays, reference: Arrays, inputs: Arrays) -> Gate:
    """Different inputs do not have the same outputs to the last bit, unless the reference's are the same too."""
    floats = [name for name, _ in _floats(outputs)]
    asked = _digests([inputs[name] for name in sorted(inputs)])
    if len(set(asked)) < 2 or not floats:
        why = "no two samples differ" if floats else "no output is of floating point"
        return Gate(id="outputs_distinct", passed=None, message=why)
    ours = _digests([outputs[name] for name in floats])
    theirs = _digests([reference[name] for name in floats if name in reference])
    first: dict[bytes, int] = {}
    repeated = 0
    for index, answer in enumerate(ours):
        known = first.setdefault(answer, index)
        repeated += asked[known] != asked[index] and (not theirs or theirs[known] != theirs[index])
    return _counted("outputs_distinct", repeated, len(ours), "have the very outputs of an item with other inputs")


def mask_probe(inputs: Sequence[InputSpec], batch: Arrays) -> tuple[Arrays, Arrays] | None:
    """The batch with a part of each item's tokens turned into padding, twice: with nothing in it, and with tokens.

    What a model answers for the remaining tokens is the same for both. None for inputs without tokens and mask, or
    whose items are too short to take anything away.
    """
    import numpy as np

    kinds = {spec.kind: spec for spec in inputs}
    if not {"token_ids", "attention_mask"} <= kinds.keys():
        return None
    mask, ids = kinds["attention_mask"], kinds["token_ids"]
    if mask.shape != ids.shape or len(mask.shape) != 2:
        return None
    old = batch[mask.name].astype(bool)
    rank = np.cumsum(old, axis=1)
    kept = old & (rank <= np.ceil(KEEP * rank[:, -1:]))
    if (kept == old).all() or not kept.any(axis=1).all():
        return None
    empty, full = (dict(batch) for _ in range(2))
    for changed in (empty, full):
        changed[mask.name] = kept.astype(batch[mask.name].dtype)
    tokens = batch[ids.name]
    empty[ids.name] = np.where(kept, tokens, ids.low).astype(tokens.dtype)
    # What was padding before gets a token too: it may be where a kernel's tile ends.
    full[ids.name] = np.where(old, tokens, ids.high - 1).astype(tokens.dtype)
    return empty, full


def mask_respected(pairs: Sequence[tuple[Arrays, Arrays]], masks: Sequence[Any], dtype: str, missing: str = "") -> Gate:
    """The answers for real tokens of `mask_probe`'s batches agree; `masks` are those of the batches."""
    import numpy as np

    if not pairs:
        return Gate(id="mask_respected", passed=None, message=missing or "the model has no tokens with a mask")
    worst = 0.0
    for (one, other), mask in zip(pairs, masks, strict=True):
        kept = np.asarray(mask, dtype=bool)
        for name, values in _floats(one):
            per_token = values.ndim >= 2 and values.shape[:2] == kept.shape
            first, second = (values[kept], other[name][kept]) if per_token else (values, other[name])
            if np.isfinite(first).all() and np.isfinite(second).all():  # else it is another gate's business
                scale = float(np.abs(first).max(initial=0.0)) or 1.0
                worst = max(worst, float(np.abs(first.astype("f8") - second.astype("f8")).max(initial=0.0)) / scale)
    limit = MASK_LIMIT.get(dtype, MASK_LIMIT_SHORT)
    return Gate(
        id="mask_respected", passed=worst <= limit, observed=worst, limit=limit, unit="share",
        message="" if worst <= limit else f"more padding changes the answers by {worst:.2g} of their largest value",
    )  # fmt: skip


def _floats(outputs: Arrays) -> list[tuple[str, npt.NDArray[Any]]]:
    return [(name, values) for name, values in outputs.items() if is_float(values)]


def _digests(arrays: Sequence[npt.NDArray[Any]]) -> list[bytes]:
    """One per row, over all arrays."""
    import hashlib

    import numpy as np

    if not arrays:
        return []
    flat = [np.ascontiguousarray(each).reshape(len(each), -1) for each in arrays]
    found = []
    for row in range(len(flat[0])):
        state = hashlib.blake2b(digest_size=16)
        for each in flat:
            state.update(each[row].tobytes())
        found.append(state.digest())
    return found


def _counted(id: str, wrong: int, count: int, what: str) -> Gate:
    message = f"{wrong} of {count} items {what}" if wrong else ""
    return Gate(id=id, passed=wrong == 0, observed=wrong, limit=0, unit="items", message=message)
