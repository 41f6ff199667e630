"""An adapter and its base, side by side on one host: never with another base."""

from __future__ import annotations

from pathlib import Path

from neuronbench.protocols import Progress
from neuronbench.weights.adapters import Base, base_in, check_pair
from neuronbench.weights.manifest import Manifest, StoreError
from neuronbench.weights.store import Shipped, WeightStore


def base_named(store: WeightStore, told: str, *, root: Path, progress: Progress | None = None) -> Base:
    """The base that a user names: the digest of a model in the store (or the start of one), or a folder of this host.

    Raises `StoreError` when it is neither.
    """
    folder = Path(told).expanduser()
    folder = folder if folder.is_absolute() else root / folder
    if folder.is_dir():
        return Base.of(Manifest.of(folder, progress=progress), folder.name)
    return Base.of(store.manifest(store.full_digest(told)))


def get_base(
    store: WeightStore, digest: str, adapter: Path, into: Path, *, progress: Progress | None = None
) -> Shipped:
    """Bring the base of an adapter, which lies in the folder `adapter`, to the folder `into`.

    Where something is in `into` it has to be that base by its weights. Raises `StoreError`: `adapter_base_unknown` when
    nobody has said which base it is, `adapter_base_mismatch` with both digests for another one.
    """
    base = base_in(adapter)
    told = store.adapters.base(digest)
    base = base if told is None else told.joined(base, str(adapter))
    if not base.known:
        raise StoreError(
            "adapter_base_unknown",
            f"the base of adapter {digest[:16]} is known by its name alone ({base.reference or 'no name'}), "
            "which is no digest",
            remedy="Put the adapter in once more and say it: weights put FOLDER --base DIGEST_OR_FOLDER.",
        )  # fmt: skip
    if into.is_dir() and any(into.iterdir()):
        manifest = Manifest.of(into, progress=progress)
        check_pair(base, Base.of(manifest, into.name), f"the adapter {digest[:16]}")
        return Shipped(
            manifest=manifest, store=store.blobs.url, moved_bytes=0, reused_bytes=manifest.size_bytes, wall_s=0.0,
            verify_s=0.0, there=True,
        )  # fmt: skip
    found = base.digest if base.digest and store.has(base.digest) else _by_weights(store, base)
    if not found:
        raise StoreError(
            "weights_missing",
            f"{store.blobs.url} does not have the base of adapter {digest[:16]} (digest "
            f"{base.digest or base.weights_digest} over {'all its files' if base.digest else 'its weights'})",
            remedy=f"Put the base in: weights put FOLDER ({base.reference or 'the model it was trained on'}).",
            expected=base.digest or base.weights_digest,
        )  # fmt: skip
    return store.get(found, into, progress=progress)


def _by_weights(store: WeightStore, base: Base) -> str:
    if not base.weights_digest:
        return ""
    return next((each for each in store.digests() if store.manifest(each).weights_digest == base.weights_digest), "")
