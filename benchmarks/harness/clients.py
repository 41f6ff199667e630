"""Runs of the clients against one truth server, and what the server says of the same requests."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from neuronbench.calibration.errors import compare
from neuronbench.calibration.run import body_models
from neuronbench.load.arrivals import Arrivals
from neuronbench.load.plan import make_plan
from neuronbench.load.run import drive, reduce_run
from neuronbench.load.workload import dataset, warm_up
from neuronbench.processes import spawn
from neuronbench.testing.truth_server import TruthServer

TTFT_MS, TPOT_MS = 50.0, 10.0
BARE = Path(__file__).with_name("bare_client.py")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One run of one client."""

    ttft: Sequence[float]
    """As the client has it, ms."""
    true: Sequence[float]
    """As the server has it: first token handed to the kernel − request received, ms."""
    user_us_per_token: float
    """User CPU of the client."""
    cpu_us_per_token: float
    """User and system."""
    start_cpu_ms: float | None = None
    """What it took to start, map the plan and warm up; in no figure per token."""
    errors: Sequence[float]
    """Client − server, request by request, ms."""
    lag: Sequence[float] = ()
    """Sent − due, ms."""
    rate: float | None = None
    """Requests per second that were sent."""

    def added(self, p: float) -> float:
        """Percentile of the client's TTFT − the same percentile of the server's."""
        return nearest_rank(self.ttft, p) - nearest_rank(self.true, p)


def nearest_rank(values: Sequence[float], p: float) -> float:
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * p) - 1, 0)]


def true_ttft(record: Mapping[str, Any]) -> float:
    return float(record["first_sent_ns"] - record["received_ns"]) / 1e6


def ours(server: TruthServer, folder: Path, arrivals: Arrivals, count: int, tokens: int) -> Turn:
    """Our client: plan, driver process, reduction."""
    server.reset()
    folder.mkdir(parents=True)
    rows = folder / "rows.jsonl"
    prompts = (
        {"model": f"truth:ttft={TTFT_MS:.6f}{k:08d}", "prompt": [1000 + k % 50_000] + [7] * 15} for k in range(count)
    )
    rows.write_text("".join(json.dumps(row) + "\n" for row in prompts), encoding="utf-8")
    plan = make_plan(
        folder / "plan", arrivals=arrivals, workload=dataset(rows, format="bodies", output_tokens=tokens),
        api="completions", model="truth", warmup=warm_up(17),
    )  # fmt: skip
    driven = drive(plan, base_url=server.url, out=folder / "out", spawn=spawn, deadline_s=120)
    assert driven.status == "ok", driven.message
    reduction = reduce_run(plan, folder / "out", drive=driven)
    truth = server.truth()["requests"]
    errors = compare(folder / "out", body_models(plan.folder), truth)
    assert errors.failed == 0
    sent = {record["model"]: true_ttft(record) for record in truth if record["first_sent_ns"]}
    import pyarrow.parquet as pq

    table = pq.read_table(reduction.table, columns=["body", "in_window", "ttft_ms", "send_lag_ms"]).to_pylist()
    names = body_models(plan.folder)
    inside = [row for row in table if row["in_window"]]
    rate, cpu = reduction["output_throughput_tok_s"], reduction["client_cpu_pct"]
    assert rate is not None
    assert cpu is not None
    edges = {event["name"]: event for event in _edges(folder / "out")}
    opened, closed = edges["open"], edges["close"]
    user = (closed["user_ns"] - opened["user_ns"]) / (closed["cpu_ns"] - opened["cpu_ns"])
    return Turn(
        ttft=[row["ttft_ms"] for row in inside],
        true=[sent[names[row["body"]]] for row in inside],
        user_us_per_token=1e4 * cpu / rate * user,
        cpu_us_per_token=1e4 * cpu / rate,
        start_cpu_ms=edges["ramp"]["cpu_ns"] / 1e6,
        errors=[float(error) for error in errors.ttft],
        lag=[row["send_lag_ms"] for row in inside],
        rate=reduction["achieved_rate_req_s"],
    )


def _edges(out: Path) -> Iterator[dict[str, Any]]:
    with (out / "events-0.jsonl").open(encoding="utf-8") as file:
        yield from (event for event in map(json.loads, file) if event["event"] == "edge")


def bare(server: TruthServer, *, streams: int, requests: int, tokens: int, rate: float | None = None) -> Turn:
    """The bare client, in a process of its own too."""
    server.reset()
    options: dict[str, Any] = {
        "streams": streams, "requests": requests, "tokens": tokens, "model": f"truth:ttft={TTFT_MS:.6f}"
    }  # fmt: skip
    if rate:
        options["rate"] = rate
    parts = urlsplit(server.url)
    done = subprocess.run(
        [sys.executable, str(BARE), str(parts.hostname), str(parts.port), json.dumps(options)],
        capture_output=True, text=True, timeout=120, check=True, env=dict(os.environ),
    )  # fmt: skip
    found = json.loads(done.stdout)
    records = server.truth(chunks=False)["requests"]
    truth = {record["model"]: true_ttft(record) for record in records if record["first_sent_ns"]}
    true = [truth[name] for name in found["names"]]
    span = (max(found["sent_ns"]) - min(found["sent_ns"])) / 1e9
    return Turn(
        ttft=found["ttft_ms"],
        true=true,
        user_us_per_token=1e6 * found["user_s"] / (requests * tokens),
        cpu_us_per_token=1e6 * (found["user_s"] + found["system_s"]) / (requests * tokens),
        errors=[mine - theirs for mine, theirs in zip(found["ttft_ms"], true, strict=True)],
        lag=found["lag_ms"],
        rate=(requests - 1) / span if span else None,
    )
