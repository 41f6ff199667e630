"""`python -m neuronbench.testing.tracking`: the simulation, on this machine alone."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from neuronbench.commands.host import ProgressLine
from neuronbench.testing.tracking.simulation import Outcome, Plan, percentile, simulate
from neuronbench.testing.tracking.team import team_server


def main(words: list[str] | None = None) -> int:
    """Run it; 0 when nothing was lost, doubled or left open."""
    parser = argparse.ArgumentParser(
        prog="python -m neuronbench.testing.tracking",
        description="Boxes that push made-up receipts to one tracking server at once (MLflow with logins, PostgreSQL, "
        "S3 by moto), each a process with a data root of its own. At the end PostgreSQL and S3 are asked whether "
        "every receipt has exactly one run, whole. All of it runs on this machine and is removed afterwards.",
    )
    parser.add_argument("--boxes", type=int, default=10, help="boxes, all in flight at once (default: 10)")
    parser.add_argument("--points", type=int, default=20, help="points of each box, and a boot (default: 20)")
    parser.add_argument("--copies", type=int, default=1, help="boxes that hold the same receipts (default: 1)")
    parser.add_argument(
        "--requests-every", type=int, default=0, metavar="N",
        help="each N-th point has requests, figures and traces (default: none)",
    )  # fmt: skip
    parser.add_argument("--traces", type=int, default=3, help="traces of such a point (default: 3)")
    parser.add_argument("--flaky", type=float, default=0.0, metavar="SHARE", help="requests that fail (default: 0)")
    parser.add_argument(
        "--restart-after", type=int, default=0, metavar="N", help="kill and restart the server after N deliveries"
    )
    parser.add_argument(
        "--kill-after", type=int, default=0, metavar="N", help="kill each pusher after N deliveries, start another"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="of the server (default: CPUs)")
    parser.add_argument("--max-connections", type=int, default=100, help="of PostgreSQL (default: 100)")
    parser.add_argument("--direct", action="store_true", help="boxes write artifacts to S3 themselves")
    parser.add_argument("--out", type=Path, help="also write what was found to this file, as JSON")
    parser.add_argument("--folder", type=Path, help="where data roots and logs go (default: a temporary one)")
    asked = parser.parse_args(words)
    plan = Plan(
        boxes=asked.boxes, points=asked.points, requests_every=asked.requests_every, traces=asked.traces,
        copies=asked.copies, flaky=asked.flaky, restart_after=asked.restart_after,
        kill_after=asked.kill_after,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # with servers ended, nothing left
    folder = Path(tempfile.mkdtemp(prefix="nb-tracking-", dir=asked.folder))
    line = ProgressLine()
    line("starting PostgreSQL, S3 and the server")
    try:
        with team_server(
            folder, workers=asked.workers, max_connections=asked.max_connections, direct=asked.direct
        ) as team:
            outcome = simulate(team, plan, folder, say=line)
    finally:
        line.done()
        shutil.rmtree(folder, ignore_errors=True)
    print(told(outcome))
    if asked.out:
        facts = {
            "workers": asked.workers, "max_connections": asked.max_connections, "direct": asked.direct,
            "cpus": os.cpu_count(),
        }  # fmt: skip
        asked.out.write_text(json.dumps(outcome.to_json() | facts, indent=1), encoding="utf-8")
    return 0 if outcome.ok else 1


def told(outcome: Outcome) -> str:
    """What was found, in words and figures."""
    there, n = outcome.audit, max(1, outcome.points)
    times = sorted(outcome.point_s)
    p50, p99 = (percentile(times, share) or 0.0 for share in (50, 99))
    tries = sum(outcome.requests.values())
    rows = [
        ("receipts", f"{outcome.points} of {outcome.plan.boxes} boxes"),
        ("runs", f"{there.runs} and {there.parents} parents; {there.missing} missing, {there.doubled} too many, "
                 f"{there.open} open; {there.taken_back} were begun twice and taken back"),
        ("in PostgreSQL", f"{there.metrics} metrics, {there.params} params, {there.traces} traces, "
                          f"{there.database_bytes / n / 1024:.1f} KiB a point"),
        ("in S3", f"{there.objects} objects, {there.object_bytes / n / 1024:.1f} KiB a point"),
        ("wall", f"{outcome.wall_s:.1f} s, {n / outcome.wall_s:.2f} points/s"),
        ("a point, as its box sees it", f"p50 {p50:.2f} s, p99 {p99:.2f} s"),
        ("HTTP requests", f"{tries / n:.1f} a point, {outcome.retries} retries; "
                          + ", ".join(f"{what}: {count}" for what, count in outcome.requests.most_common())),
        ("CPU a point", f"server {1000 * outcome.server_cpu_s / n:.0f} ms, PostgreSQL "
                        f"{1000 * outcome.database_cpu_s / n:.0f} ms, S3 {1000 * outcome.s3_cpu_s / n:.0f} ms, "
                        f"boxes {1000 * outcome.boxes_cpu_s / n:.0f} ms"),
        ("memory of a box", f"{outcome.rss_early_mib:.0f} MiB after a tenth, "
                            f"{outcome.rss_late_mib:.0f} MiB at the end"),
    ]  # fmt: skip
    if outcome.proxy:
        rows.append(("proxy", ", ".join(f"{what}: {count}" for what, count in sorted(outcome.proxy.items()))))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {text}" for name, text in rows]
    lines += [f"PROBLEM {text}" for text in (*outcome.failures, *outcome.problems, *there.problems)]
    lines.append("nothing lost, nothing doubled" if outcome.ok else "NOT as it should be")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
