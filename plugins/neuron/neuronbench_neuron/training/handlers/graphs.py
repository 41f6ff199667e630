"""Graphs in a compile cache, counted by who trains. A cache that is no folder of this host cannot be counted."""

from __future__ import annotations

from pathlib import Path

DONE = "model.done"


def kept(cache: str) -> set[str] | None:
    """Names of the compiled graphs; None where the cache is elsewhere (`s3://...`): nobody looks, which is not none."""
    if "://" in cache:
        return None
    return {path.parent.name for path in Path(cache).glob(f"neuronxcc-*/MODULE_*/{DONE}")}


def grown(before: set[str] | None, after: set[str] | None) -> int | None:
    """How many came; None where one of the two is not known."""
    return None if before is None or after is None else len(after - before)
