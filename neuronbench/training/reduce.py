"""From the step logs of a whole run to its numbers and the gates that say whether they may be quoted.

Two rates stand beside each other: by the steps' own timers, which end at the device's barrier, and by the wall from the
end of the first step to the device's last word. The wall one is the headline; where the two differ by more than 5 % the
device was working while no timer looked, and the record is invalid. Checkpoints and evaluations are taken out of both.

| gate | fails when |
|---|---|
| `timer_escapes_device` | step time with barrier and by the wall differ by more than 5 % |
| `non_finite_loss` | a loss is not finite; all numbers are of the steps before it |
| `implausible` | more arithmetic than the cores can do: MFU above 100 % of a documented peak, or of a bound |
| `parameters_consistent` | the optimiser holds other parameters than were counted, or an adapter left nothing frozen |
| `tokens_counted` | the batches' tokens are not those of the data set's sequences |
| `compiled_in_window` | graphs were compiled after the first step, by handlers that count them |
| `steps_enough` | (provisional) fewer than 3 steps after the first |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from neuronbench import stats
from neuronbench.definitions import metric
from neuronbench.model import Gate, Json, Metric
from neuronbench.protocols import Peak
from neuronbench.training import gates, peaks
from neuronbench.training.flops import FlopModel, Parameters
from neuronbench.training.window import NO_STEP, Window, one_of_each, window_of

if TYPE_CHECKING:
    from neuronbench.training.steps import Steps

PERCENTILES: Final = (0.5, 0.9, 0.99)


def reduce(
    run: Steps, *, peak: Peak | None, cores: int, floor: Peak | str = ""
) -> tuple[list[Metric], list[Gate], dict[str, Json]]:
    """Metrics, gates and facts of a run that `steps.verify` has passed.

    `cores` × `peak` is the denominator of the utilisation. Where that is only a bound, the utilisation is of `floor`,
    what the host was measured to do, and null without it (see `peaks.host_peak`).
    """
    window = window_of(run)
    counted = Parameters.of([log.start for log in run.ranks])
    flops, why_not = _flops(run, counted)
    found = [
        *_times(run, window), *_rates(window), *_losses(run), *_state(run, counted),
        peaks.mfu(window, flops or why_not, peak, floor, cores),
    ]  # fmt: skip
    judged = [
        gates.escape_gate(window), gates.finite_gate(run),
        gates.implausible_gate(window, flops or why_not, peak, cores),
        gates.parameters_gate(counted), gates.tokens_gate(run), gates.enough_gate(window),
    ]  # fmt: skip
    compiled = gates.compile_gate(run)
    judged += [compiled] if compiled is not None else []
    facts: dict[str, Json] = {
        "flops": flops.to_json() if flops else {"missing": why_not},
        "peak": _peak_facts(floor if peak is not None and peak.bound else peak, cores),
        "bound": _peak_facts(peak if peak is not None and peak.bound else None, cores),
        "window": {
            "steps": window.steps, "first_left_out": run.numbers[0] if run.numbers else None,
            "taken_out": window.taken_out, "taken_out_s": window.taken_out_ns / 1e9,
        },
        "rank_skew_ms": _skew(run, window),
    }  # fmt: skip
    return found, judged, facts


def _peak_facts(peak: Peak | str | None, cores: int) -> Json:
    if not isinstance(peak, Peak):
        return None
    return {"flops": peak.flops, "dtype": peak.dtype, "source": peak.source, "date": peak.date, "cores": cores}


def _skew(run: Steps, window: Window) -> Json:
    """How far apart the ranks end a step, in ms; None with one rank."""
    import numpy as np

    if len(run.ranks) < 2 or not window.steps:
        return None
    ms = window.skew_ns / 1e6
    return {"ranks": len(run.ranks), "median": round(float(np.median(ms)), 3), "max": round(float(ms.max()), 3)}


def _times(run: Steps, window: Window) -> list[Metric]:
    import numpy as np

    ms = np.sort(window.barrier_ns / 1e6)
    found = []
    for p in PERCENTILES:
        q = stats.quantile(ms, p, independent=False)
        found.append(metric("step_time", q.value, stat=f"p{100 * p:g}", n=q.n, note=q.note))
    mean = float(ms.mean()) if len(ms) else None
    found.append(metric("step_time", mean, stat="mean", n=len(ms), note="" if len(ms) else NO_STEP))
    taken = f"{window.taken_out} checkpoints and evaluations taken out" if window.taken_out else ""
    taken += f", {window.unclocked} of them with the whole gap between two steps" if window.unclocked else ""
    wall = window.wall_ns / window.steps / 1e6 if window.steps else None
    found.append(metric("step_time_wall", wall, n=window.steps, note=taken if window.steps else NO_STEP))
    if run.first.steps:
        first = run.first.steps[0]
        begun = int((run.first.end or {}).get("train_begin_ns") or first["begin_ns"])
        found.append(metric("first_step_time", (int(first["end_ns"]) - begun) / 1e9, n=1))
    span = run.span_ns
    wall_s = None if span is None else (span[1] - span[0]) / 1e9
    found.append(metric("train_wall", wall_s, n=1 if span else 0, note="" if span else "no step was made"))
    found.append(_retention(window, "first"))
    found.append(_retention(window, "best"))
    return found


def _rates(window: Window) -> list[Metric]:
    n = window.steps
    if not n or window.wall_ns <= 0:
        why = NO_STEP if not n else "the wall of the window is 0"
        ids = ("train_throughput", "train_throughput_padded", "train_throughput_barrier", "padding_share")
        return [metric(id_, None, note=why) for id_ in ids]
    tokens, padding = int(window.tokens.sum()), int(window.padding.sum())
    wall_s, timed_s = window.wall_ns / 1e9, float(window.barrier_ns.sum()) / 1e9
    empty = "" if tokens + padding else "the batches had no token"
    return [
        metric("train_throughput", tokens / wall_s, n=n),
        metric("train_throughput_padded", (tokens + padding) / wall_s, n=n),
        metric(
            "train_throughput_barrier",
            tokens / timed_s if timed_s else None,
            n=n,
            note="" if timed_s else "the steps took no time by their timers",
        ),
        metric("padding_share", None if empty else padding / (tokens + padding), n=n, note=empty),
    ]


def _retention(window: Window, against: str) -> Metric:
    """Mean rate of the last third of the steps / that of the first step of the window, or of its best."""
    third = window.steps // 3
    if third < 1:
        note = f"needs 3 steps after the first, found {window.steps}"
        return metric("retention", None, stat=f"vs_{against}", n=window.steps, note=note)
    rates = window.tokens / window.barrier_ns.clip(1)
    last = float(rates[-third:].mean())
    base = float(rates[0] if against == "first" else rates.max())
    note = f"steps {window.numbers[-third]} to {window.numbers[-1]}"
    note += f" / step {window.numbers[0]}" if against == "first" else " / the best"
    if base <= 0:
        return metric("retention", None, stat=f"vs_{against}", n=window.steps, note=f"{note}, which had no token")
    return metric("retention", 100 * last / base, stat=f"vs_{against}", n=window.steps, note=note)


def _losses(run: Steps) -> list[Metric]:
    """Of the steps before the first loss that is not finite."""
    bad = run.first_bad
    losses = [loss for step, loss in zip(run.numbers, run.losses, strict=True) if bad is None or step < bad]
    note = "" if bad is None else f"of the steps before {bad}, whose loss is not finite"
    note = note or ("" if losses else "no step was made")
    values = {"first": losses[0], "last": losses[-1], "min": min(losses)} if losses else {}
    return [metric("loss", values.get(stat), stat=stat, n=len(losses), note=note) for stat in ("first", "last", "min")]


def _state(run: Steps, counted: Parameters) -> list[Metric]:
    """Counts, checkpoints and restores."""
    tokens = sum(int(run.column("tokens", rank).sum()) for rank in one_of_each(run))
    resumed = f"of this attempt, which went on from step {run.resumed_from}" if run.resumed_from else ""
    unknown = "the worker did not count them"
    found = [metric("tokens", float(tokens), n=1, note=resumed)]
    for name, count in (("trainable_parameters", counted.trainable), ("total_parameters", counted.total)):
        why = unknown if count is None else ""
        why = why or (f"summed over {counted.tensor_degree} ranks" if counted.tensor_degree > 1 else "")
        found.append(metric(name, None if count is None else float(count), n=0 if count is None else 1, note=why))
    saved = [one for one in run.first.checkpoints if one.get("end_ns") is not None]
    if saved:
        spent = [(int(one["end_ns"]) - int(one["begin_ns"])) / 1e9 for one in saved]
        found.append(metric("checkpoint_time", sum(spent) / len(spent), stat="mean", n=len(spent)))
        found.append(metric("checkpoint_time", max(spent), stat="max", n=len(spent)))
        sizes = [float(one["bytes"]) for one in saved if one.get("bytes") is not None]
        if sizes:
            found.append(metric("checkpoint_size", max(sizes), n=len(sizes)))
    compiled = run.start.get("compile") or {}
    if isinstance(compiled.get("seconds"), (int, float)):
        graphs = compiled.get("graphs_compiled")
        found.append(metric("compile_time", float(compiled["seconds"]), n=1, note="before the run, all of its graphs"))
        found.append(metric("cache_misses", None if graphs is None else float(graphs), n=1))
    for one in run.first.restores[:1]:
        found.append(metric("restore_time", (int(one["end_ns"]) - int(one["begin_ns"])) / 1e9, n=1))
    return found


def _flops(run: Steps, counted: Parameters) -> tuple[FlopModel | None, str]:
    """The FLOP model of the run, or why there is none."""
    rows = [row for log in run.ranks for row in log.steps]
    sequences = sum(int(row["sequences"]) for row in rows)
    if not sequences:
        return None, "no sequence was trained on"
    computed = sum(int(row["tokens"]) + int(row["padding_tokens"]) for row in rows) / sequences
    try:
        return FlopModel.of(counted, run.start, computed), ""
    except ValueError as error:
        return None, f"the worker's count of parameters does not give a FLOP model: {error}"
