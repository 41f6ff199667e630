"""What a point says of a compiled model, whatever compiles it, and what of that cannot be.

Parameters that every backend has (others are a backend's own, or nobody's business here):

| parameter | default | meaning |
|---|---|---|
| `model` | – | model reference (`neuronbench.models`); may be left out when `architecture` is given |
| `architecture` | – | a configuration of transformers with `model_type`, for seeded weights |
| `weights` | `pretrained` | or `seeded`: random weights from `weights_seed`, on the architecture given or the model's |
| `weights_seed` | 0 | also of heads that the checkpoint has no weights for |
| `family` | `encoder` | module of `worker/handlers/families/` that knows how to build it |
| `task` | `raw_output` | what it is used for, as the family names it |
| `batch_size` | 1 | |
| `sequence_length` | 128 | |
| `num_labels` | 2 | of a classification |
| `output_tokens` | 16 | of a generation: so many, whatever they are |
| `tp_degree` | 1 | cores that share one model copy; more than 1 is for no provider yet |
| `dtype` | `float32` | |
| `threads` | 1 | threads of the host that a model copy has |
| `compiler_flags` | {} | further options of the compiler, `{name: value}` |
| `worker_env` | {} | more environment variables of the worker |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from neuronbench.catalog.architectures import architecture_of
from neuronbench.model import FrozenMap, Json
from neuronbench.worker.compiled import COMMON_HANDLERS

DEFAULTS: Final[Mapping[str, Json]] = {
    "model": None,
    "architecture": None,
    "weights": "pretrained",
    "weights_seed": 0,
    "family": "encoder",
    "task": "raw_output",
    "batch_size": 1,
    "sequence_length": 128,
    "num_labels": 2,
    "output_tokens": 16,
    "tp_degree": 1,
    "dtype": "float32",
    "threads": 1,
    "compiler_flags": {},
    "worker_env": {},
}
SHAPE: Final = ("batch_size", "sequence_length", "num_labels", "output_tokens")
"""Settings that say for which shapes the model is compiled."""
DTYPES: Final = ("float32", "bfloat16", "float16")
_FOLDER: Final = COMMON_HANDLERS / "families"
_USED: Final = {"asr": ("steps.py",), "seq2seq": ("steps.py",)}
"""Modules beside `common.py` that a family needs."""
_NO_FAMILY: Final = {"__init__", "common", *(Path(name).stem for names in _USED.values() for name in names)}
FAMILIES: Final = tuple(
    sorted(
        (path.stem for path in _FOLDER.glob("*.py") if path.stem not in _NO_FAMILY),
        key=lambda name: (name != DEFAULTS["family"], name),
    )
)


def wrong_settings(settings: FrozenMap) -> str:
    """What makes these settings impossible anywhere, in one line; empty when nothing does."""
    if settings["family"] == "nki":
        return f"family nki: NKI's kernels run on NeuronCores only; here there is: {', '.join(FAMILIES)}"
    architecture = settings["architecture"]
    if not settings["model"] and not architecture:
        return "the point has neither `model` nor `architecture`, so there is nothing to compile"
    if architecture is not None and not (isinstance(architecture, Mapping) and architecture.get("model_type")):
        return f"architecture: expected a table with model_type, found {architecture!r}"
    if settings["weights"] not in ("pretrained", "seeded"):
        return f"weights: expected 'pretrained' or 'seeded', found {settings['weights']!r}"
    if not settings["model"] and settings["weights"] != "seeded":
        return "an architecture without a model has no weights: say weights = 'seeded'"
    if settings["model"] and architecture:
        return "give `model` or `architecture`, not both"
    if settings["family"] not in FAMILIES:
        return f"family: expected one of {', '.join(FAMILIES)}; found {settings['family']!r}"
    if settings["dtype"] not in DTYPES:
        return f"dtype: expected one of {', '.join(DTYPES)}; found {settings['dtype']!r}"
    for name in ("batch_size", "sequence_length", "num_labels", "output_tokens", "threads"):
        value = settings[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return f"{name}: expected a whole number from 1, found {value!r}"
    for name in ("compiler_flags", "worker_env"):
        if not isinstance(settings[name], Mapping):
            return f"{name}: expected a table of names and values, found {settings[name]!r}"
    return ""


def seeded_architecture(given: Mapping[str, Json]) -> tuple[Mapping[str, Json] | None, str]:
    """The configuration that gets random weights, and what a reader must know of it; None where it is in a folder."""
    if given["architecture"]:
        return given["architecture"], "seeded random weights"
    if given["weights"] != "seeded":
        return None, ""
    return architecture_of(given["model"]), f"seeded random weights on the catalogue's architecture of {given['model']}"


def family_files(family: str) -> list[Path]:
    """The sources of a family, which decide what is compiled."""
    names = ("common.py", *_USED.get(family, ()), f"{family}.py")
    return [COMMON_HANDLERS / "graphs.py", *(_FOLDER / name for name in names)]
