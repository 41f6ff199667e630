"""Where the tools of the Neuron SDK are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

FOLDER: Final = "opt/aws/neuron/bin"
"""Where their package puts them; it is on the PATH of login shells only."""


def find_tool(name: str, root: Path = Path("/"), search_path: str | None = None) -> Path | None:
    """On the search path (PATH by default), or where the package puts it; None where it is not installed.

    Of a root that is not `/`, only a tool within it: another host's devices are not this one's.
    """
    told = os.environ.get("PATH", os.defpath) if search_path is None else search_path
    for folder in told.split(os.pathsep):
        found = shutil.which(name, path=folder)
        if found and (root == Path("/") or Path(found).resolve().is_relative_to(root.resolve())):
            return Path(found)
    usual = root / FOLDER / name
    return usual if usual.is_file() else None
