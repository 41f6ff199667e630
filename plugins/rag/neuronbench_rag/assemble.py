"""From a point's parameters to a pipeline that can be asked: what is leased, stored and indexed on the way.

| parameter | default | meaning |
|---|---|---|
| `corpus` | `builtin:harbour` | or a folder with passages.tsv and questions.tsv |
| `questions` | all | only so many, spread evenly |
| `embedder` | `compiled` | or `endpoint` (`/v1/embeddings`), or `hashing`, which is no model |
| `embed_model` | – | model reference of the embedder |
| `embed_length`, `embed_batch`, `embed_dtype`, `embed_threads` | 64, 1, float32, 1 | what it is compiled for |
| `embed_beside` | false | it takes none of the backend's cores: where the device is the host, pinned (`threads`) |
| `search` | `exact` | or `hnsw` with `m`, `ef_construction`, `ef_search` |
| `candidates` | 10 | passages that the search returns |
| `reranker` | `none` | or `maxsim`, `endpoint` with `rerank_model`, or `seeded`, a negative test |
| `context` | `retrieved` | what the model is shown: also `graded` (its ceiling) and `none` (its floor) |
| `shown`, `max_tokens` | 3, 32 | passages in the prompt; longest answer |
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from neuronbench import Failure, Gate, Point, PointFailure
from neuronbench_rag import corpus as corpora
from neuronbench_rag.embedders import (
    PADDING_LIMIT,
    CompiledEmbedder,
    Embedded,
    Embedder,
    EndpointEmbedder,
    HashingEmbedder,
)
from neuronbench_rag.pipeline import CONTEXTS, Pipeline
from neuronbench_rag.rerankers import NAMES, MaxSim, Reranker, ServedReranker, Shuffle
from neuronbench_rag.store import Collection, Index, Search, check_ef_search, facts_of

if TYPE_CHECKING:
    from neuronbench_rag.corpus import Corpus

EMBEDDERS: Final = ("compiled", "endpoint", "hashing")
PROBES: Final = 8
"""Texts that the padding is tried on."""


@dataclass(kw_only=True)
class Assembled:
    """A pipeline, and what it stands on."""

    corpus: Corpus
    pipeline: Pipeline
    collection: Collection
    embedder: Embedder
    vectors: Any
    """Of the passages, in the order of the corpus."""
    ef_search: int | None
    leased: Mapping[str, Any]
    """What the embedder stands on, by kind."""
    pipeline_k: int

    def exact(self) -> Search:
        """Exact search over the same vectors."""
        return self.collection.search(self.pipeline_k)


@contextlib.contextmanager
def assembled(measure: Any, point: Point, *, generates: bool = False) -> Iterator[Assembled]:
    """Lease, embed, store, index; records what that took and whether the embedder minds padding.

    `generates`: lease the endpoint too, of the point's own `model`. Raises `PointFailure` for parameters that cannot
    be, and for what a resource cannot do.
    """
    corpus = checked(lambda: corpora.load(point.get("corpus"), questions=point.get("questions")))
    k = int(point.get("candidates", 10))
    index, ef_search = checked(lambda: index_of(point))
    checked(lambda: check_parts(point))
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(measure.lease("vector_store"))
        leased: dict[str, Any] = {}
        embedder = stack.enter_context(embedder_of(measure, point, leased))
        padding_gate(measure, embedder, [question.text for question in corpus.questions[:PROBES]])
        embedded, seconds = embed(embedder, list(corpus.passages.values()))
        collection = stack.enter_context(store.collection(embedded.vectors.shape[1]))
        stored = collection.add(corpus.ids, embedded.vectors)
        count = len(corpus.ids)
        measure.metric("embed_rate", count / seconds, n=count)
        measure.metric("store_rate", count / stored, n=count)
        measure.metric("ingest_rate", count / (seconds + stored), n=count)
        if index is not None:
            measure.metric("index_build_time", collection.build(index), note=f"{count} vectors")
        measure.metric("index_size", collection.size_bytes() / (1 << 20), note="" if index else "the table: no index")
        reranker = checked(lambda: stack.enter_context(reranker_of(measure, point, corpus, embedded)))
        pipeline = checked(
            lambda: Pipeline(
                corpus=corpus, embedder=embedder, search=lambda: collection.search(k, ef_search=ef_search),
                reranker=reranker, context=str(point.get("context", "retrieved")), shown=int(point.get("shown", 3)),
                max_tokens=int(point.get("max_tokens", 32)),
            )
        )  # fmt: skip
        if generates:
            pipeline.endpoint = stack.enter_context(measure.lease("endpoint"))
        index_gate(measure, collection, embedded.vectors[0], k, ef_search)
        models_gate(measure, embedder, reranker)
        measure.record.workload["rag"] = {
            "corpus": corpus.name, "corpus_digest": corpus.digest, "passages": count,
            "questions": len(corpus.questions), "truncated": getattr(embedder, "truncated", 0),
            "embedder": dict(embedder.facts), "reranker": dict(reranker.facts) if reranker else None,
            "candidates": k, **facts_of(index, ef_search),
        }  # fmt: skip
        if getattr(embedder, "truncated", 0):
            measure.note(f"{embedder.truncated} texts are longer than embed_length and were cut")  # type: ignore[attr-defined]
        yield Assembled(
            corpus=corpus, pipeline=pipeline, collection=collection, embedder=embedder, vectors=embedded.vectors,
            ef_search=ef_search, leased=leased, pipeline_k=k,
        )  # fmt: skip


def checked(step: Any) -> Any:
    """`step()`; a `ValueError` about parameters is the point's failure, with its own words."""
    try:
        return step()
    except ValueError as error:
        text = str(error)
        raise PointFailure(
            Failure(kind="bad_parameters", phase="boot", message=text, causal_line=text,
                    remedy="correct the grid, or what was given with --nb-set")
        ) from error  # fmt: skip


def index_of(point: Point) -> tuple[Index | None, int | None]:
    """The index and its `ef_search`; None for exact search. Raises `ValueError` for what no search takes."""
    how, k = point.get("search", "exact"), int(point.get("candidates", 10))
    if how not in ("exact", "hnsw"):
        raise ValueError(f"search: expected 'exact' or 'hnsw', found {how!r}")
    if k < 1:
        raise ValueError(f"candidates: expected 1 or more, found {k}")
    if how == "exact":
        return None, None
    index = Index(m=int(point.get("m", 16)), ef_construction=int(point.get("ef_construction", 64)))
    ef_search = int(point.get("ef_search", 40))
    check_ef_search(ef_search, k)
    return index, ef_search


def check_parts(point: Point) -> None:
    """Raise `ValueError` for an embedder, a reranker or a context that there is not: before anything is compiled."""
    for name, known, default in (
        ("embedder", EMBEDDERS, "compiled"), ("reranker", NAMES, "none"), ("context", CONTEXTS, "retrieved"),
    ):  # fmt: skip
        if str(point.get(name, default)) not in known:
            _refuse(name, known, point.get(name))
    if point.get("embedder", "compiled") != "hashing" and not point.get("embed_model"):
        _refuse("embed_model", ("a model reference",), point.get("embed_model"))
    if point.get("reranker") == "endpoint" and not point.get("rerank_model"):
        _refuse("rerank_model", ("a model reference of a cross-encoder",), point.get("rerank_model"))


def check_cut(point: Point, cut: int, least: float) -> None:
    """Raise `ValueError` where recall@`cut` is to be `least` and fewer passages are searched for than that."""
    k = int(point.get("candidates", 10))
    if least > 0 and k < cut:
        raise ValueError(
            f"candidates: expected {cut} or more, for the benchmark asks for recall@{cut} of {least:g}, found {k}; "
            f"recall_at{cut}=0 asks for none"
        )


def check_load(point: Point, known: tuple[str, ...]) -> None:
    """Raise `ValueError` for a kind of load that there is not, for no client, or for no time."""
    if point["load"] not in known:
        _refuse("load", known, point["load"])
    for name, value in (("concurrency", point["concurrency"]), ("window_s", point["window_s"])):
        if value <= 0:
            _refuse(name, ("a number above 0",), value)


def embed(embedder: Embedder, texts: list[str]) -> tuple[Embedded, float]:
    """All of them, and the wall in seconds. The first is embedded beforehand, untimed."""
    embedder.embed(texts[:1])
    begun = time.monotonic()
    embedded = embedder.embed(texts)
    return embedded, time.monotonic() - begun


@contextlib.contextmanager
def embedder_of(measure: Any, point: Point, leased: dict[str, Any]) -> Iterator[Embedder]:
    """The embedder that the point names, with what it leases."""
    kind = str(point.get("embedder", "compiled"))
    checked(lambda: check_parts(point))
    batch, beside = int(point.get("embed_batch", 1)), bool(point.get("embed_beside", False))
    if kind == "hashing":
        yield HashingEmbedder(ignores_mask=bool(point.get("hashing_ignores_mask", False)))
        return
    if kind == "endpoint":
        served = {"model": point.get("embed_model"), "served_model": None, "dtype": point.get("embed_dtype", "float32"),
                  "max_model_len": None, "engine_args": {"runner": "pooling"}}  # fmt: skip
        with measure.lease("endpoint", beside=beside, **served) as endpoint:
            leased["embed_endpoint"] = endpoint
            yield EndpointEmbedder(endpoint, batch=batch)
        return
    with contextlib.ExitStack() as model:
        compiled = leased["compiled_model"] = model.enter_context(
            measure.lease("compiled_model", beside=beside, **shape_of(point))
        )
        told = compiled.facts.get("model") or {}
        # The model is given back before the tokenizer, so that it is the one the record is of.
        with measure.lease("tokenizer", tokenizer=str(told.get("path") or "")) as tokenizer, model:
            yield checked(lambda: CompiledEmbedder(compiled, tokenizer))


def shape_of(point: Point) -> dict[str, Any]:
    """What the embedder is compiled as: `maxsim` needs the vectors of tokens, so that the host pools."""
    tokens = point.get("reranker") == "maxsim"
    return {
        "model": point.get("embed_model"), "family": "encoder" if tokens else "embedding",
        "task": "raw_output" if tokens else "embed", "batch_size": int(point.get("embed_batch", 1)),
        "sequence_length": int(point.get("embed_length", 64)), "dtype": point.get("embed_dtype", "float32"),
        "threads": int(point.get("embed_threads", 1)),
    }  # fmt: skip


def embedder_accuracy(measure: Any, point: Point) -> None:
    """Whether the compiled embedder answers as its reference in fp32: questions and the passages that answer them.

    Each question's partner is its best passage, and the other way round; a passage answers one question only here. The
    passages that no question is about are cut in two, and the halves are partners.
    """
    from neuronbench import accuracy

    corpus = checked(lambda: corpora.load(point.get("corpus"), questions=point.get("questions")))
    pairs: dict[str, str] = {}
    for question in corpus.questions:
        pairs.setdefault(max(question.grades, key=lambda id: question.grades[id]), question.text)
    texts = [text for passage, question in pairs.items() for text in (question, corpus.passages[passage])]
    for words in (text.split() for id, text in corpus.passages.items() if id not in pairs):
        texts += [" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])]
    shape = shape_of(point)
    output = "embedding" if shape["family"] == "embedding" else "last_hidden_state"
    with measure.lease("compiled_model", **shape) as model:
        samples = accuracy.encode(
            model, texts, name=f"{corpus.name} pairs", truth=[index ^ 1 for index in range(len(texts))]
        )
        measure.accuracy(model, samples, measure=accuracy.Similarity(output=output))


@contextlib.contextmanager
def reranker_of(measure: Any, point: Point, corpus: Corpus, embedded: Embedded) -> Iterator[Reranker | None]:
    """The reranker that the point names; None for none. Raises `ValueError` for one that the embedder cannot feed."""
    kind = str(point.get("reranker", "none"))
    if kind == "endpoint":
        served = {"model": point["rerank_model"], "served_model": None, "dtype": point.get("embed_dtype", "float32"),
                  "max_model_len": None, "engine_args": {"runner": "pooling"}}  # fmt: skip
        with measure.lease("endpoint", beside=bool(point.get("embed_beside", False)), **served) as endpoint:
            yield ServedReranker(endpoint, corpus.passages)
    elif kind == "maxsim":
        yield MaxSim(corpus.ids, embedded.tokens)
    elif kind == "seeded":
        yield Shuffle(int(point.get("seed", 0)))
    else:
        yield None


def _refuse(name: str, expected: tuple[str, ...], found: Any) -> None:
    raise ValueError(f"{name}: expected {' or '.join(expected)}, found {found!r}")


def padding_gate(measure: Any, embedder: Embedder, texts: list[str]) -> None:
    """Whether padding changes what it should not."""
    error = embedder.padding_error(texts)
    measure.metric("padding_error", error, stat="max", n=len(texts))
    passed = error <= PADDING_LIMIT
    measure.gate(
        Gate(
            id="padding_changes_embedding", passed=passed, observed=error, limit=PADDING_LIMIT, unit="1 - cosine",
            message="" if passed else "the vector of a text changes with its padding: the attention mask is ignored",
        )
    )  # fmt: skip


def index_gate(measure: Any, collection: Collection, vector: Any, k: int, ef_search: int | None) -> None:
    """Whether the server searches as it was asked to: a planner that finds a table small does not use its index."""
    search = collection.search(k, ef_search=ef_search)
    try:
        used = search.uses_index(vector)
    finally:
        search.close()
    wanted = ef_search is not None
    measure.gate(
        Gate(
            id="searched_as_asked", passed=used == wanted, observed="hnsw" if used else "scan",
            limit="hnsw" if wanted else "scan",
            message="" if used == wanted else "by the plan that the server itself explains",
        )
    )  # fmt: skip
    for notice in collection.notices:
        measure.note(f"PostgreSQL: {notice}")


def models_gate(measure: Any, embedder: Embedder, reranker: Reranker | None) -> None:
    """Stand-ins are marked."""
    parts = (("embedder", embedder), ("reranker", reranker))
    fakes = [name for name, part in parts if part is not None and not part.is_model]
    measure.gate(
        Gate(
            id="stages_are_models", passed=not fakes, observed=", ".join(fakes) or "models", limit="models",
            severity="provisional",
            message=f"no model stands behind the {' and the '.join(fakes)}: a test of the pipeline" if fakes else "",
        )
    )  # fmt: skip
