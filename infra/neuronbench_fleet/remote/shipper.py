"""The thread that sends: console, events and receipts, as they come, again and again until the store has them.

A store that does not answer costs nothing but time: what is to be sent lies on the disk until it was read back.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from neuronbench.receipts import ReceiptError
from neuronbench.receipts.sessions import MANIFEST, read_manifest
from neuronbench.shipping import ReceiptShelf, RestoreError
from neuronbench.weights import Blobs, StoreError
from neuronbench_fleet.remote.pieces import Pieces

LONGEST_PAUSE_S: Final = 60.0
_ATTEMPTS: Final = 3
"""For a receipt that the store does not take, though it answers."""
_RECORD: Final = "record.json"
_HEARD_S: Final = 0.2
"""So soon a wait ends that nobody needs any more."""


class Shipper:
    """Sends in the background from `start` on; `drain` waits until nothing is left."""

    def __init__(
        self,
        blobs: Blobs,
        shelf: ReceiptShelf,
        run: str,
        receipts: Path,
        pieces: list[Pieces],
        *,
        flush_s: float,
        sent_list: Path,
        on_shipped: Callable[[str], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        """`on_shipped` hears the id of every receipt that the store has; `on_trouble` what keeps something back."""
        self._blobs, self._shelf, self._run, self._receipts = blobs, shelf, run, receipts
        self._pieces, self._flush_s = pieces, flush_s
        self._sent_list, self._on_shipped, self._on_trouble = sent_list, on_shipped, on_trouble
        self.sent = set(sent_list.read_text(encoding="utf-8").split("\n")) - {""} if sent_list.is_file() else set()
        """Ids of receipts that the store has."""
        self.refused: dict[str, str] = {}
        """Id → why the store does not take it, after several attempts."""
        self._sessions: dict[str, bool] = {}
        """Session → whether its end was sent."""
        self.trouble = ""
        """Why the store cannot be reached at the moment; empty while it can."""
        self.child_ended = False
        """Nothing writes to the sessions any more: their manifests are final."""
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._idle = threading.Condition()
        self._rounds = 0
        """Rounds that ended with nothing left to send, counted."""
        self._asked = 0
        self._thread = threading.Thread(target=self._go, name="shipper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def drain(self, timeout_s: float | None = None, *, unless: threading.Event | None = None) -> bool:
        """Wait until all that is there now was sent and read back; False when `timeout_s` went by before, or `unless`
        was set.

        Receipts that the store refuses for good do not count; they are in `refused`. To wait long, call this once:
        each call waits for a look at everything that began after it, and that may take longer than a short time limit.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._idle:
            self._asked += 1
            goal = self._asked
            self._wake.set()
            while self._rounds < goal:
                left = None if deadline is None else deadline - time.monotonic()
                if (left is not None and left <= 0) or (unless is not None and unless.is_set()):
                    return False
                self._idle.wait(left if unless is None else min(_HEARD_S, left if left is not None else _HEARD_S))
            return True

    def stop(self) -> None:
        """End the thread after the round it is in."""
        self._stopped.set()
        self._wake.set()
        self._thread.join(timeout=10)

    # -- the thread

    def _go(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            self._wake.clear()
            with self._idle:
                goal = self._asked
            draining = goal > self._rounds
            try:
                self._round(all_of_it=draining)
                failures, self.trouble = 0, ""
                if draining:
                    with self._idle:
                        self._rounds = goal
                        self._idle.notify_all()
                pause = self._flush_s
            except StoreError as error:
                failures += 1
                pause = min(LONGEST_PAUSE_S, self._flush_s * 2.0**failures) * random.uniform(0.5, 1.0)
                if failures == 1:
                    self._on_trouble(f"the store does not answer, and is asked again: {error.message}")
                self.trouble = error.message
            except Exception as error:  # a defect here must not end the sending
                failures += 1
                pause = min(LONGEST_PAUSE_S, 5.0 * failures)
                self._on_trouble(f"sending failed, and is tried again: {type(error).__name__}: {error}")
            self._wake.wait(pause)  # who waits for everything asks at once, also in the midst of a long pause

    def _round(self, *, all_of_it: bool) -> None:
        untold: OSError | None = None
        try:
            self._tell(all_of_it)  # a large receipt must not keep the console back
        except OSError as error:  # a full disk: pieces have to be noted before they go, receipts have not
            untold = error
        for folder in self._found():
            self._receipt(folder)
        self._manifests()
        if untold is not None:
            raise untold
        self._tell(all_of_it)

    def _tell(self, all_of_it: bool) -> None:
        for pieces in self._pieces:
            pieces.cut(all_of_it=all_of_it)
            pieces.send(self._blobs, self._run)

    def _found(self) -> list[Path]:
        """Receipts that are whole and not sent; a folder with its final name is whole."""
        done = {*self.sent, *self.refused}
        folders = (path.parent for path in sorted(self._receipts.glob(f"*/*/{_RECORD}")))
        return [folder for folder in folders if folder.name[0] != "." and self._id(folder) not in done]

    def _receipt(self, folder: Path) -> None:
        receipt = self._id(folder)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                done = self._shelf.put(folder)
                break
            except (RestoreError, StoreError) as error:
                if isinstance(error, StoreError) and error.kind not in ("store_corrupt", "store_occupied"):
                    raise
                if attempt == _ATTEMPTS:
                    self.refused[receipt] = str(error)
                    self._on_trouble(f"{receipt} cannot be sent, and stays on this box: {error}")
                    return
        if done == "other":
            self._on_trouble(f"another receipt has the name {receipt} in the store; this one was put beside it")
        with contextlib.suppress(OSError), self._sent_list.open("a", encoding="utf-8") as file:
            file.write(f"{receipt}\n")  # a full disk: after a restart it is found to be in the store
        self.sent.add(receipt)
        self._on_shipped(receipt)

    def _manifests(self) -> None:
        for path in sorted(self._receipts.glob(f"*/{MANIFEST}")):
            session = path.parent.name
            if session not in self._sessions:
                self._shelf.put_session(path.parent, ended=False)
                self._sessions[session] = False
            if not self._sessions[session] and (self.child_ended or _ended(path.parent)):
                self._shelf.put_session(path.parent, ended=True)
                self._sessions[session] = True

    def _id(self, folder: Path) -> str:
        return f"{folder.parent.name}/{folder.name}"


def _ended(folder: Path) -> bool:
    try:
        return bool(read_manifest(folder).ended_at)
    except ReceiptError:
        return False
