"""Models by digest, in a folder or in S3: how trained weights get to the server, and how one knows that they did."""

from __future__ import annotations

from pathlib import Path

from neuronbench.weights.adapters import Base
from neuronbench.weights.blobs import Blobs, LocalBlobs, blobs
from neuronbench.weights.manifest import FileEntry, Manifest, StoreError
from neuronbench.weights.store import Shipped, WeightStore, same

__all__ = [
    "Base",
    "Blobs",
    "FileEntry",
    "LocalBlobs",
    "Manifest",
    "Shipped",
    "StoreError",
    "WeightStore",
    "same",
    "store",
]


def store(reference: str, *, root: Path | None = None) -> WeightStore:
    """The store at `s3://BUCKET/PREFIX`, or in a folder. Raises `StoreError` for anything else."""
    return WeightStore(blobs(reference, root=root))
