"""What is known only when a session is over: summary runs over repeats, and the totals on the parent run."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Outcome, Record, Validity
from neuronbench.receipts import Receipt, SessionManifest, may_be_alive
from neuronbench.receipts.files import to_text
from neuronbench.sinks.mlflow import claims, mapping, notes, sessions
from neuronbench.sinks.mlflow.runs import RECEIPT_TAG, Writer, log

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MEASURED: Final = (Outcome.OK, Outcome.SLO_MISS)


def finish(client: MlflowClient, writer: Writer, session: str, lane: str, *, over: bool) -> None:
    """Write the summaries of a session's lane and bring its parent run up to date; the same again is no change.

    `over` says that the session has ended; else the parent ends only when the session's process is dead.
    """
    receipts = list(writer.store.iter(session, lane=lane, on_error=lambda error: None))
    if not any(mapping.has_run(receipt.record) for receipt in receipts):
        return
    for group in _groups(receipts):
        _summarise(client, writer, session, lane, group)
    _close_parent(client, writer, session, lane, receipts, over=over)


def _groups(receipts: Sequence[Receipt]) -> list[list[Receipt]]:
    """Receipts of points with more than one repeat, by what they measured and where."""
    groups: dict[tuple[str, str, str], list[Receipt]] = {}
    for receipt in receipts:
        record = receipt.record
        if record.kind == "point" and mapping.has_run(record):
            key = (receipt.fingerprint, record.environment.key, record.provenance.value)
            groups.setdefault(key, []).append(receipt)
    return [group for group in groups.values() if len(group) > 1]


# --------------------------------------------------------------------------------------------------------------------
# summaries


def spread_share(values: Sequence[float]) -> float | None:
    """(largest − smallest)/|median|; None when it is not defined."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / abs(middle) if len(values) > 1 and middle else None


def summary_metrics(records: Sequence[Record]) -> dict[str, float]:
    """Medians over the repeats under the names the repeats use, `repeats/n`, and spreads as `spread_share/<metric>`.

    A metric that a repeat lacks is not summarised over the others: that median would be of another population.
    """
    keys = [key for key in records[0].metrics if all(key in record.metrics for record in records)] if records else []
    columns: dict[str, list[float]] = {}
    for key in keys:
        values = [record.metrics[key].value for record in records]
        if all(value is not None for value in values):
            columns[key] = [float(value) for value in values if value is not None]
    first = [records[0].metrics[key] for key in columns]
    names, _ = mapping.choose(first, mapping.METRIC_LIMIT - 1)
    by_name = {mapping.safe_key(records[0].metrics[key].path): key for key in columns}
    found = {name: statistics.median(columns[by_name[name]]) for name in names if name in by_name}
    found["repeats/n"] = float(len(records))
    for metric in notes.headline({key: records[0].metrics[key] for key in columns}, limit=20):
        spread = spread_share(columns[metric.key])
        if spread is not None and len(found) < mapping.METRIC_LIMIT:
            found[mapping.safe_key(f"spread_share/{metric.key}")] = spread
    return found


def _summarise(client: MlflowClient, writer: Writer, session: str, lane: str, group: Sequence[Receipt]) -> None:
    used = [r for r in group if r.record.outcome in _MEASURED and r.record.validity is not Validity.INVALID]
    first = (used or group)[0].record
    experiment = writer.gateway.experiment(client, lane)
    name = f"{session}/{first.point.id or group[0].fingerprint}--summary-{group[0].fingerprint[:8]}"
    of = ", ".join(f"r{receipt.record.repeat}" for receipt in group)
    records = [receipt.record for receipt in used]
    validity = next((v for v in (Validity.PROVISIONAL,) if any(r.validity is v for r in records)), Validity.VALID)
    if not used:
        validity = Validity.INVALID
    manifest = writer.manifest(session)
    tags = {
        **mapping.tags(first, fingerprint=group[0].fingerprint, manifest=manifest, left_out=0),
        "mlflow.parentRunId": writer.parent(client, session, lane, first),
        "mlflow.note.content": _note(first, group, used, manifest),
        "nb.kind": "summary",
        "nb.record": "summary",
        "nb.receipt": name,
        "nb.validity": validity.value,
        "nb.summary.of": of,
        "nb.summary.used": ", ".join(f"r{receipt.record.repeat}" for receipt in used),
    }
    for tag in ("nb.repeat", "nb.error.kind", "nb.error.phase", "nb.gates.failed"):
        tags.pop(tag, None)
    tags["nb.outcome"] = Outcome.OK.value if len(used) == len(group) else "incomplete"
    start_ms = min(mapping.times(receipt.record)[0] for receipt in group)
    end_ms = max(mapping.times(receipt.record)[1] for receipt in group)
    title = f"{first.point.id} summary of {len(used)}"
    words = ([] if validity is Validity.VALID else [validity.value]) + [
        word for word in mapping.marks(first) if word not in ("invalid", "provisional")
    ]
    title += f" ({', '.join(words)})" if words else ""
    run, ours = claims.claim(
        client, experiment, RECEIPT_TAG, name, wait_s=writer.gateway.rival_s, fresh=writer.is_new(session, lane, name),
        make=lambda: client.create_run(
            experiment, start_time=start_ms, run_name=title, tags={**tags, **claims.writer_tag()}
        ),
    )  # fmt: skip
    run_id = run.info.run_id
    if not ours:
        if run.data.tags.get("nb.summary.of") == of:
            return
        client.update_run(run_id, name=title)  # repeats have come since
        for tag, value in tags.items():
            client.set_tag(run_id, tag, value)
    metrics = summary_metrics(records) if records else {"repeats/n": 0.0}
    log(client, run_id, metrics=metrics, params=mapping.params(first), at_ms=end_ms)
    client.set_terminated(run_id, "FINISHED" if used else "FAILED", end_time=end_ms)


def _note(first: Record, group: Sequence[Receipt], used: Sequence[Receipt], manifest: SessionManifest | None) -> str:
    lines = [f"Medians over **{len(used)}** of {len(group)} repeats; spread is (largest − smallest)/median."]
    left_out = [receipt.record for receipt in group if receipt not in used]
    if left_out:
        lines.append(
            "Left out: "
            + "; ".join(
                f"r{r.repeat} ({r.outcome.value if r.outcome else 'open'}, {r.validity.value})" for r in left_out
            )
        )
    if used:
        rows = ["| metric | median | spread | " + " | ".join(f"r{r.record.repeat}" for r in used) + " |"]
        rows.append("|---|---:|---:|" + "---:|" * len(used))
        for metric in notes.headline(used[0].record.metrics):
            all_values = [r.record.metrics[metric.key].value if metric.key in r.record.metrics else None for r in used]
            values = [value for value in all_values if value is not None]
            complete = bool(values) and len(values) == len(all_values)
            spread = spread_share(values) if complete else None
            middle = f"{statistics.median(values):.5g} {metric.unit}" if complete else "–"
            each = " | ".join("–" if value is None else f"{value:.5g}" for value in all_values)
            rows.append(f"| {metric.key} | {middle} | {'–' if spread is None else f'{spread:.1%}'} | {each} |")
        lines.append("\n".join(rows))
    command = notes.reproduce(first, manifest)
    if command:
        lines.append(f"Measure it again:\n\n```sh\n{command} --nb-repeats {len(group)}\n```")
    return notes.clip("\n\n".join(lines))


# --------------------------------------------------------------------------------------------------------------------
# the parent


def _close_parent(
    client: MlflowClient, writer: Writer, session: str, lane: str, receipts: Sequence[Receipt], *, over: bool
) -> None:
    records = [receipt.record for receipt in receipts]
    first = next((record for record in records if record.kind == "point" and mapping.has_run(record)), records[0])
    writer.parent(client, session, lane, first)
    parent = writer.settle_parent(client, session, lane)
    run_id = parent.info.run_id
    manifest = writer.store.manifest(session) if writer.manifest(session) else None
    points = [record for record in records if record.kind == "point" and mapping.has_run(record)]
    metrics = {
        "session/points": len({record.point.fingerprint for record in points}),
        "session/records": len(points),
        "session/ok": sum(record.outcome is Outcome.OK for record in points),
        "session/not_ok": sum(record.outcome is not Outcome.OK for record in points),
        "session/not_valid": sum(record.validity is not Validity.VALID for record in points),
        "session/skipped": sum(not mapping.has_run(record) for record in records),
        "session/measured_s": sum(record.duration_s or 0.0 for record in points),
    }
    end_ms = max(mapping.times(record)[1] for record in records)
    tags = {"mlflow.note.content": _parent_note(session, records, manifest)}
    facts: dict[str, Any] = {}
    for record in records:
        facts.setdefault(record.point.backend, record.environment.facts.to_json())
    tags |= mapping.environment_tags(first.environment.facts) | mapping.source_tags(first, manifest)
    tags["mlflow.source.name"] = "neuronbench"
    tags["nb.backend"] = ", ".join(sorted(facts))
    from mlflow.entities import Metric, RunTag

    client.log_batch(
        run_id,
        metrics=[Metric(key, float(value), end_ms, 0) for key, value in metrics.items()],
        tags=[RunTag(key, value) for key, value in tags.items()],
    )
    with tempfile.TemporaryDirectory(prefix="nb-mlflow-") as scratch:
        Path(scratch, "environment.json").write_text(to_text(facts), encoding="utf-8", errors="replace")
        Path(scratch, "report.md").write_text(report(session, records), encoding="utf-8", errors="replace")
        sessions.stage(writer.store.root / session, receipts, Path(scratch))
        place: Any = writer.gateway.artifacts(parent)
        place.log_artifacts(scratch)
    ended = over or manifest is None or bool(manifest.ended_at)
    if ended or (manifest is not None and not may_be_alive(manifest.owner)):
        status = sessions.status(records, ended=ended, exit_status=manifest.exit_status if manifest else None)
        client.set_terminated(run_id, status, end_time=end_ms)


def report(session: str, records: Sequence[Record]) -> str:
    """A Markdown table of everything in a session's lane, skipped points with their reasons."""
    lines = [f"# Session {session}", ""]
    lines += ["| record | outcome | validity | | |", "|---|---|---|---|---|"]
    for record in records:
        figures = ", ".join(
            f"{metric.key} {metric.value:.5g}"
            for metric in notes.headline(record.metrics, 4)
            if metric.value is not None
        )
        why = record.error.kind if record.error else record.reason
        validity = ", ".join([record.validity.value, *(m for m in mapping.marks(record) if m != record.validity.value)])
        outcome = record.outcome.value if record.outcome else ""
        lines.append(f"| {notes.cell(record.receipt_name)} | {outcome} | {validity} | {figures} | {notes.cell(why)} |")
    return "\n".join(lines) + "\n"


def _parent_note(session: str, records: Sequence[Record], manifest: SessionManifest | None) -> str:
    parts = []
    if manifest is not None and manifest.command:
        parts.append("```sh\n" + " ".join(manifest.command).replace("```", "") + "\n```")
    parts.append(report(session, records).partition("\n\n")[2])
    return notes.clip("\n\n".join(parts))
