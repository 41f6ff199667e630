"""What the answer of a search for the highest rate stands on, as gates.

Two rates decide it: the one that was met, and the one above it that was not. Their loads have to be of the kind that
`measure.serve` stands behind. What was wrong with a load of another rate can only have cost time, for these two were
measured themselves.

Gates, all of severity `provisional` but where it says otherwise:

| id | fails when |
|---|---|
| `search_on_time` | requests were written late, which counts against the rate: the answer may be too low |
| `search_asked_rate` | what arrived differs from the rate that it is said to be of by more than the tolerance |
| `search_samples` | a rate rests on fewer requests than settle a limit that one of them was beyond |
| `search_window` | no window at the rate that was met lasts ten requests in turn: a queue that grows is not seen |
| `search_decided` | (info) the requests allowed did not decide a rate, which counted as not met |
| `search_unspoiled` | (info) the client spoiled a load, which decided nothing |
| `host_contended`, `telemetry`, `token_conservation` | as of any load |

and those of `CARRIED`, as the loads had them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Gate

if TYPE_CHECKING:
    from neuronbench.measure_search import Found, Load
    from neuronbench.protocols import Endpoint, SamplerSpec
    from neuronbench.telemetry.recorder import Telemetry

CARRIED: Final = ("errors_classified", "input_length", "output_length", "prompts_distinct")
"""Gates of a load that say what it was a load of."""
SAMPLE_PERIOD_S: Final = 0.5
"""A quarter of `measure_search.LEAST_SECONDS`."""


def deciding(found: Found) -> dict[float, list[Load]]:
    """The loads that the answer stands on, by rate: met first."""
    rates = [rate for rate in (found.result.rate, found.result.missed_at) if rate is not None]
    return {rate: [load for load in found.loads if load.rate == rate and not load.spoiled] for rate in rates}


def search_gates(found: Found) -> list[Gate]:
    """What the search itself tells of its answer."""
    loads = deciding(found)
    undecided = [step.rate for step in found.result.steps if step.verdict == "undecided"]
    spoiled = [load for load in found.loads if load.spoiled]
    late = [rate for rate, made in loads.items() if any(load.late for load in made)]
    return [
        Gate(
            id="search_on_time",
            passed=not late,
            observed=len(late),
            limit=0,
            unit="rates",
            severity="provisional",
            message=_words(late)
            + " sent late at times, which counts against the rate: the answer may be too low; let nothing else run "
            "on this host, or take more processes" * bool(late),
        ),
        _asked_rate(found, loads),
        _samples(found),
        *_window(found, loads),
        Gate(
            id="search_decided",
            passed=not undecided,
            observed=len(undecided),
            limit=0,
            unit="rates",
            severity="info",
            message=_words(undecided) + " counted as not met" * bool(undecided),
        ),
        Gate(
            id="search_unspoiled",
            passed=not spoiled,
            observed=len(spoiled),
            limit=0,
            unit="loads",
            severity="info",
            message="; ".join(f"{load.rate:.4g} req/s: {', '.join(load.spoiled)}" for load in spoiled),
        ),
        *_carried(loads),
    ]


def _words(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.4g} req/s" for rate in rates)


def _asked_rate(found: Found, loads: Mapping[float, Sequence[Load]]) -> Gate:
    """A rate was met by no less than that rate, and missed by no more than it, within the search's own tolerance.

    Arrivals are drawn: a window of a few requests may have far fewer or far more than its rate says.
    """
    slack = 1 + found.search.tolerance
    worst: tuple[float, float, float, float] | None = None
    for rate, made in loads.items():
        seconds = sum(load.seconds or 0.0 for load in made)
        if not seconds:
            continue
        achieved = sum((load.achieved or 0.0) * (load.seconds or 0.0) for load in made) / seconds
        limit = rate / slack if rate == found.result.rate else rate * slack
        beyond = limit / max(achieved, 1e-9) if rate == found.result.rate else achieved / limit
        if worst is None or beyond > worst[0]:
            worst = (beyond, rate, achieved, limit)
    if worst is None:
        return Gate(id="search_asked_rate", passed=None, unit="req/s", severity="provisional", message="no load")
    beyond, rate, achieved, limit = worst
    why = (
        f"{'met' if rate == found.result.rate else 'missed'} at {rate:.4g} req/s by loads of {achieved:.4g} req/s: "
        "search again, with a higher percentile (more requests a rate) or a wider tolerance"
    )
    return Gate(
        id="search_asked_rate",
        passed=beyond <= 1,
        observed=round(achieved, 4),
        limit=round(limit, 4),
        unit="req/s",
        severity="provisional",
        message=why if beyond > 1 else "",
    )


def _samples(found: Found) -> Gate:
    """The rule of early stopping begins with what one request beyond a limit may be among; fewer is luck.

    A rate that was shown to be missed may have been so by few.
    """
    from neuronbench import stats

    search, result = found.search, found.result
    least = stats.under_needed(1, search.percentile, search.confidence) + 1
    counted = {
        step.rate: min((step.counts.within[name] + step.counts.beyond[name] for name in step.counts.within), default=0)
        for step in result.steps
        if step.rate == result.rate or (step.rate == result.missed_at and step.verdict != "missed")
    }
    if not counted:
        return Gate(id="search_samples", passed=True, limit=least, unit="requests", severity="provisional")
    rate = min(counted, key=lambda each: counted[each])
    why = (
        f"{counted[rate]} requests at {rate:.4g} req/s; p{100 * search.percentile:g} takes {least} at least: search "
        "again, without most_requests where it was given"
    )
    return Gate(
        id="search_samples",
        passed=counted[rate] >= least,
        observed=counted[rate],
        limit=least,
        unit="requests",
        severity="provisional",
        message=why if counted[rate] < least else "",
    )


def _window(found: Found, loads: Mapping[float, Sequence[Load]]) -> list[Gate]:
    """Whether a queue that grows would have been seen at the rate that was met; none where there is no such rate."""
    from neuronbench.load.steady import LEAST_LIVES

    rate = found.result.rate
    if rate is None:
        return []
    lasts = [(load.lives, load.seconds) for load in loads[rate] if load.lives and load.seconds]
    if not lasts:
        why = "how long requests take is not known"
        return [Gate(id="search_window", passed=None, limit=LEAST_LIVES, severity="provisional", message=why)]
    lives, seconds = max(lasts)
    why = (
        f"the window at {rate:.4g} req/s lasts {lives:.1f} typical requests one after the other, too few to see a "
        f"queue grow: confirm it with one load at that rate of {seconds * LEAST_LIVES / lives:.3g} s or more"
    )
    return [
        Gate(
            id="search_window",
            passed=lives >= LEAST_LIVES,
            observed=round(lives, 2),
            limit=LEAST_LIVES,
            unit="requests",
            severity="provisional",
            message=why if lives < LEAST_LIVES else "",
        )
    ]


def _carried(loads: Mapping[float, Sequence[Load]]) -> list[Gate]:
    """The first failure of each gate that says what was sent and answered."""
    failed: dict[str, Gate] = {}
    for rate, made in loads.items():
        for load in made:
            for gate in load.failed:
                if gate.id in CARRIED:
                    failed.setdefault(gate.id, replace(gate, message=f"at {rate:.4g} req/s: {gate.message}"))
    return list(failed.values())


# --------------------------------------------------------------------------------------------------------------------
# the host and the server


def samplers(endpoint: Endpoint) -> list[SamplerSpec]:
    """Those of any load, so often that a search's shortest window has enough of each."""
    from neuronbench.measure_serving import default_samplers

    return [replace(each, period_s=min(each.period_s, SAMPLE_PERIOD_S)) for each in default_samplers(endpoint)]


def host_gates(found: Found, sampled: Telemetry) -> list[Gate]:
    """What telemetry of the whole search says of the windows that the answer stands on."""
    from neuronbench.load.gates import token_conservation
    from neuronbench.measure_serving import host_contention
    from neuronbench.telemetry.summary import telemetry_gate, token_totals

    loads = deciding(found)
    contended, seen = [], []
    for rate, made in loads.items():
        contended += [_at(rate, host_contention(load.window, sampled)) for load in made]
        looked = [
            telemetry_gate(sampled, load.window["start_ns"], load.window["end_ns"])
            for load in made
            if load.window.get("start_ns") is not None and load.window.get("end_ns") is not None
        ]
        if looked:  # a rate may have taken several windows, some of them short
            count, limit = sum(gate.observed for gate in looked), looked[0].limit
            message = "" if count >= limit else looked[-1].message
            seen.append(_at(rate, replace(looked[0], passed=count >= limit, observed=count, message=message)))
    gates = [_worst(contended)] if contended else []
    if seen:
        gates.append(min(seen, key=lambda gate: gate.observed))
    counted = token_totals(sampled)
    window: dict[str, Any] = {}
    totals = [load.window.get("totals") for load in found.loads]
    if totals and all(totals):
        window["totals"] = {name: sum(each[name] for each in totals if each) for name in totals[0] or ()}
    return [
        *gates,
        token_conservation(window, prompt_tokens=counted.prompt_tokens, generation_tokens=counted.generation_tokens),
    ]


def _at(rate: float, gate: Gate) -> Gate:
    return gate if gate.passed or not gate.message else replace(gate, message=f"at {rate:.4g} req/s: {gate.message}")


def _worst(gates: Sequence[Gate]) -> Gate:
    """One that failed, the farthest; else one that could not be evaluated."""
    rank = {False: 2, None: 1, True: 0}
    return max(gates, key=lambda gate: (rank[gate.passed], gate.observed or 0.0))
