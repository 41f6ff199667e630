"""Measures: what of an answer is right, item by item, for the candidate and for the reference.

A measure is an object with `name`, `level`, `settings()` (part of the protocol) and `score(...)`. Rows with NaN or
infinity, and rows of scores that are all equal, are misses whichever arm they are of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from neuronbench.accuracy.samples import Arrays, Samples
from neuronbench.definitions import metric
from neuronbench.model import Json, Metric

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What a measure found. Arrays have one entry per item."""

    candidate: npt.NDArray[Any]
    reference: npt.NDArray[Any]
    """What each got right, out of `weight`."""
    weight: npt.NDArray[Any]
    """What an item counts: 1, or its words or tokens."""
    same: npt.NDArray[Any]
    """How much of it the candidate answered as the reference did, out of `weight`."""
    by_truth: bool
    """Right by the samples' truth; False where the reference's answer is what is right."""
    metrics: Sequence[Metric] = ()
    """What else the measure has to say."""


class Measure(Protocol):
    """What `measure.accuracy` and `compare` take."""

    @property
    def name(self) -> str: ...

    @property
    def level(self) -> str:
        """What is right or wrong: `label`, `sentence`, `word`, `token`, `tensor`."""

    def settings(self) -> Mapping[str, Json]:
        """All that decides the scores; it is part of the protocol."""

    def score(self, candidate: Arrays, reference: Arrays, samples: Samples) -> Scores:
        """Raises `ValueError` for outputs it cannot read."""


def output(outputs: Arrays, name: str) -> npt.NDArray[Any]:
    """The output of that name; raises `ValueError` naming those that are there."""
    if name not in outputs:
        raise ValueError(f"output {name!r}: the model has none per item; it has {', '.join(outputs) or 'nothing'}")
    return outputs[name]


def usable(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Which rows say something: finite, and not all the same number."""
    import numpy as np

    flat = scores.reshape(len(scores), -1)
    finite = np.isfinite(flat).all(axis=1)
    said: npt.NDArray[Any] = finite & (flat.max(axis=1) > flat.min(axis=1))
    return said


def _against(
    samples: Samples,
    chosen: npt.NDArray[Any],
    wanted: npt.NDArray[Any],
    said: tuple[Any, Any],
    metrics: Sequence[Metric],
) -> Scores:
    """Scores of one choice per item: by truth where there is one, else by the reference's choice."""
    import numpy as np

    ours, theirs = said
    truth = wanted if samples.truth is None else np.asarray(samples.truth)
    if truth.shape != chosen.shape:
        raise ValueError(f"samples {samples.name!r}: expected a whole number per item as truth, found {truth.shape}")
    return Scores(
        candidate=(ours & (chosen == truth) & (theirs if samples.truth is None else True)).astype(float),
        reference=(theirs & (wanted == truth)).astype(float),
        weight=np.ones(len(chosen)),
        same=(ours & theirs & (chosen == wanted)).astype(float),
        by_truth=samples.truth is not None,
        metrics=metrics,
    )


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Classification: the class with the highest score, one row of scores per item. Truth: the index of the class."""

    output: str = "logits"
    name: str = "labels"
    level: str = "label"

    def settings(self) -> Mapping[str, Json]:
        return {"output": self.output}

    def score(self, candidate: Arrays, reference: Arrays, samples: Samples) -> Scores:
        ours, theirs = (_rows(output(each, self.output), self.output) for each in (candidate, reference))
        return _against(samples, ours.argmax(axis=1), theirs.argmax(axis=1), (usable(ours), usable(theirs)), ())


@dataclass(frozen=True, kw_only=True)
class ZeroShot:
    """Classification without training: the class whose embedding is nearest to the item's. Truth: its index.

    `classes` are the embeddings of the classes in order, (classes, width); candidate and reference have the same, so
    that one tower is judged at a time.
    """

    classes: Any
    output: str = "image_embeds"
    name: str = "zero_shot"
    level: str = "label"

    def settings(self) -> Mapping[str, Json]:
        import numpy as np

        from neuronbench.worker.batches import digest

        return {"output": self.output, "classes": digest({"classes": np.asarray(self.classes)})}

    def score(self, candidate: Arrays, reference: Arrays, samples: Samples) -> Scores:
        import numpy as np

        classes = _unit(np.asarray(self.classes, dtype=float))
        found = []
        for each in (candidate, reference):
            rows = _rows(output(each, self.output), self.output)
            found.append((_unit(rows) @ classes.T, usable(rows)))
        (ours, ours_said), (theirs, theirs_said) = found
        said = ours_said & usable(ours), theirs_said & usable(theirs)
        return _against(samples, ours.argmax(axis=1), theirs.argmax(axis=1), said, ())


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Sentence embeddings: which other item is nearest. Truth: the index of the item that means the same.

    An output per token is pooled: the `mean` of the real tokens, or the `first`. Also said: the cosine to the
    reference's embedding, and how far the order of all pairwise similarities is the reference's (Spearman).
    """

    output: str = "last_hidden_state"
    pooling: str = "mean"
    mask: str = "attention_mask"
    name: str = "similarity"
    level: str = "sentence"

    def settings(self) -> Mapping[str, Json]:
        return {"output": self.output, "pooling": self.pooling}

    def score(self, candidate: Arrays, reference: Arrays, samples: Samples) -> Scores:
        import numpy as np
        from scipy.stats import spearmanr

        ours, theirs = (self._embeddings(each, samples) for each in (candidate, reference))
        if len(ours) < 3:
            raise ValueError(f"samples {samples.name!r}: nearest items need 3 or more, found {len(ours)}")
        said = usable(ours), usable(theirs)
        ours, theirs = _unit(ours), _unit(theirs)
        cosines = np.where(said[0] & said[1], (ours * theirs).sum(axis=1), np.nan)
        mine, wanted = ours @ ours.T, theirs @ theirs.T
        upper = np.triu_indices(len(ours), 1)
        both = (said[0] & said[1])[upper[0]] & (said[0] & said[1])[upper[1]]
        one, other = mine[upper][both], wanted[upper][both]
        varied = len(one) > 2 and np.ptp(one) > 0 and np.ptp(other) > 0
        order = float(spearmanr(one, other).statistic) if varied else None
        none = "" if varied else "not enough rows that say anything"
        whole = bool(np.isfinite(cosines).all())
        lost = "" if whole else "a row is not finite, or constant"
        metrics = [
            metric("cosine", float(cosines.min()) if whole else None, stat="min", n=len(cosines), note=lost),
            metric("cosine", float(cosines.mean()) if whole else None, stat="mean", n=len(cosines), note=lost),
            metric("rank_agreement", order, n=len(one), note=none),
        ]
        nearest = [_nearest(*each) for each in zip((mine, wanted), said, strict=True)]
        return _against(samples, nearest[0], nearest[1], said, metrics)

    def _embeddings(self, outputs: Arrays, samples: Samples) -> npt.NDArray[Any]:
        import numpy as np

        rows = np.asarray(output(outputs, self.output), dtype=float)
        if rows.ndim == 3 and self.pooling == "first":
            rows = rows[:, 0]
        elif rows.ndim == 3 and self.pooling == "mean":
            if self.mask not in samples.inputs:
                raise ValueError(f"pooling needs the mask {self.mask!r}, which samples {samples.name!r} do not have")
            real = np.asarray(samples.inputs[self.mask], dtype=bool)[:, :, None]
            # `where`, for a padding that is not a number times nothing is not nothing
            rows = np.where(real, rows, 0).sum(axis=1) / np.maximum(real.sum(axis=1), 1)
        elif rows.ndim == 3:
            raise ValueError(f"pooling: expected mean or first, found {self.pooling!r}")
        return _rows(rows, self.output)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Generated tokens: how far the candidate says what the reference says, up to the first token that differs.

    Everything after that counts as missed, for it answers another beginning. `end` closes a sequence and is part of
    it, `padding` is not.
    """

    output: str = "tokens"
    end: int | None = None
    padding: int | None = None
    name: str = "tokens"
    level: str = "token"

    def settings(self) -> Mapping[str, Json]:
        return {"output": self.output, "end": self.end, "padding": self.padding}

    def score(self, candidate: Arrays, reference: Arrays, samples: Samples) -> Scores:
        import numpy as np

        pairs = list(zip(*(self._sequences(each) for each in (candidate, reference)), strict=True))
        common = np.array([_common(ours, theirs) for ours, theirs in pairs], dtype=float)
        weight = np.array([max(len(ours), len(theirs)) for ours, theirs in pairs], dtype=float)
        diverged = np.sort(common[common < weight])
        exact = len(pairs) - len(diverged)
        none = "no sequence differs"
        middle = float(diverged[(len(diverged) - 1) // 2]) if len(diverged) else None
        metrics = [
            metric("exact_match", exact / len(pairs) if pairs else None, n=len(pairs)),
            metric("first_divergence", float(diverged[0]) if len(diverged) else None, stat="min", n=len(diverged),
                   note="" if len(diverged) else none),
            metric("first_divergence", middle, stat="p50", n=len(diverged), note="" if len(diverged) else none),
        ]  # fmt: skip
        return Scores(candidate=common, reference=weight, weight=weight, same=common, by_truth=False, metrics=metrics)

    def _sequences(self, outputs: Arrays) -> list[list[int]]:
        found = []
        for row in output(outputs, self.output).tolist():
            cut = row[: row.index(self.end) + 1] if self.end is not None and self.end in row else row
            while cut and self.padding is not None and cut[-1] == self.padding and cut[-1] != self.end:
                cut = cut[:-1]
            found.append(cut)
        return found


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Plain numbers: an item is right when none of its values is further from the reference's than `tolerance` times
    the largest of the reference's values in that item's output."""

    tolerance: float = 1e-3
    outputs: tuple[str, ...] = ()
    """All of floating point, by default."""
    name: str = "tensors"
    level: str = "tensor"

    def settings(self) -> Mapping[str, Json]:
        return {**asdict(self), "outputs": list(self.outputs)}

    def score(self, candidate: Arrays, reference: Arrays, samples: Samples) -> Scores:
        import numpy as np

        names = self.outputs or tuple(name for name, values in reference.items() if is_float(values))
        if not names:
            raise ValueError("tensors: no output is of floating point; use tokens or labels")
        right, there = np.ones(samples.count, dtype=bool), np.ones(samples.count, dtype=bool)
        for name in names:
            ours, theirs = (
                np.asarray(output(each, name), dtype=float).reshape(samples.count, -1)
                for each in (candidate, reference)
            )
            with np.errstate(invalid="ignore"):
                right &= np.abs(ours - theirs).max(axis=1) <= self.tolerance * np.abs(theirs).max(axis=1)
            right &= np.isfinite(ours).all(axis=1)
            there &= np.isfinite(theirs).all(axis=1)
        right &= there
        return Scores(
            candidate=right.astype(float), reference=there.astype(float), weight=np.ones(samples.count),
            same=right.astype(float), by_truth=False,
        )  # fmt: skip


def is_float(values: npt.NDArray[Any]) -> bool:
    return values.dtype.kind == "f"


_TINY: Final = 1e-30


def _unit(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows of length 1; a row that is not finite becomes zeros, which are like nothing."""
    import numpy as np

    clean = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    unit: npt.NDArray[Any] = clean / np.maximum(np.linalg.norm(clean, axis=1, keepdims=True), _TINY)
    return unit


def _rows(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    import numpy as np

    if values.ndim != 2 or values.shape[1] < 2:
        raise ValueError(f"output {name!r}: expected a row of two or more numbers per item, found {list(values.shape)}")
    return np.asarray(values, dtype=float)


def _nearest(similarity: npt.NDArray[Any], said: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Index of the most similar other item that says anything; the first of equals."""
    import numpy as np

    others = np.where(said[None, :], similarity, -np.inf)
    np.fill_diagonal(others, -np.inf)
    nearest: npt.NDArray[Any] = others.argmax(axis=1)
    return nearest


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Length of the common beginning."""
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return index
    return min(len(ours), len(theirs))
