"""Texts and tokens of a model's own tokenizer, which works in the stack: the harness has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.accuracy.samples import Samples
from neuronbench.model import Json

if TYPE_CHECKING:
    from neuronbench.worker.client import Reply

MODULE: Final = "text"


def encode(model: Any, texts: Sequence[str], *, name: str, truth: Sequence[Json] | None = None) -> Samples:
    """Samples for a compiled model that takes tokens: each text cut and padded (right) to the length it has.

    Inputs of other kinds than tokens and mask are zeros. Raises `ValueError` for a model that takes no tokens, or whose
    weights come without a tokenizer.
    """
    import numpy as np

    kinds = {spec.kind: spec for spec in model.inputs}
    if "token_ids" not in kinds:
        raise ValueError(f"{model.spec.id} takes no tokens, it takes {', '.join(spec.name for spec in model.inputs)}")
    length = kinds["token_ids"].shape[1]
    said = _ask(model, "encode", {"texts": list(texts), "length": length}).value
    arrays: dict[str, Any] = {}
    for spec in model.inputs:
        if spec.kind not in ("token_ids", "attention_mask", "zeros"):
            raise ValueError(f"input {spec.name!r} of {model.spec.id} is not made from text")
        values = np.zeros((len(texts), *spec.shape[1:]), dtype=spec.dtype)
        for row, ids in enumerate(said["ids"]):
            if spec.kind == "token_ids":
                values[row, : len(ids)] = ids
                values[row, len(ids) :] = said["padding"]
            elif spec.kind == "attention_mask":
                values[row, : len(ids)] = 1
        arrays[spec.name] = values
    protocol = {
        "tokenizer": said["digest"],
        "length": length,
        "truncation": "right",
        "truncated": said["truncated"],
        "padding": "right",
    }
    return Samples(name=name, inputs=arrays, truth=truth, protocol=protocol)


def decode(model: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    """The texts of rows of token ids, special tokens left out."""
    return list(_ask(model, "decode", {"rows": [[int(token) for token in row] for row in rows]}).value)


def _ask(model: Any, verb: str, arguments: Mapping[str, Json]) -> Reply:
    folder = str((model.facts.get("model") or {}).get("path") or "")
    if not folder or not (Path(folder) / "tokenizer.json").is_file():
        raise ValueError(f"{model.spec.id} has no tokenizer: no tokenizer.json in {folder or 'seeded weights'}")
    reply: Reply = model.aside(MODULE, verb, {"folder": folder, **arguments})
    return reply
