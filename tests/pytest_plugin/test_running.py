from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

OUTCOMES = """
import time

@nb.bench(lane="toy", params={"model": "m"})
def bench_ok(endpoint, measure):
    measure.metric("speed", 3.0, unit="toys/s", better="higher")
    measure.check("speed_toys_s", at_least=2)

@nb.bench(lane="toy")
def bench_slo(measure):
    measure.metric("speed", 3.0, unit="toys/s", better="higher")
    measure.check("speed_toys_s", at_least=4)

@nb.bench(lane="toy")
def bench_missing_value(measure):
    measure.metric("speed", None, unit="toys/s", note="too few toys")
    measure.check("speed_toys_s", at_least=4)

@nb.bench(lane="toy")
def bench_assertion(measure):
    assert 1 + 1 == 3, "arithmetic"

@nb.bench(lane="toy")
def bench_exception(measure):
    raise OSError("disk on fire")

@nb.bench(lane="toy")
def bench_timeout(measure):
    from neuronbench.measure import DeadlineExceeded
    raise DeadlineExceeded(nb.Failure(kind="point_timeout", phase="window", message="too slow"))

@nb.bench(lane="toy")
def bench_skips(measure):
    pytest.skip("not today")

@nb.bench(lane="toy")
def bench_invalid(measure):
    measure.metric("speed", 3.0, unit="toys/s")
    measure.gate(nb.Gate(id="implausible", passed=False, observed=3, limit=2, message="faster than light"))

@pytest.fixture
def broken():
    raise RuntimeError("fixture broke")

@nb.bench(lane="toy")
def bench_setup(measure, broken):
    pass
"""


def test_every_outcome_is_a_receipt_with_its_reason(project) -> None:
    project.bench(OUTCOMES)
    result = project.run("-m", "fake", "-v", "-rA")
    result.assert_outcomes(passed=2, failed=5, skipped=1, errors=1)
    assert result.ret == 1
    found = {record["point"]["benchmark"].rpartition("bench_")[2]: record for record in project.records()}
    assert {name: record["outcome"] for name, record in found.items()} == {
        "ok": "ok",
        "slo": "slo_miss",
        "missing_value": "slo_miss",
        "assertion": "failed",
        "exception": "failed",
        "timeout": "timeout",
        "skips": "skipped",
        "invalid": "ok",
        "setup": "error",
    }
    assert found["slo"]["metrics"]["speed_toys_s"]["value"] == 3.0
    assert "expected ≥ 4" in found["slo"]["error"]["message"]
    assert "too few toys" in found["missing_value"]["error"]["message"]
    assert "arithmetic" in found["assertion"]["error"]["traceback"]
    assert found["exception"]["error"]["causal_line"] == "OSError: disk on fire"
    assert found["timeout"]["error"]["kind"] == "point_timeout"
    assert found["skips"]["reason"] == "not today"
    assert found["invalid"]["validity"] == "invalid"
    assert found["setup"]["error"]["phase"] == "boot"
    assert all(record["provenance"] == "simulated" for record in found.values())
    assert all(record["environment"]["key"] for name, record in found.items() if name != "skips")
    result.stdout.fnmatch_lines(["*bench_ok*PASSED*3.000 toys/s*"])
    result.stdout.fnmatch_lines(["*bench_invalid*INVALID*"])
    result.stdout.fnmatch_lines(["*implausible*faster than light*"])
    result.stdout.fnmatch_lines([f"receipts: {project.receipts}/*"])


def test_a_boot_is_a_record_of_its_own_and_points_cite_it(project) -> None:
    project.bench('@pytest.mark.parametrize("n", [1, 2])\ndef bench_it(endpoint, n):\n    pass\n')
    project.run("-m", "fake").assert_outcomes(passed=2)
    (boot,) = project.records("boot")
    assert boot["outcome"] == "ok"
    assert boot["metrics"]["boot_time_s"]["value"] == 0.5
    assert "server.log" in boot["attachments"]
    for record in project.records():
        assert record["resource"]["boot_receipt"] == f"{boot['session']}/{boot['name']}"
        assert record["resource"]["facts"] == {"fake": True}


@pytest.mark.parametrize(("model", "kind"), [("broken", "bad_weights"), ("raises", "provider_error")])
def test_a_resource_that_cannot_boot_fails_its_points_once_and_the_next_go_on(project, model, kind) -> None:
    project.bench(
        f'@pytest.mark.parametrize("n", [1, 2])\n@pytest.mark.parametrize("model", ["{model}", "good"])\n'
        "def bench_it(endpoint, model, n):\n    pass\n"
    )
    result = project.run("-m", "fake")
    result.assert_outcomes(passed=2, errors=2)
    assert [event for event in project.events("boot") if event[1] == model] == [("boot", model)]
    boots = {record["resource"]["spec"]["model"]: record for record in project.records("boot")}
    assert boots[model]["outcome"] == "error"
    assert boots[model]["error"]["kind"] == kind
    assert boots["good"]["outcome"] == "ok"
    failed = [record for record in project.records() if record["outcome"] == "error"]
    assert len(failed) == 2
    assert {record["error"]["kind"] for record in failed} == {kind}
    assert {record["resource"]["boot_receipt"] for record in failed} == {
        f"{boots[model]['session']}/{boots[model]['name']}"
    }
    if kind == "bad_weights":
        result.stdout.fnmatch_lines(
            ["*bad_weights in boot*", "*ValueError: header too large*", "*remedy: fetch it again*"]
        )


def test_resume_measures_only_what_is_not_there(project) -> None:
    source = '@pytest.mark.parametrize("n", [1, 2, 3])\ndef bench_it(endpoint, n):\n    assert n < LIMIT\n'
    project.bench("LIMIT = 3\n" + source)
    project.run("-m", "fake").assert_outcomes(passed=2, failed=1)
    project.bench("LIMIT = 9\n" + source)
    result = project.run("-m", "fake", "--nb-resume", "-v")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 1
    assert outcomes["cached"] == 2
    project.bench("LIMIT = 9\n" + source + "    # changed: another benchmark\n    assert True\n")
    project.run("-m", "fake", "--nb-resume").assert_outcomes(passed=3)


def test_the_hook_bridge_can_wrap_measuring_and_finish_records(project) -> None:
    source = (project.path / "conftest.py").read_text()
    project.pytester.makeconftest(
        source
        + """
from neuronbench import Metric
@hookimpl(wrapper=True)
def measuring(record):
    record.notes.append("before")
    result = yield
    record.notes.append("after")
    return result
@hookimpl
def finish_record(record, point):
    return [Metric(id="derived", value=1.0, unit="s")]
@hookimpl
def point_recorded(record, receipt):
    raise RuntimeError("observer broke")
@hookimpl
def report_sections(records):
    return [("my section", f"{len(records)} records")]
"""
    )
    project.bench("def bench_it(measure):\n    assert measure.run(None, lambda: 7) == 7\n")
    result = project.run("-m", "fake", "-W", "default")
    result.assert_outcomes(passed=1, warnings=1)
    (record,) = project.records()
    assert record["notes"] == ["before", "after"]
    assert record["metrics"]["derived_s"]["value"] == 1.0
    result.stdout.fnmatch_lines(["*my section*", "*1 records*"])


def wait_for(condition, *, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_closes_the_open_record_and_stops_the_resource(project, number) -> None:
    project.bench(
        "import pathlib, time\ndef bench_first(endpoint):\n    pass\n"
        'def bench_long(endpoint, measure):\n    measure.metric("speed", 1.0, unit="toys/s")\n'
        '    pathlib.Path("waiting").touch()\n    time.sleep(600)\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "fake", "--nb-tracking-uri", "off"],
        cwd=project.path,
        env={**os.environ, "PYTHONPATH": str(project.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    wait_for((project.path / "waiting").exists)
    process.send_signal(number)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output.decode()
    outcomes = {record["point"]["benchmark"].rpartition("_")[2]: record for record in project.records()}
    assert outcomes["first"]["outcome"] == "ok"
    assert outcomes["long"]["outcome"] == "interrupted"
    assert outcomes["long"]["metrics"]["speed_toys_s"]["value"] == 1.0
    assert project.events("stop") == [("stop", "m")]


def test_the_alarm_ends_a_benchmark_that_hangs(project) -> None:
    project.bench("import time\ndef bench_hangs(measure):\n    time.sleep(60)\ndef bench_next(measure):\n    pass\n")
    result = project.run("-m", "fake", "--nb-deadline", "point=2", subprocess=True)  # an alarm of its own
    result.assert_outcomes(passed=1, failed=1)
    records = {record["point"]["benchmark"].rpartition("_")[2]: record for record in project.records()}
    assert records["hangs"]["outcome"] == "timeout"
    assert records["hangs"]["error"]["kind"] == "point_timeout"
    assert records["next"]["outcome"] == "ok"


def test_junit_carries_metrics_outcome_and_receipt(project) -> None:
    project.bench('def bench_it(measure):\n    measure.metric("speed", 3.5, unit="toys/s")\n')
    project.run("-m", "fake", "--junitxml", "out.xml").assert_outcomes(passed=1)
    text = (project.path / "out.xml").read_text()
    assert 'name="speed_toys_s" value="3.5"' in text
    assert 'name="neuronbench.outcome" value="ok"' in text
    (record,) = project.receipts.glob("*/*/record.json")
    assert str(record.parent) in text
    assert json.loads(record.read_text())["schema_version"] == 1


def test_points_of_equal_name_in_two_files_do_not_share_a_receipt(project) -> None:
    project.bench("def bench_it(measure):\n    pass\n", name="bench_a")
    project.bench("def bench_it(measure):\n    pass\n", name="bench_b")
    project.run("-m", "fake").assert_outcomes(passed=2)
    names = {Path(record["name"]).name for record in project.records()}
    assert len(names) == 2
