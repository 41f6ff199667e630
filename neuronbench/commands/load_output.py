"""What `neuronbench load` prints and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.standalone import Result

_SPREAD: Final = (
    "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "e2e_p50_ms", "output_throughput_tok_s", "request_throughput_req_s",
    "goodput_req_s", "error_rate_share",
)  # fmt: skip


def deliver(results: Sequence[Result], json_file: str, every_gate: bool) -> None:
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
    if json_file:
        host.write_json("--json", json_file, document)
    if json_file == "-":
        return
    show(results[-1], every_gate=every_gate)
    if len(results) == 1:
        return
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
        host.show(host.table(("limit", "kept by", "share", "verdict", ""), tables.slo_rows(result.slo_tests)))
    if result.failures:
        rows = [(name, str(count), _words(result, name)) for name, count in sorted(result.failures.items())]
        host.show(host.table(("failures", "requests", "in the server's words"), rows, right=("requests",)))
    gates = tables.gate_rows(result.gates, everything=every_gate)
    if gates:
        host.show(host.table(("check", "", "observed", "limit", ""), gates, right=("observed", "limit")))
    if result.client_error:
        host.say(str(result.client_error["text"]))
    for note in result.notes:
        host.say(f"note: {note}")
    words = {
        "valid": "valid: every check that could be made passed; whether the answers are right is none of them",
        "provisional": "PROVISIONAL",
        "invalid": "INVALID",
    }
    if result.engine["name"] == "native":
        host.say(f"{words[result.validity.value]}")


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
