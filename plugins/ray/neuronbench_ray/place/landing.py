"""The one store: receipts from nodes come in whole, hashed and once; lost attempts leave a receipt of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench.model import Environment, Failure, Outcome, Provenance, Record
from neuronbench.receipts import ReceiptStore, utc_now
from neuronbench.redaction import redact
from neuronbench.sinks.contents import FileFact, restore
from neuronbench_ray.place.ledger import Attempt, Loss
from neuronbench_ray.place.marks import LOST

if TYPE_CHECKING:
    from neuronbench.shipping import ReceiptShelf

CHUNK_BYTES: Final = 8 << 20
"""Of a file at a time through Ray: an object store need not hold a table of a million requests at once."""

Read = Callable[[str, int, int], bytes]
"""Path, offset, size → bytes of a file of the receipt on its node."""

REMEDIES: Final[Mapping[str, str]] = {
    "node_lost": "the point was placed again where a node was left; look at the node (spot interruption, memory, "
    "hardware) before its like is trusted with a long run",
    "worker_lost": "the point was placed again; Ray's worker on that node was killed: look at its memory and its "
    "logs (/tmp/ray/session_latest/logs)",
    "session_died": "the point was placed again; the end of pytest's output is attached",
}


INTERRUPTED: Final = 2
"""pytest's status when it was asked to end, and also when it could not collect."""
NOT_RUN: Final = "not run: "
"""How the reason of points begins that were left out after a failure which made the host useless."""


def left_open(facts: Mapping[str, Sequence[object]], read: Read) -> str:
    """The outcome of a receipt that says no more than that its point is to be measured yet, which another box can do:
    the host had become useless before, or pytest was ended. Empty for any other receipt."""
    size = int(str(facts["record.json"][1]))
    if size > 1 << 20:
        return ""
    told = json.loads(read("record.json", 0, size))
    not_run = told["outcome"] == Outcome.SKIPPED and str(told["reason"]).startswith(NOT_RUN)
    return str(told["outcome"]) if not_run or told["outcome"] == Outcome.INTERRUPTED else ""


class Landing:
    """Receipts of one session, on their way into the store of the head and, where one is given, on to a shelf."""

    def __init__(self, store: ReceiptStore, session: str, *, shelf: ReceiptShelf | None = None) -> None:
        self.store, self.session, self.shelf = store, session, shelf
        self.unsent: list[tuple[Path, str]] = []
        """Receipts that are here and not on the shelf, and why."""

    def land(self, name: str, facts: Mapping[str, Sequence[object]], read: Read) -> Record:
        """Fetch a receipt and put it in its place; returns its record.

        It appears whole or not at all. Raises `neuronbench.sinks.contents.RestoreError` for bytes that are not those
        that were hashed on the node, and for another receipt of that name.
        """
        wanted = {path: FileFact(sha256=str(fact[0]), bytes=int(str(fact[1]))) for path, fact in facts.items()}

        def fetch(target: Path) -> None:
            for path, fact in wanted.items():
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                with open(target / path, "wb") as stream:
                    while stream.tell() < fact.bytes:
                        piece = read(path, stream.tell(), min(CHUNK_BYTES, fact.bytes - stream.tell()))
                        if not piece:
                            break  # shorter than it was: the comparison says so
                        stream.write(piece)

        folder, _ = restore(self.store.root, self.session, name, wanted, fetch)
        return self._kept(folder)

    def lost(
        self, attempt: Attempt, loss: Loss, *, kind: str, cause: str, started_at: str, environment: Environment,
        provenance: Provenance, log: str = "",
    ) -> Record:  # fmt: skip
        """Write the receipt of an attempt that was lost while `loss.item` was open."""
        item, box = loss.item, attempt.box
        next_step = REMEDIES.get(kind, "")
        if loss.gave_up:
            next_step = f"it was lost {loss.number} times and is not placed again; see what this point does to a box"
        record = Record(
            session=self.session,
            point=item.point,
            repeat=item.repeat,
            name=f"{item.name}--lost{loss.number}",
            provenance=provenance,
            environment=environment,
            started_at=started_at or utc_now(),
            error=Failure(
                kind=kind,
                phase="window" if attempt.running else "boot",
                message=redact(f"attempt {loss.number} was lost with {box.name}: {cause}"),
                causal_line=redact(cause),
                cause="the node went away" if kind == "node_lost" else "what measured was ended from outside",
                remedy=next_step,
                log="pytest.log" if log else "",
            ),
            tags={
                "ray.attempt": attempt.id, "ray.node": box.name, "ray.cores": ",".join(attempt.cores),
                LOST: str(loss.number),
            },
            notes=["nothing of this attempt counts: its receipts were refused from the moment it was declared lost"],
        )  # fmt: skip
        staging = self.store.open(record)
        if log:
            (staging.folder / "pytest.log").write_text(redact(log), encoding="utf-8", errors="replace")
            record.attachments.append("pytest.log")
        record.close(Outcome.INTERRUPTED, ended_at=utc_now(), duration_s=None)
        return self._kept(self.store.commit(record, staging))

    def _kept(self, folder: Path) -> Record:
        if self.shelf is not None and not self.unsent:
            self._send(folder)
        elif self.shelf is not None:
            self.unsent.append((folder, "an earlier one could not be sent"))
        return self.store.read(folder).record

    def _send(self, folder: Path) -> None:
        from neuronbench.weights import StoreError

        assert self.shelf is not None
        try:
            self.shelf.put(folder)
        except StoreError as error:  # a store that is out of reach costs no measurement
            self.unsent.append((folder, str(error)))

    def flush(self, session: str) -> list[str]:
        """Send on what could not be sent before, and the session's manifest; what is wrong still."""
        if self.shelf is None:
            return []
        from neuronbench.weights import StoreError

        again, self.unsent = self.unsent, []
        for folder, _ in again:
            self._send(folder)
        problems = [f"{folder.name} is only here, not at {self.shelf.url}: {why}" for folder, why in self.unsent]
        try:
            self.shelf.put_session(self.store.root / session, ended=True)
        except StoreError as error:
            problems.append(f"the session's manifest is only here: {error}")
        return problems
