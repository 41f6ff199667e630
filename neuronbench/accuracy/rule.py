"""The rule: what a candidate may lose against its reference, and how sure that is.

Accuracy is the sum of what the items got right over the sum of what they count: items for labels, words for a
transcription (then it is 1 − WER), tokens for token agreement. The candidate holds when

* the ratio of accuracies, candidate / reference, is at least 0.99, and
* its error rate is at most 10 % above the reference's: e ≤ 1.1 × e_reference.

A reference without an error thus leaves no room for one where right and wrong are known. Where the reference's own
answers are the truth its error rate is 0 by construction and only the ratio decides.

The interval is of a paired bootstrap: items are drawn with replacement, candidate and reference of an item together,
and the percentiles of the resampled ratio are its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy.typing as npt

RATIO: Final = 0.99
ERROR_INCREASE: Final = 0.10
RESAMPLES: Final = 2000
CONFIDENCE: Final = 0.95
ENOUGH: Final = round(1 / (1 - RATIO))
"""Of fewer items (words, tokens) than this a single miss is more than the rule allows."""
_SLACK: Final = 1e-9
"""Of sums of floats, so that 99 of 100 is 0.99."""
_CHUNK: Final = 4_000_000
"""Indices drawn at a time."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the rule says. Bounds are None where the resamples give none."""

    passed: bool | None
    """None when it cannot be said; `reason` says why."""
    reason: str
    """Why it does not hold or cannot be said; empty when it holds."""
    n: int
    """Items."""
    weight: float
    """What they count together: items, words or tokens."""
    candidate: float | None
    reference: float | None
    ratio: float | None
    ratio_bounds: tuple[float, float] | None
    error_increase: float | None
    """(e − e_reference) / e_reference; None when that is 0 / 0, or not asked for, or infinite."""
    by_truth: bool
    seed: int
    resamples: int

    @property
    def enough(self) -> bool:
        """Whether a single miss could be told from what the rule allows."""
        return self.weight >= ENOUGH


def judge(
    candidate: npt.ArrayLike,
    reference: npt.ArrayLike,
    weight: npt.ArrayLike,
    *,
    by_truth: bool,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Verdict:
    """Apply the rule to what each item got right (`candidate`, `reference`), out of what it counts (`weight`).

    `by_truth`: right and wrong are known apart from the reference, so that the rule for the error rate applies too.
    """
    import numpy as np

    right, wanted, counts = (np.asarray(each, dtype=float) for each in (candidate, reference, weight))
    if not right.shape == wanted.shape == counts.shape or right.ndim != 1:
        raise ValueError(
            "expected one number per item for candidate, reference and weight; "
            f"found shapes {right.shape}, {wanted.shape}, {counts.shape}"
        )
    if not all(np.isfinite(each).all() for each in (right, wanted, counts)):
        raise ValueError("what an item got right is a finite number; a row that is not finite is a miss, 0")
    total = float(counts.sum())
    accuracies = (float(right.sum()) / total, float(wanted.sum()) / total) if total else (None, None)
    bounds = None
    if total and wanted.sum() > 0:
        ratios = resampled(right, wanted, seed=seed, resamples=resamples)
        bounds = _bounds(ratios)
    reason, passed, ratio, increase = _decide(*accuracies, by_truth=by_truth, n=len(right))
    return Verdict(
        passed=passed, reason=reason, n=len(right), weight=total, candidate=accuracies[0], reference=accuracies[1],
        ratio=ratio, ratio_bounds=bounds, error_increase=increase, by_truth=by_truth, seed=seed, resamples=resamples,
    )  # fmt: skip


def _decide(
    candidate: float | None, reference: float | None, *, by_truth: bool, n: int
) -> tuple[str, bool | None, float | None, float | None]:
    """Reason, whether it holds, ratio, increase of the error rate."""
    if candidate is None or reference is None:
        return "there is no item to compare" if not n else "the items count nothing", None, None, None
    if reference <= 0:
        return "the reference itself gets nothing right: these samples show nothing", None, None, None
    ratio = candidate / reference
    error, allowed = 1 - candidate, 1 - reference
    increase = None
    if by_truth and allowed > _SLACK:
        increase = (error - allowed) / allowed
    reasons = []
    if ratio < RATIO - _SLACK:
        reasons.append(f"{ratio:.4f} of the reference's accuracy, expected {RATIO:g} or more")
    if by_truth and error > (1 + ERROR_INCREASE) * allowed + _SLACK:
        more = f"{increase:.0%} above" if increase is not None else "where there is none in"
        reasons.append(f"an error rate of {error:.3%}, {more} the reference's, expected {ERROR_INCREASE:.0%} at most")
    return "; ".join(reasons), not reasons, ratio, increase


def resampled(
    candidate: npt.NDArray[Any], reference: npt.NDArray[Any], *, seed: int, resamples: int
) -> npt.NDArray[Any]:
    """The ratio of sums in each resample of the items; those in which the reference gets nothing right are left out."""
    import numpy as np

    draw = np.random.Generator(np.random.PCG64(seed))
    n, found = len(candidate), []
    step = max(1, min(resamples, _CHUNK // max(n, 1)))
    for start in range(0, resamples, step):
        chosen = draw.integers(0, n, size=(min(step, resamples - start), n))
        found.append((candidate[chosen].sum(axis=1), reference[chosen].sum(axis=1)))
    above, below = (np.concatenate(part) for part in zip(*found, strict=True))
    ratios: npt.NDArray[Any] = above[below > 0] / below[below > 0]
    return ratios


def _bounds(ratios: npt.NDArray[Any]) -> tuple[float, float] | None:
    import numpy as np

    if not len(ratios):
        return None
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)
