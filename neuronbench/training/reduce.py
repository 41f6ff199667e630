"""From the step logs of a whole run to its numbers and the gates that say whether they may be quoted.

Two rates stand beside each other: by the steps' own timers, which end at the device's barrier, and by the wall from the
end of the first step to the device's last word. The wall one is the headline; where the two differ by more than 5 % the
device was working while no timer looked, and the record is invalid.

| gate | fails when |
|---|---|
| `timer_escapes_device` | step time with barrier and by the wall differ by more than 5 % |
| `non_finite_loss` | a loss is not finite; numbers are of the steps before it |
| `implausible` | MFU above 100 % |
| `parameters_consistent` | the optimiser holds other parameters than were counted, or an adapter left nothing frozen |
| `tokens_counted` | the batches' tokens are not those of the data set's sequences |
| `steps_enough` | (provisional) fewer than 3 steps after the first |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from neuronbench import stats
from neuronbench.definitions import metric
from neuronbench.model import Gate, Json, Metric
from neuronbench.protocols import Peak
from neuronbench.training.flops import FlopModel

if TYPE_CHECKING:
    import numpy.typing as npt

    from neuronbench.training.steps import Steps

ESCAPE_LIMIT: Final = 0.05
LEAST_STEPS: Final = 3
"""After the first: a third of them is one step then."""
PERCENTILES: Final = (0.5, 0.9, 0.99)


@dataclass(frozen=True, kw_only=True)
class Window:
    """The steps that rates are of: all after the first of this attempt, up to the last with a finite loss."""

    numbers: npt.NDArray[Any]
    """Step numbers."""
    barrier_ns: npt.NDArray[Any]
    """Begin → end of each step, of the slowest rank."""
    tokens: npt.NDArray[Any]
    """Non-padding, of all distinct data shards."""
    padding: npt.NDArray[Any]
    wall_ns: int
    """From the end of the first step to the end of training, without what was taken out."""
    taken_out_ns: int
    """Checkpoints and evaluations between the steps."""
    taken_out: int

    @property
    def steps(self) -> int:
        return len(self.numbers)


def reduce(
    run: Steps, *, peak: Peak | None, cores: int, check_loss: bool = True
) -> tuple[list[Metric], list[Gate], dict[str, Json]]:
    """Metrics, gates and facts of a run that `steps.verify` has passed.

    `cores` × `peak` is the denominator of the utilisation. With `check_loss` a loss that is not finite makes the record
    invalid; without, it is said and the numbers still end before it.
    """
    window = window_of(run)
    flops, why_not = _flops(run)
    found = [*_times(run, window), *_rates(window), *_losses(run), *_state(run)]
    utilisation = _mfu(window, flops, why_not, peak, cores)
    gates = [
        _escape_gate(window), _finite_gate(run, check_loss), _implausible_gate(utilisation, peak),
        _parameters_gate(run), _tokens_gate(run), _enough_gate(window),
    ]  # fmt: skip
    facts: dict[str, Json] = {
        "flops": flops.to_json() if flops else {"missing": why_not},
        "peak": None if peak is None else {"flops": peak.flops, "dtype": peak.dtype, "source": peak.source,
                                           "date": peak.date, "cores": cores},
        "window": {
            "steps": window.steps, "first_left_out": run.numbers[0] if run.numbers else None,
            "taken_out": window.taken_out, "taken_out_s": window.taken_out_ns / 1e9,
        },
    }  # fmt: skip
    return [*found, utilisation], gates, facts


def window_of(run: Steps) -> Window:
    """The window of `run`; see `Window`. Ranks of one data shard count their tokens once."""
    import numpy as np

    last = math.inf if run.first_bad is None else run.first_bad - 1
    numbers = np.array(run.numbers, dtype=np.int64)
    kept = np.flatnonzero(numbers <= last)[1:]
    one_of_each = {shard: rank for rank, shard in sorted(run.shards.items(), reverse=True)}
    barrier = np.max([run.column("end_ns", r) - run.column("begin_ns", r) for r in run.shards], axis=0)
    tokens = np.sum([run.column("tokens", rank) for rank in one_of_each.values()], axis=0)
    padding = np.sum([run.column("padding_tokens", rank) for rank in one_of_each.values()], axis=0)
    ends = np.max([run.column("end_ns", rank) for rank in run.shards], axis=0)
    if not len(kept):
        return Window(
            numbers=numbers[kept], barrier_ns=barrier[kept], tokens=tokens[kept], padding=padding[kept], wall_ns=0,
            taken_out_ns=0, taken_out=0,
        )  # fmt: skip
    begin = int(ends[kept[0] - 1])
    whole = run.first_bad is None and all(log.end is not None for log in run.ranks)
    end = max(int(log.end["train_end_ns"]) for log in run.ranks if log.end) if whole else int(ends[kept[-1]])
    events = [*run.first.checkpoints, *run.first.evaluations]
    spans = [
        (max(int(one["begin_ns"]), begin), min(int(one["end_ns"]), end))
        for one in events
        if one.get("begin_ns") is not None and one.get("end_ns") is not None
    ]
    spans = [span for span in spans if span[1] > span[0]]
    out = sum(last - first for first, last in spans)
    return Window(
        numbers=numbers[kept], barrier_ns=barrier[kept], tokens=tokens[kept], padding=padding[kept],
        wall_ns=end - begin - out, taken_out_ns=out, taken_out=len(spans),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# metrics


def _times(run: Steps, window: Window) -> list[Metric]:
    import numpy as np

    ms = np.sort(window.barrier_ns / 1e6)
    found = []
    for p in PERCENTILES:
        q = stats.quantile(ms, p, independent=False)
        found.append(metric("step_time", q.value, stat=f"p{100 * p:g}", n=q.n, note=q.note))
    found.append(metric("step_time", float(ms.mean()) if len(ms) else None, stat="mean", n=len(ms)))
    taken = f"{window.taken_out} checkpoints and evaluations taken out" if window.taken_out else ""
    wall = window.wall_ns / window.steps / 1e6 if window.steps else None
    found.append(metric("step_time_wall", wall, n=window.steps, note=taken if window.steps else _NONE))
    if run.first.steps:
        first = run.first.steps[0]
        begun = int((run.first.end or {}).get("train_begin_ns") or first["begin_ns"])
        found.append(metric("first_step_time", (int(first["end_ns"]) - begun) / 1e9, n=1))
    span = run.span_ns
    found.append(metric("train_wall", None if span is None else (span[1] - span[0]) / 1e9, n=1 if span else 0))
    found.append(_retention(window, "first"))
    found.append(_retention(window, "best"))
    return found


_NONE: Final = "no step after the first: the first has compilation and loading in it and is in no rate"


def _rates(window: Window) -> list[Metric]:
    n = window.steps
    if not n or window.wall_ns <= 0:
        why = _NONE if not n else "the wall of the window is 0"
        ids = ("train_throughput", "train_throughput_padded", "train_throughput_barrier")
        return [metric(id_, None, note=why) for id_ in ids]
    tokens, padding = int(window.tokens.sum()), int(window.padding.sum())
    wall_s, timed_s = window.wall_ns / 1e9, float(window.barrier_ns.sum()) / 1e9
    return [
        metric("train_throughput", tokens / wall_s, n=n),
        metric("train_throughput_padded", (tokens + padding) / wall_s, n=n),
        metric("train_throughput_barrier", tokens / timed_s if timed_s else None, n=n),
        metric("padding_share", padding / (tokens + padding) if tokens + padding else None, n=n),
    ]


def _retention(window: Window, against: str) -> Metric:
    """Rate of the last third of the steps / that of the first third, or of the best step."""
    third = window.steps // 3
    if third < 1:
        note = f"needs 3 steps after the first, found {window.steps}"
        return metric("retention", None, stat=f"vs_{against}", n=window.steps, note=note)
    rates = window.tokens / window.barrier_ns
    last = float(rates[-third:].mean())
    base = float(rates[:third].mean()) if against == "first" else float(rates.max())
    value = 100 * last / base if base > 0 else None
    return metric("retention", value, stat=f"vs_{against}", n=window.steps)


def _losses(run: Steps) -> list[Metric]:
    losses = [loss for loss in run.losses if math.isfinite(loss)]
    n = len(losses)
    note = "" if n == len(run.losses) else f"{len(run.losses) - n} losses are not finite and left out"
    values = {"first": losses[0], "last": losses[-1], "min": min(losses)} if losses else {}
    return [metric("loss", values.get(stat), stat=stat, n=n, note=note) for stat in ("first", "last", "min")]


def _state(run: Steps) -> list[Metric]:
    """Counts, checkpoints and restores."""
    said: Mapping[str, Any] = run.start.get("parameters") or {}
    one_of_each = {shard: rank for rank, shard in sorted(run.shards.items(), reverse=True)}
    found = [
        metric("tokens", float(sum(int(run.column("tokens", rank).sum()) for rank in one_of_each.values())), n=1),
        metric("trainable_parameters", _count(said.get("trainable")), n=1),
        metric("total_parameters", _count(said.get("total")), n=1),
    ]
    saved = [one for one in run.first.checkpoints if one.get("end_ns") is not None]
    if saved:
        spent = [(int(one["end_ns"]) - int(one["begin_ns"])) / 1e9 for one in saved]
        found.append(metric("checkpoint_time", sum(spent) / len(spent), stat="mean", n=len(spent)))
        found.append(metric("checkpoint_time", max(spent), stat="max", n=len(spent)))
        sizes = [float(one["bytes"]) for one in saved if one.get("bytes") is not None]
        if sizes:
            found.append(metric("checkpoint_size", max(sizes), n=len(sizes)))
    for one in run.first.restores[:1]:
        found.append(metric("restore_time", (int(one["end_ns"]) - int(one["begin_ns"])) / 1e9, n=1))
    return found


def _count(value: Any) -> float | None:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _flops(run: Steps) -> tuple[FlopModel | None, str]:
    """The FLOP model of the run, or why there is none."""
    rows = [row for log in run.ranks for row in log.steps]
    sequences = sum(int(row["sequences"]) for row in rows)
    if not sequences:
        return None, "no sequence was trained on"
    computed = sum(int(row["tokens"]) + int(row["padding_tokens"]) for row in rows) / sequences
    try:
        return FlopModel.of(run.start, computed), ""
    except (KeyError, TypeError, ValueError) as error:
        return None, f"the worker's count of parameters does not give a FLOP model: {error}"


def _mfu(window: Window, flops: FlopModel | None, why_not: str, peak: Peak | None, cores: int) -> Metric:
    if flops is None:
        return metric("mfu", None, note=why_not)
    if peak is None:
        return metric("mfu", None, note="nobody says what a core of this hardware can do at best")
    if not window.steps or window.wall_ns <= 0:
        return metric("mfu", None, note=_NONE)
    rate = float(window.tokens.sum()) / (window.wall_ns / 1e9)
    source = f"{cores} × {peak.flops / 1e12:g} TFLOP/s dense {peak.dtype}, {peak.source}, {peak.date}"
    return metric("mfu", flops.mfu_pct(rate, peak.flops, cores), n=window.steps, note=f"{flops.formula()}; {source}")


# --------------------------------------------------------------------------------------------------------------------
# gates


def escape(barrier_ms: float, wall_ms: float) -> float:
    """Relative difference of the step time with barrier from that by the wall."""
    return abs(wall_ms - barrier_ms) / wall_ms


def _escape_gate(window: Window) -> Gate:
    if not window.steps or window.wall_ns <= 0:
        return Gate(id="timer_escapes_device", passed=None, limit=ESCAPE_LIMIT, message=_NONE)
    barrier, wall = float(window.barrier_ns.mean()) / 1e6, window.wall_ns / window.steps / 1e6
    off = escape(barrier, wall)
    return Gate(
        id="timer_escapes_device",
        passed=off <= ESCAPE_LIMIT,
        observed=off,
        limit=ESCAPE_LIMIT,
        unit="share",
        message=f"a step takes {barrier:.4g} ms by its timer, {wall:.4g} ms by the wall",
    )


def _finite_gate(run: Steps, check_loss: bool) -> Gate:
    bad = run.first_bad
    return Gate(
        id="non_finite_loss",
        passed=bad is None,
        observed=bad,
        unit="" if bad is None else "step",
        severity="invalid" if check_loss else "info",
        message="" if bad is None else f"the loss of step {bad} is the first that is not finite; numbers end before it",
    )


def _implausible_gate(utilisation: Metric, peak: Peak | None) -> Gate:
    value = utilisation.value
    return Gate(
        id="implausible",
        passed=None if value is None else value <= 100.0,
        observed=value,
        limit=100.0,
        unit="%",
        message=utilisation.note if value is None else f"MFU by {utilisation.note}",
    )


def _parameters_gate(run: Steps) -> Gate:
    said: Mapping[str, Any] = run.start.get("parameters") or {}
    trainable, frozen, total = (_count(said.get(name)) for name in ("trainable", "frozen", "total"))
    held = _count(said.get("optimizer"))
    problems = []
    if trainable is None or frozen is None:
        return Gate(
            id="parameters_consistent", passed=None, message="the worker did not count trainable and frozen parameters"
        )
    if total is not None and trainable + frozen != total:
        problems.append(f"{trainable:,.0f} trainable + {frozen:,.0f} frozen are not {total:,.0f}")
    if not trainable:
        problems.append("nothing is trainable")
    if said.get("adapter") and not frozen:
        problems.append("an adapter is trained and yet nothing is frozen: counted before it was attached?")
    if held is not None and held != trainable:
        problems.append(f"the optimiser holds {held:,.0f} parameters, {trainable:,.0f} were counted as trainable")
    return Gate(
        id="parameters_consistent",
        passed=not problems,
        observed=held,
        limit=trainable,
        unit="parameters",
        message="; ".join(problems),
    )


def _tokens_gate(run: Steps) -> Gate:
    """Tokens of the batches against those of the sequences that the data set has, and what they can be at most."""
    one_of_each = {shard: rank for rank, shard in sorted(run.shards.items(), reverse=True)}
    by_shard: dict[int, list[tuple[int, int]]] = {}
    for log in run.ranks:
        counted = [(int(row["tokens"]), int(row["padding_tokens"])) for row in log.steps]
        other = by_shard.setdefault(run.shards[log.rank], counted)
        if other != counted:
            return _tokens(False, None, None, f"ranks of data shard {run.shards[log.rank]} count different tokens")
    seen = [sum(sum(int(v) for v in run.column(name, rank)) for rank in one_of_each.values())
            for name in ("tokens", "padding_tokens", "sequences")]  # fmt: skip
    tokens, padding, sequences = seen
    data: Mapping[str, Any] = run.start.get("dataset") or {}
    due = data.get("consumed")
    whole = run.reason == "done" and not run.resumed_from
    if isinstance(due, Mapping) and whole:
        expected = (due.get("tokens"), due.get("padding_tokens"))
        same = (tokens, padding) == expected
        text = f"batches: {tokens:,} tokens and {padding:,} of padding; the sequences that were due have "
        return _tokens(same, tokens, due.get("tokens"), "" if same else text + f"{expected[0]:,} and {expected[1]:,}")
    stored, padded = data.get("sequences"), data.get("padding_tokens")
    if not (isinstance(stored, int) and stored and isinstance(data.get("tokens"), int) and isinstance(padded, int)):
        return _tokens(None, tokens, None, "the worker does not say how many tokens its data set has")
    size = (data["tokens"] + padded) / stored
    if tokens + padding > sequences * size * (1 + 1e-9):
        text = f"{tokens + padding:,} tokens in {sequences:,} sequences of {size:g}: more than fit"
        return _tokens(False, tokens, round(sequences * size), text)
    if padded and not padding and sequences:
        return _tokens(False, tokens, None, "the data set has padding, the batches count none: it counts as tokens")
    return _tokens(None, tokens, None, "part of a run: no more than fits into its sequences, not counted against them")


def _tokens(passed: bool | None, observed: Any, limit: Any, message: str) -> Gate:
    return Gate(id="tokens_counted", passed=passed, observed=observed, limit=limit, unit="tokens", message=message)


def _enough_gate(window: Window) -> Gate:
    return Gate(
        id="steps_enough",
        passed=window.steps >= LEAST_STEPS,
        observed=window.steps,
        limit=LEAST_STEPS,
        unit="steps",
        severity="provisional",
        message="steps after the first, of which rates are made",
    )
