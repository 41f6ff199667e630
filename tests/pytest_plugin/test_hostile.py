"""What a benchmark, a plugin or a terminal may do to a record: it is closed, readable, and says what went wrong."""

from __future__ import annotations

import json

import pytest

from neuronbench.receipts import ReceiptStore

HOOKS = """
from neuronbench import hookimpl
@hookimpl
def {hook}({arguments}):
    raise RuntimeError("a defect of a plugin")
"""


PUT = [
    "measure.record.workload['x'] = float('nan')",
    "measure.record.workload['x'] = object()",
    "measure.record.workload[3] = 1",
    "measure.record.notes.append(5)",
    "measure.record.tags['x'] = 5",
]


def test_whatever_a_benchmark_puts_into_a_record_there_is_a_receipt_that_says_so(project) -> None:
    for number, line in enumerate(PUT):
        project.bench(
            f'def bench_{number}(measure):\n    measure.metric("speed", 3.0, unit="toys/s")\n    {line}\n',
            name=f"bench_put_{number}",
        )
    project.run("-m", "fake")
    found = list(ReceiptStore(project.receipts).iter())
    assert len(found) == len(PUT)
    for receipt in found:
        assert receipt.record.outcome == "error"
        assert receipt.record.error.kind == "record_unwritable"
        assert receipt.record.metrics["speed_toys_s"].value == 3.0
        assert receipt.record.validity == "invalid"


WRONG = [
    'measure.metric("speed", "fast", unit="toys/s")',
    'measure.metric("speed", float("inf"), unit="toys/s")',
    'measure.metric("sp@ed", 1.0, unit="toys/s")',
    'measure.metric("speed", 1.0, unit="toys/s", better="up")',
    'measure.gate(nb.Gate(id="x", passed="yes"))',
    'measure.gate(nb.Gate(id="x", passed=False, severity="fatal"))',
    'measure.check("speed_toys_s", at_most=float("nan"))',
]


def test_a_wrong_number_is_an_error_where_it_is_given(project) -> None:
    project.bench("".join(f"def bench_{number}(measure):\n    {line}\n" for number, line in enumerate(WRONG)))
    project.run("-m", "fake").assert_outcomes(failed=len(WRONG))
    records = project.records()
    assert len(records) == len(WRONG)
    for record in records:
        assert record["outcome"] == "failed"
        assert "expected" in record["error"]["message"] or "not a JSON number" in record["error"]["message"]


@pytest.fixture(scope="module")
def ran(whole):
    """One run of a process of its own for what measures or has numpy, which cannot be loaded twice in one."""
    project = whole(
        bench_gates="import numpy as np\ndef bench_it(measure):\n"
        '    measure.metric("speed", np.float32(2), unit="toys/s", n=np.int64(4))\n'
        '    measure.gate(nb.Gate(id="x", passed=np.float64(3) < 2, observed=np.float64(3), limit=float("inf")))\n',
        bench_windows="@nb.bench(backends=['truth'])\ndef bench_it(endpoint, measure):\n    for _ in range(2):\n"
        "        measure.serve(endpoint, nb.closed_loop(1, requests=5),"
        " nb.synthetic(input_tokens=8, output_tokens=4))\n",
    )
    project.outcomes = project.run("-m", "(fake or truth) and not absent")
    return project


def of_file(project, name):
    """Receipts of the benchmarks in that file, by their backend."""
    found = list(ReceiptStore(project.receipts).iter())
    mine = [each for each in found if each.record.point.benchmark.startswith(f"bench_{name}.py")]
    return {each.record.point.backend: each for each in mine if each.record.kind == "point"}


def test_a_gate_of_numpy_is_a_gate(ran) -> None:
    assert of_file(ran, "gates")["fake"].record.validity == "invalid", ran.said


def test_one_record_holds_one_window(ran) -> None:
    record = of_file(ran, "windows")["truth"].record
    assert record.outcome == "failed", ran.said
    assert "one window" in record.error.message
    assert record.metrics["ttft_p50_ms"].n == 5


@pytest.mark.parametrize(
    ("hook", "arguments"),
    [
        ("finish_record", "record"),
        ("point_recorded", "record"),
        ("describe_environment", "backend"),
        ("check_point", "point"),
        ("configured", "session"),
        ("session_finished", "session"),
        ("report_sections", "records"),
    ],
)
def test_a_hook_that_raises_costs_no_point_also_where_warnings_are_errors(project, hook, arguments) -> None:
    source = (project.path / "conftest.py").read_text()
    project.pytester.makeconftest(source + HOOKS.format(hook=hook, arguments=arguments))
    project.bench('def bench_it(measure):\n    measure.metric("speed", 3.0, unit="toys/s")\n')
    result = project.run("-m", "fake", "-W", "error")
    assert result.parseoutcomes().get("passed") == 1
    assert "INTERNALERROR" not in result.stdout.str()
    (record,) = project.records()
    assert record["outcome"] == "ok"


@pytest.mark.parametrize("option", ["--setup-plan", "--setup-only"])
def test_a_run_that_measures_nothing_leaves_nothing_that_resume_would_take(project, option) -> None:
    project.bench('def bench_it(measure):\n    measure.metric("speed", 3.0, unit="toys/s")\n')
    project.run("-m", "fake", option)
    assert project.records() == []
    project.run("-m", "fake", "--nb-resume").assert_outcomes(passed=1)


def test_a_boot_record_that_cannot_be_written_stops_its_resource(project) -> None:
    fakes = (project.path / "fakes.py").read_text()
    project.pytester.makepyfile(fakes=fakes.replace('return FakeResource(spec)', 'made = FakeResource(spec)\n'
        '        made.boot_metrics = made.boot_metrics * 2\n        return made'))  # fmt: skip
    project.bench("def bench_it(endpoint):\n    pass\n")
    project.run("-m", "fake").assert_outcomes(errors=1)
    assert project.events("boot", "stop") == [("boot", "m"), ("stop", "m")]


def test_an_external_server_is_never_taken_for_what_the_grid_would_have_booted(project) -> None:
    from neuronbench.testing.truth_server import TruthServer

    project.in_process = False
    project.bench(
        '@nb.bench(lane="serving", params={"model": "m", "scenario": "plain"})\ndef bench_it(endpoint, measure):\n'
        "    measure.serve(endpoint, nb.closed_loop(1, requests=5), nb.synthetic(input_tokens=8, output_tokens=4))\n"
    )
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        project.run("-m", "truth", "--nb-endpoint", server.url).assert_outcomes(passed=1)
    (record,) = project.records()
    assert record["point"]["params"]["endpoint"] == server.url
    assert "scenario" not in record["point"]["params"]
    assert not [name for name in record["environment"]["facts"] if name.startswith("stack.torch")]
    project.run("-m", "truth", "--nb-resume").assert_outcomes(passed=1)


def test_prompts_for_an_external_server_may_be_drawn_from_a_tokenizer_of_ours(project) -> None:
    from neuronbench.testing.truth_server import TruthServer

    project.in_process = False
    project.bench(
        '@nb.bench(lane="serving")\ndef bench_it(endpoint, measure):\n'
        "    measure.serve(endpoint, nb.closed_loop(1, requests=5), nb.synthetic(input_tokens=8, output_tokens=4))\n"
    )
    (project.path / "tok").mkdir()
    file = project.path / "tok" / "tokenizer.json"
    file.write_text(json.dumps({"model": {"type": "WordLevel", "vocab": {f"t{k:05d}": k for k in range(500)}}}))
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        project.run("-m", "truth", "--nb-endpoint", server.url, "--nb-tokenizer", "tok").assert_outcomes(passed=1)
        (record,) = project.records()
        assert record["resource"]["facts"]["vocabulary"] == f"tokenizer {project.path / 'tok'}"
        assert {gate["id"]: gate["passed"] for gate in record["gates"]}["input_length"] is True
        file.write_text("{")
        project.run("-m", "truth", "--nb-endpoint", server.url, "--nb-tokenizer", "tok").assert_outcomes(errors=1)
    record = project.records()[-1]
    assert record["error"]["kind"] == "bad_arguments"
    assert "--nb-tokenizer" in record["error"]["remedy"]


def test_secrets_in_urls_and_messages_are_not_recorded(project) -> None:
    project.bench('def bench_it(measure):\n    raise OSError("cannot log in with password=hunter22secret")\n')
    project.run("-m", "fake")
    text = json.dumps(project.records())
    assert "hunter22secret" not in text
    assert "redacted" in text


def test_credentials_of_an_external_server_stand_in_no_record(project) -> None:
    project.bench('@nb.bench(lane="serving")\ndef bench_it(endpoint):\n    pass\n')
    project.run("-m", "truth", "--nb-endpoint", "http://user:hunter22secret@127.0.0.1:9", "--nb-deadline", "boot=3")
    texts = [path.read_text() for path in project.receipts.glob("*/*/record.json")]
    assert len(texts) == 2  # the attempt to reach it, and the point
    assert not [text for text in texts if "hunter22secret" in text]
