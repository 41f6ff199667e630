"""`neuronbench load` given files and numbers that are none: what was expected, what was found, what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neuronbench import cli
from neuronbench.commands import load_options
from neuronbench.testing.truth_server import TruthServer

NOBODY = "http://127.0.0.1:1"
"""Where no server is: what is refused with status 2 was refused before anything was asked there."""


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str, url: str = NOBODY) -> str:
    """What is said of arguments that are wrong usage."""
    (tmp_path / "root").mkdir(exist_ok=True)
    status = cli.main(["--root", str(tmp_path / "root"), "load", url, *arguments])
    said = capsys.readouterr().err
    assert status == 2, said
    assert "[Errno" not in said
    return said


@pytest.mark.parametrize("option", ["--dataset", "--trace"])
def test_what_is_no_file_is_told_before_the_server_is_asked(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text("{}")
    (tmp_path / "empty").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for name, found in (
        ("promts.jsonl", "found nothing at"),
        (".", "found a folder"),
        ("empty", "found an empty one"),
        ("loop", "found one that cannot be read"),
        ("pipe", "found a pipe or device"),
    ):
        said = refused(capsys, tmp_path, option, str(tmp_path / name))
        assert f"{option}: expected a file in form 'jsonl', {found}" in said
        assert "To do: " in said
    assert "did you mean 'prompts.jsonl'" in refused(capsys, tmp_path, option, str(tmp_path / "promts.jsonl"))


@pytest.mark.parametrize(
    ("option", "form", "content", "words"),
    [
        ("--dataset", "jsonl", b"\xff\xfe{", "expected text in UTF-8, found the byte 0xff"),
        ("--dataset", "bodies", b"hello\n", "expected a JSON object per line, found 'hello"),
        ("--dataset", "sharegpt", b"{}", "expected a JSON list of conversations, found dict"),
        ("--trace", "azure", b"\xff\xfe{", "expected text in UTF-8, found the byte 0xff"),
        ("--trace", "jsonl", b'{"at_s": 1}\n', "expected a number from 1, found None"),
    ],
)
def test_what_is_not_of_its_form_is_told_with_the_form(
    option: str, form: str, content: bytes, words: str, tmp_path: Path
) -> None:
    from neuronbench.load.arrivals import Trace
    from neuronbench.load.datasets import read_rows, read_trace
    from neuronbench.load.workload import Dataset
    from neuronbench.standalone import MeasureError

    path = tmp_path / "given"
    path.write_bytes(content)
    try:
        if option == "--dataset":
            read_rows(Dataset(path=str(path), format=form))  # type: ignore[arg-type]
        else:
            read_trace(Trace(path=str(path), format=form))  # type: ignore[arg-type]
    except ValueError as error:
        problem = MeasureError(str(error), usage=True)
        problem.__cause__ = error
    files: dict[str, tuple[Path | None, str]] = {"--dataset": (None, "jsonl"), "--trace": (None, "jsonl")}
    assert load_options.text_of(problem, files) is None
    said = load_options.text_of(problem, {**files, option: (path, form)})
    assert said is not None
    assert said.status == 2
    assert str(said).startswith(option)
    assert words in str(said)
    assert str(path) in str(said)
    assert f"To do: give {load_options.FORMS[f'{option} {form}']}" in str(said)


def test_a_dataset_that_is_no_text_is_told_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "given").write_bytes(b"\xff\xfe{")
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        said = refused(capsys, tmp_path, "--dataset", str(tmp_path / "given"), url=server.url)
    assert "--dataset: expected text in UTF-8, found the byte 0xff" in said


def test_other_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("no certificate\n")
    for arguments, words in (
        (
            ("--tokenizer", str(tmp_path / "nope")),
            "--tokenizer: expected a tokenizer.json or a folder that has one, found",
        ),
        (("--tokenizer", str(tmp_path)), "found a folder without one"),
        (("--tokenizer", str(file)), "found a file of another name"),
        (("--ca-file", str(file)), "--ca-file: expected certificates in PEM, found no certificate"),
        (("--out", str(file)), "--out: expected a folder that is empty or not there yet, found a file"),
        (("--out", str(file / "x")), "Not a directory"),
        (("--json", str(tmp_path)), "--json: expected a file to write, found a folder"),
        (("--json", str(file / "x" / "y.json")), f"found {file}, which is no folder"),
    ):
        assert words in refused(capsys, tmp_path, *arguments)


@pytest.mark.parametrize(
    ("option", "values", "with_it"),
    [
        ("--concurrency", "0 -1 99999999999999999999", ""),
        ("--requests", "0 -3 99999999999999999999", ""),
        ("--rate", "0 -1 nan inf", "--duration 1"),
        ("--duration", "0 -1 nan inf 1e20", ""),
        ("--deadline", "0 -1 nan inf 1e20", ""),
        ("--burst-size", "0 -1", "--arrivals burst --rate 5 --duration 1"),
        ("--burstiness", "0 -1 nan inf", "--arrivals gamma --rate 5 --duration 1"),
        ("--rate-end", "-1 nan inf", "--arrivals ramp --rate 5 --duration 1"),
        ("--rates", "0 1,-1 1,nan inf", "--arrivals steps --duration 1"),
        ("--turns", "99999999999999999999", "--rate 5 --duration 1"),
        ("--think-time", "inf 1e20", "--rate 5 --turns 2 --duration 1"),
        ("--trace-speed", "0 -1 nan inf", ""),
        ("--shared-prefix", "0 -1", ""),
        ("--prefix-hit-ratio", "-0.1 1 nan", ""),
        ("--prefix-groups", "99999999999999999999", "--shared-prefix 3"),
        ("--seed", "-1", ""),
        ("--warmup", "-1 99999999999999999999", ""),
        ("--slo-percentile", "0 100 nan", ""),
        ("--max-rate", "0 nan inf", "--find-rate --slo ttft=5"),
        ("--max-rate", "0.01", "--find-rate --slo ttft=5"),
        ("--tolerance", "0 nan inf", "--find-rate --slo ttft=5"),
        ("--processes", "0 -1", ""),
    ],
)
def test_a_number_that_is_none_is_told_by_the_name_of_its_option(
    option: str, values: str, with_it: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in values.split():
        said = refused(capsys, tmp_path, *with_it.split(), f"{option}={value}")
        assert f"{option}: expected " in said
        assert ", found " in said


@pytest.mark.parametrize("port", ["0", "99999", "http"])
def test_a_port_that_is_none(port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, tmp_path, url=f"http://127.0.0.1:{port}")
    assert "a port from 1 to 65535" in said


def test_a_search_is_no_test_of_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, tmp_path, "--find-rate", "--slo", "ttft=5", "--slo-test")
    assert "--slo-test is a verdict on one load" in said
