"""The same load through the tools that are installed: what each says, beside the server's own figures.

`NEURONBENCH_PEERS=vllm=VENV,guidellm=VENV,aiperf=VENV` names them, `NEURONBENCH_PEER_TOKENIZER` a model's tokenizer.
"""

from __future__ import annotations

import os
import resource
import statistics
from pathlib import Path

import pytest
from clients import TPOT_MS, TTFT_MS, bare, nearest_rank, ours, true_ttft

from neuronbench import config
from neuronbench.engines import ENGINES, Job, find, run
from neuronbench.load.arrivals import closed_loop
from neuronbench.processes import spawn
from neuronbench.testing.truth_server import TruthServer

PEERS = dict(part.partition("=")[::2] for part in os.environ.get("NEURONBENCH_PEERS", "").split(",") if part)
TOKENIZER = os.environ.get("NEURONBENCH_PEER_TOKENIZER", "")
TOKENS = 64


@pytest.mark.parametrize("streams", [64, 256])
@pytest.mark.parametrize("name", ENGINES)
def bench_peer(board, pytestconfig, tmp_path: Path, name: str, streams: int) -> None:
    """Ours, bare and one other tool, on one server, one after the other."""
    if name not in PEERS or not TOKENIZER:
        pytest.skip(f"{name}: set NEURONBENCH_PEERS={name}=VENV and NEURONBENCH_PEER_TOKENIZER=FOLDER")
    requests = max(3 * streams, 320)
    settings = config.load(pytestconfig.rootpath)
    found = find(name, PEERS[name], spawn=spawn, cache=settings.cache_dir)
    with TruthServer(ttft_ms=TTFT_MS, tpot_ms=TPOT_MS) as server:
        mine = ours(server, tmp_path / "ours", closed_loop(streams, requests=requests), requests + 6 * streams, TOKENS)
        reference = bare(server, streams=streams, requests=requests, tokens=TOKENS)
        server.reset()
        job = Job(
            url=server.url, model="truth", concurrency=streams, requests=requests, input_tokens=16,
            output_tokens=TOKENS, tokenizer=Path(TOKENIZER), deadline_s=200,
        )  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        reading, _ = run(found, job, tmp_path / "raw", spawn=spawn)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        records = server.truth()["requests"]
    true = [true_ttft(record) for record in records if record["first_sent_ns"]]
    said = {metric.key: metric.value for metric in reading.metrics}
    for p in (0.5, 0.99):
        key = f"ttft_ok_p{100 * p:g}_ms"
        value = said[key] - nearest_rank(true, p) if said[key] is not None else None
        board.report(
            what=f"TTFT added p{100 * p:g}, {streams} streams, beside {name}", unit="ms", value=mine.added(p),
            bare=reference.added(p), peers={f"{name} {found.version}": value},
        )  # fmt: skip
    pace = [
        (record["last_sent_ns"] - record["first_sent_ns"]) / 1e6 / (record["completion_tokens"] - 1)
        for record in records
        if record["completion_tokens"] > 1 and record["outcome"] == "complete"
    ]
    if said["tpot_ok_p50_ms"] is not None:
        board.report(
            what=f"TPOT p50 off by, {streams} streams", unit="µs", value=None, note="against the server's own median",
            peers={f"{name} {found.version}": 1000 * abs(said["tpot_ok_p50_ms"] - statistics.median(pace))},
        )  # fmt: skip
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    board.report(
        what=f"CPU per token, {streams} streams, beside {name}", unit="µs", value=mine.cpu_us_per_token,
        bare=reference.cpu_us_per_token, peers={f"{name} {found.version}": 1e6 * cpu / (requests * TOKENS)},
        note="the tool's with its start-up",
    )  # fmt: skip
