"""Delivering what is pending, and looking at what was delivered."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench.receipts import Header, ReceiptError
from neuronbench.receipts.receipt import SINKS, read_marker
from neuronbench.sinks.mlflow import ahead
from neuronbench.sinks.mlflow.gateway import PUSH, lanes_of, rehome
from neuronbench.sinks.mlflow.sink import NAME, MlflowSink

if TYPE_CHECKING:
    from neuronbench.config import Settings

_SOON_S: Final = 2.0
"""What is over sooner needs no forecast."""


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What a push did; `failed` and `problems` say why in words."""

    delivered: tuple[str, ...] = ()
    """Receipt ids that have a run now and had none."""
    already: tuple[str, ...] = ()
    """Receipt ids that were pending by their marker, but had their run."""
    failed: tuple[tuple[str, str], ...] = ()
    """Receipt id and reason."""
    problems: tuple[str, ...] = ()
    """Receipts that cannot be read, and summaries that could not be written."""

    @property
    def ok(self) -> bool:
        return not self.failed and not self.problems


def push(
    settings: Settings,
    *,
    session: str | None = None,
    to: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> PushResult:
    """Deliver every receipt that is pending, of one `session` or of all, to the settings' MLflow or to the URI `to`.

    Exactly once: a receipt that has its run gets no second one, however often and by however many processes of this
    data root it is pushed. A server that goes away, or is too busy, on the way is waited for (`patience.PUSH`); then,
    or when nobody answers in the first place, it stops and says so for all that is left.
    """
    sink = MlflowSink(
        settings if to is None else replace(settings, tracking_uri=to), uri=to, patience=PUSH, say=progress
    )
    if not sink.gateway.uri:
        raise ValueError("push: MLflow is switched off (tracking_uri = 'off'); name one with --to URI")
    unreadable: list[str] = []

    def cannot_read(error: ReceiptError) -> None:
        unreadable.append(str(error))

    if progress is not None:
        progress("opening MLflow; a new store gets its tables first")
    try:
        target = sink.gateway.target or "none"
    except Exception:
        target = "unknown"  # a locked database: each delivery says so
    waiting: list[Header] = list(sink.store.pending(NAME, session=session, target=target, on_error=cannot_read))
    strays = {header.path.parent: header.session for header in waiting if header.path.parent.name != header.session}
    unreadable += [_stray(folder, session) for folder, session in strays.items()]
    waiting = [header for header in waiting if header.path.parent not in strays]
    delivered: list[str] = []
    already: list[str] = []
    failed: list[tuple[str, str]] = []
    pace = _Pace(len(waiting))
    for number, header in enumerate(_begun(sink, waiting), start=1):
        delivery, before = sink.deliver(header.path)
        if delivery.state == "pending":
            failed.append((header.receipt_id, delivery.reason))
        elif delivery.reference:
            (already if before else delivered).append(header.receipt_id)
        if progress is not None:
            progress(f"{pace.at(number)} {header.receipt_id}: {delivery.state}")
    for name, lane in unfinished(sink, session):
        sink.touch(name, lane)
    problems = sink.finish(over=False)
    if not failed:
        try:
            sink.revalidate(session)
        except Exception as error:  # the runs are there; only what came later is not said of them
            problems.append(f"validity of older runs: {type(error).__name__}: {error}")
    return PushResult(
        delivered=tuple(delivered), already=tuple(already), failed=tuple(failed), problems=(*unreadable, *problems)
    )


def _stray(folder: Path, session: str) -> str:
    """Of a session's folder under another name: by its own name its receipts may be there a second time."""
    return (
        f"{folder}: its receipts are of session {session}, and are not delivered from a folder of another name; "
        "rename it to that, or keep copies elsewhere"
    )


def _begun(sink: MlflowSink, waiting: Sequence[Header]) -> Iterator[Header]:
    """The headers, each when its turn has come; the runs of those that are named alike are begun together."""
    lanes: dict[tuple[str, str], dict[str, Header]] = {}
    for header in waiting:
        lanes.setdefault((header.session, header.lane), {})[header.receipt_id] = header
    for (session, lane), headers in lanes.items():
        there = (header.receipt_id for header in sink.store.headers(session, lane=lane, on_error=lambda error: None))
        for group in ahead.groups(headers, there):
            by_path = {headers[receipt].path: headers[receipt] for receipt in group}
            for path in sink.begin(list(by_path)):
                yield by_path[path]


class _Pace:
    """How far it is, how fast, and how long that will take."""

    def __init__(self, total: int) -> None:
        self._total, self._begun = total, time.monotonic()

    def at(self, number: int) -> str:
        spent_s = time.monotonic() - self._begun
        if spent_s < _SOON_S or number in (0, self._total):
            return f"{number}/{self._total}"
        left_s = (self._total - number) * spent_s / number
        left = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
        return f"{number}/{self._total}, {number / spent_s:.1f}/s, {left} left:"


def unfinished(sink: MlflowSink, session: str | None) -> list[tuple[str, str]]:
    """Sessions and lanes that have runs whose summaries and totals are still to be written."""
    found: list[tuple[str, str]] = []
    for name in [session] if session else sink.store.sessions():
        folder = sink.store.root / name
        for path in sorted((folder / SINKS).glob(f"{NAME}.*.json")):
            marker = read_marker(folder, path.stem)
            if marker is not None and marker.reference and marker.state == "pending":
                found.append((name, marker.reference))
    return found


def ui_command(settings: Settings, *, host: str = "127.0.0.1", port: int = 5000) -> list[str]:
    """The command that serves MLflow's UI over the store of the settings.

    With our own store, artifact locations are corrected first if the data root was moved. Raises `ValueError` for a
    store that is a server already: open its address instead.
    """
    uri = settings.mlflow_uri
    if uri.startswith(("http://", "https://")):
        raise ValueError(f"the settings' MLflow is a server already: open {uri} in a browser")
    if not uri:
        raise ValueError("MLflow is switched off (tracking_uri = 'off'), so there is nothing to show")
    if uri == f"sqlite:///{settings.database}":
        settings.data_root.mkdir(parents=True, exist_ok=True)
        rehome(settings)
    return [
        sys.executable, "-m", "mlflow", "server",
        "--backend-store-uri", uri,
        "--artifacts-destination", str(settings.artifacts_dir),
        "--host", host, "--port", str(port), "--workers", "1",
    ]  # fmt: skip


def ui_pages(settings: Settings, address: str) -> dict[str, str]:
    """Lane → page of its runs below `address`, for the lanes that a SQLite store of the settings has.

    MLflow's own start page leads to its pages for agents, which know nothing of runs, until somebody has switched that
    browser to "Model training"; these lead to the runs.
    """
    return {
        lane: f"{address}/#/experiments/{experiment}/runs?workflowType=machine_learning"
        for lane, experiment in lanes_of(settings.mlflow_uri).items()
    }


def ui_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment to start `ui_command` in: as given (by default this process's), usage reporting off."""
    return {**(os.environ if environ is None else environ), "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
