"""Receipts in the forms of the study, written by us with numbers of our own, so that the project tests itself alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

MODEL, WHEN = "org/model-8b", "2026-03-01T10:00:00Z"
BOX = "trn1/results"


def point(**changes: Any) -> dict[str, Any]:
    """A clean closed-loop point: 120 requests of 10 tokens, 100 ms to the first and 20 ms to each further one."""
    data: dict[str, Any] = {
        "date": "20260301-101500", "backend": "fallback_client", "model_id": MODEL, "num_prompts": 120,
        "max_concurrency": 8, "max_concurrent_requests": 8, "input_len_configured": 64, "output_len_configured": 10,
        "duration": 4.2, "completed": 120, "failed": 0, "total_input_tokens": 7680, "total_output_tokens": 1200,
        "output_throughput": 285.7, "total_token_throughput": 2114.3, "max_output_tokens_per_s": 300,
    }  # fmt: skip
    for name, value in (("ttft", 100.0), ("tpot", 20.0), ("itl", 20.0), ("e2el", 280.0)):
        for stat in ("mean", "median", "p50", "p90", "p99"):
            data[f"{stat}_{name}_ms"] = value
        data[f"std_{name}_ms"] = 1.0
    return {**data, **changes}


def poisson(**changes: Any) -> dict[str, Any]:
    """An open loop at 2 req/s that was open: 120 requests sent in 60 s."""
    return point(
        **{
            "arrival_mode": "poisson", "request_rate_offered": 2.0, "requests_offered": 120, "duration": 60.28,
            "completed_rate_per_s": 1.99, "slo_ttft_ms": 3000.0, "slo_tpot_ms": 80.0, "slo_attainment_pct": 100.0,
            "goodput_output_tokens_per_s": 19.9, "max_concurrency": 64, "max_concurrent_requests": 3,
            "num_prompts": 4096, **changes,
        }
    )  # fmt: skip


def run(*, timer_ms: float = 1000.0, wall_s: float = 31.0, steps: int = 20, **changes: Any) -> dict[str, Any]:
    """A training run: a first step of 11 s, then `steps` − 1 of `timer_ms`; clean where the wall is the sum of them."""
    trace = [{"step": 1, "loss": 2.0, "ms": 11_000.0, "warmup": True}]
    trace += [
        {"step": n, "loss": 2.0 - n / 100, "ms": timer_ms + (n % 2), "warmup": n <= 10} for n in range(2, steps + 1)
    ]
    config = {
        "seq_len": 512, "micro_batch": 1, "grad_accum": 8, "gradient_checkpointing": True, "epochs": 1, "lr": 1e-4,
        "max_steps": steps, "seed": 42, "lora_r": 16, "packing": True, "world_size": 2, "tensor_parallel_size": 2,
        "data_parallel_size": 1, "neuron_cc_flags": "--model-type transformer", **changes.pop("config", {}),
    }  # fmt: skip
    data = {
        "tag": "lora", "model": MODEL, "dataset": "org/data", "params_total": 8_000, "params_trainable": 80,
        "params_frozen": 7_920, "config": config, "versions": {"torch": "2.9.1", "neuronx-cc": "2.26"},
        "tokens_per_optimizer_step": 4096, "steps_recorded": steps, "warmup_steps_excluded": 10,
        "first_step_ms": 11_000.0, "median_step_ms": timer_ms, "compile_s": 10.0, "train_wall_s": wall_s,
        "tokens_per_s": 4096e3 / timer_ms, "flops_per_token": 4e9, "flops_formula": "...", "tflops": 16.4,
        "mfu_pct": 8.6, "peak_bf16_flops": 190e12, "peak_host_mem_mib": 900.0, "peak_device_mem_mib": None,
        "final_loss": trace[-1]["loss"], "loss_trace": trace, "checkpoint_saves": [{"step": 10, "save_wall_s": 1.0}],
        "adapter_out": "/somewhere", "captured": WHEN,
    }  # fmt: skip
    return {**data, **changes}


def telemetry(*, seconds: int = 30, busy: float = 95.0, memory: float = 4096.0, cores: int = 2) -> str:
    """A table of one sample a second, blank at first and idle at last."""
    names = [f"util_nc{core}" for core in range(cores)]
    rows = [",".join(["t_s", "gpu_util_pct", "mem_used_mib", "power_w", *names, "host_mem_used_mib"])]
    for second in range(seconds):
        value = "" if second == 0 else f"{busy if second < seconds - 2 else 0.0}"
        used = "" if second == 0 else f"{memory}"
        rows.append(",".join([f"{second:.2f}", value, used, "", *([value] * cores), used]))
    return "\n".join(rows) + "\n"


BOOT = {"model_key": "m", "config": "short", "model_id": MODEL, "boot_wall_s": 600, "cache_dir_size_mb_before": 100,
        "cache_dir_size_mb_after": 300, "warm": False, "server_pid": 7, "captured": WHEN}  # fmt: skip
LOAD_FAILURE = {"model_key": "m", "config": "short", "model_id": MODEL, "status": "server_failed_to_start",
                "looks_like_capacity_failure": False, "captured": WHEN,
                "reason": "RuntimeError: Engine core initialization failed. See root cause above."}  # fmt: skip
ACADEMIC = {
    "dataset": "mnist", "arch": "mlp", "params": 10, "config": {"epochs": 3, "batch_size": 128, "seed": 0},
    "epochs": [{"epoch": n, "train_loss": 1.0 / n, "test_acc": 90.0 + n, "wall_s": 6.0} for n in (1, 2, 3)],
    "best_test_acc": 93.0, "final_test_acc": 93.0, "first_step_ms": 900.0, "median_step_ms": 10.9,
    "compile_s_estimate": 1.0, "samples_per_s_steady": 11743.0, "total_wall_s": 18.0, "captured": WHEN,
}  # fmt: skip
SPEECH = {
    "lane": "asr_wer", "engine": "neuron", "model": "org/speech", "n_samples": 50, "sample_digest": "ab",
    "normalize": {"primary": "whisper"}, "wer_by_recipe": {}, "wer": 0.05, "word_accuracy": 0.95, "n_unfinished": 0,
    "counts": {"errors": 50, "sub": 30, "ins": 10, "del": 10, "ref_words": 1000, "hyp_words": 1000}, "truncated": 0,
    "engine_meta": {"dtype": "float32"}, "timing": {"decode_wall_s": 5.0, "rtf": 0.1}, "captured": WHEN,
}  # fmt: skip
PAIRED = {
    "lane": "asr_wer_delta",
    "candidate": {},
    "reference": {},
    "n_samples": 50,
    "captured": WHEN,
    "mlperf_gate": {"passed": True, "ratio": 0.995, "floor": 0.99, "relative_error_increase": 0.18},
}
CAPTIONS = {
    "lane": "zeroshot", "engine": "neuron", "model": "org/images", "n_samples": 100, "top1": 0.6, "top5": 0.9,
    "top1_hits": 60, "top5_hits": 90, "nonfinite_rows": 0, "degenerate_rows": 0, "nonfinite_classifier_entries": 0,
    "tie_fragility": {"frac_margin_lt_1e-3": 0.05}, "timing": {}, "captured": WHEN,
}  # fmt: skip
BLOCK = {"latency_ms_p50": 100.0, "latency_ms_p99": 110.0, "latency_ms_avg": 101.0, "throughput": 12.0}

SAMPLES: dict[str, tuple[str, Any]] = {
    "point": ("inf2/results/serve/base_short/isl64_osl10_c8.json", point()),
    "poisson": ("inf2/results/extras/knee/rate_2.json", poisson()),
    "boot": ("inf2/results/serve/base_short/boot.json", BOOT),
    "grid": ("inf2/results/serve/base_short/grid.json",
             {"model_key": "m", "config": "short", "model_id": MODEL, "shapes": ["64:10"], "concurrency": [1, 8],
              "num_prompts_rule": "4c", "client": "c", "reduced": False, "captured": WHEN}),
    "load_failure": ("inf2/results/serve/base_long/load_failure.json", LOAD_FAILURE),
    "generation_failure": ("inf2/results/serve/other/generation_failure.json",
                           {"status": "boots_but_generation_crashes", "probe": "HTTP 500", "evidence": "x.log",
                            "note": "nothing was answered", "captured": WHEN}),
    "sustained": ("inf2/results/sustained/sustained.json",
                  {"iterations": 2, "first_tok_s": 10.0, "peak_tok_s": 10.1, "last_tok_s": 10.1,
                   "tail3_mean_tok_s": 10.1, "retention_vs_first_pct": 101.0, "retention_vs_peak_pct": 100.0,
                   "per_iteration": [{"file": "iter_001.json", "output_tok_s": 10.0, "ttft_p99_ms": 1.0}]}),
    "training": (f"{BOX}/train/lora.json", run()),
    "compile": (f"{BOX}/compile/lora.json",
                {"lane": "precompile", "model": MODEL, "exit_code": 0, "wall_s": 100.0, "cache_dir_size_mb": 20,
                 "cache_dir_size_mb_before": 5, "neff_files_before": 1, "neff_files_after": 4, "graphs_compiled": 3,
                 "max_steps": 10, "captured": WHEN}),
    "merge": (f"{BOX}/train/merge.json",
              {"lane": "merge", "base": MODEL, "merged_out": "/m", "files": {"a.safetensors": "ab"}, "hashed_bytes": 1,
               "total_bytes": 10, "total_gib": 0.0, "upload_s": 2.0, "upload_ok": True, "wall_s": 10.0,
               "timings_s": {"load_s": 1.0, "merge_s": 2.0, "save_s": 3.0}, "versions": {}, "captured": WHEN}),
    "cpu": (f"{BOX}/cpu/cpu.json",
            {"logical_cpus": 8, "cpu_model": "x86_64", "torch": "2.9", "stream_triad_gb_s": 50.0, "captured": WHEN,
             "fp32_matmul": [{"threads": 1, "tflops": 0.2}], "tokenizer": {"docs": 10, "tokens_per_s": 1e6}}),
    "answers": ("inf2/results/quality/base.json",
                {"model": MODEL, "base_url": "http://localhost", "sampling": {"max_tokens": 8}, "n_prompts": 1,
                 "corpus_mean_logprob": None, "captured": WHEN,
                 "results": [{"idx": 0, "prompt": "p", "text": "an answer", "n_tokens": 2, "mean_logprob": None}]}),
    "traced": ("inf2/results/rag/compile_embed.json",
               {"model_id": "org/embed", "out_dir": "/o", "status": "compiled", "wall_s": 60.0, "error": None,
                "captured": WHEN}),
    "embedding": ("inf2/results/rag/embed_lane.json",
                  {"model_dir": "/o", "dim": 8, "n_texts": 16, "seq_len": 64, "compiled_batch": 8, "load_s": 1.0,
                   "lanes": {"batch8": {"call_batch": 8, "calls": 2, "embeddings_per_s": 8.0, "p50_ms": 1.0,
                                        "p99_ms": 2.0, "wall_s": 2.0}}, "captured": WHEN}),
    "ingest": ("inf2/results/rag/ingest.json",
               {"docs": 2, "chunks": 10, "chunks_per_s": 2.0, "embed_ms_p50": 1.0, "wall_s": 5.0, "max_chars": 100,
                "dry_run": False, "files": ["a.md"], "captured": WHEN}),
    "probes": ("inf2/results/rag/probes_rerank.json",
               {"mode": "retrieval_only", "llm_model": None, "passed": 1, "total": 1, "pass_rate": 1.0, "errored": 0,
                "probes": [{"q": "?", "expect_any": ["a"], "pass": True, "answer": None, "ids": ["a"],
                            "reranked": True, "rerank_note": None, "timings": {}, "probe_wall_ms": 1.0}],
                "captured": WHEN}),
    "spec_note": ("inf2/results/extras/spec_decode/baseline.json",
                  {"tag": "baseline", "status": "ran", "metrics_extract": "baseline.extract.txt", "captured": WHEN}),
    "spec_report": (f"{BOX}/specdec/spec_k4.report.json", {"e2e_model": BLOCK, "context_encoding_model": BLOCK}),
    "spec_bench": (f"{BOX}/specbench/sb_k4.json",
                   {"k": 4, "max_new_tokens": 8, "prompts_run": 1, "prompts_ok": 1,
                    "per_prompt": [{"i": 0, "generated_tokens": 8, "decode_calls": 3, "wall_s": 1.0}]}),
    "whisper": (f"{BOX}/extras/whisper.json",
                {"model": "org/speech", "compile_s": 10.0, "load_s": 1.0, "transcribe_wall_s": 0.5, "audio_s": 10.0,
                 "rtf": 0.05, "transcript_text": "so", "transcript_matches_reference_head": True, "captured": WHEN}),
    "clip": (f"{BOX}/extras/clip.json",
             {"model": "org/images", "export_path": "trace", "probs": {"a": 1.0}, "top_label": "a", "load_s": 1.0,
              "images_per_s_b1": 100.0, "bench_iters": 100, "compile_s": 10.0, "captured": WHEN}),
    "siglip": (f"{BOX}/extras/siglip.json",
               {"status": "export_unsupported", "model": "org/sig", "captured": WHEN,
                "reason": "KeyError: 'siglip is not supported yet for transformers'"}),
    "nki": (f"{BOX}/extras/nki_device.json",
            {"mode": "device", "shape": [128, 512], "iters": 200, "warmup": 20, "max_abs_err_vs_numpy": 1e-7,
             "correct": True, "nki_us_per_call": 400.0, "torch_softmax_us_per_call": 300.0, "captured": WHEN}),
    "bisect": ("inf2/results/extras/ctx_bisect/len_4096.json",
               {"max_model_len": 4096, "max_num_seqs": 8, "status": "compiler_crash_NCC_INLA001", "boot_json": "x",
                "captured": WHEN}),
    "cold_start": ("inf2/results/extras/c3_cold_start.json",
                   {"lane": "c3", "scenario": "from nothing", "epochs": {"t0": 1, "t1": 3}, "durations_s": {"boot": 2},
                    "first_generation": {"ttft_ms": 1.0}, "anomaly_declared": "a stamp is missing", "captured": WHEN}),
    "academic": (f"{BOX}/academic/mnist_mlp.json", ACADEMIC),
    "tp_probe": ("trn2/results/extras/tp_probe.json",
                 {"status": "ok", "lnc": 2, "nproc": 4, "tp": 4, "full_chip": True, "captured": WHEN,
                  "attempts": [{"lnc": 2, "status": "ok"}]}),
    "selection": ("trn2/results/maxutil/selection.json",
                  {"winner": {"tag": "a", "tokens_per_s": 2.0}, "candidates": [{"tag": "a", "tokens_per_s": 2.0}]}),
    "isolation": ("trn2/results/isolation/isolation_summary.json",
                  {"box": "trn2", "shapes": {"512": {"uplift": 1.0}}, "uplift_shrinks_with_seq_len": True,
                   "interpretation": "words"}),
    "ladder": ("trn2/results/batch_ladder/batch_ladder_summary.json",
               {"box": "trn2", "seq_len": 64, "rungs": [{"micro_batch": 1, "tokens_per_s": 9.0}],
                "best_micro_batch": 1, "uplift_over_mb1": 1.0, "highest_rung_that_ran": 1}),
    "version_delta": (f"{BOX}/rerun/version_delta.json", {"changed": {}, "identical": True}),
    "withdrawn": (f"{BOX}/frontier/invalidated/WHY.json",
                  {"invalidated": ["a"], "reason": "one port for two", "fix": "two ports", "not_a_measurement": True}),
    "comparison": ("analysis/comparison.json", {"captured": WHEN, "dropped_no_telemetry": 8, "inf2": {"failures": {}}}),
    "roofline": ("analysis/roofline.json", {"ridge_points_flop_per_byte": {"trn1": 231.7}, "note": "n", "lanes": []}),
    "overlay": ("analysis/loss_overlay_lora.json",
                {"lane": "lora", "boxes": ["trn1", "trn2"], "n_steps_compared": 3, "pearson_r": 0.99}),
    "speech": (f"{BOX}/accuracy/asr_wer_neuron.json", SPEECH),
    "captions": (f"{BOX}/accuracy/zs_clip_neuron.json", CAPTIONS),
    "paired": (f"{BOX}/accuracy/asr_wer_delta.json", PAIRED),
    "monitor": (f"{BOX}/neuron_monitor_sample.json",
                {"neuron_runtime_data": [], "system_data": {"memory_info": {"memory_total_bytes": 1}},
                 "instance_info": {"instance_type": "trn1.2xlarge"},
                 "neuron_hardware_info": {"neuron_device_type": "trainium", "neuron_device_count": 1}}),
    "roundtrip": ("inf2/results/serve/tuned_short/roundtrip_hashes.json",
                  {"verified": True, "mismatches": [], "compared_files": 1, "inf2_hashes": {"a.safetensors": "ab"},
                   "captured": WHEN}),
    "failure": (f"{BOX}/extras/eff_mb2.failure.json",
                {"tag": "eff_mb2", "box": "trn1", "status": "failed", "captured": WHEN,
                 "reason": "NCC_EXSP001] Size of HBM memory required exceeds HBM limit. Needed more than 94.39GB"}),
    "other": ("trn2/results/extras/new_thing.json", {"captured": WHEN, "answer": 42}),
}  # fmt: skip
"""Form → where such a receipt lies in the study, and one of ours."""


def write(root: Path, where: str, content: Any) -> Path:
    path = root / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def write_all(root: Path) -> Path:
    """The whole study in small, telemetry included."""
    for where, content in SAMPLES.values():
        write(root, where, content)
    for form in ("point", "training"):
        write(root, SAMPLES[form][0].replace(".json", ".telemetry.csv"), telemetry())
    return root


def handed() -> Path:
    """The study's own receipts, where they are at hand."""
    import os

    folder = os.environ.get("NEURONBENCH_SHARED")
    if not folder:
        pytest.skip("NEURONBENCH_SHARED does not say where receipts of the study are (reference/study_receipts/)")
    return Path(folder) / "reference" / "study_receipts"
