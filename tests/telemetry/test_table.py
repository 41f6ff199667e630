"""What a window of samples says, and what it refuses to say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from neuronbench.telemetry.table import Delta, SamplerErrors, Telemetry

S = 1_000_000_000
WALL = 1_700_000_000 * S


def telemetry(**series: list[float | None]) -> Telemetry:
    """Samples at 0, 1, 2, ... seconds; `a_b` is series b of sampler a."""
    result = Telemetry()
    for name, values in series.items():
        sampler, _, rest = name.partition("_")
        for second, value in enumerate(values):
            result.add(WALL + second * S, second * S, sampler, {rest: value})
    return result


def test_figures_of_a_window() -> None:
    data = telemetry(server_cpu=[9.0, 1.0, None, 3.0, 5.0, 100.0])
    window = data.window(1 * S, 4 * S)
    assert window.values("server/cpu") == [1.0, 3.0, 5.0]
    assert (window.n("server/cpu"), window.mean("server/cpu")) == (3, 3.0)
    assert (window.min("server/cpu"), window.max("server/cpu"), window.p95("server/cpu")) == (1.0, 5.0, 5.0)
    assert data.series() == ["server/cpu"]
    for nothing in (window.mean("server/none"), data.window(10 * S, 11 * S).max("server/cpu")):
        assert nothing is None


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (19, 19), (20, 19), (21, 20), (40, 38), (100, 95), (101, 96)])
def test_p95_is_the_nearest_rank(n: int, rank: int) -> None:
    data = telemetry(a_b=[float(n - i) for i in range(n)])
    assert data.window(0, n * S).p95("a/b") == rank


def test_counter_delta_takes_the_nearest_samples_on_either_side() -> None:
    data = telemetry(metrics_c=[0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0])
    delta = data.counter_delta("metrics/c", 1 * S + S // 4, 6 * S - S // 4)
    assert delta == Delta(value=310.0, start_off_ns=-S // 4, end_off_ns=S // 4)
    delta = data.counter_delta("metrics/c", 2 * S - S // 4, 5 * S + S // 4)
    assert delta == Delta(value=140.0, start_off_ns=S // 4, end_off_ns=-S // 4)
    assert data.window(1 * S, 7 * S).counter_delta("metrics/c") == Delta(value=630.0)
    assert data.first_last_delta("metrics/c") == Delta(value=640.0)


def test_a_counter_that_did_not_move_is_zero_and_one_that_is_absent_is_not() -> None:
    data = telemetry(metrics_c=[5.0] * 4)
    assert data.counter_delta("metrics/c", 0, 3 * S).value == 0.0
    assert data.counter_delta("metrics/d", 0, 3 * S) == Delta(value=None, note="not reported")
    assert data.first_last_delta("metrics/d") == Delta(value=None, note="not reported")


def test_a_reset_has_no_delta() -> None:
    data = telemetry(metrics_c=[5.0, 50.0, 3.0, 400.0, 500.0])
    assert "reset" in data.counter_delta("metrics/c", 0, 3 * S).note
    assert data.counter_delta("metrics/c", 0, 3 * S).value is None
    assert data.first_last_delta("metrics/c").value is None
    assert data.counter_delta("metrics/c", 2 * S, 4 * S).value == 497.0  # after it all is well


def test_a_reset_hidden_by_failed_samples() -> None:
    data = telemetry(metrics_c=[5.0, None, None, 3.0])
    assert "reset" in data.first_last_delta("metrics/c").note


def test_samples_far_from_an_edge_say_nothing() -> None:
    data = telemetry(metrics_c=[1.0, 2.0, 3.0, None, None, None, None, None])
    delta = data.counter_delta("metrics/c", 0, 7 * S)
    assert (delta.value, delta.end_off_ns) == (None, -5 * S)
    assert "within 1.75 s of the window's end" in delta.note
    late = telemetry(metrics_c=[None, None, None, 4.0, 5.0, 6.0])
    assert "window's start" in late.counter_delta("metrics/c", 0, 5 * S).note
    assert "no two samples" in telemetry(metrics_c=[1.0]).counter_delta("metrics/c", 0, S).note
    assert "no two samples" in telemetry(metrics_c=[1.0]).first_last_delta("metrics/c").note


def test_a_counter_that_appears_late_has_no_known_start() -> None:
    data = telemetry(metrics_other=[1.0] * 5)
    for second in (3, 4, 5):
        data.add(0, second * S, "metrics", {"late": 100.0 + second})
    assert "no known start" in data.first_last_delta("metrics/late").note
    assert data.counter_delta("metrics/late", 4 * S, 5 * S).value == 1.0


def test_parquet_and_back(tmp_path: Path) -> None:
    data = telemetry(server_cpu=[1.5, None], metrics_c=[7.0])
    data.add(WALL + 1, 2 * S, "metrics", {'n{a="x/y"}': math.inf})
    path = tmp_path / "telemetry.parquet"
    data.write(path)
    assert data.table == path
    table = pq.read_table(path)
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("utc", "timestamp[ns, tz=UTC]"),
        ("mono_ns", "int64"),
        ("sampler", "string"),
        ("series", "string"),
        ("value", "double"),
    ]
    assert table["value"].to_pylist() == [1.5, None, 7.0, math.inf]
    assert table["series"].to_pylist() == ["cpu", "cpu", "c", 'n{a="x/y"}']
    assert table["utc"].cast("int64").to_pylist() == [WALL, WALL + S, WALL, WALL + 1]
    again = Telemetry.read(path)
    assert len(again) == 4
    assert again.series() == data.series()
    assert again.get("server/cpu") == data.get("server/cpu")


def test_an_empty_table(tmp_path: Path) -> None:
    data = Telemetry()
    data.write(tmp_path / "t.parquet")
    assert len(Telemetry.read(tmp_path / "t.parquet")) == 0


def test_spill_of_a_killed_process(tmp_path: Path) -> None:
    rows = [
        [WALL, 0, "server", {"cpu": 1}],
        {"error": "OSError: first", "sampler": "metrics"},
        [WALL, S, "telemetry", {"errors/metrics": 2}],
        {"error": "OSError: second", "sampler": "metrics"},
        {"error": "could not be made", "sampler": "other"},
    ]
    path = tmp_path / "spill"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '[170000, 12, "serv')
    data, end = Telemetry.read_spill(path)
    assert end == ""
    assert len(data) == 2
    assert data.errors == {
        "metrics": SamplerErrors(count=2, last="OSError: second"),
        "other": SamplerErrors(count=1, last="could not be made"),
    }
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"end": "SIGTERM"}]))
    assert Telemetry.read_spill(path)[1] == "SIGTERM"
