"""Checks by which the client proves that it did not make the result itself.

Limits are relative to what was measured wherever a fixed number would be either blind or unfair: being late by 1 ms
matters for a first token after 5 ms and not for one after 5 s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from neuronbench.load import steady
from neuronbench.load.apis import APIS
from neuronbench.load.outcomes import Kind, failure_name
from neuronbench.load.steady import CHANGE_LIMIT
from neuronbench.model import Gate, Json

if TYPE_CHECKING:
    import numpy.typing as npt

    from neuronbench.load.plan import Plan
    from neuronbench.load.pool import Pool
    from neuronbench.load.run import Drive
    from neuronbench.load.tally import Tally
    from neuronbench.load.window import Edges

LEAST_LAG_MS: Final = 2.0
LEAST_SEND_LAG_MS: Final = 1.0
CPU_LIMIT_PCT: Final = 80.0
ERROR_LIMIT: Final = 0.01
LENGTH_LIMIT: Final = 0.01
IN_FLIGHT_LIMIT: Final = 0.05
RATE_LIMIT: Final = 0.01
SAMPLES_FOR_P99: Final = 100
CONSERVATION_LIMIT: Final = 0.005


def _at_most(
    id: str, observed: float | None, limit: float, unit: str = "", message: str = "", missing: str = ""
) -> Gate:
    return Gate(
        id=id,
        passed=None if observed is None else observed <= limit,
        observed=observed,
        limit=limit,
        unit=unit,
        message=missing if observed is None else message,
    )


def _p(pool: Pool, p: float) -> float | None:
    """Nearest rank, the largest where there are too few: a gate has to decide on what there is."""
    found = pool.quantile(p, failures=False).value
    return found if found is not None else (pool.largest if pool.n else None)


def client_gates(
    plan: Plan, drive: Drive | None, edges: Edges, tally: Tally | None, lags: Pool, wrapped: int
) -> list[Gate]:
    """All gates that need nothing but the client's own records."""
    complete = edges.opened is not None and edges.closed is not None and (drive is None or drive.status == "ok")
    reason = "" if complete else (drive.message if drive and drive.message else "the run ended before its window did")
    gates = [Gate(id="window_complete", passed=complete, observed=complete, limit=True, message=reason)]
    if tally is None:
        return gates
    closed_loop = plan.arrivals["kind"] == "closed"
    e2e, ttft = _p(tally.pools["e2e"], 0.5), _p(tally.pools["ttft"], 0.5)
    stamped = tally.kernel_stamped
    first = ttft if ttft is not None else e2e
    reference = e2e if stamped else first
    paused = drive.coalesce_ms if drive is not None and stamped else 0.0
    gates += [
        _at_most(
            "client_lag",
            _p(lags, 0.99),
            paused + max(LEAST_LAG_MS, 0.02 * (reference or 0.0)),
            "ms",
            "p99 of reading behind the kernel's receive stamp; "
            + ("instants are the kernel's, so it delays only the next request" if stamped else "instants include it")
            + (f"; up to {paused:g} ms of it on purpose, so that one wake-up serves many streams" if paused else ""),
            "the kernel gave no receive stamps",
        ),
        _at_most(
            "send_lag",
            # In a closed loop lag only lengthens the pause between two requests, so its mean is what counts; in an open
            # loop every late request is one that the server was spared at its instant.
            tally.pools["send_lag"].mean if closed_loop else _p(tally.pools["send_lag"], 0.99),
            max(LEAST_SEND_LAG_MS, 0.02 * (e2e or 0.0) if closed_loop else 0.01 * (first or 0.0)),
            "ms",
            ("mean" if closed_loop else "p99") + " of writing behind the schedule",
            "no request was written",
        ),
    ]
    gates += _load_gates(plan, tally, closed_loop)
    gates.append(_steady_gate(plan, tally))
    arrivals = _arrivals_gate(plan)
    if arrivals is not None:
        gates.append(arrivals)
    kept = tally.last_scheduled >= tally.last_followed
    gates.append(
        Gate(
            id="load_kept_up",
            passed=kept,
            observed=max(tally.last_followed - tally.last_scheduled, 0) / 1e9,
            limit=0,
            unit="s",
            severity="info",
            message="" if kept else "the last requests of the window ended after the load had stopped coming",
        )
    )
    gates += _length_gates(plan, tally)
    scheduled = tally.scheduled
    failed = sum(tally.failures.values())
    share = failed / scheduled if scheduled else None
    words = ", ".join(f"{count} {name}" for name, count in tally.failures.most_common(4))
    cpu = None if edges.cpu_share is None else 100 * edges.cpu_share
    steps: list[Json] = list(edges.clock_steps)
    gates += [
        _at_most("errors", share, ERROR_LIMIT, "share", words, "no request was scheduled in the window"),
        Gate(
            id="errors_classified",
            passed=tally.unclassified == 0,
            observed=tally.unclassified,
            limit=0,
            unit="requests",
            message="requests of the window whose end was not seen" if tally.unclassified else "",
        ),
        Gate(
            id="samples",
            passed=scheduled >= SAMPLES_FOR_P99,
            observed=scheduled,
            limit=SAMPLES_FOR_P99,
            unit="requests",
            severity="info",
            message="requests scheduled in the window; below the limit there is no p99",
        ),
        _at_most("client_cpu", cpu, CPU_LIMIT_PCT, "%", "busiest driver process, of one core", "not noted"),
        Gate(
            id="clock_order",
            passed=tally.disorder == 0 and not steps,
            observed=tally.disorder,
            limit=0,
            unit="requests",
            message=f"wall clock stepped by {steps} ns" if steps else "instants in the order s ≤ w ≤ f ≤ l ≤ e",
        ),
        Gate(
            id="prompts_distinct",
            passed=wrapped == 0 and bool(plan.info["distinct"]),
            observed=wrapped,
            limit=0,
            unit="repeats of the plan",
            severity="provisional",
            message="a repeated prompt may be answered from the server's prefix cache",
        ),
        Gate(
            id="warmup",
            passed=None if not tally.warmups else tally.warmups_failed == 0,
            observed=tally.warmups_failed,
            limit=0,
            unit="requests",
            severity="provisional",
            message="failed warm-up requests" if tally.warmups else "there was no warm-up",
        ),
    ]
    return gates


def uneven(plan: Plan) -> str:
    """Why the load is not the same all over the window; empty when it was told to be."""
    profile = plan.arrivals.get("profile") or []
    rates = {rate for segment in profile for rate in (segment["start"], segment["end"])}
    changes = len(rates) > 1 or "format" in plan.arrivals
    return "the load itself changes over the window, as it was told to" if changes else ""


def _steady_gate(plan: Plan, tally: Tally) -> Gate:
    """Neither the throughput of a closed loop nor the queue of an open one grows or falls.

    A closed loop holds the number in flight itself; in an open one throughput only follows the arrivals, and what the
    server does not keep up with shows in the number in flight.
    """

    def gate(passed: bool | None, message: str, observed: float | None = None) -> Gate:
        limit = None if observed is None else CHANGE_LIMIT
        return Gate(id="steady_state", passed=passed, observed=observed, limit=limit, unit="share", message=message)

    if reason := uneven(plan):
        return gate(None, reason)
    closed_loop = plan.arrivals["kind"] == "closed"
    series: npt.NDArray[Any] = tally.series.in_flight
    name, limit = "requests in flight", steady.QUEUE_LIMIT
    if closed_loop:
        tokens = APIS[plan.api].generates and not tally.tokens_unknown
        series, limit = tally.series.tokens if tokens else tally.series.ended, steady.DRIFT_LIMIT
        name = "throughput" if tokens else "requests per second"
    elif steady.surges(series):
        third = len(series) // 3
        change = float(series[-third:].mean() / max(series[:third].mean(), 1.0)) - 1
        return gate(False, f"{name} grows by {change:.0%} over the window: no steady state found", change)
    lives = tally.series.lives(shortest=not closed_loop)
    if lives is None:
        return gate(None, "not evaluable: no successful request")
    look = steady.over_lives(series, _independent(plan, tally.seconds, lives), name, tally.seconds, limit=limit)
    ending = ": no steady state found" if look.steady is False else ""
    return gate(look.steady, look.why + ending, abs(look.change) if math.isfinite(look.change) else None)


def _independent(plan: Plan, seconds: float, lives: float) -> float:
    """Stretches of the window, one after the other, that have little to do with each other, of `lives` requests."""
    arrivals = plan.arrivals
    if arrivals.get("law") == "burst":
        return min(lives, seconds * float(arrivals["rate"]) / float(arrivals["size"]))
    turns = int(arrivals.get("turns") or 1)
    return seconds / (turns * seconds / lives + (turns - 1) * float(arrivals.get("think_s") or 0.0))


def _arrivals_gate(plan: Plan) -> Gate | None:
    scheduled = plan.arrivals.get("scheduled")
    if not scheduled or "passed" not in scheduled:
        return None
    return Gate(
        id="arrivals",
        passed=scheduled["passed"],
        observed=scheduled.get("dispersion", scheduled.get("gap_cv")),
        limit=scheduled.get("dispersion_interval"),
        severity="provisional",
        message=scheduled.get("why", "dispersion and lag-1 correlation of the scheduled instants against their law"),
    )


def token_conservation(
    window: Mapping[str, Json], *, prompt_tokens: float | None, generation_tokens: float | None
) -> Gate:
    """The client's tokens of the whole run (`Reduction.window`) against what the server's counters grew by meanwhile.

    The counters have to be read before the driver starts and after it has ended. More on the server's side are other
    clients, or tokens that it generated and never reported; fewer are usage that it made up.
    """
    totals = window.get("totals")
    if totals is None:
        return Gate(id="token_conservation", passed=None, limit=CONSERVATION_LIMIT, unit="share", message="no requests")
    pairs = [
        (totals[name], counted)
        for name, counted in (("prompt_tokens", prompt_tokens), ("generation_tokens", generation_tokens))
        if counted is not None
    ]
    uncounted = totals["uncounted_requests"]
    if not pairs or uncounted:
        reason = f"{uncounted} requests without usage" if pairs else "the server's counters are not known"
        return Gate(id="token_conservation", passed=None, limit=CONSERVATION_LIMIT, unit="share", message=reason)
    worst = max(abs(mine - theirs) / max(theirs, 1.0) for mine, theirs in pairs)
    words = ", ".join(f"{mine:g} here, {theirs:g} by the server" for mine, theirs in pairs)
    return _at_most("token_conservation", worst, CONSERVATION_LIMIT, "share", words)


def _load_gates(plan: Plan, tally: Tally, closed_loop: bool) -> list[Gate]:
    if closed_loop:
        wanted = int(plan.arrivals["concurrency"])
        found = tally.busy_ns / 1e9 / tally.seconds
        return [
            Gate(
                id="in_flight",
                passed=abs(found - wanted) <= IN_FLIGHT_LIMIT * wanted,
                observed=round(found, 3),
                limit=wanted,
                unit="requests",
                message=f"mean over the window, within {IN_FLIGHT_LIMIT:.0%}",
            )
        ]
    achieved, due = tally.written_inside, tally.scheduled
    return [
        Gate(
            id="achieved_rate",
            passed=None if not due else abs(achieved - due) <= max(RATE_LIMIT * due, 1.0),
            observed=achieved / tally.seconds,
            limit=due / tally.seconds,
            unit="req/s",
            message=f"written against scheduled in the window, within {RATE_LIMIT:.0%}",
        )
    ]


def _length_gates(plan: Plan, tally: Tally) -> list[Gate]:
    gates = []
    if plan.info["exact_input"]:
        seen = tally.ok > tally.unknown_input
        gates.append(
            Gate(
                id="input_length",
                passed=tally.wrong_input == 0 if seen else None,
                observed=tally.wrong_input,
                limit=0,
                unit="requests",
                message="prompts whose length by the server's count is not the one asked for"
                if seen
                else "the server gave no prompt token counts",
            )
        )
    if plan.info["exact_output"]:
        wrong = tally.failures.get(failure_name(Kind.WRONG_LENGTH, 200), 0)
        counted = tally.ok + wrong - tally.unknown_output
        gates.append(
            _at_most(
                "output_length",
                wrong / (tally.ok + wrong) if counted > 0 else None,
                LENGTH_LIMIT,
                "share",
                "answers whose length by the server's count is not the one asked for",
                "the server gave no usage: token metrics are unknown",
            )
        )
    return gates
