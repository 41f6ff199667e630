"""Every source: its figures under our ids where the definitions agree, null with a reason where they do not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuronbench.commands.host import CommandError
from neuronbench.commands.import_ import _told
from neuronbench.importers import KINDS, Imported, ImportFailure, gather, store
from neuronbench.model import Provenance
from neuronbench.receipts import ReceiptStore

VLLM = {
    "date": "20260301-101500", "backend": "openai", "model_id": "org/model", "request_rate": "inf", "burstiness": 1.0,
    "max_concurrency": 4, "duration": 20.0, "completed": 40, "failed": 0, "total_input_tokens": 40 * 128,
    "total_output_tokens": 40 * 64, "output_throughput": 128.0, "request_throughput": 2.0, "mean_ttft_ms": 51.0,
    "p50_ttft_ms": 50.0, "p90_ttft_ms": 55.0, "p99_ttft_ms": 60.0, "mean_tpot_ms": 10.1, "p50_tpot_ms": 10.0,
    "p99_tpot_ms": 12.0, "mean_itl_ms": 10.1, "p99_itl_ms": 14.0, "mean_e2el_ms": 690.0,
}  # fmt: skip
SUMMARY = {"mean": 0.05, "min": 0.04, "median": 0.049, "p90": 0.06, "p99": 0.07, "max": 0.08}
INFERENCE_PERF = {
    "load_summary": {"count": 20, "requested_rate": 2.0, "achieved_rate": 1.99},
    "successes": {
        "count": 20,
        "latency": {
            "request_latency": SUMMARY, "time_to_first_token": SUMMARY, "inter_token_latency": SUMMARY,
            "time_per_output_token": SUMMARY, "normalized_time_per_output_token": SUMMARY,
        },
        "throughput": {"output_tokens_per_sec": 100.0, "requests_per_sec": 2.0},
    },
    "failures": {"count": 0, "request_latency": None},
}  # fmt: skip
LLMPERF = {
    "version": "2023-08-31", "model": "org/model", "mean_input_tokens": 1000, "mean_output_tokens": 150,
    "num_concurrent_requests": 2, "results_ttft_s_quantiles_p50": 0.5, "results_ttft_s_quantiles_p99": 0.9,
    "results_ttft_s_mean": 0.55, "results_inter_token_latency_s_mean": 0.02, "results_number_errors": 0,
    "results_num_completed_requests": 50, "results_number_input_tokens_quantiles_p50": "1000",
}  # fmt: skip
BENCHMARK = {
    "machine_info": {"machine": "x86_64", "python_version": "3.11.7", "cpu": {"brand_raw": "Some CPU"}},
    "datetime": "2026-03-01T10:00:00+00:00",
    "benchmarks": [
        {"fullname": "test_a.py::test_sort[10]", "params": {"n": 10},
         "stats": {"min": 1e-3, "max": 3e-3, "mean": 2e-3, "median": 1.9e-3, "rounds": 7, "iterations": 1}},
        {"fullname": "test_a.py::test_sum", "params": None,
         "stats": {"min": 1e-3, "max": 3e-3, "mean": 2e-3, "median": 1.9e-3, "rounds": 9, "iterations": 1}},
    ],
}  # fmt: skip
NXDI = {
    "e2e_model": {"latency_ms_p50": 7057, "latency_ms_p99": 7077, "latency_ms_avg": 7058, "throughput": 72.6},
    "token_generation_model": {"latency_ms_p50": 20.5, "latency_ms_p99": 21.2, "throughput": 48.7},
}
OPTIMUM = {
    "metadata": {"timestamp": "2026-01-01T00:00:00", "total_training_steps": 100, "model_name": "org/model"},
    "metrics": {"summary/tokens_per_sec_avg": 10240.0, "summary/mfu_avg": 31.5},
}
GUIDELLM_STATS = {"successful": {"count": 10, "mean": 50.0, "max": 60.0, "min": 1.0,
                                 "percentiles": {"p50": 50.0, "p90": 55.0, "p99": 59.0}}}  # fmt: skip
GUIDELLM = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 4}},
            "requests": {"errored": []},
            "metrics": {
                "request_totals": {"successful": 10, "errored": 0, "incomplete": 1},
                "time_to_first_token_ms": GUIDELLM_STATS, "inter_token_latency_ms": GUIDELLM_STATS,
                "output_token_count": {"successful": {"min": 64, "max": 64, "mean": 64.0}},
                "prompt_token_count": {"successful": {"min": 16, "max": 16, "mean": 16.0}},
            },
        }
    ]
}  # fmt: skip
FIRST = [
    {"prompt_token_count": 16, "output_token_count": 4, "start_time": 100.0 + index, "end_time": 100.9 + index,
     "first_token_time": 0.050 + index / 1000, "decode_times": {"data": [0.010, 0.020, 0.030]}}
    for index in range(20)
]  # fmt: skip
GUIDELLM_FIRST = {
    "benchmarks": [
        {
            "benchmarks": [
                {"mode": "synchronous", "rate": None, "results": FIRST, "errors": []},
                {"mode": "asynchronous", "rate": 2.5, "results": FIRST[:4], "errors": [{"message": "refused"}]},
            ]
        }
    ]
}
AIPERF = {
    "request_count": {"unit": "requests", "avg": 10}, "is_complete": True, "start_time": "2026-03-01T10:00:00",
    "time_to_first_token": {"unit": "ms", "avg": 52.0, "p50": 50.0, "p90": 55.0, "p99": 60.0, "max": 61.0, "count": 10},
    "input_config": {"endpoint": {"model_names": ["org/model"]}, "loadgen": {"concurrency": 4}},
}  # fmt: skip
SOURCES: dict[str, tuple[str, Any]] = {
    "vllm": ("result.json", VLLM),
    "guidellm": ("result.json", GUIDELLM),
    "aiperf": ("profile_export_aiperf.json", AIPERF),
    "llmperf": ("x_summary.json", LLMPERF),
    "inference-perf": ("summary_lifecycle_metrics.json", INFERENCE_PERF),
    "pytest-benchmark": ("0001.json", BENCHMARK),
    "nxdi": ("benchmark_report.json", NXDI),
    "optimum-training": ("training_summary.json", OPTIMUM),
}


def test_every_kind_has_a_sample_here() -> None:
    assert set(SOURCES) <= set(KINDS)


def one(kind: str, folder: Path, content: Any = None) -> list[Imported]:
    name, sample = SOURCES[kind]
    path = folder / name
    path.write_text(json.dumps(sample if content is None else content), encoding="utf-8")
    return gather(KINDS[kind], folder)


def values(item: Imported) -> dict[str, float | None]:
    return {metric.key: metric.value for metric in item.metrics}


@pytest.mark.parametrize(
    ("kind", "expected", "null"),
    [
        ("vllm", {"ttft_p50_ms": 50.0, "ttft_p99_ms": 60.0, "tpot_p50_ms": 10.0, "icl_p99_ms": 14.0,
                  "output_tokens_mean_tokens": 64.0}, "output_throughput_tok_s"),
        ("guidellm", {"ttft_p50_ms": 50.0, "tpot_p99_ms": 59.0}, "icl_p50_ms"),
        ("aiperf", {"ttft_p99_ms": 60.0}, "output_throughput_tok_s"),
        ("llmperf", {"ttft_p50_ms": 500.0, "ttft_p99_ms": 900.0}, "tpot_p50_ms"),
        ("inference-perf", {"ttft_p50_ms": 49.0, "icl_p99_ms": 70.0}, "tpot_p50_ms"),
        ("pytest-benchmark", {"call_time_p50_ms": 1.9, "call_time_mean_ms": 2.0}, None),
        ("nxdi", {"latency_p50_ms": 7057.0, "latency_p99_ms": 7077.0}, "latency_p90_ms"),
        ("optimum-training", {}, "train_throughput_tok_s"),
    ],
)  # fmt: skip
def test_figures_of_our_definition_and_no_others(
    kind: str, expected: dict[str, float], null: str | None, tmp_path: Path
) -> None:
    found = one(kind, tmp_path)[0]
    said = values(found)
    assert {key: said[key] for key in expected} == pytest.approx(expected)
    if null is not None:
        assert said[null] is None
        note = next(metric.note for metric in found.metrics if metric.key == null)
        assert kind == "nxdi" or note
    assert found.own


def test_vllm_without_further_options_has_a_median_and_p99(tmp_path: Path) -> None:
    """`--metric-percentiles` is 99 by default: the 50th is then there as the median only."""
    plain = {key: value for key, value in VLLM.items() if not key.startswith(("p50_", "p90_"))}
    said = values(one("vllm", tmp_path, {**plain, "median_ttft_ms": 49.0, "median_tpot_ms": 9.9})[0])
    assert (said["ttft_p50_ms"], said["tpot_p50_ms"], said["ttft_p99_ms"]) == (49.0, 9.9, 60.0)
    assert said["ttft_p90_ms"] is None
    assert values(one("vllm", tmp_path, {**VLLM, "median_ttft_ms": 49.0})[0])["ttft_p50_ms"] == 50.0


def test_vllm_writes_zero_for_what_nobody_observed(tmp_path: Path) -> None:
    """An endpoint that does not stream has no first token: the tool's percentiles of nothing are 0."""
    silent = {**VLLM, "p50_ttft_ms": 0.0, "p99_ttft_ms": 0.0, "mean_ttft_ms": 0.0, "median_ttft_ms": 0.0}
    said = values(one("vllm", tmp_path, silent)[0])
    assert (said["ttft_p50_ms"], said["ttft_p99_ms"], said["ttft_mean_ms"]) == (None, None, None)


def test_vllm_with_a_result_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("\n".join(json.dumps({**VLLM, "max_concurrency": number}) for number in (1, 2, 4)))
    found = gather(KINDS["vllm"], path)
    assert [item.params["concurrency"] for item in found] == [1, 2, 4]
    assert len({item.name for item in found}) == 3
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ImportFailure, match=r"results\.json"):
        gather(KINDS["vllm"], path)


@pytest.mark.parametrize("version", ["0.8", "0.5", "0.3"])
def test_the_versions_of_guidellm(version: str, tmp_path: Path) -> None:
    (newest,) = GUIDELLM["benchmarks"]
    metrics = dict(newest["metrics"])
    strategy = {"type_": "concurrent", "streams": 4}
    if version == "0.3":
        totals = metrics.pop("request_totals")
        benchmark = {"args": {"strategy": strategy, "profile": {}}, "worker": {"backend_model": "org/model"},
                     "request_totals": totals, "requests": newest["requests"], "metrics": metrics}  # fmt: skip
        content: dict[str, Any] = {"benchmarks": [benchmark]}
    else:
        content = {"benchmarks": [{**newest, "config": {"strategy": strategy}, "start_time": 1767225600.5}]}
        model = {"spec": {"backend": {"kind": "openai_http", "model": "org/model"}}}
        content |= {"config": model} if version == "0.8" else {"args": {"model": "org/model"}}
    (item,) = one("guidellm", tmp_path, content)
    assert item.params == {"arrivals": "concurrent", "concurrency": 4, "model": "org/model"}
    assert values(item)["ttft_p99_ms"] == 59.0
    assert item.measured_at == ("" if version == "0.3" else "2026-01-01T00:00:00.500000+00:00")


def test_the_first_guidellm_has_requests_and_no_statistics(tmp_path: Path) -> None:
    alone, rated = one("guidellm", tmp_path, GUIDELLM_FIRST)
    said = values(alone)
    assert alone.params == {"arrivals": "synchronous", "concurrency": 1}
    assert said["ttft_p50_ms"] == pytest.approx(59.0)  # the tenth of twenty
    assert said["ttft_p90_ms"] == pytest.approx(67.0)
    assert said["ttft_p99_ms"] is None  # of twenty requests
    assert (said["icl_p50_ms"], said["tpot_p50_ms"]) == (pytest.approx(20.0), None)
    assert alone.own["output_token_throughput"] == pytest.approx(80 / 19.9)
    assert rated.params == {"arrivals": "asynchronous", "rate": 2.5}
    assert (values(rated)["ttft_p50_ms"], values(rated)["error_rate_share"]) == (None, pytest.approx(0.2))
    assert values(rated)["ttft_ok_p50_ms"] == pytest.approx(51.0)


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ([{"name": "profiling", "kind": "profiling", "concurrency": 8}], {"concurrency": 8}),
        ([{"name": "warmup", "concurrency": 2}, {"name": "load", "kind": "profiling", "rate": 2.5}], {"rate": 2.5}),
        ([{"name": "a", "concurrency": 2}, {"name": "b", "concurrency": 4}], {}),
    ],
)
def test_the_phases_of_aiperf(phases: list[dict[str, Any]], expected: dict[str, Any], tmp_path: Path) -> None:
    config = {"models": {"items": [{"name": "org/model", "weight": 1}]}, "phases": phases}
    (item,) = one("aiperf", tmp_path, {**AIPERF, "input_config": config})
    assert item.params == {"model": "org/model", **expected}
    assert one("aiperf", tmp_path)[0].params == {"model": "org/model", "concurrency": 4}


def test_failures_of_a_tool_leave_only_the_success_statistics(tmp_path: Path) -> None:
    said = values(one("vllm", tmp_path, {**VLLM, "failed": 3})[0])
    assert said["ttft_p99_ms"] is None
    assert said["ttft_ok_p99_ms"] == 60.0
    assert said["error_rate_share"] == pytest.approx(3 / 43)


def test_receipts_are_marked_readable_and_made_once(tmp_path: Path) -> None:
    source, root = tmp_path / "in", tmp_path / "receipts"
    source.mkdir()
    for kind in SOURCES:
        found = one(kind, source)
        made = store(KINDS[kind], source, found, root, backend="inf2", params={"tp_degree": 2})
        again = store(KINDS[kind], source, found, root, backend="inf2", params={"tp_degree": 2})
        assert (made.existed, again.existed, again.folder) == (False, True, made.folder)
        receipts = list(ReceiptStore(root).iter(made.session))
        assert len(receipts) == len(found)
        for receipt in receipts:
            record = receipt.record
            assert record.provenance == Provenance.IMPORTED
            assert record.point.backend == "inf2"
            assert record.point["tp_degree"] == 2
            assert record.workload["source"]["own_figures"]
            assert (receipt.path / record.attachments[0]).is_file()
        for path in source.iterdir():
            path.unlink()
    assert not [path for path in root.iterdir() if path.name.startswith(".")]
    elsewhere = store(KINDS["vllm"], source, one("vllm", source), root, backend="trn2")
    assert not elsewhere.existed


def test_a_run_without_a_success_is_a_failure_with_its_cause(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    found = one("vllm", source, {**VLLM, "completed": 0, "failed": 5, "errors": ["connection refused"]})
    made = store(KINDS["vllm"], source, found, tmp_path / "receipts")
    (receipt,) = ReceiptStore(tmp_path / "receipts").iter(made.session)
    assert receipt.record.outcome == "failed"
    assert receipt.record.error is not None
    assert "connection refused" in receipt.record.error.causal_line


def run(*arguments: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neuronbench", "--root", str(root), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    path = tmp_path / "result.json"
    path.write_text(json.dumps(VLLM))
    done = run("import", "vllm", str(path), "--backend", "inf2", root=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "inf2" in done.stdout
    listed = run("list", root=tmp_path)
    assert "imported-vllm-" in listed.stdout
    assert "already imported" in run("import", "vllm", str(path), "--backend", "inf2", root=tmp_path).stdout
    elsewhere = run("import", "vllm", str(path), "--out", str(tmp_path / "other"), "--json", root=tmp_path)
    assert json.loads(elsewhere.stdout)[0]["provenance"] == "imported"
    wrong = run("import", "mystery", str(path), root=tmp_path)
    assert wrong.returncode == 2
    assert "vllm" in wrong.stderr
    bad = run("import", "llmperf", str(path), root=tmp_path)
    assert bad.returncode == 1
    assert "result.json" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_what_is_told_of_a_source_is_read_as_a_point_s_parameters_are() -> None:
    assert _told(["a=true", "b=8", "c=0.5", "d=bfloat16", "e=2026-01-01", "f=[1]", "b=8"]) == {
        "a": True, "b": 8, "c": 0.5, "d": "bfloat16", "e": "2026-01-01", "f": "[1]",
    }  # fmt: skip
    for wrong, said in (
        (["x=nan"], "--set x=nan: expected a finite number or a word"),
        (["x=-inf"], "finite"),
        (["x=1e999"], "finite"),
        (["x=1", "x=2"], "--set x is given twice, as 1 and 2"),
        (["x"], "expected KEY=VALUE, found 'x'"),
        (["=1"], "expected KEY=VALUE"),
    ):
        with pytest.raises(CommandError, match=re.escape(said)):
            _told(wrong)


def test_what_is_told_of_a_source_does_not_contradict_it(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(VLLM))
    found = gather(KINDS["vllm"], path)
    assert found[0].params["concurrency"] == 4
    done = store(KINDS["vllm"], path, found, tmp_path / "r", backend="inf2", params={"concurrency": 4, "dtype": "bf16"})
    assert done.records[0].point.params["dtype"] == "bf16"
    with pytest.raises(
        ImportFailure, match=r"result\.json: result says concurrency=4, not 16: leave --set concurrency"
    ):
        store(KINDS["vllm"], path, found, tmp_path / "other", params={"concurrency": 16})
    known = [replace(found[0], backend="inf2")]
    with pytest.raises(ImportFailure, match="result is of inf2, not of gpu: leave --backend out"):
        store(KINDS["vllm"], path, known, tmp_path / "other", backend="gpu")
    assert not (tmp_path / "other").exists(), "nothing was written"


@pytest.mark.parametrize("name", ["vllm_bench_serve_result.json", "llmperf_summary.json", "nxdi_benchmark_report.json",
                                  "optimum_training_summary_metrics.json"])  # fmt: skip
def test_the_handed_samples(name: str, tmp_path: Path) -> None:
    import os

    handed = os.environ.get("NEURONBENCH_SHARED")
    if not handed:
        pytest.skip("NEURONBENCH_SHARED names no folder of handed reference data")
    kind = {"vllm": "vllm", "llmp": "llmperf", "nxdi": "nxdi", "opti": "optimum-training"}[name[:4]]
    assert gather(KINDS[kind], Path(handed, "reference", "samples", name))


def test_nothing_of_a_kind_in_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ImportFailure, match="expected files ending in"):
        gather(KINDS["vllm"], tmp_path)
