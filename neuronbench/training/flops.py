"""How much arithmetic a token of training takes: the model behind a utilisation, as an object that says its formula.

Per token that is trained on, with `t` trainable and `r` frozen parameters that are multiplied with it: a forward pass
is 2 (t + r), the gradient with respect to activations another 2 (t + r), that with respect to weights 2 t, which makes
6 t + 4 r; activations computed again in the backward pass are a second forward pass, + 2 (t + r). Attention adds, per
layer, two products of the sequence with itself forward and twice that backward: 12 · L · d · s, half of it where a
token sees only those before it, and a third more of it with recompute. See Kaplan et al. (2020), and appendix B of
Chowdhery et al. (2022).

Rows of an input embedding are looked up, not multiplied: where it is a matrix of its own (not tied to the output), its
parameters are in no product and are left out.

Counts are of the whole model. Where ranks split it between them (tensor parallelism, `tp_degree` above 1 in their start
lines), each counts what it holds, `Parameters.of` adds them up, and what every rank holds whole (`replicated`: norms,
the adapter's matrices that are not split) counts once; else one adapter would have more parameters on more ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuronbench.model import Json


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What the ranks counted on the model as it is trained, of the whole model. None where they did not say."""

    trainable: int | None
    frozen: int | None
    total: int | None
    optimizer: int | None
    """Parameters that the optimiser changes."""
    embedding: int
    """Of the input embedding."""
    tied: bool
    """Whether the input embedding is the output's matrix as well."""
    adapter: bool
    layers: int
    width: int
    """Of attention: heads × size of a head."""
    tensor_degree: int = 1
    problem: str = ""
    """Why the counts cannot be those of the whole model; empty when they can."""

    @classmethod
    def of(cls, starts: Sequence[Mapping[str, Any]]) -> Parameters:
        """From the start lines of all ranks, rank 0 first.

        Ranks of rank 0's data shard are one model; with `tp_degree` above 1 each of them holds a part of it.
        """
        first: Mapping[str, Any] = starts[0].get("parameters") or {}
        degree = int(first.get("tp_degree") or 1)
        shard = (starts[0].get("data_shard") or [0])[0]
        group = [one.get("parameters") or {} for one in starts if (one.get("data_shard") or [0])[0] == shard]
        problem = ""
        if degree > 1 and len(group) != degree:
            problem = f"tp_degree is {degree}, but {len(group)} ranks say that they hold parts of one model"
        parts = group if degree > 1 else group[:1]

        def summed(name: str, *kinds: str) -> int | None:
            counts = [_count(one.get(name)) for one in parts]
            if any(count is None for count in counts):
                return None
            whole = sum(_count((first.get("replicated") or {}).get(kind)) or 0 for kind in kinds)
            return sum(count or 0 for count in counts) - (len(parts) - 1) * whole

        heads, size = _count(first.get("heads")), _count(first.get("head_dim"))
        return cls(
            trainable=summed("trainable", "trainable"),
            frozen=summed("frozen", "frozen"),
            total=summed("total", "trainable", "frozen"),
            optimizer=summed("optimizer", "trainable"),
            embedding=summed("embedding", "embedding") or 0,
            tied=bool(first.get("tied", True)),
            adapter=bool(first.get("adapter")),
            layers=_count(first.get("layers")) or 0,
            width=heads * size if heads and size else _count(first.get("hidden")) or 0,
            tensor_degree=degree,
            problem=problem,
        )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, kw_only=True)
class FlopModel:
    """Floating-point operations of one trained token. Parameters are of the whole model, summed over tensor ranks."""

    trainable: int
    """Parameters with a gradient, after the adapter was attached."""
    frozen: int
    recompute: bool = False
    looked_up: int = 0
    """Parameters of an input embedding that is not tied to the output; frozen or trainable by `looked_up_trainable`."""
    looked_up_trainable: bool = False
    layers: int = 0
    """0 leaves attention out."""
    hidden: int = 0
    """Width of attention: heads × size of a head."""
    sequence: float = 0.0
    """Tokens of a sequence as it is computed, padding included."""
    causal: bool = True

    def __post_init__(self) -> None:
        for name in ("trainable", "frozen", "looked_up", "layers", "hidden", "sequence"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: expected 0 or more, found {getattr(self, name)}")
        if self.trainable + self.frozen == 0:
            raise ValueError(
                "a model without parameters has no utilisation: expected trainable or frozen ones, found 0"
            )
        if self.looked_up > (self.trainable if self.looked_up_trainable else self.frozen):
            raise ValueError(
                f"looked_up: {self.looked_up} parameters of the embedding are more than there are of their kind"
            )

    @classmethod
    def of(cls, said: Parameters, start: Mapping[str, Any], sequence: float) -> FlopModel:
        """Of counted parameters and a start line. Raises `ValueError` for counts it cannot use."""
        if said.problem:
            raise ValueError(said.problem)
        if said.trainable is None or said.frozen is None:
            raise ValueError("trainable and frozen parameters were not counted")
        return cls(
            trainable=said.trainable,
            frozen=said.frozen,
            recompute=bool(start.get("recompute")),
            looked_up=0 if said.tied else said.embedding,
            looked_up_trainable=not said.adapter,
            layers=said.layers,
            hidden=said.width,
            sequence=sequence,
            causal=start.get("attention", "causal") == "causal",
        )

    @property
    def multiplied(self) -> tuple[int, int]:
        """Trainable and frozen parameters that take part in products."""
        of_trainable = self.looked_up if self.looked_up_trainable else 0
        return self.trainable - of_trainable, self.frozen - (self.looked_up - of_trainable)

    @property
    def weights_per_token(self) -> float:
        """6 t + 4 r, and with recompute + 2 (t + r)."""
        t, r = self.multiplied
        return float(6 * t + 4 * r + (2 * (t + r) if self.recompute else 0))

    @property
    def attention_per_token(self) -> float:
        """12 · L · d · s, halved where causal, × 4/3 with recompute."""
        full = 12.0 * self.layers * self.hidden * self.sequence
        return full * (0.5 if self.causal else 1.0) * (4 / 3 if self.recompute else 1.0)

    @property
    def per_token(self) -> float:
        """FLOPs of one token."""
        return self.weights_per_token + self.attention_per_token

    def formula(self) -> str:
        """The formula with its numbers, as it may be printed beside a utilisation."""
        t, r = self.multiplied
        parts = [f"6·{t:,} trainable + 4·{r:,} frozen"]
        if self.recompute:
            parts.append(f"2·{t + r:,} recompute")
        if self.attention_per_token:
            factor = "6" if self.causal else "12"
            again = "·4/3" if self.recompute else ""
            kind = "causal attention" if self.causal else "attention"
            parts.append(f"{factor}·{self.layers}·{self.hidden}·{self.sequence:g}{again} {kind}")
        left_out = f" (without {self.looked_up:,} looked-up embedding parameters)" if self.looked_up else ""
        return f"{' + '.join(parts)} = {self.per_token:.6g} FLOPs per token{left_out}"

    def mfu_pct(self, tokens_per_s: float, peak_flops: float, cores: int) -> float:
        """Share of `cores` × `peak_flops` (dense FLOP/s of one) that `tokens_per_s` needs, in percent."""
        if peak_flops <= 0 or cores < 1:
            raise ValueError(f"expected a peak above 0 and at least one core, found {peak_flops!r} and {cores!r}")
        return 100.0 * self.per_token * tokens_per_s / (peak_flops * cores)

    def to_json(self) -> dict[str, Json]:
        return {
            "formula": self.formula(), "per_token": self.per_token, "trainable": self.trainable, "frozen": self.frozen,
            "looked_up": self.looked_up, "recompute": self.recompute, "layers": self.layers, "hidden": self.hidden,
            "sequence": self.sequence, "causal": self.causal,
        }  # fmt: skip
