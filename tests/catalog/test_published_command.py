"""`neuronbench published`: rows by words, what is odd about them, all of it as JSON; no row is an error."""

from __future__ import annotations

import json

import pytest

from neuronbench import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["published", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_few_rows_are_shown_with_their_findings_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "XLM-roberta", "trn1-2024-04")
    assert status == 0
    assert "trn1-2024-04/encoder/throughput/14" in out
    assert "146.608 (computed 146.594)" in out
    assert "2.00 cores of 32 were used" in out
    assert "aws-neuron-sdk@78169c6c" in out
    assert "2 published rows, 2 of them with findings" in out


def test_many_rows_have_their_findings_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "decoder", "trn1")
    assert status == 0
    assert "throughput_not_reconciled" in out
    assert "name fewer of them" in out


def test_rows_of_one_finding(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--finding", "p50_above_p99")
    assert status == 0
    assert "2 published rows" in out
    assert "26.48/24.22 ms" in out
    status, _, err = run(capsys, "--finding", "no_such")
    assert status == 2
    assert "p50_above_p99" in err


def test_json_has_figures_source_costs_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--json", "bert-base-uncased", "inf2")
    assert status == 0
    rows = json.loads(out)
    assert {row["instance_type"] for row in rows} == {"inf2.xlarge"}
    for row in rows:
        assert row["source"].startswith("aws-neuron-sdk@")
        assert row["cost_by_price"]["price"]["kind"] == "ri_effective"
        assert "findings" in row


def test_prices_have_kind_dates_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--prices", "--json")
    assert status == 0
    assert {price["kind"] for price in json.loads(out)} == {"on_demand", "ri_effective"}
    assert "2024-09-16" in run(capsys, "--prices")[1]


def test_nothing_found_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "no-such-model")
    assert status == 1
    assert "trn1-2024-04" in err
