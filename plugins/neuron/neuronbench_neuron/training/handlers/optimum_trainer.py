"""The handler of `trainer/optimum-neuron`."""

from __future__ import annotations

from .launching import Launcher


class Handler(Launcher):
    """See `launching`."""

    MODULE = "optimum_run"
