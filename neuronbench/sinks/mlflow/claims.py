"""One run for one thing, whoever else delivers it at the same time: another host, too, that knows none of our locks.

MLflow has nothing that is made once only: ids are the server's, tags can be overwritten. So who has made a run looks
again, and where there are several the makers agree without talking: a run that has ended stays; else the one with the
smallest id does. Its maker waits for the others, who take theirs back when they look, or, when they looked before it
was there, end theirs: then it goes. A run is taken back by deleting it (MLflow keeps deleted runs in its bin).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from neuronbench.receipts import may_be_alive
from neuronbench.receipts.owner import this_process

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

WRITER: Final = "nb.writer"
"""Tag that says which process fills a run."""
_OPEN: Final = frozenset({"RUNNING", "SCHEDULED"})
_LOOK_S, _LONGEST_LOOK_S = 0.1, 2.0
"""From one look at what others do to the next: each is a request, and many may be waiting."""
_PAGE: Final = 500


def runs(client: MlflowClient, experiment: str, tag: str, value: str) -> list[Run]:
    """Every run with that tag, by id."""
    quote = "'" if "'" not in value else '"'
    found = client.search_runs([experiment], filter_string=f"tags.`{tag}` = {quote}{value}{quote}", max_results=100)
    return sorted(found, key=lambda run: str(run.info.run_id))


def every(client: MlflowClient, experiments: list[str], query: str) -> Iterator[Run]:
    """Every run that the query finds, page by page."""
    token: str | None = None
    while True:
        page = client.search_runs(experiments, filter_string=query, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def writer_tag() -> dict[str, str]:
    return {WRITER: json.dumps(this_process())}


def is_open(run: Run) -> bool:
    return run.info.status in _OPEN


def pauses() -> Iterator[float]:
    """Seconds from one look at what others do to the next."""
    pause_s = _LOOK_S
    while True:
        yield pause_s
        pause_s = min(1.5 * pause_s, _LONGEST_LOOK_S)


def claim(
    client: MlflowClient, experiment: str, tag: str, value: str, make: Callable[[], Run], *, wait_s: float | None,
    fresh: bool = False, made: Run | None = None,
) -> tuple[Run, bool]:  # fmt: skip
    """The run that stands for `value`, made by `make` when there is none, and whether it is ours to fill.

    One that another process is filling is waited for, `wait_s` at most; then, or when that process is dead, it is
    ours: what it has already is written again, which changes nothing. `wait_s` is None where a lock keeps all others
    away. `fresh` saves the look before where hardly anything can be there; the look after decides in any case.
    `made` is what `make` has made before.
    """
    while True:
        looked = made is None and (not fresh or wait_s is None)
        run = _others(client, experiment, tag, value, wait_s or 0.0) if looked else None
        fresh = False
        if run is not None:
            if is_open(run):
                client.set_tag(run.info.run_id, WRITER, writer_tag()[WRITER])
            return run, is_open(run)
        mine, made = made or make(), None
        if wait_s is None:
            return mine, True
        rivals = [run for run in runs(client, experiment, tag, value) if run.info.run_id != mine.info.run_id]
        if not rivals:
            return mine, True
        if rivals[0].info.run_id > mine.info.run_id and all(is_open(run) for run in rivals):
            rivals = _last_word(client, rivals, wait_s)
            if all(is_open(run) for run in rivals):
                for run in rivals:  # their makers are gone, or will find it so
                    client.delete_run(run.info.run_id)
                return mine, True
        client.delete_run(mine.info.run_id)


def standing(client: MlflowClient, there: list[Run]) -> Run | None:
    """The one that has ended, if one has; what a process that is dead has left open beside it is taken back."""
    ended = [run for run in there if not is_open(run)]
    for run in there if ended else ():
        if is_open(run) and not is_filled(run):
            client.delete_run(run.info.run_id)
    return ended[0] if ended else None


def is_gone(client: MlflowClient, run_id: str) -> bool:
    """Whether a run has been taken back, by its maker or by somebody who waited for that one in vain."""
    try:
        return bool(client.get_run(run_id).info.lifecycle_stage != "active")
    except Exception:  # then there is another trouble, and that is the one to tell of
        return False


def _others(client: MlflowClient, experiment: str, tag: str, value: str, wait_s: float) -> Run | None:
    """What others have made: one that has ended, or one whose writer has been waited for. None: nothing is there."""
    until = time.monotonic() + wait_s
    for pause_s in pauses():
        there = runs(client, experiment, tag, value)
        if not there:
            return None
        ended = standing(client, there)
        if ended is not None:
            return ended
        if time.monotonic() >= until or not any(is_filled(run) for run in there):
            for run in there[1:]:
                client.delete_run(run.info.run_id)
            return there[0]
        time.sleep(pause_s)
    raise AssertionError("pauses do not end")


def _last_word(client: MlflowClient, rivals: list[Run], wait_s: float) -> list[Run]:
    """The rivals that are still there once all of them have ended or gone, or after `wait_s`."""
    until = time.monotonic() + wait_s
    for pause_s in pauses():
        now = [client.get_run(run.info.run_id) for run in rivals]
        there = [run for run in now if run.info.lifecycle_stage == "active"]
        if not any(is_open(run) and is_filled(run) for run in there) or time.monotonic() >= until:
            return there
        if any(not is_open(run) for run in there):
            return there
        time.sleep(pause_s)
    raise AssertionError("pauses do not end")


def is_filled(run: Run) -> bool:
    """Whether the process that fills a run may be at it still; this one is not, it is here."""
    try:
        owner = json.loads(run.data.tags.get(WRITER, ""))
    except ValueError:
        return False
    return isinstance(owner, dict) and owner != this_process() and may_be_alive(owner)
