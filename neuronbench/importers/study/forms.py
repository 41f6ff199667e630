"""Which reader a receipt of the study is for: told by its keys, because names and folders changed between phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuronbench.importers.base import UNKNOWN, Imported
from neuronbench.importers.safe import ImportFailure
from neuronbench.importers.study import extras, failed, host, quality, serving, summaries, training
from neuronbench.importers.study.files import CSV, place, read_object, read_samples, sibling
from neuronbench.importers.study.made import result, telemetry_gates


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form of receipt: the keys that only it has, and its reader."""

    name: str
    keys: frozenset[str]
    read: Callable[[Any, Mapping[str, Any]], list[Imported]]


def _form(name: str, keys: str, read: Callable[[Any, Mapping[str, Any]], list[Imported]]) -> Form:
    return Form(name=name, keys=frozenset(keys.split()), read=read)


FORMS: Final = (
    _form("point under load", "completed total_output_tokens input_len_configured", serving.point),
    _form("boot", "boot_wall_s model_id", serving.boot),
    _form("plan of a sweep", "shapes concurrency model_id", serving.grid),
    _form("sustained run", "per_iteration iterations", serving.sustained),
    _form("cold start", "epochs durations_s first_generation", serving.cold_start),
    _form("search for the longest context", "max_model_len max_num_seqs status", serving.bisect),
    _form("training run", "loss_trace config model", training.run),
    _form("small model", "arch dataset epochs median_step_ms", training.academic),
    _form("compile pass", "graphs_compiled neff_files_before neff_files_after exit_code model", host.precompile),
    _form("traced model", "model_id out_dir status wall_s", host.traced),
    _form("merge", "merged_out timings_s files base", host.merge),
    _form("host", "stream_triad_gb_s fp32_matmul tokenizer logical_cpus", host.cpu),
    _form("report of neuron-monitor", "neuron_hardware_info neuron_runtime_data", host.monitor),
    _form("round trip of weights", "inf2_hashes verified", host.hashes),
    _form("digests of weights", "files all_match", host.hashes),
    _form("answers", "results n_prompts sampling model", quality.answers),
    _form("embedding", "lanes compiled_batch", quality.embedding),
    _form("ingestion", "docs chunks wall_s", quality.ingest),
    _form("probes", "probes passed total mode", quality.probes),
    _form("speech", "wer counts model", quality.speech),
    _form("images by captions", "top1 top1_hits n_samples model", quality.zero_shot),
    _form("accuracy beside a reference", "mlperf_gate candidate reference", quality.paired),
    _form("drafted model", "e2e_model", quality.drafted),
    _form("prompts through a drafted model", "per_prompt", quality.spec_bench),
    _form("note of a demonstration", "tag status metrics_extract", quality.spec_note),
    _form("sound", "transcribe_wall_s audio_s model", extras.sound),
    _form("image", "images_per_s_b1 model", extras.images),
    _form("kernel", "max_abs_err_vs_numpy mode shape", extras.kernel),
    _form("withdrawal", "invalidated reason", summaries.withdrawn),
    _form("probe of a width", "attempts full_chip", summaries.summary),
    _form("selection", "winner candidates", summaries.summary),
    _form("isolation", "shapes uplift_shrinks_with_seq_len", summaries.summary),
    _form("ladder", "rungs best_micro_batch", summaries.summary),
    _form("difference of versions", "changed identical", summaries.summary),
    _form("versions", "neuronx-cc torch-neuronx", summaries.summary),
    _form("roofline", "ridge_points_flop_per_byte", summaries.summary),
    _form("overlay of losses", "n_steps_compared pearson_r", summaries.summary),
    _form("comparison", "inf2 dropped_no_telemetry", summaries.summary),
    # last, because others have these keys too
    _form("failure", "status reason", failed.failed),
    _form("failure without a reason", "status captured", failed.failed),
    _form("receipt", "captured", host.other),
)


def read(path: Path) -> Sequence[Imported]:
    """The results in one file of the study. Raises what `importers.base.read` puts into words."""
    if path.name.lower().endswith(CSV):
        return _alone(path)
    where = place(path)
    try:
        data = read_object(path)
    except ImportFailure as problem:
        if "failure" in path.name and "expected JSON" in str(problem):
            return failed.damaged(where, problem)
        raise
    form = next((one for one in FORMS if one.keys <= data.keys()), None)
    if form is None and data and where.box != UNKNOWN:
        return host.other(where, data)  # in its place it is the study's, whatever it is
    if form is None:
        known = ", ".join(str(key)[:40] for key in list(data)[:6])
        raise ImportFailure(
            f"{path}: expected a receipt of the study, found an object of no form that is known (keys: {known}); leave "
            "it out, or name the folder of results"
        )
    return form.read(where, data)


def _alone(path: Path) -> Sequence[Imported]:
    """A telemetry table: part of the receipt beside it; where there is none, all that is left of a lane."""
    if sibling(path.with_name(path.name.removesuffix(CSV) + ".json"), ".json") is not None:
        return []
    if sibling(path.with_name(path.name.removesuffix(CSV) + ".json"), ".failure.json") is not None:
        return []
    samples = read_samples(path)
    where = place(path)
    alone = result(where, {}, lane=where.lane, record="summary", params={}, samples=samples,
                   gates=telemetry_gates(samples), notes=["telemetry of a lane that has no receipt"])  # fmt: skip
    return [alone]
