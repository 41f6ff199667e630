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
from typing import TYPE_CHECKING, Final

import neuronbench
from neuronbench.plugin_checks import API_VERSION
from neuronbench.registry import RESERVED_MARKERS

if TYPE_CHECKING:
    from neuronbench.plugins import Plugins

KINDS: Final = ("lane", "backend", "sink")
FAKE: Final = "fake"
"""The backend that `neuronbench.testing` has for tests, those of a new plugin among them."""
_NAME: Final = re.compile(r"(?=.{2,31}\Z)[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
"""What pip takes as part of a distribution's name, `_` as `-`: that ends in no dash, and two are one to it."""


class NewPluginError(ValueError):
    """A plugin cannot be made: what was expected, what was found."""


def check_name(name: str, kind: str) -> None:
    """Raise `NewPluginError` for what cannot be both a package and a marker of pytest."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in RESERVED_MARKERS:
        raise NewPluginError(
            f"a {kind}'s name is also a marker (-m {name}) and part of a package's name: expected 2 to 31 of the "
            f"letters a-z, digits and single underscores, beginning with a letter and not ending with an underscore; "
            f"found {name!r}"
        )


def check_free(name: str, kind: str, plugins: Plugins) -> None:
    """Raise `NewPluginError` for a name that something installed here has: what is made could never be loaded."""
    shared = (plugins.sinks,) if kind == "sink" else (plugins.lanes, plugins.backends)
    owners = {f"the {each.noun} {name!r}": each.taken_by(name) for each in shared}
    if kind != "sink" and name == FAKE:
        owners[f"the backend {name!r}"] = "neuronbench.testing, on which the new plugin's tests run"
    if name in plugins.reports:
        owners[f"the plugin {name!r}"] = plugins.reports[name].distribution or name
    for what, owner in owners.items():
        if owner:
            raise NewPluginError(
                f"{what} is there already, of {owner}, and two of one name are refused: choose another name, or "
                "uninstall that one first"
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
