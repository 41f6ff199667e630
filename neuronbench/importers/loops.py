"""Results of tools that call a model or a function in a loop, and of trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.engines.base import number
from neuronbench.importers.base import Imported, instant, mapping, plain, text, whole
from neuronbench.importers.safe import few_enough, read_json
from neuronbench.model import Json, Metric

_INTERPOLATED: Final = "percentiles interpolate between observations"


def pytest_benchmark(path: Path) -> Sequence[Imported]:
    """pytest-benchmark's JSON (`--benchmark-json`, `--benchmark-save`): one result a test."""
    data = mapping(read_json(path), "the file")
    machine = mapping(data.get("machine_info") or {}, "machine_info")
    cpu = machine.get("cpu")
    facts = {
        "host.machine": plain(machine.get("machine")),
        "host.cpu_model": plain(cpu.get("brand_raw")) if isinstance(cpu, Mapping) else None,
        "harness.python": plain(machine.get("python_version")),
    }
    found = []
    few_enough(path, len(data["benchmarks"]))
    for entry in data["benchmarks"]:
        stats = mapping(entry["stats"], "stats")
        rounds = whole(stats["rounds"]) or 0
        metrics = [
            _time("p50", stats.get("median"), rounds, "a median of two interpolates"),
            _time("mean", stats["mean"], rounds),
            _time("min", stats.get("min"), rounds),
            _time("max", stats.get("max"), rounds),
        ]
        found.append(
            Imported(
                source=path,
                name=text(entry["fullname"]),
                lane="microbench",
                params={"test": text(entry["fullname"]), **_params(entry.get("params"))},
                metrics=metrics,
                own={key: plain(value) for key, value in stats.items() if not isinstance(value, (list, dict))},
                measured_at=instant(data.get("datetime")),
                facts={key: value for key, value in facts.items() if value is not None},
            )
        )
    return found


def _time(stat: str, seconds: Any, n: int, note: str = "") -> Metric:
    value = number(seconds)
    return metric("call_time", None if value is None else 1e3 * value, stat=stat, n=n, note=note)


def _params(given: Any) -> dict[str, Json]:
    if not isinstance(given, Mapping):
        return {}
    return {text(key): value if isinstance(value, (bool, int, float)) else text(value) for key, value in given.items()}


def nxdi(path: Path) -> Sequence[Imported]:
    """NxD Inference's `benchmark_report.json`: one result a sub-model (`e2e_model`, `context_encoding_model`, ...).

    Its throughput divides the compiled sequence length by the latency, prompt and padding included: kept under its own
    name only.
    """
    return nxdi_blocks(mapping(read_json(path), "the report"), path, name=path.stem)


def nxdi_blocks(data: Mapping[str, Any], path: Path, *, name: str) -> Sequence[Imported]:
    """The sub-models of a report that was read already. Raises `KeyError` when there is none."""
    found = []
    few_enough(path, len(data))
    for model, block in data.items():
        if not (isinstance(block, Mapping) and any(key.startswith("latency_ms_") for key in block)):
            continue
        metrics = [
            metric("latency", number(block.get(f"latency_ms_{theirs}")), stat=stat, note=_INTERPOLATED)
            for stat, theirs in (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("max", "p100"), ("mean", "avg"))
        ]
        found.append(
            Imported(
                source=path,
                name=f"{name}-{text(model)}",
                lane="generation",
                params={"sub_model": text(model)},
                metrics=metrics,
                own={key: number(value) for key, value in block.items()},
                notes=["its throughput is sequence length / latency, not generated tokens per second"],
            )
        )
    if not found:
        raise KeyError("latency_ms_p50")
    return found


def optimum_training(path: Path) -> Sequence[Imported]:
    """optimum-neuron's training summary: rates by the trainer's own step timer, padding included.

    Neither its tokens per second (no barrier is known, padding counts) nor its MFU (peak and formula are not said) has
    our definition: all of it stands under its own names.
    """
    data = mapping(read_json(path), "the summary")
    about, figures = mapping(data["metadata"], "metadata"), mapping(data["metrics"], "metrics")
    steps = whole(about.get("total_training_steps"))
    if not any(str(key).startswith("summary/") for key in figures):
        raise KeyError("metrics.summary/...")
    nulls = [
        metric("train_throughput", None, note="its tokens per second are by a step timer and count padding"),
        metric("mfu", None, note="its MFU names neither peak nor formula"),
        metric("step_time", None, note="not among the tool's figures"),
    ]
    params = {
        "model": plain(about.get("model_name")),
        "steps": steps,
        "accumulation": whole(about.get("gradient_accumulation_steps")),
        "batch_size": whole(about.get("per_device_train_batch_size")),
        "learning_rate": number(about.get("learning_rate")),
        "tp_degree": whole(about.get("tensor_parallel_size")),
        "pp_degree": whole(about.get("pipeline_parallel_size")),
        "cores": whole(about.get("total_neuron_cores")),
    }
    return [
        Imported(
            source=path,
            name=path.stem,
            lane="training",
            params={key: value for key, value in params.items() if value is not None},
            metrics=nulls,
            own={text(key): number(value) for key, value in figures.items()},
            measured_at=instant(about.get("timestamp")),
        )
    ]
