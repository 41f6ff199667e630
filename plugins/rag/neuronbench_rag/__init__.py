"""Retrieval-augmented generation for neuronbench: the lane `rag`, a vector store, and a tokenizer that stays open.

What does the work is imported on first use: this module costs a run of other lanes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from neuronbench import LaneInfo, ProviderInfo, hookimpl

NEURONBENCH_API = "1.1"
FAMILIES = ("cpu", "neuron", "fake")

LANE = LaneInfo(
    name="rag",
    title="Retrieval-augmented generation",
    needs=("vector_store", "tokenizer"),
    headline=(
        "recall_at5_share", "ndcg_at10_share", "exactness_share", "query_time_p50_ms", "query_throughput_queries_s",
    ),
    definitions={
        "recall": ("share", "higher", "relevant passages among the first k / the lesser of k and the relevant ones "
                   "there are; mean over questions; any grade above 0 is relevant"),
        "ndcg": ("share", "higher", "sum of (2^grade - 1) / log2(rank + 1) over the first k / the same of the best "
                 "order; mean over questions"),
        "mrr": ("share", "higher", "1 / rank of the first relevant passage among those retrieved, 0 without one; mean "
                "over questions"),
        "exactness": ("share", "higher", "questions whose answer has an accepted answer in it as whole words, and "
                      "where that is a number names it before any other that is not in the question / all asked, "
                      "failed ones included"),
        "exact_match": ("share", "higher", "questions whose whole answer is an accepted one, but for case, punctuation "
                        "and articles / all asked"),
        "query_time": ("ms", "lower", "from the question's text to the end of the last stage, on the harness's clock"),
        "embed_time": ("ms", "lower", "question's text to its vector in the harness, tokenising and waiting included"),
        "embed_device_time": ("ms", "lower", "the compiled model's call within embed_time, on the worker's clock"),
        "search_time": ("ms", "lower", "vector sent to the store until its nearest passages are there"),
        "exact_search_time": ("ms", "lower", "the same without an index, over the same vectors; median"),
        "rerank_time": ("ms", "lower", "candidates to their new order"),
        "prefill_time": ("ms", "lower", "request written to the first chunk with output"),
        "decode_time": ("ms", "lower", "first chunk with output to the last"),
        "output_rate": ("tok/s", "higher", "(output tokens - 1) / decode_time, by the server's own count; median"),
        "ingest_rate": ("passages/s", "higher", "passages / wall of embedding and storing all of them, index left out"),
        "embed_rate": ("passages/s", "higher", "passages / wall of embedding all of them"),
        "store_rate": ("vectors/s", "higher", "vectors / wall of storing them, committed"),
        "query_throughput": ("queries/s", "higher", "queries without failure that ended inside the window / window"),
        "index_build_time": ("s", "lower", "wall of CREATE INDEX over all vectors"),
        "index_size": ("MiB", "lower", "pages of the index on disk; of the table where search is exact"),
        "index_recall": ("share", "higher", "passages found through the index that are no farther than the k-th of "
                         "exact search over the same vectors / k; mean over queries"),
        "padding_error": ("1", "lower", "largest 1 - cosine between embeddings of a text whose padding differs"),
        "rerank_gain": ("share", "higher", "nDCG after reranking - before, the same candidates; mean over questions"),
        "agent_rounds": ("rounds", "lower", "retrievals until the judge was content or the limit was reached; mean"),
        "agent_tokens": ("tokens", "lower", "input and output tokens of all requests of a question; mean"),
        "judge_agreement": ("share", "higher", "verdicts of the judge that are true: whether the passages shown do "
                            "have the answer / verdicts"),
        "judge_yes": ("share", None, "verdicts of the judge that are yes / verdicts"),
        "store_boot_time": ("s", "lower", "start of the store's process to its first answer"),
        "alone": ("ms", "lower", "median time of the stage while the other stage's resource is idle"),
        "together": ("ms", "lower", "median time of the stage while the other stage works without pause"),
        "slowdown": ("ratio", "lower", "together / alone of the same stage, in one session, on the same resources"),
    },
    benchmarks="neuronbench_rag.benchmarks",
)  # fmt: skip


@hookimpl
def register_lanes(register: Callable[[LaneInfo], None]) -> None:
    register(LANE)


@hookimpl
def register_resources(register: Callable[[ProviderInfo], None]) -> None:
    register(
        ProviderInfo(
            name="vector_store/postgres", kind="vector_store", families=FAMILIES,
            target="neuronbench_rag.postgres:PostgresProvider",
        )
    )  # fmt: skip
    register(
        ProviderInfo(
            name="tokenizer/worker", kind="tokenizer", families=FAMILIES,
            target="neuronbench_rag.tokenizer:TokenizerProvider",
        )
    )  # fmt: skip
