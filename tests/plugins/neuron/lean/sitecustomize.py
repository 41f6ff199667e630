"""Imported by every interpreter of a made-up environment when it starts (see `lean_stack`): standard library only."""

from __future__ import annotations

import atexit
import gc
import hashlib
import os
import pickle
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "kept"
NAMES = "transformers.utils.import_utils"
"""The module whose `define_import_structure` reads a thousand sources for the names in them."""


class Remembering(MetaPathFinder):
    """Finds that module, once, and lets it read what an earlier process has found."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != NAMES:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def executed(module: Any) -> None:
                plain(module)
                found = getattr(module, "define_import_structure", None)
                if found is not None:
                    module.define_import_structure = remembered(found)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def remembered(find: Any) -> Any:
    def found(*given: Any, **more: Any) -> Any:
        key = hashlib.sha256(repr((given, sorted(more.items()))).encode()).hexdigest()
        file = KEPT / f"{key}.pickle"
        try:
            return pickle.loads(file.read_bytes())
        except FileNotFoundError:
            pass
        answer = find(*given, **more)
        making = KEPT / f"{key}.{os.getpid()}"
        making.write_bytes(pickle.dumps(answer))
        making.replace(file)
        return answer

    return found


gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)  # what is left at the end goes with the process: else it is looked through, several times
sys.modules["triton"] = None  # type: ignore[assignment] # as where it is not installed
sys.meta_path.insert(0, Remembering())
