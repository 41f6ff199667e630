"""Receipts to report on: a project with everything a report can meet, made through the store."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from synthetic_receipts import MONO_NS, UTC_NS, requests

from neuronbench import environment
from neuronbench.compare import BOOTS, Selector
from neuronbench.definitions import metric
from neuronbench.model import (
    Environment,
    Failure,
    FrozenMap,
    Gate,
    Metric,
    Outcome,
    Point,
    Provenance,
    Record,
    ResourceRef,
)
from neuronbench.receipts import ReceiptStore
from neuronbench.report.page.gather import Content, Source, keeper
from neuronbench.report.page.rows import rows_of
from neuronbench.training.steps import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
FACTS = {"backend.name": "cpu", "host.arch": "x86_64", "host.cores": 2, "host.id": "h1", "git.commit": "a" * 40}
SERVING = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "output_throughput_tok_s", "error_rate_share")
HEADLINES: Mapping[str, Sequence[str]] = {"serving": SERVING, "lora_sft": ("train_throughput_tok_s", "loss_last")}
_SECONDS = itertools.count()


def point(lane: str = "serving", bench: str = "closed_loop", backend: str = "cpu", **params: Any) -> Point:
    axes = tuple(name for name in params if name in ("concurrency", "batch_size"))
    words = "-".join(f"{name[0]}{params[name]}" for name in axes)
    return Point(
        benchmark=f"benchmarks/{lane}/bench_{bench}.py::bench_{bench}", lane=lane, backend=backend,
        params=FrozenMap(params), axes=axes, source_hash="abc", id=f"{lane}.{bench}-{backend}-{words}".rstrip("-"),
    )  # fmt: skip


def serving(rate: float = 100.0, ttft: float = 50.0, tpot: float = 10.0, in_flight: float = 4.0) -> list[Metric]:
    return [
        metric("ttft", ttft, stat="p50", n=400, low=ttft - 1, high=ttft + 1, confidence=0.95),
        metric("ttft", None, stat="p99", n=90, note="p99 needs 100 observations, found 90"),
        metric("tpot", tpot, stat="p50", n=400),
        metric("e2e", ttft + 31 * tpot, stat="p50", n=400),
        metric("output_throughput", rate, n=12_800),
        metric("in_flight", in_flight, n=400),
        metric("error_rate", 0.0, n=400),
    ]


def steps(count: int = 40, *, bad: int = 0) -> pa.Table:
    """A run whose loss falls, and is not finite at step `bad`."""
    rows = [
        {
            "rank": 0, "step": step, "begin_ns": step * 10**7, "returned_ns": step * 10**7 + 10**5,
            "end_ns": step * 10**7 + 9 * 10**6, "wall_ns": 10**7, "loss": math.nan if step == bad else 3 / step,
            "grad_norm": 1.0, "learning_rate": 1e-4, "tokens": 512, "padding_tokens": 0, "sequences": 1,
            "micro_batches": 1,
        }
        for step in range(1, count + 1)
    ]  # fmt: skip
    return pa.table({name: [row[name] for row in rows] for name in COLUMNS})


def telemetry(seconds: float = 3.0) -> pa.Table:
    """Two series of a server, sampled twice a second on the clock of `requests`."""
    rows = [
        {"utc": UTC_NS, "mono_ns": MONO_NS + int(at * 5e8), "sampler": "server", "series": name, "value": value + at}
        for at in range(int(2 * seconds))
        for name, value in (("cpu_percent", 50.0), ("rss_bytes", 2.0**30))
    ]
    return pa.Table.from_pylist(rows)


class Project:
    """A project's folder with receipts in it, and the command run there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "neuronbench.toml").write_text("")
        self.store = ReceiptStore(root / "mlruns" / "receipts")
        self.session = self.begin(1)

    def begin(self, number: int) -> str:
        session = f"20261101-{number:06d}-{number:04x}"
        (self.store.root / session).mkdir(parents=True, exist_ok=True)
        return session

    def put(
        self,
        at: Point,
        *metrics: Metric,
        repeat: int = 1,
        outcome: Outcome = Outcome.OK,
        gates: Sequence[Gate] = (),
        facts: Mapping[str, Any] | None = None,
        resource: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        workload: Mapping[str, Any] | None = None,
        tables: Mapping[str, pa.Table] | None = None,
        files: Mapping[str, str] | None = None,
        session: str = "",
        **fields: Any,
    ) -> Path:
        known = FrozenMap({**FACTS, **(facts or {})})
        stamp = next(_SECONDS)
        made = Record(
            session=session or self.session, point=at, repeat=repeat,
            started_at=f"2026-11-01T{stamp // 3600:02d}:{stamp // 60 % 60:02d}:{stamp % 60:02d}.000000+00:00",
            environment=Environment(facts=known, key=environment.key_of(known)),
            workload={"digest": f"d{repeat}", **(workload or {})}, **fields,
        )  # fmt: skip
        made.resource = ResourceRef(
            id="endpoint-1", kind="endpoint", spec=FrozenMap({"model": "m", "dtype": "bfloat16", **(spec or {})}),
            facts=FrozenMap(resource or {}),
        )  # fmt: skip
        made.add(*metrics)
        made.gate(*gates)
        staging = self.store.open(made)
        for name, table in (tables or {}).items():
            pq.write_table(table, staging.folder / f"{name}.parquet")
            made.tables[name] = f"{name}.parquet"
        for name, text in (files or {}).items():
            (staging.folder / name).write_text(text)
            made.attachments.append(name)
        made.close(outcome, ended_at="2026-11-01T12:00:09.000000+00:00", duration_s=9.0)
        return self.store.commit(made, staging)

    def content(self, asked: str = "latest", base: Path | None = None) -> Content:
        """What the command makes a report from."""

        def headline(lane: str) -> Sequence[str]:
            return HEADLINES.get(lane, ())

        selector = Selector(store=self.store, kinds=BOOTS, keep=keeper(headline))
        side = selector.side(asked)
        return Content(
            label=asked,
            rows=rows_of(reading for reading in side.readings if reading.kind == "point"),
            boots=[reading for reading in side.readings if reading.kind != "point"],
            source=Source(store=self.store, base=base or self.root),
            headline=headline,
            left_out=selector.problems,
        )

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NEURONBENCH_")}
        env = {**inherited, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **environ}
        command = [sys.executable, "-m", "neuronbench", "--root", str(self.root), *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, cwd=self.root)
        assert "Traceback" not in done.stderr, done.stderr
        return done


def window() -> dict[str, Any]:
    return {"window": {"start_ns": MONO_NS + 3 * 10**8, "end_ns": MONO_NS + 29 * 10**8}}


HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=2">',
    "</script><script>window.hacked=3</script><!--",
    "$\\frac{ %{x} {{7*7}} `|` @everyone",
    "javascript:window.hacked=4",
)


def fill(project: Project) -> None:
    """Everything at once: each standing, repeats, tables, a boot, failures, hostile names wherever text goes."""
    bad = "".join(HOSTILE)
    for concurrency, rate, ttft in ((1, 80, 50), (4, 300, 55), (8, 500, 70), (16, 520, 190)):
        for repeat in (1, 2, 3):
            numbers = serving(rate + repeat, ttft + repeat, 9.0 + concurrency / 4)
            project.put(
                point(concurrency=concurrency, model=bad), *numbers, repeat=repeat, workload=window(),
                tables={"requests": requests(120, seed=concurrency * 10 + repeat), "telemetry": telemetry()},
            )  # fmt: skip
    late = Gate(id="host_contended", passed=False, observed=80.0, limit=25, severity="provisional", message=bad)
    lag = Gate(id="client_lag", passed=False, observed=31.5, limit=5.0, unit="ms", message=bad)
    project.put(point(concurrency=32), *serving(700), gates=[late])
    project.put(point(concurrency=64), *serving(9_999), gates=[lag])
    project.put(point(concurrency=2, backend="trn2"), *serving(8_888), provenance=Provenance.SIMULATED)
    params = FrozenMap(concurrency=3)
    theirs = Point(benchmark=f"imported/{bad}", lane="serving", backend="inf2", params=params, id="tool.x")
    project.put(theirs, *serving(7_777), provenance=Provenance.IMPORTED)
    error = Failure(
        kind="host_oom", phase="boot", message="m", causal_line=f"Killed {bad}", remedy=f"smaller {bad}",
        log="server.log",
    )  # fmt: skip
    project.put(
        point(concurrency=128), outcome=Outcome.ERROR, error=error, files={"server.log": bad},
    )  # fmt: skip
    project.put(point(concurrency=256), outcome=Outcome.SKIPPED, reason=f"no hardware {bad}")
    project.put(
        point(concurrency=1), metric("boot_time", 23.5), metric("boot_weights", 3.5), metric("boot_spawn", 20.0),
        kind="boot", name="boot-endpoint-1", spec={"served_model": bad},
    )  # fmt: skip
    for batch in (1, 2):
        project.put(
            point("lora_sft", "lora_sft", batch_size=batch), metric("train_throughput", 1000.0 * batch, n=39),
            metric("loss", 0.1, stat="last"), tables={"steps": steps(bad=7 if batch == 2 else 0)},
            facts={"host.note": bad},
        )  # fmt: skip
