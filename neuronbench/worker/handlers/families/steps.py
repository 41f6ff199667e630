"""Greedy generation of an encoder-decoder, as two compiled graphs and a loop between them.

No graph holds the loop: `prefill` runs the encoder and the decoder over its prompt and gives the first token and the
caches; `step` takes a token and the caches, writes its own keys and values into them in place, and gives the next
token. The choice of the largest logit is inside both graphs. The loop calls `step` until there are as many tokens as
were asked for; an end-of-sequence token does not end it, so that every call does the same work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .common import Built, Graph

OUTPUTS = ["tokens", "scores"]
"""Chosen tokens, and the logit of each: [batch, output tokens]."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """What the two graphs must know of an encoder-decoder of transformers."""

    model: Any
    encode: Callable[..., Any]
    """The inputs of the model in, hidden states of the encoder out."""
    masked: bool
    """Whether the second input is the attention mask of the first."""
    prompt: list[int]
    """Tokens the decoder starts with."""
    layers: int
    heads: int
    head_size: int
    width: int
    """Of the encoder's hidden states."""
    source_length: int
    """Positions that the encoder gives."""
    output_tokens: int

    @property
    def capacity(self) -> int:
        """Positions in the decoder's own cache: the last token chosen is never fed."""
        return len(self.prompt) + self.output_tokens - 1

    def logits(self, hidden: Any, tokens: Any, mask: Any, cache: Any = None, position: Any = None) -> Any:
        """Of the last position. `position`: of the first of `tokens`, where there is a cache."""
        given = {"past_key_values": cache, "use_cache": cache is not None}
        if mask is not None:
            given["attention_mask"] = mask
        # Up to release 4 of transformers a decoder is told where it is; from 5 on it asks the cache.
        if position is not None and "cache_position" in inspect.signature(self.model.forward).parameters:
            given["cache_position"] = torch.arange(tokens.shape[1]) + position
        answer = self.model(encoder_outputs=(hidden,), decoder_input_ids=tokens, **given)
        return answer.logits[:, -1].float()


class Prefill(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """Inputs → first token [batch, 1], its logit [batch], keys and values of encoder and decoder by layer."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.model, self.decoder = decoder.model, decoder
        self.register_buffer("prompt", torch.tensor([decoder.prompt]), persistent=False)

    def forward(self, *inputs: Any) -> Any:
        from transformers.cache_utils import (  # type: ignore[import-not-found,unused-ignore]
            DynamicCache,
            EncoderDecoderCache,
        )

        told = self.decoder
        hidden = told.encode(*inputs)
        size = (hidden.shape[0], told.heads, told.capacity, told.head_size)
        empty = [hidden.new_zeros(size) for _ in range(2 * told.layers)]
        start = torch.zeros((), dtype=torch.int64)
        own = _static(empty, start)
        cache = EncoderDecoderCache(own, DynamicCache())
        tokens = self.prompt.expand(hidden.shape[0], -1)
        logits = told.logits(hidden, tokens, inputs[1] if told.masked else None, cache, start)
        score, token = logits.max(-1)
        return (token[:, None], score, *_tensors(cache.cross_attention_cache), *_tensors(own))


class Step(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """Token, its position, (mask,) caches → next token [batch, 1] and its logit [batch]."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.model, self.decoder = decoder.model, decoder

    def forward(self, token: Any, position: Any, *rest: Any) -> Any:
        from transformers.cache_utils import EncoderDecoderCache

        told = self.decoder
        mask, state = (rest[0], rest[1:]) if told.masked else (None, rest)
        cross, own = state[: 2 * told.layers], state[2 * told.layers :]
        cache = EncoderDecoderCache(_static(own, position), _fixed(cross))
        # Its keys and values are in the cache: of the encoder's answer only the shape is looked at.
        hidden = cross[0].new_zeros((token.shape[0], told.source_length, told.width))
        score, chosen = told.logits(hidden, token, mask, cache, position).max(-1)
        return chosen[:, None], score


class Plain(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """The same without any cache, the whole decoder again for each token: what the two graphs are held against."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.model, self.decoder = decoder.model, decoder

    def forward(self, *inputs: Any) -> Any:
        told = self.decoder
        hidden = told.encode(*inputs)
        tokens = torch.tensor([told.prompt]).expand(hidden.shape[0], -1)
        scores = []
        for _ in range(told.output_tokens):
            score, chosen = told.logits(hidden, tokens, inputs[1] if told.masked else None).max(-1)
            tokens = torch.cat([tokens, chosen[:, None]], 1)
            scores.append(score)
        return tokens[:, len(told.prompt) :], torch.stack(scores, 1)


def built(decoder: Decoder, inputs: list[dict[str, Any]], facts: dict[str, Any], per_item: dict[str, Any]) -> Built:
    """What the two graphs are compiled from, and the loop between them."""
    batch = inputs[0]["shape"][0]
    cross = [batch, decoder.heads, decoder.source_length, decoder.head_size]
    own = [batch, decoder.heads, decoder.capacity, decoder.head_size]
    fed: list[dict[str, Any]] = [{"dtype": "int64", "shape": [batch, 1]}, {"dtype": "int64", "shape": []}]
    fed += inputs[1:2] if decoder.masked else []
    fed += [{"dtype": "", "shape": shape} for shape in (cross, own) for _ in range(2 * decoder.layers)]
    steps = decoder.output_tokens - 1
    return Built(
        module=Plain(decoder).eval(),
        inputs=inputs,
        outputs=OUTPUTS,
        facts={**facts, "decoder_prompt": decoder.prompt, "ends_early": False},
        per_item={**per_item, "output_tokens": decoder.output_tokens},
        graphs={
            "prefill": Graph(module=Prefill(decoder).eval(), inputs=inputs),
            "step": Graph(
                module=Step(decoder).eval(),
                inputs=fed,
                calls=steps,
                writes=tuple(range(len(fed) - 2 * decoder.layers, len(fed))),
            ),
        },
        loop={"masked": decoder.masked, "first": len(decoder.prompt), "steps": steps},
    )


def start_of(model: Any) -> int:
    """The token a decoder starts with: T5 starts with its padding."""
    for settings in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "pad_token_id"):
            token = getattr(settings, name, None)
            if token is not None:
                return int(token)
    raise ValueError(f"{type(model).__name__}: neither decoder_start_token_id nor pad_token_id is known")


def loop(graphs: dict[str, Callable[..., Any]], masked: bool, first: int, steps: int) -> Callable[..., Any]:
    """Inputs → tokens and scores, by the compiled graphs. `first`: position of the first token that is fed back."""
    prefill, step = graphs["prefill"], graphs["step"]
    positions = [torch.tensor(first + index) for index in range(steps)]

    def run(*inputs: Any) -> Any:
        token, score, *given = prefill(*inputs)
        # A compiled graph reads its inputs by the strides it was traced with and asks nothing, and the compiler lays
        # out the outputs of another graph as it likes.
        state = [tensor.contiguous() for tensor in given]
        rest = (*inputs[1:2], *state) if masked else tuple(state)
        tokens, scores = [token], [score]
        for position in positions:
            token, score = step(token, position, *rest)
            tokens.append(token)
            scores.append(score)
        return torch.cat(tokens, 1), torch.stack(scores, 1)

    return run


def _static(tensors: Any, position: Any) -> Any:
    """A cache of fixed size that holds `tensors` (keys and values by layer) and writes at `position` next."""
    from transformers.cache_utils import Cache, StaticLayer

    class Slots(StaticLayer):  # type: ignore[misc,unused-ignore]
        """The same under every release of transformers: where it writes is a tensor of its own."""

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> Any:
            at = torch.arange(key_states.shape[-2]) + self.at
            self.at.add_(key_states.shape[-2])
            self.keys.index_copy_(2, at, key_states)
            self.values.index_copy_(2, at, value_states)
            return self.keys, self.values

        def get_seq_length(self, *_: Any) -> Any:
            return self.at

    layers = []
    for keys, values in zip(tensors[::2], tensors[1::2], strict=True):
        layer = Slots(max_cache_len=keys.shape[2])
        _hold(layer, keys, values)
        layer.at = position.clone()
        layers.append(layer)
    return Cache(layers=layers)


def _fixed(tensors: Any) -> Any:
    """A cache that is complete: nothing is written to it."""
    from transformers.cache_utils import Cache, DynamicLayer

    layers = []
    for keys, values in zip(tensors[::2], tensors[1::2], strict=True):
        layer = DynamicLayer()
        _hold(layer, keys, values)
        layers.append(layer)
    return Cache(layers=layers)


def _hold(layer: Any, keys: Any, values: Any) -> None:
    """Make a layer hold these; its own way to begin differs between releases, and makes tensors of its own."""
    layer.keys, layer.values = keys, values
    layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True


def _tensors(cache: Any) -> list[Any]:
    return [tensor.contiguous() for layer in cache.layers for tensor in (layer.keys, layer.values)]
