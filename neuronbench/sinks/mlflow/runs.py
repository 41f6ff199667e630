"""One receipt becomes one run. A run that was begun and not finished is finished, never made twice."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench.model import Record
from neuronbench.receipts import Receipt, ReceiptError, ReceiptStore, SessionManifest
from neuronbench.sinks.mlflow import ahead, artifacts, claims, inputs, mapping, notes, series, span_traces, traces
from neuronbench.sinks.mlflow.gateway import Gateway, Unavailable
from neuronbench.sinks.mlflow.reasons import refused

if TYPE_CHECKING:
    import pyarrow
    from mlflow import MlflowClient
    from mlflow.entities import Run

PARENT_TAG: Final = "nb.session.lane"
RECEIPT_TAG: Final = "nb.receipt"
DIGEST_TAG: Final = "nb.receipt.digest"
_TRIES: Final = 3


class Writer:
    """Writes receipts as runs through a gateway. Its memory of what is there is only ever of what it has seen."""

    def __init__(self, gateway: Gateway, store: ReceiptStore, *, trace_limit: int) -> None:
        self.gateway = gateway
        self.store = store
        self.trace_limit = trace_limit
        self._parents: dict[tuple[str, str], str] = {}
        self._begun: set[tuple[str, str]] = set()
        """Sessions and lanes of which MLflow had nothing before: what is looked for there is hardly there."""
        self._tried: set[str] = set()
        """Receipts that were begun and not ended: of those there may be something."""
        self._ahead = ahead.Begun()
        self._plans: dict[str, list[artifacts.Stowed]] = {}
        """Files of the receipts that were begun together."""
        self._manifests: dict[str, SessionManifest | None] = {}

    def manifest(self, session: str) -> SessionManifest | None:
        if session not in self._manifests:
            try:
                self._manifests[session] = self.store.manifest(session)
            except ReceiptError:
                self._manifests[session] = None  # of an import, or older than manifests
        return self._manifests[session]

    # -- a receipt ----------------------------------------------------------------------------------------------------

    def begin(self, client: MlflowClient, receipts: Sequence[Receipt]) -> None:
        """Begin the runs of several receipts of one session's lane; each is still to be written.

        What cannot be begun here is met again by its `write`.
        """
        first = receipts[0].record
        session, lane = first.session, first.point.lane
        self._ahead = ahead.Begun()  # of which this is the second try, if any of it is left
        experiment = self.gateway.experiment(client, lane)
        self.parent(client, session, lane, first)
        self._plans = {receipt.record.receipt_id: artifacts.plan(receipt) for receipt in receipts}
        makers = {
            receipt.record.receipt_id: partial(self._make, client, experiment, receipt, plan)
            for receipt, plan in zip(receipts, self._plans.values(), strict=True)
        }
        new = {name for name in makers if self.is_new(session, lane, name)}
        self._ahead = ahead.begin(
            client, experiment, RECEIPT_TAG, makers, fresh=len(new) == len(makers), aside=self._of_one
        )

    def is_new(self, session: str, lane: str, name: str) -> bool:
        """Whether MLflow most likely has nothing of that name; asked once, since who asks begins it."""
        tried = name in self._tried
        self._tried.add(name)
        return (session, lane) in self._begun and not tried

    def turn(self, receipt: str) -> int:
        """The place of a receipt among those that were begun together."""
        return self._ahead.turn(receipt)

    def _of_one(self, error: Exception) -> bool:
        """Whether a failure concerns one receipt, and neither who asks nor whom."""
        return not self.gateway.unreachable(error) and not refused(self.gateway.uri, error)

    def _claim(self, client: MlflowClient, experiment: str, receipt: Receipt, stowed: list[artifacts.Stowed],
               *, fresh: bool) -> tuple[Run, bool]:  # fmt: skip
        """The receipt's run, and whether it is ours to fill."""
        name, wait_s = receipt.record.receipt_id, self.gateway.rival_s
        if name in self._ahead.others and wait_s is not None:
            ahead.wait(client, experiment, RECEIPT_TAG, self._ahead, wait_s=wait_s)
        if name in self._ahead.waited:
            wait_s = 0.0
        return self._ahead.take(name) or claims.claim(
            client, experiment, RECEIPT_TAG, name, wait_s=wait_s, fresh=fresh,
            make=lambda: self._make(client, experiment, receipt, stowed), made=self._ahead.contested.pop(name, None),
        )  # fmt: skip

    def write(self, client: MlflowClient, receipt: Receipt) -> tuple[str, bool]:
        """Id of the receipt's run, and whether it had been there already, complete."""
        record = receipt.record
        experiment = self.gateway.experiment(client, record.point.lane)
        stowed = self._plans.pop(record.receipt_id, None) or artifacts.plan(receipt)
        self.parent(client, record.session, record.point.lane, record)
        fresh = self.is_new(record.session, record.point.lane, record.receipt_id)
        for more in range(_TRIES - 1, -1, -1):
            run, ours = self._claim(client, experiment, receipt, stowed, fresh=fresh)
            fresh = False
            run_id: str = run.info.run_id
            self._same(client, run, receipt, stowed)
            if not ours:
                break
            try:
                self._fill(client, experiment, run, receipt, stowed)
                break
            except Exception as error:
                if not more or self.gateway.unreachable(error) or not claims.is_gone(client, run_id):
                    raise  # else somebody waited for us in vain and has made another
        self._tried.discard(record.receipt_id)
        return run_id, not ours

    def _same(self, client: MlflowClient, run: Run, receipt: Receipt, stowed: list[artifacts.Stowed]) -> None:
        """Raise `Unavailable` when the run is that of another receipt, whose session and name are by chance the same.

        Two boxes that began in one second may have drawn the same session id; taking the one for delivered because
        the other is there would lose it.
        """
        there = run.data.tags.get(DIGEST_TAG, "")
        if there in ("", artifacts.digest(receipt, stowed)):
            return
        if not claims.is_open(run) and artifacts.same_record(client, run.info.run_id, stowed):
            return  # laid out by another release of neuronbench
        where = run.data.tags.get("mlflow.user", "")
        raise Unavailable(
            f"run {run.info.run_id} in MLflow{f' (of {where})' if where else ''} is of another receipt with the same "
            f"session and name; rename the folder of session {receipt.record.session} here, or delete that run"
        )

    def _make(self, client: MlflowClient, experiment: str, receipt: Receipt, stowed: list[artifacts.Stowed]) -> Run:
        record = receipt.record
        manifest = self.manifest(record.session)
        start_ms, _ = mapping.times(record)
        _, left_out = mapping.choose(record.metrics.values())
        return client.create_run(
            experiment,
            start_time=start_ms,
            run_name=mapping.run_name(record),
            tags={
                **mapping.tags(record, fingerprint=receipt.fingerprint, manifest=manifest, left_out=left_out),
                **claims.writer_tag(),
                DIGEST_TAG: artifacts.digest(receipt, stowed),
                "mlflow.parentRunId": self.parent(client, record.session, record.point.lane, record),
                "mlflow.note.content": notes.note(record, receipt=receipt.path, manifest=manifest),
            },
        )

    def _fill(
        self, client: MlflowClient, experiment: str, run: Run, receipt: Receipt, stowed: list[artifacts.Stowed]
    ) -> None:
        """Write what the run is to have. Metrics come last: a server reads all of a run to see whether we may write."""
        record, run_id = receipt.record, str(run.info.run_id)
        _, end_ms = mapping.times(record)
        inputs.write(client, run_id, record)
        table, problem = artifacts.requests_table(receipt)
        steps, strange = series.steps_tables(receipt)
        with tempfile.TemporaryDirectory(prefix="nb-mlflow-") as scratch:
            problems = artifacts.send(self.gateway.artifacts(run), receipt, stowed, table, steps, Path(scratch))
        problems += [each for each in (problem, *strange) if each]
        traced = 0
        if self.trace_limit > 0:
            traced, strange = self._traces(experiment, run_id, receipt, table)
            problems += strange
        series.write(client, run_id, record, steps, end_ms=end_ms)
        tags = {"nb.traces": str(traced)} if traced else {}
        if problems:
            tags["nb.incomplete"] = "; ".join(problems)[: mapping.TAG_VALUE_LIMIT]
        metrics, _ = mapping.choose(record.metrics.values())
        log(client, run_id, metrics=metrics, params=mapping.params(record), tags=tags, at_ms=end_ms)
        client.set_terminated(run_id, mapping.status(record), end_time=end_ms)

    def _traces(
        self, experiment: str, run_id: str, receipt: Receipt, table: pyarrow.Table | None
    ) -> tuple[int, list[str]]:
        """How many were written, and what went wrong: they are worth less than the run, unless nobody answers."""
        try:
            for more in range(self.gateway.patience.retries, -1, -1):
                try:
                    return self._write_traces(experiment, run_id, receipt, table), []
                except NotImplementedError:  # MLflow's word for a server whose version it could not ask
                    if not more:
                        raise
                    traces.forget_server_version()
        except Exception as error:
            if self.gateway.unreachable(error):
                raise
            return 0, [f"request traces: {type(error).__name__}: {' '.join(str(error).split())[:200]}"]
        return 0, []

    def _write_traces(self, experiment: str, run_id: str, receipt: Receipt, table: pyarrow.Table | None) -> int:
        count = 0
        for rows, kind in ((table, traces), (span_traces.table_of(receipt), span_traces)):
            if rows is not None:
                count += kind.write(
                    self.gateway.uri, experiment, run_id, receipt.record, rows,
                    fingerprint=receipt.fingerprint, limit=self.trace_limit,
                )  # fmt: skip
        return count

    # -- the parent ---------------------------------------------------------------------------------------------------

    def parent(self, client: MlflowClient, session: str, lane: str, record: Record) -> str:
        """Run id of a session in a lane's experiment; begun, when missing, with what `record` tells."""
        key = (session, lane)
        if key not in self._parents:
            experiment = self.gateway.experiment(client, lane)
            value = f"{session} {lane}"
            found = claims.runs(client, experiment, PARENT_TAG, value)
            if not found:
                self._begun.add(key)
                mine = self._begin(client, experiment, session, lane, record)
                found = claims.runs(client, experiment, PARENT_TAG, value)
                if found[0].info.run_id != mine:  # another host began it at the same time
                    client.delete_run(mine)
            self._parents[key] = found[0].info.run_id
        return self._parents[key]

    def settle_parent(self, client: MlflowClient, session: str, lane: str) -> Run:
        """The one parent that a session's lane keeps, where hosts that delivered it at once began several."""
        experiment = self.gateway.experiment(client, lane)
        parent, *others = claims.runs(client, experiment, PARENT_TAG, f"{session} {lane}")
        self._parents[session, lane] = first = parent.info.run_id
        strays = f"tags.`nb.session` = '{session}' and tags.`mlflow.parentRunId` != '{first}'"
        for run in claims.every(client, [experiment], strays):
            client.set_tag(run.info.run_id, "mlflow.parentRunId", first)
        for run in others:
            client.delete_run(run.info.run_id)
        return parent

    def _begin(self, client: MlflowClient, experiment: str, session: str, lane: str, record: Record) -> str:
        manifest = self.manifest(session)
        start_ms, _ = mapping.times(record)
        if manifest is not None:
            start_ms = min(start_ms or sys.maxsize, mapping.millis(manifest.started_at))
        run = client.create_run(
            experiment,
            start_time=start_ms,
            run_name=mapping.session_name(session, record),
            tags={
                "nb.kind": "session",
                "nb.session": session,
                PARENT_TAG: f"{session} {lane}",
                "nb.lane": lane,
                **mapping.source_tags(record, manifest),
                "mlflow.source.name": "neuronbench",
            },
        )
        run_id: str = run.info.run_id
        return run_id


def log(
    client: MlflowClient, run_id: str, *, metrics: Mapping[str, float], params: Mapping[str, str], at_ms: int,
    tags: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Metrics, parameters and tags in one batch; the same again is no change."""
    from mlflow.entities import Metric, Param, RunTag

    inputs.twice(
        lambda: client.log_batch(
            run_id,
            metrics=[Metric(key, value, at_ms, 0) for key, value in metrics.items()],
            params=[Param(key, value) for key, value in params.items()],
            tags=[RunTag(key, value) for key, value in (tags or {}).items()],
        )
    )
