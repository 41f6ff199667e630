"""What a model's calls mean in the items it works on: tokens, and seconds of sound.

A resource that knows says so in its facts, `per_item`: `input_tokens` (as compiled, padding included), `output_tokens`
and `audio_s` of one item of a batch. From these and what the loops gave, the metrics here follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neuronbench.definitions import metric
from neuronbench.model import Metric

if TYPE_CHECKING:
    from neuronbench.protocols import CompiledModel
    from neuronbench.worker.runs import Run


def derived(run: Run, model: CompiledModel, measured: Sequence[Metric]) -> list[Metric]:
    """Metrics that follow from `measured` (the latency and throughput of `run`) by what an item holds."""
    held: Mapping[str, Any] = model.facts.get("per_item") or {}
    latencies = [each for each in measured if each.id == "latency"]
    found = []
    windowed = run.window_ns is not None
    rate = next((each for each in measured if each.key == "throughput_items_s"), None) if windowed else None
    inputs, outputs, audio_s = held.get("input_tokens"), held.get("output_tokens"), held.get("audio_s")
    if outputs:
        total = (inputs or 0) + outputs
        if rate is not None:
            found.append(_scaled(rate, "output_token_throughput", outputs, f"{outputs} output tokens an item"))
        found += [_scaled(each, "latency_per_output_token", 1 / outputs, f"/ {outputs}") for each in latencies]
        if inputs:
            shown = f"{inputs} input + {outputs} output tokens an item"
            if rate is not None:
                found.append(_scaled(rate, "total_token_throughput", total, shown))
            found += [_scaled(each, "latency_per_token", 1 / total, f"/ ({inputs} + {outputs})") for each in latencies]
    elif inputs and rate is not None:
        found.append(_scaled(rate, "input_token_throughput", inputs, f"{inputs} input tokens an item"))
    if audio_s:
        shown = f"{audio_s:g} s of sound an item, batch {run.batch_size}"
        found += [_scaled(each, "rtf", 1e-3 / (audio_s * run.batch_size), shown) for each in latencies]
        if rate is not None:
            value = None if not rate.value else 1 / (rate.value * audio_s)
            found.append(metric("rtf", value, n=rate.n, note=f"{shown}, all copies together"))
    return found


def _scaled(source: Metric, id: str, factor: float, shown: str) -> Metric:
    """`source` in other units: the value and its bounds times `factor`."""

    def times(value: float | None) -> float | None:
        return None if value is None else value * factor

    note = "; ".join(part for part in (shown, source.note) if part)
    made = metric(id, times(source.value), stat=source.stat, n=source.n, note=note)
    return replace(made, low=times(source.low), high=times(source.high), confidence=source.confidence)
