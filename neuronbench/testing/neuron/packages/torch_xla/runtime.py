"""The calls of `torch_xla.runtime` that trainers use."""

from __future__ import annotations

import os


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def global_ordinal() -> int:
    return int(os.environ.get("RANK", "0"))


def local_ordinal() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def device_type() -> str:
    return "NEURON"
