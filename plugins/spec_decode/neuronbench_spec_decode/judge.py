"""From what was seen on the ladder to metrics and gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from statistics import fmean
from typing import Final

from neuronbench.model import Gate, Json, Metric
from neuronbench_spec_decode import LANE, cost, counters, pairs
from neuronbench_spec_decode.counters import Counts
from neuronbench_spec_decode.ladder import Climb, Row
from neuronbench_spec_decode.lossless import Difference, differences

DRIFT_LIMIT: Final = 0.10
"""Two rounds of the baseline may differ by this share before a speed-up is only provisional."""
CONTENTION_LIMIT_PCT: Final = 25.0
"""What other programs may use of the host meanwhile; 100 % is one core."""
CEILING_LIMIT: Final = 1.15
"""A step that verifies a draft computes more than one that does not. How much shorter it may be measured all the same,
before a speed-up says more of the baseline's bad luck than of speculation."""
FIT_LIMIT: Final = 0.15
"""Error of the fitted cost, as a share of a step, beyond which nothing is predicted from it."""

UNREAD: Final = "the server's counters could not be read at every request"


@dataclass(frozen=True, kw_only=True)
class Judged:
    metrics: Sequence[Metric]
    gates: Sequence[Gate]
    facts: Mapping[str, Json]
    """For the record's workload: every draft length, each category."""


def judge(seen: Climb) -> Judged:
    """All that can be said of a ladder that was climbed to its end."""
    rows, ks = seen.rows, seen.plan.ks
    by_k = {k: [row for row in rows if row.k == k] for k in ks}
    speedups = {k: _speedup(by_k[0], by_k[k]) for k in ks if k}
    line = cost.fit(*zip(*_observations(rows), strict=True)) if _observations(rows) else None
    metrics = [each for k in ks for each in _of_k(k, by_k[k])]
    for k, pair in speedups.items():
        metrics += _pair(pair, f"k{k}", f"{seen.plan.rounds} rounds of k = 0 and k = {k} in the same session")
    metrics += _best(speedups, by_k[ks[-1]], ks[-1])
    metrics += _cost(line, by_k, ks[-1], seen.plan.categories)
    differing = _differences(rows)
    answers = sum(row.k > 0 for row in rows)
    metrics.append(
        LANE.metric("equal_answers", 1 - len(differing) / answers, n=answers, note=f"served in {seen.dtype}")
    )
    gates = [
        _baseline_repeats(by_k[0]), _lossless(differing, answers, seen.dtype), _lengths(rows, seen),
        _conserved(rows), _speculated(by_k, ks), _ceiling(by_k), _fits(line), _drift(by_k[0], seen.plan.rounds),
        _contended(seen.legs), *_copies(seen, by_k[ks[-1]]),
    ]  # fmt: skip
    return Judged(metrics=metrics, gates=gates, facts=_facts(seen, by_k, speedups, line))


# -- what is measured


def _counted(rows: Iterable[Row]) -> Counts:
    return reduce(lambda one, other: one + other, (row.counted for row in rows))


def _uncounted(counted: Counts) -> str:
    return UNREAD if counted.unread else "the server does not report speculation"


def _ratio(id: str, top: float | None, bottom: float | None, *, stat: str, why: str) -> Metric:
    if top is None or bottom is None or bottom <= 0:
        return LANE.metric(id, None, stat=stat, note=why if bottom is None or top is None else "nothing was drafted")
    return LANE.metric(id, top / bottom, stat=stat, n=round(bottom))


def _of_k(k: int, rows: Sequence[Row]) -> list[Metric]:
    """Times, and from k = 1 on acceptance, over all prompts and rounds at one draft length."""
    stat = f"k{k}"
    steps, decoded = sum(row.answer.steps for row in rows), sum(row.answer.decoded for row in rows)
    decoding = sum(row.answer.decode_ms for row in rows)
    metrics = [
        LANE.metric("decode_step", decoding / steps, stat=stat, n=steps),
        LANE.metric("tpot", decoding / decoded, stat=stat, n=decoded, note="all decoding / all tokens of it"),
    ]
    if not k:
        ttft = fmean(row.answer.ttft_ms for row in rows)
        return [*metrics, LANE.metric("ttft", ttft, stat=stat, n=len(rows), note="mean")]
    counted = _counted(rows)
    why = _uncounted(counted)
    metrics += [
        LANE.metric("tokens_per_step", decoded / steps, stat=stat, n=steps),
        _ratio("acceptance_rate", counted.kept, counted.drafted, stat=stat, why=why),
        _ratio("accepted_per_step", counted.kept, counted.drafts, stat=stat, why=why),
    ]
    drafts = counted.drafts
    share = None if drafts is None else drafts / steps
    metrics.append(LANE.metric("drafted_steps", share, stat=stat, n=steps, note="" if share is not None else why))
    return metrics


def _speedup(baseline: Sequence[Row], candidate: Sequence[Row]) -> pairs.Speedup:
    def times(rows: Sequence[Row], kind: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for row in rows:
            found.setdefault(row.prompt.name, []).append(getattr(row.answer, kind))
        return found

    decode, e2e = (pairs.ratio(times(baseline, kind), times(candidate, kind)) for kind in ("decode_ms", "e2e_ms"))
    return pairs.Speedup(decode=decode, e2e=e2e)


def _pair(pair: pairs.Speedup, stat: str, note: str) -> list[Metric]:
    """Both of it, or none."""
    return [
        LANE.metric(
            id, each.value, stat=stat, n=each.n, low=each.low, high=each.high,
            confidence=pairs.CONFIDENCE if each.low is not None else None, note=note,
        )
        for id, each in (("decode_speedup", pair.decode), ("e2e_speedup", pair.e2e))
    ]  # fmt: skip


def _best(speedups: Mapping[int, pairs.Speedup], longest_rows: Sequence[Row], longest: int) -> list[Metric]:
    """The best of the draft lengths that were tried, and what the longest drafts were worth, position by position."""
    best = max(speedups, key=lambda k: speedups[k].decode.value)
    gained = speedups[best].decode.value > 1
    note = f"k = {best}, the best of {len(speedups)} that were tried: chosen by this very measurement"
    metrics = _pair(speedups[best], "best", note)
    metrics.append(LANE.metric("measured_best_k", best if gained else 0, n=len(speedups) + 1))
    counted = _counted(longest_rows)
    why = _uncounted(counted)
    metrics += [
        _ratio("acceptance_rate", counted.kept, counted.drafted, stat="longest", why=why),
        _ratio("accepted_per_step", counted.kept, counted.drafts, stat="longest", why=why),
    ]
    for category in dict.fromkeys(row.prompt.category for row in longest_rows):
        rows = [row for row in longest_rows if row.prompt.category == category]
        of_it, steps = _counted(rows), sum(row.answer.steps for row in rows)
        metrics += [
            _ratio("acceptance_rate", of_it.kept, of_it.drafted, stat=category, why=why),
            LANE.metric("tokens_per_step", sum(row.answer.decoded for row in rows) / steps, stat=category, n=steps),
        ]
    for position, kept in enumerate(counted.kept_at):
        metrics.append(_ratio("acceptance_rate", kept, counted.drafts, stat=f"k{longest}_pos{position}", why=why))
    return metrics


def _observations(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """(tokens drafted in a step, ms of a step) of each answer."""
    return [
        ((row.counted.drafted or 0) / row.answer.steps, row.answer.decode_ms / row.answer.steps)
        for row in rows
        if row.counted.drafted is not None or row.k == 0
    ]


def _cost(
    line: cost.Fit | None, by_k: Mapping[int, Sequence[Row]], longest: int, categories: Sequence[str]
) -> list[Metric]:
    """The fitted cost, and what it predicts: for all prompts together and for each category."""
    ids = ("step_floor", "draft_cost", "step_fit_error")
    if line is None:
        why = "no two different numbers of drafted tokens were counted, so there is no line through them"
        return [LANE.metric(id, None, note=why) for id in (*ids, "predicted_best_k", "predicted_speedup")]
    metrics = [
        LANE.metric(id, value, n=line.n)
        for id, value in zip(ids, (line.floor_ms, line.cost_ms, line.error_ms), strict=True)
    ]
    for category in ("", *categories):
        rows = [row for row in by_k[longest] if category in ("", row.prompt.category)]
        found = cost.predict(line, _counted(rows), sum(row.answer.steps for row in rows))
        usable = line.relative_error <= FIT_LIMIT
        why = "nothing was drafted" if usable else f"the fit leaves {line.relative_error:.0%} of a step unexplained"
        known = found if usable else None
        edge = f"the longest that was measured; it may lie beyond k = {longest}" if found and found.k == longest else ""
        note = edge if known else why
        metrics.append(LANE.metric("predicted_best_k", known.k if known else None, stat=category, n=line.n, note=note))
        if not category:
            speedup = known.speedup if known else None
            metrics.append(LANE.metric("predicted_speedup", speedup, n=line.n, note=note))
    return metrics


# -- what has to hold


def _differences(rows: Sequence[Row]) -> list[Difference]:
    baseline = {row.prompt.name: row.answer.tokens for row in rows if row.k == 0 and row.turn == 0}
    return differences([(row.prompt.name, row.k, row.answer.tokens) for row in rows if row.k], baseline)


def _shown(found: Difference) -> tuple[str, str]:
    where = f"{found.prompt}, token {found.position}"
    return f"{where}: {_token(found.token)} at k = {found.k}", f"{where}: {_token(found.wanted)} at k = 0"


def _token(id: int | None) -> str:
    return "the end" if id is None else str(id)


def _lossless(differing: Sequence[Difference], answers: int, dtype: str) -> Gate:
    if not differing:
        return Gate(id="lossless", passed=True, observed=0, limit=0, unit="answers")
    first = min(differing, key=lambda each: (each.position, each.k))
    observed, limit = _shown(first)
    hint = (
        "; in 16 bits two tokens that are nearly equally likely may change places, as a step over several tokens sums "
        "in another order: measure in float32 to tell that from a mistake"
        if dtype in ("bfloat16", "float16", "half")
        else ""
    )
    text = f"{len(differing)} of {answers} answers are not those of the baseline; the earliest is shown{hint}"
    return Gate(id="lossless", passed=False, observed=observed, limit=limit, message=text)


def _baseline_repeats(rows: Sequence[Row]) -> Gate:
    """A baseline that does not answer twice the same proves nothing about others."""
    first = {row.prompt.name: row.answer.tokens for row in rows if row.turn == 0}
    later = [row for row in rows if row.turn > 0]
    if not later:
        text = "one round only: whether the baseline answers twice the same is not known"
        return Gate(id="baseline_repeats", passed=None, message=text)
    found = differences([(row.prompt.name, 0, row.answer.tokens) for row in later], first)
    if not found:
        return Gate(id="baseline_repeats", passed=True, observed=0, limit=0, unit="answers")
    observed, limit = _shown(found[0])
    text = f"{len(found)} of {len(later)} answers of the baseline are other ones in a later round"
    return Gate(id="baseline_repeats", passed=False, observed=observed, limit=limit, message=text)


def _lengths(rows: Sequence[Row], seen: Climb) -> Gate:
    """Prompts and answers as long as was asked, at every k."""
    wanted = (seen.plan.prompt_tokens, seen.plan.output_tokens)
    odd = [row for row in rows if (row.answer.prompt_tokens, len(row.answer.tokens)) != wanted]
    text = "" if not odd else f"{len(odd)} of {len(rows)} requests have other lengths, such as {_where(odd[0])}"
    found = (odd[0].answer.prompt_tokens, len(odd[0].answer.tokens)) if odd else wanted
    return Gate(
        id="equal_lengths", passed=not odd, observed=f"{found[0]} in, {found[1]} out",
        limit=f"{wanted[0]} in, {wanted[1]} out", message=text,
    )  # fmt: skip


def _conserved(rows: Sequence[Row]) -> Gate:
    """What the client got is what the server counted: tokens = steps + kept, on every request."""
    wrong = [(row, why) for row in rows if (why := counters.disagreement(row.answer, row.counted, row.k))]
    if wrong:
        text = f"{_where(wrong[0][0])}: {wrong[0][1]}"
        return Gate(id="emitted_conserved", passed=False, observed=len(wrong), limit=0, unit="requests", message=text)
    unread = [row for row in rows if row.counted.unread]
    if unread:
        text = f"{UNREAD}; {len(unread)} of {len(rows)} failed, such as {_where(unread[0])}: {unread[0].counted.unread}"
        return Gate(id="emitted_conserved", passed=None, limit=0, unit="requests", message=text)
    if any(row.counted.generated is None or (row.k and row.counted.kept is None) for row in rows):
        text = "the server does not count what it drafts and keeps"
        return Gate(id="emitted_conserved", passed=None, limit=0, unit="requests", message=text)
    return Gate(id="emitted_conserved", passed=True, observed=0, limit=0, unit="requests")


def _speculated(by_k: Mapping[int, Sequence[Row]], ks: Sequence[int]) -> Gate:
    """Each server above k = 0 drafted, and the baseline did not."""
    wrong, unknown = [], False
    for k in ks:
        drafts = _counted(by_k[k]).drafts
        several = any(max(row.answer.sizes) > 1 for row in by_k[k])
        unknown = unknown or (drafts is None and k > 0 and not several)
        if k == 0 and (drafts or several):
            wrong.append("the baseline drafts")
        elif k and drafts == 0 and not several:
            wrong.append(f"nothing was drafted at k = {k}")
    passed = False if wrong else None if unknown else True
    text = "; ".join(wrong) or ("no chunk carried more than one token, and no counter tells" if unknown else "")
    return Gate(id="speculated", passed=passed, observed=len(wrong), limit=0, unit="draft lengths", message=text)


def _fits(line: cost.Fit | None) -> Gate:
    if line is None:
        return Gate(id="cost_model", passed=None, limit=FIT_LIMIT, severity="info", message="nothing to fit")
    return Gate(
        id="cost_model", passed=line.relative_error <= FIT_LIMIT, observed=line.relative_error, limit=FIT_LIMIT,
        severity="info", message="error of the fitted time of a step, as a share of a step without a draft",
    )  # fmt: skip


def _ceiling(by_k: Mapping[int, Sequence[Row]]) -> Gate:
    """No speed-up beyond the tokens that a step emits: a draft makes no step shorter than one without."""
    step = {
        k: sum(row.answer.decode_ms for row in rows) / sum(row.answer.steps for row in rows)
        for k, rows in by_k.items()
    }  # fmt: skip
    worst = max((k for k in step if k), key=lambda k: step[0] / step[k])
    beyond = step[0] / step[worst]
    passed = beyond <= CEILING_LIMIT
    text = f"a step without a draft took {step[0]:.4g} ms, one at k = {worst} {step[worst]:.4g} ms: the speed-up is "
    text += "that much more than the tokens of a step can explain"
    return Gate(
        id="ceiling", passed=passed, observed=beyond, limit=CEILING_LIMIT, severity="provisional",
        message="" if passed else text,
    )  # fmt: skip


def _copies(seen: Climb, rows: Sequence[Row]) -> list[Gate]:
    """Drafts from the prompt are right more often where the prompt is copied than where a question is answered."""
    if seen.plan.drafter.method != "ngram" or not {"repeat", "chat"} <= set(seen.plan.categories):
        return []
    kept = {}
    for category in ("repeat", "chat"):
        counted = _counted(row for row in rows if row.prompt.category == category)
        if counted.kept is None or counted.drafted is None:
            return []
        kept[category] = counted.kept / counted.drafted if counted.drafted else 0.0
    return [
        Gate(
            id="copies_more", passed=kept["repeat"] > kept["chat"], observed=kept["repeat"], limit=kept["chat"],
            unit="share", severity="info", message="drafts kept of lists to be copied, beside those of answers",
        )
    ]  # fmt: skip


def _drift(rows: Sequence[Row], rounds: int) -> Gate:
    """How far the rounds of the baseline lie apart: what a speed-up has to be larger than to be seen."""
    totals = [sum(row.answer.decode_ms for row in rows if row.turn == turn) for turn in range(rounds)]
    apart = max(totals) / min(totals) - 1
    passed = None if rounds < 2 else apart <= DRIFT_LIMIT
    text = "one round only" if rounds < 2 else "" if passed else "the host was not the same from round to round"
    return Gate(
        id="baseline_drift", passed=passed, observed=apart, limit=DRIFT_LIMIT, severity="provisional", message=text
    )


def _contended(legs: Sequence[Mapping[str, Json]]) -> Gate:
    seen = [leg["others_cpu_pct"] for leg in legs if leg["others_cpu_pct"] is not None]
    limit, unit = CONTENTION_LIMIT_PCT, "%"
    if len(seen) < len(legs):
        why = "the server's processes cannot be seen"
        return Gate(id="host_contended", passed=None, limit=limit, unit=unit, severity="provisional", message=why)
    return Gate(
        id="host_contended", passed=max(seen) <= limit, observed=round(max(seen), 1), limit=limit, unit=unit,
        severity="provisional",
        message="CPU used by other processes during the worst leg (100 % is one core): end them and measure again",
    )  # fmt: skip


def _where(row: Row) -> str:
    return f"{row.prompt.name} at k = {row.k}, round {row.turn + 1}"


# -- everything, for those who want to look closer


def _facts(
    seen: Climb, by_k: Mapping[int, Sequence[Row]], speedups: Mapping[int, pairs.Speedup], line: cost.Fit | None
) -> dict[str, Json]:
    plan = seen.plan
    table: list[Json] = []
    for k in plan.ks:
        for category in plan.categories:
            rows = [row for row in by_k[k] if row.prompt.category == category]
            base = [row for row in by_k[0] if row.prompt.category == category]
            counted = _counted(rows)
            pair = _speedup(base, rows) if k else None
            steps = sum(row.answer.steps for row in rows)
            table.append(
                {
                    "k": k, "category": category, "answers": len(rows), "steps": steps,
                    "tokens": sum(row.answer.decoded for row in rows),
                    "decode_step_ms": sum(row.answer.decode_ms for row in rows) / steps,
                    "drafts": counted.drafts, "drafted": counted.drafted, "kept": counted.kept,
                    "kept_at": list(counted.kept_at),
                    "decode_speedup": pair.decode.value if pair else None,
                    "e2e_speedup": pair.e2e.value if pair else None,
                }
            )  # fmt: skip
    longest = by_k[plan.ks[-1]]
    found = cost.predict(line, _counted(longest), sum(row.answer.steps for row in longest)) if line else None
    return {
        "drafter": {"name": plan.drafter.name, "method": plan.drafter.method, "model": plan.drafter.model},
        "draft_model": seen.draft or None,
        "order": [[turn + 1, k] for turn, k in plan.legs],
        "legs": list(seen.legs),
        "dtype": seen.dtype,
        "by_category": table,
        "cost": None if line is None else asdict(line),
        "predicted_speedup_by_k": list(found.by_k) if found else None,
    }  # fmt: skip
