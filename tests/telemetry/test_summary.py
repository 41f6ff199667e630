"""Metrics of a server from its telemetry: right where it says something, None with a reason where it does not."""

from __future__ import annotations

import pytest

from neuronbench.model import Metric
from neuronbench.telemetry.summary import server_metrics, serving_counters, telemetry_gate, token_totals
from neuronbench.telemetry.table import Telemetry

S = 1_000_000_000
MIB = 1 << 20


def scrape(data: Telemetry, second: float, **values: float) -> None:
    """One sample of the server's metrics; `__` stands for the colon of vLLM's names."""
    data.add(0, int(second * S), "metrics", {name.replace("__", ":"): value for name, value in values.items()})


def by_key(metrics: list[Metric]) -> dict[str, Metric]:
    result = {metric.key: metric for metric in metrics}
    assert len(result) == len(metrics)
    return result


def test_server_metrics() -> None:
    data = Telemetry()
    for second in range(6):
        data.add(0, second * S, "server", {"cpu_percent": 100.0 * second, "rss_bytes": 10 * MIB + second})
    found = by_key(server_metrics(data, 1 * S, 3 * S))
    assert found["server_cpu_mean_pct"].value == 200.0
    assert found["server_cpu_p95_pct"].value == 300.0
    assert found["server_rss_max_MiB"].value == 10 + 3 / MIB
    assert {metric.n for metric in found.values()} == {3}

    late = by_key(server_metrics(data, 10 * S, 12 * S))
    assert {metric.value for metric in late.values()} == {None}
    assert {metric.note for metric in late.values()} == {"no sample of the server's processes inside the window"}
    assert "were not sampled" in server_metrics(Telemetry(), 0, S)[0].note


@pytest.mark.parametrize(
    ("total", "kv", "prefix"),
    [
        ("_total", "kv_cache_usage_perc", "prefix_cache"),
        ("", "gpu_cache_usage_perc", "gpu_prefix_cache"),
    ],
)
def test_serving_counters_in_the_names_of_several_versions(total: str, kv: str, prefix: str) -> None:
    data = Telemetry()
    for second in range(5):
        data.add(
            0,
            second * S,
            "metrics",
            {
                'vllm:request_queue_time_seconds_sum{engine="0"}': 1.0 + 0.5 * second,
                'vllm:request_queue_time_seconds_count{engine="0"}': 10.0 + 5 * second,
                f'vllm:{kv}{{engine="0"}}': 0.1 * second,
                f'vllm:{prefix}_queries{total}{{engine="0"}}': 100.0 * second,
                f'vllm:{prefix}_hits{total}{{engine="0"}}': 25.0 * second,
                f'vllm:prompt_tokens{total}{{engine="0"}}': 1000.0 + 100 * second,
                f'vllm:generation_tokens{total}{{engine="0"}}': 10.0 * second,
                f'vllm:num_preemptions{total}{{engine="0"}}': 3.0,
            },
        )
    found = by_key(serving_counters(data, 1 * S + S // 10, 3 * S))
    assert found.keys() == {"queue_time_mean_ms", "kv_usage_mean_share", "prefix_hit_rate_share"}
    assert found["queue_time_mean_ms"].value == pytest.approx(100.0)
    assert found["queue_time_mean_ms"].n == 10
    assert found["queue_time_mean_ms"].note == "counters read 0.10 s before its start and 0.00 s after its end"
    assert found["kv_usage_mean_share"].value == pytest.approx(0.25)  # of the samples inside
    assert found["prefix_hit_rate_share"].value == pytest.approx(0.25)
    assert found["prefix_hit_rate_share"].n == 200

    totals = token_totals(data)
    assert (totals.prompt_tokens, totals.generation_tokens, totals.preemptions) == (400, 40, 0)
    assert totals.notes == ()


def test_speculative_decoding_of_two_engines() -> None:
    data = Telemetry()
    for second in range(3):
        values = {}
        for engine in "01":
            label = f'engine="{engine}",model_name="m"'
            values[f"vllm:spec_decode_num_drafts_total{{{label}}}"] = 10.0 * second
            values[f"vllm:spec_decode_num_draft_tokens_total{{{label}}}"] = 30.0 * second
            values[f"vllm:spec_decode_num_accepted_tokens_total{{{label}}}"] = 15.0 * second
            for position, accepted in enumerate((8.0, 5.0, 2.0)):
                name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                values[f'{name}{{{label},position="{position}"}}'] = accepted * second
        data.add(0, second * S, "metrics", values)
    found = by_key(serving_counters(data, 0, 2 * S))
    assert found["acceptance_rate_share"].value == 0.5
    assert found["acceptance_rate_share"].n == 120
    assert found["accepted_per_step_tokens"].value == 1.5
    assert [found[f"acceptance_rate_pos{position}_share"].value for position in range(3)] == [0.8, 0.5, 0.2]
    assert found["acceptance_rate_pos0_share"].n == 40


def test_what_is_absent_is_none_with_a_reason() -> None:
    found = by_key(serving_counters(Telemetry(), 0, S))
    assert found.keys() == {"queue_time_mean_ms", "kv_usage_mean_share", "prefix_hit_rate_share"}
    for metric in found.values():
        assert metric.value is None
        assert "does not report vllm:" in metric.note
    totals = token_totals(Telemetry())
    assert (totals.prompt_tokens, totals.generation_tokens, totals.preemptions) == (None, None, None)
    assert len(totals.notes) == 3


def test_nothing_happened_is_not_zero() -> None:
    data = Telemetry()
    for second in range(3):
        scrape(
            data,
            second,
            vllm__request_queue_time_seconds_sum=1.0,
            vllm__request_queue_time_seconds_count=4.0,
            vllm__prefix_cache_queries_total=0.0,
            vllm__prefix_cache_hits_total=0.0,
            vllm__spec_decode_num_drafts_total=0.0,
            vllm__spec_decode_num_draft_tokens_total=0.0,
            vllm__spec_decode_num_accepted_tokens_total=0.0,
        )
    found = by_key(serving_counters(data, 0, 2 * S))
    assert found["queue_time_mean_ms"].note == "no request left the queue inside the window"
    assert found["accepted_per_step_tokens"].note == "no draft was verified inside the window"
    assert {metric.value for metric in found.values()} == {None}


def test_a_server_that_restarted() -> None:
    data = Telemetry()
    for second, count in enumerate((100.0, 200.0, 5.0, 50.0)):
        scrape(data, second, vllm__prompt_tokens_total=count, vllm__prefix_cache_queries_total=count,
               vllm__prefix_cache_hits_total=count)  # fmt: skip
    found = by_key(serving_counters(data, 0, 3 * S))
    assert found["prefix_hit_rate_share"].value is None
    assert "reset" in found["prefix_hit_rate_share"].note
    assert token_totals(data).prompt_tokens is None
    assert "reset" in token_totals(data).notes[0]


def gate_data(server: int, metrics: int) -> Telemetry:
    """That many samples inside the window from 10 to 20 s, and some before it."""
    data = Telemetry()
    for second in (1, 2, *range(10, 10 + server)):
        data.add(0, second * S, "server", {"cpu_percent": 1.0, "rss_bytes": 2.0})
    for second in (1, 2, *range(10, 10 + metrics)):
        data.add(0, second * S, "metrics", {"x": 1.0})
    for second in range(30):
        data.add(0, second * S, "telemetry", {"cpu_s": float(second)})
    return data


def test_the_gate_passes_with_samples_of_every_sampler() -> None:
    gate = telemetry_gate(gate_data(5, 3), 10 * S, 20 * S)
    assert (gate.id, gate.passed, gate.observed, gate.limit, gate.severity) == ("telemetry", True, 3, 3, "provisional")
    assert gate.message == ""


@pytest.mark.parametrize(("server", "metrics", "observed"), [(5, 2, 2), (0, 9, 0), (0, 0, 0)])
def test_the_gate_fails_when_a_sampler_stopped(server: int, metrics: int, observed: int) -> None:
    data = gate_data(server, metrics)
    data.problem = "the telemetry process ended early"
    gate = telemetry_gate(data, 10 * S, 20 * S)
    assert (gate.passed, gate.observed) == (False, observed)
    assert gate.message == (
        f"samples inside the window: metrics {metrics}, server {server}; the telemetry process ended early"
    )


def test_a_sampler_that_never_gave_a_value_is_not_counted() -> None:
    data = gate_data(5, 5)
    for second in range(10, 20):
        data.add(0, second * S, "other", {"x": None})
    assert telemetry_gate(data, 10 * S, 20 * S).passed


def test_no_telemetry_at_all() -> None:
    gate = telemetry_gate(Telemetry(), 0, S)
    assert (gate.passed, gate.observed, gate.message) == (
        False,
        0,
        "samples inside the window: no sampler gave any",
    )
