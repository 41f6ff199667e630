"""What is looked at in a plugin before it is let in: its version, and that what it names is there."""

from __future__ import annotations

import importlib
from typing import Any, Final

from neuronbench.model import closest
from neuronbench.registry import PluginError

API_VERSION: Final = (1, 1)
"""Version of the hooks and of what plugins register; see "Versions" in `plugins/README.md`.

A plugin declares the one it was written for (`NEURONBENCH_API = "1.1"`). Another major version and a later minor one
are refused; an earlier minor one loads. 1.1: `LaneInfo.benchmarks` and `.metric`, `SamplerSpec.live`, `Failure.fatal`.
"""


def load_target(target: str) -> Any:
    """The object that `"package.module:Name"` names; raises `PluginError` that says what is wrong with it."""
    module_name, _, attribute = target.partition(":")
    if not (module_name and attribute):
        raise PluginError(f"a target is written 'package.module:Name'; found {target!r}")
    try:
        value: Any = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(f"{target!r} cannot be imported: {one_line(error)}") from error
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise PluginError(f"{target!r}: there is no {part!r}{closest(part, dir(value))}") from None
    return value


def check_version(declared: str) -> None:
    """Raise for a plugin that was written for hooks that are not these; one that does not say may be for any."""
    if not declared:
        return
    major, _, minor = declared.partition(".")
    here = ".".join(map(str, API_VERSION))
    if not (major.isdecimal() and (minor or "0").isdecimal()):
        raise PluginError(f'NEURONBENCH_API: expected a version like "{here}", found {declared!r}')
    if int(major) != API_VERSION[0]:
        remedy = "install a release of the plugin for it"
    elif int(minor or 0) > API_VERSION[1]:
        remedy = "update neuronbench"
    else:
        return
    raise PluginError(
        f"is written for hook version {declared}, and this is neuronbench with hook version {here}; {remedy}"
    )


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
