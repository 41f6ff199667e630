"""A training job: everything that determines a training run, as data.

Two runs of equal jobs on equal stacks do the same arithmetic. The job's digest is the identity of its protocol: it is
in the step log, in the record and in the checkpoints, and only runs of one digest continue each other.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from neuronbench.model import FrozenMap, Json, Point, closest, fingerprint

METHODS: Final = ("lora_sft", "full_sft", "orpo", "dpo", "pretrain")
PREFERENCE: Final = frozenset({"orpo", "dpo"})
"""Methods that learn from pairs of a chosen and a rejected answer."""
WEIGHTS: Final = ("pretrained", "seeded")
DTYPES: Final = ("float32", "bfloat16", "float16")
ON_NON_FINITE: Final = ("stop", "continue")
DATASET_KINDS: Final = ("builtin", "synthetic", "file", "hub")
ADAPTER: Final = FrozenMap(
    r=16, alpha=32.0, dropout=0.0,
    targets=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
)  # fmt: skip
"""What a LoRA adapter is unless told otherwise: all linear layers of a decoder."""
TYPO: Final = 0.84
"""A parameter of a point so like a field's name is taken for a mistake, not for somebody else's."""


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """One training run. Raises `ValueError` that names the field, what was expected and what was found."""

    method: str
    """`lora_sft`, `full_sft`, `orpo`, `dpo` or `pretrain`."""
    steps: int
    """Optimiser steps."""
    model: str | None = None
    """Reference of the model whose weights (or, with seeded ones, whose architecture) are used."""
    architecture: FrozenMap | None = None
    """The model's configuration, for seeded weights without a reference."""
    weights: str = "pretrained"
    """`pretrained`, or `seeded`: drawn at random from `weights_seed`, the same everywhere."""
    weights_seed: int = 0
    adapter: FrozenMap | None = None
    """LoRA: `r`, `alpha`, `dropout`, `targets` (names of modules, or `all-linear`). By default with `lora_sft` only."""
    dataset: str = "builtin:instructions"
    """`builtin:instructions`, `builtin:preferences`, `synthetic:SEED`, `file:PATH` or `hub:NAME`."""
    dataset_limit: int | None = None
    """Use so many of its examples, from the first; None for all."""
    holdout: float = 0.0
    """Share of the examples that is split off before packing and never trained on."""
    packing: bool = True
    """Join examples to sequences without padding."""
    sequence_length: int = 512
    batch_size: int = 1
    """Sequences of one micro-batch of one rank."""
    accumulation: int = 1
    """Micro-batches of one optimiser step."""
    learning_rate: float = 1e-4
    warmup_steps: int = 0
    """The learning rate rises to its value over so many steps, and stays."""
    seed: int = 42
    """Of the order of data, dropout, and the adapter's initial values."""
    dtype: str = "float32"
    recompute: bool = False
    """Activations are computed again in the backward pass instead of kept."""
    world_size: int = 1
    """Ranks that train in parallel, each on its own share of the data."""
    threads: int | None = None
    """Threads of each rank on the host; None for the backend's choice."""
    checkpoint_every: int = 0
    """A checkpoint after so many steps each; 0 for none."""
    on_non_finite: str = "stop"
    """When the loss is not finite: `stop`, or `continue` (what comes then is not a result all the same)."""
    optimizer: str = "adamw"
    beta: float = 0.1
    """Strength of the preference term."""

    def __post_init__(self) -> None:
        _set(self, "architecture", None if self.architecture is None else FrozenMap(self.architecture))
        adapter = self.adapter
        if adapter is None and self.method == "lora_sft":
            adapter = ADAPTER
        if adapter:
            _set(self, "adapter", FrozenMap(_adapter(adapter)))
        elif self.method == "lora_sft":
            raise ValueError("adapter: lora_sft trains one; found none. Use method full_sft to train all weights")
        else:
            _set(self, "adapter", None)
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))
        for name in ("holdout", "learning_rate", "beta"):  # 1 and 1.0 are the same job
            _set(self, name, float(getattr(self, name)))
        self._together()

    def _together(self) -> None:
        if self.model is None and not self.architecture:
            raise ValueError("model: expected a model reference (or an architecture with weights 'seeded'), found none")
        if self.architecture and self.weights != "seeded":
            raise ValueError(
                f"weights: an architecture of the job's own has no pretrained weights; expected 'seeded', "
                f"found {self.weights!r}"
            )
        if self.adapter is not None and self.method in ("full_sft", "pretrain"):
            raise ValueError(f"adapter: {self.method} trains all weights; use lora_sft, or leave the adapter out")
        if self.warmup_steps > self.steps:
            raise ValueError(
                f"warmup_steps: expected at most the {self.steps} steps of the job, found {self.warmup_steps}"
            )
        kind, _, name = self.dataset.partition(":")
        if kind not in DATASET_KINDS or not name:
            known = "builtin:NAME, synthetic:SEED, file:PATH, hub:NAME"
            raise ValueError(f"dataset: expected {known}; found {self.dataset!r}")
        if kind == "synthetic" and not re.fullmatch(r"\d+", name):
            raise ValueError(f"dataset: the seed of synthetic data is a whole number, found {self.dataset!r}")
        if self.method in PREFERENCE and kind == "builtin" and name == "instructions":
            raise ValueError(
                f"dataset: {self.method} learns from pairs; expected builtin:preferences or another of pairs"
            )

    # -- making one ---------------------------------------------------------------------------------------------------

    @classmethod
    def from_point(cls, point: Point | Mapping[str, Json], **changes: Any) -> TrainJob:
        """The job that a point's parameters describe; they have the names of the fields. `changes` win over them.

        Other parameters of the point are nobody's business here, but one that is almost a field's name is an error: a
        setting that is silently ignored is one that does nothing.
        """
        given: Mapping[str, Json] = point.params if isinstance(point, Point) else point
        known = [each.name for each in dataclasses.fields(cls) if each.init]
        for name in given:
            like = difflib.get_close_matches(name, known, n=1, cutoff=TYPO)
            if name not in known and like:
                raise ValueError(f"parameter {name!r} is no setting of a training job{closest(name, known)}")
        taken = {name: given[name] for name in known if name in given}
        return cls.from_json({**taken, **changes})

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> TrainJob:
        """The inverse of `to_json`; raises `ValueError` for names that are no field's, and for missing ones."""
        known = {each.name for each in dataclasses.fields(cls) if each.init}
        for name in data:
            if name not in known:
                raise ValueError(f"{name!r} is no setting of a training job{closest(name, sorted(known))}")
        for name in ("method", "steps"):
            if name not in data:
                raise ValueError(f"{name}: a training job needs one; found {', '.join(sorted(data)) or 'nothing'}")
        return cls(**data)

    def changed(self, **changes: Any) -> TrainJob:
        """The same job but for `changes`; its digest is another."""
        return dataclasses.replace(self, **changes)

    # -- what it is ---------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Json]:
        """All fields as plain data; what a worker is given, with `digest` beside it."""
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.init}
        return {name: value.to_json() if isinstance(value, FrozenMap) else value for name, value in plain.items()}

    @cached_property
    def digest(self) -> str:
        """Identity of the protocol: digest of the canonical JSON."""
        return fingerprint(self.to_json())

    @property
    def sequences_per_step(self) -> int:
        """Sequences that all ranks together see in an optimiser step."""
        return self.batch_size * self.accumulation * self.world_size


# --------------------------------------------------------------------------------------------------------------------
# checks

Check = Callable[[str, Any], None]


def _set(job: TrainJob, name: str, value: object) -> None:
    object.__setattr__(job, name, value)


def _whole(least: int, *, none: bool = False) -> Check:
    def check(name: str, value: Any) -> None:
        if none and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: expected a whole number from {least}, found {value!r}")

    return check


def _number(low: float, high: float, said: str, *, above: bool = False) -> Check:
    def check(name: str, value: Any) -> None:
        number = math.nan if isinstance(value, (bool, str)) or value is None else float(value)
        if not (low < number if above else low <= number) or not number < high:
            raise ValueError(f"{name}: expected {said}, found {value!r}")

    return check


def _one_of(*known: str) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in known:
            raise ValueError(f"{name}: expected {', '.join(known)}; found {value!r}{closest(str(value), known)}")

    return check


def _switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected true or false, found {value!r}")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: expected text, found {value!r}")


_CHECKS: Final[Mapping[str, Check]] = {
    "method": _one_of(*METHODS),
    "steps": _whole(1),
    "model": lambda name, value: None if value is None else _text(name, value),
    "weights": _one_of(*WEIGHTS),
    "weights_seed": _whole(0),
    "dataset": _text,
    "dataset_limit": _whole(1, none=True),
    "holdout": _number(0.0, 1.0, "a share from 0 to below 1"),
    "packing": _switch,
    "sequence_length": _whole(2),
    "batch_size": _whole(1),
    "accumulation": _whole(1),
    "learning_rate": _number(0.0, math.inf, "a number above 0", above=True),
    "warmup_steps": _whole(0),
    "seed": _whole(0),
    "dtype": _one_of(*DTYPES),
    "recompute": _switch,
    "world_size": _whole(1),
    "threads": _whole(1, none=True),
    "checkpoint_every": _whole(0),
    "on_non_finite": _one_of(*ON_NON_FINITE),
    "optimizer": _text,
    "beta": _number(0.0, math.inf, "a number above 0", above=True),
}


def _adapter(given: Mapping[str, Json]) -> dict[str, Json]:
    known = list(ADAPTER)
    for name in given:
        if name not in known:
            raise ValueError(f"adapter: {name!r} is no setting of one{closest(name, known)}; known: {', '.join(known)}")
    made = {**ADAPTER, **given}
    _whole(1)("adapter.r", made["r"])
    _number(0.0, math.inf, "a number above 0", above=True)("adapter.alpha", made["alpha"])
    _number(0.0, 1.0, "a share from 0 to below 1")("adapter.dropout", made["dropout"])
    targets = made["targets"]
    if isinstance(targets, (list, tuple)):
        if not targets or not all(isinstance(name, str) and name for name in targets):
            raise ValueError(f"adapter.targets: expected names of modules, found {targets!r}")
    elif targets != "all-linear":
        raise ValueError(f"adapter.targets: expected a list of names of modules or 'all-linear', found {targets!r}")
    return {**made, "alpha": float(made["alpha"]), "dropout": float(made["dropout"])}
