"""A query from its text to its answer, stage by stage, and many of them: one after the other, or side by side.

Each stage is a span. Where one ends the next begins, but for what a stage's own clock says otherwise: prefill and
decode are the instants of the answer's chunks. The caller's clock around the whole has to agree with their sum.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from neuronbench import Endpoint, PointFailure
from neuronbench_rag.corpus import Corpus, Question
from neuronbench_rag.generate import AskFailed, Said, ask, messages

if TYPE_CHECKING:
    from neuronbench_rag.embedders import Embedded, Embedder
    from neuronbench_rag.rerankers import Reranker
    from neuronbench_rag.store import Search

STAGES: Final = ("embed", "search", "rerank", "prompt", "connect", "prefill", "decode", "close")
CONTEXTS: Final = ("retrieved", "graded", "none")
"""What the model is shown: what was found; the passages that are known to answer (its ceiling); nothing (its floor)."""
ANSWER_S: Final = 120.0


@dataclass(kw_only=True)
class Stage:
    """A part of a query, between two instants (CLOCK_MONOTONIC, ns)."""

    name: str
    start_ns: int
    end_ns: int
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(kw_only=True)
class Query:
    """What became of a question."""

    question: Question
    start_ns: int
    end_ns: int = 0
    stages: list[Stage] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """Ids as the search ranked them."""
    nearest: tuple[Any, list[float]] | None = None
    """The question's vector, and the distances of what was found with it; of an agent: in the first round."""
    ranked: list[str] = field(default_factory=list)
    """And after reranking; the same without."""
    said: Said | None = None
    failure: str = ""
    error: str = ""

    @property
    def ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6

    def took(self, name: str) -> float | None:
        """Milliseconds in stages of that name; None when it never came to it."""
        times = [stage.ms for stage in self.stages if stage.name == name]
        return sum(times) if times else None

    @property
    def unseen(self) -> float:
        """Milliseconds of the query that are in no stage, or in two."""
        return abs(self.ms - sum(stage.ms for stage in self.stages))


@dataclass(kw_only=True)
class Pipeline:
    """How a question is answered."""

    corpus: Corpus
    embedder: Embedder
    search: Callable[[], Search]
    """Opens one more way to search: each thread has its own."""
    reranker: Reranker | None = None
    endpoint: Endpoint | None = None
    """None: retrieval only."""
    context: str = "retrieved"
    shown: int = 3
    """Passages that the model gets."""
    max_tokens: int = 32

    def __post_init__(self) -> None:
        if self.context not in CONTEXTS:
            raise ValueError(f"context: expected one of {', '.join(CONTEXTS)}, found {self.context!r}")

    def ask(self, question: Question, search: Search) -> Query:
        """One query. Its failures are in it; only what ends everything is raised."""
        query = Query(question=question, start_ns=time.monotonic_ns())
        clock = Clock(query)
        try:
            embedded = self.retrieve(query, clock, question.text, search)
            self.rerank(query, clock, question.text, embedded)
            if self.endpoint is not None:
                query.said = self.say(clock, messages(question.text, self.passages(query)))
        except AskFailed as error:
            clock.end("failed", error=error.kind)
            query.failure, query.error = error.kind, error.text
        return query

    def retrieve(self, query: Query, clock: Clock, text: str, search: Search) -> Embedded:
        embedded = self.embedder.embed([text])
        clock.end("embed", device_ms=None if embedded.device_ns is None else embedded.device_ns / 1e6)
        hits = search(embedded.vectors[0])
        query.found = query.ranked = [hit.id for hit in hits]
        query.nearest = query.nearest or (embedded.vectors[0], [hit.distance for hit in hits])
        clock.end("search", nearest=hits[0].distance if hits else None, passages=len(hits))
        return embedded

    def rerank(self, query: Query, clock: Clock, text: str, embedded: Embedded) -> None:
        if self.reranker is not None:
            query.ranked = self.reranker.order(text, embedded, query.found)
            clock.end("rerank")

    def passages(self, query: Query) -> list[str]:
        """The texts that the model is shown."""
        if self.context == "none":
            return []
        graded = sorted(query.question.grades, key=lambda id: -query.question.grades[id])
        chosen = query.ranked if self.context == "retrieved" else graded
        return [self.corpus.passages[id] for id in chosen[: self.shown]]

    def say(self, clock: Clock, said: Sequence[dict[str, str]], *, max_tokens: int | None = None) -> Said:
        assert self.endpoint is not None
        clock.end("prompt")
        answer = ask(self.endpoint, said, max_tokens=max_tokens or self.max_tokens, timeout_s=ANSWER_S)
        clock.end("connect", at_ns=answer.sent_ns)
        clock.end("prefill", at_ns=answer.first_ns, input_tokens=answer.input_tokens)
        clock.end("decode", at_ns=answer.last_ns, output_tokens=answer.output_tokens)
        clock.end("close")
        return answer


class Clock:
    """Ends stages: where the one before ended, this one begins."""

    def __init__(self, query: Query) -> None:
        self._query, self._at = query, query.start_ns

    def end(self, name: str, at_ns: int | None = None, **details: Any) -> None:
        at = time.monotonic_ns() if at_ns is None else at_ns
        self._query.stages.append(Stage(name=name, start_ns=self._at, end_ns=at, details=details))
        self._at = at


@dataclass(kw_only=True)
class Run:
    """Queries and, of a run against the clock, the window that counts."""

    queries: list[Query]
    window_ns: tuple[int, int] | None = None

    @property
    def counted(self) -> list[Query]:
        """Those that ended inside the window; all without one."""
        if self.window_ns is None:
            return self.queries
        start, end = self.window_ns
        return [query for query in self.queries if start <= query.end_ns < end]

    @property
    def good(self) -> list[Query]:
        return [query for query in self.counted if not query.failure]


def timed(asking: Callable[[], Query]) -> Query:
    """The query between two instants of the caller's own clock."""
    begun = time.monotonic_ns()
    query = asking()
    query.end_ns = time.monotonic_ns()
    query.start_ns = begun
    return query


def each(pipeline: Pipeline, questions: Sequence[Question], *, passes: int = 1, warmup: int = 3) -> Run:
    """The questions one after the other, `passes` times over, after `warmup` of them that do not count."""
    search = pipeline.search()
    try:
        for question in questions[:warmup]:
            pipeline.ask(question, search)
        queries = [timed(lambda q=question: pipeline.ask(q, search)) for _ in range(passes) for question in questions]  # type: ignore[misc]
    finally:
        search.close()
    return Run(queries=queries)


def loaded(
    pipeline: Pipeline, questions: Sequence[Question], *, concurrency: int, seconds: float, ramp_s: float = 1.0
) -> Run:
    """`concurrency` clients, each with its next question as soon as the last is answered, for a window of `seconds`.

    The window opens when all clients have had an answer and `ramp_s` are over; they go on until it has closed. What
    ends one client ends the run: its `PointFailure` is raised.
    """
    if concurrency < 1 or seconds <= 0:
        raise ValueError(f"load: expected clients and seconds above 0, found {concurrency} and {seconds}")
    queries: list[Query] = []
    warm = threading.Barrier(concurrency + 1)
    done, failed = threading.Event(), []

    def client(number: int) -> None:
        try:
            search = pipeline.search()
            try:
                pipeline.ask(questions[number % len(questions)], search)
                warm.wait()
                at = number
                while not done.is_set():
                    question = questions[at % len(questions)]
                    at += concurrency
                    queries.append(timed(lambda: pipeline.ask(question, search)))  # noqa: B023 - called at once
            finally:
                search.close()
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            failed.append(error)
            done.set()
            warm.abort()

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(concurrency)]
    for thread in threads:
        thread.start()
    window = (0, 0)
    try:
        try:
            warm.wait()
        except threading.BrokenBarrierError:
            pass
        done.wait(ramp_s)
        start = time.monotonic_ns()
        window = (start, start + round(seconds * 1e9))
        done.wait(seconds)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return Run(queries=queries, window_ns=window)


__all__ = ["Pipeline", "PointFailure", "Query", "Run", "Stage", "each", "loaded", "timed"]
