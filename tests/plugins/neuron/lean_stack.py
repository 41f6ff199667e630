"""What a process does for nothing when it starts and ends, left out of made-up environments and of runs of pytest.

Such an environment has the stack's own torch and transformers, and imports them anew in every worker, launcher and
rank. That takes five seconds of a core, and half of it is for what no test asks for: transformers reads the source of
each of its five hundred families to know which names are in them, triton is imported for a device that is not there,
and the garbage collector goes through a million objects of which none is garbage, at last when the process ends.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Final

SESSION: Final = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")
"""Of a run of pytest: without what no benchmark uses. Hypothesis would be imported, all of it, when the run ends."""


@functools.cache
def lean() -> Path:
    """A folder to be put in front of `sys.path` in environments with transformers; it ends with this process, and so
    does what is remembered in it."""
    folder = Path(tempfile.mkdtemp(prefix="neuronbench-lean-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copyfile(Path(__file__).parent / "lean" / "sitecustomize.py", folder / "sitecustomize.py")
    (folder / "kept").mkdir()
    return folder
