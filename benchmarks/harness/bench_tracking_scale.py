"""Boxes that push to one team's server at once: how fast it goes, and that nothing is lost or made twice.

How many is chosen by `NEURONBENCH_TRACKING=BOXESxPOINTS`: `quick`, the default, is 10x5; `full` is 100x1000, which is
a hundred thousand points and many hours of a small machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SIZES = {"quick": "10x5", "full": "100x1000"}


@pytest.mark.timeout(72 * 3600)
def bench_tracking_scale(board, tmp_path: Path) -> None:
    """Every box a process of its own; PostgreSQL, S3 by moto and the server are on this machine, too."""
    from neuronbench.testing.tracking.simulation import Plan, percentile, simulate
    from neuronbench.testing.tracking.team import NEEDS, team_server

    for module in NEEDS:
        pytest.importorskip(module, reason=f"{module} is not installed; `make harness` installs it")
    asked = os.environ.get("NEURONBENCH_TRACKING", "quick")
    boxes, points = map(int, SIZES.get(asked, asked).split("x"))
    cpus = os.cpu_count() or 1
    with team_server(tmp_path, workers=cpus) as team:
        found = simulate(team, Plan(boxes=boxes, points=points, requests_every=50), tmp_path)
    assert found.ok, [*found.failures, *found.problems, *found.audit.problems][:20]
    size = f"{boxes} boxes x {points} points at once"
    times = sorted(found.point_s)
    cpu_s = found.server_cpu_s + found.database_cpu_s + found.s3_cpu_s
    board.report(
        what="MLflow, a team's server", unit="points/s", value=found.points / found.wall_s,
        note=f"{size}, boxes and server on {cpus} cores; none lost, none doubled, by SQL and S3",
    )  # fmt: skip
    board.report(
        what="MLflow, a point as its box sees it", unit="s", value=percentile(times, 50),
        note=f"{size}; p99 {percentile(times, 99):.1f} s",
    )  # fmt: skip
    board.report(
        what="MLflow, CPU of the server for a point", unit="ms", value=1000 * cpu_s / found.points,
        note=f"mlflow {found.server_cpu_s:.0f} s, PostgreSQL {found.database_cpu_s:.0f} s, S3 {found.s3_cpu_s:.0f} s",
    )  # fmt: skip
    board.report(
        what="MLflow, HTTP requests of a point", unit="",
        value=sum(found.requests.values()) / found.points, budget=12.0,
        note=f"with those of sessions; {found.retries} tried again",
    )  # fmt: skip
    board.report(
        what="MLflow, growth of a pusher", unit="MiB", value=found.rss_late_mib - found.rss_early_mib, budget=100.0,
        note=f"from a tenth of its points to its end, at {found.rss_late_mib:.0f} MiB",
    )  # fmt: skip
