"""`neuronbench load --find-rate`: what is searched for, and what is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from neuronbench.commands import host, load_options
from neuronbench.commands.load_output import Wanted, last_word, show_gates

if TYPE_CHECKING:
    from neuronbench.engines.job import Job
    from neuronbench.measure_search import Search
    from neuronbench.standalone.search import RateResult

_HEADINGS: Final = {"requests": "asked for", "failed": "failed requests"}
"""Of the table of rates, where the number alone leaves open what is counted."""


def wanted(job: Job, limits: Mapping[str, float], percentile: float, max_rate: float, tolerance: float) -> Search:
    """The search that was asked for. Raises `CommandError` for one that is none."""
    from neuronbench.measure_search import Search

    if not limits:
        raise host.CommandError("--find-rate needs a limit: --slo ttft=500 (in ms)", status=host.USAGE)
    for option, rate in (("--rate", job.rate or 1.0), ("--max-rate", max_rate)):
        if rate < Search.lowest:
            raise load_options.refused(option, f"with --find-rate a rate from {Search.lowest:g} req/s", f"{rate:g}")
    try:
        return Search(
            slo=limits, percentile=percentile / 100, start=min(job.rate or 1.0, max_rate), highest=max_rate,
            tolerance=tolerance,
        )  # fmt: skip
    except ValueError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error


def refused(result: RateResult, wanted: Wanted) -> bool:
    """Whether one of the search's own checks makes its answer what is not accepted."""
    return any(gate.passed is False and gate.severity in wanted.refused for gate in result.found.gates())


def deliver(result: RateResult, json_file: str, every_gate: bool) -> None:
    """Write and show what was found."""
    from neuronbench.standalone import search as tables

    if json_file:
        host.write_json("--json", json_file, result.to_json())
    if json_file == "-":
        return
    found, job, search = result.found, result.job, result.found.search
    host.say(f"{result.target['model']} at {result.target['url']}")
    host.say(
        f"  {job.api}, {job.described or f'{job.input_tokens} + {job.output_tokens} tokens'}, poisson arrivals; "
        f"at least {search.fewest} requests a rate, until each limit is settled at {search.confidence:.0%}"
    )
    columns = [_HEADINGS.get(name, name) for name in tables.columns(found)]
    right = ("req/s", "asked for", "achieved", "goodput", "failed requests")
    host.show(host.table(columns, tables.rows(found), right=right))
    host.say("asked for: requests that the search wanted at that rate, as few as can settle the limits")
    host.say(
        "N of M: M requests of the windows there have a value of that metric or failed, N kept the limit; M may be "
        "more than was asked for, as arrivals are random and a window is long enough to bring that many"
    )
    for metric in found.metrics()[:1]:
        value = "none" if metric.value is None else f"{metric.value:.4g} req/s"
        beyond = "" if metric.high is None else f", not at {metric.high:.4g}"
        host.say(f"highest rate under the limits: {value}{beyond}")
        host.say(f"  {metric.note}")
    gates = found.gates()
    show_gates(gates, every_gate=every_gate)
    for note in result.notes:
        host.say(f"note: {note}")
    host.say(last_word(gates))
