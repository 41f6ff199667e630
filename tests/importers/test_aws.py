"""AWS's tables as a page, as text, as CSV files: every row with its figures, its definitions, its cost made anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import aws_pages as pages
import pytest

from neuronbench import cli
from neuronbench.catalog.published import findings
from neuronbench.importers import KINDS, Imported, ImportFailure, gather, store
from neuronbench.model import Gate, Provenance
from neuronbench.receipts import ReceiptStore

KIND = KINDS["aws"]


def read(folder: Path, name: str, content: str) -> list[Imported]:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return gather(KIND, path)


def values(item: Imported) -> dict[str, float | None]:
    return {metric.key: metric.value for metric in item.metrics}


def gate(item: Imported, name: str) -> Gate:
    return next(each for each in item.gates if each.id == name)


def check(found: list[Imported], groups: tuple[str, ...]) -> None:
    """Every row of the page of April 2024 in these groups, in order, with figures, costs and findings."""
    wanted = [row for group in groups for table in ("throughput", "latency") for row in pages.rows(group, table)]
    assert len(found) == len(wanted)
    for item, row in zip(found, wanted, strict=True):
        said = values(item)
        assert item.params["model"] == row.model
        assert item.params["instance_type"] == row.instance_type
        assert (item.params["batch_size"], item.params["table"]) == (row.batch_size, row.table)
        assert item.params["dtype"] == row.dtype
        assert item.backend == "trn1"
        assert item.facts["stack.neuron_sdk"] == row.sdk_version
        if row.group == "encoder":
            assert (item.lane, said["throughput_items_s"]) == ("encoder", row.throughput)
            assert (said["latency_p50_ms"], said["latency_p99_ms"]) == (row.latency_p50_ms, row.latency_p99_ms)
        elif row.group == "seq2seq":
            assert (item.lane, said["total_token_throughput_tok_s"]) == ("seq2seq", row.throughput)
            assert said["latency_per_token_p50_ms"] == row.latency_p50_ms
        else:
            assert (item.lane, said["ttft_p50_ms"]) == ("serving", row.ttft_p50_ms)
            odd = {finding.id for finding in findings(row)}
            bears_out = "throughput_not_reconciled" not in odd
            assert said["output_throughput_tok_s"] == (row.throughput if bears_out else None)
            assert said["tpot_p50_ms"] == (row.tpot_p50_ms if "p50_above_p99" not in odd else None)
            assert item.params["weight_dtype"] == row.weight_dtype
        cost = gate(item, "published_cost")
        assert cost.passed is True, (row.name, cost)
        assert cost.observed == row.cost_per_1m_usd
        assert "on_demand" in cost.message
        ours = {f"published_{finding.id}" for finding in findings(row)}
        assert {each.id for each in item.gates} - {"published_cost"} == ours, row.name


def test_a_page_saved_as_html(tmp_path: Path) -> None:
    found = read(tmp_path, "page.html", pages.page_html())
    check(found, ("encoder", "seq2seq", "decoder"))
    assert len(found) == 68
    assert {item.facts["source.last_update"] for item in found} == {"April 30th, 2024"}
    assert found[0].own["Cost per 1M inferences"] == 0.12
    assert found[0].params["script"] == "Benchmark"


@pytest.mark.parametrize("form", [pages.as_tabs, pages.as_pipes, pages.as_stack, pages.as_paragraphs])
def test_a_page_saved_as_text(form: Callable[[list[list[str]]], str], tmp_path: Path) -> None:
    check(read(tmp_path, "page.txt", pages.page_text(form)), ("encoder", "decoder"))


@pytest.mark.parametrize("form", [pages.as_stack, pages.as_paragraphs])
def test_a_row_that_lacks_a_cell_or_has_one_too_many(form: Callable[[list[list[str]]], str], tmp_path: Path) -> None:
    lines = pages.grid(pages.ENCODER, pages.rows("encoder")[:4])
    assert len(read(tmp_path, "a.txt", form(lines))) == 4
    for change in (lambda row: row[:5] + row[6:], lambda row: [*row[:5], "1", *row[5:]], lambda row: row[:-1]):
        for index in (1, 2, 4):
            changed = [change(line) if at == index else line for at, line in enumerate(lines)]
            if index == 4 and len(changed[4]) > len(lines[0]) and form is pages.as_paragraphs:
                continue  # what stands behind the last row is the page's next text
            with pytest.raises(ImportFailure, match=r"a\.txt"):
                read(tmp_path, "a.txt", form(changed))


def test_the_files_of_the_documentation(tmp_path: Path) -> None:
    for table in ("throughput", "latency"):
        for group, cells in (
            ("encoder", pages.ENCODER),
            ("encoder_decoder", pages.SEQ2SEQ),
            ("decoder", pages.DECODER),
        ):
            name = group.replace("encoder_decoder", "seq2seq")
            content = pages.csv_text(cells, pages.rows(name, table))
            (tmp_path / f"{table}_data_{group}.csv").write_text(content)
    training = pages.csv_text(pages.TRAINING, pages.rows("training_decoder", "training", "trn1-2026-08"))
    (tmp_path / "training_data_decoder.csv").write_text(training)
    found = gather(KIND, tmp_path)
    assert len(found) == 68 + 2
    lanes = [item.lane for item in found]
    assert (lanes.count("encoder"), lanes.count("seq2seq"), lanes.count("serving")) == (28, 4, 36)
    by_table = [item.params["table"] for item in found if item.lane == "encoder"]
    assert (by_table.count("throughput"), by_table.count("latency")) == (14, 14)
    assert {gate(item, "published_cost").passed for item in found} == {None}  # these files print none
    llama = next(item for item in found if item.lane == "training")
    assert values(llama) == {"train_throughput_padded_tok_s": 47.95 * 8192, "train_throughput_tok_s": None}
    assert llama.params["script"] == "NxD"
    assert (llama.params["nodes"], llama.params["model"], llama.params["task"]) == (32, "Llama-3.1-8B", "pre_training")
    assert llama.own["Performance [seq/sec]"] == 47.95
    assert "published_instances_not_told_apart" in [each.id for each in llama.gates]


def test_costs_by_the_price_that_the_page_names(tmp_path: Path) -> None:
    page = pages.page_html()
    assert {gate(item, "published_cost").passed for item in read(tmp_path, "a.html", page)} == {True}
    reserved = page.replace("On-Demand hourly rate", "RI-Effective hourly rate")
    found = read(tmp_path, "b.html", reserved)
    assert {gate(item, "published_cost").passed for item in found} == {False}  # 1.34 USD is not what reserved ones cost
    assert "0.512 USD (ri_effective)" in gate(found[0], "published_cost").message
    silent = page.replace("On-Demand hourly rate", "some rate")
    found = read(tmp_path, "c.html", silent)
    assert {gate(item, "published_cost").passed for item in found} == {True}
    assert "does not say by which price" in gate(found[0], "published_cost").message


def test_a_cost_that_is_wrong_is_provisional(tmp_path: Path) -> None:
    wrong = pages.page_html().replace("$0.120", "$0.220")
    found = read(tmp_path, "page.html", wrong)
    made = store(KIND, tmp_path / "page.html", found, tmp_path / "receipts")
    records = [receipt.record for receipt in ReceiptStore(tmp_path / "receipts").iter(made.session)]
    assert {record.provenance for record in records} == {Provenance.IMPORTED}
    assert len(records) == 68
    (bad,) = [record for record in records if record.validity == "provisional"]
    assert bad.point["model"] == "albert-base-v2"
    failed = next(each for each in bad.gates if each.id == "published_cost")
    assert (failed.observed, failed.limit) == (0.22, 0.12)


def test_the_command_says_what_the_checks_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    page = tmp_path / "page.html"
    page.write_text(pages.page_html().replace("$0.120", "$0.220"), encoding="utf-8")
    assert cli.main(["--root", str(tmp_path), "import", "aws", str(page)]) == 0
    said = capsys.readouterr().out
    assert "gates that failed, of 68 results: published_mixed_versions 36" in said
    assert "published_part_billed_as_whole 6" in said
    assert "published_cost 1" in said


def test_a_column_of_the_table_is_the_price(tmp_path: Path) -> None:
    lines = pages.grid(pages.ENCODER, pages.rows("encoder")[:1])
    lines[0].append("On-Demand hourly rate")
    lines[1].append("2.68")
    (item,) = read(tmp_path, "a.txt", pages.as_tabs(lines))
    cost = gate(item, "published_cost")
    assert (cost.passed, cost.limit) == (False, 0.24)
    assert "2.68 USD (on_demand)" in cost.message


def test_unknown_columns_keep_their_names_and_headings_choose_the_table(tmp_path: Path) -> None:
    lines = pages.grid(pages.ENCODER, pages.rows("encoder")[:2])
    for line, more in zip(lines, (["Power (W)", "Region"], ["75.5", "us-east-1"], ["", "–"]), strict=True):
        line += more
    first, second = read(tmp_path, "page.html", f"<h3>Latency optimized</h3>{pages.table_html(lines)}")
    assert (first.own["Power (W)"], first.own["Region"]) == (75.5, "us-east-1")
    assert "Power (W)" not in second.own  # an empty cell is no figure
    assert first.params["table"] == "latency"


def test_older_tables_of_decoders_do_not_say_which_tokens(tmp_path: Path) -> None:
    content = (
        "Model,Inst. Type,Throughput (tokens/second),Latency P50 (ms),Latency P99 (ms),Application Type,TP Degree,"
        "Batch Size\nopt-13b,Inf2.48xlarge,49.8,19.8,23,Real Time,8,1\n"
    )
    (item,) = read(tmp_path, "latency_data_LLM.csv", content)
    assert item.lane == "serving"
    assert set(values(item).values()) == {None}
    assert (item.own["Throughput (tokens/second)"], item.own["Latency P50 (ms)"]) == (49.8, 19.8)
    assert "published_more_in_flight_than_cores" not in [each.id for each in item.gates]
    assert "published_throughput_undefined" in [each.id for each in item.gates]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("NaN", "finite number"), ("inf", "finite number"), ("-3", "finite number"), ("1e999", "finite number"),
        ("9" * 500, "finite number"), ("fast", "finite number"), ("", "a throughput"),
    ],
)  # fmt: skip
def test_a_rate_that_is_none(cell: str, message: str, tmp_path: Path) -> None:
    content = pages.csv_text(pages.ENCODER, pages.rows("encoder")[:1]).replace("3098.91", cell)
    with pytest.raises(ImportFailure, match=message) as caught:
        read(tmp_path, "a.csv", content)
    assert "row 1" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("trn1.2xlarge", "p4d.24xlarge"), "an instance type"),
        (("Trn1.2xlarge,Raw Output,", "Trn1.2xlarge,"), "cells in each row"),
        (("OS Type", "Model"), "two columns are the model"),
        ((",16,128,", ",16.5,128,"), "a whole number"),
        (("Batch,2.18.0", "Sometimes,2.18.0"), "Batch or Real Time"),
        (("Model,Scripts", "Name,Scripts"), "expected a table with Model"),
    ],
    ids=str,
)
def test_a_table_that_is_not_right(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    content = pages.csv_text(pages.ENCODER, pages.rows("encoder")[:3])
    changed = content.replace(*change) if change[0] in content else content.replace(change[0].capitalize(), change[1])
    assert changed != content
    with pytest.raises(ImportFailure, match=message):
        read(tmp_path, "a.csv", changed)


def test_three_columns_are_no_table_of_results_and_what_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(ImportFailure, match="a fourth column that is known, such as Batch Size, found Model"):
        read(tmp_path, "a.csv", "Model,Inst. Type,Throughput (inference/sec)\nm,trn1.2xlarge,12\n")


def test_the_handed_tables(tmp_path: Path) -> None:
    handed = os.environ.get("NEURONBENCH_SHARED")
    if not handed:
        pytest.skip("NEURONBENCH_SHARED names no folder of handed reference data")
    folder = Path(handed, "reference", "published")
    names = [*folder.glob("seed_*.csv"), *folder.glob("*_inference_*.csv"), *folder.glob("trn1_training_*.csv")]
    assert len(names) == 32
    assert sum(len(gather(KIND, path)) for path in names) == 312
    for path in folder.glob("seed_*.csv"):
        for item in gather(KIND, path):
            assert gate(item, "published_cost").passed is True, path
