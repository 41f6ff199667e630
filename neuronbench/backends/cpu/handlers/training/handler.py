"""The verbs of a trainer's worker. A job comes as a table, with its digest; a run's folder is the caller's."""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BEGUN = time.monotonic()

import accelerate  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
import transformers  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

from . import state  # noqa: E402
from .run import Rig, Run, evaluate  # noqa: E402

PROGRAM = Path(__file__).parent / "ranks.py"
LIBRARIES = ("peft", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer", "trl.experimental.orpo.orpo_trainer")
"""Imported when the worker starts, so that the first run of a method does not pay for it."""


class Handler:
    """See the README of `neuronbench/worker` for what a handler is."""

    def __init__(
        self,
        progress: Callable[[str], None],
        world_size: int,
        cores: list[int],
        **rig: Any,
    ) -> None:
        """`cores`: of all ranks, those of the first rank first. The rest is `run.Rig`'s."""
        progress("importing torch, transformers, trl")
        if world_size == 1:  # else it is ranks of their own that train
            for name in LIBRARIES:
                importlib.import_module(name)
        self._import_s = time.monotonic() - _BEGUN
        self._told = rig
        self._rig = Rig(progress, **rig)
        self._world_size, self._cores = world_size, cores

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

    def prepare(self, job: dict[str, Any]) -> dict[str, Any]:
        """Tokenise, hold out, pack; once, whatever process asks."""
        self._rig.mind(job)
        begun = time.monotonic()
        folder = self._rig.prepare(job)
        told: dict[str, Any] = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        return {**told, "cached": told["prepare_s"] > time.monotonic() - begun, "key": folder.name}

    def describe(self, job: dict[str, Any]) -> dict[str, Any]:
        """Model and data of the job, without training or leaving anything behind."""
        self._rig.mind(job)
        with tempfile.TemporaryDirectory() as folder:
            return Run(self._rig, job, Path(folder)).described()

    def train(self, job: dict[str, Any], folder: str, resume: bool) -> dict[str, Any]:
        """Train; the step logs are in `folder`, and the final state and checkpoints too."""
        self._rig.mind(job)
        where = Path(folder)
        self._rig.prepare(job)  # before any rank asks for it
        checkpoint = state.latest(where, job["digest"]) if resume else None
        if self._world_size > 1:
            return self._spread(job, where, checkpoint)
        try:
            return Run(self._rig, job, where, resume=checkpoint).train()
        finally:
            gc.collect()  # a trainer refers to itself, and holds model and optimiser

    def evaluate(self, job: dict[str, Any], folder: str, split: str = "holdout") -> dict[str, Any]:
        """Loss of what training left in `folder`."""
        self._rig.mind(job)
        rows = self._rig.data(job).split(split)
        if not rows.items:
            raise ValueError(f"split {split!r} is empty: give the job a share to hold out (holdout = 0.1)")
        return {**evaluate(state.trained(job, self._rig.source, Path(folder)), rows), "split": split}

    def export(self, job: dict[str, Any], folder: str, into: str, merged: bool = True) -> dict[str, Any]:
        """What training left in `folder` as files that a server loads."""
        self._rig.mind(job)
        rig = self._rig
        return state.export(job, rig.source, rig.tokens, Path(folder), Path(into), merged=merged)

    def _spread(self, job: dict[str, Any], folder: Path, checkpoint: Path | None) -> dict[str, Any]:
        """Ranks of their own, by torchrun; they write to this worker's log, and end with it."""
        told = folder / ".ranks.json"
        order = {
            "worker": importlib.import_module("nb_worker").__path__[0],
            "handlers": str(Path(__file__).parent.parent),
            "rig": self._told, "job": job, "folder": str(folder), "cores": self._cores,
            "checkpoint": str(checkpoint) if checkpoint else None,
        }  # fmt: skip
        told.write_text(json.dumps(order), encoding="utf-8")
        self._rig.say(f"starting {self._world_size} ranks")
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
            "--nproc-per-node", str(self._world_size), "--monitor-interval", "0.1", str(PROGRAM), str(told),
        ]  # fmt: skip
        loopback = "lo" if sys.platform == "linux" else "lo0"
        done = subprocess.run(command, env={**os.environ, "GLOO_SOCKET_IFNAME": loopback}, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(
                f"torchrun of {self._world_size} ranks ended with status {done.returncode}; the log has what they said"
            )
        told.unlink()
        return {"ranks": self._world_size}
