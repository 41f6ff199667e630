"""Which artifact a server runs: no file of its own, but its weights and all that decides what they answer."""

from __future__ import annotations

from collections.abc import Mapping

from neuronbench.model import Json, ResourceSpec, fingerprint

_NAMES = frozenset({"model", "served_model"})
"""Settings that only name the weights."""


def artifact(
    spec: ResourceSpec, *, weights: Mapping[str, Json], versions: Mapping[str, Json], target: Mapping[str, Json]
) -> dict[str, Json]:
    """`facts["artifact"]` of an endpoint, by which evidence of accuracy is found: the same key, the same answers.

    `weights`: facts of the model (`weights_digest` is what counts); `versions` of the server's software; `target`: the
    hardware it runs on. Without a digest of the weights there is no identity, and the mapping is empty.
    """
    digest = weights.get("weights_digest")
    if not digest:
        return {}
    parts: dict[str, Json] = {
        "weights": digest,
        "backend": spec.backend,
        "provider": spec.provider,
        "settings": {name: value for name, value in spec.settings.items() if name not in _NAMES},
        "versions": dict(versions),
        "target": dict(target),
    }
    return {"key": fingerprint(parts, digest_bytes=12), "parts": parts}
