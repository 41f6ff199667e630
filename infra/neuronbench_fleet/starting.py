"""`fleet up`, without its options: what is there, what is missing, and nothing left behind when it goes wrong."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from neuronbench_fleet import blocks, launch
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.boxes import ASLEEP, GONE, Box, list_boxes, terminate, wait_for
from neuronbench_fleet.capacity import Candidate, Order, allowed_hours, candidates, expiry
from neuronbench_fleet.costs import told_rate
from neuronbench_fleet.errors import TRANSIENT, AwsError, FleetError, UsageError
from neuronbench_fleet.pace import backoff_s
from neuronbench_fleet.ready import BoxFailed, await_ready, keep_console
from neuronbench_fleet.search import FIRST_WAIT_S, LONGEST_WAIT_S, Search

_STOPPING_S: Final = 900.0


@dataclass(kw_only=True)
class Starting:
    """One `fleet up`."""

    aws: Aws
    order: Order
    purchases: Sequence[str]
    zones: Sequence[str]
    any_type: bool
    """No type was asked for: whatever type the fleet has is fine."""
    ready_within_s: float
    folder: Path
    """Attempts and what boxes printed are kept there."""
    say: Callable[[str], None]
    progress: Callable[[str], None]
    confirm: Callable[[blocks.Offer], bool]
    search: Search = field(init=False)
    woken: list[str] = field(default_factory=list)
    outcome: str = "there"
    """`there`, `woken`, `started`, or `planned` in a dry run."""

    def __post_init__(self) -> None:
        self.search = self._search()

    def run(self) -> list[Box]:
        """The fleet's boxes, usable; in a dry run those that are there. Raises `FleetError`.

        On any failure, Ctrl-C and the end of the terminal included, boxes that this call has started and that are not
        usable are ended, and boxes that it has woken are stopped again.
        """
        deadline_s = self.aws.pace.now_s() + self.order.limits.wait_s
        with self._ends_as_interrupt():
            try:
                return self._run(deadline_s)
            except BaseException as why:
                self._undo(why)
                raise

    def _run(self, deadline_s: float) -> list[Box]:
        known = list_boxes(self.aws, self.order.deployment.name, self.order.fleet)
        there = [box for box in known if box.state not in GONE]
        self._check_same(there)
        asleep = [box for box in there if box.state in ASLEEP]
        missing = self.order.count - len(there)
        if asleep:
            self._wake(asleep, deadline_s)
        if missing <= 0:
            return self._usable(there)
        if there:
            self.say(f"{self.order.fleet} has {len(there)} of {self.order.count} boxes; {missing} more")
        return self._start(there, missing, deadline_s)

    # -- what is missing

    def _start(self, there: Sequence[Box], missing: int, deadline_s: float) -> list[Box]:
        order = Order(**{**vars(self.order), "count": missing})
        self.search.order = order
        self.search.there = frozenset(box.id for box in there)
        found: list[Candidate] = candidates(self.aws, order, self.purchases, self.zones)
        while True:
            ids = self.search.run(found, deadline_s=deadline_s)
            if self.aws.dry_run:
                self.outcome = "planned"
                self.say(
                    "then: wait until EC2 says running and Systems Manager says Online; end what does not get there"
                )
                return list(there)
            mine = [id_ for id_ in ids if id_ in self.search.launched.ids]
            try:
                self._yield_to_others(mine, there)
                boxes = await_ready(
                    self.aws, [*(box.id for box in there), *ids], timeout_s=self.ready_within_s, progress=self.progress
                )
                self._yield_to_others(mine, there)
                self._end_strays(ids)
            except BoxFailed as error:
                self._keep_console(error.box)
                if not mine or error.kind != "capacity" or self.aws.pace.now_s() > deadline_s:
                    raise
                self.say(f"{error}; the search goes on")
                terminate(self.aws, mine)
                self.search.launched.ids = [id_ for id_ in self.search.launched.ids if id_ not in mine]
                continue
            self.outcome = "started" if mine else "there"
            return boxes

    def _yield_to_others(self, mine: Sequence[str], there: Sequence[Box]) -> None:
        strange = launch.others(self.aws, self.search.order, [*mine, *(box.id for box in there)]) if mine else []
        if strange:
            ids = ", ".join(box.id for box in strange)
            raise FleetError(
                f"somebody else started {self.order.fleet} at the same time, and was first: {ids}",
                kind="conflict",
                remedy="theirs is used by this name: `neuronbench fleet status`; yours is ended",
            )

    def _end_strays(self, kept: Sequence[str]) -> None:
        """Boxes of attempts whose answer was lost, and that turned up late."""
        strays = [id_ for id_ in self.search.launched.all_ids(self.aws) if id_ not in kept]
        if strays:
            self.say(f"ending boxes that turned up late: {', '.join(strays)}")
            terminate(self.aws, strays)

    # -- what is there

    def _check_same(self, there: Sequence[Box]) -> None:
        for box in there:
            if box.kind != self.order.box.kind:
                raise FleetError(
                    f"the fleet {self.order.fleet!r} is there with boxes of kind {box.kind}, not {self.order.box.kind}:"
                    f" {box.id} is {box.state}",
                    kind="conflict",
                    remedy=f"another name, or first: neuronbench fleet down {self.order.fleet}",
                )
            if not self.any_type and box.instance_type != self.order.instance_type:
                raise FleetError(
                    f"the fleet {self.order.fleet!r} is there with {box.instance_type}, not {self.order.instance_type}:"
                    f" {box.id} is {box.state}",
                    kind="conflict",
                    remedy=f"another name, or first: neuronbench fleet down {self.order.fleet}",
                )
        if len(there) > self.order.count:
            self.say(f"{self.order.fleet} has {len(there)} boxes, more than the {self.order.count} asked for; all stay")

    def _usable(self, there: Sequence[Box]) -> list[Box]:
        if self.aws.dry_run:
            self.say(
                f"{self.order.fleet} is there: {', '.join(f'{box.id} {box.state}' for box in there)}; nothing to start"
            )
            return list(there)
        boxes = await_ready(
            self.aws, [box.id for box in there], timeout_s=self.ready_within_s, progress=self.progress
        )  # fmt: skip
        self.outcome = "woken" if self.woken else "there"
        return boxes

    def _wake(self, asleep: Sequence[Box], deadline_s: float) -> None:
        """Start boxes that were stopped: the same disks, new limits."""
        aws, ids = self.aws, [box.id for box in asleep]
        if not aws.dry_run and wait_for(aws, ids, ("stopped", *GONE), timeout_s=_STOPPING_S, progress=self.progress):
            raise FleetError(f"{', '.join(ids)}: still stopping", remedy="again in some minutes")
        limits = self.order.limits
        for box in asleep:
            rate = told_rate(limits.usd_per_hour) if limits.usd_per_hour is not None else box.rate
            if limits.max_usd is not None and rate is None:
                raise UsageError(
                    f"--max-usd {limits.max_usd:g} cannot be kept: what {box.id} costs is not known",
                    remedy="say what an hour of one box costs (--usd-per-hour), or limit the time alone (--max-hours)",
                )
            told = launch.limits_tags(self.order, rate, expiry(self.order, rate))
            told["neuronbench:hours_before"] = f"{box.hours(box.ended or box.launched):.4g}"
            if limits.max_usd is not None:  # for this start; what is compared with it is the cost of all of them
                before = box.spent_usd(box.ended or box.launched) or 0.0
                told["neuronbench:max_usd"] = f"{limits.max_usd / self.order.count + before:.10g}"
            elif box.max_usd is not None:
                told["neuronbench:max_usd"] = ""  # tags can be written, not taken off
            self.say(f"{box.id} is {box.state}: starting it again, for up to {allowed_hours(self.order, rate):.4g} h")
            aws.call("ec2", "create_tags", Resources=[box.id], Tags=[{"Key": k, "Value": v} for k, v in told.items()])
        attempt = 0
        while True:
            attempt += 1
            try:
                aws.call("ec2", "start_instances", InstanceIds=ids)
            except AwsError as error:
                delay_s = backoff_s(attempt, base_s=FIRST_WAIT_S, most_s=LONGEST_WAIT_S)
                patient = error.kind == "capacity" or error.kind in TRANSIENT
                if not patient or aws.pace.now_s() + delay_s > deadline_s:
                    raise
                self.say(f"starting {', '.join(ids)}: {error.trouble.code}: {error.trouble.message}")
                aws.pace.wait(delay_s)
                continue
            if not aws.dry_run:
                self.woken = ids
            return

    # -- when it goes wrong

    def _undo(self, why: BaseException) -> None:
        if self.aws.dry_run or not (self.search.launched.tokens or self.woken):
            return
        name, region = self.order.fleet, self.order.deployment.region
        ids: list[str] = list(self.search.launched.ids)
        try:
            ids = self.search.launched.all_ids(self.aws)
            if ids:
                self.say(f"ending what was started and is not usable: {', '.join(ids)}")
                terminate(self.aws, ids)
                wait_for(self.aws, ids, GONE, timeout_s=60.0, progress=self.progress)
            if self.woken:
                self.say(f"stopping again: {', '.join(self.woken)}")
                self.aws.call("ec2", "stop_instances", InstanceIds=self.woken)
        except (Exception, KeyboardInterrupt) as error:  # whatever it is, the way out has to be told
            self.say(
                f"NOT ended ({error or type(error).__name__}): {', '.join(ids) or 'what was started'} may run and"
                f" cost.\n  To do: neuronbench fleet down {name} --force --region {region}"
                + (
                    f"\n  or: aws ec2 terminate-instances --region {region} --instance-ids {' '.join(ids)}"
                    if ids
                    else ""
                )
            )

    @contextlib.contextmanager
    def _ends_as_interrupt(self) -> Iterator[None]:
        """SIGTERM and the end of the terminal are Ctrl-C here: boxes must not outlive who started them unnoticed."""

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        before: dict[signal.Signals, Any] = {}
        try:
            for number in (signal.SIGTERM, signal.SIGHUP):
                before[number] = signal.signal(number, interrupt)
        except ValueError:  # not in the main thread
            pass
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _keep_console(self, box: str) -> None:
        kept = keep_console(self.aws, box, self.folder)
        if kept is not None:
            self.say(f"what {box} printed: {kept}")

    def _search(self) -> Search:
        return Search(
            aws=self.aws, order=self.order, log=self.folder / "attempts.jsonl", say=self.say, progress=self.progress,
            confirm=self.confirm,
        )  # fmt: skip
