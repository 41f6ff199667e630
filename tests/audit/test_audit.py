"""Servers that cheat are caught, each by the gate of its cheat; honest ones pass, caching or not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from neuronbench.audit import Audit, Outputs, audit, checks, outputs, prompts, unchanged_gate
from neuronbench.audit.asking import Said
from neuronbench.model import FrozenMap, Gate, ResourceSpec
from neuronbench.protocols import Vocabulary
from neuronbench.serving.external import connect
from neuronbench.serving.server import OpenAIServer
from neuronbench.testing.truth_server import TruthServer

MS = 1_000_000


def served(server: TruthServer, model: str) -> OpenAIServer:
    settings = FrozenMap({"url": server.url, "model": model})
    spec = ResourceSpec(kind="endpoint", backend="", provider="external", settings=settings, cores=0)
    return connect(spec, deadline_s=30, progress=lambda text: None, unlisted=True)


def found(result: Audit, id: str) -> Gate:
    (gate,) = [gate for gate in result.gates if gate.id == id]
    return gate


@pytest.fixture(scope="module")
def honest() -> Iterator[TruthServer]:
    with TruthServer(ttft_ms=25, tpot_ms=2) as server:
        yield server


@pytest.fixture(scope="module")
def caching() -> Iterator[TruthServer]:
    with TruthServer(ttft_ms=40, tpot_ms=2, prefix_cache=True) as server:
        yield server


def test_an_honest_server_passes(honest: TruthServer) -> None:
    result = audit(served(honest, "truth"))
    assert [gate.id for gate in result.gates] == ["audit_caching", "audit_first_token", "audit_output_tokens"]
    assert [gate.passed for gate in result.gates] == [True, True, True], [gate.message for gate in result.gates]
    assert result.passed
    assert result.facts["requests"] == 42


def test_a_chat_server_is_asked_by_chat(honest: TruthServer) -> None:
    endpoint = served(honest, "truth")
    endpoint.facts = {**endpoint.facts, "first_generation": {"api": "chat"}}
    result = audit(endpoint)
    assert result.facts["api"] == "chat"
    assert [gate.passed for gate in result.gates] == [True, True, True], [gate.message for gate in result.gates]


@pytest.mark.parametrize(
    ("model", "caught"),
    [
        ("truth:prefix_cheat,ttft=40", "audit_caching"),
        ("truth:fake_first,ttft=40", "audit_first_token"),
        ("truth:fake_first,ttft=40,text= yes", "audit_first_token"),
        ("truth:hidden,count=10,ttft=60", "audit_output_tokens"),
    ],
)
def test_a_cheat_is_caught_by_its_gate(honest: TruthServer, model: str, caught: str) -> None:
    result = audit(served(honest, model))
    gate = found(result, caught)
    assert gate.passed is False
    assert gate.severity == "invalid"
    assert not result.passed
    assert [other.id for other in result.gates if other.passed is False] == [caught]


def test_a_declared_prefix_cache_is_reported_and_no_cheat_unless_it_was_ruled_out(caching: TruthServer) -> None:
    result = audit(served(caching, "truth"))
    gate = found(result, "audit_caching")
    assert (gate.passed, gate.severity) == (False, "info")
    assert "usage or counters say so" in gate.message
    assert result.passed
    strict = audit(served(caching, "truth"), forbid_caching=True)
    gate = found(strict, "audit_caching")
    assert (gate.passed, gate.severity) == (False, "invalid")
    assert "switch its prefix cache off" in gate.message


def test_what_a_server_does_not_answer_is_neither_passed_nor_failed(honest: TruthServer) -> None:
    result = audit(served(honest, "truth"), deadline_s=0.0)
    assert [gate.passed for gate in result.gates] == [None, None, None]
    assert all("no time left" in gate.message for gate in result.gates)


def test_answers_that_stay_the_same(honest: TruthServer) -> None:
    endpoint = served(honest, "truth")
    gate = unchanged_gate(outputs(endpoint), outputs(endpoint))
    assert (gate.id, gate.passed, gate.observed) == ("outputs_unchanged", True, 1.0)


def test_answers_that_change_are_told_with_an_example(honest: TruthServer) -> None:
    endpoint = served(honest, "truth:other_answers,after=5")  # the first of them proved that the server works
    gate = unchanged_gate(outputs(endpoint), outputs(endpoint))
    assert gate.passed is False
    assert gate.observed == 0.0
    assert "' t00000" in gate.message
    assert "became ' t01000" in gate.message


def test_without_answers_there_is_nothing_to_compare() -> None:
    gate = unchanged_gate(Outputs(answers=("a",)), Outputs(problem="status 500: dead"))
    assert gate.passed is None
    assert "after the load" in gate.message
    assert "status 500" in gate.message


def test_half_of_the_answers_may_part_on_a_near_tie() -> None:
    before = Outputs(answers=("a", "b", "c", "d"))
    assert unchanged_gate(before, Outputs(answers=("a", "b", "x", "y"))).passed is True
    assert unchanged_gate(before, Outputs(answers=("a", "x", "y", "z"))).passed is False


def said(ttft_ms: float, gap_ms: float = 10.0, count: int = 8, *, text: str = "word", second_ms: float = 0.0) -> Said:
    at = round(ttft_ms * MS)
    chunks = [(at, text)]
    for number in range(1, count):
        at += round((second_ms if number == 1 and second_ms else gap_ms) * MS)
        chunks.append((at, " more"))
    return Said(text="".join(part for _, part in chunks), tokens=count, cached=0, chunks=tuple(chunks))


def test_a_few_fast_repeats_are_an_accident() -> None:
    new = [said(100.0)] * 12
    again = [said(50.0)] * 7 + [said(100.0)] * 5
    assert checks.caching_gate(new, again, declared=False, forbidden=False).passed is True
    again = [said(50.0)] * 11 + [said(100.0)]
    gate = checks.caching_gate(new, again, declared=None, forbidden=False)
    assert gate.passed is False
    assert "nobody is told of" in gate.message


def test_a_cache_of_whole_answers_shows_in_the_whole_answer() -> None:
    gate = checks.caching_gate([said(10.0)] * 12, [said(10.0, gap_ms=0.1)] * 12, declared=False, forbidden=False)
    assert gate.passed is False
    assert "whole answer" in gate.message


def test_a_slow_second_token_alone_is_no_false_first_one() -> None:
    honest = [said(100.0, second_ms=40.0)] * 6
    assert checks.first_token_gate(honest, honest).passed is True
    early = [said(5.0, second_ms=105.0)] * 6
    gate = checks.first_token_gate(early, early)
    assert gate.passed is False
    assert "before the work" in gate.message


def test_first_tokens_may_part_on_a_near_tie() -> None:
    streamed = [said(100.0)] * 6
    other = said(100.0, text="thing")
    assert checks.first_token_gate(streamed, [said(100.0)] * 3 + [other] * 3).passed is True
    assert checks.first_token_gate(streamed, [said(100.0)] * 2 + [other] * 4).passed is False


def test_counts_may_differ_by_what_a_text_does_not_show() -> None:
    assert checks.count_gate([(48, 46), (48, 47)]).passed is True
    assert checks.count_gate([(48, 40), (48, 40)]).passed is False
    assert checks.count_gate([(40, 52), (40, 52)]).passed is False


def test_prompts_of_one_length_that_differ() -> None:
    drawn = prompts.equal(5, 1, Vocabulary(size=1000, special_ids=(0, 1)), 300)
    assert {len(prompt) for prompt in drawn} == {150}
    assert len({tuple(prompt) for prompt in drawn}) == 5
    assert min(min(prompt) for prompt in drawn if isinstance(prompt, list)) > 1
    texts = prompts.equal(5, 1, None, None)
    assert len({len(str(text).split()) for text in texts}) == 1
    assert prompts.equal(5, 2, None, None) != texts
