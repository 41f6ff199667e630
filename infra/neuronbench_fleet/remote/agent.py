"""The run on a box: `python -m neuronbench_fleet.remote.agent FOLDER`, kept going by systemd.

It ends with 0 when the run is over and everything of it is in the store, or when it was asked to end (the unit starts
it again at the next boot, and it goes on); with anything else it has failed and is started again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from neuronbench.receipts import Receipt, ReceiptError, recover, utc_now
from neuronbench.shipping import ReceiptShelf, pull
from neuronbench.weights import Blobs, StoreError
from neuronbench_fleet.remote import child, prior
from neuronbench_fleet.remote.keys import What, receipts_prefix
from neuronbench_fleet.remote.leaving import leave
from neuronbench_fleet.remote.pieces import Pieces
from neuronbench_fleet.remote.shipper import LONGEST_PAUSE_S, Shipper
from neuronbench_fleet.remote.state import Order, State
from neuronbench_fleet.remote.watch import Limits, Notice, SpotWatch

PROGRESS_EVERY_S: Final = 15.0
LAST_WORDS_S: Final = 90.0
"""What sending may take when the box itself is going down; the rest is sent at the next boot."""
BOX_LOCK: Final = ".box.lock"
"""Held, beside the folders of runs, by the one that measures: two at a time would both be measured wrong."""
INTERRUPTED: Final = 2
"""pytest's status when it was asked to end."""
CRASHES: Final = 3
"""So often pytest is started again after a signal killed it (out of memory, a segmentation fault): what is measured
stays, and what comes after the point that kills it deserves a chance."""
_FAILED_S: Final = 10.0
_WARN_AT: Final = (0.5, 0.8, 0.95)
"""Shares of a limit of money at which it is said."""


class Agent:
    """One start of the agent, from the lock to the last event."""

    def __init__(self, state: State, order: Order, blobs: Blobs) -> None:
        self.state, self.order, self.blobs = state, order, blobs
        self.shelf = ReceiptShelf(blobs, receipts_prefix(order.run))
        self.boot = state.new_boot()
        self.asked = threading.Event()
        """A signal asked for the end."""
        self.limits = Limits(max_hours=order.max_hours, max_usd=order.max_usd, expires=order.expires)
        self.spot = SpotWatch(every_s=min(5.0, order.poll_s * 5))
        self._events = state.events(self.boot)
        self._lock = threading.Lock()
        self._number = 0
        self._torn = False
        clock = state.read("clock")
        self._hours_before, self._usd_before = float(clock.get("hours", 0.0)), float(clock.get("usd", 0.0))
        self._started = time.monotonic()
        self._warned = float(clock.get("warned", 0.0))
        self._prior = bool(clock.get("prior"))
        """What other boxes have taken is in these numbers."""
        self._seen: set[str] = set()
        self.shipper = Shipper(
            blobs, self.shelf, order.run, state.receipts, self._pieces(), flush_s=order.flush_s,
            sent_list=state.folder / "sent.txt", on_shipped=lambda receipt: self.event("shipped", receipt=receipt),
            on_trouble=lambda text: self.event("trouble", text=text),
        )  # fmt: skip

    # -- what is told

    def event(self, kind: str, **told: Any) -> None:
        """Note something; it goes to the store with the next piece. From any thread."""
        with self._lock:
            self._number += 1
            spent = {
                "hours": round(self.hours, 4),
                "usd": self._usd(),
            }  # each: the next box counts on from the last one
            line = json.dumps({"at": utc_now(), "boot": self.boot, "n": self._number, "kind": kind, **told, **spent})
            try:
                self._append(line)
            except OSError as error:  # a full disk must not end what can still be measured and sent
                print(f"the event cannot be kept: {error}", file=sys.stderr, flush=True)
        print(line, flush=True)  # the journal of the box has it, too

    def _append(self, line: str) -> None:
        with self._events.open("a", encoding="utf-8") as file:
            if self._torn:
                file.write("\n")  # ends what a full disk has left of an earlier one
            self._torn = True
            file.write(line + "\n")
            file.flush()
            self._torn = False

    @property
    def hours(self) -> float:
        """Hours of the run, all its boxes and boots together, while an agent was there."""
        return self._hours_before + (time.monotonic() - self._started) / 3600

    @property
    def usd(self) -> float | None:
        rate = self.order.usd_per_hour
        return None if rate is None else self._usd_before + (time.monotonic() - self._started) / 3600 * rate

    # -- the run

    def run(self) -> int:
        """Measure, send, end. The exit status of this process."""
        self.event(
            "boot", run=self.order.run, instance=self.order.instance, code=self.order.code.name, pid=os.getpid(),
        )  # fmt: skip
        self.shipper.start()
        self.spot.start()
        try:
            ended = self.state.read("ended")
            if not ended:
                if child.await_left_over(self.state):
                    self.event("left_over", text="the pytest of the agent before this one has ended")
                if not self._fetch():
                    return self._going_down("asked to end before pytest was started")
                ended = self._measure()
            if not ended:
                return 0
            return self._finish(ended)
        except Exception as error:
            self.event("failed", text=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
            self.shipper.drain(_FAILED_S)
            raise
        finally:
            self._keep_clock()
            self.spot.stop()
            self.shipper.stop()

    def _fetch(self) -> bool:
        """Have the receipts of the run that other boxes measured; False when asked to end meanwhile."""
        pause = self.order.poll_s
        self._seen = self._names()
        while not self.asked.is_set():
            try:
                came = pull(self.shelf, self.state.receipts)
                if not self._prior:
                    self._hours_before, self._usd_before = prior.spent(self.blobs, self.order.run)
                    self._prior = True
                    self._keep_clock()
            except StoreError as error:
                self.event("trouble", text=f"receipts of the run cannot be fetched yet: {error.message}")
                if self.state.cancelled():  # nothing will be measured, so nothing has to be known
                    return True
                self.asked.wait(pause)
                pause = min(LONGEST_PAUSE_S, pause * 2)
                continue
            for receipt, reason in came.refused:
                self.event("trouble", text=f"{receipt} of the store was left there: {reason}")
            if came.fetched:
                self.event("fetched", receipts=len(came.fetched))
            self._seen = self._names()
            return True
        return False

    def _measure(self) -> dict[str, Any]:
        """Run pytest to its end; what to keep of that, or nothing when the box goes down and the run does not end."""
        why: Notice | None
        while True:
            if said := self.state.cancelled():
                self.event("stopping", reason="cancelled", text=said)
                status, why = INTERRUPTED, Notice(kind="cancelled", text=said)
                break
            status, why = self._pytest()
            crashes = int(self.state.read("crashes").get("crashes", 0))
            if why is None and status < 0 and crashes < CRASHES:
                self.state.write("crashes", crashes=crashes + 1)
                name = signal.Signals(-status).name
                self.event("crashed", text=f"pytest was killed by {name}; it is started again and goes on")
                continue
            break
        if why is not None and why.kind in ("signal", "spot"):
            if not (said := self.state.cancelled()):
                self._going_down(why.text)
                return {}
            why = Notice(kind="cancelled", text=said)  # then it must not go on at another start
        recover(self.state.receipts, on_error=lambda error: self.event("trouble", text=str(error)))
        self._points()
        ended = {"exit_code": status, "reason": why.kind if why else "", "text": why.text if why else ""}
        self.state.write("ended", **ended)
        return ended

    def _pytest(self) -> tuple[int, Notice | None]:
        """Start pytest and wait for its end; its status, and why it was asked to end, if it was."""
        process = child.start(self.order, self.state, self.boot)
        self.event("started", pid=process.pid, command=shlex.join(child.command(self.order)))
        why: Notice | None = None
        told = asked_at = 0.0
        try:
            while process.poll() is None:
                time.sleep(self.order.poll_s)
                self._points()
                if time.monotonic() - told > PROGRESS_EVERY_S:
                    told = time.monotonic()
                    self._keep_clock()
                    self._progress()
                if why is None:
                    why = self._reason()
                    if why is not None:
                        self.event("stopping", reason=why.kind, text=why.text)
                        child.interrupt(process)
                        asked_at = time.monotonic()
                elif time.monotonic() - asked_at > (child.SPOT_GRACE_S if why.kind == "spot" else child.GRACE_S):
                    process.terminate()
        finally:
            process.terminate()  # leaves nothing of pytest's behind, whatever ends this
        self._points()
        return process.wait(), why

    def _reason(self) -> Notice | None:
        """Why pytest has to end now."""
        if self.asked.is_set():
            return Notice(kind="signal", text="the box or its unit is going down; the run goes on at its next start")
        if said := self.state.cancelled():
            return Notice(kind="cancelled", text=said)
        usd = self.usd
        if usd is not None and self.order.max_usd:
            share = usd / self.order.max_usd
            for step in _WARN_AT:
                if share >= step > self._warned:
                    self._warned = step
                    self.event("cost", text=f"{usd:.2f} USD of {self.order.max_usd:g} are spent, without disks")
        return self.spot.notice or self.limits.reached(hours=self.hours, usd=usd, expires=self.spot.expires)

    def _going_down(self, text: str) -> int:
        """Send what there is while the box lasts."""
        self._keep_clock()
        self.event("suspended", text=text, shipped=len(self.shipper.sent))
        self.shipper.drain(LAST_WORDS_S)
        return 0

    def _finish(self, ended: dict[str, Any]) -> int:
        """Wait until everything is in the store, say so, and do with the box what was asked."""
        self.shipper.child_ended = True
        if not self.shipper.drain(unless=self.asked):
            return self._going_down("pytest has ended, and not everything was sent yet")
        self._keep_clock()
        self.event(
            "finished", **ended, shipped=len(self.shipper.sent), refused=self.shipper.refused,
            after="keep" if self.state.cancelled() else self.order.after,
        )  # fmt: skip
        if not self.shipper.drain(unless=self.asked):
            return 0
        self.state.write("done", **ended, at=utc_now(), refused=len(self.shipper.refused))
        leave(self.order, self.state)
        return 0

    # -- parts

    def _pieces(self) -> list[Pieces]:
        """Of this boot and of those before it, which may not have been sent."""
        return [
            Pieces(file, box=self.order.instance, what=what, boot=boot)
            for boot in range(1, self.boot + 1)
            for what, file in self._files(boot)
        ]

    def _files(self, boot: int) -> tuple[tuple[What, Path], ...]:
        return ("log", self.state.console(boot)), ("events", self.state.events(boot))

    def _receipts(self) -> list[Path]:
        return [p.parent for p in sorted(self.state.receipts.glob("*/*/record.json")) if p.parent.name[0] != "."]

    def _names(self) -> set[str]:
        return {f"{path.parent.name}/{path.name}" for path in self._receipts()}

    def _points(self) -> None:
        """Tell of receipts that are new."""
        for folder in self._receipts():
            receipt = f"{folder.parent.name}/{folder.name}"
            if receipt in self._seen:
                continue
            self._seen.add(receipt)
            try:
                record = Receipt(folder).record
            except ReceiptError as error:
                self.event("trouble", text=f"{receipt}: {error}")
                continue
            self.event(
                "point", receipt=receipt, record_kind=record.kind, outcome=str(record.outcome),
                validity=str(record.validity), headline=_headline(record.metrics.values()),
            )  # fmt: skip

    def _progress(self) -> None:
        self.event(
            "progress", line=_last_line(self.state.console(self.boot)), receipts=len(self._seen),
            shipped=len(self.shipper.sent), trouble=self.shipper.trouble,
        )  # fmt: skip

    def _usd(self) -> float | None:
        usd = self.usd
        return None if usd is None else round(usd, 4)

    def _keep_clock(self) -> None:
        try:
            self.state.write("clock", hours=self.hours, usd=self.usd or 0.0, warned=self._warned, prior=self._prior)
        except OSError as error:  # the disk is full: the last one that was kept stays
            print(f"hours and cost cannot be kept: {error}", file=sys.stderr, flush=True)


def _headline(metrics: Any) -> str:
    shown = [m for m in metrics if m.value is not None][:2]
    return ", ".join(f"{metric.key} {metric.value:.4g} {metric.unit}".strip() for metric in shown)


def _last_line(path: Path) -> str:
    """The last line with something in it; empty while there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def _only_one(folder: Path, name: str = "agent.lock") -> IO[str] | None:
    """Hold a lock as long as this process lives; None when another agent does."""
    file = (folder / name).open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def connect(order: Order) -> Blobs:
    """The run's bucket, by the box's own role. One attempt at a time: the agent has patience of its own."""
    import boto3
    import botocore.config

    from neuronbench.weights.s3 import S3Blobs

    config = botocore.config.Config(
        retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=10, read_timeout=60,
        user_agent_extra="neuronbench-agent",
    )  # fmt: skip
    client = boto3.session.Session(region_name=order.region or None).client("s3", config=config)
    return S3Blobs(order.bucket, client=client)


def main(arguments: Sequence[str] | None = None, *, connect: Callable[[Order], Blobs] = connect) -> int:
    """Go on with the run whose state is in the folder that is named."""
    (named,) = sys.argv[1:] if arguments is None else arguments
    folder = Path(named)
    order, state = Order.read(folder), State(folder)
    lock = _only_one(folder)
    if lock is None:
        print(f"another agent works on {order.run}", flush=True)
        return 0
    with lock:
        if state.read("done"):
            print(f"{order.run} is over", flush=True)
            leave(order, state)  # the agent before this one may have been killed before it did
            return 0
        agent = Agent(state, order, connect(order))

        def asked(signum: int, frame: FrameType | None) -> None:
            agent.asked.set()

        before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            # a run that failed here before may start at a boot together with the one that came after it
            while (box := _only_one(folder.parent, BOX_LOCK)) is None:
                if state.cancelled():  # it will measure nothing: it only ends
                    return agent.run()
                print(f"{order.run} waits: another run has this box", flush=True)
                if agent.asked.wait(order.poll_s * 5):
                    return 0
            with box:
                return agent.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
