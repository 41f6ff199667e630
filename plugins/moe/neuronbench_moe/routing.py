"""What a router does, from its logits: how evenly experts are used, what a batch touches, what a capacity drops.

Logits are [layers, sequences, positions, experts]; a token goes to the `top_k` experts of its largest logits, of equal
ones to the first. Nothing here needs a framework.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


def chosen(logits: npt.NDArray[Any], top_k: int) -> npt.NDArray[Any]:
    """[..., experts] → [..., top_k]: which experts each token goes to. Raises `ValueError` for what is not finite."""
    import numpy as np

    if not np.isfinite(logits).all():
        raise ValueError("router logits: expected finite numbers, found NaN or infinity")
    if not 1 <= top_k <= logits.shape[-1]:
        raise ValueError(f"top_k: expected 1 to {logits.shape[-1]}, found {top_k}")
    return np.argsort(-logits, axis=-1, kind="stable")[..., :top_k]


def loads(experts: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """[layers, ...] chosen → [layers, count]: share of a layer's assignments that each expert has; a row sums to 1."""
    import numpy as np

    rows = experts.reshape(len(experts), -1)
    return np.stack([np.bincount(row, minlength=count) / row.size for row in rows])


def imbalance(shares: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[layers]: the busiest expert's load / the mean; 1 is even."""
    return shares.max(axis=-1) * shares.shape[-1]  # type: ignore[no-any-return]


def entropy(shares: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Over the last axis, as a share of that of even use: 1 is even, 0 all on one."""
    import numpy as np

    if shares.shape[-1] < 2:
        return np.ones(shares.shape[:-1])
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return -(shares * logs).sum(axis=-1) / math.log(shares.shape[-1])  # type: ignore[no-any-return]


def probabilities(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Softmax over the experts."""
    import numpy as np

    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]


def over_ranks(shares: npt.NDArray[Any], ranks: int) -> npt.NDArray[Any]:
    """[layers, experts] → [layers, ranks]: load of each, neighbouring experts on one rank. Raises `ValueError`."""
    layers, count = shares.shape
    if ranks < 1 or count % ranks:
        raise ValueError(f"ranks: expected a divisor of {count}, found {ranks}")
    return shares.reshape(layers, ranks, -1).sum(axis=-1)  # type: ignore[no-any-return]


def dropped(experts: npt.NDArray[Any], count: int, factor: float) -> float:
    """Share of assignments that find their expert full, each taking `factor` times its even share of a layer's.

    [layers, ...]; a capacity is rounded up. Servers drop nothing: it is what padded, static shapes would cost.
    """
    import numpy as np

    rows = experts.reshape(len(experts), -1)
    capacity = math.ceil(factor * rows.shape[1] / count)
    over = sum(int(np.maximum(np.bincount(row, minlength=count) - capacity, 0).sum()) for row in rows)
    return over / rows.size


def touched(experts: npt.NDArray[Any], batch: int) -> float:
    """Different experts that a decode step of `batch` sequences uses in a layer, on average.

    [layers, sequences, positions, top_k]; a step has the same position of neighbouring sequences. Raises `ValueError`
    for more sequences than there are.
    """
    import numpy as np

    layers, sequences, positions, top_k = experts.shape
    if not 1 <= batch <= sequences:
        raise ValueError(f"batch: expected 1 to {sequences} sequences, found {batch}")
    steps = sequences // batch
    used = experts[:, : steps * batch].reshape(layers, steps, batch, positions, top_k).transpose(0, 1, 3, 2, 4)
    ordered = np.sort(used.reshape(layers, steps, positions, -1), axis=-1)
    return float(1 + (np.diff(ordered, axis=-1) != 0).sum(axis=-1).mean())


def touched_evenly(count: int, top_k: int, batch: int) -> float:
    """The same for a router that sends every token to `top_k` of `count` experts at random: n (1 - (1 - k/n)^batch)."""
    return count * (1 - (1 - top_k / count) ** batch)


@dataclass(frozen=True, kw_only=True)
class Routed:
    """All of it, for one set of tokens."""

    shares: npt.NDArray[Any]
    experts: npt.NDArray[Any]
    router_entropy: float
    """Of a token's own probabilities, mean: how decided the router is."""

    @classmethod
    def of(cls, logits: npt.NDArray[Any], top_k: int) -> Routed:
        """From logits [layers, sequences, positions, experts]."""
        if logits.ndim != 4:
            raise ValueError(f"router logits: expected [layers, sequences, positions, experts], found {logits.shape}")
        experts = chosen(logits, top_k)
        return cls(
            shares=loads(experts, logits.shape[-1]), experts=experts,
            router_entropy=float(entropy(probabilities(logits)).mean()),
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        return int(self.experts.shape[1] * self.experts.shape[2])

    def dropped(self, factor: float) -> float:
        return dropped(self.experts, self.shares.shape[1], factor)

    def touched(self, batches: Sequence[int]) -> dict[int, float]:
        return {batch: touched(self.experts, batch) for batch in batches}
