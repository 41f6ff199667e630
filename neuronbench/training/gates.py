"""What says whether the numbers of a training run may be quoted; see `reduce` for the list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Gate
from neuronbench.protocols import Peak
from neuronbench.training.flops import FlopModel, Parameters
from neuronbench.training.peaks import NO_PEAK, share
from neuronbench.training.window import NO_STEP, Window, one_of_each

if TYPE_CHECKING:
    from neuronbench.training.steps import Steps

ESCAPE_LIMIT: Final = 0.05
TAIL_LIMIT: Final = 0.25
"""The same for the few steps after the last checkpoint, where the ends weigh more."""
LEAST_STEPS: Final = 3
"""After the first: a third of them is one step then."""


def escape(barrier_ms: float, wall_ms: float) -> float:
    """Relative difference of the step time with barrier from that by the wall."""
    return abs(wall_ms - barrier_ms) / wall_ms


def timers_gate(barrier_ms: float, wall_ms: float, message: str = "") -> Gate:
    """Whether a step by its timer is a step by the wall."""
    off = escape(barrier_ms, wall_ms)
    timed, passed_by = (f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in (barrier_ms, wall_ms))
    said = f"a step takes {timed} ms by its timer, {passed_by} ms by the wall"
    return Gate(
        id="timer_escapes_device",
        passed=off <= ESCAPE_LIMIT,
        observed=off,
        limit=ESCAPE_LIMIT,
        unit="share",
        message=f"{said}{'; ' if message else ''}{message}",
    )


def escape_gate(window: Window) -> Gate:
    """Timers against the wall, over the window; and over the steps since the last checkpoint, because what a timer left
    in the device's queue before a checkpoint is waited for in it, and would be taken out together with it.

    Where checkpoints take more than the limit and fewer than two steps come after the last, nothing can be said.
    """
    if not window.steps or window.wall_ns <= 0:
        return Gate(id="timer_escapes_device", passed=None, limit=ESCAPE_LIMIT, message=NO_STEP)
    barrier, wall = float(window.barrier_ns.mean()) / 1e6, window.wall_ns / window.steps / 1e6
    gate = timers_gate(barrier, wall)
    if not gate.passed:
        return gate
    if window.tail_ns is not None and window.tail_ns[1] > 0:
        timed, passed_by = (ns / 1e6 for ns in window.tail_ns)
        off = escape(timed, passed_by)
        if off > TAIL_LIMIT:
            message = f"the steps after the last checkpoint or evaluation take {timed:.4g} ms by their timers, "
            message += f"{passed_by:.4g} ms by the wall"
            return replace(gate, passed=False, observed=off, limit=TAIL_LIMIT, message=message)
    elif window.taken_out and escape(barrier, wall + window.taken_out_ns / window.steps / 1e6) > ESCAPE_LIMIT:
        text = f"{gate.message}, but no two steps come after the last checkpoint, and in those before it work may have "
        text += "hidden: choose checkpoint_every so that some do"
        return replace(gate, passed=None, message=text)
    return gate


def finite_gate(run: Steps) -> Gate:
    return first_bad_gate(run.first_bad)


def first_bad_gate(bad: int | None) -> Gate:
    """`bad`: the first step whose loss is not finite; None where all are."""
    return Gate(
        id="non_finite_loss",
        passed=bad is None,
        observed=bad,
        unit="" if bad is None else "step",
        message="" if bad is None else f"the loss of step {bad} is the first that is not finite; numbers end before it",
    )


def compile_gate(run: Steps) -> Gate | None:
    """Graphs that were compiled after the first step stand in the rates; None where nobody counts them."""
    found = (run.first.end or {}).get("compiles_in_window")
    if not isinstance(found, int):
        return None
    return Gate(
        id="compiled_in_window",
        passed=found == 0,
        observed=found,
        limit=0,
        unit="graphs",
        message="graphs were compiled after the first step: shapes change from step to step, or it was not the last "
        "graph that the first step met; the rates have compiling in them"
        if found
        else "",
    )


def implausible_gate(window: Window, flops: FlopModel | str, peak: Peak | None, cores: int) -> Gate:
    """More than everything the cores can do, by a documented peak or by a bound. `flops` as in `peaks.mfu`."""
    why = flops if isinstance(flops, str) else NO_PEAK if peak is None else ""
    if isinstance(flops, str) or peak is None or not window.steps or window.wall_ns <= 0:
        return Gate(id="implausible", passed=None, limit=100.0, unit="%", message=why or NO_STEP)
    value, of_what = share(window, flops, peak, cores)
    return Gate(
        id="implausible",
        passed=value <= 100.0,
        observed=value,
        limit=100.0,
        unit="%",
        message=f"{'share of the bound' if peak.bound else 'MFU'} by {of_what}",
    )


def parameters_gate(counted: Parameters) -> Gate:
    trainable, frozen, total, held = counted.trainable, counted.frozen, counted.total, counted.optimizer
    problems = [counted.problem] if counted.problem else []
    if trainable is None or frozen is None:
        return Gate(
            id="parameters_consistent", passed=None, message="the worker did not count trainable and frozen parameters"
        )
    if total is not None and trainable + frozen != total:
        problems.append(f"{trainable:,} trainable + {frozen:,} frozen are not {total:,}")
    if not trainable:
        problems.append("nothing is trainable")
    if counted.adapter and not frozen:
        problems.append("an adapter is trained and yet nothing is frozen: counted before it was attached?")
    if held is not None and held != trainable:
        problems.append(f"the optimiser holds {held:,} parameters, {trainable:,} were counted as trainable")
    return Gate(
        id="parameters_consistent",
        passed=not problems,
        observed=held,
        limit=trainable,
        unit="parameters",
        message="; ".join(problems),
    )


def tokens_gate(run: Steps) -> Gate:
    """Tokens of the batches against those of the sequences that were due, and what they can be at most.

    Every distinct data shard counts once. Of a whole run all tokens are known beforehand; of one that went on from a
    checkpoint the number of sequences is; of any other what fits into its sequences.
    """
    by_shard: dict[int, list[tuple[int, int]]] = {}
    for log in run.ranks:
        counted = [(int(row["tokens"]), int(row["padding_tokens"])) for row in log.steps]
        other = by_shard.setdefault(run.shards[log.rank], counted)
        if other != counted:
            return _tokens(False, None, None, f"ranks of data shard {run.shards[log.rank]} count different tokens")
    tokens, padding, sequences = (
        sum(int(run.column(name, rank).sum()) for rank in one_of_each(run))
        for name in ("tokens", "padding_tokens", "sequences")
    )
    data: Mapping[str, Any] = run.start.get("dataset") or {}
    due = data.get("consumed")
    if isinstance(due, Mapping) and run.reason == "done":
        if not run.resumed_from:
            expected = (due.get("tokens"), due.get("padding_tokens"))
            same = (tokens, padding) == expected
            text = f"batches: {tokens:,} tokens and {padding:,} of padding; the sequences that were due have "
            return _tokens(same, tokens, expected[0], "" if same else text + f"{expected[0]:,} and {expected[1]:,}")
        of_part = due["sequences"] * len(run.numbers) // run.numbers[-1] if run.numbers else 0
        if sequences != of_part:
            text = f"{sequences:,} sequences in {len(run.numbers)} of {run.numbers[-1]} steps, {of_part:,} were due"
            return _tokens(False, tokens, None, text)
    return _at_most(tokens, padding, sequences, data)


def _at_most(tokens: int, padding: int, sequences: int, data: Mapping[str, Any]) -> Gate:
    stored, padded = data.get("sequences"), data.get("padding_tokens")
    if not (isinstance(stored, int) and stored and isinstance(data.get("tokens"), int) and isinstance(padded, int)):
        return _tokens(None, tokens, None, "the worker does not say how many tokens its data set has")
    size = (data["tokens"] + padded) / stored
    if tokens + padding > sequences * size * (1 + 1e-9):
        text = f"{tokens + padding:,} tokens in {sequences:,} sequences of {size:g}: more than fit"
        return _tokens(False, tokens, round(sequences * size), text)
    if (
        not padding and padded * sequences / stored >= size
    ):  # not all of it can be in one sequence that is still to come
        return _tokens(False, tokens, None, "the data set has padding, the batches count none: it counts as tokens")
    return _tokens(None, tokens, None, "part of a run: no more than fits into its sequences, not counted against them")


def _tokens(passed: bool | None, observed: Any, limit: Any, message: str) -> Gate:
    return Gate(id="tokens_counted", passed=passed, observed=observed, limit=limit, unit="tokens", message=message)


def enough_gate(window: Window) -> Gate:
    return Gate(
        id="steps_enough",
        passed=window.steps >= LEAST_STEPS,
        observed=window.steps,
        limit=LEAST_STEPS,
        unit="steps",
        severity="provisional",
        message="steps after the first, of which rates are made",
    )
