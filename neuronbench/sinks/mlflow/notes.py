"""The Markdown that MLflow shows on a run (`mlflow.note.content`): what may be quoted first, then the numbers."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from neuronbench.model import Failure, Gate, Json, Metric, Provenance, Record, Validity, canonical_json
from neuronbench.receipts import SessionManifest

NOTE_LIMIT: Final = 7_500
"""Characters; MLflow takes 8,000 bytes of a tag's value."""
_HEADLINE: Final = (
    "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "e2e_p50_ms", "e2e_p99_ms", "output_throughput_tok_s",
    "request_throughput_req_s", "goodput_req_s", "error_rate_share", "boot_time_s", "compile_time_s", "load_time_s",
    "latency_p50_ms", "throughput_items_s", "train_throughput_tok_s", "step_time_p50_ms", "step_time_wall_ms",
    "mfu_pct", "loss_first", "loss_last", "holdout_loss_before", "holdout_loss_after",
)  # fmt: skip


def headline(metrics: dict[str, Metric], limit: int = 8) -> list[Metric]:
    """The metrics people ask for first: the usual ones that are there, else the first ones recorded."""
    found = [metrics[key] for key in _HEADLINE if key in metrics]
    return (found or list(metrics.values()))[:limit]


def note(record: Record, *, receipt: Path, manifest: SessionManifest | None, traces: int = 0) -> str:
    """The note of a record's run."""
    parts = [verdict(record), failed_gates(record.gates)]
    if record.error is not None:
        parts.append(failure(record.error))
    if record.reason:
        parts.append(f"Reason: {cell(record.reason)}")
    if record.metrics:
        parts.append(metric_table(headline(record.metrics)))
        parts.append(utilisation(record.metrics))
    if record.notes:
        parts.append("\n".join(f"* {cell(text)}" for text in record.notes))
    command = reproduce(record, manifest)
    if command:
        parts.append(f"Measure it again:\n\n```sh\n{command}\n```")
        argv = record.environment.facts.get("harness.argv")
        if isinstance(argv, list) and argv:
            whole = shlex.join(["python", "-m", "pytest", *map(str, argv[1:])])
            parts.append(f"It was measured by:\n\n```sh\n{whole}\n```")
    parts.append(f"Receipt: `{record.receipt_id}` at `{receipt}`")
    if traces:
        parts.append(f"{traces} request traces (slowest, failed, random) are in the Traces tab.")
    return clip("\n\n".join(part for part in parts if part))


def verdict(record: Record) -> str:
    outcome = record.outcome.value if record.outcome else "open"
    lines = []
    if record.validity is Validity.INVALID:
        lines.append("**INVALID: these numbers must not be quoted.**")
    elif record.validity is Validity.PROVISIONAL:
        lines.append("**PROVISIONAL: not to be quoted without what is missing below.**")
    if record.provenance is Provenance.SIMULATED:
        lines.append("**SIMULATED: no real hardware stood behind this.**")
    elif record.provenance is Provenance.IMPORTED:
        lines.append("**IMPORTED: measured by another tool.**")
    lines.append(f"Outcome **{outcome}**, {record.validity.value}, {record.provenance.value}.")
    return "\n\n".join(lines)


def failed_gates(gates: Sequence[Gate]) -> str:
    rows = [
        f"| {cell(gate.id)} | {_value(gate.observed)} | {_value(gate.limit)} | {gate.severity} | {cell(gate.message)} |"
        for gate in gates
        if gate.passed is False
    ]
    unknown = [gate.id for gate in gates if gate.passed is None]
    table = (
        "\n".join(["| failed gate | observed | limit | makes it | |", "|---|---|---|---|---|", *rows]) if rows else ""
    )
    could_not = f"Could not be checked: {', '.join(map(cell, unknown))}" if unknown else ""
    return "\n\n".join(part for part in (table, could_not) if part)


def failure(error: Failure) -> str:
    lines = [f"**{cell(error.kind)}** in {cell(error.phase)}: {cell(error.message, 600)}"]
    if error.causal_line:
        lines.append(f"```text\n{clip(error.causal_line, 800).replace('```', '‵‵‵')}\n```")
    lines += [f"{word}: {cell(text, 600)}" for word, text in (("Cause", error.cause), ("Remedy", error.remedy)) if text]
    return "\n\n".join(lines)


def metric_table(metrics: Iterable[Metric]) -> str:
    rows = []
    for metric in metrics:
        if metric.value is None:
            value, bounds = "–", cell(metric.note)
        else:
            value, bounds = f"{metric.value:.5g} {metric.unit}", ""
            if metric.low is not None or metric.high is not None:
                low = "?" if metric.low is None else f"{metric.low:.5g}"
                high = "?" if metric.high is None else f"{metric.high:.5g}"
                bounds = f"{low} to {high}" + (f" at {metric.confidence:.0%}" if metric.confidence else "")
        rows.append(f"| {cell(metric.key)} | {cell(value)} | {metric.n or ''} | {bounds} |")
    return "\n".join(["| metric | value | n | bounds |", "|---|---:|---:|---|", *rows])


def utilisation(metrics: dict[str, Metric]) -> str:
    """Formula and peak of a utilisation, without which its number says nothing."""
    found = metrics.get("mfu_pct")
    return "" if found is None or found.value is None else f"MFU by {cell(found.note, 600)}"


def error_text(error: Failure) -> str:
    """`error.txt`: the whole failure, for reading."""
    lines = [f"{error.kind} in {error.phase}", "", error.message]
    if error.causal_line:
        lines += ["", "causal line" + (f" ({error.log})" if error.log else "") + ":", f"  {error.causal_line}"]
    lines += [f"{word}: {text}" for word, text in (("cause", error.cause), ("remedy", error.remedy)) if text]
    if error.exit_status is not None:
        lines.append(f"exit status: {error.exit_status}")
    if error.traceback:
        lines += ["", error.traceback]
    return "\n".join(lines) + "\n"


def reproduce(record: Record, manifest: SessionManifest | None) -> str:
    """A command that measures this point again; empty for what is no point."""
    if record.kind != "point" or not record.point.benchmark or record.provenance is Provenance.IMPORTED:
        return ""
    words = ["pytest", record.point.benchmark, "-m", record.point.backend]
    grid = manifest.settings.get("grid") if manifest else None
    if grid:
        words += ["--nb-grid", str(grid)]
    endpoint = record.point.params.get("endpoint")
    if endpoint:
        words += ["--nb-endpoint", str(endpoint)]
        if record.resource is not None and (tokenizer := record.resource.spec.get("tokenizer")):
            words += ["--nb-tokenizer", str(tokenizer)]
    settings = [name for name in ("window_s",) if name in record.point.params and name not in record.point.axes]
    for axis in (*record.point.axes, *settings):
        if axis in record.point.params:
            value = record.point.params[axis]
            words += ["--nb-set", f"{axis}={value if isinstance(value, str) else canonical_json(value)}"]
    return shlex.join(words)


def cell(text: str, limit: int = 300) -> str:
    """`text` on one line, safe inside a Markdown table."""
    flat = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _value(value: Json) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return cell(value if isinstance(value, str) else canonical_json(value), 80)


def clip(text: str, limit: int = NOTE_LIMIT) -> str:
    """At most `limit` bytes of UTF-8, saying so where it was cut."""
    data = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", errors="replace")
    if len(data) <= limit:
        return data.decode()
    ending = "\n\n… the rest is in `record.json`" if limit == NOTE_LIMIT else " …"
    return data[: limit - len(ending.encode())].decode("utf-8", errors="ignore") + ending
