"""`measure.token_accuracy` with a real worker for the reference and a real HTTP server: right, nearly right, wrong."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from neuronbench import config, measure_tokens
from neuronbench.measure import Measure
from neuronbench.model import FrozenMap, Outcome, Point, Record, ResourceRef, ResourceSpec, Validity
from neuronbench.plugins import Plugins
from neuronbench.protocols import PointFailure
from neuronbench.serving import identity
from neuronbench.serving.server import OpenAIServer
from neuronbench.session import Session

HANDLERS = Path(__file__).parent / "fake_causal"
sys.path.insert(0, str(HANDLERS))
from language import WORDS, is_tie, likeliest  # type: ignore[import-not-found] # noqa: E402

TEXTS = [f"{row} {row + 1} {2 * row + 5} {row % 7} 9 9" for row in range(12)]


def plain(before: Sequence[int], row: int) -> int:
    return int(likeliest(before)[0][0])


def tied(before: Sequence[int], row: int) -> int:
    """Says the other word where two are all but equally likely."""
    return int(likeliest(before)[0][1 if is_tie(before) else 0])


def slips(before: Sequence[int], row: int) -> int:
    """Says an unlikely word once in a while, as a kernel that is wrong at the end of a tile would."""
    return int(likeliest(before)[0][2 if before[-1] % 9 == 0 else 0])


def decodes_wrong(before: Sequence[int], row: int) -> int:
    """Right after the prompt, wrong in all further steps: prefill alone would never show it."""
    return plain(before, row) if len(before) in (4, 5) else (plain(before, row) + 1) % WORDS


def always_the_same(before: Sequence[int], row: int) -> int:
    return 5


class Server:
    """Continues tokens as `choose` says."""

    def __init__(self, choose: Callable[[Sequence[int], int], int], shape: str = "ids") -> None:
        self.asked: list[dict[str, Any]] = []
        outer, lock = self, threading.Lock()

        class Answer(BaseHTTPRequestHandler):
            def log_message(self, *words: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply(200, {})

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.asked.append(asked)
                said = list(asked["prompt"])
                for _ in range(asked["max_tokens"]):
                    said.append(choose(said, 0))
                new = said[len(asked["prompt"]) :]
                if shape == "error":
                    self.reply(500, {"error": "out of luck"})
                    return
                choice: dict[str, Any] = {"text": "..."}
                if shape == "short":
                    new = new[:-1]
                if asked.get("return_token_ids") and shape != "text":
                    choice["token_ids"] = new
                if asked.get("logprobs"):
                    words = [f"token_id:{token}" if shape != "text" else "word" for token in new]
                    likely = [float("nan") if shape == "nan" and i == 1 else -0.45 for i in range(len(new))]
                    choice["logprobs"] = {"tokens": words, "token_logprobs": likely}
                self.reply(200, {"choices": [choice]})

            def reply(self, status: int, document: Any) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class Bench:
    """A session with a model's folder; `ask` measures one server."""

    def __init__(self, root: Path) -> None:
        self.session = Session(
            config.load(root, environ={"NEURONBENCH_CACHE_DIR": str(root / "cache")}), Plugins(entry_points=False)
        )
        self.session._sinks = []
        self.folder = root / "model"
        self.folder.mkdir()
        (self.folder / "config.json").write_text("{}")
        self.servers: list[Server] = []

    def endpoint(self, server: Server, **facts: Any) -> OpenAIServer:
        self.servers.append(server)
        spec = ResourceSpec(kind="endpoint", backend="fake", provider="fake", settings=FrozenMap(model="m", seqs=8))
        weights = {"path": str(self.folder), "weights_digest": "w1"}
        known = {
            "model": weights, "stack": {"python": sys.executable, "packages": {"torch": "2"}},
            "artifact": identity.artifact(spec, weights=weights, versions={"torch": "2"}, target={"cpu": "x"}),
        }  # fmt: skip
        return OpenAIServer(spec=spec, base_url=server.url, model="m", facts=facts or known)

    def point(self, name: str) -> tuple[Measure, Any]:
        point = Point(benchmark="b.py::f", lane="serving", backend="fake", params=FrozenMap(), id=name)
        opened = self.session.open_record(point)
        return Measure(self.session, opened), opened

    def end(self, opened: Any, endpoint: OpenAIServer, outcome: Outcome = Outcome.OK) -> Record:
        opened.record.resource = ResourceRef(id="e", kind="endpoint", spec=FrozenMap(), facts=FrozenMap(endpoint.facts))
        self.session.commit(opened, outcome)
        return opened.record

    def asked(self) -> int:
        path = self.folder / "asked.log"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(measure_tokens, "COMMON_HANDLERS", HANDLERS)
    monkeypatch.setattr(measure_tokens, "TOP", 3)
    made = Bench(tmp_path)
    yield made
    for server in made.servers:
        server.stop()
    made.session.close(0)


def measured(bench: Bench, choose: Any, name: str = "p", shape: str = "ids", **options: Any) -> tuple[Any, Record, Any]:
    endpoint = bench.endpoint(Server(choose, shape))
    measure, opened = bench.point(name)
    found = measure.token_accuracy(endpoint, TEXTS, prompt_tokens=4, output_tokens=12, **options)
    return found, bench.end(opened, endpoint), endpoint


def failed(record: Record) -> set[str]:
    return {gate.id for gate in record.gates if gate.passed is False}


def test_the_same_tokens_are_right_and_asked_for_once(bench: Bench) -> None:
    found, record, endpoint = measured(bench, plain)
    assert found.passed is True
    assert failed(record) == set()
    assert record.validity is Validity.VALID
    values = {key: metric.value for key, metric in record.metrics.items()}
    assert (values["accuracy_ratio"], values["agreement_share"], values["exact_match_share"]) == (1, 1, 1)
    assert values["token_gap_max_nats"] == 0
    (part,) = record.workload["accuracy"]
    assert (part["requests"], part["weight"], part["kept"]["cache"]) == (12, 144, "miss")
    assert part["artifact"] == endpoint.facts["artifact"]["key"]
    assert part["protocol"]["model.weights_digest"] == "w1"
    asked = bench.servers[0].asked
    assert sorted(one["prompt"] for one in asked) == sorted([int(word) for word in text.split()[:4]] for text in TEXTS)
    assert all(one["temperature"] == 0 and one["ignore_eos"] and "logprobs" not in one for one in asked)


def test_a_near_tie_spoils_nothing_and_what_follows_is_judged_after_the_references_words(bench: Bench) -> None:
    found, record, _ = measured(bench, tied)
    assert found.passed is True
    assert failed(record) == set()
    values = {key: metric.value for key, metric in record.metrics.items()}
    assert values["accuracy_ratio"] == 1
    assert 0.5 < values["agreement_share"] < 1
    assert values["token_gap_max_nats"] == pytest.approx(0.05, abs=1e-6)
    rows = parquet.read_table(bench.session.store.root / record.receipt_id / "tokens.parquet").to_pylist()
    assert len(rows) == 144
    other = [row for row in rows if row["token"] != row["reference_token"]]
    assert other
    for row in other:  # each after the reference's own beginning
        before = [int(word) for word in TEXTS[row["prompt"]].split()[:4]]
        before += [each["reference_token"] for each in rows if each["prompt"] == row["prompt"]][: row["position"]]
        assert row["token"] == tied(before, 0)
    assert record.workload["accuracy"][0]["requests"] > 12
    strict, again, _ = measured(bench, tied, name="strict", tie_nats=0.01)
    assert strict.passed is False
    assert failed(again) == {"accuracy"}


@pytest.mark.parametrize("choose", [slips, decodes_wrong, always_the_same])
def test_wrong_tokens_make_the_record_and_the_performance_of_that_server_invalid(bench: Bench, choose: Any) -> None:
    found, record, endpoint = measured(bench, choose)
    assert found.passed is False
    assert "accuracy" in failed(record)
    assert record.validity is Validity.INVALID
    measure, opened = bench.point("speed")
    measure.metric("ttft", 5.0, stat="p50")
    speed = bench.end(opened, endpoint)
    assert failed(speed) == {"accuracy_evidence"}
    assert speed.validity is Validity.INVALID


def test_performance_stands_on_the_accuracy_of_the_same_weights_and_configuration(bench: Bench) -> None:
    server = Server(plain)
    endpoint = bench.endpoint(server)

    def speed(name: str, of: OpenAIServer) -> Record:
        measure, opened = bench.point(name)
        measure.metric("ttft", 5.0, stat="p50")
        return bench.end(opened, of)

    before = speed("before", endpoint)
    assert before.validity is Validity.PROVISIONAL
    assert f"no accuracy record of artifact {endpoint.facts['artifact']['key']}" in before.gates[-1].message
    assert before.gates[-1].message.endswith("run a benchmark with measure.token_accuracy on it")
    measure, opened = bench.point("accuracy")
    measure.token_accuracy(endpoint, TEXTS, prompt_tokens=4, output_tokens=12)
    bench.end(opened, endpoint)
    assert speed("after", endpoint).validity is Validity.VALID
    external = OpenAIServer(spec=endpoint.spec, base_url=server.url, model="m", facts={"external": True})
    theirs = speed("external", external)
    assert theirs.validity is Validity.PROVISIONAL
    assert "somebody else runs the server" in theirs.gates[-1].message


def test_the_reference_is_made_once_for_weights_and_prompts(bench: Bench) -> None:
    for number in range(3):
        measured(bench, plain, name=f"p{number}")
    assert bench.asked() == 1
    (file,) = (bench.session.settings.cache_dir / "references").glob("*/answers.npz")
    file.write_bytes(b"x" + file.read_bytes()[1:])
    _, record, _ = measured(bench, plain, name="damaged")
    assert bench.asked() == 2
    assert "the reference in the cache was damaged" in record.notes[0]
    measured(bench, plain, name="again")
    assert bench.asked() == 2


def test_likelihoods_are_compared_where_they_are_asked_for(bench: Bench) -> None:
    found, record, _ = measured(bench, plain, likelihoods=True)
    assert found.passed is True
    assert record.metrics["max_abs_err"].value == pytest.approx(0.05, abs=1e-6)
    assert all(one["logprobs"] == 1 and one["return_tokens_as_token_ids"] for one in bench.servers[0].asked)
    found, record, _ = measured(bench, plain, name="nan", shape="nan", likelihoods=True)
    assert found.passed is False
    assert "finite_outputs" in failed(record)


@pytest.mark.parametrize(
    ("shape", "likelihoods", "kind"),
    [("text", False, "no_token_ids"), ("text", True, "no_token_ids"), ("error", False, "generation_failed"),
     ("short", False, "generation_failed")],
)  # fmt: skip
def test_a_server_that_does_not_answer_as_it_should_is_a_classified_failure(
    bench: Bench, shape: str, likelihoods: bool, kind: str
) -> None:
    with pytest.raises(PointFailure) as caught:
        measured(bench, plain, shape=shape, likelihoods=likelihoods)
    assert caught.value.failure.kind == kind
    assert caught.value.failure.phase == "check"


def test_a_server_whose_weights_are_not_known_cannot_be_judged(bench: Bench) -> None:
    endpoint = bench.endpoint(Server(plain), external=True)
    measure, _ = bench.point("p")
    with pytest.raises(PointFailure) as caught:
        measure.token_accuracy(endpoint, TEXTS, prompt_tokens=4, output_tokens=4)
    assert caught.value.failure.kind == "no_reference"
    assert "somebody else" in caught.value.failure.cause


def test_a_text_that_is_too_short_is_named(bench: Bench) -> None:
    endpoint = bench.endpoint(Server(plain))
    measure, _ = bench.point("p")
    with pytest.raises(ValueError, match="1 texts have fewer than 5 tokens, such as '1 2 3'"):
        measure.token_accuracy(endpoint, [*TEXTS, "1 2 3"], prompt_tokens=5, output_tokens=4)


def test_the_identity_of_a_server_is_its_weights_and_configuration() -> None:
    def key(weights: str = "w", versions: Any = None, target: Any = None, **settings: Any) -> Any:
        spec = ResourceSpec(kind="endpoint", backend="b", provider="p", settings=FrozenMap(settings))
        return identity.artifact(
            spec, weights={"weights_digest": weights}, versions=versions or {"vllm": "1"}, target=target or {"cpu": "a"}
        ).get("key")

    base = key(model="hub:a/b", dtype="bfloat16")
    assert key(model="file:/elsewhere", served_model="x", dtype="bfloat16") == base  # only names
    others = [
        key(dtype="float16"), key("w2", dtype="bfloat16"), key(versions={"vllm": "2"}, dtype="bfloat16"),
        key(target={"cpu": "b"}, dtype="bfloat16"), key(dtype="bfloat16", engine_args={"quantization": "fp8"}),
    ]  # fmt: skip
    assert len({base, *others}) == 6
    assert key("", dtype="bfloat16") is None


def test_a_row_that_parts_all_the_time_is_given_up_and_counts_as_wrong() -> None:
    from neuronbench.accuracy import greedy

    reference = np.zeros((1, 40), dtype="int64")
    walked = greedy.walk(reference, lambda wanted: [([1] * each.count, None) for each in wanted])
    assert walked.requests == 11
    assert (walked.tokens[0, :11] == 1).all()
    assert (walked.tokens[0, 11:] == greedy.MISSING).all()
    top = np.array([[[0, 1, 2]] * 40])
    found = greedy.gaps({"tokens": walked.tokens}, {
        "tokens": reference, "top_ids": top, "top_logprobs": np.array([[[-0.5, -0.6, -3.0]] * 40]),
    })  # fmt: skip
    assert np.allclose(found[0, :11], 0.1)
    assert np.isinf(found[0, 11:]).all()
