"""One receipt becomes one run. A run that was begun and not finished is finished, never made twice."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Record, canonical_json, fingerprint
from neuronbench.receipts import Receipt, ReceiptError, ReceiptStore, SessionManifest
from neuronbench.report import figures, training
from neuronbench.report.requests import COLUMNS
from neuronbench.sinks.mlflow import mapping, notes, series, traces
from neuronbench.sinks.mlflow.gateway import Gateway

if TYPE_CHECKING:
    import pyarrow
    from mlflow import MlflowClient
    from mlflow.entities import Run

FILE_LIMIT_BYTES: Final = 100 * 1024 * 1024
"""Larger files stay in the receipt: uploads of them through a server time out."""
TAIL_BYTES: Final = 64 * 1024
_LOGS: Final = (".log", ".txt", ".out", ".err", ".stdout", ".stderr")


class Writer:
    """Writes receipts as runs through a gateway. Its memory of what is there is only ever of what it has seen."""

    def __init__(self, gateway: Gateway, store: ReceiptStore, *, trace_limit: int) -> None:
        self.gateway = gateway
        self.store = store
        self.trace_limit = trace_limit
        self._parents: dict[tuple[str, str], str] = {}
        self._manifests: dict[str, SessionManifest | None] = {}

    def manifest(self, session: str) -> SessionManifest | None:
        if session not in self._manifests:
            try:
                self._manifests[session] = self.store.manifest(session)
            except ReceiptError:
                self._manifests[session] = None  # of an import, or older than manifests
        return self._manifests[session]

    # -- a receipt ----------------------------------------------------------------------------------------------------

    def write(self, client: MlflowClient, receipt: Receipt) -> tuple[str, bool]:
        """Id of the receipt's run, and whether it had been there already, complete."""
        record = receipt.record
        experiment = self.gateway.experiment(client, record.point.lane)
        found = find(client, experiment, "nb.receipt", record.receipt_id)
        if found is not None and found.info.status not in ("RUNNING", "SCHEDULED"):
            return found.info.run_id, True
        parent = self.parent(client, record.session, record.point.lane, record)
        start_ms, end_ms = mapping.times(record)
        metrics, left_out = mapping.choose(record.metrics.values())
        if found is None:
            manifest = self.manifest(record.session)
            found = client.create_run(
                experiment,
                start_time=start_ms,
                run_name=mapping.run_name(record),
                tags={
                    **mapping.tags(record, fingerprint=receipt.fingerprint, manifest=manifest, left_out=left_out),
                    "mlflow.parentRunId": parent,
                    "mlflow.note.content": notes.note(record, receipt=receipt.path, manifest=manifest),
                },
            )
        run_id = found.info.run_id
        log(client, run_id, metrics=metrics, params=mapping.params(record), at_ms=end_ms)
        if record.kind == "point" and record.workload:
            log_workload(client, run_id, record)
        table, problem = requests_table(receipt)
        steps, strange = series.steps_tables(receipt)
        with tempfile.TemporaryDirectory(prefix="nb-mlflow-") as scratch:
            problems = stage(receipt, table, steps, Path(scratch))
            client.log_artifacts(run_id, scratch)
        problems += [each for each in (problem, *strange) if each]
        series.write(client, run_id, record, steps, end_ms=end_ms)
        if table is not None and self.trace_limit > 0:
            problems += self._traces(client, experiment, run_id, receipt, table)
        if problems:
            client.set_tag(run_id, "nb.incomplete", "; ".join(problems)[: mapping.TAG_VALUE_LIMIT])
        client.set_terminated(run_id, mapping.status(record), end_time=end_ms)
        return run_id, False

    def _traces(
        self, client: MlflowClient, experiment: str, run_id: str, receipt: Receipt, table: pyarrow.Table
    ) -> list[str]:
        """Traces are worth less than the run: what goes wrong with them is said on the run, unless nobody answers."""
        try:
            count = traces.write(
                self.gateway.uri, experiment, run_id, receipt.record, table,
                fingerprint=receipt.fingerprint, limit=self.trace_limit,
            )  # fmt: skip
        except Exception as error:
            if self.gateway.unreachable(error):
                raise
            return [f"request traces: {type(error).__name__}: {' '.join(str(error).split())[:200]}"]
        if count:
            client.set_tag(run_id, "nb.traces", str(count))
        return []

    # -- the parent ---------------------------------------------------------------------------------------------------

    def parent(self, client: MlflowClient, session: str, lane: str, record: Record) -> str:
        """Run id of a session in a lane's experiment; begun, when missing, with what `record` tells."""
        key = (session, lane)
        if key not in self._parents:
            experiment = self.gateway.experiment(client, lane)
            found = find(client, experiment, "nb.session.lane", f"{session} {lane}")
            self._parents[key] = found.info.run_id if found else self._begin(client, experiment, session, lane, record)
        return self._parents[key]

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
                "nb.session.lane": f"{session} {lane}",
                "nb.lane": lane,
                **mapping.source_tags(record, manifest),
                "mlflow.source.name": "neuronbench",
            },
        )
        run_id: str = run.info.run_id
        return run_id


def find(client: MlflowClient, experiment: str, tag: str, value: str) -> Run | None:
    """The oldest run with that tag; several can only come from two hosts that delivered the same folder at once."""
    quote = "'" if "'" not in value else '"'
    found = client.search_runs(
        [experiment],
        filter_string=f"tags.`{tag}` = {quote}{value}{quote}",
        max_results=1,
        order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
    )
    return found[0] if found else None


def log(
    client: MlflowClient, run_id: str, *, metrics: Mapping[str, float], params: Mapping[str, str], at_ms: int
) -> None:
    """Metrics and parameters in one batch; the same again is no change."""
    from mlflow.entities import Metric, Param

    client.log_batch(
        run_id,
        metrics=[Metric(key, value, at_ms, 0) for key, value in metrics.items()],
        params=[Param(key, value) for key, value in params.items()],
    )


def log_workload(client: MlflowClient, run_id: str, record: Record) -> None:
    """The identity of the load as the run's dataset, so that runs of one load are found together."""
    from mlflow.entities import Dataset, DatasetInput

    identity = {key: value for key, value in record.workload.items() if key not in ("window", "epoch")}
    digest = next(
        (str(identity[key]) for key in ("plan_hash", "digest", "hash") if identity.get(key)), fingerprint(identity)
    )
    name = next((str(identity[key]) for key in ("name", "workload", "kind") if identity.get(key)), "workload")
    source = canonical_json(identity)
    dataset = Dataset(name=name[:500], digest=digest[:36], source_type="neuronbench", source=source[:60_000])
    client.log_inputs(run_id, datasets=[DatasetInput(dataset=dataset)])


# --------------------------------------------------------------------------------------------------------------------
# artifacts


def requests_table(receipt: Receipt) -> tuple[Any, str]:
    """The table of requests, or None and what is wrong with it."""
    if "requests" not in receipt.record.tables:
        return None, ""
    try:
        return receipt.table("requests", columns=[*COLUMNS, *traces.DETAILS]), ""
    except ReceiptError as error:
        return None, str(error)


def stage(
    receipt: Receipt, table: pyarrow.Table | None, steps: Mapping[int, pyarrow.Table], scratch: Path
) -> list[str]:
    """Lay out the artifacts of a receipt in `scratch`; returns what could not be shown."""
    record, problems = receipt.record, []
    (scratch / "record.json").symlink_to(receipt.path / "record.json")
    for file in record.tables.values():
        problems += _link(receipt.path, file, scratch / file)
    for file in record.attachments:
        path = receipt.path / file
        if path.suffix.lower() in _LOGS and path.is_file() and path.stat().st_size > TAIL_BYTES:
            _tail(path, scratch / "logs" / (Path(file).name + ".tail.txt"))
        else:
            problems += _link(receipt.path, file, scratch / "logs" / Path(file).name)
    if record.error is not None:
        text = notes.error_text(record.error)
        (scratch / "error.txt").write_text(text, encoding="utf-8", errors="replace")
    try:
        drawn = {} if table is None else figures.figures_for(record, table)
        drawn |= training.figures_for(record, steps) if steps else {}
        for stem, figure in drawn.items():
            (scratch / "figures").mkdir(exist_ok=True)
            figures.save(figure, scratch / "figures" / f"{stem}.png")
    except Exception as error:  # a figure is never worth a run
        problems.append(f"figures: {type(error).__name__}: {error}")
    return problems


def _link(folder: Path, file: str, target: Path) -> list[str]:
    path = folder / file
    if not path.is_file():
        return [f"{file} is not in the receipt"]
    if path.stat().st_size > FILE_LIMIT_BYTES:
        return [f"{file} ({path.stat().st_size >> 20} MiB) is in the receipt only"]
    number, free = 2, target
    while free.exists():
        free, number = target.with_name(f"{target.stem}-{number}{target.suffix}"), number + 1
    free.parent.mkdir(parents=True, exist_ok=True)
    free.symlink_to(path)
    return []


def _tail(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as source, target.open("wb") as out:
        source.seek(-TAIL_BYTES, 2)
        source.readline()  # to the start of a line
        shutil.copyfileobj(source, out)
