"""How much arithmetic a token of training takes: the model behind a utilisation, as an object that says its formula.

Per token that is trained on, with `t` trainable and `r` frozen parameters that are multiplied with it: a forward pass
is 2 (t + r), the gradient with respect to activations another 2 (t + r), that with respect to weights 2 t, which makes
6 t + 4 r; activations computed again in the backward pass are a second forward pass, + 2 (t + r). Attention adds, per
layer, two products of the sequence with itself forward and twice that backward: 12 · L · d · s, half of it where a
token sees only those before it, and a third more of it with recompute. See Kaplan et al. (2020), and appendix B of
Chowdhery et al. (2022).

Rows of an input embedding are looked up, not multiplied: where it is a matrix of its own (not tied to the output), its
parameters are in no product and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuronbench.model import Json


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
    def of(cls, start: Mapping[str, Json], sequence: float) -> FlopModel:
        """From a step log's start line. Raises `KeyError`, `TypeError` or `ValueError` for counts it cannot use."""
        said: Mapping[str, Any] = start["parameters"]
        tied = bool(said.get("tied", True))
        adapter = bool(said.get("adapter"))
        return cls(
            trainable=int(said["trainable"]),
            frozen=int(said["frozen"]),
            recompute=bool(start.get("recompute")),
            looked_up=0 if tied else int(said.get("embedding") or 0),
            looked_up_trainable=not adapter,
            layers=int(said.get("layers") or 0),
            hidden=int(said.get("hidden") or 0),
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
