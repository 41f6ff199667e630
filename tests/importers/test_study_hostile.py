"""Receipts of the study that are damaged, enormous or hostile: read, or refused by name; nothing written or run."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_samples import SAMPLES, point, telemetry, write, write_all
from test_hostile_files import mutated

from neuronbench.importers import KINDS, ImportFailure, gather, store
from neuronbench.importers.study import expressions, figures
from neuronbench.importers.study.files import LIMIT_BYTES, read_samples
from neuronbench.receipts import ReceiptStore

STUDY = KINDS["study"]
OF_FAILURES = {"load_failure", "generation_failure", "failure"}
"""Forms whose name says that they are of a failure: what is no JSON in them is kept as a damaged receipt."""


def refused(path: Path) -> str:
    with pytest.raises(ImportFailure) as caught:
        gather(STUDY, path)
    assert path.name in str(caught.value)
    return str(caught.value)


@pytest.fixture(params=sorted(set(SAMPLES) - OF_FAILURES))
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    where, content = SAMPLES[request.param]
    path = tmp_path / Path(where).name
    return path, content


def test_truncated_anywhere(sample: tuple[Path, Any]) -> None:
    path, content = sample
    whole = json.dumps(content)
    for part in range(0, len(whole), max(1, len(whole) // 25)):
        path.write_text(whole[:part])
        refused(path)


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", "null", "3", '"text"', "[" * 100_000, '{"a":' * 100_000, "1" * 5_000_000, "not json", "", "\x00\x01",
     '{"completed": 3}', '{"loss_trace": []}', '{"model": 1}'],
    ids=range(14),
)  # fmt: skip
def test_another_form(content: str, tmp_path: Path) -> None:
    path = tmp_path / "isl64_osl10_c8.json"
    path.write_text(content)
    refused(path)


def test_archives_pipes_folders_and_missing_files(tmp_path: Path) -> None:
    packed = tmp_path / "boot.json"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escape.json", b"0" * 10_000_000)
    assert "zip" in refused(packed)
    packed.write_bytes(gzip.compress(json.dumps(SAMPLES["boot"][1]).encode()))
    assert "gzip" in refused(packed)
    packed.unlink()
    os.mkfifo(packed)
    assert "pipe" in refused(packed)
    packed.unlink()
    refused(packed)


@pytest.mark.parametrize("name", ["isl64_osl10_c8.json", "lora.failure.json"])
def test_an_enormous_file_is_refused_without_being_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(b"{")
        file.truncate(1024**3)  # sparse: costs no disk
    assert "at most 64 MiB" in refused(path)


def test_a_damaged_failure_is_bounded_and_text(tmp_path: Path) -> None:
    """A failure may be no JSON; it may not be an archive, other than text, or of any size."""
    path = tmp_path / "lora.failure.json"
    path.write_bytes(gzip.compress(b"{}"))
    assert "gzip" in refused(path)
    path.write_bytes(b"\xff\xfe\x00{")
    assert "UTF-8" in refused(path)
    path.write_text("x" * (2 * 1024 * 1024))
    assert "at most 1 MiB" in refused(path)
    path.write_text("[" * 100_000)
    assert "nested" in refused(path)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "t_s among them"),
        ("a,b\n1,2\n", "t_s among them"),
        ("t_s,t_s\n1,2\n", "distinct"),
        ("t_s,util_nc0\n0,1\n1\n", "2 cells in line 3, found 1"),
        ("t_s,util_nc0\n0,1\n1,2,3\n", "2 cells in line 3, found 3"),
        ("t_s,util_nc0\n5,1\n4,1\n", "seconds that go on"),
        ("t_s,util_nc0\n-1,1\n", "seconds that go on"),
        ("t_s,util_nc0\nnan,1\n", "seconds that go on"),
        ("t_s,util_nc0\n1e300,1\n", "seconds that go on"),
        ("t_s,util_nc0\n0,<script>\n", "another form"),
        ('t_s,util_nc0\n0,"1\n', "another form"),
        ("t_s," + ",".join(f"c{n}" for n in range(2000)) + "\n", "distinct"),
    ],
    ids=range(12),
)
def test_a_telemetry_table_of_another_form_fails_the_import_by_its_name(table: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, "inf2/results/serve/a/isl64_osl10_c8.json", point())
    write(tmp_path, "inf2/results/serve/a/isl64_osl10_c8.telemetry.csv", table)
    with pytest.raises(ImportFailure, match=r"isl64_osl10_c8") as caught:
        gather(STUDY, tmp_path)
    assert said in str(caught.value)


def test_values_that_are_not_finite_are_no_values(tmp_path: Path) -> None:
    path = write(tmp_path, "x.telemetry.csv", "t_s,util_nc0,mem_used_mib\n0,nan,inf\n1,1e999,-inf\n2,50,\n")
    samples = read_samples(path)
    assert samples.utilisation() == [(2.0, 50.0)]
    assert samples.highest("mem_used_mib") is None
    holed = write(
        tmp_path, "trn1/results/a/p.json", json.dumps(point()).replace("100.0", "NaN").replace("20.0", "1e999")
    )
    (found,) = gather(STUDY, holed)
    assert all(metric.value is None for metric in found.metrics if metric.id in ("ttft", "icl"))


def test_an_enormous_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.telemetry.csv"
    with path.open("wb") as file:
        file.write(b"t_s,util_nc0\n")
        file.truncate(LIMIT_BYTES + 1)
    assert "at most 16 MiB" in refused(path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither a receipt that is a link, nor a table or a log beside one."""
    secret = write(tmp_path, "secret/s.telemetry.csv", telemetry())
    log = write(tmp_path, "secret/s.log", "[NCC_EOOM002] a secret")
    folder = tmp_path / "study" / "trn1" / "results" / "extras"
    write(folder, "a.json", point())
    write(folder, "b.failure.json", {"status": "failed", "reason": "Engine core initialization failed. See root cause"})
    (folder / "a.telemetry.csv").symlink_to(secret)
    (folder / "b.log").symlink_to(log)
    (folder / "c.json").symlink_to(folder / "a.json")
    (folder / "up").symlink_to(tmp_path)
    found = gather(STUDY, tmp_path / "study")
    assert [item.source.name for item in found] == ["a.json", "b.failure.json"]
    assert found[0].telemetry is None
    assert found[1].error is not None
    assert "secret" not in found[1].error.causal_line
    assert not figures.Receipts(tmp_path / "study").__contains__("trn1/results/extras/c.json")


def test_one_bad_file_fails_all_and_writes_nothing(tmp_path: Path) -> None:
    write_all(tmp_path / "study")
    write(tmp_path / "study", "trn2/results/train/zz.json", '{"loss_trace": [1]')
    with pytest.raises(ImportFailure, match=r"zz\.json"):
        gather(STUDY, tmp_path / "study")
    assert not (tmp_path / "receipts").exists()


HOSTILE = ["../../../etc/x", "<script>alert(1)</script>", "a\x00b", "C:\\x", "x" * 5000, "\u202egnp", ""]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_in_a_receipt_reach_no_path(name: str, tmp_path: Path) -> None:
    source, root = tmp_path / "in", tmp_path / "deep" / "receipts"
    write(source, "inf2/results/serve/a/p.json", point(model_id=name, **{name or "empty": name}))
    write(source, "inf2/results/serve/a/load_failure.json", {"status": name, "reason": name, "captured": name})
    before = set(tmp_path.rglob("*"))
    made = store(STUDY, source, gather(STUDY, source), root)
    new = set(tmp_path.rglob("*")) - before
    assert all(path == root.parent or path == root or root in path.parents for path in new)
    assert len(list(ReceiptStore(root).iter(made.session))) == 2


def test_two_receipts_of_one_name_are_two_results_and_a_key_that_is_there_twice_is_none(tmp_path: Path) -> None:
    """What a slug makes equal stays apart."""
    write(tmp_path, "inf2/results/serve/a b/p.json", point())
    second = write(tmp_path, "inf2/results/serve/a-b/p.json", point(completed=110))
    made = store(STUDY, tmp_path, gather(STUDY, tmp_path), tmp_path / "receipts")
    found = [receipt.record for receipt in ReceiptStore(tmp_path / "receipts").iter(made.session)]
    assert len({record.receipt_name for record in found}) == 2
    assert {record.workload["source"]["own_figures"]["completed"] for record in found} == {120, 110}
    second.write_text(json.dumps(point())[:-1] + ', "completed": 110}')
    assert "twice" in refused(second)


def test_ten_thousand_keys_and_deep_objects_are_bounded(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(500):
        deep = {"a": deep}
    path = write(tmp_path, "trn1/results/x/p.json", point(deep=deep, **{f"k{n}": n for n in range(10_000)}))
    (found,) = gather(STUDY, path)
    assert len(found.own) <= 410


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_whatever_is_changed_it_is_read_or_refused(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(sorted(SAMPLES)))
    where, sample = SAMPLES[form]
    content = data.draw(mutated(sample))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study", where)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
        refusal = ""
        try:
            found = gather(STUDY, path)
            store(STUDY, path, found, Path(folder, "receipts"))
            assert STUDY.check is not None
            STUDY.check(path, found)
        except ImportFailure as error:
            refusal = str(error)
        assert not refusal or path.name in refusal or "holds no result" in refusal


@pytest.mark.parametrize(
    "expression",
    ["__import__('os').system('true')", "a.__class__", "(lambda: 1)()", "[x for x in r]", "open('/etc/passwd')",
     "a if 1 else b", "f'{a}'", "10 ** 10 ** 10", "r[::2]", "column(*r)", "mean(values=r)", "True and 1",
     "{'a': 1}", "print(1)"],
    ids=range(14),
)  # fmt: skip
def test_an_expression_is_arithmetic_and_nothing_else(expression: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        expressions.evaluate(expression, {"a": {"x": 1}, "r": []})


def test_a_published_figure_of_a_receipt_with_other_types_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "trn1/results/extras/whisper.json", {**SAMPLES["whisper"][1], "audio_s": "long"})
    with pytest.raises(ImportFailure, match=r"whisper\.json.*figure 58"):
        figures.verdicts(tmp_path)
