"""What was measured on, as the datasets of a run: requests, batches, training data, samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Json, Record, canonical_json, jsonable

if TYPE_CHECKING:
    from mlflow import MlflowClient

LIMIT: Final = 8
"""Searches slow down with the number of datasets of a run."""
CONTEXT: Final = "mlflow.data.context"
_NAME, _DIGEST, _SOURCE = 500, 36, 60_000
_TRIES: Final = 4
_TAKEN: Final = ("duplicate key", "Duplicate entry", "UNIQUE constraint")
"""What PostgreSQL, MySQL and SQLite say of a row that another was faster to insert."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """A dataset: `context` is `load`, `training` or `evaluation`, as MLflow shows beside it."""

    name: str
    digest: str
    context: str
    source: Mapping[str, Json]


def inputs(record: Record) -> list[Input]:
    """The datasets of a record, each once, at most `LIMIT`."""
    if record.kind != "point":
        return []
    found: dict[tuple[str, str], Input] = {}
    for each in _all(record.workload):
        if each.digest:
            found.setdefault((each.digest, each.context), each)
    return list(found.values())[:LIMIT]


def write(client: MlflowClient, run_id: str, record: Record) -> None:
    """Log the datasets of a record; the same again is no change."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    found = [
        DatasetInput(
            dataset=Dataset(
                name=each.name[:_NAME],
                digest=each.digest[:_DIGEST],
                source_type="neuronbench",
                source=canonical_json(dict(each.source))[:_SOURCE],
            ),
            tags=[InputTag(key=CONTEXT, value=each.context)],
        )
        for each in inputs(record)
    ]
    if found:
        twice(lambda: client.log_inputs(run_id, datasets=found))


def twice(send: Callable[[], object]) -> None:
    """Send what another process may send in the same moment: a server looks for it, then inserts it, and one fails."""
    for more in range(_TRIES - 1, -1, -1):
        try:
            send()
            return
        except Exception as error:
            if not more or not any(sign in str(error) for sign in _TAKEN):
                raise


def _all(workload: Mapping[str, Json]) -> Iterator[Input]:
    yield from _requests(workload)
    for loop in _parts(workload, "loops"):
        name = f"batch of {loop['batch_size']}" if loop.get("batch_size") else "batch"
        yield _input(name, loop.get("inputs"), "load", {"batch_size": loop.get("batch_size")})
    for run in _parts(workload, "training"):
        data = run.get("dataset")
        if isinstance(data, Mapping):
            name = str(data.get("name") or "training data")
            yield _input(name, data.get("digest"), "training", data)
            yield _input(f"{name} (holdout)", data.get("holdout_digest"), "evaluation", data)
    for part in _parts(workload, "accuracy"):
        source = {key: part.get(key) for key in ("name", "protocol", "samples", "count") if part.get(key) is not None}
        yield _input(str(part.get("name") or "samples"), part.get("samples"), "evaluation", source)


def _requests(workload: Mapping[str, Json]) -> Iterator[Input]:
    """The requests of a load: the digest is that of their plan, bodies and lengths."""
    described = workload.get("workload")
    kinds = [described] if isinstance(described, Mapping) else []
    name = workload.get("name") or next((str(kind.get("kind")) for kind in kinds if kind.get("kind")), "requests")
    for kind in kinds:
        if kind.get("path"):
            name = f"{name}: {PurePath(str(kind['path'])).name}"
    shown = ("name", "workload", "api", "model", "seed", "rule", "count", "requests", "arrivals")
    source = {key: workload[key] for key in shown if key in workload}
    yield _input(str(name), workload.get("plan_hash") or workload.get("digest"), "load", source)


def _input(name: str, digest: Json, context: str, source: Mapping[str, Any]) -> Input:
    return Input(
        name=name, digest=digest if isinstance(digest, str) else "", context=context,
        source={key: jsonable(value) for key, value in source.items()},
    )  # fmt: skip


def _parts(workload: Mapping[str, Json], key: str) -> list[Mapping[str, Json]]:
    found = workload.get(key)
    return [part for part in found if isinstance(part, Mapping)] if isinstance(found, (list, tuple)) else []
