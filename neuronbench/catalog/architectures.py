"""Configurations of published models, so that their exact architecture can be had with random weights anywhere."""

from __future__ import annotations

from neuronbench.catalog import load_table
from neuronbench.model import Json


def plain_name(reference: str) -> str:
    """`hub:google-t5/T5-small@main` → `t5-small`: what a model is called without scheme, owner and revision."""
    _, _, name = reference.rpartition(":")
    return name.partition("@")[0].rstrip("/").rpartition("/")[2].lower()


def architecture_of(reference: str) -> dict[str, Json] | None:
    """The configuration (of transformers, with `model_type`) of a published model; None when the catalogue has none."""
    wanted = plain_name(reference)
    for entry in load_table("architectures.toml")["architecture"]:
        if wanted in entry["names"]:
            return dict(entry["config"])
    return None
