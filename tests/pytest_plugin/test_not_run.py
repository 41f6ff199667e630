"""Points that did not run: the summary says why, or whose receipts stand for them, whatever options pytest has."""

from __future__ import annotations

import pytest

SKIPPED = """
@pytest.mark.parametrize("model", ["too-large", "fine"])
@pytest.mark.parametrize("n", [1, 2])
def bench_it(endpoint, model, n):
    pass

def bench_asks(endpoint, point):
    pytest.skip("nobody asked")
"""


def times(result: pytest.RunResult, text: str) -> int:
    return sum(text in line for line in result.stdout.lines)


def test_reasons_are_said_once_in_groups_with_what_to_do(project) -> None:
    project.bench(SKIPPED)
    result = project.run("-m", "fake or absent")
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        [
            "skipped",
            "  2 points: too-large does not fit",
            "  1 point: nobody asked",
            "  5 points: absent: no /dev/absent0",
            "      to do: run them where that hardware is, *`neuronbench doctor`",
        ]
    )


def test_a_reason_with_a_remedy_is_shown_apart_from_it(project) -> None:
    fakes = project.path / "fakes.py"
    fakes.write_text(fakes.read_text().replace("too-large does not fit", "no stack; looked at: - /x To do: make one"))
    project.bench(SKIPPED)
    result = project.run("-m", "fake")
    result.stdout.fnmatch_lines(["  2 points: no stack; looked at: - /x", "      to do: make one"])


@pytest.mark.parametrize("options", [("-rs",), ("-ra",)])
def test_what_pytest_says_itself_is_not_said_again(project, options: tuple[str, ...]) -> None:
    project.bench(SKIPPED)
    result = project.run("-m", "fake", *options)
    assert times(result, "too-large does not fit") == 1
    assert times(result, "nobody asked") == 1


def test_where_pytest_shows_no_summary_the_reasons_are_ours_to_say(project) -> None:
    project.bench(SKIPPED)
    assert times(project.run("-m", "fake", "-rs", "--no-summary"), "too-large does not fit") == 1


MEASURED = """
@nb.bench(lane="toy")
@pytest.mark.parametrize("n", {numbers})
def bench_it(measure, n):
    measure.metric("speed", 3.0, unit="toys/s")
    if n == 1:
        measure.gate(nb.Gate(id="host_contended", passed=False, severity="provisional", message="somebody else"))
"""


@pytest.fixture
def toys(project):
    """Points by a variable of the environment: the source, which is part of what is measured, stays the same."""
    project.bench("import os\n" + MEASURED.format(numbers='[int(n) for n in os.environ["NUMBERS"].split()]'))
    return project


def test_cached_points_are_counted_with_their_sessions_and_what_may_not_be_quoted(toys, monkeypatch) -> None:
    monkeypatch.setenv("NUMBERS", "1 2")
    assert times(toys.run("-m", "fake"), "cached:") == 0
    first = toys.records()[0]["session"]
    result = toys.run("-m", "fake", "--nb-resume")
    result.stdout.fnmatch_lines([f"cached: 2 points of session {first}; 1 of them provisional: measure *--nb-resume"])

    monkeypatch.setenv("NUMBERS", "2 3")
    before = {record["session"] for record in toys.records()}
    toys.run("-m", "fake", "-k", "3")
    (second,) = {record["session"] for record in toys.records()} - before
    result = toys.run("-m", "fake", "--nb-resume", "-ra")
    one, other = sorted([first, second])
    result.stdout.fnmatch_lines([f"cached: 2 points of sessions {one} (1), {other} (1)"])
