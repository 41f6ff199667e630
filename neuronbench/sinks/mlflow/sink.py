"""`MlflowSink`: what a session talks to. Answers `delivered` or `pending`, and never raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench.model import slug
from neuronbench.protocols import Delivery
from neuronbench.receipts import Receipt, ReceiptError, ReceiptStore, may_be_alive
from neuronbench.sinks.mlflow import mapping, summary
from neuronbench.sinks.mlflow.gateway import LIVE, Gateway, Patience, Unavailable
from neuronbench.sinks.mlflow.revalidate import revalidate
from neuronbench.sinks.mlflow.runs import Writer

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from neuronbench.config import Settings

NAME: Final = "mlflow"


def session_marker(lane: str) -> str:
    """Name of the marker in a session's folder that says whether its summaries are written."""
    return f"{NAME}.{slug(lane)}"


class MlflowSink:
    """Delivers receipts to the MLflow that the settings name.

    What became of each is kept in `sinks/mlflow.json` beside it; `push` delivers what is pending.
    """

    name = NAME

    def __init__(
        self,
        settings: Settings,
        *,
        uri: str | None = None,
        patience: Patience = LIVE,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.store = ReceiptStore(settings.receipts_dir)
        self.gateway = Gateway(settings, uri=settings.mlflow_uri if uri is None else uri, patience=patience, say=say)
        self.writer = Writer(self.gateway, self.store, trace_limit=settings.traces)
        self._touched: dict[tuple[str, str], None] = {}
        """Sessions and lanes that have new runs."""

    def write(self, receipt: Path) -> Delivery:
        """Deliver the receipt in that folder. Idempotent: what is there already is only looked up."""
        try:
            delivery, _ = self.deliver(Path(receipt))
        except Exception as error:  # a sink cannot fail a point
            delivery = Delivery(state="pending", reason=f"{type(error).__name__}: {error}")
        return delivery

    def deliver(self, folder: Path) -> tuple[Delivery, bool]:
        """What became of it, and whether it had been delivered before."""
        receipt = Receipt(folder)
        try:
            record, before = receipt.record, receipt.delivery(NAME)
            if not mapping.has_run(record):
                reason = "nothing was measured, so there is no run"
                if before is None:
                    self.store.mark(folder, NAME, state="delivered", reason=reason)
                return Delivery(state="delivered", reason=reason), True
        except ReceiptError as error:
            return Delivery(state="pending", reason=str(error)), False
        target = ""
        try:
            target = self._target()
            if before is not None and before.state == "delivered" and before.target == target and target:
                return Delivery(state="delivered", reference=before.reference), True
            run_id, already = self.gateway.call(lambda client: self.writer.write(client, receipt))
            target = self._target()
        except Unavailable as error:
            self.store.mark(folder, NAME, state="pending", reason=str(error), target=target)
            return Delivery(state="pending", reason=str(error)), False
        self.store.mark(folder, NAME, state="delivered", reference=run_id, target=target)
        self.touch(record.session, record.point.lane)
        return Delivery(state="delivered", reference=run_id), already

    def begin(self, folders: Sequence[Path]) -> list[Path]:
        """Begin the runs of receipts of one session's lane together, where that spares a server questions.

        Returns them in the order in which they are best delivered. It is done for all of them or for none, and a
        failure is none: `deliver` meets it again.
        """
        if self.gateway.rival_s is None or self.gateway.broken:
            return list(folders)
        try:
            receipts = [receipt for receipt in map(Receipt, folders) if mapping.has_run(receipt.record)]
            if len(receipts) > 1:
                self.gateway.call(lambda client: self.writer.begin(client, receipts))
            turn = {receipt.path: self.writer.turn(receipt.record.receipt_id) for receipt in receipts}
        except (ReceiptError, OSError, Unavailable):
            return list(folders)
        return sorted(folders, key=lambda folder: turn.get(Path(folder), 0))

    def touch(self, session: str, lane: str) -> None:
        """Remember, also beyond this process, that summaries and totals of a session's lane are to be written."""
        if (session, lane) not in self._touched:
            self._touched[session, lane] = None
            self.store.mark(
                self.store.root / session, session_marker(lane), state="pending",
                reference=lane, reason="summaries and totals are written when the session is over",
            )  # fmt: skip

    def _target(self) -> str:
        try:
            return self.gateway.target
        except OSError as error:
            raise Unavailable(str(error)) from error
        except Exception as error:
            raise Unavailable(self.gateway.reason(error)) from error

    def close(self) -> None:
        """Write summaries and totals of the sessions it wrote to. What fails is left to `push`."""
        self.finish(over=True)

    def finish(self, *, over: bool) -> list[str]:
        """As `close`; returns what failed, in words."""
        problems: list[str] = []
        for session, lane in list(self._touched):
            try:
                if not over and self._still_runs(session):
                    continue  # its own process will
                self.gateway.call(partial(self._finish, session, lane, over=over))
                self.store.mark(
                    self.store.root / session, session_marker(lane), state="delivered",
                    reference=lane, target=self._target(),
                )  # fmt: skip
                del self._touched[session, lane]
            except Exception as error:
                problems.append(f"{session} {lane}: {error}")
        return problems

    def _finish(self, session: str, lane: str, client: MlflowClient, *, over: bool) -> None:
        summary.finish(client, self.writer, session, lane, over=over)
        revalidate(client, self.store, NAME, self._target(), session)

    def revalidate(self, session: str | None) -> None:
        """Say of runs, of one session or of all, what accuracy records have shown since. Raises what MLflow does."""
        self.gateway.call(lambda client: revalidate(client, self.store, NAME, self._target(), session))

    def _still_runs(self, session: str) -> bool:
        try:
            manifest = self.store.manifest(session)
        except ReceiptError:
            return False
        return not manifest.ended_at and may_be_alive(manifest.owner)
