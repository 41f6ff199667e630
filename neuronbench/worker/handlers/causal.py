"""The reference of a served model: the same weights in fp32, greedy, by transformers. Needs torch and transformers.

Tokens are chosen with a cache of keys and values; then all are looked at once more, without any, and must be what was
chosen: a mistake of the cache does not become the truth.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

ROWS = 8
"""Prompts at a time: what fits the memory of a host beside the server."""
SLACK = 1e-2
"""Of logarithms of probabilities in fp32, between the two ways of computing them."""


class Handler:
    """See the README of `neuronbench/worker`."""

    synchronize = None

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress

    def reference(self, inputs: dict[str, Any], folder: str, output_tokens: int, top: int) -> dict[str, Any]:
        """`input_ids` [prompts, length] → `tokens` [prompts, output_tokens], and at each position the `top` likeliest
        tokens (`top_ids`) with the logarithms of their probabilities (`top_logprobs`), the likeliest first."""
        from transformers import AutoModelForCausalLM  # type: ignore[import-not-found,unused-ignore]

        dtype, shape, data = inputs["input_ids"]
        if dtype != "int64":
            raise ValueError(f"input_ids: expected int64, found {dtype}")
        prompts = torch.frombuffer(bytearray(data), dtype=torch.int64).reshape(shape)
        self._progress("loading the weights in fp32")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        parts: list[tuple[Any, Any, Any]] = []
        with torch.inference_mode():
            for start in range(0, len(prompts), ROWS):
                self._progress(f"reference in fp32: {start} of {len(prompts)} prompts")
                parts.append(_answers(model, prompts[start : start + ROWS], output_tokens, top))
        tokens, ids, logprobs = (torch.cat(each) for each in zip(*parts, strict=True))
        return {"tokens": _ints(tokens), "top_ids": _ints(ids), "top_logprobs": _floats(logprobs)}


def _answers(model: Any, prompts: Any, count: int, top: int) -> tuple[Any, Any, Any]:
    fed, cache, chosen = prompts, None, []
    for _ in range(count):
        answer = model(input_ids=fed, past_key_values=cache, use_cache=True)
        cache, fed = answer.past_key_values, answer.logits[:, -1].argmax(-1, keepdim=True)
        chosen.append(fed)
    tokens = torch.cat(chosen, 1)
    whole = model(input_ids=torch.cat([prompts, tokens[:, :-1]], 1), use_cache=False)
    logprobs = whole.logits[:, prompts.shape[1] - 1 :].float().log_softmax(-1)
    if not torch.isfinite(logprobs).all():
        raise ValueError("the reference itself gives NaN or infinity in fp32: these weights cannot be judged")
    best, ids = logprobs.topk(top)
    gap = (best[..., 0] - logprobs.gather(-1, tokens[..., None])[..., 0]).max().item()
    if gap > SLACK:
        raise RuntimeError(f"the reference contradicts itself by {gap:.3g} nats with and without a cache")
    return tokens, ids, best


def _ints(values: Any) -> tuple[str, tuple[int, ...], bytes]:
    return "int64", tuple(values.shape), array("q", values.flatten().tolist()).tobytes()


def _floats(values: Any) -> tuple[str, tuple[int, ...], bytes]:
    return "float32", tuple(values.shape), array("f", values.flatten().tolist()).tobytes()
