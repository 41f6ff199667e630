"""The way back: receipts from a tracking server into this data root, the same bytes, each written once."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench.receipts import ReceiptStore, write_atomic
from neuronbench.receipts.receipt import RECORD
from neuronbench.receipts.sessions import MANIFEST
from neuronbench.sinks.contents import RestoreError, check_name, contents, restore
from neuronbench.sinks.mlflow import artifacts, claims, sessions
from neuronbench.sinks.mlflow.gateway import PUSH, Gateway, Unavailable
from neuronbench.sinks.mlflow.lookup import quoted
from neuronbench.sinks.mlflow.sink import NAME

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from neuronbench.config import Settings

PREFIX: Final = "neuronbench/"
_VERBATIM: Final = ("nb.", "env.", "mlflow.")
"""Tags of runs that are asked for by their own name; others are tags of records."""
_BEGUN: Final = ("RUNNING", "SCHEDULED")

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which receipts are wanted; what is empty does not restrict."""

    sessions: Sequence[str] = ()
    """Ids, or the start of one."""
    lanes: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the records (`release=1.2`), or of the runs (`nb.backend=inf2`, `env.git.branch=main`)."""


@dataclass(kw_only=True)
class PullResult:
    """What a pull did."""

    fetched: list[str] = field(default_factory=list)
    """Ids of the receipts that are here now and were not."""
    kept: list[str] = field(default_factory=list)
    """Those that were here already, equal to the last byte."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Receipt id and reason: another one of that name is here, or what came was not what had been sent."""
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.refused and not self.problems

    def take(self, receipt: str, written: bool) -> None:
        (self.fetched if written else self.kept).append(receipt)


def pull(
    settings: Settings, wanted: Selection, *, source: str = "", progress: Progress = lambda text: None
) -> PullResult:
    """Fetch the receipts that `wanted` selects from the MLflow at `source`, or at that of the settings.

    Boots and compilations that a selected receipt cites come with it; skipped and cached points come with whole
    sessions and lanes. Raises `ValueError` when MLflow is switched off or cannot be reached.
    """
    settings = settings if not source else replace(settings, tracking_uri=source)
    gateway = Gateway(settings, uri=settings.mlflow_uri, patience=PUSH)
    if not gateway.uri:
        raise ValueError("pull: MLflow is switched off (tracking_uri = 'off'); name one with --from URI")
    if gateway.sqlite is not None and not gateway.sqlite.is_file():
        raise ValueError(f"pull: there is no store at {gateway.sqlite}; name one with --from URI")
    try:
        with gateway.open() as client:
            runs = list(_select(client, wanted))
            parents = [] if wanted.tags else list(_parents(client, wanted, runs))
        return _Puller(settings, gateway, progress).run(runs, parents)
    except Unavailable as error:
        raise ValueError(f"pull: {error}") from error


def _select(client: MlflowClient, wanted: Selection) -> Iterator[Run]:
    here = _experiments(client, wanted)
    if not here:
        return
    terms = [f"tags.`{_tag(name)}` = {quoted(value)}" for name, value in wanted.tags.items()]
    seen: set[str] = set()
    cited: set[str] = set()
    for session in wanted.sessions or ("",):
        words = [*terms, *([f"tags.`nb.session` LIKE {quoted(session + '%')}"] if session else [])]
        for run in claims.every(client, here, " and ".join(words)):
            tags = run.data.tags
            if tags.get("nb.kind") in ("session", "summary", None) or not tags.get("nb.receipt"):
                continue
            if run.info.run_id not in seen:
                seen.add(run.info.run_id)
                cited.add(tags.get("nb.resource.receipt", ""))
                yield run
    if wanted.tags:
        for receipt in sorted(cited - {""}):
            for run in claims.every(client, here, f"tags.`nb.receipt` = {quoted(receipt)}"):
                if run.info.run_id not in seen:
                    seen.add(run.info.run_id)
                    yield run


def _parents(client: MlflowClient, wanted: Selection, runs: Sequence[Run]) -> Iterator[Run]:
    here = _experiments(client, wanted)
    if not here:
        return
    for session in wanted.sessions or ("",):
        more = f" and tags.`nb.session` LIKE {quoted(session + '%')}" if session else ""
        yield from claims.every(client, here, f"tags.`nb.kind` = 'session'{more}")


def _experiments(client: MlflowClient, wanted: Selection) -> list[str]:
    names = {lane if lane.startswith(PREFIX) else PREFIX + lane for lane in wanted.lanes}
    found = [e for e in client.search_experiments(max_results=1000) if e.name.startswith(PREFIX)]
    return [e.experiment_id for e in found if not names or e.name in names]


def _tag(name: str) -> str:
    return name.replace("`", "") if name.startswith(_VERBATIM) else "tag." + name.replace("`", "")


class _Puller:
    def __init__(self, settings: Settings, gateway: Gateway, progress: Progress) -> None:
        self.store = ReceiptStore(settings.receipts_dir)
        self.gateway = gateway
        self.progress = progress
        self.result = PullResult()

    def run(self, runs: Sequence[Run], parents: Sequence[Run]) -> PullResult:
        """Fetch what is selected; raises `Unavailable` when nobody answers any more."""
        for number, run in enumerate(runs, start=1):
            receipt = run.data.tags["nb.receipt"]
            self.progress(f"{number}/{len(runs)} {receipt}")
            self._each(receipt, partial(self._measured, run, receipt))
        with self.gateway.open() as client:
            known = {run.data.tags.get("nb.session", "") for run in runs}
            found = parents or list(self._parents_of(client, known))
        for parent in found:
            self._each(parent.data.tags.get("nb.session", ""), partial(self._session, parent, skipped=bool(parents)))
        return self.result

    def _parents_of(self, client: MlflowClient, known: set[str]) -> Iterator[Run]:
        everywhere = _experiments(client, Selection())
        for session in sorted(known - {""}):
            words = f"tags.`nb.kind` = 'session' and tags.`nb.session` = {quoted(session)}"
            yield from claims.every(client, everywhere, words)

    def _each(self, what: str, act: Callable[[MlflowClient, Path], None]) -> None:
        try:
            with (
                self.gateway.open() as client,
                tempfile.TemporaryDirectory(prefix="nb-pull-", dir=self._scratch()) as scratch,
            ):
                act(client, Path(scratch))
        except Unavailable as error:
            cause = error.__cause__
            if isinstance(cause, RestoreError):
                self.result.refused.append((what, str(cause)))
            elif self.gateway.broken or self.gateway.unreachable(cause):
                raise
            else:
                self.result.problems.append(f"{what}: {error}")

    def _scratch(self) -> Path:
        """Beside the receipts: a temporary folder of the system may be small."""
        folder = self.store.root.parent
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    # -- receipts -----------------------------------------------------------------------------------------------------

    def _measured(self, run: Run, receipt: str, client: MlflowClient, scratch: Path) -> None:
        session, _, name = receipt.partition("/")
        run_id = run.info.run_id
        if run.info.status in _BEGUN:
            raise RestoreError(f"run {run_id} is not complete: its push was cut short, or goes on; push it again")
        text = _artifact(client, run_id, artifacts.FILES, scratch)
        if text is None:
            raise RestoreError(f"run {run_id} has no {artifacts.FILES}: it was not pushed by `neuronbench push`")
        sent = run.data.tags.get("nb.receipt.digest", "")
        if hashlib.sha256(text).hexdigest() != sent:
            raise RestoreError(f"run {run_id}: {artifacts.FILES} is not the one that was sent (tag nb.receipt.digest)")
        stowed = artifacts.read_files(text, run_id)
        missing = [each for each in stowed if not each.at]
        if missing:
            each = missing[0]
            raise RestoreError(
                f"{each.path} ({each.fact.bytes >> 20} MiB) is too large to have been sent; "
                f"copy the folder {receipt} from where it was measured"
            )
        folder, written = restore(
            self.store.root, session, name, {each.path: each.fact for each in stowed},
            lambda target: artifacts.fetch(client, run_id, stowed, target, scratch),
        )  # fmt: skip
        self.result.take(receipt, written)
        if self.store.read(folder).delivery(NAME) is None:
            self.store.mark(folder, NAME, state="delivered", reference=run_id, target=self.gateway.target)

    def _session(self, parent: Run, client: MlflowClient, scratch: Path, *, skipped: bool) -> None:
        session = check_name(parent.data.tags.get("nb.session", ""), "session")
        if skipped:
            packed = _artifact(client, parent.info.run_id, sessions.UNMEASURED, scratch)
            for each in sessions.read_unmeasured(packed, parent.info.run_id) if packed else ():
                _, written = restore(self.store.root, session, each.name, each.wanted, each.unpack)
                self.result.take(f"{session}/{each.name}", written)
        manifest = self.store.root / session / MANIFEST
        if manifest.is_file() or not manifest.parent.is_dir():
            return  # a manifest that is here may be younger; without receipts there is nothing to say of them
        text = _artifact(client, parent.info.run_id, MANIFEST, scratch)
        if text is not None:
            write_atomic(manifest, text.decode("utf-8"))


def _artifact(client: MlflowClient, run_id: str, name: str, scratch: Path) -> bytes | None:
    """An artifact's bytes; None when the run has none of that name."""
    if name not in {item.path for item in client.list_artifacts(run_id)}:
        return None  # asking for what is not there would be tried again and again
    return Path(client.download_artifacts(run_id, name, str(scratch))).read_bytes()


def pull_folder(
    settings: Settings, wanted: Selection, source: Path, *, progress: Progress = lambda text: None
) -> PullResult:
    """As `pull`, from a folder of receipts: another data root's, or a copy of one."""
    if wanted.tags:
        raise ValueError("pull: --tag asks MLflow; from a folder, receipts are chosen by --session and --lane")
    if any(source.glob(f"*/{RECORD}")):  # the folder of one session: its name is the session's
        wanted, source = replace(wanted, sessions=[source.resolve().name]), source.resolve().parent
    there = ReceiptStore(source / "receipts" if (source / "receipts").is_dir() else source)
    here, result = ReceiptStore(settings.receipts_dir), PullResult()
    for session in there.sessions():
        if wanted.sessions and not any(session.startswith(start) for start in wanted.sessions):
            continue
        for header in there.headers(session, on_error=lambda error: result.problems.append(str(error))):
            if wanted.lanes and header.lane not in {lane.removeprefix(PREFIX) for lane in wanted.lanes}:
                continue
            progress(header.receipt_id)
            facts = contents(header.path)
            try:
                _, written = restore(here.root, session, header.name, facts, partial(_copy, header.path, list(facts)))
                result.take(header.receipt_id, written)
            except RestoreError as error:
                result.refused.append((header.receipt_id, str(error)))
        manifest = here.root / session / MANIFEST
        if (there.root / session / MANIFEST).is_file() and manifest.parent.is_dir() and not manifest.is_file():
            write_atomic(manifest, (there.root / session / MANIFEST).read_text(encoding="utf-8"))
    return result


def _copy(source: Path, names: Sequence[str], target: Path) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((source / name).read_bytes())
