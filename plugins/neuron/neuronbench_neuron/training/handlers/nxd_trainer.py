"""The handler of `trainer/nxd`."""

from __future__ import annotations

from .launching import Launcher


class Handler(Launcher):
    """See `launching`."""

    MODULE = "nxd_run"
