"""Where the tools of the Neuron SDK are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

FOLDER: Final = "opt/aws/neuron/bin"
"""Where their package puts them; it is on the PATH of login shells only."""


def find_tool(name: str, root: Path = Path("/")) -> Path | None:
    """On PATH, or where the package puts it; None where it is not installed."""
    found = shutil.which(name)
    if found:
        return Path(found)
    usual = root / FOLDER / name
    return usual if usual.is_file() else None
