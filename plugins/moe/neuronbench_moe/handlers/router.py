"""Where a model's router sends tokens: its logits in fp32, in the stack. Needs torch, transformers and tokenizers."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

AT_ONCE = 4
"""Sequences in one pass: what the memory of a host has room for beside everything else."""


class Handler:
    """See the README of `neuronbench/worker`."""

    synchronize = None

    def __init__(self, progress: Callable[[str], None], folder: str) -> None:
        from transformers import AutoModelForCausalLM  # type: ignore[import-not-found,unused-ignore]

        progress("loading the weights in fp32")
        self._progress, self._folder = progress, folder
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def facts(self) -> dict[str, Any]:
        config = self._model.config
        return {
            "kind": config.model_type, "parameters": sum(each.numel() for each in self._model.parameters()),
            "torch": torch.__version__,
        }  # fmt: skip

    def tokens(self, texts: list[str], sequences: int, length: int) -> list[list[int]]:
        """The texts one after the other, cut into `sequences` of `length` tokens. Raises `ValueError` for too few."""
        from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]

        tokenizer = Tokenizer.from_file(os.path.join(self._folder, "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        ids = [token for entry in tokenizer.encode_batch(texts) for token in entry.ids]
        if len(ids) < sequences * length:
            raise ValueError(f"expected texts of {sequences * length} tokens or more, found {len(ids)}")
        return [ids[at * length : (at + 1) * length] for at in range(sequences)]

    def random_tokens(self, sequences: int, length: int, seed: int) -> list[list[int]]:
        """Ids drawn evenly from the vocabulary, as load generators send them."""
        draw = random.Random(seed)
        size = int(self._model.config.vocab_size)
        return [[draw.randrange(size) for _ in range(length)] for _ in range(sequences)]

    def reference(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """`input_ids` [sequences, positions] → `logits` of the router [layers, sequences, positions, experts].

        Nothing is padded, so that every logit is a token's.
        """
        dtype, shape, data = inputs["input_ids"]
        if dtype != "int64":
            raise ValueError(f"input_ids: expected int64, found {dtype}")
        rows = torch.frombuffer(bytearray(data), dtype=torch.int64).reshape(shape)
        parts = []
        with torch.inference_mode():
            for start in range(0, len(rows), AT_ONCE):
                self._progress(f"routing: {start} of {len(rows)} sequences")
                ids = rows[start : start + AT_ONCE]
                answer = self._model(input_ids=ids, use_cache=False, output_router_logits=True)
                layers = [each for each in answer.router_logits if each is not None]
                parts.append(torch.stack([each.float().reshape(*ids.shape, -1) for each in layers]))
        logits = torch.cat(parts, 1)
        return {"logits": ("float32", tuple(logits.shape), array("f", logits.flatten().tolist()).tobytes())}
