"""What a person sees of a run on a fleet: a line for what happens, one for where it stands, the summary."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from neuronbench.commands.host import ProgressLine, complain, say, show, table
from neuronbench.model import Outcome, Record
from neuronbench.words import counted
from neuronbench_ray.place.groups import Box, Group
from neuronbench_ray.place.ledger import Attempt, Ledger, Loss

GOOD = (Outcome.OK, Outcome.XFAILED, Outcome.SKIPPED, Outcome.CACHED)


class Screen:
    """Lines on standard output, progress on standard error."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.progress = ProgressLine(heartbeat_s=30.0)
        """Where it stands: rewritten in place on a terminal, a line now and then elsewhere."""

    def line(self, text: str) -> None:
        self.progress.done()
        say(f"[{time.monotonic() - self._began:6.0f} s] {text}")

    def warn(self, text: str) -> None:
        self.progress.done()
        complain(text)

    def begins(self, boxes: Sequence[Box], groups: Sequence[Group], skipped: Mapping[str, str], cached: int) -> None:
        """The nodes, and what is to be measured on them."""
        rows = [
            (box.name, str(box.cores or "–"), str(sum(not item.skip for item in box.plan.items)))
            for box in sorted(boxes, key=lambda box: box.name)
        ]
        self.progress.done()
        show(table(("node", "neuron cores", "points it can run"), rows, right=("neuron cores", "points it can run")))
        items = sum(len(group.items) for group in groups)
        parts = f"{counted(items, 'point')} in {counted(len(groups), 'group')}"
        say(f"{parts}, {len(skipped)} skipped" + (f", {cached} cached" if cached else ""))
        for reason, count in Counter(skipped.values()).most_common(5):
            say(f"  skipped {count}: {reason}")

    def placed(self, attempt: Attempt) -> None:
        on = f" (cores {','.join(attempt.cores)})" if attempt.cores else ""
        self.line(f"{attempt.box.name}{on} takes {counted(len(attempt.group.items), 'point')} ({attempt.id})")

    def taken(self, node: str, after_s: float) -> None:
        """A box that cannot be leased is waited for, and somebody may want to know for whom."""
        why = "other work of the cluster may have its cores or CPUs (neuronbench ray status), and is waited for"
        self.line(f"{node} could not be leased within {after_s:g} s: {why}")

    def recorded(self, attempt: Attempt, record: Record, headline: str) -> None:
        word = f"{record.outcome}"
        if record.outcome is Outcome.OK and record.validity.value != "valid":
            word = record.validity.value
        if record.error is not None:
            headline = record.error.causal_line or record.error.message
        if record.kind != "point" and record.outcome is Outcome.OK:
            headline = f"{record.duration_s:.0f} s" if record.duration_s else ""
        self.line(f"{attempt.box.name}  {word:<11}  {record.receipt_name}  {headline}".rstrip())

    def lost(self, attempt: Attempt, loss: Loss, record: Record) -> None:
        assert record.error is not None
        then = "given up" if loss.gave_up else "placed again"
        why = f"{record.error.kind}: {record.error.causal_line}"
        self.line(f"{attempt.box.name}  LOST         {loss.item.name}  {why} ({then})")

    def stands(self, ledger: Ledger, boxes: int) -> None:
        live = ledger.live
        running = ", ".join(f"{one.box.name}: {one.running or 'starting'}" for one in live)
        waiting = len(ledger.missing)
        where = f", {counted(boxes, 'node')}" + (f"; {running}" if running else "")
        self.progress(f"{len(ledger.done)} recorded, {waiting} waiting{where}")

    def ends(self, counts: Mapping[str, int], seconds: float, missing: Sequence[str], where: str) -> None:
        self.progress.done()
        for name in missing[:20]:
            say(f"  missing: {name}")
        if len(missing) > 20:
            say(f"  missing: and {len(missing) - 20} more")
        said = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "nothing was run"
        if counts.get("lost attempts") == 1:
            said = said.replace("1 lost attempts", "1 lost attempt")
        say(f"{said} in {seconds:.1f} s")
        say(f"receipts: {where}")
        sys.stdout.flush()
