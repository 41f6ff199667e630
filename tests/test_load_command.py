"""`neuronbench load` against servers of known timing: what it prints, writes, refuses, and ends with."""

from __future__ import annotations

import http.client
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from neuronbench import cli, stats
from neuronbench.definitions import metric
from neuronbench.engines.job import Job
from neuronbench.protocols import Vocabulary
from neuronbench.serving.vocabulary import NoVocabulary, of_server, of_tokenizer, prove
from neuronbench.standalone.result import Result, nested
from neuronbench.testing.truth_server import TruthServer

SHORT = ["--concurrency", "4", "--requests", "16", "--input-tokens", "12", "--output-tokens", "6"]


class Ended(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def truth() -> Iterator[TruthServer]:
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        yield server


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in [name for name in os.environ if name.startswith("NEURONBENCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def go(*arguments: str) -> Ended:
        capsys.readouterr()
        status = cli.main(["--root", str(tmp_path), "load", *arguments])
        captured = capsys.readouterr()
        return Ended(status, captured.out, captured.err)

    return go


def document(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


class Gateway:
    """A server in front of the truth server, as strict or as odd as gateways are."""

    def __init__(self, target: str, *, tokenize: bool = True, ids: bool = True, more: int = 0) -> None:
        host, port = urlsplit(target).hostname, urlsplit(target).port

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None: ...

            def do_GET(self) -> None:
                self.forward(b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.path == "/tokenize" and not tokenize:
                    self.answer(404, b'{"error": "no such route"}')
                elif not ids and isinstance(json.loads(body).get("prompt"), list):
                    self.answer(400, b'{"error": "prompt: expected a string"}')
                else:
                    self.forward(body)

            def forward(self, body: bytes) -> None:
                connection = http.client.HTTPConnection(str(host), port, timeout=10)
                connection.request(self.command, self.path, body, {"content-type": "application/json"})
                response = connection.getresponse()
                data = response.read()
                connection.close()
                if more and response.headers.get_content_type() == "application/json":
                    parsed = json.loads(data)
                    if "usage" in parsed:
                        parsed["usage"]["prompt_tokens"] += more
                        data = json.dumps(parsed).encode()
                self.answer(response.status, data, response.headers["content-type"] or "text/plain")

            def answer(self, status: int, data: bytes, kind: str = "application/json") -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Gateway:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def tokenizer(folder: Path) -> Path:
    """A tokenizer of 500 words, three of them special."""
    folder.mkdir()
    words = {f"t{k:05d}": k for k in range(500)}
    added = [{"id": k, "content": f"<{k}>", "special": True} for k in (500, 501, 502)]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"model": {"type": "WordLevel", "vocab": words}, "added_tokens": added}))
    return path


# --------------------------------------------------------------------------------------------------------------------
# measured


def test_a_closed_loop_is_measured_and_written_down(truth: TruthServer, run: Run, tmp_path: Path) -> None:
    truth.reset()
    kept, file = tmp_path / "kept", tmp_path / "deep" / "result.json"
    ended = run(
        truth.url, *SHORT, "--slo", "ttft=1000", "--slo", "tpot_ms=1000", "--out", str(kept), "--json", str(file)
    )
    assert ended.status == 0, ended.err
    data = document(file)
    assert data["status"] == "ok"
    assert data["engine"]["name"] == "native"
    assert data["provenance"] == "measured"
    assert data["target"]["model"] == "truth"
    metrics = data["metrics"]
    assert {"p50", "p90", "p99", "mean", "max", "n", "definition"} <= metrics["ttft_ms"].keys()
    assert metrics["ttft_ms"]["definition"] == "ttft@1"
    assert metrics["ttft_ms"]["n"] >= 16
    assert metrics["ttft_ms"]["p50"] >= 5
    assert metrics["e2e_ms"]["p50"] >= 10
    assert metrics["icl_ms"]["n"] == 5 * metrics["ttft_ms"]["n"]
    assert metrics["output_throughput_tok_s"] > 0
    assert metrics["error_rate_share"] == 0
    assert metrics["input_tokens_tokens"]["mean"] == 12
    assert metrics["output_tokens_tokens"]["mean"] == 6
    assert metrics["attainment_share"] == 1
    assert metrics["ttft_ms"]["p99"] is None  # 16 requests have no p99; null, and the record says why
    assert "needs 100" in data["metric_records"]["ttft_p99_ms"]["note"]
    assert data["requests"] == {"scheduled": metrics["ttft_ms"]["n"], "failed": 0, "failures": {}}
    gates = {gate["id"]: gate["passed"] for gate in data["gates"]}
    assert gates["input_length"] is True
    assert gates["output_length"] is True
    assert gates["token_conservation"] is True
    assert gates["client_error"] is None
    assert data["client_error"]["text"] == "not calibrated: run `neuronbench calibrate`"
    assert data["workload"]["digest"]
    assert data["environment"]["host.cores"] >= 1
    assert data["asked"]["concurrency"] == 4
    assert data["window"]["seconds"] > 0
    assert {"requests.parquet", "telemetry.parquet", "result.json"} == {path.name for path in kept.iterdir()}
    assert document(kept / "result.json")["metrics"] == metrics
    rows = pq.read_table(kept / "requests.parquet").to_pylist()
    inside = [row for row in rows if row["in_window"]]
    assert len(inside) == data["requests"]["scheduled"]
    steps = [(row["last_output_ns"] - row["first_output_ns"]) / 5e6 for row in inside]  # 1 ms where the server keeps up
    assert metrics["tpot_ms"]["p50"] == pytest.approx(stats.percentile(steps, 0.5))
    left = sorted(sent for record in truth.truth()["requests"] for sent in record["sent_ns"] if record["stream"])
    seen = sorted(
        round(row["first_output_ns"] + 1e6 * sum(row["icl_ms"][:k])) for row in rows for k in range(row["chunks"])
    )
    assert len(seen) == len(left)
    assert all(sent <= at + 1_000 for sent, at in zip(left, seen, strict=True))  # no sooner than each had left
    for words in ("TTFT ms", "output throughput", "not calibrated", "truth at http", "makes it", "not evaluable"):
        assert words in ended.out
    assert "asking http" in ended.err


@pytest.mark.parametrize(("law", "length"), [("constant", ("--requests", "60")), ("poisson", ("--duration", "1"))])
def test_a_rate_is_measured(truth: TruthServer, run: Run, tmp_path: Path, law: str, length: tuple[str, str]) -> None:
    file = tmp_path / "r.json"
    kept = tmp_path / "kept"
    ended = run(
        truth.url, "--rate", "60", *length, "--arrivals", law, "--input-tokens", "8", "--output-tokens", "4",
        "--processes", "2", "--json", str(file), "--out", str(kept),
    )  # fmt: skip
    assert ended.status == 0, ended.err
    data = document(file)
    assert data["workload"]["arrivals"]["law"] == law
    assert data["window"]["seconds"] == pytest.approx(1, abs=0.05)  # a number of requests at a rate is a duration
    assert data["window"]["processes"] == 2
    scheduled = data["requests"]["scheduled"]
    assert scheduled == 60 if law == "constant" else 30 < scheduled < 100
    # what was written inside the window; all that was due there, where the client had its turns
    rows = pq.read_table(kept / "requests.parquet").to_pylist()
    seconds = data["window"]["seconds"]
    written = sum(0 <= row["sent_ms"] < 1e3 * seconds for row in rows if not row["warmup"])
    assert data["metrics"]["achieved_rate_req_s"] == pytest.approx(written / seconds)
    assert sum(0 <= row["scheduled_ms"] < 1e3 * seconds for row in rows if not row["warmup"]) == scheduled
    assert data["metrics"]["send_lag_ms"]["p50"] is not None


def test_chat_prompts_have_their_length_after_the_template(truth: TruthServer, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    ended = run(truth.url, *SHORT, "--input-tokens", "40", "--api", "chat", "--json", str(file))
    assert ended.status == 0, ended.err
    data = document(file)
    assert data["metrics"]["input_tokens_tokens"]["mean"] == 40
    assert {gate["id"]: gate["passed"] for gate in data["gates"]}["input_length"] is True


def test_prompts_from_a_file(truth: TruthServer, run: Run, tmp_path: Path) -> None:
    rows, file = tmp_path / "rows.jsonl", tmp_path / "r.json"
    rows.write_text("".join(json.dumps({"prompt": f"t{k:05d} t00001"}) + "\n" for k in range(60)))
    ended = run(truth.url, *SHORT, "--dataset", str(rows), "--json", str(file))
    assert ended.status == 0, ended.err
    data = document(file)
    assert data["workload"]["workload"]["kind"] == "dataset"
    assert data["metrics"]["input_tokens_tokens"]["mean"] == 3  # two words and a beginning
    assert data["metrics"]["output_tokens_tokens"]["mean"] == 6
    assert f"prompts of {rows}" in ended.out


def test_json_on_standard_output_is_nothing_but_json(truth: TruthServer, run: Run) -> None:
    ended = run(truth.url, *SHORT, "--json", "-")
    assert ended.status == 0
    assert json.loads(ended.out)["status"] == "ok"


def test_the_same_seed_sends_the_same_bytes(truth: TruthServer, run: Run) -> None:
    digests = []
    for seed, strict in (("1", ()), ("1", ()), ("2", ("--strict-provisional",))):
        ended = run(truth.url, *SHORT[2:], "--warmup", "0", "--seed", seed, "--json", "-", *strict)
        data = json.loads(ended.out)
        digests.append(data["workload"]["digest"])
        assert ended.status == (1 if strict and data["validity"] != "valid" else 0)
    assert digests[0] == digests[1] != digests[2]


def test_an_invalid_result_is_a_result_unless_told_otherwise(truth: TruthServer, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    arguments = (truth.url, "--model", "truth:short,by=2", *SHORT, "--json", str(file))
    ended = run(*arguments)
    assert ended.status == 0, ended.err
    data = document(file)
    assert data["validity"] == "invalid"
    assert set(data["requests"]["failures"]) == {"wrong_length"}
    assert data["requests"]["failed"] == data["requests"]["scheduled"]
    assert data["target"]["facts"]["unlisted"] is True
    assert "wrong_length" in ended.out
    assert "INVALID" in ended.out
    strict = run(*arguments, "--strict")
    assert strict.status == 1
    assert strict.out.splitlines()[-1] == "not as wanted: the result is invalid, which --strict refuses"


def test_a_key_is_taken_from_the_environment_and_shown_nowhere(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    with TruthServer(ttft_ms=5, tpot_ms=1, api_key="s3cr3t-k3y") as server:
        refused = run(server.url, *SHORT)
        assert refused.status == 1
        assert "--api-key-env" in refused.err
        monkeypatch.setenv("MY_KEY", "s3cr3t-k3y")
        ended = run(server.url, *SHORT, "--api-key-env", "MY_KEY", "--out", str(kept))
    assert ended.status == 0, ended.err
    assert document(kept / "result.json")["asked"]["api_key"] is True
    assert "s3cr3t-k3y" not in ended.out + ended.err
    for path in kept.rglob("*"):
        assert b"s3cr3t-k3y" not in path.read_bytes()


# --------------------------------------------------------------------------------------------------------------------
# prompts of an exact length where the vocabulary is not known


def test_ids_come_from_the_servers_own_tokenizer(truth: TruthServer) -> None:
    found = of_server(truth.url, "truth", timeout_s=10)
    assert found.size - len(found.special_ids) > 1000
    assert found.max_model_len == 131_072
    prove(truth.url, "truth", found, timeout_s=10)


def test_without_tokenize_exact_prompts_are_refused_with_a_way_out(
    truth: TruthServer, run: Run, tmp_path: Path
) -> None:
    with Gateway(truth.url, tokenize=False) as gateway:
        ended = run(gateway.url, *SHORT)
        assert ended.status == 1
        assert "cannot be made" in ended.err
        assert "/tokenize gives no token ids (status 404)" in ended.err
        assert "--tokenizer" in ended.err
        chat = run(gateway.url, *SHORT, "--api", "chat", "--input-tokens", "40")
        assert chat.status == 1
        assert "/tokenize" in chat.err
        file = tmp_path / "r.json"
        ended = run(gateway.url, *SHORT, "--tokenizer", str(tokenizer(tmp_path / "tok")), "--json", str(file))
        assert ended.status == 0, ended.err
        assert document(file)["metrics"]["input_tokens_tokens"]["mean"] == 12


def test_a_server_that_counts_other_tokens_than_were_sent_is_refused(truth: TruthServer, run: Run) -> None:
    with Gateway(truth.url, more=1) as gateway:
        ended = run(gateway.url, *SHORT)
    assert ended.status == 1
    assert "counts 8 prompt tokens where 7 token ids were sent" in ended.err


def test_a_server_that_takes_no_ids_is_refused(truth: TruthServer, run: Run) -> None:
    with Gateway(truth.url, ids=False) as gateway:
        ended = run(gateway.url, *SHORT)
    assert ended.status == 1
    assert "takes no prompts of token ids (status 400: " in ended.err
    assert "expected a string" in ended.err


def test_a_tokenizers_file_gives_ids(tmp_path: Path) -> None:
    path = tokenizer(tmp_path / "tok")
    for given in (path, path.parent):
        assert of_tokenizer(given) == Vocabulary(size=500, special_ids=())
    for bad in (tmp_path, tmp_path / "nothing.json"):
        with pytest.raises(NoVocabulary, match=r"expected a tokenizer\.json"):
            of_tokenizer(bad)
    path.write_text("{}")
    with pytest.raises(NoVocabulary, match="no table of tokens"):
        of_tokenizer(path)
    path.write_text("{")
    with pytest.raises(NoVocabulary, match="not valid JSON"):
        of_tokenizer(path)


# --------------------------------------------------------------------------------------------------------------------
# no result


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--concurrency", "2", "--rate", "3"], "either a concurrency or a rate"),
        (["--requests", "5", "--duration", "1"], "either a number of requests or a duration"),
        (["--rate", "0"], "rate"),
        (["--concurrency", "0"], "concurrency: expected a whole number from 1"),
        (["--concurrency", "-1"], "concurrency: expected a whole number from 1"),
        (["--output-tokens", "0"], "--output-tokens"),
        (["--api", "chta"], "did you mean 'chat'"),
        (["--arrivals", "gamma", "--rate", "1"], "gamma needs --burstiness"),
        (["--slo", "ttft"], "ttft=MILLISECONDS"),
        (["--slo", "ttfft=3"], "did you mean 'ttft'"),
        (["--slo", "ttft=-1"], "MILLISECONDS"),
        (["--engine", "vlm"], "did you mean 'vllm'"),
        (["--engine", "vllm=/nowhere"], "expected a venv"),
        (["--engine", "vllm", "--slo", "ttft=5"], "--slo is for neuronbench's own client"),
        (["--nonsense"], "No such option"),
        (["--processes", "9"], "processes: expected 1 to 4"),
        (["--input-tokens", "131070"], "do not fit the model's context"),
        (["--dataset", "/nowhere.jsonl"], "/nowhere.jsonl"),
    ],
)
def test_wrong_usage_is_told_with_status_2(truth: TruthServer, run: Run, arguments: list[str], words: str) -> None:
    base = [] if arguments[0] in ("--concurrency", "--rate", "--requests") or "--rate" in arguments else SHORT
    ended = run(truth.url, *base, *arguments)
    assert ended.status == 2
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_results_are_not_mixed(truth: TruthServer, run: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "something").write_text("")
    ended = run(truth.url, *SHORT, "--out", str(tmp_path / "kept"))
    assert ended.status == 2
    assert "not empty" in ended.err


def test_a_model_that_is_not_served(truth: TruthServer, run: Run) -> None:
    ended = run(truth.url, *SHORT, "--model", "gpt-9")
    assert ended.status == 1
    assert "serves truth, not 'gpt-9'" in ended.err


def test_nobody_there(run: Run) -> None:
    assert run("http://127.0.0.1:1", *SHORT).status == 1
    ended = run("ftp://x", *SHORT)
    assert ended.status == 2
    assert "http://HOST:PORT" in ended.err


def test_a_server_that_dies_leaves_a_result_that_says_so(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        killer = threading.Thread(target=_kill_when_busy, args=(server,))
        killer.start()
        ended = run(server.url, "--concurrency", "2", "--duration", "250", "--output-tokens", "4", "--json", str(file))
        killer.join()
    assert ended.status == 1
    data = document(file)
    assert data["status"] == "server_gone"
    assert "SERVER_GONE" in ended.out
    assert data["window"]["partial"] is True
    assert {gate["id"]: gate["passed"] for gate in data["gates"]}["window_complete"] is False


def _kill_when_busy(server: TruthServer) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and server.truth(records=False)["summary"]["requests"] < 40:
        time.sleep(0.05)
    os.kill(server.pid, signal.SIGKILL)


# --------------------------------------------------------------------------------------------------------------------
# how it looks


def test_progress_is_one_line_on_a_terminal(truth: TruthServer, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "neuronbench.cli",
        "--root",
        str(tmp_path),
        "load",
        truth.url,
        "--concurrency",
        "2",
    ]
    process = subprocess.Popen(
        [*command, "--duration", "3", "--input-tokens", "8", "--output-tokens", "4"],
        stdout=subprocess.DEVNULL, stderr=slave,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent), "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    os.close(slave)
    said = b""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 1)[0]:
            continue
        try:
            said += os.read(master, 4096)
        except OSError:  # the other end is closed
            break
    os.close(master)
    assert process.wait(200) == 0
    text = said.decode()
    assert "\r\x1b[K" in text
    assert "req/s" in text
    assert "in flight" in text
    assert "\n" not in text.replace("\r\n", "")


def test_metrics_are_nested_by_definition_and_unit() -> None:
    found = nested(
        [
            metric("ttft", 5.0, stat="p50", n=10),
            metric("ttft", 4.0, stat="ok_p50", n=8),
            metric("ttft", None, stat="p99", n=10, note="too few"),
            metric("achieved_rate", 9.5, n=10),
            metric("acceptance_rate", 0.5, n=4),
            metric("acceptance_rate", 0.4, stat="pos0", n=4),
        ]
    )
    assert found == {
        "ttft_ms": {"n": 10, "definition": "ttft@1", "p50": 5.0, "ok_p50": 4.0, "p99": None},
        "achieved_rate_req_s": 9.5,
        "acceptance_rate_share": {"n": 4, "definition": "acceptance_rate@1", "pos0": 0.4, "value": 0.5},
    }


def test_a_result_without_a_number_is_none() -> None:
    job = Job(url="http://x", model="m", concurrency=1)
    assert not Result(job=job, engine={"name": "native"}, status="ok").measured
    assert not Result(job=job, engine={"name": "native"}, status="ok", metrics=[metric("ttft", None)]).measured
    assert Result(job=job, engine={"name": "native"}, status="ok", metrics=[metric("e2e", 1.0)]).measured


def test_a_job_counts_what_it_was_not_told() -> None:
    assert Job(url="u", model="m", rate=20, duration_s=3).count == 60
    assert Job(url="u", model="m", rate=20, requests=30).seconds == 1.5
    assert Job(url="u", model="m", concurrency=3).count == 100
    assert Job(url="u", model="m", concurrency=3).seconds is None
    assert "k3y" not in repr(Job(url="u", model="m", concurrency=3, api_key="k3y"))
