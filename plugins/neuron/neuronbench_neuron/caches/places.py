"""Where compilers keep what they made, by the variables that say so; none of them is asked, only read."""

from __future__ import annotations

import getpass
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronbench_neuron.caches.layout import Kind

XLA_VARIABLE: Final = "NEURON_COMPILE_CACHE_URL"
DEFAULT: Final = "var/tmp/neuron-compile-cache"
"""Below the root."""
MISSPELT: Final = "NEURON_COMPILE_CACHE_DIR"
"""Seen in the wild, and read by nothing."""
TITLES: Final[Mapping[Kind, str]] = {
    "xla": "Neuron's compile cache", "vllm": "vLLM Neuron's compile cache", "nxdi": "compiled artifacts of NxDI",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cache, or where there is none that can be looked at."""

    kind: Kind
    url: str
    """As it is told: a path, or `s3://...`."""
    source: str
    """What told it."""
    folder: Path | None = None
    """None for what is no folder of this host."""


def places(environ: Mapping[str, str], root: Path = Path("/")) -> list[Place]:
    """The caches that programs with these variables use. `root`: of a made-up host, for defaults."""
    found = [_xla(environ, root)]
    home = Path(environ.get("HOME") or "~").expanduser()
    told = environ.get("VLLM_CACHE_ROOT")
    default = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "vllm"
    base = Path(told).expanduser() if told else default
    found.append(_folder("vllm", base / "neuron" / "compile_cache", "VLLM_CACHE_ROOT" if told else "the default"))
    if not told:
        # Where the home folder is on a file system of the network vLLM Neuron works here instead.
        beside = root / "tmp" / f"vllm_neuron_wdir_{_user(environ)}"
        if beside.is_dir():
            found.append(_folder("vllm", beside, "the default where the home folder is on a network"))
    shared = environ.get("VLLM_NEURON_REMOTE_CACHE")
    if shared:
        found.append(_folder("vllm", Path(shared).expanduser(), "VLLM_NEURON_REMOTE_CACHE"))
    artifacts = environ.get("NEURON_COMPILED_ARTIFACTS")
    if artifacts:
        found.append(_folder("nxdi", Path(artifacts).expanduser(), "NEURON_COMPILED_ARTIFACTS"))
    return found


def notes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What a user should know of these variables."""
    if environ.get(MISSPELT):
        return (f"{MISSPELT} is set, which nothing reads; the variable is {XLA_VARIABLE}",)
    return ()


def cache_dir_of(flags: str) -> str:
    """The value of `--cache_dir` among NEURON_CC_FLAGS; empty when it is not there."""
    try:
        words = shlex.split(flags)
    except ValueError:
        return ""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("--cache_dir", "--cache-dir"):
            return value if equals else (words[index + 1] if index + 1 < len(words) else "")
    return ""


def _xla(environ: Mapping[str, str], root: Path) -> Place:
    by_flag = cache_dir_of(environ.get("NEURON_CC_FLAGS", ""))
    url = by_flag or environ.get(XLA_VARIABLE, "")
    source = "--cache_dir in NEURON_CC_FLAGS" if by_flag else XLA_VARIABLE if url else "the default"
    if "://" in url and not url.startswith("file://"):
        return Place(kind="xla", url=url, source=source)
    path = Path(url.removeprefix("file://")).expanduser() if url else root / DEFAULT
    return _folder("xla", path, source)


def _folder(kind: Kind, path: Path, source: str) -> Place:
    return Place(kind=kind, url=str(path), source=source, folder=path.absolute())


def _user(environ: Mapping[str, str]) -> str:
    told = environ.get("USER") or environ.get("LOGNAME")
    if told:
        return told
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "root"
