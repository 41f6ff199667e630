"""Calibrations on disk: one JSON file per host and version, below the cache folder."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import neuronbench
from neuronbench.calibration.points import Calibration
from neuronbench.model import Json, fingerprint, slug

if TYPE_CHECKING:
    from neuronbench.config import Settings

HOST_FACTS: Final = ("host.id", "host.arch", "host.cpu_model", "host.cores", "host.cpu_quota_cores", "host.kernel")
"""A host that differs in one of these is another one: a client is as fast as its cores and its kernel let it be."""


def host_facts() -> dict[str, Json]:
    """The facts that make this host the one it is."""
    from neuronbench import environment

    facts = environment.host_facts()
    return {name: facts.get(name) for name in HOST_FACTS}


def host_key() -> str:
    """Short key of this host."""
    return fingerprint(host_facts(), digest_bytes=5)


def path_of(settings: Settings) -> Path:
    """Where this host's calibration for this version is, or will be."""
    return settings.cache_dir / "calibration" / f"{host_key()}-{slug(neuronbench.__version__)}.json"


def load(settings: Settings) -> Calibration | None:
    """This host's calibration; None when there is none, or it cannot be read (then a new one is to be made)."""
    try:
        return Calibration.from_json(json.loads(path_of(settings).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(settings: Settings, calibration: Calibration) -> Path:
    """Write it in one step, over an earlier one."""
    path = path_of(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=path.stem, suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(calibration.to_json(), file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path
