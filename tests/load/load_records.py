"""Records of a load that never ran: invented requests in the driver's own files, and what is made of them."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from neuronbench.load.apis import APIS
from neuronbench.load.bodies import Bodies
from neuronbench.load.outcomes import Kind, Phase
from neuronbench.load.planwriter import Plan, write_plan
from neuronbench.load.reduce import Reduction, reduce
from neuronbench.load.spill import Spill
from neuronbench.load.stream import Stream

MS = 1_000_000
OPENED, CLOSED = 10_000 * MS, 20_000 * MS
TOKENS = 5


CLOSED_LOOP: dict[str, Any] = {
    "kind": "closed", "concurrency": 4, "in_flight": 4, "requests": 10, "duration_s": None, "rate": None,
}  # fmt: skip


def simple_plan(folder: Path, *, tokens: int = TOKENS, arrivals: dict[str, Any] = CLOSED_LOOP) -> Plan:
    return write_plan(
        folder,
        sets=(
            Bodies(bodies=[b"{}"], input_tokens=[3], output_tokens=[tokens]),
            Bodies(bodies=[b"{}"] * 8, input_tokens=[3] * 8, output_tokens=[tokens] * 8),
        ),
        arrivals=arrivals,
        api="completions",
        model="m",
        workload={},
        seed=0,
        exact=True,
        rule="",
    )


def stream(seq: int, **fields: Any) -> Stream:
    made = Stream(
        APIS["completions"], seq=seq, body=1 + seq % 8, phase=fields.pop("phase", Phase.WINDOW), s=fields.pop("s")
    )
    made.kind, made.status, made.n_in = Kind.OK, 200, 3
    for name, value in fields.items():
        setattr(made, name, value)
    made.count = len(made.chunks)
    if made.chunks:
        made.f, made.c, made.l = made.chunks[0], made.chunks[0], made.chunks[-1]
    return made


def regular(
    seq: int, s: int, *, wait: int = MS, ttft: int = 50 * MS, gap: int = 10 * MS, chunks: int = TOKENS, **more: Any
) -> Stream:
    w = s + wait
    times = array("q", [w + ttft + k * gap for k in range(chunks)])
    e = (times[-1] if chunks else w) + MS
    return stream(seq, s=s, w=w, w_end=w, r=w + 1, e=e, chunks=times, **{"n_out": chunks} | more)


def write(out: Path, streams: list[Stream], *, closed: int | None = CLOSED, cut: int = 0) -> None:
    """A spill as the driver writes it; `cut` splits the chunks of each stream over that many flushes."""
    out.mkdir(parents=True)
    spill = Spill(out)
    lags = array("i", [1000] * 10)
    spill.event("start", t=0, utc_ns=0, pid=1, worker=0)
    spill.event("edge", name="ramp", t=OPENED - 1, noted=OPENED - 1, lags=0, cpu_ns=0, utc_ns=1)
    spill.event("edge", name="open", t=OPENED, noted=OPENED, lags=0, cpu_ns=0, utc_ns=10**18)
    if closed:
        spill.event("edge", name="close", t=closed, noted=closed, lags=10, cpu_ns=2_000 * MS, utc_ns=10**18)
    for made in streams:
        if cut and len(made.chunks) > cut:
            whole = array("q", made.chunks)
            for k in range(0, len(whole) - cut, cut):
                made.chunks = whole[k : k + cut]
                spill.flush(array("i"), [made])
            made.chunks = whole[(len(whole) - 1) // cut * cut :]
        spill.end(made)
    spill.event("second", t=closed or CLOSED + 5, cpu_ns=2_000 * MS, in_flight=0)
    spill.flush(lags)
    spill.close({"status": "ok", "message": "", "max_rss_bytes": 1})


def reduced(
    tmp_path: Path,
    streams: list[Stream],
    *,
    slo: dict[str, float] | None = None,
    arrivals: dict[str, Any] = CLOSED_LOOP,
    **options: Any,
) -> Reduction:
    out = tmp_path / "out"
    write(out, streams, **options)
    plan = simple_plan(tmp_path / "plan", arrivals=arrivals)
    return reduce(plan, out, drive=None, table=tmp_path / "requests.parquet", slo=slo or {})
