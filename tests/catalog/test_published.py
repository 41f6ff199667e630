"""Published figures: all of them, as published; and what is odd about a row found by ourselves.

Where the tables these were taken from are at hand (`NEURONBENCH_SHARED` names the folder that holds
`reference/published/`), every row of theirs must be in the catalogue with every figure it states, and everything that
the audit beside them found must be found by our own checks.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuronbench.catalog import published
from neuronbench.catalog.published import Published, cost_of, cost_per_1m_usd, cost_tolerance_usd, findings

EDITIONS = {"seed_trn1": "trn1-2024-04", "trn1_inference": "trn1-2026-08", "inf2_inference": "inf2-2026-08"}
GROUPS = {"encoder": "encoder", "encoder_decoder": "seq2seq", "decoder": "decoder"} | {
    name: name
    for name in ("vision_transformers", "vision_cnn", "vision_legacy", "stable_diffusion", "diffusion_transformer")
}
INFERENCE = {
    f"{prefix}_{kind}_{table}.csv": (edition, group, table)
    for prefix, edition in EDITIONS.items()
    for kind, group in GROUPS.items()
    for table in ("throughput", "latency")
    if prefix == "inf2_inference" or group in ("encoder", "seq2seq", "decoder")
}
TRAINING = {
    f"trn1_training_{name}.csv": ("trn1-2026-08", f"training_{name}", "training")
    for name in ("encoder", "decoder", "vision_transformers", "legacy_nlp")
}
OTHERS = {"trn2_llmperf_tutorials.csv": ("trn2-tutorials-2026-08", "llmperf", "results"),
          "optimum_vllm_guidellm.csv": ("optimum-vllm-2026-08", "guidellm", "results"),
          "nxdi_contrib_results.csv": ("nxdi-contrib-2026-07", "contrib", "results")}  # fmt: skip
TABLES = {**INFERENCE, **TRAINING, **OTHERS}
SAME = {
    "cores_underused_but_whole_instance_billed": "part_billed_as_whole",
    "batch_label_with_batch_size_1": "batch_of_one",
    "cost_column_mislabelled": "cost_mislabelled",
    "mixed_neuron_versions_in_one_table": "mixed_versions",
    "identical_to_latency_table_row": "same_as_latency_row",
    "more_inflight_than_cores": "more_in_flight_than_cores",
    "p50_exceeds_p99": "p50_above_p99",
    "realtime_row_in_throughput_table": "real_time_in_throughput_table",
    "throughput_not_reconcilable_with_ttft_tpot": "throughput_not_reconciled",
}
"""What the audit beside the tables calls a finding → what ours is called. All of them: none is left out."""
FLAGS = {
    "p75 TTFT": "median_hides_waits",
    "max TTFT": "median_hides_waits",
    "mean TTFT": "median_hides_waits",
    "overall throughput": "two_rates",
    "throughput profile shows concurrency": "load_below_batch",
    "directory .env is for": "settings_of_another_model",
    "token-generation MFU printed as 0.00": "utilisation_of_zero",
    "execution time labelled us": "unit_wrong",
    "README end-to-end row": "prompt_counted",
    "TTFT flat across prompt length": "prompts_padded",
    "tpot_p50_ms>": "p50_above_p99",
    "throughput/expected": "throughput_not_reconciled",
    "implied_workers=": "part_billed_as_whole",
    "TP8xDP1 uses": "part_billed_as_whole",
    "labelled Batch but batch_size=1": "batch_of_one",
    '"per 1M inferences" divides by tokens': "cost_mislabelled",
}
NO_ANOMALY = ("prompt 16 tokens", "prompt 64 tokens", "prompt 256 tokens", "fused TKG kernel", "output-only =")
"""Remarks in the column of flags that name a variant (the length of a prompt, a kernel): they are parameters here."""
DERIVED = {
    "script_ref", "os_type", "example", "torch_neuronx_version", "hourly_rate_basis", "hourly_rate_usd",
    "cost_per_1m_derived_usd", "on_demand_usd_per_hour", "cost_per_1m_on_demand_derived_usd", "cost_within_rounding",
    "cost_per_1m_recomputed_usd", "throughput_expected_from_p50_tokens_per_s", "implied_workers", "implied_streams",
    "throughput_ratio_reported_over_expected", "anomaly_flags", "cluster_on_demand_usd_per_hour", "source",
    "cost_per_1m_sequences_derived_usd", "tokens_per_s_derived", "table_group", "recomputed_e2e_s_p50", "raw_env",
    "recomputed_over_reported_e2e", "implied_concurrency_rps_x_latency",
}  # fmt: skip
"""Columns that were made from others, or say where a script or a package is."""
TYPES = {"FP32": "float32", "FP16": "float16", "FP32, BF16": "float32+bfloat16", "bf16": "bfloat16", "int8": "int8"}
TASKS = {"Raw Output (AutoModel)": "raw_output", "Text Generation": "generate",
         "Raw Output (AutoModelForMaskedLM)": "masked_lm"}  # fmt: skip


def low(text: str) -> str:
    return text.lower().replace(" ", "_")


def own(name: str) -> Callable[[Published], Any]:
    return lambda row: row.own.get(name)


FIGURES: dict[str, Callable[[Published], Any]] = {
    "throughput_inferences_per_s": lambda row: row.throughput,
    "throughput_tokens_per_s_input_plus_output": lambda row: row.throughput,
    "output_throughput_tokens_per_s": lambda row: row.throughput,
    "throughput_sequences_per_s": lambda row: row.throughput,
    "output_token_throughput_tok_s": lambda row: row.throughput,
    "throughput_tok_s": lambda row: row.throughput,
    "overall_output_throughput_token_per_s": lambda row: row.throughput,
    "latency_per_token_p50_ms": lambda row: row.latency_p50_ms,
    "latency_per_token_p99_ms": lambda row: row.latency_p99_ms,
    "cost_per_1m_published_usd": lambda row: row.cost_per_1m_usd,
    "cost_per_1m_tokens_published_usd": lambda row: row.cost_per_1m_usd,
    "sequence_length_tokens": lambda row: row.sequence_length,
    "input_length_tokens": lambda row: row.input_tokens,
    "output_length_tokens": lambda row: row.output_tokens,
    "tensor_parallel_size": lambda row: row.tp_degree,
    "data_parallel_size": lambda row: row.dp_degree,
    "mfu_percent": own("mfu_pct"),
    "compute_cost_per_token_tflops": own("compute_cost_per_sequence_tflop"),
    "mfu_percent_tkg": own("mfu_pct_token_generation"),
    "execution_time_us_tkg": own("execution_time_us_token_generation"),
    **{name: (lambda row, name=name: getattr(row, name)) for name in (
        "latency_p50_ms", "latency_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "tp_degree",
        "dp_degree", "batch_size", "nodes", "micro_batch_size", "global_batch_size", "sequence_length")},
    **{name: own(name) for name in ("requests_per_second", "request_latency_s", "time_to_first_token_ms",
        "inter_token_latency_ms", "ttft_ms", "tpot_ms", "per_sequence_tok_s", "compile_time_s", "load_time_s")},
}  # fmt: skip
"""Column → the figure of the row. A column that is not here, in WORDS or in DERIVED must be a figure of its own."""
WORDS: dict[str, Callable[[dict[str, str], Published], bool]] = {
    "model": lambda told, row: model_agrees(told, row),
    "model_id": lambda told, row: row.model.replace("/", "_") == told["model_id"],
    "framework": lambda told, row: row.framework == told["framework"],
    "instance_type": lambda told, row: row.instance_type == told["instance_type"],
    "instance_family": lambda told, row: f"{row.instance_type} ({row.instance_basis})" == told["instance_family"],
    "task": lambda told, row: row.task == TASKS.get(told["task"], low(told["task"])),
    "application_type": lambda told, row: row.application == low(told["application_type"]),
    "run_mode": lambda told, row: row.run_mode == low(told["run_mode"]),
    "neuron_version": lambda told, row: row.sdk_version == told["neuron_version"],
    "model_dtype": lambda told, row: row.dtype == TYPES[told["model_dtype"]],
    "weight_storage_dtype": lambda told, row: row.weight_dtype == TYPES[told["weight_storage_dtype"]],
    "compiler_autocast": lambda told, row: row.auto_cast == low(told["compiler_autocast"]),
    "image_size_px": lambda told, row: row.image_size == told["image_size_px"],
    "rendered_on_page": lambda told, row: row.on_page == (told["rendered_on_page"] == "yes"),
    "training_dtype": lambda told, row: row.training_dtype == told["training_dtype"],
    "topology": lambda told, row: row.topology == told["topology"],
    "optimizer": lambda told, row: row.optimizer == low(told["optimizer"]),
    "scaling": lambda told, row: row.scaling == low(told["scaling"]),
    "tool": lambda told, row: row.tool == told["tool"],
    "spec": lambda told, row: row.speculation == told["spec"],
    "dtype": lambda told, row: row.dtype == ("bfloat16" if told["dtype"].startswith("bf") else ""),
    "engine_config": lambda told, row: row.variant == told["engine_config"],
    "guidellm_profile": lambda told, row: told["guidellm_profile"].startswith(row.load),
    "date": lambda told, row: row.measured_on.replace("T", "-").replace(":", "-") == told["date"],
    "validated_date": lambda told, row: row.measured_on == told["validated_date"],
}


def model_agrees(told: dict[str, str], row: Published) -> bool:
    if row.table == "training":
        return f"{row.model} {row.task.replace('_', '-')}" == told["model"]
    return row.model == told["model"]


def shared(name: str) -> list[dict[str, str]]:
    folder = os.environ.get("NEURONBENCH_SHARED")
    if not folder:
        pytest.skip("NEURONBENCH_SHARED does not say where the tables are that the catalogue was made from")
    with (Path(folder) / "reference" / "published" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def of_table(name: str) -> list[Published]:
    edition, group, table = TABLES[name]
    return [
        row
        for row in published.rows()
        if row.edition == edition and row.table == table
        and (row.group == group or (group == "guidellm" and row.group.startswith(group)))
    ]  # fmt: skip


def row_of(**changes: Any) -> Published:
    return replace(published.rows()[0], **changes)


def ids(row: Published) -> list[str]:
    return [finding.id for finding in findings(row)]


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_the_tables_is_in_the_catalogue_as_it_stands_there(name: str) -> None:
    theirs, ours = shared(name), of_table(name)
    assert len(theirs) == len(ours) > 0
    for number, (told, row) in enumerate(zip(theirs, ours, strict=True), 1):
        assert row.row == number
        assert row.source.partition("@")[0] in ("aws-neuron-sdk", "optimum-neuron", "neuronx-distributed-inference")
        assert row.as_of[:4] in ("2024", "2026")
        for column, text in told.items():
            if column in DERIVED:
                continue
            if column in WORDS:
                assert WORDS[column](told, row), (name, number, column, text)
                continue
            found = FIGURES.get(column, own(column))(row)
            assert found == (float(text) if text else None), (name, number, column)


def test_nothing_is_in_the_catalogue_that_is_in_no_table() -> None:
    known = {(edition, group) for edition, group, _ in TABLES.values()}
    for row in published.rows():
        group = "guidellm" if row.group.startswith("guidellm") else row.group
        assert (row.edition, group) in known or row.group in ("tutorials", "reports"), row.name
    names = Counter(row.name for row in published.rows())
    assert max(names.values()) == 1
    assert len(names) > 450


def test_every_single_result_of_the_tutorials_is_in_the_catalogue() -> None:
    fields = {
        "ttft_p50": "ttft_p50_ms",
        "ttft_p99": "ttft_p99_ms",
        "tpot_p50": "tpot_p50_ms",
        "output_throughput": "throughput",
        "median_ttft": "ttft_p50_ms",
        "median_tpot": "tpot_p50_ms",
    }
    units = {"%": "pct", "tok/s": "tok_s", "s": "s", "tokens": "tokens"}
    told = shared("trn2_other_results.csv")
    for entry in told:
        (row,) = [
            row
            for row in published.rows()
            if row.group in ("tutorials", "reports") and row.model == entry["model"]
            and row.variant == entry["scenario"] and row.workload == entry["workload"]
        ]  # fmt: skip
        name = entry["metric"].replace(" ", "_")
        figure = getattr(row, fields[name]) if name in fields else row.own[f"{name}_{units[entry['unit']]}"]
        assert figure == float(entry["value"]), entry
        assert (row.instance_type, row.tp_degree) == (entry["instance_type"], int(entry["tensor_parallel_size"]))
    assert len(told) == 46


def test_what_the_audit_of_the_tables_found_our_own_checks_find_too() -> None:
    entries = shared("anomalies.csv")
    for entry in entries:
        concerned = [row for row in of_table(entry["table"]) if entry["row"] in ("", str(row.row))]
        assert concerned, entry
        for row in concerned:
            assert SAME[entry["anomaly"]] in ids(row), entry
    assert len(entries) == 215
    # And nothing of these kinds is found that the audit does not have (the tables it looked at).
    for kind, ours in SAME.items():
        rows = {(entry["table"], entry["row"]) for entry in entries if entry["anomaly"] == kind}
        if any(number == "" for _, number in rows):
            continue
        found = {(name, str(row.row)) for name in INFERENCE for row in of_table(name) if ours in ids(row)}
        assert found == rows, kind


def test_what_is_flagged_in_the_tables_themselves_our_own_checks_find_too() -> None:
    checked = Counter[str]()
    for name in TABLES:
        for told, row in zip(shared(name), of_table(name), strict=True):
            for flag in filter(None, (one.strip() for one in re.split(r"[|;]", told.get("anomaly_flags") or ""))):
                if flag.startswith(NO_ANOMALY):
                    continue
                (kind,) = {kind for start, kind in FLAGS.items() if flag.startswith(start)} or {f"unknown: {flag}"}
                assert kind in ids(row), (name, row.row, flag)
                checked[kind] += 1
    assert set(checked) == set(FLAGS.values())


def test_every_cost_that_can_be_made_of_the_tables_is_made_alike_here() -> None:
    compared = 0
    kinds = {"cost_per_1m_derived_usd": "ri_effective", "cost_per_1m_on_demand_derived_usd": "on_demand",
             "cost_per_1m_sequences_derived_usd": "on_demand", "cost_per_1m_recomputed_usd": "on_demand"}  # fmt: skip
    for name in (*INFERENCE, *TRAINING):
        for told, row in zip(shared(name), of_table(name), strict=True):
            for column, kind in kinds.items():
                if told.get(column):
                    cost = cost_of(row, kind=kind)
                    assert cost is not None
                    assert cost.usd == pytest.approx(float(told[column]), abs=0.00051), (name, row.row, column)
                    compared += 1
    assert compared > 500


def test_every_printed_cost_is_reproduced_within_its_rounding() -> None:
    costed = [row for row in published.rows() if row.cost_per_1m_usd is not None]
    assert Counter(row.group for row in costed) == {"encoder": 28, "seq2seq": 4, "decoder": 36}
    for row in costed:
        assert "cost_not_reproduced" not in ids(row)
        assert row.throughput is not None
        assert row.hourly_usd is not None
        again = cost_per_1m_usd(row.throughput, row.hourly_usd)
        tolerance = cost_tolerance_usd(again, row.throughput, row.throughput_decimals)
        assert abs(again - row.cost_per_1m_usd) <= tolerance, row.name
        assert tolerance < 0.0006 + 0.002 * again  # that of a rounding: a cost off by half a percent would be found
        by_date = cost_of(row)
        assert by_date is not None
        assert (by_date.price.kind, by_date.price.usd_per_hour) == ("on_demand", row.hourly_usd)


def test_the_two_rows_that_are_known_to_mislead_are_flagged() -> None:
    by_name = {row.name: row for row in published.rows()}
    roberta = by_name["trn1-2024-04/encoder/throughput/14"]
    assert (roberta.model, roberta.instance_type) == ("xlm-roberta-base", "trn1.32xlarge")
    assert roberta.implied_workers == pytest.approx(2.0, abs=0.01)
    assert ids(roberta) == ["part_billed_as_whole"]
    for edition in ("trn1-2024-04", "trn1-2026-08"):
        llama = by_name[f"{edition}/decoder/latency/6"]
        assert (llama.model, llama.tpot_p50_ms, llama.tpot_p99_ms) == ("Llama-3-70B", 26.48, 24.22)
        assert "p50_above_p99" in ids(llama)


def test_workers_and_cost_follow_from_the_figures() -> None:
    row = row_of(
        throughput=3000.0, latency_p50_ms=10.0, batch_size=16, latency_of="call", hourly_usd=1.34, tp_degree=None
    )
    assert row.implied_workers == pytest.approx(3000 * 0.010 / 16)
    assert row.cost_recomputed_usd == pytest.approx(1.34 / 3600 / 3000 * 1e6)
    assert row_of(hourly_usd=None).cost_recomputed_usd is None
    assert row_of(throughput=None).implied_workers is None


def named(name: str) -> Published:
    return next(row for row in published.rows() if row.name == name)


@pytest.mark.parametrize(
    ("name", "changes", "finding"),
    [
        ("trn1-2024-04/encoder/throughput/1", {"latency_p50_ms": 11.0, "latency_p99_ms": 10.0}, "p50_above_p99"),
        ("trn1-2024-04/encoder/throughput/1", {"instance_cores": 32}, "part_billed_as_whole"),
        ("trn1-2024-04/encoder/throughput/1", {"tp_degree": 8, "instance_cores": 32}, "part_billed_as_whole"),
        ("trn1-2024-04/encoder/throughput/1", {"batch_size": 1}, "batch_of_one"),
        ("trn1-2024-04/encoder/throughput/1", {"application": "real_time"}, "real_time_in_throughput_table"),
        ("trn1-2024-04/encoder/throughput/1", {"throughput_of": "tokens"}, "cost_mislabelled"),
        ("trn1-2024-04/encoder/throughput/1", {"cost_per_1m_usd": 0.13}, "cost_not_reproduced"),
        ("trn1-2024-04/encoder/throughput/1", {"latency_p50_ms": 30.0}, "more_in_flight_than_cores"),
        ("trn1-2024-04/encoder/throughput/1", {"edition": "trn1-2026-08"}, "mixed_versions"),
        ("trn1-2024-04/encoder/throughput/1", {"on_page": False}, "not_on_a_page"),
        ("trn1-2024-04/encoder/throughput/1", {"instance_basis": "inferred"}, "instance_not_stated"),
        ("trn1-2024-04/decoder/latency/1", {"tpot_p50_ms": 3.0}, "throughput_not_reconciled"),
        ("trn1-2024-04/decoder/latency/1", {"ttft_p99_ms": 1.0}, "p50_above_p99"),
        ("trn1-2026-08/training_decoder/training/1", {"nodes": 16}, "topology_not_nodes"),
        ("trn2-tutorials-2026-08/llmperf/results/4", {"ttft_p50_ms": 400.0}, "median_hides_waits"),
        ("trn2-tutorials-2026-08/llmperf/results/4", {"tpot_p50_ms": 9.0}, "end_to_end_not_reconciled"),
        ("trn2-tutorials-2026-08/tutorials/results/4", {"tpot_p50_ms": 8.26}, "truncated"),
    ],
    ids=str,
)
def test_each_check_finds_what_it_is_for(name: str, changes: dict[str, Any], finding: str) -> None:
    row = named(name)
    assert finding not in ids(row)
    assert finding in ids(replace(row, **changes))


def test_a_column_that_is_no_field_is_refused() -> None:
    from neuronbench.catalog.published import reading

    with pytest.raises(ValueError, match="thruput"):
        reading._row({"model": "m", "thruput": "3"}, "x.csv")
