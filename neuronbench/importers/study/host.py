"""Receipts of what is not a benchmark of a model: compilations, merges, the host's floor, what the monitor said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronbench.definitions import metric
from neuronbench.engines.base import number
from neuronbench.importers.base import Imported, mapping, plain, text, whole
from neuronbench.importers.study.files import Place
from neuronbench.importers.study.made import null, number_of, result, samples_of
from neuronbench.model import Failure, Json


def precompile(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A pass that traces and compiles the graphs of a training run and executes none of them."""
    before, after = whole(data["neff_files_before"]), whole(data["neff_files_after"])
    graphs, status = whole(data["graphs_compiled"]), whole(data["exit_code"])
    cold = graphs is not None and graphs > 0 and None not in (before, after) and after == (before or 0) + graphs
    error = None
    if status != 0:
        said = f"the compile pass exited with status {status}"
        error = Failure(kind="unclassified", phase="boot", message=said, causal_line=said, exit_status=status)
    note = f"{graphs} graphs by it, the cache grew by as many; tracing is in it"
    found = [
        metric("compile_time", number_of(data, "wall_s"), n=1, note=note)
        if cold and error is None
        else metric("compile_time", None, note="not known to be cold"),
        *null("of the pass, which says how many it added to a cache", "graphs"),
    ]
    return [result(place, data, lane=place.lane, record="compile", params={"model": text(data["model"])},
                   metrics=found, error=error)]  # fmt: skip


def traced(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """One traced and compiled model of the retrieval lane."""
    from neuronbench.importers.study.failed import failure_of

    wrong = data.get("error")
    error = failure_of(place, str(wrong), phase="boot") if wrong else None
    if number_of(data, "wall_s") is None and error is None:
        raise KeyError("wall_s")
    return [result(place, data, lane="embedding", record="compile", params={"model": text(data["model_id"])},
                   metrics=null("not known to be cold", "compile_time"), error=error)]  # fmt: skip


def merge(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """An adapter merged into its base, hashed and sent away."""
    times, files = mapping(data["timings_s"], "timings_s"), mapping(data["files"], "files")
    merged, saved = number(times.get("merge_s")), number(times.get("save_s"))
    both = None if merged is None or saved is None else merged + saved
    found = [
        metric("merge_time", both, n=1, note="merging and writing; loading the base is not in it"),
        *null("there only: not back, and not verified on the way", "ship_time"),
    ]
    digests = {f"sha256.{text(name, 80)}": text(value, 80) for name, value in list(files.items())[:100]}
    return [result(place, data, lane="e2e", params={"model": text(data["base"]), "lane": "merge"}, metrics=found,
                   own={key: value for key, value in digests.items() if value})]  # fmt: skip


def cpu(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """What the host can do: memory, matrices, tokens."""
    rows = data["fp32_matmul"]
    if not isinstance(rows, list):
        raise ValueError("fp32_matmul: expected a list")
    own: dict[str, Json] = {}
    for row in rows[:64]:
        threads = whole(mapping(row, "fp32_matmul").get("threads"))
        own[f"fp32_matmul.t{threads}.tflops"] = number(row.get("tflops"))
    tokenizer = mapping(data["tokenizer"], "tokenizer")
    found = [
        *null("of 64-bit floats on all cores at once; which of the repetitions it is, is not told", "memory_bandwidth"),
        *null("of the mean or the best of ten products, which is not told", "matmul_rate"),
        *null("of a batch of texts; ours is text after text", "tokenizer_rate"),
    ]
    facts = {"host.cores": whole(data["logical_cpus"])}
    return [result(place, data, lane="host", params={"documents": whole(tokenizer.get("docs"))}, metrics=found, own=own,
                   facts={key: value for key, value in facts.items() if value is not None})]  # fmt: skip


def monitor(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """One report of `neuron-monitor`: facts of the device, no measurement."""
    device, instance = mapping(data["neuron_hardware_info"], "neuron_hardware_info"), data.get("instance_info")
    facts: dict[str, Json] = {
        f"backend.{ours}": plain(device.get(theirs))
        for ours, theirs in (
            ("device_type", "neuron_device_type"), ("core_version", "neuroncore_version"),
            ("devices", "neuron_device_count"), ("cores_per_device", "neuroncore_per_device_count"),
            ("device_memory_bytes", "neuron_device_memory_size"), ("logical_cores", "logical_neuroncore_config"),
        )
    }  # fmt: skip
    if isinstance(instance, Mapping):
        facts["backend.instance_type"] = plain(instance.get("instance_type"))
    seen = data.get("neuron_runtime_data")
    notes = ["taken while no runtime was attached"] if not seen else []
    shown = {"neuron_hardware_info": device, "system_data": data.get("system_data") or {}}
    return [result(place, shown, lane=place.lane, record="summary", params={}, notes=notes,
                   facts={key: value for key, value in facts.items() if value is not None})]  # fmt: skip


def hashes(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Digests of weights after a round trip, against those before it."""
    files = data.get("inf2_hashes") or data.get("files") or {}
    own: dict[str, Json] = {}
    for name, value in list(mapping(files, "the files").items())[:100]:
        digest = value.get("got") if isinstance(value, Mapping) else value
        own[f"sha256.{text(name, 80)}"] = text(digest, 80)
    return [result(place, data, lane="e2e", record="summary", params={"lane": "round trip"}, own=own)]


def other(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A receipt of a form that no reader is for: its figures under their own names."""
    samples = samples_of(place)
    return [result(place, data, lane=place.lane, record="summary", params={}, samples=samples,
                   notes=["a form without a reader of its own: all figures under the source's names"])]  # fmt: skip
