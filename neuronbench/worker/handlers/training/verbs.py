"""The verbs of a trainer's worker. A job comes as a table, with its digest; a run's folder is the caller's."""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import state
from .launch import AFTER, ERRORS, all_done, words
from .run import evaluate

LAUNCH, PROGRAM = Path(__file__).parent / "launch.py", Path(__file__).parent / "ranks.py"


def first_words(folder: Path) -> str:
    """What ended the rank that ended first, `rank 1: ...; `; empty when nothing says."""
    told = words(folder)
    return f"{told[0]}; " if told else ""


class Trainer:
    """A handler that trains: a backend's `Handler` derives from it and says which rig and which run.

    See the README of `neuronbench/worker` for what a handler is.
    """

    MODULE = ""
    """Of the backend's handlers: has `Rig` and `Run`."""

    def __init__(
        self, progress: Callable[[str], None], world_size: int, cores: list[int], handlers: Path, **rig: Any
    ) -> None:
        """`cores`: of the host, of all ranks, those of the first rank first; empty to leave them alone. `handlers`:
        the folder of the backend's. The rest is its rig's."""
        self._told = rig
        module = importlib.import_module(f"nb_handlers.{self.MODULE}")
        self._run: Any = module.Run
        self._rig = module.Rig(progress, **rig)
        self._world_size, self._cores, self._handlers = world_size, cores, handlers

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
            told: dict[str, Any] = self._run(self._rig, job, Path(folder)).described()
        return told

    def train(self, job: dict[str, Any], folder: str, resume: bool) -> dict[str, Any]:
        """Train; the step logs are in `folder`, and the final state and checkpoints too."""
        self._rig.mind(job)
        where = Path(folder)
        self._rig.prepare(job)  # before any rank asks for it
        checkpoint = state.latest(where, job["digest"]) if resume else None
        if self.apart:
            return self.spread(job, where, checkpoint)
        try:
            told: dict[str, Any] = self._run(self._rig, job, where, resume=checkpoint).train()
        finally:
            gc.collect()  # a trainer refers to itself, and holds model and optimiser
        return told

    def evaluate(self, job: dict[str, Any], folder: str, split: str = "holdout") -> dict[str, Any]:
        """Loss of what training left in `folder`, on the host."""
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

    # -- ranks

    @property
    def apart(self) -> bool:
        """Whether ranks are processes of their own, and this one trains nothing."""
        return self._world_size > 1

    def spread(self, job: dict[str, Any], folder: Path, checkpoint: Path | None) -> dict[str, Any]:
        """Ranks of their own, by torchrun; they write to this worker's log, and end with it."""
        self._rig.say(f"starting {self._world_size} ranks")
        done = self.torchrun(job, folder, checkpoint)
        if done and all_done(folder, self._world_size):
            # Libraries may crash while interpreters end. Whether the logs tell of a whole run is for their reader.
            told = words(folder)
            self._rig.say(f"all ranks had done their work, then: {'; '.join(told)}")
            (folder / AFTER).write_text("".join(f"{line}\n" for line in told), encoding="utf-8")
        elif done:
            raise RuntimeError(f"{first_words(folder)}torchrun of {self._world_size} ranks ended with status {done}")
        return {"ranks": self._world_size}

    def torchrun(
        self,
        job: dict[str, Any],
        folder: Path,
        checkpoint: Path | None,
        *,
        before: tuple[str, ...] = (),
        more: Mapping[str, str] | None = None,
        **told: Any,
    ) -> int:
        """Run the ranks and return the status. `before`: words of a program that runs the command given to it; `more`:
        environment; `told`: more of the order."""
        path = folder / ".ranks.json"
        shutil.rmtree(folder / ERRORS, ignore_errors=True)  # of an attempt that this one goes on from
        (folder / AFTER).unlink(missing_ok=True)
        order = {
            "worker": importlib.import_module("nb_worker").__path__[0],
            "handlers": str(self._handlers), "module": self.MODULE,
            "rig": self._told, "job": job, "folder": str(folder), "cores": self._cores,
            "checkpoint": str(checkpoint) if checkpoint else None, **told,
        }  # fmt: skip
        path.write_text(json.dumps(order), encoding="utf-8")
        command = [
            *before, sys.executable, str(LAUNCH), str(folder), "--standalone", "--local-addr", "127.0.0.1",
            "--nproc-per-node", str(self._world_size), "--monitor-interval", "0.1", str(PROGRAM), str(path),
        ]  # fmt: skip
        try:
            return subprocess.run(command, env={**os.environ, **(more or {})}, stdin=subprocess.DEVNULL).returncode
        finally:
            path.unlink(missing_ok=True)
