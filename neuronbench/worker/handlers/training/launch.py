"""Start ranks as torchrun does, and leave word of how they ended: `launch.py FOLDER ARGUMENTS OF TORCHRUN`.

A rank that raised says so itself (`ranks.py`). One that was killed, or that a library aborted, cannot; torchrun knows
its signal or status, and prints them where nobody looks for them. FOLDER is that of the run.
"""

from __future__ import annotations

import importlib
import json
import time
import traceback
from pathlib import Path
from typing import Any

ERRORS = ".rank-errors"
"""Folder in that of a run in which ranks, and torchrun itself, say what ended them; and that they had done all."""
AFTER = "after-the-end.txt"
"""File of a run whose ranks had all done all of their work, when one of them still ended badly: which, and how."""


def leave(folder: Path, who: str, line: str, *, by_signal: bool = False) -> None:
    """Leave word of what ended `who`, a rank's number or `torchrun`; called in an `except` clause."""
    (folder / ERRORS).mkdir(exist_ok=True)
    word = {"line": line, "by_signal": by_signal, "at_ns": time.monotonic_ns(), "traceback": traceback.format_exc()}
    (folder / ERRORS / f"{who}.json").write_text(json.dumps(word), encoding="utf-8")


def leave_done(folder: Path, rank: str) -> None:
    """Leave word that this rank has done all of its work: what ends it from now on ends an interpreter, no run."""
    (folder / ERRORS).mkdir(exist_ok=True)
    (folder / ERRORS / f"{rank}.done").touch()


def all_done(folder: Path, world_size: int) -> bool:
    """Whether every rank left that word."""
    return all((folder / ERRORS / f"{rank}.done").exists() for rank in range(world_size))


def words(folder: Path) -> list[str]:
    """What ended them, `rank 1: ...`, the first to end first; empty when nothing did.

    One that a signal ended goes before those that raised: these miss it, and say so while torchrun has yet to notice.
    """
    told: list[tuple[bool, int, str]] = []
    for path in (folder / ERRORS).glob("*.json"):
        word: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        who = f"rank {path.stem}" if path.stem.isdigit() else path.stem
        told.append((not word["by_signal"], word["at_ns"], f"{who}: {word['line']}"))
    return [line for _, _, line in sorted(told)]


def after_the_end(folder: Path) -> list[str]:
    """How ranks ended that had done all of their work, where that was not well: `rank 1: ended by SIGSEGV`."""
    try:
        return (folder / AFTER).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def noted(folder: Path, error: Any) -> None:
    """Leave word of the ranks in torch's `ChildFailedError` that could not."""
    for rank, failure in error.failures.items():
        if (folder / ERRORS / f"{rank}.json").exists():
            continue
        if failure.exitcode >= 0:
            leave(folder, str(rank), f"ended with status {failure.exitcode}")
        elif failure.signal_name() != "SIGTERM" or len(error.failures) == 1:  # else torchrun's own, to those left
            leave(folder, str(rank), f"ended by {failure.signal_name()}", by_signal=True)


def main(folder: Path, arguments: list[str]) -> None:
    run = importlib.import_module("torch.distributed.run")
    errors = importlib.import_module("torch.distributed.elastic.multiprocessing.errors")
    try:
        run.main(arguments)
    except errors.ChildFailedError as error:
        noted(folder, error)
        raise
    except Exception as error:
        leave(folder, "torchrun", traceback.format_exception_only(error)[-1].strip())
        raise


if __name__ == "__main__":
    import sys

    main(Path(sys.argv[1]), sys.argv[2:])
