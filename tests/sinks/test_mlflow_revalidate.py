"""What accuracy shows later is said of the runs that stand on it, and of no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import synthetic_receipts as synthetic
from sink_helpers import Reader

from neuronbench.config import Settings
from neuronbench.model import FrozenMap, Record, ResourceRef
from neuronbench.receipts import ReceiptStore
from neuronbench.receipts.evidence import evidence_gate
from neuronbench.sinks.mlflow import MlflowSink, push


def speed(session: str, concurrency: int, artifact: str) -> Record:
    record: Record = synthetic.record(session, point=synthetic.point(concurrency=concurrency))
    record.resource = ResourceRef(
        id="e", kind="endpoint", spec=FrozenMap(), facts=FrozenMap(artifact={"key": artifact})
    )
    return record


def test_a_run_says_what_was_shown_of_its_artifact_since(
    sink: MlflowSink, store: ReceiptStore, session: str, settings: Settings, reader: Callable[..., Reader]
) -> None:
    ids = {}
    for concurrency, artifact in ((1, "right"), (2, "wrong"), (4, "unknown")):
        made = speed(session, concurrency, artifact)
        made.gate(evidence_gate(artifact, None))
        ids[artifact] = made.receipt_id
        assert sink.write(synthetic.put(store, made)).state == "delivered"
    sink.close()

    def tags() -> dict[str, str | None]:
        mlflow = reader(settings.mlflow_uri)
        return {artifact: mlflow.run(id).data.tags.get("nb.validity_now") for artifact, id in ids.items()}

    assert tags() == {"right": None, "wrong": None, "unknown": None}
    later = store.begin_session()
    for number, (artifact, passed) in enumerate((("right", True), ("wrong", False))):
        shown = synthetic.record(later, point=synthetic.point(concurrency=16 + number))
        shown.workload["accuracy"] = [{"artifact": artifact, "passed": passed}]
        synthetic.put(store, shown)
    result = push(replace(settings), session=session)
    assert result.ok, result
    assert tags() == {"right": "valid", "wrong": "invalid", "unknown": None}
    run = reader(settings.mlflow_uri).run(ids["right"])
    assert run.data.tags["nb.validity"] == "provisional"  # as it was written, like the receipt
