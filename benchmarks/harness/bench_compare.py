"""What comparing ten thousand receipts costs, from the command to the last line."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import orjson

from neuronbench import environment
from neuronbench.definitions import metric
from neuronbench.model import Environment, FrozenMap, Gate, Outcome, Point, Record, ResourceRef
from neuronbench.receipts.codec import decode_record

RECEIPTS, REPEATS, TURNS = 10_000, 5, 3
ROOT = Path(__file__).resolve().parents[2]
STATS = ("p50", "p90", "p99", "mean", "max", "ok_p50", "ok_p99")


def record(session: str, index: int, repeat: int, shift: float) -> Record:
    """A record with as much in it as one of a served model has: some 55 metrics, 20 gates, 60 facts; 20 KB."""
    point = Point(
        benchmark="benchmarks/serving/bench_loop.py::bench_loop", lane="serving", backend="cpu",
        params=FrozenMap({f"p{k}": k for k in range(10)} | {"concurrency": index}), axes=("concurrency",),
        source_hash="abc", id=f"serving.loop-cpu-c{index}",
    )  # fmt: skip
    facts = FrozenMap(
        {f"stack.package{k}": "1.2.3" for k in range(15)}
        | {f"harness.package{k}": "1.2.3" for k in range(15)}
        | {f"host.fact{k}": k for k in range(25)}
        | {"backend.name": "cpu", "host.arch": "x86_64", "host.cores": 2, "git.commit": session.ljust(40, "0")}
    )
    made = Record(
        session=session, point=point, repeat=repeat, started_at="2026-11-30T12:00:00.000000+00:00",
        environment=Environment(facts=facts, key=environment.key_of(facts)),
    )  # fmt: skip
    wobble = shift * (1 + 0.01 * ((index * 7 + repeat * 13) % 5 - 2))
    for id_ in ("ttft", "ttft_due", "tpot", "icl", "e2e", "e2e_due", "max_stall"):
        made.add(*(metric(id_, wobble * (10 + k), stat=stat, n=500) for k, stat in enumerate(STATS)))
    made.add(metric("output_throughput", 800 / wobble, n=9000), metric("request_throughput", 20 / wobble, n=500))
    made.add(metric("error_rate", 0.0, n=500))
    made.gate(*(Gate(id=f"gate{k}", passed=True, observed=k, limit=k, message="as it should be") for k in range(20)))
    made.resource = ResourceRef(
        id="endpoint-1", kind="endpoint", spec=FrozenMap(model="m", dtype="bfloat16", engine_args={}),
        facts=FrozenMap(argv=[f"--argument-{k}=value" for k in range(40)], model={"weights_digest": "d" * 64}),
    )  # fmt: skip
    made.workload = {
        "digest": f"d{index}-{repeat}", "api": "completions", "arrivals": {"kind": "closed", "concurrency": index},
        "workload": {"kind": "synthetic", "input_tokens": 64, "output_tokens": 32, "seed": 0},
        "window": {"start_ns": 1, "end_ns": 2, "seconds": 12.0, "in_window": 500},
    }  # fmt: skip
    made.close(Outcome.OK, ended_at="2026-11-30T12:00:20.000000+00:00", duration_s=20.0)
    return made


def write(root: Path) -> int:
    """Two sessions with half of the receipts each; returns the bytes of one. Written without syncing each: a disk's
    patience is not what is measured here."""
    size = 0
    for name, shift in (("20261130-000001-0001", 1.0), ("20261130-000002-0002", 1.02)):
        for number in range(RECEIPTS // 2):
            index, repeat = divmod(number, REPEATS)
            made = record(name, index, repeat + 1, shift)
            folder = root / "mlruns" / "receipts" / name / made.receipt_name
            folder.mkdir(parents=True)
            document = made.to_json()
            if number == 0:
                decode_record(document, folder / "record.json")  # the store's codec takes it for one of ours
            text = orjson.dumps(document, option=orjson.OPT_INDENT_2)
            (folder / "record.json").write_bytes(text)
            size = max(size, len(text))
    return size


def seconds(root: Path, *arguments: str) -> float:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NEURONBENCH_")}
    env = {**inherited, "PYTHONPATH": str(ROOT), "NEURONBENCH_TRACKING_URI": "off"}
    command = [sys.executable, "-m", "neuronbench", "--root", str(root), *arguments]
    begun = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    ended = time.perf_counter()
    assert done.returncode == 0, done.stderr[-2000:]
    return ended - begun


def bare(root: Path) -> float:
    """The least it takes: each file read and parsed, nothing done with it."""
    code = (
        "import sys, orjson, pathlib\n"
        "n = sum(len(orjson.loads(p.read_bytes())) > 0 for p in pathlib.Path(sys.argv[1]).glob('*/*/record.json'))\n"
        f"assert n == {RECEIPTS}, n\n"
    )
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, str(root / "mlruns" / "receipts")], check=True, timeout=120)
    return time.perf_counter() - begun


def bench_compare(board, tmp_path: Path) -> None:
    """`neuronbench compare` of two sessions of 1,000 points with 5 repeats each, beside only reading the files."""
    (tmp_path / "neuronbench.toml").write_text("")
    size = write(tmp_path)
    mine, reference, over = [], [], []
    as_json = ("--format", "json", "--out")
    for _ in range(TURNS):
        mine.append(seconds(tmp_path, "compare", "latest~1", "latest", *as_json, str(tmp_path / "c")))
        reference.append(bare(tmp_path))
        over.append(seconds(tmp_path, "history", "--sessions", "2", *as_json, str(tmp_path / "h")))
    document = json.loads((tmp_path / "c").read_text(encoding="utf-8"))
    assert len(document["rows"]) == 6 * RECEIPTS // 2 // REPEATS
    assert document["base"]["receipts"] == document["head"]["receipts"] == RECEIPTS // 2
    board.report(
        what="comparing 10,000 receipts", unit="s", value=statistics.median(mine), turns=mine, budget=4.0,
        bare=statistics.median(reference),
        note=f"{size // 1000} KB and 52 metrics each, 6,000 rows; 10 s for compare and report together",
    )  # fmt: skip
    board.report(what="history of 10,000 receipts", unit="s", value=statistics.median(over), turns=over)
