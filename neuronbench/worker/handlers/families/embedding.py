"""Embeddings of sentences: an encoder's hidden states pooled over the real tokens and brought to length 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .common import Built, Source, described

TASKS = ("embed",)
POOLINGS = ("mean", "first")


class _Embedding(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.pooling == "first":
            pooled = hidden[:, 0]
        else:
            real = attention_mask[:, :, None].to(hidden.dtype)
            pooled = (hidden * real).sum(1) / real.sum(1).clamp(min=1)
        return (torch.nn.functional.normalize(pooled.float(), dim=-1),)


def build(source: Source, task: str, shape: dict[str, Any]) -> Built:
    """`shape`: `batch_size` and `sequence_length`."""
    from transformers import AutoModel  # type: ignore[import-not-found,unused-ignore]

    if task not in TASKS:
        raise ValueError(f"an embedding model's task is one of {', '.join(TASKS)}; found {task!r}")
    model, weights = source.model(AutoModel)
    pooling = pooling_of(source.path)
    size = [shape["batch_size"], shape["sequence_length"]]
    high = int(model.config.vocab_size)
    inputs: list[dict[str, Any]] = [
        {"name": "input_ids", "dtype": "int64", "shape": size, "kind": "token_ids", "high": high},
        {"name": "attention_mask", "dtype": "int64", "shape": size, "kind": "attention_mask"},
    ]
    return Built(
        module=_Embedding(model, pooling).eval(),
        inputs=inputs,
        outputs=["embedding"],
        facts={**described(model, weights), "pooling": pooling, "normalised": True},
        per_item={"input_tokens": shape["sequence_length"]},
    )


def pooling_of(folder: str) -> str:
    """What `1_Pooling/config.json` beside the weights says, as sentence-transformers writes it; else mean."""
    told = Path(folder, "1_Pooling", "config.json") if folder else None
    if told is None or not told.is_file():
        return "mean"
    asked = {name for name, on in json.loads(told.read_text(encoding="utf-8")).items() if on is True}
    modes = sorted(name for name in asked if name.startswith("pooling_mode_"))
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    if len(modes) != 1 or modes[0] not in known:
        raise ValueError(f"{told}: expected one of {', '.join(known)}; found {', '.join(modes) or 'none'}")
    return known[modes[0]]
