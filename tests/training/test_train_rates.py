"""From step logs written by hand to numbers known by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Gate, Metric, Point, Record
from neuronbench.protocols import Peak
from neuronbench.training.peaks import host_peak
from neuronbench.training.reduce import reduce
from neuronbench.training.steps import RankLog, Steps

MS = 1_000_000
PARAMETERS = {
    "trainable": 100, "frozen": 900, "total": 1000, "optimizer": 100, "adapter": True, "layers": 0, "hidden": 0,
    "embedding": 0, "tied": True,
}  # fmt: skip
PEAK = Peak(flops=1e9, dtype="bfloat16", source="a document", date="2026-01-01")


def log(
    *,
    rank: int = 0,
    world: int = 1,
    shard: int | None = None,
    shards: int | None = None,
    steps: int = 7,
    step_ms: float = 100.0,
    gap_ms: float = 0.0,
    tail_ms: float = 0.0,
    first_ms: float = 1000.0,
    losses: list[float] | None = None,
    checkpoint_after: int | None = None,
    checkpoint_ms: float = 500.0,
    waits_ms: float = 0.0,
    evaluated_after: int | None = None,
    clocked: bool = True,
    tokens: int = 90,
    padding: int = 10,
    parameters: dict[str, Any] | None = None,
    dataset: dict[str, Any] | None = None,
    resumed_from: int = 0,
) -> RankLog:
    now, rows, saved, evaluated = 10_000 * MS, [], [], []
    begun = now
    for index in range(steps):
        now += round(gap_ms * MS) if index else 0
        begin = now
        now += round((first_ms if index == 0 else step_ms) * MS)
        if waits_ms and index == checkpoint_after:  # for a rank that is writing one
            now += round(waits_ms * MS)
        rows.append(
            {
                "kind": "step", "step": resumed_from + index + 1, "begin_ns": begin, "returned_ns": begin + 1,
                "end_ns": now, "loss": losses[index] if losses else 3.0 - 0.1 * index, "grad_norm": 1.0,
                "learning_rate": 1e-4, "tokens": tokens, "padding_tokens": padding, "sequences": 2, "micro_batches": 1,
            }
        )  # fmt: skip
        if index + 1 == checkpoint_after and not waits_ms:
            saved.append(
                {
                    "kind": "checkpoint", "step": index + 1, "begin_ns": now, "end_ns": now + round(checkpoint_ms * MS),
                    "bytes": 77, "digest": "d",
                }
            )  # fmt: skip
            now += round(checkpoint_ms * MS)
        if index + 1 == evaluated_after:
            span = {"begin_ns": now, "end_ns": now + 300 * MS} if clocked else {}
            evaluated.append({"kind": "evaluation", "step": index + 1, "loss": 1.0, "tokens": 5, "name": "h", **span})
            now += 300 * MS
    whole = (steps + resumed_from) * (shards or world)
    consumed = {"sequences": 2 * whole, "tokens": tokens * whole, "padding_tokens": padding * whole}
    return RankLog(
        rank=rank,
        start={
            "rank": rank, "world_size": world, "data_shard": [rank if shard is None else shard, shards or world],
            "barrier": "toy", "parameters": {**PARAMETERS, **(parameters or {})}, "recompute": False,
            "attention": "causal", "resumed_from": resumed_from,
            "dataset": {
                "sequences": 50, "tokens": 2250, "padding_tokens": 250, "consumed": consumed, **(dataset or {}),
            },
        },
        steps=rows,
        checkpoints=saved,
        evaluations=evaluated,
        end={"kind": "end", "train_begin_ns": begun, "train_end_ns": now + round(tail_ms * MS), "reason": "done"},
    )  # fmt: skip


def reduced(*logs: RankLog, peak: Peak | None = PEAK, **more: Any) -> tuple[dict[str, Metric], dict[str, Gate], Any]:
    metrics, gates, facts = reduce(Steps(ranks=logs), peak=peak, cores=1, **more)
    return {metric.key: metric for metric in metrics}, {gate.id: gate for gate in gates}, facts


def failed(gates: dict[str, Gate]) -> set[str]:
    return {name for name, gate in gates.items() if gate.passed is False}


def test_an_honest_run() -> None:
    metrics, gates, facts = reduced(log())
    assert failed(gates) == set()
    assert metrics["step_time_p50_ms"].value == 100.0
    assert metrics["step_time_wall_ms"].value == 100.0
    assert metrics["train_throughput_tok_s"].value == pytest.approx(900.0)  # 90 tokens in 0.1 s; the first step is out
    assert metrics["train_throughput_padded_tok_s"].value == pytest.approx(1000.0)
    assert metrics["train_throughput_barrier_tok_s"].value == pytest.approx(900.0)
    assert metrics["padding_share_share"].value == pytest.approx(0.1)
    assert metrics["first_step_time_s"].value == 1.0
    assert metrics["tokens_tokens"].value == 7 * 90
    assert metrics["mfu_pct"].value == pytest.approx(100 * (600 + 3600) * 900 / 1e9)
    assert metrics["retention_vs_first_pct"].value == pytest.approx(100.0)
    assert facts["rank_skew_ms"] is None
    assert (metrics["loss_first"].value, metrics["loss_last"].value) == (3.0, pytest.approx(2.4))
    assert "6·100 trainable + 4·900 frozen" in facts["flops"]["formula"]
    assert facts["peak"]["source"] == "a document"


def test_what_escapes_the_timers_between_steps_and_at_the_end_is_found() -> None:
    for changes in ({"gap_ms": 10.0}, {"tail_ms": 100.0}):
        metrics, gates, _ = reduced(log(**changes))
        assert failed(gates) == {"timer_escapes_device"}
        assert metrics["train_throughput_tok_s"].value < metrics["train_throughput_barrier_tok_s"].value  # type: ignore[operator]
    assert failed(reduced(log(gap_ms=4.0))[1]) == set()  # under 5 %


def test_checkpoints_are_in_no_rate() -> None:
    metrics, gates, facts = reduced(log(checkpoint_after=3))
    assert failed(gates) == set()
    assert metrics["train_throughput_tok_s"].value == pytest.approx(900.0)
    assert "1 checkpoints" in metrics["step_time_wall_ms"].note
    assert metrics["checkpoint_time_mean_s"].value == 0.5
    assert metrics["checkpoint_size_bytes"].value == 77
    assert facts["window"]["taken_out_s"] == 0.5
    assert metrics["train_wall_s"].value == pytest.approx(1.0 + 0.6 + 0.5)  # of the whole it is a part


def test_evaluations_are_in_no_rate_whether_their_instants_are_known_or_not() -> None:
    for clocked in (True, False):
        metrics, gates, facts = reduced(log(evaluated_after=3, clocked=clocked))
        assert failed(gates) == set()
        assert metrics["train_throughput_tok_s"].value == pytest.approx(900.0)
        assert facts["window"]["taken_out_s"] == pytest.approx(0.3)
        assert ("whole gap" in metrics["step_time_wall_ms"].note) is not clocked
    both = reduced(log(checkpoint_after=3, evaluated_after=3))
    assert both[0]["train_throughput_tok_s"].value == pytest.approx(900.0)
    assert failed(both[1]) == set()


def test_a_rank_that_waits_for_another_s_checkpoint_in_its_step_has_no_slower_step() -> None:
    metrics, gates, _ = reduced(log(rank=0, world=2, checkpoint_after=3), log(
        rank=1, world=2, checkpoint_after=3, waits_ms=500.0))  # fmt: skip
    assert failed(gates) == set()
    assert metrics["step_time_p90_ms"].note  # six steps are too few for it
    assert metrics["step_time_mean_ms"].value == pytest.approx(100.0)
    assert metrics["train_throughput_tok_s"].value == pytest.approx(1800.0)


def test_what_a_timer_left_for_the_checkpoint_to_wait_for_is_found_after_the_last_one() -> None:
    """Before a checkpoint the queue is drained in it, and taken out with it; after the last one there is no excuse."""
    assert failed(reduced(log(steps=60, checkpoint_after=30, tail_ms=20.0))[1]) == set()
    metrics, gates, _ = reduced(log(steps=60, checkpoint_after=55, tail_ms=290.0))
    assert failed(gates) == {"timer_escapes_device"}
    assert "after the last checkpoint" in gates["timer_escapes_device"].message
    assert metrics["step_time_wall_ms"].value == pytest.approx(100 + 290 / 59)  # within 5 % over the whole


def test_nothing_is_said_of_timers_whose_steps_all_have_a_checkpoint_behind_them() -> None:
    gate = reduced(log(steps=8, checkpoint_after=7))[1]["timer_escapes_device"]
    assert gate.passed is None
    assert "choose checkpoint_every" in gate.message
    small = reduced(log(steps=60, checkpoint_after=59, checkpoint_ms=100.0))  # too little to hide anything in
    assert small[1]["timer_escapes_device"].passed is True


def test_how_far_apart_ranks_end_a_step_is_said() -> None:
    skew = reduced(log(rank=0, world=2), log(rank=1, world=2, step_ms=120.0))[2]["rank_skew_ms"]
    assert skew == {"ranks": 2, "median": pytest.approx(70.0), "max": pytest.approx(120.0)}


def test_retention_is_of_the_first_step_that_counts_and_of_the_best() -> None:
    one = log(steps=10)
    slow = [*one.steps]
    for index in (7, 8, 9):
        slow[index] = {**slow[index], "tokens": 45}
    slow[1] = {**slow[1], "tokens": 60}
    metrics = reduced(dataclasses.replace(one, steps=slow))[0]
    assert metrics["retention_vs_first_pct"].value == pytest.approx(75.0)
    assert metrics["retention_vs_first_pct"].note == "steps 8 to 10 / step 2"
    assert metrics["retention_vs_best_pct"].value == pytest.approx(50.0)
    assert reduced(log(steps=3))[0]["retention_vs_first_pct"].value is None


def test_parameters_of_ranks_that_split_a_model_are_added_up() -> None:
    half = {"trainable": 50, "frozen": 450, "total": 500, "optimizer": 50, "tp_degree": 2}
    two = [log(rank=rank, world=2, shard=0, shards=1, parameters=half) for rank in range(2)]
    metrics, gates, facts = reduced(*two)
    assert failed(gates) == set()
    assert metrics["trainable_parameters_parameters"].value == 100
    assert "summed over 2 ranks" in metrics["total_parameters_parameters"].note
    assert facts["flops"]["per_token"] == 600 + 3600
    assert "parameters_consistent" in failed(reduced(log(parameters=half))[1])  # one of two


def test_tokens_of_ranks_that_share_a_shard_count_once() -> None:
    two = [log(rank=rank, world=2) for rank in range(2)]
    assert reduced(*two)[0]["train_throughput_tok_s"].value == pytest.approx(1800.0)
    tensor = [log(rank=rank, world=2, shard=0, shards=1) for rank in range(2)]
    assert reduced(*tensor)[0]["train_throughput_tok_s"].value == pytest.approx(900.0)
    assert failed(reduced(*tensor)[1]) == set()
    torn = [log(rank=0, world=2, shard=0, shards=1), log(rank=1, world=2, shard=0, shards=1, tokens=80, padding=20)]
    assert failed(reduced(*torn)[1]) == {"tokens_counted"}


def test_the_slowest_rank_is_what_a_step_takes() -> None:
    metrics, gates, _ = reduced(log(rank=0, world=2), log(rank=1, world=2, step_ms=120.0))
    assert metrics["step_time_p50_ms"].value == 120.0
    assert metrics["step_time_wall_ms"].value == pytest.approx(120.0)
    assert failed(gates) == set()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_end_before_the_first_loss_that_is_not_finite(bad: float) -> None:
    losses = [3.0, 2.9, 2.8, 2.7, 2.6, bad, 1.0]
    metrics, gates, _ = reduced(log(losses=losses))
    assert failed(gates) == {"non_finite_loss"}
    assert gates["non_finite_loss"].observed == 6
    assert metrics["step_time_p50_ms"].n == 4
    assert metrics["train_throughput_tok_s"].value == pytest.approx(900.0)
    assert (metrics["loss_min"].value, metrics["loss_last"].value) == (2.6, 2.6)  # the 1.0 came after
    assert "before 6, whose loss is not finite" in metrics["loss_last"].note


def test_a_bad_loss_at_once_leaves_no_rate() -> None:
    metrics, gates, _ = reduced(log(losses=[math.nan] * 7))
    assert metrics["train_throughput_tok_s"].value is None
    assert metrics["mfu_pct"].value is None
    assert metrics["loss_first"].value is None
    assert gates["timer_escapes_device"].passed is None
    assert "steps_enough" in failed(gates)


def test_one_step_is_no_rate() -> None:
    metrics, gates, _ = reduced(log(steps=1))
    assert metrics["train_throughput_tok_s"].value is None
    assert "first" in metrics["train_throughput_tok_s"].note
    assert metrics["step_time_wall_ms"].value is None
    assert gates["steps_enough"].severity == "provisional"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"trainable": 1000, "frozen": 0}, "nothing is frozen"),
        ({"optimizer": 1000}, "optimiser holds 1,000"),
        ({"trainable": 0, "frozen": 1000, "optimizer": 0}, "nothing is trainable"),
        ({"total": 5}, "are not 5"),
    ],
)
def test_parameters_that_cannot_be(parameters: dict[str, int], words: str) -> None:
    gate = reduced(log(parameters=parameters))[1]["parameters_consistent"]
    assert gate.passed is False
    assert words in gate.message


def test_tokens_are_those_that_were_due() -> None:
    wrong = {"consumed": {"sequences": 14, "tokens": 1, "padding_tokens": 2}}
    assert failed(reduced(log(dataset=wrong))[1]) == {"tokens_counted"}
    assert failed(reduced(log(tokens=100, padding=0, dataset={"consumed": None}))[1]) == {"tokens_counted"}
    assert failed(reduced(log(tokens=200, padding=10, dataset={"consumed": None}))[1]) == {"tokens_counted"}
    assert reduced(log(dataset={"consumed": None}))[1]["tokens_counted"].passed is None
    assert reduced(log(resumed_from=4))[1]["tokens_counted"].passed is None  # part of a run: bounds only


def test_a_part_of_a_run_has_its_part_of_the_sequences() -> None:
    assert failed(reduced(log(resumed_from=4))[1]) == set()
    twice = {"consumed": {"sequences": 11, "tokens": 990, "padding_tokens": 110}}
    gate = reduced(log(resumed_from=4, dataset=twice))[1]["tokens_counted"]
    assert gate.passed is False
    assert "14 sequences in 7 of 11 steps, 7 were due" in gate.message


def test_every_number_that_is_not_there_says_why() -> None:
    runs = [
        reduced(log(steps=1), peak=None),
        reduced(log(losses=[math.nan] * 7)),
        reduced(log(tokens=0, padding=0)),
        reduced(log(parameters={"trainable": None, "total": None})),
        reduced(log(step_ms=0.0)),
        reduced(log(steps=2)),
    ]
    missing = {key for metrics, _, _ in runs for key, metric in metrics.items() if metric.value is None}
    assert len(missing) > 12
    for metrics, _, _ in runs:
        assert [key for key, metric in metrics.items() if metric.value is None and not metric.note] == []


BOUND = Peak(flops=1e9, dtype="float32", source="widest instructions", date="2026-01-01", bound=True)


def test_a_bound_is_no_peak_but_tells_the_impossible() -> None:
    metrics, gates, facts = reduced(log(), peak=BOUND)
    assert metrics["mfu_pct"].value is None
    assert "no peak known" in metrics["mfu_pct"].note
    assert "6·100 trainable" in metrics["mfu_pct"].note
    assert gates["implausible"].passed is True
    assert gates["implausible"].observed == pytest.approx(0.378)
    assert (facts["peak"], facts["bound"]["source"]) == (None, "widest instructions")
    low = dataclasses.replace(BOUND, flops=1e6)
    assert "implausible" in failed(reduced(log(), peak=low)[1])


def floor(rate: float | None, threads: int = 2) -> Record:
    record = Record(
        session="s",
        point=Point(benchmark="b", lane="host", backend="cpu", params=FrozenMap(), id="floor"),
        started_at="2026-03-04T05:06:07.000000+00:00",
    )
    record.add(metric("matmul_rate", rate, stat=f"t{threads}", n=9))
    return record


def test_what_the_host_was_measured_to_do_is_its_peak() -> None:
    measured = host_peak(floor(80.0), "float32", 2)
    assert isinstance(measured, Peak)
    assert measured.flops == 40e9
    assert "2 threads" in measured.source
    assert measured.date == "2026-03-04"
    metrics, gates, facts = reduced(log(), peak=BOUND, floor=measured)
    assert metrics["mfu_pct"].value == pytest.approx(100 * 4200 * 900 / 40e9)
    assert gates["implausible"].observed == pytest.approx(0.378)  # of the bound all the same
    assert facts["peak"]["flops"] == 40e9
    busy = dataclasses.replace(measured, flops=1e6)  # measured while others computed
    assert reduced(log(), peak=BOUND, floor=busy)[0]["mfu_pct"].value is None
    documented = reduced(log(), peak=PEAK, floor=measured)[2]
    assert documented["peak"]["source"] == "a document"  # what the host can do is nothing to an accelerator


def busy_floor() -> Record:
    record = floor(80.0)
    record.gate(Gate(id="host_quiet", passed=False, severity="provisional"))
    return record


@pytest.mark.parametrize(
    ("record", "dtype", "cores", "why"),
    [
        (None, "float32", 2, "measure.host_floor"),
        (floor(80.0), "bfloat16", 2, "these are bfloat16"),
        (floor(80.0), "float32", 4, "on 4 threads"),
        (floor(None), "float32", 2, "on 2 threads"),
        (busy_floor(), "float32", 2, "host_quiet failed"),
    ],
)
def test_no_peak_from_another_type_or_number_of_threads_or_a_busy_host(
    record: Record | None, dtype: str, cores: int, why: str
) -> None:
    found = host_peak(record, dtype, cores)
    assert isinstance(found, str)
    assert why in found
    assert why in reduced(log(), peak=BOUND, floor=found)[0]["mfu_pct"].note


def test_no_utilisation_without_a_peak_and_none_above_it() -> None:
    metrics, gates, _ = reduced(log(), peak=None)
    assert metrics["mfu_pct"].value is None
    assert metrics["mfu_pct"].note
    assert gates["implausible"].passed is None
    small = Peak(flops=1e6, dtype="float32", source="s", date="2026-01-01")
    assert "implausible" in failed(reduced(log(), peak=small)[1])
    missing = log(parameters={"trainable": None})
    assert reduced(missing)[0]["mfu_pct"].value is None
