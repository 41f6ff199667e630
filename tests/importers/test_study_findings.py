"""The defects of the study, found by our gates in receipts of ours that have them, and not in those that are clean."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from study_samples import ACADEMIC, BOOT, BOX, SAMPLES, handed, point, poisson, run, telemetry, write, write_all

from neuronbench.importers import KINDS, Imported, gather
from neuronbench.importers.study.check import TITLES, findings
from neuronbench.model import Gate

STUDY = KINDS["study"]


def gates(found: Imported) -> dict[str, Gate]:
    return {gate.id: gate for gate in found.gates}


def read(root: Path, where: str, content: Any, table: str | None = None) -> Imported:
    path = write(root, where, content)
    if table is not None:
        write(root, where.replace(".json", ".telemetry.csv"), table)
    (found,) = gather(STUDY, path)
    return found


def test_clean_receipts_have_no_finding(tmp_path: Path) -> None:
    for form in ("point", "poisson", "boot", "training", "answers", "probes", "nki", "whisper", "captions", "speech"):
        where, content = SAMPLES[form]
        write(tmp_path, where, content)
    write(tmp_path, SAMPLES["point"][0].replace(".json", ".telemetry.csv"), telemetry())
    assert findings(gather(STUDY, tmp_path)) == []


def test_every_finding_of_the_small_study_has_a_title(tmp_path: Path) -> None:
    assert {gate.id for _, gate in findings(gather(STUDY, write_all(tmp_path)))} <= set(TITLES)


# -- timers


def test_a_step_timer_that_stops_before_the_device_has_finished(tmp_path: Path) -> None:
    """One second a step by the timer, 2.05 by the wall: (51 − 1 − 11) / 19."""
    gate = gates(read(tmp_path, f"{BOX}/train/a.json", run(wall_s=51.0)))["timer_escapes_device"]
    assert gate.passed is False
    assert gate.observed == pytest.approx(1 - 1000.4737 / (39_000 / 19), abs=1e-4)
    assert gate.limit == 0.05
    assert "1,995 tok/s by the wall where 4,096 are given" in gate.message


def test_checkpoints_are_not_held_against_the_timer(tmp_path: Path) -> None:
    """Twenty seconds of checkpoints in the wall; without them it is the sum of the steps."""
    saves = [{"step": 5, "save_wall_s": 12.0}, {"step": 10, "save_wall_s": 8.0}]
    found = read(tmp_path, f"{BOX}/train/a.json", run(wall_s=50.0, checkpoint_saves=saves))
    assert gates(found)["timer_escapes_device"].passed is True


@pytest.mark.parametrize(
    "change", [{"train_wall_s": None}, {"first_step_ms": None}, {"loss_trace": [{"step": 1, "loss": 1.0, "ms": 1.0}]}]
)
def test_without_a_wall_nothing_is_said_of_the_timer(change: dict[str, Any], tmp_path: Path) -> None:
    assert gates(read(tmp_path, f"{BOX}/train/a.json", run(**change)))["timer_escapes_device"].passed is None


def test_a_small_model_whose_epochs_take_longer_than_its_steps(tmp_path: Path) -> None:
    """469 steps an epoch of 6 s, a seventh of which the evaluation may take: 10.97 ms a step."""
    assert gates(read(tmp_path, f"{BOX}/academic/a.json", ACADEMIC))["timer_escapes_device"].passed is True
    short = read(tmp_path, f"{BOX}/academic/b.json", {**ACADEMIC, "median_step_ms": 3.0})
    assert gates(short)["timer_escapes_device"].observed == pytest.approx(1 - 3.0 / (6000 * 6 / 7 / 469))


def test_more_than_the_hardware_can_do(tmp_path: Path) -> None:
    assert gates(read(tmp_path, f"{BOX}/train/a.json", run(mfu_pct=146.7)))["implausible"].passed is False
    kernel = {**SAMPLES["nki"][1], "torch_softmax_us_per_call": 2.26}
    gate = gates(read(tmp_path, f"{BOX}/extras/nki.json", kernel))["implausible"]
    assert (gate.passed, gate.observed, gate.unit) == (False, 2.26, "us")


# -- telemetry


def test_utilisation_that_aliases(tmp_path: Path) -> None:
    """A micro-batch of (51 − 12) / 19 / 8 s is short for a period of a second; of ten times that it is not."""
    fine = gates(read(tmp_path, f"{BOX}/train/a.json", run(wall_s=51.0), telemetry()))["aliased"]
    assert fine.passed is True
    slow = run(timer_ms=16_000.0, wall_s=12 + 19 * 16.0)
    gate = gates(read(tmp_path, f"{BOX}/train/b.json", slow, telemetry(busy=92.0)))["aliased"]
    assert (gate.passed, gate.observed) == (False, pytest.approx(2.0))
    assert "it shows 50.0 %, here 92.0 %" in gate.message


def test_a_step_of_decoding_is_short_for_the_period(tmp_path: Path) -> None:
    found = read(tmp_path, "inf2/results/serve/a/p.json", point(), telemetry())
    assert gates(found)["aliased"].passed is True
    assert found.own["telemetry.busy_window_util_pct"] == pytest.approx(95.0)


# -- requests and tokens


def test_tokens_that_were_generated_and_not_counted(tmp_path: Path) -> None:
    """A tenth of the tokens is missing and the requests take as long as ever."""
    gate = gates(read(tmp_path, "inf2/results/serve/a/p.json", point(total_output_tokens=1080)))["hidden_tokens"]
    assert (gate.passed, gate.observed) == (False, pytest.approx(1200 / 1080 - 1))
    shorter = point(total_output_tokens=1080, mean_e2el_ms=260.0)  # nine tokens, and the time of nine
    assert gates(read(tmp_path, "inf2/results/serve/b/p.json", shorter))["hidden_tokens"].passed is True


def test_answers_with_text_and_no_token(tmp_path: Path) -> None:
    rows = [{"idx": 0, "prompt": "p", "text": "an answer", "n_tokens": 0}, {"idx": 1, "prompt": "p", "text": ""}]
    gate = gates(read(tmp_path, "inf2/results/quality/a.json", {**SAMPLES["answers"][1], "results": rows}))
    assert gate["tokens_counted"].passed is False
    assert gate["tokens_counted"].observed == 1


def test_an_open_loop_that_was_closed(tmp_path: Path) -> None:
    """Eight a second were declared; 900 were sent in 360 s, with as many in flight as there were threads."""
    closed = poisson(request_rate_offered=8.0, requests_offered=900, duration=360.28, max_concurrent_requests=64)
    found = gates(read(tmp_path, "inf2/results/extras/knee/rate_8.json", closed))
    assert (found["achieved_rate"].passed, found["in_flight_cap"].passed) == (False, False)
    assert found["achieved_rate"].observed == pytest.approx(2.5)
    assert (found["in_flight_cap"].observed, found["in_flight_cap"].limit) == (64, 64)


def test_a_p99_of_eight_requests(tmp_path: Path) -> None:
    gate = gates(read(tmp_path, "inf2/results/serve/a/p.json", point(completed=8, total_output_tokens=80)))["samples"]
    assert (gate.passed, gate.observed, gate.limit) == (False, 8, 100)


# -- several receipts together


def test_compiler_flags_that_differ_between_runs_of_one_model(tmp_path: Path) -> None:
    for name, flags, box in (
        ("a", "--model-type transformer", "trn1"), ("b", "--model-type transformer", "trn1"),
        ("c", "--other", "trn1"), ("d", "--other", "trn2"),
    ):  # fmt: skip
        write(tmp_path, f"{box}/results/train/{name}.json", run(config={"neuron_cc_flags": flags}))
    found = {item.name: gates(item).get("compiler_flags") for item in gather(STUDY, tmp_path)}
    assert {name: gate.passed for name, gate in found.items() if gate} == {
        "trn1/train/a": True, "trn1/train/b": True, "trn1/train/c": False,
    }  # fmt: skip
    odd = found["trn1/train/c"]
    assert odd is not None
    assert (odd.observed, odd.limit) == ("--other", "--model-type transformer")


def losses(*values: float) -> list[dict[str, Any]]:
    return [{"step": n, "loss": value, "ms": 1000.0, "warmup": False} for n, value in enumerate(values, start=1)]


def test_an_option_of_the_compiler_that_changed_no_loss(tmp_path: Path) -> None:
    cast = {"neuron_cc_flags": "--model-type transformer --auto-cast-type=fp8_e4m3"}
    trace = losses(2.0, 1.9, 1.8, 1.7, 1.6)
    write(tmp_path, f"{BOX}/train/bf16.json", run(loss_trace=trace))
    write(tmp_path, f"{BOX}/train/fp8.json", run(loss_trace=trace, config=cast))
    write(tmp_path, f"{BOX}/train/fp8_real.json", run(loss_trace=losses(2.0, 1.91, 1.8, 1.7, 1.6), config=cast))
    found = {item.name: gates(item).get("no_effect") for item in gather(STUDY, tmp_path)}
    idle, real = found["trn1/train/fp8"], found["trn1/train/fp8_real"]
    assert found["trn1/train/bf16"] is None
    assert idle is not None
    assert real is not None
    assert (idle.passed, real.passed) == (False, True)
    assert "--auto-cast-type=fp8_e4m3" in idle.message
    assert "trn1/train/bf16" in idle.message


def test_a_seed_that_changed_no_loss(tmp_path: Path) -> None:
    for seed in (42, 43):
        write(tmp_path, f"{BOX}/rerun/seed{seed}.json", run(config={"seed": seed}))
    assert [gates(item)["no_effect"].passed for item in gather(STUDY, tmp_path)] == [False, False]
    short = losses(2.0, 1.9)
    for seed in (42, 43):
        write(tmp_path, f"{BOX}/rerun/seed{seed}.json", run(config={"seed": seed}, loss_trace=short))
    assert all("no_effect" not in gates(item) for item in gather(STUDY, tmp_path)), "two equal losses prove nothing"


@pytest.mark.parametrize(("memory", "passed"), [(4096.0, False), (3000.0, True)])
def test_a_quantised_cache_that_takes_as_much_memory(memory: float, passed: bool, tmp_path: Path) -> None:
    write(tmp_path, "inf2/results/serve/a/p_c8.json", point())
    write(tmp_path, "inf2/results/serve/a/p_c8.telemetry.csv", telemetry(memory=4096.0))
    write(tmp_path, "inf2/results/extras/quant/fp8kv_c8.json", point(duration=4.1, output_throughput=292.7))
    write(tmp_path, "inf2/results/extras/quant/fp8kv_c8.telemetry.csv", telemetry(memory=memory))
    found = {item.name: gates(item).get("no_effect") for item in gather(STUDY, tmp_path)}
    gate = found["inf2/extras/quant/fp8kv_c8"]
    assert gate is not None
    assert gate.passed is passed
    assert found["inf2/serve/a/p_c8"] is None
    if not passed:
        assert "output_throughput 285.7 → 292.7" in gate.message


def test_a_failure_that_was_overtaken(tmp_path: Path) -> None:
    folder = "inf2/results/serve/a"
    write(tmp_path, f"{folder}/load_failure.json", SAMPLES["load_failure"][1])
    write(tmp_path, f"{folder}/boot.json", {**BOOT, "captured": "2026-03-02T10:00:00Z"})
    (seen,) = [gates(item)["overtaken"] for item in gather(STUDY, tmp_path) if "overtaken" in gates(item)]
    assert seen.passed is False
    write(tmp_path, f"{folder}/boot.json", {**BOOT, "captured": "2026-02-02T10:00:00Z"})
    assert not [item for item in gather(STUDY, tmp_path) if "overtaken" in gates(item)], "the failure is the later one"


def test_boots_are_cold_or_warm_by_their_cache(tmp_path: Path) -> None:
    for name, warm, after, passed in (("a", False, 300, True), ("b", False, 100, False), ("c", True, 100, True)):
        found = read(tmp_path, f"inf2/results/serve/{name}/boot.json",
                     {**BOOT, "warm": warm, "cache_dir_size_mb_after": after})  # fmt: skip
        assert gates(found)["compiled_at_boot"].passed is passed


def test_a_reranker_that_failed_while_its_probes_passed(tmp_path: Path) -> None:
    probe = {**SAMPLES["probes"][1]["probes"][0], "reranked": False, "rerank_note": "forward failed"}
    found = read(tmp_path, "inf2/results/rag/probes_a.json", {**SAMPLES["probes"][1], "probes": [probe]})
    assert gates(found)["reranked"].passed is False


def test_the_defects_of_the_handed_receipts() -> None:
    """By our gates and not by a list: which ones, and where."""
    seen = findings(gather(STUDY, handed()))
    assert Counter(gate.id for _, gate in seen) == {
        "timer_escapes_device": 10, "aliased": 4, "tokens_counted": 2, "achieved_rate": 3, "in_flight_cap": 3,
        "no_effect": 1, "samples": 19, "reranked": 2, "errors": 5, "telemetry": 5, "compiled_at_boot": 6,
        "overtaken": 2,
    }  # fmt: skip
    where = {(name, gate.id): gate for name, gate in seen}
    timer = where["trn1/train/llama31_lora", "timer_escapes_device"]
    assert timer.observed == pytest.approx(0.5108, abs=1e-4)
    assert "1,446 tok/s by the wall where 2,952 are given" in timer.message
    aliased = where["trn1/train/qwen3_lora", "aliased"]
    assert aliased.observed == pytest.approx(1.948, abs=1e-3)
    assert "it shows 51.3 %, here 51.3 %" in aliased.message
    assert {name for name, gate in where if gate == "in_flight_cap"} == {
        f"inf2/extras/knee/rate_{rate}" for rate in (4, 6, 8)
    }
    assert where["inf2/serve/llama31_base_short/isl1024_osl1024_c1", "samples"].observed == 8
    assert "telemetry.peak_device_mem_mib" in where["inf2/extras/quant/fp8kv_c8", "no_effect"].message
