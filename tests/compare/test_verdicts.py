"""Verdicts: false alarms, power, symmetries; what is not compared and why."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from compare_helpers import FACTS, Bench, of, point, readings
from hypothesis import given
from hypothesis import strategies as st

from neuronbench.compare import Bands, Comparison, Options, Row, Verdict, compare
from neuronbench.compare.history import past
from neuronbench.compare.verdicts import LONE
from neuronbench.definitions import metric
from neuronbench.model import Failure, Gate, Metric, Outcome, Provenance

REPEATS, NOISE = 5, 0.02
MIRROR = {
    Verdict.IMPROVED: Verdict.REGRESSED,
    Verdict.REGRESSED: Verdict.IMPROVED,
    Verdict.UNCHANGED: Verdict.UNCHANGED,
    Verdict.INCONCLUSIVE: Verdict.INCONCLUSIVE,
    Verdict.INCOMPARABLE: Verdict.INCOMPARABLE,
}


def noisy(draw: random.Random, centre: float, n: int = REPEATS) -> list[float]:
    """Run-level values with a run-to-run spread of 2 %."""
    return [centre * math.exp(draw.gauss(0, NOISE)) for _ in range(n)]


def one(base: Sequence[float], head: Sequence[float], **options: Any) -> Row:
    (row,) = compare(of(readings(base)), of(readings(head)), Options(**options)).rows
    return row


# -- false alarms and power -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeats", [2, 3, 5, 10])
def test_the_same_against_itself_gives_few_false_alarms(repeats: int) -> None:
    draw = random.Random(repeats)
    alone = Counter(one(noisy(draw, 50, repeats), noisy(draw, 50, repeats)).verdict for _ in range(200))
    assert alone[Verdict.REGRESSED] + alone[Verdict.IMPROVED] <= 10, alone  # 5 % of 200


def test_two_hundred_points_of_one_comparison_give_fewer_still() -> None:
    draw = random.Random(3)
    points = [point(c) for c in range(200)]
    base = of(*(readings(noisy(draw, 50), at=p) for p in points))
    head = of(*(readings(noisy(draw, 50), at=p) for p in points))
    counts = compare(base, head).counts
    assert counts[Verdict.REGRESSED] + counts[Verdict.IMPROVED] <= 2, counts
    assert sum(counts.values()) == 200


def test_five_per_cent_are_found_at_the_stated_power() -> None:
    from neuronbench.compare.intervals import chance_of_change

    draw = random.Random(11)
    turns = 300
    rows = [one(noisy(draw, 50), noisy(draw, 50 * 1.05)) for _ in range(turns)]
    found = sum(row.verdict is Verdict.REGRESSED for row in rows)
    band = rows[0].floor
    assert band is not None
    stated = chance_of_change(math.log(1.05), NOISE, REPEATS, REPEATS, band.size)
    assert stated > 0.8
    assert found / turns >= stated - 3 * math.sqrt(stated * (1 - stated) / turns)
    assert not any(row.verdict is Verdict.IMPROVED for row in rows)


def test_many_changed_points_survive_the_correction() -> None:
    draw = random.Random(5)
    points = [point(c) for c in range(60)]
    base = of(*(readings(noisy(draw, 50), at=p) for p in points))
    head = of(*(readings(noisy(draw, 50 if c < 40 else 56), at=p) for c, p in enumerate(points)))
    rows = compare(base, head).rows
    changed = {row.point for row in rows if row.verdict is Verdict.REGRESSED}
    truly = {p.id for p in points[40:]}
    assert len(changed & truly) >= 19
    assert len(changed - truly) <= 2


def test_enough_repeats_make_it_unchanged() -> None:
    draw = random.Random(2)
    rows = [one(noisy(draw, 50, 30), noisy(draw, 50, 30)) for _ in range(30)]
    assert sum(row.verdict is Verdict.UNCHANGED for row in rows) >= 27
    assert all(row.low is not None and row.high is not None and row.low <= row.high for row in rows)


# -- symmetries -------------------------------------------------------------------------------------------------------

value = st.floats(1.0, 100.0)
repeats = st.lists(value, min_size=1, max_size=6)
metrics = st.sampled_from([("latency", "p50"), ("throughput", ""), ("ttft", "p99"), ("error_rate", "")])


@given(base=repeats, head=repeats, what=metrics)
def test_b_against_a_mirrors_a_against_b(base: list[float], head: list[float], what: tuple[str, str]) -> None:
    a, b = readings(base, id_=what[0], stat=what[1]), readings(head, id_=what[0], stat=what[1])
    (there,), (back,) = compare(of(a), of(b)).rows, compare(of(b), of(a)).rows
    assert back.verdict is MIRROR[there.verdict]
    assert back.change == pytest.approx(-(there.change or 0.0), abs=1e-12)
    assert (back.p, back.more, back.detectable) == pytest.approx((there.p, there.more, there.detectable))
    assert back.floor is not None
    assert there.floor is not None
    assert back.floor.size == pytest.approx(there.floor.size)
    if there.low is not None and there.high is not None:
        assert (back.low, back.high) == pytest.approx((-there.high, -there.low), abs=1e-12)


@given(base=repeats, head=repeats, scale=st.sampled_from([1e-6, 0.25, 1024.0, 1e9]))
def test_the_unit_does_not_matter(base: list[float], head: list[float], scale: float) -> None:
    small, large = one(base, head), one([v * scale for v in base], [v * scale for v in head])
    assert large.change == pytest.approx(small.change, abs=1e-9)
    assert (large.low is None) is (small.low is None)
    if small.low is not None and small.high is not None:
        assert (large.low, large.high) == pytest.approx((small.low, small.high), rel=1e-6, abs=1e-9)
    margin = abs(abs(small.change or 0.0) - math.log(1.03))
    if margin > 1e-9:
        assert large.verdict is small.verdict


@given(data=st.data(), base=repeats, head=repeats)
def test_the_order_of_repeats_and_points_does_not_matter(
    data: st.DataObject, base: list[float], head: list[float]
) -> None:
    a = [*readings(base, at=point(1)), *readings(head, at=point(2))]
    b = [*readings(head, at=point(1)), *readings(base, at=point(2))]
    straight = compare(of(a), of(b))
    mixed = compare(of(data.draw(st.permutations(a))), of(data.draw(st.permutations(b))))
    told = [{(r.point, r.verdict, r.change, r.low, r.high, r.p_adjusted) for r in c.rows} for c in (straight, mixed)]
    assert told[0] == told[1]


# -- scales and directions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id_", "stat", "factor", "verdict"),
    [
        ("latency", "p50", 1.2, Verdict.REGRESSED),
        ("latency", "p50", 0.8, Verdict.IMPROVED),
        ("throughput", "", 1.2, Verdict.IMPROVED),
        ("throughput", "", 0.8, Verdict.REGRESSED),
    ],
)
def test_the_direction_is_the_metrics_own(id_: str, stat: str, factor: float, verdict: Verdict) -> None:
    base = [100.0, 101.0, 99.0, 100.5]
    head = [factor * value for value in base]
    (row,) = compare(of(readings(base, id_=id_, stat=stat)), of(readings(head, id_=id_, stat=stat))).rows
    assert row.verdict is verdict
    assert row.percent == pytest.approx(100 * (factor - 1))


def test_shares_and_zeros_are_compared_as_differences() -> None:
    def against(base: list[float], head: list[float]) -> Row:
        (row,) = compare(
            of(readings(base, id_="error_rate", stat="")), of(readings(head, id_="error_rate", stat=""))
        ).rows
        return row

    same = against([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert (same.verdict, same.log, same.change) == (Verdict.UNCHANGED, False, 0.0)
    worse = against([0.0, 0.001, 0.0], [0.05, 0.051, 0.049])
    assert (worse.verdict, worse.percent) == (Verdict.REGRESSED, None)
    assert worse.change == pytest.approx(0.05, abs=0.001)


def test_a_rate_is_not_known_better_than_its_count() -> None:
    """Two repeats of 45 requests each that agree to the digit do not prove a change of one request."""
    made = [
        [replace(r, values={k: v._replace(n=45) for k, v in r.values.items()})
         for r in readings([count / 12] * 2, id_="request_throughput", stat="")]
        for count in (45, 46)
    ]  # fmt: skip
    (row,) = compare(of(made[0]), of(made[1])).rows
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.p is not None
    assert row.p > 0.05


def test_a_metric_without_direction_has_no_verdict() -> None:
    (row,) = compare(
        of(readings([1, 2, 3], id_="grad_norm", stat="mean")),
        of(readings([1, 2, 3], id_="grad_norm", stat="mean")),
        Options(metrics=["grad_norm"]),
    ).rows
    assert row.verdict is Verdict.INCOMPARABLE
    assert "no better direction" in row.reason


# -- noise floors -----------------------------------------------------------------------------------------------------


def test_the_floor_says_where_it_comes_from() -> None:
    base, head = [100.0, 100.1, 99.9], [104.0, 104.1, 103.9]
    row = one(base, head)
    assert row.verdict is Verdict.REGRESSED
    assert row.floor is not None
    assert row.floor.text == "3 % (default for p50)"
    for given_, text in (
        ({"latency_p50_ms": 0.05}, "latency_p50_ms"),
        ({"latency": 0.05}, "latency"),
        ({"*": 0.05}, ""),
    ):
        row = one(base, head, bands=Bands(given=given_))
        assert row.verdict is Verdict.UNCHANGED
        assert row.floor is not None
        assert row.floor.text == f"5 % (--noise-floor{' ' + text if text else ''})"
    policy = Bands(policy=lambda key, lane: {"band": 0.1} if (key, lane) == ("latency_p50_ms", "serving") else None)
    row = one(base, head, bands=policy)
    assert row.floor is not None
    assert "plugin" in row.floor.text
    assert row.verdict is Verdict.UNCHANGED


def test_times_below_what_the_client_adds_are_no_change() -> None:
    base, head = [1.00, 1.01, 0.99], [1.20, 1.21, 1.19]
    (row,) = compare(of(readings(base, id_="ttft", stat="p50")), of(readings(head, id_="ttft", stat="p50"))).rows
    assert row.verdict is Verdict.UNCHANGED
    assert row.floor is not None
    assert "0.5 ms" in row.floor.text


def test_history_widens_the_floor_and_stands_in_for_repeats(bench: Bench) -> None:
    draw = random.Random(4)
    for number in range(1, 9):
        bench.series(bench.session(str(number)), [100 * math.exp(draw.gauss(0, 0.04))])
    bench.series(bench.session("20"), [100.0])
    bench.series(bench.session("21"), [106.0])
    selector = bench.selector()
    sides = selector.side("latest~1"), selector.side("latest")
    without = compare(*sides).rows[0]
    assert (without.verdict, without.more, without.low) == (Verdict.INCONCLUSIVE, 2, None)
    assert "no history" in without.reason
    (row,) = compare(*sides, Options(history=past(selector, sides, 20))).rows
    assert row.spread == "history of 8 sessions"
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.low is not None
    assert row.floor is not None
    assert "history: spread of 8 sessions" in row.floor.text
    assert row.floor.size > math.log(1.03)
    assert any(mark.startswith("advisory") for mark in row.marks)


def test_one_session_against_another_is_advice_unless_history_knows_how_far_sessions_are_apart(bench: Bench) -> None:
    for number in range(1, 8):
        slower = 1.3 if number == 7 else 1.0
        bench.series(bench.session(str(number)), [slower * value for value in BASE])
    selector = bench.selector()
    one, two = selector.side("latest~1"), selector.side("latest")
    (row,) = compare(one, two).rows
    assert (row.verdict, list(row.marks)) == (Verdict.REGRESSED, [LONE])
    (row,) = compare(selector.side("latest~1,latest~2"), two).rows
    assert (row.verdict, list(row.marks)) == (Verdict.REGRESSED, [])
    (row,) = compare(one, two, Options(history=past(selector, (one, two), 20))).rows
    assert (row.verdict, list(row.marks)) == (Verdict.REGRESSED, [])


def test_a_quiet_history_lets_a_single_repeat_speak(bench: Bench) -> None:
    for number, wobble in enumerate((0.1, -0.1, 0.2, -0.2, 0.0, 0.1, -0.1), start=1):
        bench.series(bench.session(str(number)), [100 + wobble])
    bench.series(bench.session("20"), [100.0])
    bench.series(bench.session("21"), [120.0])
    selector = bench.selector()
    sides = selector.side("latest~1"), selector.side("latest")
    (row,) = compare(*sides, Options(history=past(selector, sides, 20))).rows
    assert row.verdict is Verdict.REGRESSED
    assert past(selector, sides, 0) == {}
    assert compare(*sides, Options(history=past(selector, sides, 4))).rows[0].verdict is Verdict.INCONCLUSIVE


# -- what is not compared ---------------------------------------------------------------------------------------------

BASE, HEAD = [10.0, 10.1, 9.9], [10.0, 10.1, 9.9]


def beside(bench: Bench, head: dict[str, Any], *, base: dict[str, Any] | None = None, **options: Any) -> Comparison:
    bench.series(bench.session("1"), BASE, **(base or {}))
    bench.series(bench.session("2"), HEAD, **head)
    return compare(*bench.sides("latest~1", "latest"), Options(**options))


@pytest.mark.parametrize(
    ("field", "head"),
    [
        ("stack.vllm", {"facts": {"stack.vllm": "0.32.0"}}),
        ("host.cpu_model", {"facts": {"host.cpu_model": "Xeon"}}),
        ("env.NEURON_CC_FLAGS", {"facts": {"env.NEURON_CC_FLAGS": "--model-type=transformer"}}),
        ("resource.compiler_flags.-O", {"spec": {"compiler_flags": {"-O": "3"}}}),
        ("workload.digest", {"workload": {"digest": "other"}}),
        ("workload.arrivals.kind", {"workload": {"arrivals": {"kind": "open"}}}),
        ("benchmark.source", {"at": point(source="def")}),
        ("params.window_s", {"at": point(window_s=30.0)}),
        ("provenance", {"provenance": Provenance.SIMULATED}),
    ],
)
def test_another_protocol_is_incomparable_and_named(bench: Bench, field: str, head: dict[str, Any]) -> None:
    found = beside(bench, head)
    (row,) = found.rows
    assert row.verdict is Verdict.INCOMPARABLE
    assert field in row.reason
    assert [d.field for d in row.differences] == [field]
    allowed = compare(*bench.sides("latest~1", "latest"), Options(allow=[field])).rows[0]
    assert allowed.verdict in (Verdict.UNCHANGED, Verdict.INCONCLUSIVE)
    assert any(field in mark and f"--allow {field}" in mark for mark in allowed.marks)


def test_allow_takes_the_beginning_of_a_name_and_a_pattern(bench: Bench) -> None:
    beside(bench, {"facts": {"stack.vllm": "0.32.0"}})
    for pattern in ("stack", "stack.*", "*.vllm"):
        assert compare(*bench.sides("latest~1", "latest"), Options(allow=[pattern])).rows[0].floor is not None
    assert compare(*bench.sides("latest~1", "latest"), Options(allow=["sta"])).rows[0].floor is None


def test_facts_that_do_not_matter_are_told_and_do_not_block(bench: Bench) -> None:
    found = beside(bench, {"facts": {"git.commit": "b" * 40}})
    assert found.rows[0].verdict is not Verdict.INCOMPARABLE
    assert (found.base.context["git.commit"], found.head.context["git.commit"]) == (["a" * 40], ["b" * 40])


def test_a_side_that_mixes_protocols_is_incomparable(bench: Bench) -> None:
    bench.series(bench.session("1"), BASE)
    bench.series(bench.session("2"), HEAD, facts={"stack.vllm": "0.32.0"})
    bench.series(bench.session("3"), HEAD)
    (row,) = compare(*bench.sides("latest~2,latest~1", "latest")).rows
    assert (row.verdict, row.base.n) == (Verdict.INCOMPARABLE, 6)
    assert "stack.vllm: 0.31.0 and 0.32.0 → 0.31.0" in row.reason


def test_other_definitions_are_incomparable(bench: Bench) -> None:
    for name, version in (("1", 1), ("2", 2)):
        session = bench.session(name)
        for repeat, number in enumerate(BASE, start=1):
            made = Metric(id="latency", value=number, unit="ms", stat="p50", better="lower", n=9, version=version)
            bench.put(session, made, repeat=repeat)
    (row,) = compare(*bench.sides("latest~1", "latest")).rows
    assert row.reason == "definition: latency@1 → latency@2"
    allowed = compare(*bench.sides("latest~1", "latest"), Options(allow=["definition"])).rows[0]
    assert allowed.verdict is not Verdict.INCOMPARABLE
    assert "definition: latency@1 → latency@2 (--allow definition)" in allowed.marks


def test_invalid_records_are_not_compared_unless_told_to(bench: Bench) -> None:
    bad = [Gate(id="steady_state", passed=False)]
    found = beside(bench, {"gates": bad})
    assert [(c.kind, c.worse) for c in found.outcomes] == [("invalidated", True)]
    assert "steady_state" in found.outcomes[0].text
    assert found.rows[0].verdict is Verdict.INCOMPARABLE
    (row,) = compare(*bench.sides("latest~1", "latest"), Options(allow=["invalid"])).rows
    assert row.verdict is not Verdict.INCOMPARABLE
    assert "invalid B: steady_state" in row.marks


def test_one_invalid_repeat_is_left_out(bench: Bench) -> None:
    bench.series(bench.session("1"), BASE)
    session = bench.session("2")
    for repeat, number in enumerate([10.0, 10.1, 99.0], start=1):
        gates = [Gate(id="steady_state", passed=repeat < 3)]
        bench.put(session, metric("latency", number, stat="p50"), repeat=repeat, gates=gates)
    (row,) = compare(*bench.sides("latest~1", "latest")).rows
    assert row.head.repeats == (10.0, 10.1)


def test_provisional_ones_are_marked(bench: Bench) -> None:
    gates = [Gate(id="host_contended", passed=False, severity="provisional")]
    assert beside(bench, {"gates": gates}).rows[0].marks == ["provisional B: host_contended"]


def test_what_one_repeat_lacks_is_not_averaged_over_the_others(bench: Bench) -> None:
    bench.series(bench.session("1"), BASE)
    session = bench.session("2")
    note = "p50 needs 2 observations, found 1"
    bench.put(session, metric("latency", None, stat="p50", note=note))
    bench.put(session, metric("latency", 10.0, stat="p50"), repeat=2)
    (row,) = compare(*bench.sides("latest~1", "latest")).rows
    assert row.reason == f"no value in 1 of 2 repeats of B: {note}"


def test_what_nobody_has_a_value_for_is_a_note(bench: Bench) -> None:
    for name in ("1", "2"):
        session = bench.session(name)
        bench.put(
            session, metric("latency", 1.0, stat="p50"), metric("latency", None, stat="p99", note="p99 needs 100")
        )
    found = compare(*bench.sides("latest~1", "latest"))
    assert [row.metric.key for row in found.rows] == ["latency_p50_ms"]
    assert "p99 needs 100" in found.notes[0]


# -- outcomes ---------------------------------------------------------------------------------------------------------

BROKEN = Failure(kind="host_oom", phase="window", message="m", causal_line="Killed")


@pytest.mark.parametrize(
    ("before", "after", "kind", "worse"),
    [
        (Outcome.OK, Outcome.ERROR, "broken", True),
        (Outcome.TIMEOUT, Outcome.OK, "fixed", False),
        (Outcome.OK, Outcome.SLO_MISS, "slo_missed", True),
        (Outcome.SLO_MISS, Outcome.OK, "slo_met", False),
        (Outcome.ERROR, Outcome.ERROR, "failing", False),
        (Outcome.SKIPPED, Outcome.OK, "new", False),
        (Outcome.OK, Outcome.SKIPPED, "gone", False),
    ],
)
def test_how_points_ended_comes_first(bench: Bench, before: Outcome, after: Outcome, kind: str, worse: bool) -> None:
    for name, outcome in (("1", before), ("2", after)):
        error = BROKEN if outcome in (Outcome.ERROR, Outcome.TIMEOUT) else None
        bench.put(bench.session(name), metric("latency", 1.0, stat="p50"), outcome=outcome, error=error)
    found = compare(*bench.sides("latest~1", "latest"))
    (change,) = found.outcomes
    assert (change.kind, change.worse) == (kind, worse)
    if error := ("host_oom: Killed" if kind in ("broken", "fixed", "failing") else ""):
        assert error in change.text
    assert bool(found.failing(["outcome"])) is worse


def test_one_repeat_that_fails_breaks_the_point(bench: Bench) -> None:
    bench.series(bench.session("1"), BASE)
    session = bench.series(bench.session("2"), HEAD[:2])
    bench.put(session, repeat=3, outcome=Outcome.ERROR, error=BROKEN)
    found = compare(*bench.sides("latest~1", "latest"))
    assert [(c.kind, c.text) for c in found.outcomes] == [("broken", "3 × ok → 1 of 3 error (host_oom: Killed)")]
    assert found.rows[0].head.n == 2


def test_points_of_one_side_only_are_named(bench: Bench) -> None:
    bench.series(bench.session("1"), BASE, at=point(1))
    bench.series(bench.session("2"), HEAD, at=point(2))
    found = compare(*bench.sides("latest~1", "latest"))
    assert {(c.kind, c.point) for c in found.outcomes} == {("gone", point(1).id), ("new", point(2).id)}
    assert not found.rows


# -- axes and imports -------------------------------------------------------------------------------------------------


def test_backends_are_compared_when_asked_to(bench: Bench) -> None:
    bench.series(bench.session("1"), BASE, at=point(backend="inf2"))
    facts = {"backend.name": "trn2", "host.cores": 192, "stack.vllm": "0.11.0"}
    bench.series(bench.session("2"), [5.0, 5.1, 4.9], at=point(backend="trn2"), facts=facts)
    assert not compare(*bench.sides("latest~1", "latest")).rows
    (row,) = compare(*bench.sides("latest~1", "latest"), Options(by="backend")).rows
    assert (row.verdict, row.backends) == (Verdict.IMPROVED, ("inf2", "trn2"))
    assert any("host.cores: 2 → 192 (--by backend)" in mark for mark in row.marks)


def test_other_compiler_flags_are_not_excused_by_another_backend(bench: Bench) -> None:
    bench.series(bench.session("1"), BASE, at=point(backend="inf2"), facts={"env.NEURON_CC_FLAGS": "-O1"})
    bench.series(bench.session("2"), HEAD, at=point(backend="trn2"), facts={"env.NEURON_CC_FLAGS": "-O2"})
    (row,) = compare(*bench.sides("latest~1", "latest"), Options(by="backend")).rows
    assert (row.verdict, row.reason) == (Verdict.INCOMPARABLE, "env.NEURON_CC_FLAGS: -O1 → -O2")


def test_a_parameter_can_be_the_axis(bench: Bench) -> None:
    session = bench.session("1")
    for dtype, factor in (("float32", 1.0), ("bfloat16", 0.5)):
        values = [factor * value for value in BASE]
        at = replace(point(dtype=dtype), id=f"serving.loop-{dtype}")
        bench.series(session, values, at=at, spec={"dtype": dtype}, workload={"digest": dtype})
    both = bench.selector().side("latest")
    from neuronbench.compare import split_by

    base, head = split_by(both, "dtype")
    assert (base.label, head.label) == ("latest@dtype=float32", "latest@dtype=bfloat16")
    (row,) = compare(base, head, Options(by="dtype")).rows
    assert row.verdict is Verdict.IMPROVED


def test_imported_results_are_compared_by_their_axes_and_marked(bench: Bench) -> None:
    from neuronbench.model import FrozenMap, Point

    (bench.store.root / "imported-vllm-1").mkdir(parents=True)
    theirs = Point(
        benchmark="imported/vllm", lane="serving", backend="unknown", id="vllm.x", axes=("concurrency",),
        params=FrozenMap(concurrency=8),
    )  # fmt: skip
    for number in (1, 2, 3):
        bench.put(
            "imported-vllm-1", metric("latency", 20.0 + number / 10, stat="p50"), at=theirs, repeat=number,
            provenance=Provenance.IMPORTED, facts=dict.fromkeys(FACTS), spec={"compiler_flags": None, "model": None},
            workload={"digest": "", "arrivals": None},
        )  # fmt: skip
    for c in (1, 8):
        bench.series(bench.session("1"), BASE, at=point(c))
    found = compare(*bench.sides("imported-vllm", "latest"))
    (row,) = found.rows
    assert (row.point, row.verdict) == (point(8).id, Verdict.IMPROVED)
    assert "imported A" in row.marks
    assert any("not known on one side" in mark for mark in row.marks)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"input_tokens": 1024}, "params.input_tokens: 1024 → 32"),
        ({"input_tokens": 32.0, "rate": 4}, ""),
        ({"model": "another"}, "params.model: another → m"),
        ({"output_tokens": 7}, ""),
    ],
)
def test_what_an_imported_result_says_is_held_against_the_load_and_the_model(
    bench: Bench, said: dict[str, Any], reason: str
) -> None:
    """`input_tokens` is no parameter of this benchmark: its code says it, and so does the load of its records."""
    from neuronbench.model import FrozenMap, Point

    (bench.store.root / "imported-vllm-1").mkdir(parents=True)
    theirs = Point(
        benchmark="imported/vllm", lane="serving", backend="unknown", id="vllm.x", axes=("concurrency", *said),
        params=FrozenMap(concurrency=8, **said),
    )  # fmt: skip
    for number in (1, 2, 3):
        bench.put(
            "imported-vllm-1", metric("latency", 20.0 + number / 10, stat="p50"), at=theirs, repeat=number,
            provenance=Provenance.IMPORTED, facts=dict.fromkeys(FACTS), spec={"compiler_flags": None, "model": None},
            workload={"digest": "", "arrivals": None},
        )  # fmt: skip
    load = {"workload": {"kind": "synthetic", "input_tokens": 32, "output_tokens": {"low": 4, "high": 8}}}
    bench.series(bench.session("1"), BASE, at=point(8), workload=load)
    (row,) = compare(*bench.sides("imported-vllm", "latest")).rows
    assert row.verdict is (Verdict.INCOMPARABLE if reason else Verdict.IMPROVED)
    assert row.reason == reason
    (row,) = compare(*bench.sides("imported-vllm", "latest"), Options(allow=("params",))).rows
    assert row.verdict is Verdict.IMPROVED


def test_boots_are_compared_on_request(bench: Bench) -> None:
    for name, seconds in (("1", 20.0), ("2", 40.0)):
        session = bench.session(name)
        for repeat in (1, 2, 3):
            bench.put(
                session, metric("boot_time", seconds + repeat, n=1), repeat=repeat, kind="boot", name=f"boot-{repeat}"
            )
    from neuronbench.compare import BOOTS

    selector = bench.selector(kinds=BOOTS)
    (row,) = compare(selector.side("latest~1"), selector.side("latest")).rows
    assert (row.metric.key, row.verdict) == ("boot_time_s", Verdict.REGRESSED)


def test_overall_is_the_geometric_mean_of_the_ratios() -> None:
    factors = (1.0, 1.1, 1.21)
    base = of(*(readings(BASE, at=point(c)) for c in range(3)))
    head = of(*(readings([f * v for v in BASE], at=point(c)) for c, f in enumerate(factors)))
    (overall,) = compare(base, head).overall
    assert (overall.points, math.exp(overall.change)) == (3, pytest.approx(1.1))
    assert overall.low is not None


def test_a_comparison_is_json(bench: Bench) -> None:
    import json

    found = beside(bench, {"facts": {"stack.vllm": "0.32.0"}}, allow=["stack"])
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    (row,) = document["rows"]
    assert row["metric"] == "latency_p50_ms"
    assert row["change"] == pytest.approx(1.0)
    assert row["base"]["n"] == 3
    assert document["counts"][row["verdict"]] == 1
