"""Other tools' figures in our ids: read from samples of their output, and from the tools where they are installed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuronbench import cli
from neuronbench.engines import ENGINES, EngineError, Found, Job, find, run
from neuronbench.engines.base import Reading
from neuronbench.processes import spawn
from neuronbench.testing.truth_server import TruthServer

SAMPLES = Path(__file__).parent.parent / "data" / "engines"
JOB = Job(
    url="http://127.0.0.1:8000", model="m", concurrency=4, requests=10, input_tokens=12, output_tokens=6, api_key="k3y"
)
INSTALLED = dict(part.partition("=")[::2] for part in os.environ.get("NEURONBENCH_TEST_ENGINES", "").split(",") if part)
"""`vllm=/path/venv,aiperf=/path/venv`: tools to try for real."""
PLACES = {"vllm": "vllm.json", "guidellm": "guidellm.json", "aiperf": "aiperf/profile_export_aiperf.json"}


def sample(name: str, folder: Path, change: dict[str, Any] | None = None) -> Reading:
    data = json.loads((SAMPLES / f"{name}.json").read_text(encoding="utf-8"))
    data.update(change or {})
    target = folder / PLACES[name]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(data), encoding="utf-8")
    return ENGINES[name].read(JOB, folder)


def values(reading: Reading) -> dict[str, float | None]:
    return {metric.key: metric.value for metric in reading.metrics}


# --------------------------------------------------------------------------------------------------------------------
# what their figures mean


def test_vllm_calls_our_icl_itl(tmp_path: Path) -> None:
    raw = json.loads((SAMPLES / "vllm.json").read_text())
    reading = sample("vllm", tmp_path)
    found = values(reading)
    assert (reading.succeeded, reading.failed) == (64, 0)
    assert found["ttft_p50_ms"] == found["ttft_ok_p50_ms"] == raw["p50_ttft_ms"]
    assert found["ttft_p99_ms"] == raw["p99_ttft_ms"]
    assert found["tpot_p50_ms"] == raw["p50_tpot_ms"]
    assert found["icl_p50_ms"] == raw["p50_itl_ms"]
    assert found["e2e_mean_ms"] == raw["mean_e2el_ms"]
    assert found["output_tokens_mean_tokens"] == 16
    assert found["output_throughput_tok_s"] is None
    assert found["request_throughput_req_s"] is None
    assert found["ttft_max_ms"] is None
    assert found["error_rate_share"] == 0
    assert reading.own["output_throughput"] == raw["output_throughput"]
    assert reading.own["request_rate"] == "inf"
    json.dumps(dict(reading.own), allow_nan=False)


def test_guidellm_calls_our_tpot_inter_token_latency_and_has_no_gaps(tmp_path: Path) -> None:
    raw = json.loads((SAMPLES / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    reading = sample("guidellm", tmp_path)
    found = values(reading)
    assert found["ttft_p90_ms"] == raw["time_to_first_token_ms"]["successful"]["percentiles"]["p90"]
    assert found["tpot_p50_ms"] == raw["inter_token_latency_ms"]["successful"]["percentiles"]["p50"]
    assert found["tpot_p50_ms"] != raw["time_per_output_token_ms"]["successful"]["percentiles"]["p50"]
    assert found["icl_p50_ms"] is None
    assert found["e2e_p50_ms"] is None  # to the end of the body
    assert found["input_tokens_mean_tokens"] == raw["prompt_token_count"]["successful"]["mean"]
    assert reading.own["time_per_output_token_ms"]["p50"] > found["tpot_p50_ms"]  # type: ignore[operator]
    notes = {metric.key: metric.note for metric in reading.metrics}
    assert "end of the body" in notes["e2e_p50_ms"]


def test_guidellms_tpot_is_ours_only_where_answers_have_one_length(tmp_path: Path) -> None:
    data = json.loads((SAMPLES / "guidellm.json").read_text())
    data["benchmarks"][0]["metrics"]["output_token_count"]["successful"]["min"] = 3
    data["benchmarks"][0]["metrics"]["request_totals"]["incomplete"] = 2
    reading = sample("guidellm", tmp_path, data)
    assert values(reading)["tpot_p50_ms"] is None
    assert reading.failed == 0
    assert any("2 requests were in flight at the end" in note for note in reading.notes)


def test_aiperf_calls_our_tpot_inter_token_latency(tmp_path: Path) -> None:
    raw = json.loads((SAMPLES / "aiperf.json").read_text())
    reading = sample("aiperf", tmp_path)
    found = values(reading)
    assert found["ttft_max_ms"] == raw["time_to_first_token"]["max"]
    assert found["tpot_p50_ms"] == raw["inter_token_latency"]["p50"]
    assert found["icl_p99_ms"] == raw["inter_chunk_latency"]["p99"]
    assert found["e2e_mean_ms"] == raw["request_latency"]["avg"]
    assert found["output_tokens_mean_tokens"] == 8
    assert found["output_throughput_tok_s"] is None
    assert reading.own["output_token_throughput"]["unit"] == "tokens/sec"


def test_with_failures_their_percentiles_are_of_the_successes_alone(tmp_path: Path) -> None:
    reading = sample("vllm", tmp_path, {"failed": 16, "errors": ["", "Traceback ...\nHTTP 500"]})
    found = values(reading)
    assert found["ttft_p50_ms"] is None
    assert found["ttft_ok_p50_ms"] is not None
    assert found["error_rate_share"] == 0.2
    assert reading.errors == ["Traceback ...\nHTTP 500"]


@pytest.mark.parametrize("name", ENGINES)
def test_every_tool_gives_the_same_keys(name: str, tmp_path: Path) -> None:
    stats = ("p50", "p90", "p99", "mean", "max")
    shared = {
        *(f"{id_}_{stat}_ms" for id_ in ("ttft", "tpot", "icl", "e2e") for stat in stats),
        "output_throughput_tok_s", "achieved_rate_req_s", "in_flight_requests", "error_rate_share",
    }  # fmt: skip
    assert shared <= values(sample(name, tmp_path)).keys()


@pytest.mark.parametrize("name", ENGINES)
def test_output_that_is_missing_or_of_another_form_is_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="left no"):
        ENGINES[name].read(JOB, tmp_path)
    (tmp_path / PLACES[name]).parent.mkdir(exist_ok=True)
    (tmp_path / PLACES[name]).write_text("{")
    with pytest.raises(EngineError, match="not JSON"):
        ENGINES[name].read(JOB, tmp_path)


@pytest.mark.parametrize("name", ENGINES)
def test_the_key_is_on_no_command_line(name: str, tmp_path: Path) -> None:
    adapter = ENGINES[name]
    words = [word for flag in adapter.flags(JOB, tmp_path) for word in flag.words]
    assert not any("k3y" in word for word in words)
    for path in tmp_path.iterdir():
        assert path.name in adapter.private
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_tool_cannot_do_is_refused(tmp_path: Path) -> None:
    timed = Job(url="u", model="m", concurrency=1, duration_s=3)
    with pytest.raises(EngineError, match="give --requests"):
        ENGINES["vllm"].flags(timed, tmp_path)
    with pytest.raises(EngineError, match="no warm-up by a number"):
        ENGINES["guidellm"].flags(Job(url="u", model="m", concurrency=1, warmup=3), tmp_path)


# --------------------------------------------------------------------------------------------------------------------
# finding and running, with a stand-in tool in a real environment


class Environment:
    """A venv in which something calls itself guidellm 9.9."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
        self.folder = folder
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "guidellm-9.9.dist-info").mkdir()
        (site / "guidellm-9.9.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: guidellm\nVersion: 9.9\n"
        )

    def tool(self, body: str) -> None:
        """`body` runs for `guidellm run ...`; OUT is where the result belongs, SERVER what stands in --config."""
        program = self.folder / "bin" / "guidellm"
        program.write_text(
            f"#!{self.folder / 'bin' / 'python'}\n"
            "import json, os, sys, time\n"
            "args = sys.argv[2:]\n"
            "if '--help' in args:\n"
            "    print(os.environ.get('HELP', '--config --profile --constraint\\n  --data, --seed --output'))\n"
            "    raise SystemExit\n"
            "given = dict(zip(args[::2], args[1::2]))\n"
            "OUT = json.loads(given['--output'])['path']\n"
            "SERVER = json.load(open(given['--config']))['spec']['backend']\n"
            f"{body}\n"
        )
        program.chmod(0o755)

    def find(self, cache: Path | None = None) -> Found:
        return find("guidellm", str(self.folder), spawn=spawn, cache=cache)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("tool") / "venv")


def test_a_tool_is_found_probed_run_and_read(environment: Environment, tmp_path: Path) -> None:
    environment.tool(
        f"assert SERVER['api_key'] == 'k3y' and 'PYTHONPATH' not in os.environ\n"
        f"print('measuring', flush=True)\nopen(OUT, 'w').write(open({str(SAMPLES / 'guidellm.json')!r}).read())"
    )
    found = environment.find(tmp_path / "cache")
    assert found.version == "9.9"
    assert {"--config", "--data", "--output"} <= found.flags
    assert "--disable-console" not in found.flags  # an option that this one does not have is left out
    reading, argv = run(found, JOB, tmp_path / "raw", spawn=spawn)
    assert reading.succeeded == 64
    assert "--disable-console" not in argv
    assert "measuring" in (tmp_path / "raw" / "engine.log").read_text()
    assert {path.name for path in (tmp_path / "raw").iterdir()} == {"engine.log", "guidellm.json"}  # no key


def test_what_help_said_is_asked_once(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.tool("")
    first = environment.find(tmp_path)
    monkeypatch.setenv("HELP", "--other")
    assert environment.find(tmp_path).flags == first.flags
    (kept,) = (tmp_path / "engines").iterdir()
    kept.write_text("{")
    assert environment.find(tmp_path).flags == {"--other"}


def test_a_version_without_an_option_it_needs_is_refused(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELP", "--config --profile")
    environment.tool("raise SystemExit('it was started')")
    with pytest.raises(EngineError, match=r"guidellm 9\.9 has no option --constraint") as caught:
        run(environment.find(), JOB, tmp_path / "raw", spawn=spawn)
    assert "another version" in caught.value.remedy
    assert not list((tmp_path / "raw").iterdir())
    monkeypatch.setenv("HELP", "usage: none")
    with pytest.raises(EngineError, match="names no option"):
        environment.find()


def test_a_tool_that_fails_is_quoted(environment: Environment, tmp_path: Path) -> None:
    environment.tool("sys.exit('the tokenizer has gone fishing')")
    with pytest.raises(EngineError, match="ended with status 1; last lines:\nthe tokenizer has gone fishing"):
        run(environment.find(), JOB, tmp_path / "raw", spawn=spawn)
    assert not (tmp_path / "raw" / "server.json").exists()


def test_a_tool_that_hangs_is_ended(environment: Environment, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    environment.tool(f"open({str(pid)!r}, 'w').write(str(os.getpid()))\nprint('waiting', flush=True)\ntime.sleep(600)")
    job = Job(url="u", model="m", concurrency=1, deadline_s=1.5)
    with pytest.raises(EngineError, match=r"did not end within 1\.5 s and was ended; last lines:\nwaiting"):
        run(environment.find(), job, tmp_path / "raw", spawn=spawn)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid.read_text()}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_output_of_an_unknown_form_names_the_version(environment: Environment, tmp_path: Path) -> None:
    environment.tool("json.dump({'benchmarks': [{'other': 1}]}, open(OUT, 'w'))")
    with pytest.raises(EngineError, match=r"guidellm 9\.9: its output is of an unknown form"):
        run(environment.find(), JOB, tmp_path / "raw", spawn=spawn)


def test_a_tool_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="guidellm is not installed: not on the PATH") as caught:
        find("guidellm", "", spawn=spawn)
    assert "--engine guidellm=PATH" in caught.value.remedy
    with pytest.raises(EngineError, match="expected a venv"):
        find("guidellm", str(tmp_path / "nothing"), spawn=spawn)
    with pytest.raises(EngineError, match="aiperf is not installed: not in"):
        find("aiperf", sys.executable, spawn=spawn)
    with pytest.raises(EngineError, match="did you mean 'guidellm'"):
        find("guidelm", "", spawn=spawn)


def test_a_tool_on_the_path(environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.tool("")
    monkeypatch.setenv("PATH", f"{environment.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert find("guidellm", "", spawn=spawn).python == environment.folder / "bin" / "python"


# --------------------------------------------------------------------------------------------------------------------
# through the command


@pytest.fixture(scope="module")
def truth() -> Iterator[TruthServer]:
    with TruthServer(ttft_ms=20, tpot_ms=5) as server:
        yield server


def test_the_command_marks_what_another_tool_measured(
    environment: Environment, truth: TruthServer, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment.tool(
        f"assert SERVER['model'] == 'truth'\nopen(OUT, 'w').write(open({str(SAMPLES / 'guidellm.json')!r}).read())"
    )
    kept = tmp_path / "kept"
    status = cli.main(
        ["--root", str(tmp_path), "load", truth.url, "--concurrency", "4", "--input-tokens", "32", "--output-tokens",
         "16", "--engine", f"guidellm={environment.folder}", "--out", str(kept)]
    )  # fmt: skip
    captured = capsys.readouterr()
    assert status == 0, captured.err
    data = json.loads((kept / "result.json").read_text())
    assert data["provenance"] == "imported"
    assert data["engine"]["name"] == "guidellm"
    assert data["engine"]["version"] == "9.9"
    assert data["metrics"]["ttft_ms"]["p50"] > 0
    assert data["metrics"]["icl_ms"]["p50"] is None
    assert data["metrics"]["output_throughput_tok_s"] is None
    assert data["own_metrics"]["output_tokens_per_second"]["mean"] > 0
    gates = {gate["id"]: gate for gate in data["gates"]}
    assert gates["output_length"]["passed"] is True
    assert gates["input_length"]["passed"] is False  # 31.84 on average where 32 were asked for
    assert data["validity"] == "provisional"
    assert "raw/guidellm.json" in data["files"]
    assert "measured by guidellm" in captured.out


@pytest.mark.parametrize("name", ENGINES)
def test_the_tool_itself(
    name: str, truth: TruthServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = INSTALLED.get(name) or shutil.which(name)
    tokenizer = os.environ.get("NEURONBENCH_TEST_TOKENIZER")
    if not where or not tokenizer:
        pytest.skip(
            f"{name} is not installed; set NEURONBENCH_TEST_ENGINES={name}=VENV and NEURONBENCH_TEST_TOKENIZER=FOLDER"
        )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    truth.reset()
    status = cli.main(
        ["--root", str(tmp_path), "load", truth.url, "--concurrency", "4", "--requests", "24", "--input-tokens", "24",
         "--output-tokens", "8", "--engine", f"{name}={where}", "--tokenizer", tokenizer, "--out", str(tmp_path / "o")]
    )  # fmt: skip
    captured = capsys.readouterr()
    assert status == 0, captured.err
    data = json.loads((tmp_path / "o" / "result.json").read_text())
    assert data["requests"] == {"scheduled": 24, "failed": 0, "failures": {}}
    assert data["metrics"]["output_tokens_tokens"]["mean"] == 8
    # the server's own instants are what all of them measure
    assert data["metrics"]["ttft_ms"]["p50"] >= 20
    assert data["metrics"]["tpot_ms"]["p50"] == pytest.approx(5, rel=0.3)
    assert truth.truth(records=False)["summary"]["requests"] >= 24
