"""Text to text, the family of T5: encoder, then greedy generation of a fixed number of tokens."""

from __future__ import annotations

from typing import Any

from . import steps
from .common import Built, Source, described

TASKS = ("generate",)
loop = steps.loop


def build(source: Source, task: str, shape: dict[str, Any]) -> Built:
    """`shape`: `batch_size`, `sequence_length` of the input and `output_tokens`."""
    from transformers import AutoModelForSeq2SeqLM  # type: ignore[import-not-found,unused-ignore]

    if task not in TASKS:
        raise ValueError(f"a text-to-text model's task is one of {', '.join(TASKS)}; found {task!r}")
    model, weights = source.model(AutoModelForSeq2SeqLM)
    config = model.config
    if config.model_type not in ("t5", "mt5"):
        raise ValueError(f"text to text is built for the family of T5; found model_type {config.model_type!r}")

    def encode(input_ids: Any, attention_mask: Any) -> Any:
        return model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    size = [shape["batch_size"], shape["sequence_length"]]
    inputs: list[dict[str, Any]] = [
        {"name": "input_ids", "dtype": "int64", "shape": size, "kind": "token_ids", "high": int(config.vocab_size)},
        {"name": "attention_mask", "dtype": "int64", "shape": size, "kind": "attention_mask"},
    ]
    decoder = steps.Decoder(
        model=model, encode=encode, masked=True, prompt=[steps.start_of(model)], layers=config.num_decoder_layers,
        heads=config.num_heads, head_size=config.d_kv, width=config.d_model, source_length=shape["sequence_length"],
        output_tokens=shape["output_tokens"],
    )  # fmt: skip
    return steps.built(decoder, inputs, described(model, weights), {"input_tokens": shape["sequence_length"]})
