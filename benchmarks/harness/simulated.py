"""A drive that never took place: plan and spill of any size, written as a driver writes them.

python simulated.py FOLDER REQUESTS CHUNKS            write
python simulated.py FOLDER reduce | bare              reduce, or only read; prints JSON
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

MS = 1_000_000
TPOT_MS, TTFT_MS = 10, 50
BODIES = 1000
PART = 20_000


def write(folder: Path, requests: int, chunks: int) -> None:
    """Plan and spill: `requests` of `chunks` tokens each, in the window but for the first and last."""
    from neuronbench.load import layout
    from neuronbench.load.arrivals import closed_loop
    from neuronbench.load.outcomes import Kind, Phase
    from neuronbench.load.plan import make_plan
    from neuronbench.load.spill import Spill
    from neuronbench.load.workload import synthetic, warm_up
    from neuronbench.protocols import Vocabulary

    make_plan(
        folder / "plan", arrivals=closed_loop(64, requests=BODIES),
        workload=synthetic(input_tokens=4, output_tokens=chunks), api="completions", model="m",
        vocabulary=Vocabulary(size=5000), warmup=warm_up(0),
    )  # fmt: skip
    out = folder / "out"
    out.mkdir()
    spill = Spill(out)
    every = 500_000  # ns between two requests
    opened, closed = 10_000 * MS, 10_000 * MS + requests * every
    spill.event("start", t=0, utc_ns=0, pid=1, worker=0)
    for name, at in (("ramp", opened - 1), ("open", opened), ("close", closed), ("drain", closed + 1)):
        spill.event("edge", name=name, t=at, noted=at, lags=0, cpu_ns=at // 10, utc_ns=at)
    spill.event("end", t=closed + 2, status="ok", message="")
    from array import array

    spill.flush(array("i"))
    rng = np.random.default_rng(1)
    with (
        (out / "requests-0.bin").open("ab") as records, (out / "segments-0.bin").open("ab") as segments,
        (out / "chunks-0.bin").open("ab") as instants, (out / "tokens-0.bin").open("ab") as tokens,
    ):  # fmt: skip
        for start in range(0, requests, PART):
            count = min(PART, requests - start)
            seq = np.arange(start, start + count)
            rows = np.zeros(count, dtype=layout.request_dtype())
            due = opened + seq * every
            first = due + 100_000 + (TTFT_MS * MS + rng.exponential(2 * MS, count)).astype(np.int64)
            gaps = (TPOT_MS * MS + rng.normal(0, MS / 10, (count, chunks))).astype(np.int64)
            gaps[:, 0] = 0
            times = first[:, None] + np.cumsum(gaps, axis=1)
            rows["seq"], rows["body"] = seq, seq % BODIES
            rows["phase"], rows["kind"], rows["status"] = int(Phase.WINDOW), int(Kind.OK), 200
            rows["flags"] = layout.KERNEL_STAMPED | layout.USAGE | layout.DONE | layout.FINISH_LENGTH
            rows["s"], rows["w"], rows["w_end"], rows["r"] = due, due + 100_000, due + 100_000, first
            rows["o"] = rows["f"] = rows["c"] = first
            rows["l"] = times[:, -1]
            rows["e"] = times[:, -1] + 1000
            rows["n_out"] = rows["chunks"] = chunks
            rows["n_in"], rows["n_reason"], rows["n_cached"], rows["attempts"] = 4, -1, -1, 1
            records.write(rows.tobytes())
            parts = np.zeros(count, dtype=layout.segment_dtype())
            parts["seq"], parts["count"], parts["start"] = seq, chunks, seq * chunks
            segments.write(parts.tobytes())
            instants.write(times.astype("<i8").tobytes())
            tokens.write(np.zeros(count * chunks, "<u2").tobytes())
    spill.close({"status": "ok", "message": "", "ended": closed, "wrapped": 0, "odd_stamps": 0, "cpu_user_s": 0.0,
                 "cpu_system_s": 0.0, "max_rss_bytes": 0})  # fmt: skip


def reduce(folder: Path) -> dict:
    from neuronbench.load.plan import Plan
    from neuronbench.load.run import reduce_run

    found = reduce_run(Plan.open(folder / "plan"), folder / "out", table=folder / "requests.parquet")
    return {"ttft_p50_ms": found["ttft_p50_ms"], "icl_p99_ms": found["icl_p99_ms"], "n": found.window["in_window"]}


def bare(folder: Path) -> dict:
    """One pass over the same files that keeps nothing but one latency per request."""
    from neuronbench.load import layout

    rows = np.memmap(folder / "out" / "requests-0.bin", dtype=layout.request_dtype(), mode="r")
    ttft = np.empty(len(rows))
    for start in range(0, len(rows), PART):
        part = rows[start : start + PART]
        ttft[start : start + PART] = (part["f"] - part["w"]) / 1e6
    return {"ttft_p50_ms": float(np.median(ttft)), "n": len(rows)}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if len(sys.argv) == 4:
        write(place, int(sys.argv[2]), int(sys.argv[3]))
    else:
        begun = time.monotonic()
        result = reduce(place) if sys.argv[2] == "reduce" else bare(place)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**result, "seconds": time.monotonic() - begun, "peak_mib": peak}))
