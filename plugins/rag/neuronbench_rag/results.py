"""What queries come to: metrics, gates, and a table of every stage of every query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from neuronbench import Failure, Gate, PointFailure, stats
from neuronbench.spans import Span
from neuronbench_rag import LANE
from neuronbench_rag.assemble import Assembled
from neuronbench_rag.metrics import is_exact, is_match, mean, ndcg, recall, reciprocal_rank, share_found
from neuronbench_rag.pipeline import Query, Run
from neuronbench_rag.rerankers import bootstrap

CUTS: Final = (1, 3, 5, 10)
PERCENTILES: Final = (0.5, 0.9, 0.99)
SUM_LIMIT: Final = 0.02
SUM_FLOOR_MS: Final = 0.1
"""What two clocks may be apart in any query, however short."""
TIMES: Final = {
    "embed_time": "embed", "search_time": "search", "rerank_time": "rerank", "prefill_time": "prefill",
    "decode_time": "decode",
}  # fmt: skip
ANSWERS: Final = "answers.jsonl"
QUIET_S: Final = 0.5
QUIET_LIMIT: Final = 0.1


def record(measure: Any, setup: Assembled, run: Run) -> None:
    """Everything of a run: quality of the first pass, times of all, the gates, the tables."""
    queries = run.counted
    if not queries:
        _fail("no_query", "no query ended inside the window: make it longer")
    if not run.good:
        first = queries[0]
        _fail(
            "all_requests_failed", f"all {len(queries)} queries failed, the first with {first.failure}: {first.error}"
        )
    retrieval(measure, setup, first_pass(queries))
    answers(measure, setup, first_pass(queries))
    times(measure, queries)
    sum_gate(measure, run.good)
    failed_gate(measure, queries)
    spans(measure, run.queries)


def first_pass(queries: Sequence[Query]) -> list[Query]:
    """Each question once: a question asked more often does not count more."""
    found: dict[str, Query] = {}
    for query in queries:
        found.setdefault(query.question.id, query)
    return list(found.values())


# -- quality


def retrieval(measure: Any, setup: Assembled, queries: Sequence[Query]) -> None:
    """Recall, nDCG and MRR of what was found, after reranking where there is one; and whether that was worth it."""
    searched = [query for query in queries if query.nearest is not None]  # one that found nothing has a recall of 0
    k = setup.pipeline_k
    if setup.ef_search is not None:
        index_recall(measure, setup, searched)
    for cut in (cut for cut in CUTS if cut <= k):
        values = [recall(query.ranked, query.question.grades, cut) for query in searched]
        measure.metric("recall", mean(values), stat=f"at{cut}", n=len(values))
    cut = min(10, k)
    after = [ndcg(query.ranked, query.question.grades, cut) for query in searched]
    measure.metric("ndcg", mean(after), stat=f"at{cut}", n=len(after))
    ranks = [reciprocal_rank(query.ranked, query.question.grades) for query in searched]
    measure.metric("mrr", mean(ranks), n=len(ranks), note=f"among {k} candidates")
    if setup.pipeline.reranker is not None and searched:
        before = [ndcg(query.found, query.question.grades, cut) for query in searched]
        rerank_gate(measure, before, after, cut)


def index_recall(measure: Any, setup: Assembled, queries: Sequence[Query]) -> None:
    """What the index found of what exact search finds of the same vectors, asked afterwards."""
    exact, shares = setup.exact(), []
    try:
        for vector, near in (query.nearest for query in queries if query.nearest is not None):
            shares.append(share_found(near, [hit.distance for hit in exact(vector)], setup.pipeline_k))
    finally:
        exact.close()
    measure.metric(
        "index_recall", mean(shares), stat=f"at{setup.pipeline_k}", n=len(shares), note="against exact search"
    )


def rerank_gate(measure: Any, before: Sequence[float], after: Sequence[float], cut: int) -> None:
    """Whether the second look made the order better; the same candidates before and after."""
    gains = [late - early for early, late in zip(before, after, strict=True)]
    low, high = bootstrap(gains)
    was, now = sum(before) / len(before), sum(after) / len(after)
    note = f"nDCG@{cut} {was:.4f} before, {now:.4f} after"
    measure.record.add(
        LANE.metric("rerank_gain", now - was, n=len(gains), low=low, high=high, confidence=0.95, note=note)
    )
    passed = now >= was
    measure.gate(
        Gate(
            id="rerank_lowers_quality", passed=passed, observed=round(now, 6), limit=round(was, 6), unit=f"nDCG@{cut}",
            severity="provisional",
            message="" if passed else f"{note}; the difference is {low:+.4f} to {high:+.4f} at 95 %: leave it out",
        )
    )  # fmt: skip


def answers(measure: Any, setup: Assembled, queries: Sequence[Query]) -> None:
    """Exactness of what was said; every question, prompt's passages and answer are kept."""
    if setup.pipeline.endpoint is None:
        return
    exact = [_exact(query) for query in queries]
    same = [query.said is not None and is_match(query.said.text, query.question.accepted) for query in queries]
    note = f"shown: {setup.pipeline.context}"
    measure.metric("exactness", mean([float(x) for x in exact]), n=len(exact), note=note)
    measure.metric("exact_match", mean([float(x) for x in same]), n=len(same), note=note)
    rates = [rate for query in queries if (rate := _rate(query)) is not None]
    measure.metric("output_rate", float(np.median(rates)) if rates else None, stat="p50", n=len(rates),
                   note="" if rates else "the server counts no tokens, or answers have one only")  # fmt: skip
    with (measure.folder / ANSWERS).open("a", encoding="utf-8") as file:
        for query, ok in zip(queries, exact, strict=True):
            said = query.said.text if query.said else None
            shown = getattr(query, "shown", query.ranked[: setup.pipeline.shown])
            row = {
                "question": query.question.text, "accepted": query.question.accepted, "answer": said, "exact": ok,
                "shown": shown if setup.pipeline.context == "retrieved" else setup.pipeline.context,
                "failure": query.failure,
            }  # fmt: skip
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _exact(query: Query) -> bool:
    said, asked = query.said, query.question
    return said is not None and is_exact(said.text, asked.accepted, asked.text)


def _rate(query: Query) -> float | None:
    took, said = query.took("decode"), query.said
    if said is None or not took or not said.output_tokens or said.output_tokens < 2:
        return None
    return 1e3 * (said.output_tokens - 1) / took


# -- time


def times(measure: Any, queries: Sequence[Query]) -> None:
    """Percentiles of the query and of each stage. A failed query is beyond every limit."""
    failed = sum(bool(query.failure) for query in queries)
    good = [query for query in queries if not query.failure]
    percentiles(measure, "query_time", [query.ms for query in good], failed)
    for id, stage in TIMES.items():
        found = [took for query in good if (took := query.took(stage)) is not None]
        if found:
            percentiles(measure, id, found, failed)
    device = [stage.details["device_ms"] for query in good for stage in query.stages if stage.details.get("device_ms")]
    if device:
        percentiles(measure, "embed_device_time", device, failed)


def percentiles(measure: Any, id: str, values: Sequence[float], infinite: int = 0) -> None:
    """p50, p90 and p99 with their bounds, as the core gives them."""
    ordered = np.sort(np.asarray(values, dtype=float))
    for p in PERCENTILES:
        found = stats.quantile(ordered, p, infinite)
        bounded = found.low is not None or found.high is not None
        measure.record.add(
            LANE.metric(
                id, found.value, stat=f"p{100 * p:g}", n=found.n, low=found.low, high=found.high,
                confidence=stats.CONFIDENCE if bounded else None, note=found.note,
            )
        )  # fmt: skip


def throughput(measure: Any, run: Run) -> None:
    """Of a run against the clock."""
    assert run.window_ns is not None
    seconds = (run.window_ns[1] - run.window_ns[0]) / 1e9
    measure.metric("query_throughput", len(run.good) / seconds, n=len(run.good), note=f"window {seconds:g} s")
    measure.record.workload["window"] = {"start_ns": run.window_ns[0], "end_ns": run.window_ns[1]}


# -- gates


def sum_gate(measure: Any, queries: Sequence[Query]) -> None:
    """Whether the stages are all of a query. The host may cut in between two clocks once in a hundred queries."""
    beyond = [query for query in queries if query.unseen > max(SUM_LIMIT * query.ms, SUM_FLOOR_MS)]
    worst = max((query.unseen / query.ms for query in queries if query.ms), default=0.0)
    total = sum(query.ms for query in queries)
    share = sum(query.unseen for query in queries) / total if total else 0.0
    passed = len(beyond) <= max(1, len(queries) // 100) and share <= SUM_LIMIT
    why = (
        f"{len(beyond)} of {len(queries)} queries are not the sum of their stages (worst {worst:.1%}, all {share:.1%})"
    )
    measure.gate(
        Gate(
            id="stages_sum_to_query", passed=passed, observed=round(share, 6), limit=SUM_LIMIT, unit="share",
            message="" if passed else why,
        )
    )  # fmt: skip
    measure.record.workload["stage_sums"] = {"queries": len(queries), "beyond": len(beyond), "worst_share": worst}


def quiet_gate(measure: Any) -> None:
    """Whether anything else computes on this host, before what is measured has begun."""
    import psutil

    busy = round(psutil.cpu_percent(interval=QUIET_S) / 100, 4)
    passed = busy <= QUIET_LIMIT
    why = "" if passed else f"other processes had {busy:.0%} of all cores just before: end them and measure again"
    measure.gate(
        Gate(id="host_quiet", passed=passed, observed=busy, limit=QUIET_LIMIT, unit="share", severity="provisional",
             message=why)
    )  # fmt: skip


def failed_gate(measure: Any, queries: Sequence[Query]) -> None:
    """Queries without an answer are results, and not many of them."""
    failed: dict[str, int] = {}
    for query in queries:
        if query.failure:
            failed[query.failure] = failed.get(query.failure, 0) + 1
    share = sum(failed.values()) / len(queries)
    measure.record.workload["failures"] = failed
    each = ", ".join(f"{count} × {name}" for name, count in failed.items())
    measure.gate(
        Gate(id="queries_answered", passed=not failed, observed=round(share, 6), limit=0, unit="share",
             severity="provisional", message=each)
    )  # fmt: skip


def _fail(kind: str, text: str) -> None:
    raise PointFailure(Failure(kind=kind, phase="window", message=text, causal_line=text))


# -- the table


def spans(measure: Any, queries: Sequence[Query]) -> None:
    """Every stage of every query in `spans.parquet`; a sample of them become traces in MLflow."""
    rows: list[Span] = []
    for number, query in enumerate(queries):
        said = query.said.text if query.said else query.error or ", ".join(query.ranked[:3])
        told = {
            "input": query.question.text, "output": said, "accepted": list(query.question.accepted),
            "found": query.ranked, "exact": _exact(query) if query.said else None,
        }  # fmt: skip
        rows.append(
            Span(trace=number, number=1, name="query", kind="CHAIN", start_ns=query.start_ns, end_ns=query.end_ns,
                 details=told, failure=query.failure)
        )  # fmt: skip
        for place, stage in enumerate(query.stages, start=2):
            details = {name: value for name, value in stage.details.items() if value is not None}
            rows.append(
                Span(trace=number, number=place, parent=1, name=stage.name, kind=KINDS.get(stage.name, "TASK"),
                     start_ns=stage.start_ns, end_ns=stage.end_ns, details=details,
                     failure=str(details.get("error", "")))
            )  # fmt: skip
    measure.spans(rows)


KINDS: Final = {
    "embed": "EMBEDDING", "search": "RETRIEVER", "rerank": "RERANKER", "prefill": "LLM", "decode": "LLM",
}  # fmt: skip
"""MLflow's own kinds of span."""
