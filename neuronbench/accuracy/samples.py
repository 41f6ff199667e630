"""What is asked, and what was answered: samples with their truth and digest, answers with the protocol they came by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neuronbench.model import Json, canonical_json
from neuronbench.worker import batches

if TYPE_CHECKING:
    import numpy.typing as npt

Arrays = Mapping[str, "npt.NDArray[Any]"]


class Incomparable(ValueError):
    """Two arms differ in what they were asked or how; `fields` names in what."""

    def __init__(self, differences: Mapping[str, tuple[Json, Json]]) -> None:
        told = "; ".join(f"{name}: {_short(one)} ≠ {_short(other)}" for name, (one, other) in differences.items())
        super().__init__(f"candidate and reference are not comparable, they differ in {told}")
        self.fields = tuple(differences)


def _short(value: Json) -> str:
    text = "nothing" if value is None else canonical_json(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Items a model is asked, the same for candidate and reference."""

    name: str
    inputs: Arrays
    """Input name → array whose first axis is the item."""
    shared: Arrays = field(default_factory=dict)
    """Inputs that go into every call as they are."""
    truth: Sequence[Json] | None = None
    """What is right, per item, as the measure understands it: class, transcript, index of the item that means the same.
    None when the reference's answers are all there is."""
    protocol: Mapping[str, Json] = field(default_factory=dict)
    """Everything about how they were made that decides the answers: tokenizer, length, prompt, order of classes, ..."""

    def __post_init__(self) -> None:
        counts = {name: len(values) for name, values in self.inputs.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"samples {self.name!r}: expected as many items in each input, found {counts}")
        if self.truth is not None and len(self.truth) != self.count:
            raise ValueError(f"samples {self.name!r}: {self.count} items, but truth for {len(self.truth)}")

    @property
    def count(self) -> int:
        """Number of items."""
        return len(next(iter(self.inputs.values())))

    @cached_property
    def digest(self) -> str:
        """Identity of inputs and truth."""
        state = hashlib.blake2b(digest_size=12)
        for part in (self.inputs, self.shared):
            state.update(batches.digest(part).encode() + b";")
        state.update(canonical_json(self.truth).encode())
        return state.hexdigest()

    def batches(self, size: int) -> Iterator[tuple[dict[str, npt.NDArray[Any]], int]]:
        """Inputs of calls of `size` items, and how many of them count: the last is filled up with its last item."""
        import numpy as np

        for start in range(0, self.count, size):
            chosen = np.minimum(np.arange(start, start + size), self.count - 1)
            batch = {name: np.ascontiguousarray(values[chosen]) for name, values in self.inputs.items()}
            yield {**batch, **self.shared}, min(size, self.count - start)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a model answered to samples."""

    samples: str
    """Digest of the samples."""
    outputs: Arrays
    """Output name → array whose first axis is the item."""
    protocol: Mapping[str, Json] = field(default_factory=dict)
    """That of the samples, and that of the measure."""
    made_by: str = ""
    """For readers: `fp32, not compiled`."""


def demand_comparable(candidate: Answers, reference: Answers) -> None:
    """Raise `Incomparable` unless both answered the same samples under the same protocol, field by field."""
    arms = [{"samples": arm.samples, **arm.protocol} for arm in (candidate, reference)]
    names = dict.fromkeys([*arms[0], *arms[1]])
    pairs = {name: (arms[0].get(name), arms[1].get(name)) for name in names}
    differing = {name: pair for name, pair in pairs.items() if canonical_json(pair[0]) != canonical_json(pair[1])}
    if differing:
        raise Incomparable(differing)


def stacked(parts: Sequence[tuple[Arrays, int]], size: int) -> dict[str, npt.NDArray[Any]]:
    """Outputs of several calls of `size` items as one array per name; of each call the first `count` items.

    What does not have an entry per item (a temperature, embeddings of the classes) is left out. Raises `ValueError`
    when nothing has.
    """
    import numpy as np

    shapes = {name: values.shape for name, values in parts[0][0].items()} if parts else {}
    names = [name for name, shape in shapes.items() if shape and shape[0] == size]
    if not names:
        raise ValueError(f"expected an output whose first axis is the {size} items of a call, found {shapes}")
    return {name: np.concatenate([answer[name][:count] for answer, count in parts]) for name in names}
