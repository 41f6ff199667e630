"""The client's own error: measured for real, kept, found again, cited."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench import cli, config
from neuronbench.calibration import Calibration, CalibrationPoint, Spread, calibrate, load, nearest, path_of, save
from neuronbench.calibration.cite import cited, client_error
from neuronbench.calibration.errors import compare, spread
from neuronbench.calibration.run import PRESETS, CalibrationError, Load, Preset, grid, median_of
from neuronbench.config import Settings
from neuronbench.definitions import metric
from neuronbench.load.arrivals import closed_loop
from neuronbench.load.plan import make_plan
from neuronbench.load.run import drive
from neuronbench.load.workload import synthetic
from neuronbench.processes import spawn
from neuronbench.protocols import Vocabulary
from neuronbench.testing.truth_server import TruthServer

SMALL = Preset(loads=(Load(streams=4, tokens_per_s=2000), Load(streams=16, tokens_per_s=4000)), seconds=0.1, runs=1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return config.load(tmp_path, environ={"XDG_CACHE_HOME": str(tmp_path / "cache")})


def point(streams: int, rate: float, p99: float | None = 1.0, **fields: Any) -> CalibrationPoint:
    errors = Spread(p50=0.1, p90=0.5, p99=p99, max=2.0, n=500)
    made = CalibrationPoint(
        streams=streams, tokens_per_s=rate, asked_tokens_per_s=rate, ttft_ms=errors, chunk_ms=errors, tpot_ms=errors,
        lag_p99_ms=0.4, cpu_us_per_token=5.0, server_late_p99_ms=0.2, runs=1, ttft_p99_range_ms=None, failed=0,
    )  # fmt: skip
    return dataclasses.replace(made, **fields)


def calibration(*points: CalibrationPoint) -> Calibration:
    return Calibration(
        host="ab", version="1", made_at="2026-11-30T12:00:00+00:00", preset="quick", points=points, facts={"a": None}
    )


# --------------------------------------------------------------------------------------------------------------------
# measured


def test_a_calibration_measures_saves_and_is_found_again(settings: Settings) -> None:
    said: list[str] = []
    made = calibrate(settings, SMALL, progress=said.append)
    assert [(p.streams, p.asked_tokens_per_s) for p in made.points] == [(4, 2000), (16, 4000)]
    for found in made.points:
        assert found.failed == 0
        assert found.ttft_ms.n >= 110
        assert found.chunk_ms.n >= 8 * found.ttft_ms.n
        assert found.ttft_ms.p50 is not None
        assert found.ttft_ms.p99 is not None
        assert found.chunk_ms.max is not None
        # The stamp inside a token and the client's own are of one clock, microseconds to milliseconds apart: an error
        # in the arithmetic (other clock, other request, seconds for nanoseconds) is off by orders of magnitude.
        assert 0 < found.ttft_ms.p50 < 20
        assert 0 < found.chunk_ms.max < 1000
        assert 0 < found.tokens_per_s < 1.5 * found.asked_tokens_per_s
        assert found.cpu_us_per_token is not None
    assert any("4 streams × 2000 tok/s" in line for line in said)
    assert load(settings) == made
    assert nearest(load(settings), 4, made.points[0].tokens_per_s) == made.points[0]
    assert [path.name for path in path_of(settings).parent.iterdir()] == [path_of(settings).name]


def test_what_a_slow_client_adds_is_seen(tmp_path: Path) -> None:
    """The same records, but the client's stamps are 7 ms late: the comparison says 7 ms."""
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        plan = make_plan(
            tmp_path / "plan", arrivals=closed_loop(1, requests=4), workload=synthetic(input_tokens=4, output_tokens=4),
            api="completions", model="truth", vocabulary=Vocabulary(size=1000),
        )  # fmt: skip
        drive(plan, base_url=server.url, out=tmp_path / "out", spawn=spawn, deadline_s=30)
        truth = server.truth()["requests"]
    # one stream: requests are told apart by their order, which is the order of the bodies
    names = [f"m{body}" for body in range(plan.warmup_count + plan.count)]
    for body, record in enumerate(truth):
        record["model"] = f"m{body}"
    assert plan.warmup_count + plan.count >= len(truth)
    true = compare(tmp_path / "out", names, truth)
    assert true.failed == 0
    assert len(true.ttft) >= 4
    for record in truth:
        record["sent_ns"] = [at - 7_000_000 for at in record["sent_ns"]]
    late = compare(tmp_path / "out", names, truth)
    assert late.ttft - true.ttft == pytest.approx(7)
    assert late.chunk - true.chunk == pytest.approx(7)
    assert late.tpot == pytest.approx(true.tpot)
    for record in truth:
        record["sent_ns"].pop()
    assert compare(tmp_path / "out", names, truth).failed == len(true.ttft)


def test_a_point_that_cannot_be_measured_leaves_the_old_calibration(settings: Settings) -> None:
    save(settings, calibration(point(4, 400)))

    def refuse(*args: Any, **kwargs: Any) -> Any:
        return spawn([sys.executable, "-c", "raise SystemExit(3)"], *args[1:], **kwargs)

    with pytest.raises(CalibrationError, match="4 streams × 2000 tok/s"):
        calibrate(settings, SMALL, spawn=refuse)
    assert load(settings) == calibration(point(4, 400))


def test_percentiles_are_of_absolute_errors_and_need_their_samples() -> None:
    found = spread(np.array([-3.0, 1.0, 2.0]))
    assert (found.p50, found.max, found.n) == (2.0, 3.0, 3)
    assert found.p99 is None
    assert spread(np.empty(0)) == Spread(p50=None, p90=None, p99=None, max=None, n=0)


def test_several_runs_give_the_median_and_the_range() -> None:
    made = median_of([point(8, 800, p99) for p99 in (3.0, 1.0, 2.0)])
    assert made.ttft_ms.p99 == 2.0
    assert made.ttft_p99_range_ms == (1.0, 3.0)
    assert made.runs == 3
    assert made.ttft_ms.n == 1500
    assert median_of([point(8, 800, failed=1), point(8, 800, failed=2)]).failed == 3


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_bounded(preset: str) -> None:
    chosen = PRESETS[preset]
    assert {1, 8, 64, 256, 1000} == {load.streams for load in chosen.loads}
    assert len(set(chosen.loads)) == len(chosen.loads)
    assert chosen.duration_s < (60 if preset == "quick" else 600)
    for asked in chosen.loads:
        assert asked.requests(chosen.seconds) >= 100
        assert asked.requests(chosen.seconds) >= asked.streams
        assert asked.tokens > 1


def test_a_grid_of_loads_stays_below_its_most() -> None:
    assert [(load.streams, load.tokens_per_s) for load in grid((2, 100), (10, 100), 500)] == [
        (2, 20), (2, 200), (100, 500),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# kept


def test_a_calibration_survives_its_file(settings: Settings) -> None:
    made = calibration(point(4, 400), point(8, 800, None, cpu_us_per_token=None, ttft_p99_range_ms=(1.0, 2.0)))
    path = save(settings, made)
    assert path == path_of(settings)
    assert path.is_relative_to(settings.cache_dir / "calibration")
    assert load(settings) == made


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema_version": 99}', '{"schema_version": 1, "points": [{}]}', "null"],
)
def test_an_unreadable_calibration_counts_as_none(settings: Settings, text: str) -> None:
    path = save(settings, calibration(point(4, 400)))
    path.write_text(text)
    assert load(settings) is None
    _, gate = client_error(settings, {})
    assert "not calibrated" in gate.message


# --------------------------------------------------------------------------------------------------------------------
# cited


@pytest.mark.parametrize(
    ("streams", "rate", "expected"),
    [
        (64, 6400, (64, 6400)),
        (60, 5000, (64, 6400)),
        (1, 10, (1, 100)),  # lighter than any: the lightest point's error bounds it
        (128, 6400, (64, 6400)),
        (129, 12_000, (256, 25_600)),  # more than twice the streams of 64
        (600, 30_000, None),
        (64, 60_000, None),
        (0, 100, None),
    ],
)
def test_the_nearest_point(streams: float, rate: float, expected: tuple[int, int] | None) -> None:
    made = calibration(point(1, 100), point(64, 6400), point(256, 25_600))
    found = nearest(made, streams, rate)
    assert (found and (found.streams, found.tokens_per_s)) == expected
    assert nearest(None, streams, rate) is None


def test_a_record_cites_the_nearest_point() -> None:
    made = calibration(point(64, 6400, 0.9))
    cite, gate = cited(made, streams=64, tokens_per_s=6000, ttft_ms=50)
    assert cite["text"] == "client TTFT error p99 0.90 ms at 64 streams × 6400 tok/s, calibrated 2026-11-30"
    assert cite["ttft_error_ms"]["p99"] == 0.9
    assert cite["load"] == {"streams": 64, "tokens_per_s": 6000}
    assert (gate.id, gate.severity, gate.passed, gate.observed, gate.limit) == ("client_error", "info", True, 0.9, 2.5)
    json.dumps(cite, allow_nan=False)
    _, gate = cited(made, streams=64, tokens_per_s=6000, ttft_ms=5)
    assert gate.passed is False
    assert gate.severity == "info"


def test_what_is_not_calibrated_is_said() -> None:
    cite, gate = cited(None, streams=64, tokens_per_s=6000, ttft_ms=50)
    assert cite["calibrated"] is False
    assert gate.message == "not calibrated: run `neuronbench calibrate`"
    assert gate.passed is None
    _, gate = cited(calibration(point(64, 6400)), streams=500, tokens_per_s=6000, ttft_ms=50)
    assert "up to 64 streams, 6400 tok/s" in gate.message
    _, gate = cited(calibration(point(64, 6400)), streams=64, tokens_per_s=None, ttft_ms=50)
    assert "not known" in gate.message


def test_the_metrics_of_a_window_are_the_load(settings: Settings) -> None:
    save(settings, calibration(point(64, 6400), point(1, 100, 0.2)))
    found = [metric("in_flight", 1.0), metric("output_throughput", 90.0), metric("ttft", 30.0, stat="p50")]
    cite, gate = client_error(settings, {each.key: each for each in found})
    assert cite["at"] == {"streams": 1, "tokens_per_s": 100}
    assert gate.observed == 0.2


# --------------------------------------------------------------------------------------------------------------------
# the command


def test_the_command_shows_what_is_there(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(settings.cache_dir.parent))
    monkeypatch.delenv("NEURONBENCH_CACHE_DIR", raising=False)
    root = ["--root", str(settings.root), "calibrate"]
    assert cli.main([*root, "--show"]) == 1
    assert "run `neuronbench calibrate`" in capsys.readouterr().err
    assert cli.main([*root, "--preset", "quikc"]) == 2
    save(settings, calibration(point(64, 6400, 0.9, ttft_p99_range_ms=(0.5, 1.5), failed=3)))
    assert cli.main([*root, "--show"]) == 0
    out = capsys.readouterr().out
    assert "0.900 (0.500–1.5)" in out
    assert "3 FAILED" in out
    assert cli.main([*root, "--show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"][0]["streams"] == 64


def test_the_command_measures_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The quick preset with its loads cut down, through the real entry point."""
    code = (
        "import sys; from neuronbench.calibration import run\n"
        "run.PRESETS['quick'] = run.Preset(loads=(run.Load(streams=4, tokens_per_s=2000),), seconds=0.1, runs=1)\n"
        "from neuronbench.cli import main\n"
        f"sys.exit(main(['--root', {str(tmp_path)!r}, 'calibrate']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90,
        env={**os.environ, "NEURONBENCH_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TTFT error" in done.stdout
    assert "1 loads" in done.stderr
    (kept,) = (tmp_path / "cache" / "calibration").glob("*.json")
    assert str(kept) in done.stdout
