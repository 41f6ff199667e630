"""How a record reads as an MLflow run: names, parameters, metrics, tags, status. Pure; no mlflow in here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from neuronbench.model import Json, Metric, Outcome, Provenance, Record, Validity, canonical_json
from neuronbench.receipts import SessionManifest

METRIC_LIMIT: Final = 60
"""The chart page makes a card for each key; hundreds freeze it."""
PARAM_LIMIT: Final = 100
ENV_LIMIT: Final = 25
PARAM_VALUE_LIMIT: Final = 1_000
TAG_VALUE_LIMIT: Final = 1_000
KEY_LIMIT: Final = 250

_COMMON_STATS: Final = ("", "p50", "p90", "p95", "p99", "mean", "p99_all", "p99_ok")
_ENV_FIRST: Final = (
    r"backend\.name", r"backend\.(instance_type|driver|sdk|runtime|cores)", r"neuron\..*",
    r"stack\.(vllm.*|torch|torch-neuronx|transformers|optimum-neuron|neuronx-cc|neuronx-distributed|peft|trl|python)",
    r"backend\.(region|simulated|price_(usd_per_hour|kind|region|date))",
    r"git\.(commit|branch|dirty)", r"host\.(cpu_model|cores|memory_gib|kernel|arch|container|governor)",
    r"harness\.(neuronbench|python)", r"stack\..*", r"env\..*", r"host\..*", r"backend\..*",
)  # fmt: skip
_STATUS: Final = {
    Outcome.OK: "FINISHED",
    Outcome.SLO_MISS: "FINISHED",
    Outcome.FAILED: "FAILED",
    Outcome.ERROR: "FAILED",
    Outcome.TIMEOUT: "FAILED",
    Outcome.XFAILED: "FAILED",
    Outcome.INTERRUPTED: "KILLED",
}


def has_run(record: Record) -> bool:
    """Skipped and cached points have no run of their own: nothing was measured."""
    return record.outcome not in (Outcome.SKIPPED, Outcome.CACHED)


def status(record: Record) -> str:
    """`FINISHED` when the measurement is complete, `FAILED` when it is not, `KILLED` when it was cut short."""
    return _STATUS.get(record.outcome or Outcome.ERROR, "FINISHED")


def millis(instant: str) -> int:
    """Milliseconds since the epoch of a UTC ISO instant."""
    when = datetime.fromisoformat(instant)
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def times(record: Record) -> tuple[int, int]:
    """Start and end in milliseconds; an unreadable or missing one is taken from the other, else 0."""
    found: list[int | None] = []
    for instant in (record.started_at, record.ended_at):
        try:
            found.append(millis(instant))
        except ValueError:
            found.append(None)
    start, end = found
    start = start if start is not None else end or 0
    return start, max(start, end if end is not None else start)


def safe_key(text: str) -> str:
    """A key that MLflow takes on every platform: letters, digits, `_ - . /` and space, no path tricks."""
    clean = re.sub(r"[^A-Za-z0-9_\-./ ]", "_", text)
    parts = [part for part in clean.split("/") if part not in ("", ".", "..")]
    clean = "/".join(parts) or "x"
    if len(clean) > KEY_LIMIT:
        clean = clean[: KEY_LIMIT - 9] + "-" + hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return clean


def _text(value: Json, limit: int) -> str:
    text = value if isinstance(value, str) else canonical_json(value)
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")  # PostgreSQL takes none
    if len(text) > limit:
        text = text[: limit - 12] + "…" + hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return text


def _unique(pairs: Iterable[tuple[str, Any]], limit: int) -> dict[str, Any]:
    """The first `limit` pairs; keys that became equal by cleaning get a number."""
    out: dict[str, Any] = {}
    for key, value in pairs:
        if len(out) == limit:
            break
        name, number = key, 2
        while name in out:
            name, number = f"{key}-{number}", number + 1
        out[name] = value
    return out


# --------------------------------------------------------------------------------------------------------------------
# parameters and metrics


def params(record: Record) -> dict[str, str]:
    """Axes and shared settings of the point, then those of its resource: on every run, or filters would hide some."""
    pairs = [(safe_key(key), _text(value, PARAM_VALUE_LIMIT)) for key, value in record.point.params.items()]
    if record.resource is not None and record.kind == "point":
        pairs += [
            (safe_key(f"resource.{key}"), _text(value, PARAM_VALUE_LIMIT))
            for key, value in record.resource.spec.items()
            if key not in record.point.params
        ]
    found: dict[str, str] = _unique(pairs, PARAM_LIMIT - 1)
    found.setdefault("backend", record.point.backend)
    return found


def choose(metrics: Iterable[Metric], limit: int = METRIC_LIMIT) -> tuple[dict[str, float], int]:
    """Name → value of at most `limit` metrics that have a value, and how many were left out.

    The usual statistics go first; a missing value is left out, never written as 0 or NaN.
    """
    there = [metric for metric in metrics if metric.value is not None]
    ordered = sorted(there, key=lambda metric: metric.stat not in _COMMON_STATS)  # stable
    chosen = _unique(((safe_key(metric.path), float(metric.value or 0.0)) for metric in ordered), limit)
    return chosen, len(there) - len(chosen)


# --------------------------------------------------------------------------------------------------------------------
# tags


def marks(record: Record) -> list[str]:
    """What must be said wherever the numbers are shown: `invalid`, `provisional`, `simulated`, `imported`."""
    found = [] if record.validity is Validity.VALID else [record.validity.value]
    return found + ([] if record.provenance is Provenance.MEASURED else [record.provenance.value])


def run_name(record: Record) -> str:
    name = record.point.id or record.receipt_name
    if record.kind == "point":
        name += f" #r{record.repeat}"
    found = marks(record)
    words = f" ({', '.join(found)})" if found else ""
    return _text(name, KEY_LIMIT - len(words)) + words  # longer ones are refused by every store but SQLite


def session_name(session: str, record: Record) -> str:
    """Name of a session's parent run: `2026-11-29 inf2.48xlarge 3f2a91c ab12`, day, machine, commit, end of its id."""
    facts = record.environment.facts
    day = re.fullmatch(r"(\d{4})(\d\d)(\d\d)-\d{6}-(\w+)", session)
    if day is None:
        return session
    where = str(facts.get("backend.instance_type") or record.point.backend)
    commit = str(facts.get("git.commit") or "")[:7]
    return " ".join(part for part in (f"{day[1]}-{day[2]}-{day[3]}", where, commit, day[4]) if part)


def environment_tags(facts: Mapping[str, Json]) -> dict[str, str]:
    """Flat `env.*` tags of the facts that people filter by; all of them are in `record.json`."""
    scalars = {key: value for key, value in facts.items() if isinstance(value, (str, int, float, bool))}
    ordered: dict[str, None] = {}
    for pattern in _ENV_FIRST:
        ordered.update(dict.fromkeys(key for key in scalars if re.fullmatch(pattern, key)))
    ordered.update(dict.fromkeys(scalars))
    pairs = ((safe_key("env." + key.removeprefix("env.")), _text(scalars[key], TAG_VALUE_LIMIT)) for key in ordered)
    return _unique(pairs, ENV_LIMIT)


def source_tags(record: Record, manifest: SessionManifest | None) -> dict[str, str]:
    """MLflow's own tags about where the code came from; `MlflowClient` sets none by itself."""
    facts = record.environment.facts
    tags = {
        "mlflow.source.name": record.point.benchmark or "neuronbench",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": facts.get("git.commit"),
        "mlflow.source.git.branch": facts.get("git.branch"),
        "mlflow.source.git.dirty": facts.get("git.dirty"),
        "mlflow.user": manifest.user if manifest else None,
    }
    return {key: _text(value, TAG_VALUE_LIMIT) for key, value in tags.items() if value not in (None, "")}


def tags(record: Record, *, fingerprint: str, manifest: SessionManifest | None, left_out: int) -> dict[str, str]:
    """Every tag of a record's run but the parent's and the note."""
    kind = "resource" if record.kind in ("boot", "compile") else record.kind
    found: dict[str, Json] = {
        "nb.session": record.session,
        "nb.kind": kind,
        "nb.record": record.kind,
        "nb.receipt": record.receipt_id,
        "nb.point": fingerprint,
        "nb.point.id": record.point.id,
        "nb.benchmark": record.point.benchmark,
        "nb.lane": record.point.lane,
        "nb.backend": record.point.backend,
        "nb.repeat": str(record.repeat),
        "nb.outcome": record.outcome.value if record.outcome else "",
        "nb.validity": record.validity.value,
        "nb.provenance": record.provenance.value,
        "nb.gates.failed": ", ".join(gate.id for gate in record.gates if gate.passed is False),
        "nb.error.kind": record.error.kind if record.error else "",
        "nb.error.phase": record.error.phase if record.error else "",
        "nb.resource": record.resource.id if record.resource else "",
        "nb.resource.receipt": record.resource.boot_receipt if record.resource else "",
        "nb.environment": record.environment.key,
        "nb.metrics.left_out": str(left_out) if left_out else "",
    }
    found.update({f"tag.{safe_key(key)}": value for key, value in list(record.tags.items())[:50]})
    return {
        **{key: _text(value, TAG_VALUE_LIMIT) for key, value in found.items() if value != ""},
        **environment_tags(record.environment.facts),
        **source_tags(record, manifest),
    }
