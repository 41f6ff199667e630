"""Tables that come with neuronbench: models, failure signatures. Data in TOML beside this file, read on first use."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any


@functools.cache
def load_table(name: str) -> Mapping[str, Any]:
    """The parsed TOML file `name` of this folder. Raises `FileNotFoundError` for a name that does not exist."""
    return tomllib.loads((resources.files(__name__) / name).read_text(encoding="utf-8"))
