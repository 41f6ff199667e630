"""Arguments for pytest, as they are given to the command on the head and as they are told to the nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_REFUSED: Final = {
    "--nb-data-root": "the store is the head's: name it in neuronbench.toml or with --store",
    "--nb-endpoint": "a server that runs already needs no box: run pytest with --nb-endpoint on one host",
    "--collect-only": "`neuronbench ray run --plan` shows what would go where",
    "--co": "`neuronbench ray run --plan` shows what would go where",
    "-n": "each node runs its points one after the other",
}
_OF_THIS_HOST: Final = tuple(
    f"NEURONBENCH_{name}"
    for name in (
        "CACHE_DIR", "CODE_", "DATA_ROOT", "INSTANCE_TYPE", "NEURON_ROOT", "RAY_", "SESSION", "TRACKING_URI",
    )
)  # fmt: skip


class ArgumentError(ValueError):
    """An argument that cannot be meant for a fleet, with what to do instead."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was asked of pytest."""

    args: tuple[str, ...]
    """For the nodes; paths are relative to where the command was given."""
    resume: str = ""
    """Empty: measure all. `last` or a session: the head leaves out what has a good receipt."""
    tracking_uri: str = ""


def read(given: Sequence[str], *, root: Path, here: Path) -> Asked:
    """Take out what the head does itself; raises `ArgumentError`. `root`: the project's folder."""
    args: list[str] = []
    resume = tracking_uri = ""
    words = list(given)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word.startswith("-n") and word[2:].isalnum():  # -n2, -nauto
            name = "-n"
        if name in _REFUSED:
            raise ArgumentError(f"{name} is not for a fleet: {_REFUSED[name]}")
        if name == "--nb-resume":
            if not equals and words and _is_session(words[0]):
                value = words.pop(0)
            resume = "last" if value in ("", "latest") else value  # both mean all sessions
        elif name == "--nb-tracking-uri":
            tracking_uri = value if equals else (words.pop(0) if words else "")
        else:
            args.append(_path(word, root, here))
    return Asked(args=tuple(args), resume=resume, tracking_uri=tracking_uri)


def environ(given: Sequence[str], own: Mapping[str, str]) -> dict[str, str]:
    """Variables that pytest gets on the nodes beyond theirs: settings of neuronbench that are set here (not those that
    speak of this host), and those `given` as `NAME=VALUE`, or as `NAME` with the value it has here.

    Raises `ArgumentError`.
    """
    found = {
        name: value
        for name, value in own.items()
        if name.startswith("NEURONBENCH_") and not name.startswith(_OF_THIS_HOST)
    }
    for text in given:
        name, equals, value = text.partition("=")
        if not name or (not equals and name not in own):
            raise ArgumentError(f"--env {text}: expected NAME=VALUE, or the NAME of a variable that is set here")
        found[name] = value if equals else own[name]
    return found


def _is_session(word: str) -> bool:
    from neuronbench.receipts.sessions import is_session_id

    return word in ("last", "latest") or is_session_id(word)


def _path(word: str, root: Path, here: Path) -> str:
    """A path of the head as a node can use it: below the project, and relative."""
    file, colons, rest = word.partition("::")
    path = Path(file)
    if word.startswith("-") or not (path.is_absolute() or ".." in path.parts):
        return word
    whole = (here / path).resolve()
    if not whole.exists():
        return word
    if not whole.is_relative_to(root):
        raise ArgumentError(f"{file}: expected a path below the project {root}, which is what the nodes get")
    return Path(os.path.relpath(whole, here)).as_posix() + colons + rest
