"""The program of one rank, started by torchrun: `ranks.py ORDER`, a file of JSON that the worker wrote.

The order names the module of the backend's handlers that has its `Rig` and its `Run`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ERRORS = ".rank-errors"
"""Folder of a run in which ranks say what ended them."""


def main(order: dict[str, Any]) -> None:
    rank, threads = int(os.environ["RANK"]), order["rig"]["threads"]
    if order["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, order["cores"][rank * threads : (rank + 1) * threads])
    spec = importlib.util.spec_from_file_location("nb_worker_main", Path(order["worker"], "main.py"))
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    program.package("nb_worker", order["worker"])
    program.package("nb_handlers", order["handlers"])
    with program.importing():
        run = importlib.import_module(f"nb_handlers.{order['module']}")

    def say(text: str) -> None:
        print(f"rank {rank}: {text}", file=sys.stderr, flush=True)

    checkpoint = Path(order["checkpoint"]) if order["checkpoint"] else None
    run.Run(run.Rig(say, **order["rig"]), order["job"], Path(order["folder"]), rank=rank, resume=checkpoint).train()
    distributed = importlib.import_module("torch.distributed")
    if distributed.is_initialized():
        distributed.destroy_process_group()


def told(order: dict[str, Any], error: BaseException) -> None:
    """Leave word of what ended this rank: torchrun says only that something did."""
    folder = Path(order["folder"], ERRORS)
    folder.mkdir(exist_ok=True)
    line = traceback.format_exception_only(error)[-1].strip()
    word = {"line": line, "at_ns": time.monotonic_ns(), "traceback": traceback.format_exc()}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(word), encoding="utf-8")


if __name__ == "__main__":
    _order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        main(_order)
    except BaseException as _error:
        told(_order, _error)
        raise
