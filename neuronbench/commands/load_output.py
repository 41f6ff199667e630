"""What `neuronbench load` prints and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.model import Gate
    from neuronbench.standalone import Result
    from neuronbench.standalone.repeats import Spread

_SEVERITIES: Final = ("invalid", "provisional", "info")

_SPREAD: Final = (
    "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "e2e_p50_ms", "output_throughput_tok_s", "request_throughput_req_s",
    "goodput_req_s", "error_rate_share",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a result has to be for the command to end well."""

    limits: Mapping[str, float] | None = None
    """Limits that have to be shown to be kept; None: they are only reported."""
    refused: Sequence[str] = ()
    """Validities that are not accepted."""


def refusals(results: Sequence[Result], wanted: Wanted) -> list[str]:
    """Why the results are not what was wanted, in words; empty when they are."""
    found = []
    for number, result in enumerate(results, 1):
        where = f"repeat {number}: " if len(results) > 1 else ""
        validity = result.validity.value
        if wanted.limits is not None:
            for name, limit in wanted.limits.items():
                test = result.slo_tests.get(name)
                verdict = str(test["verdict"]) if test is not None else "no request had a value of it"
                if validity == "invalid":
                    found.append(f"{where}{name} ≤ {limit:g} ms: nothing is shown by an invalid measurement")
                elif verdict != "met":
                    found.append(f"{where}{name} ≤ {limit:g} ms: {verdict}")
        if validity in wanted.refused:
            option = "--strict" if validity == "invalid" else "--strict-provisional"
            found.append(f"{where}the result is {validity}, which {option} refuses")
    return found


def deliver(results: Sequence[Result], json_file: str, every_gate: bool, wanted: Wanted) -> None:
    """Show and write what was measured: one result as itself, several with their spread."""
    from neuronbench.standalone import repeats as over

    found = over.spreads(results)
    document: dict[str, Any] = results[0].to_json()
    if len(results) > 1:
        document = {
            "schema_version": 1,
            "repeats": [each.to_json() for each in results],
            "spread": {one.key: one.to_json() for one in found},
        }
    refused, kept = refusals(results, wanted), False
    if wanted.limits is not None:
        missed = refusals(results, replace(wanted, refused=()))
        kept = not missed and all(each.measured for each in results)
        document["slo_shown"] = {"kept": kept, "why_not": missed}
    if json_file:
        host.write_json("--json", json_file, document)
    if json_file == "-":
        return
    show(results[-1], every_gate=every_gate)
    if len(results) > 1:
        _show_spread(results, found)
    if kept:
        host.say("limits: each is shown to be kept")
    for text in refused:
        host.say(f"not as wanted: {text}")


def _show_spread(results: Sequence[Result], found: Sequence[Spread]) -> None:
    from neuronbench.standalone import repeats as over

    left = len(results) - (found[0].n if found else 0)
    note = f"; {left} invalid or without a result, left out" if left else ""
    host.say(f"\n{len(results)} repeats{note}. Above: the last of them; below: over all.")
    rows = over.rows(found, [one.key for one in found if one.key.endswith(_SPREAD)])
    columns = ("", "median", "mean", "95 % interval of the mean", "range", "n")
    host.show(host.table(columns, rows, right=columns[1:]))


def show(result: Result, *, every_gate: bool = False) -> None:
    """The result as tables."""
    from neuronbench.standalone import result as tables

    job = result.job
    load_text = f"{job.concurrency} in flight" if job.concurrency else f"{job.rate:g} req/s, {job.arrivals}"
    if result.workload.get("special"):
        load_text = ""
    engine = "" if result.engine["name"] == "native" else f", measured by {result.engine['name']}"
    target = result.target
    host.say(f"{target.get('model') or job.model} at {target.get('url') or job.url}{engine}")
    about = ", ".join(part for part in (job.api, _lengths(result), load_text) if part)
    host.say(f"  {about}{_window(result)}")
    if result.status != "ok":
        host.say(f"\n{result.status.upper()}: {result.message}")
    latency = tables.latency_rows(result.metrics)
    if latency:
        columns = ("", "p50", "p90", "p99", "mean", "max", "n")
        host.show(host.table(columns, latency, right=columns[1:]))
    single = tables.single_rows(result.metrics)
    if single:
        host.show(host.table(("", "value", ""), single, right=("value",)))
    nodes = tables.node_rows(result.window)
    if nodes:
        heads = ("node", "requests", "failed", "send lag ms p50", "p99", "CPU %", "clock offset ms", "±", "drift", "")
        host.show(host.table(heads, nodes, right=heads[1:-1]))
    if result.slo_tests:
        host.show(host.table(("limit", "kept by", "share", "verdict", ""), _limits(result)))
    if result.failures:
        rows = [(name, str(count), _words(result, name)) for name, count in sorted(result.failures.items())]
        host.show(host.table(("failures", "requests", "in the server's words"), rows, right=("requests",)))
    show_gates(result.gates, every_gate=every_gate)
    if result.client_error:
        host.say(str(result.client_error["text"]))
    for note in result.notes:
        host.say(f"note: {note}")
    if result.engine["name"] == "native":
        host.say(last_word(result.gates))


def last_word(gates: Sequence[Gate]) -> str:
    """What a result with these checks is worth, and which of them made it so."""
    failed = {
        severity: ", ".join(gate.id for gate in gates if gate.passed is False and gate.severity == severity)
        for severity in _SEVERITIES
    }
    if failed["invalid"]:
        return f"INVALID ({failed['invalid']}): these numbers show nothing and are not to be quoted"
    if failed["provisional"]:
        return f"PROVISIONAL ({failed['provisional']}): not to be quoted until these checks pass"
    return "valid: every check that could be made passed; whether the answers are right is none of them"


def show_gates(gates: Sequence[Gate], *, every_gate: bool = False) -> None:
    """The checks that failed, by what they make of the result, then those that could not be made; or all."""
    rows = gate_rows(gates, every_gate=every_gate)
    if rows:
        host.show(host.table(("check", "", "makes it", "observed", "limit", ""), rows, right=("observed", "limit")))


def gate_rows(gates: Sequence[Gate], *, every_gate: bool = False) -> list[tuple[str, ...]]:
    """Rows of id, verdict, what it makes of the result, observed, limit, message: the worst first."""
    from neuronbench.standalone import result as tables

    ordered: list[tuple[int, tuple[str, ...]]] = []
    for gate in gates:
        if gate.passed and not every_gate:
            continue
        _, name, observed, limit, message = tables.gate_rows([gate], everything=True)[0]
        makes, verdict, order = "", "ok", len(_SEVERITIES) + 1
        if gate.passed is None:
            verdict, order = "not evaluable", len(_SEVERITIES)
            message = message.removeprefix("not evaluable: ") or "the check does not say why"
        elif not gate.passed:
            makes, verdict, order = gate.severity, "failed", _SEVERITIES.index(gate.severity)
        ordered.append((order, (name, verdict, makes, observed, limit, message)))
    return [row for _, row in sorted(ordered, key=lambda each: each[0])]


def _limits(result: Result) -> list[tuple[str, ...]]:
    """Rows of the limits; of an invalid result what the counts say is no verdict."""
    from neuronbench.standalone import result as tables

    rows = tables.slo_rows(result.slo_tests)
    if result.validity.value != "invalid":
        return rows
    return [
        (asked, kept, share, "none: INVALID", f"by the counts alone: {verdict}; an invalid measurement shows nothing")
        for asked, kept, share, verdict, _ in rows
    ]


def _lengths(result: Result) -> str:
    kind = (result.workload.get("workload") or {}).get("kind")
    if kind == "dataset":
        return f"prompts of {result.workload['workload']['path']}"
    if result.job.described:
        return result.job.described
    return f"{result.job.input_tokens} + {result.job.output_tokens} tokens"


def _window(result: Result) -> str:
    seconds = result.window.get("seconds")
    if seconds is None:
        return ""
    return f"; {result.scheduled} requests in a window of {seconds:.1f} s"


def _words(result: Result, failure: str) -> str:
    """What the server said to one request of that class."""
    from neuronbench.load.outcomes import failure_name

    for example in result.examples:
        if example["failure"] is None:  # another engine's
            return str(example["text"])[:200]
        if failure_name(int(example["failure"]), int(example["status"])) == failure:
            return str(example["text"])[:200]
    return ""
