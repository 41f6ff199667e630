"""A rate that keeps limits is said with them: limits, share of requests, and the rates between which it lies."""

from __future__ import annotations

from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Outcome, Point, Record
from neuronbench.report.rates import rate_notes


def record(name: str, rate: float | None, missed: float | None, repeat: int = 1) -> Record:
    point = Point(
        benchmark="b::bench_slo_rate", lane="serving", backend="cpu", params=FrozenMap(), id=f"serving.slo_rate-{name}"
    )
    made = Record(session="s", point=point, repeat=repeat)
    note = "ttft ≤ 1000 ms, tpot ≤ 100 ms for 99 % of requests, shown at 99%"
    made.add(metric("max_rate_under_slo", rate, n=800, low=rate, high=missed, note=note))
    made.close(Outcome.OK, ended_at="2026-11-30T01:01:00.000000+00:00", duration_s=1.0)
    return made


def test_limits_share_and_bracket_of_every_rate_are_said() -> None:
    one, other, none = record("cpu-i64", 5.657, 8.0), record("cpu-i64", 16.0, None, 2), record("cpu-i512", None, 0.05)
    assert rate_notes([one, other, none]) == [
        "i64: met at 5.657 req/s, not at 8 req/s: ttft ≤ 1000 ms, tpot ≤ 100 ms for 99 % of requests, shown at 99%",
        "i64 r2: met at 16 req/s: ttft ≤ 1000 ms, tpot ≤ 100 ms for 99 % of requests, shown at 99%",
        "i512: met at no rate, not at 0.05 req/s: ttft ≤ 1000 ms, tpot ≤ 100 ms for 99 % of requests, shown at 99%",
    ]
    assert rate_notes([one] * 8)[-1] == "limits of 2 more: in their records"
    assert rate_notes([]) == []
