"""Adapters (LoRA and its kind): small models that are of use with one base, and that base's digest.

An adapter's `adapter_config.json` names its base; a name is no digest. So an adapter that a trainer of neuronbench
exports has `base_model.json` beside it, with the digest over the base's weight files; and a store keeps, beside the
list of an adapter's files, what it was told of the base (`about/<digest>/<hash>.json`), which readers that know nothing
of it do not miss. What was told is never changed; two bases for one adapter are an error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronbench import modelfiles
from neuronbench.model import Json, canonical_json
from neuronbench.weights.blobs import Blobs
from neuronbench.weights.manifest import Manifest, StoreError

CONFIG: Final = "adapter_config.json"
BASE: Final = "base_model.json"
FORMAT: Final = 1
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LARGEST: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Base:
    """The model that an adapter belongs to, as far as it is known."""

    reference: str = ""
    """Its name, for people."""
    digest: str = ""
    """Of all its files: its address in a store."""
    weights_digest: str = ""
    """Over its weight files alone, as facts of endpoints and trainers have it. It decides whether the two belong
    together: a tokenizer's file may differ."""

    @property
    def known(self) -> bool:
        """Whether more is known than a name."""
        return bool(self.digest or self.weights_digest)

    def to_json(self) -> dict[str, Json]:
        return {"reference": self.reference, "digest": self.digest, "weights_digest": self.weights_digest}

    @classmethod
    def of(cls, manifest: Manifest, reference: str = "") -> Base:
        """A model as a base."""
        return cls(reference=reference, digest=manifest.digest, weights_digest=manifest.weights_digest)

    @classmethod
    def from_json(cls, told: Mapping[str, Json]) -> Base:
        """Raises `ValueError` for digests that are none."""
        made = cls(**{name: str(told.get(name) or "") for name in ("reference", "digest", "weights_digest")})
        for name in ("digest", "weights_digest"):
            if getattr(made, name) and not _DIGEST.fullmatch(getattr(made, name)):
                raise ValueError(f"{name} {getattr(made, name)!r} is no SHA-256")
        return made

    def joined(self, other: Base, adapter: str) -> Base:
        """What both know. Raises `StoreError` where they are two bases."""
        check_pair(self, other, adapter)
        return Base(
            reference=self.reference or other.reference,
            digest=self.digest or other.digest,
            weights_digest=self.weights_digest or other.weights_digest,
        )


def is_adapter(manifest: Manifest) -> bool:
    """Whether these are the files of an adapter."""
    return CONFIG in manifest.files and "config.json" not in manifest.files


def base_in(folder: Path) -> Base:
    """What an adapter's folder says of its base. Raises `StoreError` for files that cannot be read."""
    try:
        config = modelfiles.read_json(folder / CONFIG)
        told = Base.from_json(modelfiles.read_json(folder / BASE))
    except ValueError as error:
        raise StoreError("weights_corrupt", f"{folder}: {error}", remedy="Export the adapter again.") from error
    name = told.reference or str(config.get("base_model_name_or_path") or "")
    return Base(reference=name, digest=told.digest, weights_digest=told.weights_digest)


def write_base(folder: Path, base: Base) -> dict[str, Json]:
    """Write beside an adapter of which base it is; the file's `sha256` and `bytes`."""
    text = canonical_json(base.to_json()).encode()
    (folder / BASE).write_bytes(text)
    return {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}


def check_pair(wanted: Base, found: Base, adapter: str) -> None:
    """Raise `StoreError` with both digests when an adapter's base and another one are known not to be the same."""
    pairs = ((wanted.weights_digest, found.weights_digest), (wanted.digest, found.digest))
    for left, right in pairs:
        if left and right:
            if left == right:
                return
            raise StoreError(
                "adapter_base_mismatch",
                f"{adapter} belongs to a base of digest {left}{_named(wanted)}, found {right}{_named(found)}",
                remedy="Use the base that it was trained on: with another one it computes something, and nothing of "
                "worth.", expected=left, found=right,
            )  # fmt: skip


class AdapterFacts:
    """What a store was told of its adapters."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs

    def tell(self, digest: str, base: Base) -> Base:
        """Keep what is known of an adapter's base; returns all that is known of it.

        Raises `StoreError` when the store knows of another base.
        """
        known = self.base(digest)
        if known is not None:
            base = known.joined(base, f"the adapter {digest[:16]}")
        text = canonical_json({"format": FORMAT, "kind": "adapter", "model": digest, "base": base.to_json()}).encode()
        name = hashlib.sha256(text).hexdigest()[:32]
        self.blobs.write(f"about/{digest}/{name}.json", [text], len(text))
        return base

    def base(self, digest: str) -> Base | None:
        """What is known of an adapter's base; None where nothing was told of that model, which then is no adapter.

        Raises `StoreError` for what cannot be read, and where two bases were told.
        """
        found: Base | None = None
        for key in sorted(self.blobs.keys(f"about/{digest}/")):
            told = self._read(key, digest)
            found = told if found is None else found.joined(told, f"the adapter {digest[:16]}")
        return found

    def adapters(self) -> set[str]:
        """Digests of the models of which something was told: one look for all of them."""
        return {key.split("/")[1] for key in self.blobs.keys("about/") if key.count("/") == 2}

    def _read(self, key: str, digest: str) -> Base:
        held = bytearray()
        for piece in self.blobs.read(key):
            held += piece
            if len(held) > _LARGEST:
                break
        try:
            told = json.loads(bytes(held))
            if told["format"] != FORMAT or told["kind"] != "adapter" or told["model"] != digest:
                raise ValueError("it is not what is known of that adapter")
            named = hashlib.sha256(bytes(held)).hexdigest()[:32]
            if key.rpartition("/")[2] != f"{named}.json":
                raise ValueError("it was changed")
            return Base.from_json(told["base"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                "weights_corrupt", f"{self.blobs.url}: {key} cannot be used: {error}",
                remedy="Remove that object from the store and put the adapter in again.",
            ) from error  # fmt: skip


def _named(base: Base) -> str:
    return f" ({base.reference})" if base.reference else ""
