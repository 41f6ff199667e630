"""Receipts of single models and kernels: sound, images, a kernel beside the compiler's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.engines.base import number
from neuronbench.importers.base import Imported, plain, text, whole
from neuronbench.importers.study.files import Place
from neuronbench.importers.study.made import null, number_of, result, samples_of, telemetry_gates
from neuronbench.model import Gate

CALL_FLOOR_US: Final = 5.0
"""No call from Python that is waited for ends sooner, whatever it computes: framework, driver and the way back take as
long. A loop with less per call has only put its calls into a queue."""


def sound(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """One clip of speech, transcribed once."""
    wall, seconds = number_of(data, "transcribe_wall_s"), number_of(data, "audio_s")
    if not wall or not seconds:
        raise ValueError("transcribe_wall_s, audio_s: expected numbers above 0")
    samples, matches = samples_of(place), data.get("transcript_matches_reference_head")
    metrics = [
        metric("rtf", wall / seconds, n=1, note="one clip, one call"),
        *null("not known to be cold", "compile_time"),
        metric("load_time", number_of(data, "load_s"), n=1),
    ]
    gate = Gate(id="answer", passed=matches if isinstance(matches, bool) else None, severity="invalid",
                message="beginning of the transcript against the reference")  # fmt: skip
    return [result(place, data, lane="asr", params={"model": text(data["model"])}, metrics=metrics,
                   gates=[gate, *telemetry_gates(samples)], samples=samples)]  # fmt: skip


def images(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """An image model called with one image at a time."""
    rate, n, samples = number_of(data, "images_per_s_b1"), whole(data.get("bench_iters")) or 0, samples_of(place)
    if not rate:
        raise ValueError("images_per_s_b1: expected a number above 0")
    metrics = [
        metric("throughput_wall", rate, n=n),
        *null("not known to be cold", "compile_time"),
        metric("load_time", number_of(data, "load_s"), n=1),
    ]
    return [result(place, data, lane="vision", params={"model": text(data["model"]), "batch_size": 1},
                   metrics=metrics, gates=telemetry_gates(samples), samples=samples)]  # fmt: skip


def kernel(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A kernel written by hand: its error, and its time beside the compiler's when it ran on the device."""
    shape, mode, samples = data["shape"], text(data["mode"]), samples_of(place)
    error = number(data["max_abs_err_vs_numpy"])
    calls = {name: number_of(data, name) for name in ("nki_us_per_call", "torch_softmax_us_per_call")}
    known = {name: value for name, value in calls.items() if value is not None}
    gates = [Gate(id="answer", passed=data.get("correct") is True, message="against NumPy")]
    if mode == "device":
        fastest = min(known, key=lambda name: known[name], default="")
        gates.append(
            Gate(
                id="implausible",
                passed=None if not known else known[fastest] >= CALL_FLOOR_US,
                observed=known.get(fastest),
                limit=CALL_FLOOR_US,
                unit="us",
                message=f"{fastest} against the least that a call takes which is waited for"
                if known
                else "no time of a call",
            )
        )
    metrics = [
        metric("max_abs_err", error, n=1, note="against NumPy in fp32"),
        *null("a loop whose end is not waited for, or the time of a simulation", "latency"),
    ]
    params = {"kernel": "row softmax", "mode": mode, "shape": plain("x".join(map(str, shape)))}
    return [result(place, data, lane="microbench", params=params, metrics=metrics, samples=samples,
                   gates=[*gates, *telemetry_gates(samples)])]  # fmt: skip
