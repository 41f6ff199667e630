"""What a server says of a window: from telemetry that shows a compile, padding, a cap, or nothing at all."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron.serving import evidence, told, watch
from neuronbench_neuron.serving.buckets import BucketMap
from neuronbench_neuron.serving.counters import EXECUTIONS, SEQS, TOKENS, Counters

from neuronbench import witness as witnesses
from neuronbench.model import Gate, Metric
from neuronbench.telemetry.prometheus import Prometheus
from neuronbench.telemetry.table import Telemetry

SAMPLE = Path(__file__).parents[2] / "data/neuron_vllm/metrics.txt"
SECOND = 1_000_000_000
START, END = 10 * SECOND, 20 * SECOND
BUCKETS = BucketMap(prefill=(128, 1024), decode=(1, 4), source="configuration")


@contextmanager
def exposed(text: str) -> Iterator[str]:
    """A server whose /metrics is `text`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text.encode("utf-8", "surrogateescape")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def scraped(text: str) -> Mapping[str, float | None]:
    with exposed(text) as url:
        sampler = Prometheus(url, prefixes=["vllm:", "vllm_neuron:"])
        try:
            return dict(sampler.read())
        finally:
            sampler.close()


def telemetry(*samples: tuple[int, str, Mapping[str, float | None]]) -> Telemetry:
    """(second, sampler, values)"""
    made = Telemetry()
    for second, sampler, values in samples:
        made.add(second * SECOND, second * SECOND, sampler, values)
    return made


def times(values: Mapping[str, float | None], factor: float) -> dict[str, float | None]:
    """The same with counters that went on; gauges of compiling stay."""
    return {
        name: value if value is None or "compilation_time" in name or "startup" in name else value * factor
        for name, value in values.items()
    }


@pytest.fixture(scope="module")
def sample() -> Mapping[str, float | None]:
    return scraped(SAMPLE.read_text(encoding="utf-8"))


def requests(folder: Path, *rows: tuple[int | None, int, int | None]) -> Path:
    """A table of requests: prompt tokens, second sent, second ended."""
    table = {
        "worker": arrow.array([0] * len(rows), arrow.int32()),
        "request_id": arrow.array(list(range(len(rows))), arrow.int64()),
        "in_window": [START <= sent * SECOND < END for _, sent, _ in rows],
        "ok": [end is not None for _, _, end in rows],
        "input_tokens": arrow.array([tokens for tokens, _, _ in rows], arrow.int64()),
        "asked_input_tokens": arrow.array([tokens for tokens, _, _ in rows], arrow.int64()),
        "sent_ns": arrow.array([sent * SECOND for _, sent, _ in rows], arrow.int64()),
        "end_ns": arrow.array([None if end is None else end * SECOND for _, _, end in rows], arrow.int64()),
    }
    parquet.write_table(arrow.table(table), folder / "requests.parquet")
    return folder / "requests.parquet"


def said_of(
    folder: Path,
    sampled: Telemetry,
    *rows: tuple[int | None, int, int | None],
    window: Mapping[str, Any] | None = None,
    **known: Any,
) -> witnesses.Testimony:
    facts: dict[str, Any] = {
        "buckets": BUCKETS,
        "sequences": 4,
        "capped": None,
        "cache": {"state": "warm"},
        "reports": True,
    }
    seen = witnesses.SeenWindow(
        folder=folder,
        requests=requests(folder, *(rows or ((100, 11, 12), (900, 12, 14)))),
        window=window or {"start_ns": START, "end_ns": END, "seconds": 10.0},
        workload={},
        telemetry=sampled,
    )
    return evidence.testify(seen, evidence.Known(**{**facts, **known}))


def gate(said: witnesses.Testimony, id: str) -> Gate:
    return next(gate for gate in said.gates if gate.id == id)


def metric(said: witnesses.Testimony, key: str) -> Metric:
    return {metric.key: metric for metric in said.metrics}[key]


# -- the sample, as it is and broken


def test_the_sample_is_read_by_bucket(sample: Mapping[str, float | None]) -> None:
    seen = telemetry((9, "metrics", sample), (19, "metrics", times(sample, 2.0)))
    counters = Counters(seen, START, END)
    assert counters.delta(EXECUTIONS) == 850
    assert counters.names() == ["decode_b4", "decode_b4_ctx2048", "prefill_s1024", "prefill_s128"]
    tokens, seqs = counters.padding(TOKENS, "prefill"), counters.padding(SEQS, "decode")
    assert tokens is not None
    assert seqs is not None
    assert (dict(tokens.steps), tokens.padded) == ({128: 40, 1024: 10}, 3360)
    assert tokens.useful == 40 * 128 + 10 * 1024 - 3360
    assert (seqs.computed, seqs.padded) == (3200, 800)
    assert counters.compiled() == []


def test_times_of_the_start_are_read_from_the_sample(sample: Mapping[str, float | None]) -> None:
    assert told.read(sample) == {
        "startup_time_seconds": 300.5,
        "model_load_time_seconds": 20.25,
        "model_load_size_bytes": 1.6e10,
        "compilation_time_seconds": {"prefill_s128": 71.25, "prefill_s1024": 88.5, "decode_b4_ctx2048": 0.125},
    }
    assert told.read({"vllm_neuron:startup_time_seconds": float("nan"), "vllm:x": 1.0}) == {}
    assert told.by_metrics(None) == {}


def test_shared_sample_is_read_where_it_is_at_hand() -> None:
    shared = os.environ.get("NEURONBENCH_SHARED")
    if not shared or not (Path(shared) / "reference/samples/vllm_neuron_metrics.txt").is_file():
        pytest.skip("NEURONBENCH_SHARED names no folder with reference/samples/vllm_neuron_metrics.txt")
    found = scraped((Path(shared) / "reference/samples/vllm_neuron_metrics.txt").read_text(encoding="utf-8"))
    counters = Counters(telemetry((9, "metrics", found), (19, "metrics", found)), START, END)
    assert counters.names() == ["prefill_s128"]
    assert counters.delta(EXECUTIONS) == 0
    assert counters.padding(TOKENS, "prefill") is None  # its excerpt has no sum


@pytest.mark.parametrize("seed", range(40))
def test_a_mutated_sample_never_crashes_and_never_becomes_zero(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    kind = seed % 5
    if kind == 0:  # lines are lost
        lines = [line for line in lines if rng.random() > 0.4]
    elif kind == 1:  # a value is none
        lines = [line.rpartition(" ")[0] + " NaN" if rng.random() > 0.6 and " " in line else line for line in lines]
    elif kind == 2:  # cut off
        text = "\n".join(lines)
        lines = text[: rng.randrange(len(text))].splitlines()
    elif kind == 3:  # labels are lost
        lines = [line.replace("bucket_name", rng.choice(["bucket", "bucket_name"])) for line in lines]
    else:  # letters are swapped
        at = rng.randrange(len(lines))
        lines[at] = lines[at].replace(rng.choice('_{="'), rng.choice("_ }#"), 1)
    try:
        found = scraped("\n".join(lines) + "\n")
    except ValueError:
        return  # the scrape fails as a whole: no sample, which is the sampler's error and no number
    said = said_of(tmp_path, telemetry((9, "metrics", found), (19, "metrics", times(found, 2.0))))
    for one in said.metrics:
        assert one.value is None or one.value > 0, one
        assert one.value is not None or one.note


# -- compiles


def quiet(modules: float = 5.0) -> list[tuple[int, str, dict[str, float | None]]]:
    return [(second, watch.NAME, {"modules": modules, "log_compiles": 0.0, "log_hits": 0.0}) for second in range(8, 23)]


def test_a_window_without_compiles_says_who_saw_none(tmp_path: Path, sample: Mapping[str, float | None]) -> None:
    seen = telemetry(*quiet(), *((second, "metrics", sample) for second in range(8, 23)))
    found = gate(said_of(tmp_path, seen), "compiled_in_window")
    assert found.passed is True
    assert found.message == "witnesses: modules, log_compiles, metrics"


@pytest.mark.parametrize("witness", ["modules", "log_compiles", "metrics", "new_bucket"])
def test_one_witness_of_a_compile_is_enough(tmp_path: Path, sample: Mapping[str, float | None], witness: str) -> None:
    samples: list[tuple[int, str, dict[str, float | None]]] = []
    for second, name, values in quiet():
        later = {**values, witness: (values.get(witness) or 0.0) + 1} if second >= 15 and witness in values else values
        samples.append((second, name, later))
    for second in range(8, 23):
        values = dict(sample)
        if second >= 15 and witness == "metrics":
            key = next(name for name in values if "compilation_time" in name and "prefill_s128" in name)
            values[key] = 99.0
        if second >= 15 and witness == "new_bucket":
            values['vllm_neuron:compilation_time_seconds{bucket_name="prefill_s512",model_name="x"}'] = 3.0
        samples.append((second, "metrics", values))
    found = gate(said_of(tmp_path, telemetry(*samples)), "compiled_in_window")
    assert found.passed is False
    assert found.severity == "invalid"
    expected: dict[str, Any] = {"metrics": {"metrics": ["prefill_s128"]}, "new_bucket": {"metrics": ["prefill_s512"]}}
    assert found.observed == expected.get(witness, {witness: 1})


@pytest.mark.parametrize("second", [9, 21])
def test_a_compile_outside_the_window_does_not_count(tmp_path: Path, second: int) -> None:
    samples = [(at, name, {**values, "modules": 5.0 + (at >= second)}) for at, name, values in quiet()]
    found = gate(said_of(tmp_path, telemetry(*samples)), "compiled_in_window")
    assert found.passed is True


def test_a_compile_between_the_last_sample_and_the_end_counts(tmp_path: Path) -> None:
    samples = [
        (8, watch.NAME, {"modules": 5.0}),
        (19, watch.NAME, {"modules": 5.0}),
        (21, watch.NAME, {"modules": 6.0}),
    ]
    assert gate(said_of(tmp_path, telemetry(*samples)), "compiled_in_window").passed is False


def test_without_a_witness_the_gate_does_not_pass(tmp_path: Path) -> None:
    assert gate(said_of(tmp_path, telemetry()), "compiled_in_window").passed is None
    late = telemetry((15, watch.NAME, {"modules": 5.0}), (21, watch.NAME, {"modules": 5.0}))
    assert gate(said_of(tmp_path, late), "compiled_in_window").passed is None


# -- the device, concurrency


def test_tokens_that_the_device_did_not_compute_are_none(tmp_path: Path, sample: Mapping[str, float | None]) -> None:
    used = said_of(tmp_path, telemetry((9, "metrics", sample), (19, "metrics", times(sample, 2.0))))
    assert gate(used, "device_executions").passed is True
    assert metric(used, "device_executions_executions").value == 850
    idle = said_of(tmp_path, telemetry((9, "metrics", sample), (19, "metrics", sample)))
    assert gate(idle, "device_executions").passed is False
    assert gate(idle, "device_executions").severity == "invalid"
    silent = said_of(tmp_path, telemetry())
    assert gate(silent, "device_executions").passed is None
    assert metric(silent, "device_executions_executions").value is None
    older = said_of(tmp_path, telemetry(), reports=False)
    assert not any(gate.id == "device_executions" for gate in older.gates)


@pytest.mark.parametrize(
    ("at_once", "capped", "passed", "severity"),
    [(2, None, True, "info"), (5, None, False, "info"), (2, 2, True, "provisional"), (3, 2, False, "provisional")],
)
def test_more_requests_than_the_server_works_on_mark_the_point(
    tmp_path: Path, at_once: int, capped: int | None, passed: bool, severity: str
) -> None:
    rows = [(100, 11, 15)] * at_once + [(100, 16, 17)]
    found = gate(said_of(tmp_path, telemetry(), *rows, capped=capped), "effective_concurrency")
    assert (found.passed, found.severity, found.observed) == (passed, severity, at_once)
    assert found.limit == (capped or 4)
    assert passed or "waited" in found.message


def test_requests_before_and_after_the_window_are_no_concurrency(tmp_path: Path) -> None:
    rows = [(100, 1, 9)] * 9 + [(100, 11, 12), (100, 19, 25)] + [(100, 21, 22)] * 9
    assert gate(said_of(tmp_path, telemetry(), *rows), "effective_concurrency").observed == 1


# -- buckets


def test_padding_is_told_for_each_request_and_for_the_window(tmp_path: Path) -> None:
    said = said_of(tmp_path, telemetry(), (100, 5, 6), (100, 11, 12), (128, 12, 13), (900, 13, 14), (5000, 14, 15),
                   (None, 15, 16), (200, 16, None))  # fmt: skip
    rows = parquet.read_table(tmp_path / said.tables["buckets"]).to_pylist()
    assert [row["bucket"] for row in rows] == [128, 128, 128, 1024, None, None, 1024]
    assert [row["padding_tokens"] for row in rows] == [28, 28, 0, 124, None, None, 824]
    assert [row["at_edge"] for row in rows] == [False, False, True, False, False, None, False]
    fill = metric(said, "prefill_fill_predicted_share")
    assert fill.value == pytest.approx((100 + 128 + 900) / (128 + 128 + 1024))
    assert fill.n == 3
    assert said.facts["buckets"]["prefill"] == [128, 1024]
    assert said.facts["prompts_at_an_edge"] == 1
    assert "1 prompts are exactly as long" in said.notes[0]


def test_what_the_server_counted_beside_what_was_predicted(tmp_path: Path, sample: Mapping[str, float | None]) -> None:
    seen = telemetry((9, "metrics", sample), (19, "metrics", times(sample, 2.0)))
    said = said_of(tmp_path, seen, *[(100, 11, 12)] * 4, (900, 12, 13))
    assert metric(said, "prefill_fill_counted_share").value == pytest.approx(12000 / 15360)
    assert metric(said, "decode_fill_counted_share").value == pytest.approx(0.75)
    assert metric(said, "useful_compute_share").value == pytest.approx((12000 + 2400) / (15360 + 3200))
    assert gate(said, "bucket_map").passed is True
    other = said_of(tmp_path, seen, *[(128, 11, 12)] * 5)  # all predicted to 128, a fifth went to 1024
    found = gate(other, "bucket_map")
    assert found.passed is False
    assert found.severity == "info"
    assert found.observed == {"128": [1.0, 0.8], "1024": [0.0, 0.2]}


def test_sizes_that_only_metrics_tell(tmp_path: Path, sample: Mapping[str, float | None]) -> None:
    said = said_of(tmp_path, telemetry((9, "metrics", sample), (19, "metrics", sample)), buckets=BucketMap())
    assert said.facts["buckets"]["prefill"] == [128, 1024]
    assert said.facts["buckets"]["source"] == "metrics"
    unknown = said_of(tmp_path, telemetry(), buckets=BucketMap())
    assert metric(unknown, "prefill_fill_predicted_share").value is None
    assert "not known" in metric(unknown, "prefill_fill_predicted_share").note


def test_sequences_from_samples_where_padding_is_not_counted(tmp_path: Path) -> None:
    running = telemetry(*((second, "metrics", {'vllm:num_requests_running{engine="0"}': float(second % 4)})
                          for second in range(8, 23)))  # fmt: skip
    found = metric(said_of(tmp_path, running, reports=False), "decode_fill_sampled_share")
    # of 10 to 20: 1 of 1, 2 of 4, 3 of 4, and those without a request left out
    assert found.value == pytest.approx((2 * 1 + 3 * 2 + 3 * 3) / (2 * 1 + 3 * 4 + 3 * 4))
    assert found.n == 8


def test_a_window_that_never_opened_has_its_facts_only(tmp_path: Path) -> None:
    said = said_of(tmp_path, telemetry(), window={"start_ns": None, "end_ns": None})
    assert not said.metrics
    assert not said.gates
    assert said.facts["compile_cache"] == {"state": "warm"}


# -- the sampler


def test_the_watch_counts_modules_and_lines(tmp_path: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "server.log"
    log.write_text("Call compiler with cmd: before\n", encoding="utf-8")
    sampler = watch.CompileWatch(str(cache), None, str(log))
    assert sampler.read() == {"modules": 0.0, "log_compiles": 0.0, "log_hits": 0.0}
    module = cache / "neuronxcc-2.21.33363.0+82129205" / "MODULE_1+2"
    module.mkdir(parents=True)
    begun = sampler.read()["modules"]
    (module / "model.done").touch()
    done = sampler.read()["modules"]
    assert begun is not None
    assert done is not None
    assert 0 < begun < done
    with log.open("a", encoding="utf-8") as file:
        file.write("INFO ||NEURON_CC_WRAPPER||: Call compiler with cmd: neuronx-cc\nLocal cache hit for k")
        file.flush()
        assert sampler.read()["log_compiles"] == 1.0
        file.write("ey: 0f\nCompilation complete in 93.41 seconds\n")
    values = sampler.read()
    assert (values["log_compiles"], values["log_hits"]) == (2.0, 1.0)


def test_a_watch_with_nothing_to_watch_says_nothing(tmp_path: Path) -> None:
    assert watch.CompileWatch(None, None, str(tmp_path / "none.log")).read() == {}
    assert watch.CompileWatch().read() == {}
