"""Answers of reference models, made once: kept by the digest of the weights, of how they are run, and of the inputs.

The reference of a compiled model (same weights, fp32, not compiled, same host) answers the same inputs the same way in
every session, and for a large model that is most of what an accuracy point takes. Answers that were damaged on disk are
found by their digest and made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.artifacts import REFERENCES, Artifact, ArtifactCache
from neuronbench.model import Json
from neuronbench.protocols import Progress
from neuronbench.worker import batches

if TYPE_CHECKING:
    from neuronbench.worker.batches import Arrays

FILE: Final = "answers.npz"


@dataclass(frozen=True, kw_only=True)
class References:
    """Where a model's reference answers are kept, and what else than the inputs decides them."""

    cache_dir: Path
    parts: Mapping[str, Json]
    """Weights, how they are built and run, versions, processor."""
    title: str
    """For people: which model."""

    def obtain(
        self,
        inputs: Sequence[Arrays],
        ask: Callable[[], Sequence[Arrays]],
        *,
        progress: Progress = lambda text: None,
        deadline_s: float,
    ) -> tuple[list[Arrays], Mapping[str, Json]]:
        """Answers to `inputs`, from the cache or by `ask()`; and for the record where they are from."""
        parts = {**self.parts, "inputs": [batches.digest(each) for each in inputs]}
        fresh: list[Arrays] = []

        def make(folder: Path) -> Mapping[str, Json]:
            fresh.extend(ask())
            save(folder / FILE, fresh)
            return {"answers": len(fresh)}

        cache = ArtifactCache(self.cache_dir, "references", REFERENCES)
        found = cache.obtain(parts, make, progress=progress, deadline_s=deadline_s, title=self.title)
        try:
            return fresh if fresh else load(found.folder / FILE), said_of(found)
        finally:
            found.release()


def said_of(found: Artifact) -> dict[str, Json]:
    """What a record says of where a reference's answers are from."""
    return {
        "cache": "hit" if found.hit else "miss",
        "key": found.key,
        "made_at": found.manifest["created_at"],
        "notes": list(found.notes),
    }


def save(path: Path, answers: Sequence[Arrays]) -> None:
    """Arrays by name, of several calls, as one file."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for call, each in enumerate(answers):
        arrays.update({f"{call}/{name}": value for name, value in each.items()})
    np.savez(path, **arrays)


def load(path: Path) -> list[Arrays]:
    """What `save` wrote."""
    import numpy as np

    found: list[dict[str, Any]] = []
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            call, _, name = key.partition("/")
            while len(found) <= int(call):
                found.append({})
            found[int(call)][name] = file[key]
    return list(found)
