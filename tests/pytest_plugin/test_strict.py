"""`--nb-strict`: a number that may not be quoted fails the item, and loses nothing."""

from __future__ import annotations

import pytest

BENCHES = """
@nb.bench(lane="toy")
def bench_valid(measure):
    measure.metric("speed", 3.0, unit="toys/s")

@nb.bench(lane="toy")
def bench_invalid(measure):
    measure.metric("speed", 3.0, unit="toys/s")
    measure.gate(nb.Gate(id="implausible", passed=False, observed=3, limit=2, message="faster than light"))

@nb.bench(lane="toy")
def bench_provisional(measure):
    measure.metric("speed", 3.0, unit="toys/s")
    measure.gate(nb.Gate(id="host_contended", passed=False, severity="provisional", message="somebody else"))

@nb.bench(lane="toy")
@pytest.mark.xfail(reason="known bad", strict=False)
def bench_expected(measure):
    measure.gate(nb.Gate(id="implausible", passed=False))
    assert False
"""


@pytest.mark.parametrize(
    ("options", "failed"),
    [((), 0), (("--nb-strict",), 1), (("--nb-strict=invalid",), 1), (("--nb-strict=provisional",), 2)],
)
def test_strictness_is_about_the_exit_status_alone(project, options: tuple[str, ...], failed: int) -> None:
    project.bench(BENCHES)
    result = project.run("-m", "fake", *options)
    result.assert_outcomes(passed=3 - failed, failed=failed, xfailed=1)
    assert result.ret == (1 if failed else 0)
    found = {record["point"]["benchmark"].rpartition("bench_")[2]: record for record in project.records()}
    assert [found[name]["outcome"] for name in ("valid", "invalid", "provisional")] == ["ok"] * 3
    assert [found[name]["validity"] for name in ("valid", "invalid", "provisional")] == [
        "valid",
        "invalid",
        "provisional",
    ]
    text = result.stdout.str()
    assert ("implausible (invalid): observed 3, limit 2; faster than light" in text) == bool(failed)
    assert ("host_contended (provisional): somebody else\n" in text) == (failed == 2)
    assert "None" not in text


@pytest.mark.parametrize(
    ("gate", "line"),
    [
        ("observed=3.5, unit='s'", "odd (invalid): observed 3.5 s"),
        ("limit=2, message='too much'", "odd (invalid): limit 2; too much"),
        ("", "odd (invalid): failed"),
    ],
)
def test_of_a_gate_is_said_what_it_has(project, gate: str, line: str) -> None:
    project.bench(
        f"@nb.bench(lane='toy')\ndef bench_odd(measure):\n    measure.gate(nb.Gate(id='odd', passed=False, {gate}))"
    )
    assert line in [said.strip(" E") for said in project.run("-m", "fake", "--nb-strict").stdout.lines]


def test_a_wrong_level_is_a_usage_error(project) -> None:
    project.bench(BENCHES)
    result = project.run("-m", "fake", "--nb-strict=always")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--nb-strict*invalid*always*"])
