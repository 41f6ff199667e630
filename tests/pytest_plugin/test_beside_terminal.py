"""A point with the parameters of a published row: what summary, receipt and `neuronbench list` say of it."""

from __future__ import annotations

import pytest

from neuronbench import cli

BENCH = """
PARAMS = {
    "model": "hub:xlm-roberta-base", "batch_size": 8, "sequence_length": 128, "dtype": "float32",
    "run_mode": "data_parallel", "instance_type": "trn1.32xlarge", "edition": "trn1-2024-04",
}

@nb.bench(lane="encoder", params=PARAMS)
def bench_row(measure):
    measure.metric("throughput", 45.0, n=1000)

@nb.bench(lane="encoder", params={**PARAMS, "batch_size": 3})
def bench_no_row(measure):
    measure.metric("throughput", 45.0, n=1000)
"""


@pytest.mark.parametrize(
    ("instance", "simulated", "expected"),
    [
        ("trn1.32xlarge", "False", "measured / published: throughput 1.105"),
        ("trn1.32xlarge", "True", "no ratio: the numbers here are simulated"),
        ("inf2.xlarge", "False", "no ratio: the figures are of trn1.32xlarge, this is inf2.xlarge"),
    ],
)
def test_the_summary_says_what_stands_beside_a_point(
    project, instance: str, simulated: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes = project.path / "fakes.py"
    text = fakes.read_text().replace('{"fake.version": "1"}', f'{{"backend.instance_type": "{instance}"}}')
    fakes.write_text(text.replace("simulated=True", f"simulated={simulated}"))
    project.bench(BENCH)
    result = project.run("-m", "fake")
    result.assert_outcomes(passed=2)
    lines = [line for line in result.outlines if "published trn1-2024-04/encoder/throughput/14" in line]
    assert len(lines) == 1
    assert expected in lines[0]
    assert "part_billed_as_whole" in lines[0]
    (told,) = [record["workload"]["published"] for record in project.records() if "published" in record["workload"]]
    assert (told["throughput"], told["cost_per_1m_usd"], told["as_of"]) == (40.74, 146.608, "2024-04-30")
    capsys.readouterr()
    assert cli.main(["--root", str(project.path), "list", "--session", "last"]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())
