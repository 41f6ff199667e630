"""What a selection means, and what happens with receipts that cannot be read."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from compare_helpers import Bench, point

from neuronbench.compare import SelectionError, compare, split_by
from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Outcome, Validity


def values(bench: Bench, asked: str) -> list[float]:
    found = bench.selector().side(asked)
    return [value.value for r in found.readings for value in r.values.values() if value.value is not None]


@pytest.fixture
def filled(bench: Bench) -> Bench:
    for number in (1, 2, 3):
        bench.series(bench.session(str(number)), [float(number)], tags={"release": f"1.{number}"})
    return bench


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("latest", [3.0]),
        ("last", [3.0]),
        ("latest~2", [1.0]),
        ("20261101-000002", [2.0]),
        ("20261101-000002-0002/serving.loop-cpu-c8--r1", [2.0]),
        ("latest,latest~1", [2.0, 3.0]),
        ("latest,latest", [3.0]),
        ("tag:release", [1.0, 2.0, 3.0]),
        ("tag:release=1.2", [2.0]),
        ("commit:aaaa", [1.0, 2.0, 3.0]),
        ("latest@backend=cpu@concurrency=8", [3.0]),
        ("latest@backend=trn2,latest~1", [2.0]),
    ],
)
def test_what_it_means(filled: Bench, asked: str, found: list[float]) -> None:
    assert values(filled, asked) == found


def test_folders_from_anywhere(filled: Bench, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else, where"
    shutil.copytree(filled.store.root, elsewhere)
    assert values(filled, str(elsewhere)) == [1.0, 2.0, 3.0]
    assert values(filled, str(elsewhere / "20261101-000001-0001")) == [1.0]
    assert values(filled, str(next((elsewhere / "20261101-000001-0001").iterdir()))) == [1.0]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("latest~3", "expected 4 sessions with receipts"),
        ("2026", "several sessions start with"),
        ("2025", "found none of that name; the latest sessions are: .*0003"),
        ("no/such/folder", "found none of that name"),
        ("tag:nothing", "there is no receipt"),
        ("commit:bbbb", "there is no receipt"),
        ("latest@backend=trn2", "none of its 1 receipt is meant"),
        ("mlflow:abc", "no MLflow"),
    ],
)
def test_what_means_nothing_says_so(filled: Bench, asked: str, why: str) -> None:
    with pytest.raises(SelectionError, match=why):
        filled.selector().side(asked)


def test_an_empty_session_is_not_the_latest(filled: Bench) -> None:
    filled.session("9")
    assert values(filled, "latest") == [3.0]


def test_one_session_is_split_by_two_values_only(filled: Bench) -> None:
    session = filled.session("4")
    for c in (1, 2):
        filled.series(session, [float(c)], at=point(c))
    base, head = split_by(filled.selector().side("latest"), "concurrency")
    assert [len(side.readings) for side in (base, head)] == [1, 1]
    filled.series(session, [3.0], at=point(3))
    with pytest.raises(SelectionError, match=r"expected two values of concurrency, found 3 \(1, 2, 3\)"):
        split_by(filled.selector().side("latest"), "concurrency")


def test_points_without_the_axis_do_not_stand_in_the_way(filled: Bench) -> None:
    session = filled.session("4")
    for c in (1, 2):
        filled.series(session, [float(c)], at=point(c))
    bare = dataclasses.replace(point(9, lane="encoder"), params=FrozenMap({"batch": 4}), axes=("batch",))
    filled.series(session, [9.0], at=bare)
    halves = split_by(filled.selector().side("latest"), "concurrency")
    assert [[r.point.params["concurrency"] for r in side.readings] for side in halves] == [[1], [2]]


def test_having_an_axis_or_not_is_a_difference_too(filled: Bench) -> None:
    session = filled.session("4")
    filled.series(session, [1.0], at=point(1))
    filled.series(session, [2.0], at=point(2, dtype="bfloat16"))
    halves = split_by(filled.selector().side("latest"), "dtype")
    assert [side.label for side in halves] == ["latest@dtype=null", "latest@dtype=bfloat16"]


def test_an_axis_that_no_point_has_is_named_with_those_that_differ(filled: Bench) -> None:
    session = filled.session("4")
    for c in (1, 2):
        filled.series(session, [float(c)], at=point(c))
    asked = r"no point has 'concurency' \(did you mean 'concurrency'\?\); what differs within it is: concurrency$"
    with pytest.raises(SelectionError, match=asked):
        split_by(filled.selector().side("latest"), "concurency")


def test_what_was_taken_over_stands_for_itself(filled: Bench) -> None:
    for number, name in ((4, "20261101-000001-0001/serving.loop-cpu-c8--r1"), (5, "../../etc"), (6, "gone/away")):
        filled.put(filled.session(str(number)), outcome=Outcome.CACHED, reason=f"cached: {name}")
    assert values(filled, "20261101-000004") == [1.0]
    selector = filled.selector()
    assert selector.side("20261101-000005").readings[0].outcome is Outcome.CACHED
    assert selector.side("20261101-000006").readings[0].outcome is Outcome.CACHED
    assert len(selector.problems) == 2


def test_later_accuracy_records_settle_the_validity(bench: Bench) -> None:
    from dataclasses import replace

    from neuronbench.model import FrozenMap, Gate, ResourceRef

    session = bench.session("1")
    folder = bench.put(session, metric("latency", 1.0, stat="p50"))
    record = json.loads((folder / "record.json").read_text())
    made = bench.store.read(folder).record
    facts = FrozenMap(artifact={"sha256": {"model": "d"}, "key": "k"})
    resource = ResourceRef(id="c-1", kind="compiled_model", spec=FrozenMap(), facts=facts)
    from neuronbench.receipts import artifact_hash

    again = replace(made, session=bench.session("2"), resource=resource, _closed=False)
    again.gate(Gate(id="accuracy_evidence", passed=False, severity="provisional"))
    staging = bench.store.open(again)
    again.close(Outcome.OK, ended_at="2026-11-01T12:00:09+00:00", duration_s=1.0)
    bench.store.commit(again, staging)
    assert bench.selector().side("latest").readings[0].validity is Validity.PROVISIONAL
    for number, passed, validity in ((3, True, Validity.VALID), (4, False, Validity.INVALID)):
        part = {"artifact": artifact_hash(facts), "passed": passed}
        bench.put(bench.session(str(number)), workload={"accuracy": [part]}, at=point(lane="encoder"))
        assert bench.selector().side("20261101-000002").readings[0].validity is validity
    assert record["outcome"] == "ok"


# -- what cannot be read ----------------------------------------------------------------------------------------------


def damage(document: dict[str, Any], how: str) -> str | bytes:
    text = json.dumps(document)
    if how == "truncated":
        return text[:200]
    if how == "empty":
        return ""
    if how == "not text":
        return b"\xff\xfe\x00"
    if how == "deep":
        return "[" * 100_000
    if how == "list":
        return "[]"
    if how == "nan":
        return text.replace("1.0", "NaN")
    if how == "huge number":
        return text.replace('"value": 1.0', '"value": 1' + "0" * 400)
    path, value = {
        "newer": ("schema_version", 99),
        "open": ("outcome", None),
        "outcome": ("outcome", "splendid"),
        "metrics": ("metrics", [1]),
        "metric": ("metrics", {"latency_p50_ms": {"definition": "latency@1", "value": "x"}}),
        "other key": ("metrics", {"x": document["metrics"]["latency_p50_ms"]}),
        "null metric": ("metrics", {"latency_p50_ms": None}),
        "point": ("point", None),
        "params": ("point", {**document["point"], "params": None}),
        "gates": ("gates", [None]),
        "environment": ("environment", {"key": 3, "facts": {}}),
        "error": ("error", "boom"),
        "workload": ("workload", 7),
    }[how]
    return json.dumps({**document, path: value})


HOW = (
    "truncated", "empty", "not text", "deep", "list", "nan", "huge number", "newer", "open", "outcome", "metrics",
    "metric", "other key", "null metric", "point", "params", "gates", "environment", "error", "workload",
)  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_receipt_is_left_out_with_a_line(bench: Bench, how: str) -> None:
    bench.series(bench.session("1"), [1.0, 1.0])
    session = bench.series(bench.session("2"), [1.0, 1.0])
    broken = bench.store.root / session / "serving.loop-cpu-c8--r2" / "record.json"
    told = damage(json.loads(broken.read_text()), how)
    broken.write_bytes(told if isinstance(told, bytes) else told.encode())
    selector = bench.selector()
    base, head = selector.side("latest~1"), selector.side("latest")
    assert [len(side.readings) for side in (base, head)] == [2, 1]
    (problem,) = selector.problems
    assert problem.startswith(f"{broken}: ")
    assert "\n" not in problem
    assert compare(base, head).rows[0].head.n == 1


def test_hostile_names_stay_text(bench: Bench) -> None:
    from dataclasses import replace

    odd = replace(point(), id="<script>alert(1)</script>", benchmark="x::[red]y[/]", params=point().params)
    for name in ("1", "2"):
        bench.series(bench.session(name), [1.0, 1.1, 1.2], at=odd)
    base, head = bench.sides("latest~1", "latest")
    from neuronbench.report import comparison, comparison_files, tables

    found = compare(base, head)
    assert "<script>" not in comparison_files.markdown(found)
    assert "<script>" not in comparison_files.junit(found)
    text = tables.render(*(p for p in comparison.parts(found) if not isinstance(p, str)), width=200)
    assert "<script>alert(1)</script>" in text
