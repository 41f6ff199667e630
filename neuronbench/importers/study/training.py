"""Receipts of training runs, and of small models that were trained for their accuracy.

The study's step timer is a callback at the begin and at the end of a step: without a barrier it stops when the work is
queued. Of its figures those by the wall have our definitions, those by the timer none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.engines.base import number
from neuronbench.importers.base import Imported, mapping, plain, text, whole
from neuronbench.importers.study.files import Place, Samples
from neuronbench.importers.study.made import null, number_of, result, samples_of, telemetry_gates
from neuronbench.model import Gate, Metric
from neuronbench.telemetry.aliasing import aliasing_gate
from neuronbench.training.gates import first_bad_gate, timers_gate

LANES: Final = ("lora_sft", "full_sft", "preference", "pretrain")
_STAGES: Final = {"orpo": "preference", "dpo": "preference", "pretrain": "pretrain", "midtrain": "pretrain"}
_TIMER: Final = "its step timer has no barrier: it stops when the work is queued"
_TRAIN_SET: Final = {"mnist": 60_000, "cifar": 50_000}
_TEST_SET: Final = 10_000


def run(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A training run: LoRA, full, preference or pre-training."""
    config, trace = mapping(data["config"], "config"), _trace(data["loss_trace"])
    samples = samples_of(place)
    micro = whole(config.get("micro_batch") or config.get("micro_batch_size"))
    params = {
        "model": text(data["model"]),
        "dataset": plain(data.get("dataset")),
        "seq_len": whole(config.get("seq_len") or config.get("max_length")),
        "micro_batch": micro,
        "accumulation": whole(config.get("grad_accum")),
        "epochs": whole(config.get("epochs")),
        "max_steps": whole(config.get("max_steps")),
        "dp_degree": whole(config.get("data_parallel_size")),
        "seed": whole(config.get("seed")),
        "data_seed": whole(mapping(data.get("provenance") or {}, "provenance").get("data_seed")),
        "holdout": _share(data.get("holdout")),
        "synthetic": True if data.get("synthetic_data") else None,
        "recompute": plain(config.get("gradient_checkpointing")),
        "packing": plain(config.get("packing")),
    }
    gates = [*timer_gates(data, trace), _finite(trace), _plausible(data), *telemetry_gates(samples)]
    if samples is not None:
        gates.append(_aliasing(data, config, trace, samples))
    notes = [str(data.get(name) or "") for name in ("throughput_note", "loss_validity_note")]
    if data.get("synthetic_data"):
        notes.append("synthetic tokens: its losses say nothing")
    lane = _STAGES.get(text(data.get("stage") or ""), "lora_sft" if _adapter(data, config) else "full_sft")
    return [
        result(place, data, lane=lane, params=params, metrics=_metrics(data, config, trace), gates=gates,
               samples=samples, notes=notes)
    ]  # fmt: skip


def step_wall_ms(data: Mapping[str, Any], trace: Sequence[Mapping[str, Any]]) -> float | None:
    """A step by the wall: (train wall − first step − checkpoints) / (steps − 1)."""
    wall_s, first_ms = number_of(data, "train_wall_s"), number_of(data, "first_step_ms")
    if wall_s is None or first_ms is None or len(trace) < 2:
        return None
    saves = data.get("checkpoint_saves")
    saved = [number(one.get("save_wall_s")) or 0.0 for one in saves if isinstance(one, Mapping)] if saves else []
    left = 1e3 * (wall_s - math.fsum(saved)) - first_ms
    return left / (len(trace) - 1) if left > 0 else None


def timer_gates(data: Mapping[str, Any], trace: Sequence[Mapping[str, Any]]) -> list[Gate]:
    """The timer's steps after the first against the wall, and what that makes of the rate and the utilisation."""
    wall_ms, timed = step_wall_ms(data, trace), [number(row.get("ms")) for row in trace[1:]]
    known = [value for value in timed if value is not None]
    if wall_ms is None or len(known) < 2 or len(known) < len(timed):
        return [Gate(id="timer_escapes_device", passed=None, message="no wall time, or steps without a time")]
    tokens, said = number_of(data, "tokens_per_optimizer_step"), ""
    rate, mfu = number_of(data, "tokens_per_s"), number_of(data, "mfu_pct")
    if tokens and rate:
        said = f"{1e3 * tokens / wall_ms:,.0f} tok/s by the wall where {rate:,.0f} are given"
        flops, peak = number_of(data, "flops_per_token"), number_of(data, "peak_bf16_flops")
        if flops and peak and mfu:
            said += f", {100 * flops * 1e3 * tokens / wall_ms / peak:.1f} % MFU where {mfu:.1f} % are"
    return [timers_gate(math.fsum(known) / len(known), wall_ms, said)]


def _aliasing(
    data: Mapping[str, Any], config: Mapping[str, Any], trace: Sequence[Mapping[str, Any]], samples: Samples
) -> Gate:
    """One execution is one micro-batch: a step by the wall over the accumulation."""
    wall_ms, accumulation = step_wall_ms(data, trace), whole(config.get("grad_accum"))
    execution_s = None if wall_ms is None or not accumulation else wall_ms / 1e3 / accumulation
    return aliasing_gate(samples.period_s, execution_s, busy_pct=samples.busy_pct())


def _metrics(data: Mapping[str, Any], config: Mapping[str, Any], trace: Sequence[Mapping[str, Any]]) -> list[Metric]:
    wall_ms, steps = step_wall_ms(data, trace), len(trace)
    losses = [number(row.get("loss")) for row in trace]
    alone = whole(config.get("data_parallel_size")) == 1
    sharded = (whole(config.get("tensor_parallel_size")) or 1) > 1
    why = "" if alone else "of one rank, or it is not said of which"
    good = [value for value in losses if value is not None] if alone and not data.get("synthetic_data") else []
    if data.get("synthetic_data"):
        why = "synthetic tokens"
    counted = {"trainable_parameters": "params_trainable", "total_parameters": "params_total"}
    found = [
        *null(_TIMER, "step_time", "train_throughput_barrier", "first_step_time", "mfu"),
        metric("step_time_wall", wall_ms, n=max(steps - 1, 0), note="without the checkpoints it says" if wall_ms else
               "no wall time of the training"),
        *null("its tokens are the configured size of a batch, padding and part-filled last steps included",
              "train_throughput", "train_throughput_padded", "tokens"),
        *null("the whole call of the trainer; ours begins with the first step", "train_wall"),
        *null("it contains what was left in the device's queue", "checkpoint_time"),
        metric("loss", good[0] if good else None, stat="first", n=len(good), note=why),
        metric("loss", good[-1] if good else None, stat="last", n=len(good), note=why),
        metric("loss", min(good) if good else None, stat="min", n=len(good), note=why),
        *(
            metric(id_, None if sharded else number_of(data, name), n=1,
                   note="summed over ranks, what each of them holds whole counted once a rank" if sharded else "")
            for id_, name in counted.items()
        ),
    ]  # fmt: skip
    return found + _holdout(data)


def _holdout(data: Mapping[str, Any]) -> list[Metric]:
    held = data.get("holdout")
    if not isinstance(held, Mapping) or not held.get("enabled"):
        return []
    before, after = number_of(held, "loss_before"), number_of(held, "loss_after")
    ratio = after / before if before and after is not None else None
    note = "split off before packing" if before is not None else text(held.get("error") or "no loss is told")
    return [
        metric("holdout_loss", before, stat="before", n=1, note=note),
        metric("holdout_loss", after, stat="after", n=1, note=note),
        metric("holdout_loss_ratio", ratio, n=1, note=note if ratio is None else ""),
    ]


def _share(held: Any) -> float | None:
    """Share that was split off; None where nothing was."""
    return number(held.get("frac")) if isinstance(held, Mapping) and held.get("enabled") else None


def _adapter(data: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether most of the model is frozen."""
    for trained, held in (
        ("params_trainable", "params_total"),
        ("params_local_shard_trainable", "params_local_shard_total"),
    ):
        part, whole_model = number_of(data, trained), number_of(data, held)
        if part is not None and whole_model:
            return part < whole_model / 2
    return bool(config.get("lora_r"))


def _finite(trace: Sequence[Mapping[str, Any]]) -> Gate:
    bad = next((n for n, row in enumerate(trace, start=1) if number(row.get("loss")) is None), None)
    return first_bad_gate(None if bad is None else whole(trace[bad - 1].get("step")) or bad)


def _plausible(data: Mapping[str, Any]) -> Gate:
    said = [value for name in ("mfu_pct", "mfu_pct_alt") if (value := number_of(data, name)) is not None]
    return Gate(
        id="implausible",
        passed=None if not said else max(said) <= 100.0,
        observed=max(said, default=None),
        limit=100.0,
        unit="%",
        message="MFU as the receipt gives it" if said else "no MFU in the receipt",
    )


def _trace(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not value:
        raise ValueError("loss_trace: expected a list of steps")
    return [mapping(row, "loss_trace") for row in value]


# --------------------------------------------------------------------------------------------------------------------


def academic(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """A small model trained for its accuracy, with the wall of every epoch beside a median step."""
    epochs = [mapping(row, "epochs") for row in _list(data["epochs"], "epochs")]
    config, samples = mapping(data["config"], "config"), samples_of(place)
    best, n = number_of(data, "final_test_acc"), _TEST_SET
    params = {
        "dataset": text(data["dataset"]), "arch": text(data["arch"]), "epochs": whole(config.get("epochs")),
        "batch_size": whole(config.get("batch_size")), "seed": whole(config.get("seed")),
        "precision": plain(config.get("precision")),
    }  # fmt: skip
    found = [
        *null(_TIMER, "step_time", "first_step_time"),
        *null("the wall of an epoch has its evaluation in it", "step_time_wall"),
        metric("accuracy", None if best is None else best / 100, n=n, note="of the test set, after the last epoch"),
    ]
    gates = [_epoch_gate(data, config, epochs), *telemetry_gates(samples)]
    if samples is not None:
        step = number_of(data, "median_step_ms")
        gates.append(aliasing_gate(samples.period_s, None if step is None else step / 1e3, busy_pct=samples.busy_pct()))
    return [result(place, data, lane="pretrain", params=params, metrics=found, gates=gates, samples=samples)]


def _epoch_gate(data: Mapping[str, Any], config: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]]) -> Gate:
    """Median step against a step of a later epoch by the wall, less what the evaluation can have taken at most."""
    size, batch = _TRAIN_SET.get(str(data["dataset"])), whole(config.get("batch_size"))
    step_ms, walls = number_of(data, "median_step_ms"), [number(row.get("wall_s")) for row in epochs[1:]]
    known = sorted(value for value in walls if value is not None)
    if not (size and batch and step_ms and known):
        return Gate(id="timer_escapes_device", passed=None, message="no size of the data set, or no later epoch")
    wall_ms = 1e3 * known[len(known) // 2] * (size / (size + _TEST_SET)) / math.ceil(size / batch)
    return timers_gate(step_ms, wall_ms, "of a later epoch, its evaluation taken as dear as training")


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what}: expected a list, found {type(value).__name__}")
    return value
