"""What is shown while a benchmark runs, from the file that the telemetry process writes at that moment."""

from __future__ import annotations

import json
import queue
import re
import time
from functools import partial
from pathlib import Path

import pytest

from neuronbench.processes import spawn
from neuronbench.protocols import SamplerSpec
from neuronbench.telemetry.live import TAIL_BYTES, Live
from neuronbench.telemetry.recorder import Recorder


def sampler(name: str, **live: str) -> SamplerSpec:
    return SamplerSpec(name=name, target="x:Y", live=live)


def line(name: str, **values: float | None) -> str:
    return json.dumps([0, 0, name, values]) + "\n"


def test_the_latest_sample_of_each_sampler_in_the_unit_of_its_name(tmp_path: Path) -> None:
    spill = tmp_path / "telemetry.spill"
    server = sampler("server", cpu_percent="server CPU", rss_bytes="")
    shares = SamplerSpec(name="metrics", target="x:Y", live={"vllm:waiting": "waiting", "vllm:cache_perc": "cache"})
    live = Live(spill, [server, shares, sampler("silent")])
    labelled = {'vllm:waiting{engine="0"}': 2, 'vllm:waiting{engine="1"}': 1, 'vllm:cache_perc{engine="0"}': 0.5}
    spill.write_text(
        line("server", cpu_percent=1.0, rss_bytes=1)
        + json.dumps([0, 0, "metrics", labelled]) + "\n"
        + line("server", cpu_percent=153.4, rss_bytes=1.5 * 2**30)
        + json.dumps({"error": "busy", "sampler": "metrics"}) + "\n"
        + '[0,0,"server",{"cpu_per'
    )  # fmt: skip
    assert live.words() == "server CPU 153 %  1.5 GiB  waiting 3  cache 50 %"
    assert live.after("window 3 s") == "window 3 s  server CPU 153 %  1.5 GiB  waiting 3  cache 50 %"


def test_what_is_missing_is_left_out_and_never_a_zero(tmp_path: Path) -> None:
    spill = tmp_path / "telemetry.spill"
    live = Live(spill, [sampler("server", cpu_percent="server CPU", rss_bytes="")])
    assert live.after("window 3 s") == "window 3 s"  # no file yet
    spill.write_text(line("server", cpu_percent=None, rss_bytes=2**30))
    assert live.words() == "1.0 GiB"
    assert Live(spill, [sampler("server")]).words() == ""


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    spill = tmp_path / "telemetry.spill"
    early = line("early", cpu_percent=99.0)
    spill.write_text(early + line("late", cpu_percent=5.0) * (2 * TAIL_BYTES // len(line("late", cpu_percent=5.0))))
    live = Live(spill, [sampler("early", cpu_percent="early"), sampler("late", cpu_percent="late")])
    assert live.words() == "late 5 %"


def test_beside_a_running_telemetry_process(tmp_path: Path) -> None:
    host = SamplerSpec(
        name="host", target="neuronbench.telemetry.host:Host", period_s=0.1, live={"available_bytes": "free"}
    )
    recorder = Recorder.start([host], tmp_path, partial(spawn, pid_dir=tmp_path / "pids"))
    heard: queue.Queue[str] = queue.Queue()
    try:
        begun = time.monotonic()
        with recorder.live.each_second(heard.put, "10 calls"):
            first = heard.get(timeout=200)
        passed = time.monotonic() - begun
        told = re.match(r"10 calls (\d+) s", first)
        assert told is not None
        assert 1 <= int(told[1]) <= max(round(passed), 1)  # of the second that it says it in, however late that is
        assert "GiB" in first
    finally:
        recorder.stop()


@pytest.mark.parametrize("text", ["", "not json\n", "[]\n", "[1]\n", "null\n", '[0,0,"server",null]\n'])
def test_a_strange_file_is_no_reason_to_stop(tmp_path: Path, text: str) -> None:
    spill = tmp_path / "telemetry.spill"
    spill.write_text(text)
    assert Live(spill, [sampler("server", cpu_percent="CPU")]).words() == ""
