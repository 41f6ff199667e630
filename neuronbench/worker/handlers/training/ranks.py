"""The program of one rank, started by torchrun: `ranks.py ORDER`, a file of JSON that the worker wrote.

The order names the module of the backend's handlers that has its `Rig` and its `Run`.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def module(name: str, path: Path) -> Any:
    """A file of the harness as a module, in a program that has no package of its own."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def main(order: dict[str, Any]) -> None:
    rank, threads = int(os.environ["RANK"]), order["rig"]["threads"]
    if order["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, order["cores"][rank * threads : (rank + 1) * threads])
    program = module("nb_worker_main", Path(order["worker"], "main.py"))
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


if __name__ == "__main__":
    faulthandler.enable()  # a library that aborts says where
    _order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _launch = module("nb_launch", Path(__file__).with_name("launch.py"))
    _folder, _rank = Path(_order["folder"]), os.environ["RANK"]
    try:
        main(_order)
        _launch.leave_done(_folder, _rank)
    except BaseException as _error:  # torchrun says only that something ended
        _launch.leave(_folder, _rank, traceback.format_exception_only(_error)[-1].strip())
        raise
