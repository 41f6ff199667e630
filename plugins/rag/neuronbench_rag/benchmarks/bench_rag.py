"""The embedder, retrieval, its index, answers (also of an agent), load (also of two models beside each other)."""

from typing import Any

import neuronbench as nb
from neuronbench_rag import agent, haystack, results, together
from neuronbench_rag.assemble import assembled, check_cut, check_load, checked, embedder_accuracy
from neuronbench_rag.pipeline import each, loaded

LOADS = ("retrieval", "answers", "pair")


@nb.bench(lane="rag", grid="rag/embedder", leases=("compiled_model",))
def bench_embedder(measure: Any, point: nb.Point) -> None:
    """The compiled embedder answers as its weights do in fp32, on questions and passages: what retrieval stands on."""
    embedder_accuracy(measure, point)


@nb.bench(lane="rag", grid="rag/retrieval", leases=("vector_store", "compiled_model"))
def bench_retrieval(measure: Any, point: nb.Point) -> None:
    """Is what answers a question found, how far up, and how long does it take? Without a language model."""
    least = point["recall_at5"]
    checked(lambda: check_cut(point, 5, least))
    with assembled(measure, point) as setup:
        results.record(measure, setup, each(setup.pipeline, setup.corpus.questions, passes=point["passes"]))
    if least > 0:
        measure.check("recall_at5_share", at_least=least)


@nb.bench(lane="rag", grid="rag/index", leases=("vector_store", "compiled_model"))
def bench_index(measure: Any, point: nb.Point) -> None:
    """What an index over many vectors finds of what exact search finds, what it costs to build, and how fast it is."""
    with haystack.built(measure, point) as stack:
        haystack.record(measure, stack, passes=point["passes"])


@nb.bench(lane="rag", grid="rag/answers", leases=("vector_store", "compiled_model", "endpoint"))
def bench_answers(measure: Any, point: nb.Point) -> None:
    """From question to answer, one at a time: exact answers, and the time of each stage; `rounds`: of an agent."""
    with assembled(measure, point, generates=True) as setup:
        if point["rounds"]:
            run = checked(lambda: agent.each(setup.pipeline, setup.corpus.questions, rounds=point["rounds"]))
            agent.record(measure, run, rounds=point["rounds"])
        else:
            run = each(setup.pipeline, setup.corpus.questions)
        results.record(measure, setup, run)


@nb.bench(lane="rag", grid="rag/load", leases=("vector_store", "compiled_model", "endpoint"))
def bench_load(measure: Any, point: nb.Point) -> None:
    """Questions per second of clients that ask without a pause; or embedder and model beside each other, as a pair."""
    checked(lambda: check_load(point, LOADS))
    results.quiet_gate(measure)
    with assembled(measure, point, generates=point["load"] != "retrieval") as setup:
        if point["load"] == "pair":
            together.measure_together(measure, setup, seconds=point["window_s"])
            return
        run = loaded(
            setup.pipeline, setup.corpus.questions, concurrency=point["concurrency"], seconds=point["window_s"]
        )
        results.throughput(measure, run)
        results.record(measure, setup, run)
