"""The data model: canonical JSON, fingerprints, frozen values, and records that close once."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronbench.definitions import DEFINITIONS, metric
from neuronbench.model import (
    SCHEMA_VERSION,
    Failure,
    Frozen,
    FrozenMap,
    Gate,
    Metric,
    Outcome,
    Point,
    Record,
    ResourceSpec,
    Validity,
    canonical_json,
    closest,
    fingerprint,
    jsonable,
    slug,
    unit_slug,
)

MODEST = settings(max_examples=40, deadline=None)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
MAPPINGS = st.dictionaries(st.text(), VALUES, max_size=5)


def point(**changes: Any) -> Point:
    base = Point(
        benchmark="serving/bench_x.py::bench_x",
        lane="serving",
        backend="cpu",
        params=FrozenMap(concurrency=4, model="m"),
        axes=("concurrency",),
        source_hash="abc",
        id="serving.x[c4]",
    )
    return replace(base, **changes)


def shuffled(value: Any, data: st.DataObject) -> Any:
    """The same data with every dictionary built in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], data) for key in data.draw(st.permutations(list(value)))}
    if isinstance(value, list):
        return [shuffled(item, data) for item in value]
    return value


# -- canonical JSON ---------------------------------------------------------------------------------------------------


@MODEST
@given(VALUES)
def test_canonical_json_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@MODEST
@given(MAPPINGS, st.data())
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, Any], data: st.DataObject) -> None:
    again = shuffled(value, data)
    assert canonical_json(again) == canonical_json(value)
    assert fingerprint(again) == fingerprint(value)


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    YES = "yes"


@dataclass(frozen=True)
class Pair:
    left: int
    right: tuple[str, ...]


class Scalar:
    """As numpy's: not iterable, with `item()`."""

    def item(self) -> float:
        return 2.5


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Path("a/b"), "a/b"),
        (Colour.RED, "red"),
        (Word.YES, "yes"),
        (Pair(1, ("x",)), {"left": 1, "right": ["x"]}),
        ((1, 2), [1, 2]),
        (range(2), [0, 1]),
        (FrozenMap(a=[1]), {"a": [1]}),
        (Scalar(), 2.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_have_a_plain_form(value: object, plain: object) -> None:
    found = jsonable(value)
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (math.nan, ValueError, "a missing value is None"),
        ([math.inf], ValueError, "a missing value is None"),
        ({1: 2}, TypeError, r"JSON keys are strings; found 1 \(int\)"),
        ({"a", "b"}, TypeError, "use a sorted list"),
        (object(), TypeError, "object is not JSON-serialisable"),
    ],
    ids=["nan", "infinity", "key", "set", "object"],
)
def test_values_that_have_none_are_refused(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        canonical_json(value)


def test_a_fingerprint_is_hexadecimal_and_does_not_change_between_releases() -> None:
    assert fingerprint({"b": [1, 2.5, None, True], "a": "ü"}) == fingerprint({"a": "ü", "b": (1, 2.5, None, True)})
    assert fingerprint({"a": 1}) == "1f8c00645b7df6ce"
    assert len(fingerprint({}, digest_bytes=16)) == 32


# -- frozen maps ------------------------------------------------------------------------------------------------------


@MODEST
@given(MAPPINGS, st.data())
def test_equal_maps_have_equal_hashes(value: dict[str, Any], data: st.DataObject) -> None:
    one, other = FrozenMap(value), FrozenMap(shuffled(value, data))
    assert one == other
    assert hash(one) == hash(other)
    assert one == value
    assert dict(one) == value
    assert FrozenMap(one) == one


@MODEST
@given(MAPPINGS, MAPPINGS)
def test_maps_are_equal_exactly_when_their_canonical_json_is(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (FrozenMap(one) == FrozenMap(other)) == (canonical_json(one) == canonical_json(other))


def test_what_python_calls_equal_is_not_the_same_parameter() -> None:
    assert FrozenMap(a=1) != FrozenMap(a=True)
    assert FrozenMap(a=1) != {"a": 1.0}
    assert len({FrozenMap(a=1), FrozenMap(a=1.0), FrozenMap(a=True)}) == 3
    assert FrozenMap(a=1) != {"a": object()}
    assert FrozenMap(a=1) != "a"


def test_a_map_does_not_follow_what_it_was_made_from() -> None:
    source: dict[str, Any] = {"a": [1], "b": {"c": 2}}
    frozen = FrozenMap(source, d=3)
    before = hash(frozen)
    source["a"].append(2)
    source["b"]["c"] = 9
    assert frozen == {"a": [1], "b": {"c": 2}, "d": 3}
    assert hash(frozen) == before
    with pytest.raises(TypeError):
        frozen["a"] = 1  # type: ignore[index]


# -- names ------------------------------------------------------------------------------------------------------------


@MODEST
@given(st.text())
def test_a_slug_is_a_safe_file_name(text: str) -> None:
    name = slug(text)
    assert 1 <= len(name) <= 120
    assert name not in (".", "..")
    assert not set(name) & set('/\\:*?"<>| \n\0')
    assert slug(name) == name


def test_long_names_stay_apart() -> None:
    one, other = slug("a" * 500 + "1"), slug("a" * 500 + "2")
    assert one != other
    assert len(one) == len(other) == 120


@pytest.mark.parametrize(
    ("unit", "name"),
    [("tok/s", "tok_s"), ("%", "pct"), ("ms", "ms"), ("MiB", "MiB"), ("USD", "usd"), ("a/b c", "a_b_c"), ("", "")],
)
def test_units_in_names(unit: str, name: str) -> None:
    assert unit_slug(unit) == name


def test_closest() -> None:
    assert closest("concurency", ["concurrency", "model"]) == " (did you mean 'concurrency'?)"
    assert closest("zzz", ["concurrency"]) == ""
    assert closest("x", []) == ""


# -- points and specs -------------------------------------------------------------------------------------------------


def test_a_points_identity_is_what_is_measured_and_not_its_name() -> None:
    same = point(id="renamed", axes=("model",), params=FrozenMap(model="m", concurrency=4))
    assert same.fingerprint == point().fingerprint
    others = [
        point(backend="inf2"),
        point(lane="other"),
        point(benchmark="y"),
        point(source_hash="def"),
        point(params=FrozenMap(concurrency=8, model="m")),
    ]
    assert len({other.fingerprint for other in [point(), *others]}) == 6


def test_parameters_of_a_point() -> None:
    assert point()["concurrency"] == 4
    assert point().get("absent", 7) == 7
    with pytest.raises(KeyError, match=r"no parameter 'absent'; it has: concurrency, model"):
        point()["absent"]


@MODEST
@given(MAPPINGS)
def test_a_point_survives_json(params: dict[str, Any]) -> None:
    before = point(params=FrozenMap(params))
    after = Point.from_json(json.loads(json.dumps(before.to_json())))
    assert after == before
    assert after.fingerprint == before.fingerprint


def test_equal_specs_share_one_key() -> None:
    def spec(**settings: Any) -> ResourceSpec:
        return ResourceSpec(kind="endpoint", backend="cpu", provider="endpoint/vllm", settings=FrozenMap(settings))

    assert spec(a=1, b=2) == spec(b=2, a=1)
    assert spec(a=1, b=2).key == spec(b=2, a=1).key
    assert spec(a=1).key != spec(a=2).key
    assert spec(a=1).key != replace(spec(a=1), cores=2).key
    assert spec(a=1).id == f"endpoint-{spec(a=1).key[:8]}"


# -- metrics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "key", "path"),
    [
        (metric("ttft", 1.0, stat="p50"), "ttft_p50_ms", "ttft/p50_ms"),
        (metric("output_throughput", 1.0), "output_throughput_tok_s", "output_throughput/tok_s"),
        (metric("server_cpu", 1.0, stat="mean"), "server_cpu_mean_pct", "server_cpu/mean_pct"),
        (metric("error_rate", 0.0), "error_rate_share", "error_rate/share"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_of_metrics(found: Metric, key: str, path: str) -> None:
    assert found.key == key
    assert found.path == path
    assert Metric.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_missing_value_is_null_and_stays_so() -> None:
    missing = metric("tpot", None, stat="p99", n=12, note="needs 100 requests")
    written = json.loads(json.dumps(missing.to_json()))
    assert written["value"] is None
    assert written["definition"] == "tpot@1"
    assert Metric.from_json(written) == missing
    with pytest.raises(ValueError, match="not a JSON number"):
        metric("tpot", math.nan).to_json()


def test_a_number_without_a_definition_is_not_recorded() -> None:
    with pytest.raises(KeyError):
        metric("speed", 1.0)
    assert all(key == definition.id for key, definition in DEFINITIONS.items())
    with pytest.raises(TypeError):
        DEFINITIONS["mine"] = DEFINITIONS["ttft"]  # type: ignore[index]


def test_definitions_differ_and_say_something() -> None:
    texts = [definition.text for definition in DEFINITIONS.values()]
    assert len(set(texts)) == len(texts)
    assert all(len(text) > 10 for text in texts)


# -- records ----------------------------------------------------------------------------------------------------------


def record(**fields: Any) -> Record:
    return Record(session="20261130-120000-ab12", point=point(), **fields)


def test_a_record_closes_once_and_is_then_read_only() -> None:
    open_record = record()
    open_record.add(metric("ttft", 1.0, stat="p50"))
    open_record.close(Outcome.OK, ended_at="2026-11-30T12:00:01.000000+00:00", duration_s=1.0)
    assert open_record.closed
    attempts: list[Any] = [
        lambda: open_record.add(metric("tpot", 1.0)),
        lambda: open_record.gate(Gate(id="g", passed=True)),
        lambda: open_record.close(Outcome.FAILED, ended_at="", duration_s=None),
    ]
    for attempt in attempts:
        with pytest.raises(Frozen, match="is closed"):
            attempt()
    assert open_record.outcome is Outcome.OK


def test_a_metric_is_never_overwritten() -> None:
    open_record = record()
    open_record.add(metric("ttft", 1.0, stat="p50"), metric("ttft", 2.0, stat="p99"))
    with pytest.raises(Frozen, match="'ttft_p50_ms' is already recorded"):
        open_record.add(metric("ttft", 3.0, stat="p50"))
    assert open_record.metrics["ttft_p50_ms"].value == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_no_number_is_refused(value: float) -> None:
    open_record = record()
    with pytest.raises(ValueError, match="not a JSON number"):
        open_record.add(metric("ttft", value))
    assert open_record.metrics == {}


@pytest.mark.parametrize(
    ("gates", "validity"),
    [
        ([], Validity.VALID),
        ([Gate(id="a", passed=True)], Validity.VALID),
        ([Gate(id="a", passed=None)], Validity.VALID),
        ([Gate(id="a", passed=False, severity="info")], Validity.VALID),
        ([Gate(id="a", passed=False, severity="provisional")], Validity.PROVISIONAL),
        ([Gate(id="a", passed=False, severity="provisional"), Gate(id="b", passed=False)], Validity.INVALID),
    ],
    ids=["none", "passed", "not evaluable", "info", "provisional", "invalid"],
)
def test_the_worst_gate_decides(gates: list[Gate], validity: Validity) -> None:
    open_record = record()
    open_record.gate(*gates)
    assert open_record.validity is validity


def test_names_of_receipts() -> None:
    assert record(repeat=2).receipt_name == "serving.x-c4--r2"
    assert record(name="boot-x").receipt_id == "20261130-120000-ab12/boot-x"


def test_a_records_json_has_every_top_level_key() -> None:
    failed = record(error=Failure(kind="host_oom", phase="window", message="killed"))
    failed.close(Outcome.ERROR, ended_at="", duration_s=None)
    document = json.loads(json.dumps(failed.to_json(), allow_nan=False))
    required = "schema_version point outcome validity gates metrics resource environment error"
    assert set(required.split()) <= document.keys()
    assert document["schema_version"] == SCHEMA_VERSION
    assert (document["outcome"], document["validity"]) == ("error", "invalid")
    assert document["error"]["kind"] == "host_oom"
    assert document["duration_s"] is None
