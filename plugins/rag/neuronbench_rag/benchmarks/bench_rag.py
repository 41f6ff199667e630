"""Retrieval, its index, answers, load, an agent, and two models beside each other."""

from typing import Any

import neuronbench as nb
from neuronbench_rag import agent, haystack, results, together
from neuronbench_rag.assemble import assembled, checked
from neuronbench_rag.pipeline import each, loaded


@nb.bench(lane="rag", grid="rag/retrieval", leases=("vector_store", "compiled_model"))
def bench_retrieval(measure: Any, point: nb.Point) -> None:
    """Is what answers a question found, how far up, and how long does it take? Without a language model."""
    with assembled(measure, point) as setup:
        results.record(measure, setup, each(setup.pipeline, setup.corpus.questions, passes=point["passes"]))
    measure.check("recall_at5_share", at_least=point["recall_at5"])


@nb.bench(lane="rag", grid="rag/index", leases=("vector_store", "compiled_model"))
def bench_index(measure: Any, point: nb.Point) -> None:
    """What an index over many vectors finds of what exact search finds, what it costs to build, and how fast it is."""
    with haystack.built(measure, point) as stack:
        haystack.record(measure, stack, passes=point["passes"])


@nb.bench(lane="rag", grid="rag/answers", leases=("vector_store", "compiled_model", "endpoint"))
def bench_answers(measure: Any, point: nb.Point) -> None:
    """From question to answer, one at a time: exact answers, and the time of each stage."""
    with assembled(measure, point, generates=True) as setup:
        results.record(measure, setup, each(setup.pipeline, setup.corpus.questions, passes=point["passes"]))


@nb.bench(lane="rag", grid="rag/load", leases=("vector_store", "compiled_model", "endpoint"))
def bench_load(measure: Any, point: nb.Point) -> None:
    """Questions per second of clients that ask without a pause."""
    results.quiet_gate(measure)
    with assembled(measure, point, generates=point["generates"]) as setup:
        run = loaded(
            setup.pipeline, setup.corpus.questions, concurrency=point["concurrency"], seconds=point["window_s"]
        )
        results.throughput(measure, run)
        results.record(measure, setup, run)


@nb.bench(lane="rag", grid="rag/agentic", leases=("vector_store", "compiled_model", "endpoint"))
def bench_agentic(measure: Any, point: nb.Point) -> None:
    """Retrieve, answer, judge, refine: what do more rounds bring, and can the judge tell?"""
    with assembled(measure, point, generates=True) as setup:
        run = checked(lambda: agent.each(setup.pipeline, setup.corpus.questions, rounds=point["rounds"]))
        results.record(measure, setup, run)
        agent.record(measure, run, rounds=point["rounds"])


@nb.bench(lane="rag", grid="rag/together", leases=("vector_store", "compiled_model", "endpoint"))
def bench_together(measure: Any, point: nb.Point) -> None:
    """Embedder and language model at work at the same time, against each alone."""
    results.quiet_gate(measure)
    with assembled(measure, point, generates=True) as setup:
        together.measure_together(measure, setup, seconds=point["window_s"])
