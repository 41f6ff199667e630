"""The script that is sent to a box, with everything filled in."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from neuronbench_fleet.errors import UsageError
from neuronbench_fleet.remote.keys import RUN_ID

EXIT_NO_SYSTEMD, EXIT_BUSY, EXIT_NO_ROOM, EXIT_SETUP, EXIT_HASH, EXIT_NO_CODE = 80, 81, 86, 87, 88, 89
EXIT_NO_RUN, EXIT_NOT_STARTED = 82, 83
"""Of the script that cancels a run."""
SETUP: Final = "make harness"
PYTHON: Final = "@CODE@/.venv/bin/python"
_PLAIN_PATH: Final = re.compile(r"[\w@./+-]+")


def check_python(python: str) -> str:
    """`python`, where a unit can carry it. Raises `UsageError`."""
    if not _PLAIN_PATH.fullmatch(python):
        raise UsageError(f"--python {python!r}: expected a path without spaces and other odd characters")
    return python


def unit(run: str, *, sha256: str, python: str = PYTHON) -> str:
    """The systemd unit of a run. `@ROOT@` is left in it for the script, which knows the box."""
    check_python(python)
    filled = _template("unit.service")
    for name, value in (
        ("PYTHON", python), ("RUN", run), ("STATE", f"@ROOT@/var/lib/neuronbench/{run}"),
        ("CODE", f"@ROOT@/opt/neuronbench/{sha256}"),
    ):  # fmt: skip
        filled = filled.replace(f"@{name}@", value)
    return filled


def script(
    order: Mapping[str, Any], *, sha256: str, url: str, setup: str = SETUP, python: str = PYTHON, pace: int = 1
) -> str:
    """The script that sets up `order` (see `state.Order`) on a box.

    `url` is presigned: the box needs no tool and no right but curl for the code, and whoever may read the history of
    commands in the account may read the code for an hour, which is what their rights there amount to anyway.
    """
    run = _checked(str(order["run"]))
    if "'" in url:
        raise ValueError("a presigned URL has no quotes")
    told = {**order, "code": f"@ROOT@/opt/neuronbench/{sha256}"}
    filled = _template("bootstrap.sh")
    for name, value in (
        ("RUN", run), ("SHA256", sha256), ("URL", url), ("PACE", str(pace)), ("SETUP", _packed(setup)),
        ("SETUP_ID", hashlib.sha256(setup.encode()).hexdigest()[:12]), ("ORDER", _packed(json.dumps(told))),
        ("PYTHON", check_python(python).replace("@CODE@", "$code")),
        ("UNIT", unit(run, sha256=sha256, python=python).rstrip()),
    ):  # fmt: skip
        filled = filled.replace(f"@{name}@", value)
    return filled


def cancel_script(run: str, *, by: str, at: str) -> str:
    """The script that ends a run on a box in order: its agent finds who said so, and when."""
    words = _packed(json.dumps({"by": by, "at": at}))
    return _template("cancel.sh").replace("@RUN@", _checked(run)).replace("@WORDS@", words)


def _checked(run: str) -> str:
    if not RUN_ID.fullmatch(run):
        raise UsageError(f"run {run!r}: expected lower-case letters, digits and hyphens, 63 at most")
    return run


def _packed(text: str) -> str:
    """Words of others as the script carries them: nothing in them means anything to its shell, or to SSM."""
    return base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()


def _template(name: str) -> str:
    return (importlib.resources.files("neuronbench_fleet.remote") / name).read_text(encoding="utf-8")
