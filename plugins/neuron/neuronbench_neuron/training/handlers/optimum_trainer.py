"""The handler of `trainer/optimum-neuron`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .launching import Launcher


class Handler(Launcher):
    """See `launching`."""

    MODULE = "optimum_run"

    def spread(self, job: dict[str, Any], folder: Path, checkpoint: Path | None) -> dict[str, Any]:
        if checkpoint is not None:  # said before ranks start: they would find out after a minute of loading
            raise ValueError(
                f"optimum-neuron's trainers refuse to go on from a checkpoint ({checkpoint.name} is there); take "
                "trainer_provider = 'nxd'"
            )
        return super().spread(job, folder, None)
