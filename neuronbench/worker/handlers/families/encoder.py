"""Encoders of text: tokens and attention mask in; hidden states, or one row of class scores per text, out."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .common import Built, Source, described

TASKS = ("raw_output", "sequence_classification")


class _Encoder(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """Positional tensors in, a tuple of tensors out, as an exported program wants it."""

    def __init__(self, model: Any, outputs: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, outputs

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        answer = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return tuple(answer[name] for name in self.names)


def build(source: Source, task: str, shape: dict[str, Any]) -> Built:
    """`shape`: `batch_size`, `sequence_length`, and `num_labels` for classification."""
    from transformers import (  # type: ignore[import-not-found,unused-ignore]
        AutoModel,
        AutoModelForSequenceClassification,
    )

    if task not in TASKS:
        raise ValueError(f"an encoder's task is one of {', '.join(TASKS)}; found {task!r}")
    if task == "raw_output":
        model, weights = source.model(AutoModel)
    else:
        model, weights = source.model(AutoModelForSequenceClassification, num_labels=shape["num_labels"])
    config = model.config
    size = [shape["batch_size"], shape["sequence_length"]]
    inputs: list[dict[str, Any]] = [
        {"name": "input_ids", "dtype": "int64", "shape": size, "kind": "token_ids", "high": int(config.vocab_size)},
        {"name": "attention_mask", "dtype": "int64", "shape": size, "kind": "attention_mask"},
    ]
    ones = torch.ones(tuple(size), dtype=torch.int64)
    with torch.inference_mode():
        answer = model(input_ids=ones, attention_mask=ones)
    outputs = [name for name in answer.keys() if isinstance(answer[name], torch.Tensor)]  # noqa: SIM118 (ModelOutput)
    module = _Encoder(model, outputs).eval()
    return Built(module=module, inputs=inputs, outputs=outputs, facts=described(model, weights))
