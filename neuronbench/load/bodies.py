"""Encoded request bodies for every kind of workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from neuronbench.load.apis import APIS
from neuronbench.load.datasets import Row, TraceRow, read_rows
from neuronbench.load.prompts import MOONCAKE_BLOCK, Ids, PromptSource, draw_lengths, encode_ids
from neuronbench.load.workload import Dataset, Synthetic
from neuronbench.model import Json
from neuronbench.protocols import Vocabulary

NATURAL_LIMIT: Final = 256
"""`max_tokens` of answers whose length is left to the server."""
CACHE_BLOCK: Final = 16
"""Tokens per block of the prefix cache, for the hit ratio that can be expected."""


@dataclass(kw_only=True)
class Bodies:
    """Encoded requests with what is expected of them; one row per body."""

    bodies: list[bytes]
    input_tokens: Sequence[int]
    """Exact prompt length in tokens, -1 unknown."""
    output_tokens: Sequence[int]
    """Exact answer length in tokens, -1 unknown."""
    distinct: bool = True
    """No two prompts are equal."""
    notes: dict[str, Json] = field(default_factory=dict)
    """What else is to be said about them in the plan."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What all bodies of a plan have in common, and where prompts may come from."""

    api: str
    model: str
    extra: Mapping[str, Json]
    vocabulary: Vocabulary | None
    seed: int
    base_url: str | None
    api_key: str | None

    def common(self, output_tokens: int | None) -> dict[str, Json]:
        """All of a body but its prompt; `output_tokens` None leaves the length to the server."""
        return request_body(self.api, self.model, output_tokens, self.extra)

    def source(self) -> PromptSource:
        if self.vocabulary is None:
            raise ValueError(
                "prompts of an exact length are drawn as token ids, and the vocabulary of the model is not known: name "
                "its tokenizer (--nb-tokenizer PATH; for neuronbench load --tokenizer PATH), or use the chat API on a "
                "server with /tokenize"
            )
        return PromptSource(self.vocabulary, self.seed)

    def fits(self, input_tokens: int, output_tokens: int) -> None:
        """Raises `ValueError` when the model's context cannot hold both."""
        limit = self.vocabulary.max_model_len if self.vocabulary else None
        generated = output_tokens if APIS[self.api].generates else 0
        if limit is not None and input_tokens + generated > limit:
            raise ValueError(
                f"{input_tokens} input + {generated} output tokens = {input_tokens + generated} do not fit the "
                f"model's context of {limit}; ask for less or serve it with a longer context"
            )


def request_body(api: str, model: str, output_tokens: int | None, extra: Mapping[str, Json] | None) -> dict[str, Json]:
    """All of a request but its prompt."""
    body: dict[str, Json] = {"model": model}
    if APIS[api].generates:
        limit = "max_output_tokens" if api == "responses" else "max_tokens"
        body |= {"temperature": 0, limit: output_tokens or NATURAL_LIMIT, "stream": True}
        if api != "responses":
            body["stream_options"] = {"include_usage": True}
            if output_tokens is not None:
                body |= {"min_tokens": output_tokens, "ignore_eos": True}
    return body | dict(extra or {})


def with_ids(request: Request, prompts: Sequence[Ids], outputs: Sequence[int]) -> list[bytes]:
    """Bodies whose prompt is given as token ids."""
    if request.api not in ("completions", "embeddings"):
        raise ValueError(
            f"token-id prompts: expected api completions or embeddings, found {request.api!r}; "
            f"give its requests with dataset(..., format='bodies')"
        )
    key = b"prompt" if request.api == "completions" else b"input"
    openings: dict[int, bytes] = {}
    bodies = []
    for ids, output in zip(prompts, outputs, strict=True):
        if output not in openings:
            openings[output] = orjson.dumps(request.common(output))[:-1] + b',"' + key + b'":'
        bodies.append(openings[output] + encode_ids(ids) + b"}")
    return bodies


def synthetic_sets(request: Request, workload: Synthetic, counts: tuple[int, int]) -> tuple[Bodies, Bodies]:
    """Warm-up set and load of a synthetic workload."""
    request.fits(workload.longest_input, workload.longest_output)
    lengths = [draw_lengths(workload.input_tokens, count, request.seed, i) for i, count in enumerate(counts)]
    outputs = [draw_lengths(workload.output_tokens, count, request.seed, i + 2) for i, count in enumerate(counts)]
    if request.api in ("chat", "responses"):
        return _texts(request, workload, lengths, outputs)
    source = request.source()
    shared = {"prefixes": workload.prefixes, "prefix_tokens": workload.prefix_tokens}
    sets = []
    for part, wide, out in zip(("warmup", "load"), lengths, outputs, strict=True):
        if workload.prefixes:
            prompts, distinct = source.draw_shared(wide, part, **shared)  # type: ignore[arg-type]
        else:
            prompts, distinct = source.draw(wide, part)  # type: ignore[arg-type]
        sets.append(
            Bodies(
                bodies=with_ids(request, prompts, out),
                input_tokens=wide,
                output_tokens=out if APIS[request.api].generates else [-1] * len(out),
                distinct=distinct,
            )
        )
    if workload.prefixes and lengths[1]:
        cached = workload.prefix_tokens // CACHE_BLOCK * CACHE_BLOCK
        hits = max(len(lengths[1]) - workload.prefixes, 0) * cached
        sets[1].notes["prefix"] = {
            **shared,
            "expected_hit_ratio": hits / sum(lengths[1]),
            "expected_with_block": CACHE_BLOCK,
        }
    return sets[0], sets[1]


def _texts(
    request: Request, workload: Synthetic, lengths: list[list[int]], outputs: list[list[int]]
) -> tuple[Bodies, Bodies]:
    from neuronbench.load.chatfit import ChatFitter

    if request.base_url is None:
        raise ValueError(
            f"{request.api} prompts of an exact length are settled with the server's /tokenize: give base_url"
        )
    if workload.prefixes:
        raise ValueError("shared prefixes: expected api completions, whose prompts are token ids, found chat")
    with ChatFitter(request.base_url, model=request.model, api_key=request.api_key, seed=request.seed) as fitter:
        texts = fitter.fit([*lengths[0], *lengths[1]], warmup=len(lengths[0]))
    sets = []
    for part, wide, out in zip((texts[: len(lengths[0])], texts[len(lengths[0]) :]), lengths, outputs, strict=True):
        bodies = []
        for text, output in zip(part, out, strict=True):
            content = (
                {"input": text} if request.api == "responses" else {"messages": [{"role": "user", "content": text}]}
            )
            bodies.append(orjson.dumps({**request.common(output), **content}))
        exact = out if request.api == "chat" else [-1] * len(out)
        sets.append(
            Bodies(bodies=bodies, input_tokens=wide, output_tokens=exact, distinct=len(set(texts)) == len(texts))
        )
    return sets[0], sets[1]


def session_bodies(
    request: Request, workload: Synthetic, sessions: int, turns: int, warmup: int
) -> tuple[Bodies, Bodies, list[int]]:
    """Turns of sessions, session after session, and the session of each.

    A turn's prompt is the session so far and `input_tokens` new ones. Bodies are made beforehand, so earlier answers
    are stood in for by drawn tokens of the same length: the server's cache can hold the prompt of the turn before, not
    its answer.
    """
    source = request.source()
    new = draw_lengths(workload.input_tokens, sessions * turns, request.seed, 1)
    outputs = draw_lengths(workload.output_tokens, sessions * turns, request.seed, 3)
    whole = [
        sum(new[s * turns : s * turns + turns]) + sum(outputs[s * turns : s * turns + turns - 1])
        for s in range(sessions)
    ]
    if whole:
        request.fits(max(whole), max(outputs))
    texts, distinct = source.draw(whole, "load")
    prompts: list[Ids] = []
    for s in range(sessions):
        end = 0
        for turn in range(turns):
            k = s * turns + turn
            end += new[k] + (outputs[k - 1] if turn else 0)
            prompts.append(texts[s][:end])
    load = Bodies(
        bodies=with_ids(request, prompts, outputs),
        input_tokens=[len(prompt) for prompt in prompts],
        output_tokens=outputs,
        distinct=distinct,
    )
    warm, _ = synthetic_sets(request, workload, (warmup, 0))
    return warm, load, [s for s in range(sessions) for _ in range(turns)]


def trace_bodies(request: Request, rows: Sequence[TraceRow], warmup: int) -> tuple[Bodies, Bodies]:
    """Prompts with the lengths of a trace; rows that share blocks share tokens."""
    source = request.source()
    for row in rows:
        request.fits(row.input_tokens, row.output_tokens)
    drawn, distinct = source.draw([row.input_tokens for row in rows], "load")
    blocks: dict[int, Ids] = {}
    prompts = []
    for row, ids in zip(rows, drawn, strict=True):
        made = ids
        if row.blocks:
            for block in row.blocks:
                if block not in blocks:
                    blocks[block] = source.block(block)
            made = np.concatenate([blocks[block] for block in row.blocks])[: row.input_tokens]
            if len(made) < row.input_tokens:
                made = np.concatenate([made, ids[len(made) :]])
        prompts.append(made)
    outputs = [row.output_tokens for row in rows]
    load = Bodies(
        bodies=with_ids(request, prompts, outputs),
        input_tokens=[row.input_tokens for row in rows],
        output_tokens=outputs,
        distinct=distinct or bool(blocks),
        notes={"blocks": {"distinct": len(blocks), "tokens": MOONCAKE_BLOCK}} if blocks else {},
    )
    sample = [rows[k % len(rows)] for k in range(warmup)]
    warm_prompts, _ = source.draw([row.input_tokens for row in sample], "warmup")
    warm = Bodies(
        bodies=with_ids(request, warm_prompts, [row.output_tokens for row in sample]),
        input_tokens=[row.input_tokens for row in sample],
        output_tokens=[row.output_tokens for row in sample],
    )
    return warm, load


def dataset_sets(request: Request, workload: Dataset, counts: tuple[int, int]) -> tuple[Bodies, Bodies]:
    """Warm-up set and load from a file; the load starts over when it needs more rows than there are."""
    rows = read_rows(workload)
    order = np.random.default_rng([workload.seed, 6]).permutation(len(rows))
    shuffled = [rows[k] for k in order]
    reserved = counts[0] if len(rows) > counts[0] else 0
    warm_rows = [shuffled[k % len(rows)] for k in range(counts[0])]
    rest = shuffled[reserved:]
    load_rows = [rest[k % len(rest)] for k in range(counts[1])]
    warm, load = (_from_rows(request, workload, part) for part in (warm_rows, load_rows))
    load.distinct = counts[1] <= len(rest)
    load.notes["rows"] = len(rows)
    warm.notes["disjoint"] = reserved > 0 or counts[0] == 0
    return warm, load


def _from_rows(request: Request, workload: Dataset, rows: Sequence[Row]) -> Bodies:
    bodies, outputs, inputs = [], [], []
    for row in rows:
        length = row.output_tokens or workload.output_tokens
        common = request.common(length)
        inputs.append(len(row.ids) if row.ids is not None else -1)
        outputs.append(length if length is not None and common.get("ignore_eos") else -1)
        bodies.append(orjson.dumps({**common, **_prompt_of(request, row)}))
    return Bodies(bodies=bodies, input_tokens=inputs, output_tokens=outputs)


def _prompt_of(request: Request, row: Row) -> dict[str, Any]:
    api = request.api
    if row.body is not None:
        return dict(row.body)
    if row.messages is not None and api in ("chat", "responses"):
        return {"messages" if api == "chat" else "input": list(row.messages)}
    content: Any = row.raw if row.raw is not None else list(row.ids) if row.ids is not None else row.text
    if content is None or api in ("score", "rerank") or (api == "chat" and row.text is None):
        raise ValueError(f"dataset: its rows cannot be sent to the {api} API; give whole requests with format='bodies'")
    if api == "chat":
        return {"messages": [{"role": "user", "content": content}]}
    return {"prompt" if api == "completions" else "input": content}
