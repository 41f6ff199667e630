"""Many vectors around the corpus' own, so that an index has something to miss.

Some dozens of passages are searched exactly in no time, and an index over them finds everything. The vectors here are
seeded mixtures of passages' vectors with noise: no text stands behind them, which is said; the queries are the real
questions'. What an index is judged by is exact search over the very same vectors.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from neuronbench import Point
from neuronbench_rag import corpus as corpora
from neuronbench_rag.assemble import checked, embed, embedder_of, index_gate, index_of, models_gate, padding_gate
from neuronbench_rag.embedders import unit
from neuronbench_rag.metrics import mean, share_found
from neuronbench_rag.results import percentiles
from neuronbench_rag.store import Collection, facts_of

NOISE: Final = 0.5
"""Length of the noise beside mixtures of length 1: neighbours are then about as far as passages on one subject."""


@dataclass(kw_only=True)
class Haystack:
    """An index over many vectors, and the questions' vectors."""

    collection: Collection
    queries: Any
    k: int
    ef_search: int


def mixtures(vectors: Any, count: int, *, seed: int) -> Any:
    """`count` vectors of length 1: two passages' vectors in a random proportion, and noise."""
    chance = np.random.default_rng(seed)
    one, other = (vectors[chance.integers(0, len(vectors), size=count)] for _ in range(2))
    share = chance.random((count, 1), dtype=np.float32)
    noise = chance.standard_normal((count, vectors.shape[1]), dtype=np.float32)
    return unit(unit(share * one + (1 - share) * other + 1e-9) + NOISE * unit(noise))


@contextlib.contextmanager
def built(measure: Any, point: Point) -> Iterator[Haystack]:
    """Embed the corpus and its questions, make the other vectors, store and index all; recorded."""
    corpus = checked(lambda: corpora.load(point.get("corpus"), questions=point.get("questions")))
    index, ef_search = checked(lambda: index_of(point))
    k, count = int(point.get("candidates", 10)), int(point["vectors"])
    if index is None or ef_search is None:
        checked(lambda: _refuse("search: expected 'hnsw': the benchmark is of an index"))
    if count < len(corpus.ids):
        checked(lambda: _refuse(f"vectors: expected at least the {len(corpus.ids)} of the corpus, found {count}"))
    assert index is not None
    assert ef_search is not None
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(measure.lease("vector_store"))
        with embedder_of(measure, point, {}) as embedder:
            texts = [question.text for question in corpus.questions]
            padding_gate(measure, embedder, texts[:8])
            passages, _ = embed(embedder, list(corpus.passages.values()))
            queries, _ = embed(embedder, texts)
            models_gate(measure, embedder, None)
        seed = int(point.get("seed", 0))
        more = mixtures(passages.vectors, count - len(corpus.ids), seed=seed)
        collection = stack.enter_context(store.collection(passages.vectors.shape[1]))
        ids = [*corpus.ids, *(f"mixture-{number}" for number in range(len(more)))]
        measure.metric("store_rate", count / collection.add(ids, np.concatenate([passages.vectors, more])), n=count)
        measure.metric("index_build_time", collection.build(index), note=f"{count} vectors")
        measure.metric("index_size", collection.size_bytes() / (1 << 20))
        measure.record.workload["rag"] = {
            "corpus": corpus.name, "corpus_digest": corpus.digest, "vectors": count, "mixtures": len(more),
            "noise": NOISE, "seed": seed, "candidates": k, "embedder": dict(embedder.facts),
            **facts_of(index, ef_search),
        }  # fmt: skip
        measure.note(f"{len(more)} of the {count} vectors are seeded mixtures of passages' vectors, without a text")
        index_gate(measure, collection, queries.vectors[0], k, ef_search)
        yield Haystack(collection=collection, queries=queries.vectors, k=k, ef_search=ef_search)


def record(measure: Any, stack: Haystack, *, passes: int) -> None:
    """Recall against exact search, and the time of both, on the same vectors and queries."""
    exact = stack.collection.search(stack.k)
    found = stack.collection.search(stack.k, ef_search=stack.ef_search)
    try:
        shares, times, exact_times = [], [], []
        for round in range(passes + 1):
            for vector in stack.queries:
                begun = time.monotonic_ns()
                near = found(vector)
                between = time.monotonic_ns()
                true = exact(vector)
                ended = time.monotonic_ns()
                if round == 0:  # pages and plans are warm then
                    shares.append(share_found([hit.distance for hit in near], [hit.distance for hit in true], stack.k))
                else:
                    times.append((between - begun) / 1e6)
                    exact_times.append((ended - between) / 1e6)
    finally:
        exact.close()
        found.close()
    measure.metric("index_recall", mean(shares), stat=f"at{stack.k}", n=len(shares), note="against exact search")
    measure.metric("index_recall", min(shares), stat=f"worst_at{stack.k}", n=len(shares), note="the worst query")
    percentiles(measure, "search_time", times)
    measure.metric("exact_search_time", float(np.median(exact_times)), stat="p50", n=len(exact_times))


def _refuse(text: str) -> None:
    raise ValueError(text)
