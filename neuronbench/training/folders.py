"""Where training runs keep checkpoints and final states: below the cache, never in a receipt.

`runs/` holds those of one point's measurement, removed with the point; `resumable/` those that a later session may go
on from, named by what they are a run of. Each says which process uses it, so that what a killed process left is found.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from neuronbench.model import Json, fingerprint, slug
from neuronbench.receipts.owner import may_be_alive, this_process
from neuronbench.training import steps
from neuronbench.training.steps import StepLogError

OWNER: Final = "owner.json"
RUN: Final = "run"
"""Folder of the run itself, beside the note of who uses it."""
KEPT_S: Final = 14 * 24 * 3600.0
"""A run that nobody went on with for so long is removed."""


class InUse(RuntimeError):
    """Another process trains in the folder."""


def fresh(cache: Path, name: str) -> Path:
    """An empty folder for a run that nothing will go on from. Also clears up after processes that are gone."""
    base = cache / "training" / "runs"
    _prune(base, lambda folder: True)
    return _claim(base / slug(name), empty=True)


def resumable(cache: Path, identity: Mapping[str, Json]) -> Path:
    """The folder of the run that `identity` describes, as the last attempt left it; empty when that one was whole.

    Raises `InUse` when another process is at it.
    """
    base = cache / "training" / "resumable"
    now = time.time()
    _prune(base, lambda folder: now - folder.stat().st_mtime > KEPT_S)
    folder = base / fingerprint(identity)
    return _claim(folder, empty=_was_whole(folder / RUN))


def discard(run: Path) -> None:
    """Remove a run's folder and the note beside it."""
    shutil.rmtree(run.parent, ignore_errors=True)


def _claim(folder: Path, *, empty: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    mine, owner = this_process(), _owner(folder)
    if owner is not None and owner != mine and may_be_alive(owner):
        raise InUse(f"{folder} is used by process {owner.get('pid')} on {owner.get('host')}; wait for it, or end it")
    (folder / OWNER).write_text(json.dumps(mine), encoding="utf-8")
    run = folder / RUN
    if empty:
        shutil.rmtree(run, ignore_errors=True)
    run.mkdir(exist_ok=True)
    return run


def _owner(folder: Path) -> Mapping[str, Json] | None:
    try:
        found = json.loads((folder / OWNER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _was_whole(run: Path) -> bool:
    try:
        return steps.read(run).complete
    except StepLogError:
        return False


def _prune(base: Path, old: Callable[[Path], bool]) -> None:
    for folder in base.iterdir() if base.is_dir() else ():
        owner = _owner(folder)
        if owner is not None and not may_be_alive(owner) and old(folder):
            shutil.rmtree(folder, ignore_errors=True)
