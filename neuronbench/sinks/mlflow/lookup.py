"""From runs back to receipts: which ones a run, a session or an experiment of MLflow stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench.model import slug
from neuronbench.receipts import ReceiptStore
from neuronbench.receipts.receipt import RECORD
from neuronbench.sinks.mlflow import claims
from neuronbench.sinks.mlflow.gateway import PUSH, Gateway, Unavailable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from neuronbench.config import Settings

_RUN: Final = re.compile(r"[0-9a-f]{32}")


def receipts(settings: Settings, asked: str, *, progress: Callable[[str], None] = lambda text: None) -> list[Path]:
    """Folders of the receipts that `asked` means in the settings' MLflow: id of a run or session, or an experiment.

    A session's parent run means its repeats, a summary run the repeats it sums up, an experiment (`serving`, or
    `neuronbench/serving`, or its id) all of its repeats. A receipt that is not in this data root is fetched: its record
    only, which is what comparisons read, into the cache. Raises `LookupError` with what is wrong in words.
    """
    gateway = Gateway(settings, uri=settings.mlflow_uri, patience=PUSH)
    if not gateway.uri:
        raise LookupError("MLflow is switched off (tracking_uri = 'off')")
    if gateway.sqlite is not None and not gateway.sqlite.is_file():
        raise LookupError(f"there is no store at {gateway.sqlite} yet")
    try:
        with gateway.open() as client:
            found = dict.fromkeys(_folder(client, run, settings, progress) for run in _runs(client, asked))
    except Unavailable as error:
        raise LookupError(str(error)) from error
    folders = [folder for folder in found if folder is not None]
    if not folders:
        raise LookupError("expected the id of a run or a session, or an experiment, found none that has receipts")
    return folders


def _runs(client: MlflowClient, asked: str) -> Iterator[Run]:
    if _RUN.fullmatch(asked):
        run = client.get_run(asked)
        tags = run.data.tags
        here = [run.info.experiment_id]
        if tags.get("nb.kind") == "session":
            yield from claims.every(
                client, here, f"tags.`mlflow.parentRunId` = '{asked}' and tags.`nb.record` = 'point'"
            )
        elif tags.get("nb.kind") == "summary":
            wanted = {name: quoted(tags.get(name, "")) for name in ("nb.session", "nb.point")}
            told = " and ".join(f"tags.`{name}` = {value}" for name, value in wanted.items())
            yield from claims.every(client, here, f"{told} and tags.`nb.kind` = 'point'")
        else:
            yield run
        return
    ours = [e for e in client.search_experiments() if e.name.startswith("neuronbench/")]
    chosen = [e.experiment_id for e in ours if asked in (e.name, e.name.removeprefix("neuronbench/"), e.experiment_id)]
    if chosen:
        yield from claims.every(client, chosen, "tags.`nb.kind` = 'point'")
    elif ours:
        everywhere = [e.experiment_id for e in ours]
        yield from claims.every(client, everywhere, f"tags.`nb.session` = {quoted(asked)} and tags.`nb.kind` = 'point'")


def quoted(text: str) -> str:
    """A literal of MLflow's filter language, which knows no escape: quotes are of no id of ours and are left out."""
    return "'" + text.replace("'", "") + "'"


def _folder(client: MlflowClient, run: Run, settings: Settings, progress: Callable[[str], None]) -> Path | None:
    """The receipt of a run: in the data root, or its record fetched into the cache. None for a run without one."""
    session, _, name = run.data.tags.get("nb.receipt", "").partition("/")
    if not session or not name or slug(session, limit=200) != session or slug(name, limit=200) != name:
        return None
    here: Path = ReceiptStore(settings.receipts_dir).root / session / name
    if (here / RECORD).is_file():
        return here
    target: Path = settings.cache_dir / "mlflow" / run.info.run_id / session / name
    if not (target / RECORD).is_file():
        progress(f"fetching {session}/{name}")
        target.mkdir(parents=True, exist_ok=True)
        client.download_artifacts(run.info.run_id, RECORD, str(target))
    return target
