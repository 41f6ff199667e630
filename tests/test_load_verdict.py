"""What `neuronbench load` makes of a result: verdicts on limits, the table of checks, exit status, a search's table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuronbench import cli
from neuronbench.commands import load_search
from neuronbench.commands.load_output import Wanted, gate_rows, last_word, refusals, show
from neuronbench.commands.load_refusals import refusal
from neuronbench.definitions import metric
from neuronbench.engines.job import Job
from neuronbench.load.search import Counts, SearchResult, Step
from neuronbench.measure_search import Found, Load, Search
from neuronbench.model import Gate
from neuronbench.serving.verify import GenerationError
from neuronbench.standalone.result import Result
from neuronbench.standalone.search import RateResult
from neuronbench.testing.truth_server import TruthServer

GATES = [
    Gate(id="samples", passed=False, observed=17, limit=100, severity="info", message="few"),
    Gate(id="clock_order", passed=True),
    Gate(id="steady_state", passed=None, message="not evaluable: no successful request"),
    Gate(id="warmup", passed=None, severity="provisional"),
    Gate(id="telemetry", passed=False, observed=0, limit=3, severity="provisional", message="no samples"),
    Gate(id="send_lag", passed=False, observed=3.5, limit=1.0, message="p99 of writing behind the schedule"),
]


def result(*gates: Gate, verdict: str = "met") -> Result:
    test = {"limit_ms": 500.0, "percentile": 0.99, "within": 900, "beyond": 0, "verdict": verdict, "more": 7}
    return Result(
        job=Job(url="http://x", model="m", rate=20.0), engine={"name": "native"}, status="ok", gates=gates,
        metrics=[metric("e2e", 1.0)], slo_tests={"ttft": test},
    )  # fmt: skip


@pytest.fixture(scope="module")
def truth() -> Iterator[TruthServer]:
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        yield server


def test_a_limit_is_shown_to_be_kept_only_by_a_measurement_that_is_not_invalid() -> None:
    wanted = Wanted(limits={"ttft": 500.0})
    assert refusals([result()], wanted) == []
    assert refusals([result(*GATES[:-1])], wanted) == []  # provisional
    assert refusals([result(*GATES)], wanted) == ["ttft ≤ 500 ms: nothing is shown by an invalid measurement"]
    assert refusals([result(verdict="undecided")], wanted) == ["ttft ≤ 500 ms: undecided"]
    assert refusals([result(), result(*GATES)], wanted) == [
        "repeat 2: ttft ≤ 500 ms: nothing is shown by an invalid measurement"
    ]
    assert refusals([result()], Wanted(limits={"tpot": 50.0})) == ["tpot ≤ 50 ms: no request had a value of it"]
    assert refusals([result(*GATES, verdict="missed")], Wanted()) == []  # nobody asked for more than a report


def test_strict_refuses_what_it_was_told_to() -> None:
    provisional, invalid = result(*GATES[:-1]), result(*GATES)
    strict, stricter = Wanted(refused=("invalid",)), Wanted(refused=("invalid", "provisional"))
    assert refusals([provisional], strict) == []
    assert refusals([invalid], strict) == ["the result is invalid, which --strict refuses"]
    assert refusals([result()], stricter) == []
    assert refusals([provisional], stricter) == ["the result is provisional, which --strict-provisional refuses"]


def test_the_table_of_checks_says_what_each_makes_of_the_result() -> None:
    rows = [row[:3] for row in gate_rows(GATES)]
    assert rows == [
        ("send_lag", "failed", "invalid"),
        ("telemetry", "failed", "provisional"),
        ("samples", "failed", "info"),
        ("steady_state", "not evaluable", ""),
        ("warmup", "not evaluable", ""),
    ]
    assert [row[-1] for row in gate_rows(GATES)][3:] == ["no successful request", "the check does not say why"]
    assert gate_rows(GATES, every_gate=True)[-1][:3] == ("clock_order", "ok", "")


def test_met_is_not_the_word_of_an_invalid_result(capsys: pytest.CaptureFixture[str]) -> None:
    show(result(*GATES))
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if "ttft ≤ 500 ms for 99 %" in line)
    assert "none: INVALID" in row
    assert "by the counts alone: met" in row
    assert said.splitlines()[-1] == "INVALID (send_lag): these numbers show nothing and are not to be quoted"
    assert last_word(GATES[:-1]) == "PROVISIONAL (telemetry): not to be quoted until these checks pass"
    assert last_word([]).startswith("valid: ")
    show(result(*GATES[:-1]))
    said = capsys.readouterr().out
    assert "none: INVALID" not in said
    assert " met " in said


# --------------------------------------------------------------------------------------------------------------------
# what a server's refusal means


def load(truth: TruthServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said where nothing could be measured."""
    assert cli.main(["--root", str(tmp_path), "load", truth.url, *arguments]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("scenario", "words", "remedy"),
    [
        ("unavailable,first=0", ("status 503", "the engine is not ready"), "Look at the server's log"),
        ("server_error", ("status 500", "the engine core died"), "Look at the server's log"),
        ("rate_limited", ("status 429", "too many requests"), "It lets nobody in for now: wait"),
        ("bad_request", ("status 400", "this request is never right"), "Do what the server says"),
        ("json_error", ("lacks text or usage",), "Look at the server's log"),
    ],
)
def test_a_server_that_is_ill_has_said_nothing_about_the_model(
    scenario: str, words: tuple[str, ...], remedy: str, truth: TruthServer, tmp_path: Path, capsys: Any
) -> None:
    said = load(truth, tmp_path, capsys, "--model", f"truth:{scenario}")
    for text in (*words, f"'truth:{scenario}'", f"To do: {remedy}"):
        assert text in said
    assert "serves truth" not in said
    assert "Ask for one of the names" not in said


def test_a_name_that_is_not_served_is_told_with_the_names_that_are(
    truth: TruthServer, tmp_path: Path, capsys: Any
) -> None:
    said = load(truth, tmp_path, capsys, "--model", "truth:nonsense")
    assert "serves truth, not 'truth:nonsense'" in said
    assert "Ask for one of the names it serves" in said


def behind(problem: Exception) -> Exception:
    error = RuntimeError("what was said of it")
    error.__cause__ = problem
    return error


def test_refusals_of_every_kind() -> None:
    def failed(status: int, body: str) -> Exception:
        message = f"the first request failed with status {status}: {body}"
        return behind(GenerationError("generation_failed", message, body, status=status))

    assert refusal(failed(400, '{"error": "The model `m` does not exist."}'), "m") is None  # it says so itself
    assert refusal(failed(404, ""), "m") is None
    assert refusal(failed(400, "the prompt is longer than the model can take"), "m") is not None
    message, remedy = refusal(failed(503, "warming up"), "") or ("", "")  # no model was asked for
    assert message == "the first request failed with status 503: warming up"
    assert "server's log" in remedy
    gone = GenerationError("not_openai_compatible", "/v1/models answered with status 502", "upstream is down")
    assert (refusal(behind(gone), "") or ("", ""))[0] == "/v1/models answered with status 502: upstream is down"
    assert refusal(behind(GenerationError("endpoint_auth", "wants a key", status=401)), "m") is None
    assert refusal(RuntimeError("of something else"), "m") is None


# --------------------------------------------------------------------------------------------------------------------
# the table of a search


def search_of(*, late: bool) -> RateResult:
    step = Step(rate=20.0, requests=14, verdict="met", counts=Counts(within={"ttft": 126}, beyond={"ttft": 0}))
    one = Load(
        rate=20.0, requests=126, seconds=2.0, achieved=19.5, goodput=19.5, within={"ttft": 126}, beyond={"ttft": 0},
        failures=0, late=late,
    )  # fmt: skip
    found = SearchResult(rate=20.0, missed_at=None, percentile=0.5, confidence=0.99, steps=(step,))
    return RateResult(
        job=Job(url="http://x", model="m", rate=20.0),
        found=Found(search=Search(slo={"ttft": 500.0}, percentile=0.5), result=found, loads=[one]),
        target={"url": "http://x", "model": "m"},
        environment={},
        started_at="",
        duration_s=1.0,
    )


def test_a_searchs_numbers_say_what_they_count(capsys: pytest.CaptureFixture[str]) -> None:
    found = search_of(late=True)
    severity = next(gate.severity for gate in found.found.gates() if gate.id == "search_on_time")
    load_search.deliver(found, "", False)
    said = capsys.readouterr().out
    heading = next(line for line in said.splitlines() if "verdict" in line)
    assert "asked for" in heading
    assert " requests " not in heading.replace("failed requests", "")
    assert "asked for: requests that the search wanted at that rate" in said
    assert "N of M: M requests of the windows there" in said
    assert "126 of 126" in said
    row = next(line for line in said.splitlines() if "search_on_time" in line)
    assert "failed" in row
    assert f" {severity} " in row
    assert said.splitlines()[-1] == last_word(found.found.gates())


def test_a_searchs_own_checks_can_refuse_it() -> None:
    late = search_of(late=True)
    severity = next(gate.severity for gate in late.found.gates() if gate.id == "search_on_time")
    assert load_search.refused(late, Wanted(refused=(severity,)))
    assert not load_search.refused(late, Wanted())
    assert not load_search.refused(search_of(late=False), Wanted(refused=(severity,)))
