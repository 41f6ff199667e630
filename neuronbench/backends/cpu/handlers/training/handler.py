"""The verbs of a trainer's worker on the CPU: trl, peft and transformers, and torchrun over gloo above one rank."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_BEGUN = time.monotonic()

import accelerate  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import transformers  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
from nb_worker.handlers.training.verbs import Trainer  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

LIBRARIES = ("peft", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer", "trl.experimental.orpo.orpo_trainer")
"""Imported when the worker starts, so that the first run of a method does not pay for it."""


class Handler(Trainer):  # type: ignore[misc,unused-ignore]
    """See `nb_worker.handlers.training.verbs`."""

    MODULE = "training.run"

    def __init__(self, progress: Callable[[str], None], world_size: int, **more: Any) -> None:
        progress("importing torch, transformers, trl")
        if world_size == 1:  # else it is ranks of their own that train
            for name in LIBRARIES:
                importlib.import_module(name)
        self._import_s = time.monotonic() - _BEGUN
        super().__init__(progress, world_size, handlers=Path(__file__).parent.parent, **more)

    def facts(self) -> dict[str, Any]:
        return {
            "import_s": self._import_s,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "accelerate": accelerate.__version__,
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }

    def torchrun(self, *given: Any, more: Mapping[str, str] | None = None, **told: Any) -> int:
        loopback = "lo" if sys.platform == "linux" else "lo0"
        status: int = super().torchrun(*given, more={"GLOO_SOCKET_IFNAME": loopback, **(more or {})}, **told)
        return status
