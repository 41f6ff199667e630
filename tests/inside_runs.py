"""Runs of pytester's inside this process leave libraries as they found them: loaded once, as in any process.

pytester puts `sys.modules` and `sys.meta_path` back at the end of such a run, and of each test that uses it, so that
what was first imported within is imported a second time by whoever comes next. Most libraries that have state do not
stand that: numpy refuses, SQLAlchemy is two halves that do not fit, and `importlib_metadata` (which MLflow imports) has
taken the place of the standard library's finder of distributions and is itself no longer asked: nothing is installed
any more. Which test meets it depends on which one comes first in its process, so it is not left to chance.

What the test itself has made, and modules of this project, are forgotten as pytester wants it.
"""

from __future__ import annotations

import sys
import sysconfig
from types import ModuleType
from typing import Final

from _pytest.assertion.rewrite import AssertionRewritingHook
from _pytest.pytester import SysModulesSnapshot, SysPathsSnapshot

LIBRARIES: Final = tuple(sysconfig.get_path(name) + "/" for name in ("purelib", "platlib", "stdlib", "platstdlib"))


def is_library(module: ModuleType | None) -> bool:
    """Whether a module is Python's or an installed distribution's; one of this project is installed in place."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return False
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    return spec.origin == "built-in" or any(str(place).startswith(LIBRARIES) for place in places)


def keep_libraries() -> None:
    """From here on `sys.modules` and `sys.meta_path` keep what libraries have put there."""
    restore_modules, restore_paths = SysModulesSnapshot.restore, SysPathsSnapshot.restore

    def modules(self: SysModulesSnapshot) -> None:
        kept = {name: module for name, module in sys.modules.items() if is_library(module)}
        restore_modules(self)
        for name, module in kept.items():
            sys.modules.setdefault(name, module)

    def paths(self: SysPathsSnapshot) -> None:
        finders = [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)]
        restore_paths(self)
        sys.meta_path.extend(finder for finder in finders if finder not in sys.meta_path)

    SysModulesSnapshot.restore = modules  # type: ignore[method-assign]
    SysPathsSnapshot.restore = paths  # type: ignore[method-assign]
