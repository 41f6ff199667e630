"""A new plugin from the template: a distribution that works as it stands, with tests that say what is relied on.

The template is in `template/`: `common`, and a folder for each kind. `$name`, `$package` and the like in files, and
`__package__`, `__lane__` in paths, are replaced, and `.tmpl` is taken off, which keeps tools from reading templates as
what they are not yet.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Final

import neuronbench
from neuronbench.plugin_checks import API_VERSION
from neuronbench.registry import RESERVED_MARKERS

KINDS: Final = ("lane", "backend", "sink")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{1,30}")


class NewPluginError(ValueError):
    """A plugin cannot be made: what was expected, what was found."""


def check_name(name: str, kind: str) -> None:
    """Raise `NewPluginError` for what cannot be both a package and a marker of pytest."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in RESERVED_MARKERS:
        raise NewPluginError(
            f"a {kind}'s name is also a marker (-m {name}) and part of a package's name: expected 2 to 31 of the "
            f"letters a-z, digits and underscores, beginning with a letter; found {name!r}"
        )


def values(name: str, kind: str) -> Mapping[str, str]:
    """What stands for what in the template."""
    package = f"neuronbench_{name}"
    return {
        "name": name,
        "lane": name,
        "plugin": name,
        "package": package,
        "distribution": package.replace("_", "-"),
        "title": f"{name.replace('_', ' ').capitalize()} ({kind})",
        "version": ".".join(neuronbench.__version__.split(".")[:2]),
        "api": ".".join(map(str, API_VERSION)),
    }


def bake(name: str, kind: str, folder: Path) -> list[Path]:
    """Write the plugin `name` of `kind` into `folder`, which is new or empty; returns the files, sorted.

    Raises `NewPluginError` for a name that cannot be one, an unknown kind, or a folder that has something in it.
    """
    if kind not in KINDS:
        raise NewPluginError(f"kind: expected one of {', '.join(KINDS)}; found {kind!r}")
    check_name(name, kind)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NewPluginError(f"{folder} is there already and is not an empty folder: name another with --dir")
    known = values(name, kind)
    template = resources.files(__name__) / "template"
    made: list[Path] = []
    for part in ("common", kind):
        _copy(template / part, folder, known, made)
    return sorted(made)


def _copy(source: Traversable, target: Path, known: Mapping[str, str], made: list[Path]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        name = entry.name.removesuffix(".tmpl")
        for key, value in known.items():
            name = name.replace(f"__{key}__", value)
        if entry.is_dir():
            _copy(entry, target / name, known, made)
        else:
            (target / name).write_text(
                Template(entry.read_text(encoding="utf-8")).safe_substitute(known), encoding="utf-8"
            )
            made.append(target / name)
