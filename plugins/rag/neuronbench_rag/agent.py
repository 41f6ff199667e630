"""Retrieve, answer, judge, refine: at most so many rounds, each with its own counts.

After every round there is an answer, so that it can be seen what each round was worth. The judge is the served model
itself; whether its verdicts are true is known, because the passages that answer are graded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from neuronbench import Gate
from neuronbench_rag.corpus import Question
from neuronbench_rag.generate import JUDGE, REFINE, AskFailed, Said, messages
from neuronbench_rag.metrics import is_exact, mean, words
from neuronbench_rag.pipeline import Clock, Pipeline, Query, Run, timed

if TYPE_CHECKING:
    from neuronbench_rag.store import Search

VERDICT_TOKENS: Final = 4
QUERY_TOKENS: Final = 24
ANSWERS: Final = 2
"""Grade from which a passage has the answer."""


@dataclass(kw_only=True)
class Round:
    """One retrieval and what was said about it."""

    query: str
    exact: bool
    has_answer: bool
    """Whether a passage that answers was among those shown."""
    verdict: bool | None = None
    """Of the judge; None: it said neither yes nor no, which counts as no."""
    tokens: int | None = 0
    """Of all requests of the round; None where the server does not count."""


@dataclass(kw_only=True)
class AgentQuery(Query):
    """What was found and ranked is of the first round, whose query is the question itself."""

    rounds: list[Round] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """Ids that the last prompt had."""


def ask(pipeline: Pipeline, question: Question, search: Search, *, rounds: int) -> AgentQuery:
    """One question. Passages of earlier rounds stay, the newest first, as many as the prompt takes."""
    query = AgentQuery(question=question, start_ns=time.monotonic_ns())
    clock = Clock(query)
    text, shown, first = question.text, list[str](), (list[str](), list[str]())
    try:
        for number in range(1, rounds + 1):
            before = len(query.stages)
            embedded = pipeline.retrieve(query, clock, text, search)
            pipeline.rerank(query, clock, text, embedded)
            first = (query.found, query.ranked) if number == 1 else first
            shown = list(dict.fromkeys([*query.ranked[: pipeline.shown], *shown]))[: 2 * pipeline.shown]
            passages = [pipeline.corpus.passages[id] for id in shown]
            said = [pipeline.say(clock, messages(question.text, passages))]
            query.said = said[0]
            made = Round(
                query=text, exact=is_exact(said[0].text, question.accepted, question.text),
                has_answer=any(question.grades.get(id, 0) >= ANSWERS for id in shown),
            )  # fmt: skip
            query.rounds.append(made)
            said.append(pipeline.say(clock, messages(question.text, passages, system=JUDGE), max_tokens=VERDICT_TOKENS))
            made.verdict = verdict(said[1].text)
            if not made.verdict and number < rounds:
                refined = pipeline.say(clock, messages(question.text, passages, system=REFINE), max_tokens=QUERY_TOKENS)
                said.append(refined)
                text = " ".join(refined.text.split()) or question.text
            made.tokens = tokens(said)
            for stage in query.stages[before:]:
                stage.details["round"] = number
            if made.verdict:
                break
    except AskFailed as error:
        clock.end("failed", error=error.kind)
        query.failure, query.error = error.kind, error.text
    (query.found, query.ranked), query.shown = first, shown
    return query


def verdict(text: str) -> bool | None:
    """The first yes or no of the judge's answer."""
    return next((word == "yes" for word in words(text) if word in ("yes", "no")), None)


def tokens(said: Sequence[Said]) -> int | None:
    counts = [count for each in said for count in (each.input_tokens, each.output_tokens)]
    return None if any(count is None for count in counts) else sum(count or 0 for count in counts)


def each(pipeline: Pipeline, questions: Sequence[Question], *, rounds: int) -> Run:
    """The questions one after the other, after one of them that does not count."""
    if rounds < 1:
        raise ValueError(f"rounds: expected 1 or more, found {rounds}")
    search = pipeline.search()
    try:
        ask(pipeline, questions[0], search, rounds=1)
        queries: list[Query] = [
            timed(lambda q=question: ask(pipeline, q, search, rounds=rounds))  # type: ignore[misc]
            for question in questions
        ]
    finally:
        search.close()
    return Run(queries=queries)


def record(measure: Any, run: Run, *, rounds: int) -> None:
    """The counts of the rounds, and whether the judge can tell one case from the other."""
    asked = [query for query in run.queries if isinstance(query, AgentQuery)]
    done = [query for query in asked if query.rounds and not query.failure]
    measure.metric("agent_rounds", mean([len(query.rounds) for query in done]), stat="mean", n=len(done))
    spent = [sum(counts) for query in done if None not in (counts := [made.tokens for made in query.rounds])]  # type: ignore[arg-type]
    uncounted = "" if spent else "the server does not count its tokens"
    measure.metric("agent_tokens", mean(spent), stat="mean", n=len(spent), note=uncounted)
    for number in range(1, rounds + 1):
        held = [bool(query.rounds) and query.rounds[:number][-1].exact for query in asked]
        measure.metric("exactness", mean([float(x) for x in held]), stat=f"r{number}", n=len(held),
                       note=f"had it stopped after {number} rounds")  # fmt: skip
    measure.note("times of the stages are sums over the rounds; recall, nDCG and MRR are of the first")
    verdicts = [made for query in done for made in query.rounds]
    yes = [bool(made.verdict) for made in verdicts]
    true = [bool(made.verdict) == made.has_answer for made in verdicts]
    measure.metric("judge_yes", mean([float(x) for x in yes]), n=len(yes))
    measure.metric("judge_agreement", mean([float(x) for x in true]), n=len(true))
    judge_gate(measure, yes, [made.has_answer for made in verdicts])
    measure.record.workload["rounds"] = {
        query.question.id: [
            {"query": made.query, "exact": made.exact, "has_answer": made.has_answer, "verdict": made.verdict,
             "tokens": made.tokens} for made in query.rounds
        ] for query in asked
    }  # fmt: skip


def judge_gate(measure: Any, yes: Sequence[bool], has_answer: Sequence[bool]) -> None:
    """A judge that always says the same judges nothing, however often it happens to be right."""
    both = len(set(has_answer)) == 2
    passed = len(set(yes)) == 2 if both else None
    why = "" if passed else f"the judge said {'yes' if yes and yes[0] else 'no'} to all {len(yes)} cases, true or not"
    if not both:
        why = "all cases were alike: nothing to tell apart"
    measure.gate(
        Gate(id="judge_discriminates", passed=passed, observed=f"{sum(yes)} of {len(yes)} yes",
             limit=f"{sum(has_answer)} of {len(has_answer)} true", severity="provisional", message=why)
    )  # fmt: skip
