"""Finding a stack: a Python interpreter that can import the accelerator's software.

Looked for in this order: what the user said (`--nb-stack KIND=PATH`, `neuronbench.toml`), the backend's own
candidates, `.venv-cpu` beside the project. What the user said is used or refused, never passed over in silence.

An interpreter is asked by running it: which versions of which distributions it has (`importlib.metadata`) and whether
modules can be found (`find_spec`), without importing any of them. Distributions that are only placeholders for a
package served elsewhere count as missing, and the message says so.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import FrozenMap
from neuronbench.protocols import Stack

if TYPE_CHECKING:
    from neuronbench.config import Settings

INSPECT_TIMEOUT_S: Final = 60.0
PROJECT_STACK: Final = ".venv-cpu"
OF_RESOURCE: Final[Mapping[str, str]] = {"endpoint": "serving", "compiled_model": "compile", "trainer": "train"}
"""Kind of resource → kind of stack; any other resource may need any."""
KINDS: Final = tuple(OF_RESOURCE.values())
"""Kinds of stack that the core asks for; `any` stands for all."""
_PLACEHOLDER_BYTES: Final = 4096
"""A distribution whose files, metadata aside, are smaller than this together holds no software."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A place to look at, and how to call it in messages."""

    path: Path
    """An interpreter, or a folder with one in `bin/`."""
    source: str


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something a stack must be able to import."""

    module: str
    """Top-level module, such as `vllm`."""
    distributions: tuple[str, ...] = ()
    """Distributions that bring it, any of which will do; by default one named like the module."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.distributions or (self.module,)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What an interpreter says of itself. `error` is one line, empty when it answered."""

    python: Path
    version: str = ""
    prefix: str = ""
    packages: Mapping[str, str] = FrozenMap()
    """Distribution → version, of those asked for that are there."""
    placeholders: tuple[str, ...] = ()
    """Distributions that are there and empty."""
    modules: tuple[str, ...] = ()
    """Of the modules asked for, those that can be found."""
    error: str = ""


def interpreter(path: Path) -> Path | None:
    """The interpreter that `path` is, or holds in `bin/` (`Scripts/` on Windows); None when there is none.

    Links are not followed: a venv is known by the link's own place.
    """
    path = Path(os.path.abspath(path.expanduser()))
    if path.is_dir():
        for name in ("bin/python", "bin/python3", "Scripts/python.exe"):
            if (path / name).is_file():
                return path / name
        return None
    return path if path.is_file() and os.access(path, os.X_OK) else None


_SCRIPT: Final = """
import importlib.metadata as m, importlib.util as u, json, os, platform, sys
names, modules = json.loads(sys.argv[1])
out = {"version": platform.python_version(), "prefix": sys.prefix, "packages": {}, "sizes": {}, "modules": []}
for name in names:
    try:
        dist = m.distribution(name)
        out["packages"][name] = dist.version
        files = dist.files
    except Exception:
        continue
    if files is None or len(files) > 60 or dist.read_text("direct_url.json"):
        continue
    size, linked = 0, False
    for file in files:
        parts = file.parts
        if parts and parts[0].endswith((".dist-info", ".egg-info")) or "__pycache__" in parts or ".." in parts:
            continue
        linked = linked or str(file).endswith((".pth", ".so", ".pyd"))
        try:
            size += os.path.getsize(dist.locate_file(file))
        except OSError:
            pass
    if not linked:
        out["sizes"][name] = size
for module in modules:
    try:
        if u.find_spec(module) is not None:
            out["modules"].append(module)
    except Exception:
        pass
print("\\n" + json.dumps(out))
"""


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a program of a stack: this one's without what belongs to the harness's own interpreter."""
    environment = dict(os.environ if environ is None else environ)
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


def inspect(
    python: Path,
    *,
    packages: Iterable[str] = (),
    modules: Iterable[str] = (),
    placeholders: Mapping[str, Sequence[str]] | None = None,
    timeout_s: float = INSPECT_TIMEOUT_S,
) -> Inspection:
    """Ask an interpreter for versions and modules; never raises. Answers are kept for the life of this process.

    `placeholders`: distribution → versions known to be empty stand-ins; stand-ins without a listed version are
    recognised by having next to no files.
    """
    raw = _ask(str(python), tuple(sorted(set(packages))), tuple(sorted(set(modules))), timeout_s)
    if isinstance(raw, str):
        return Inspection(python=python, error=raw)
    known = placeholders or {}
    versions: dict[str, str] = raw["packages"]
    empty = tuple(
        name
        for name, version in versions.items()
        if version in known.get(name, ()) or raw["sizes"].get(name, _PLACEHOLDER_BYTES) < _PLACEHOLDER_BYTES
    )
    return Inspection(
        python=python,
        version=raw["version"],
        prefix=raw["prefix"],
        packages=FrozenMap({name: version for name, version in versions.items() if name not in empty}),
        placeholders=empty,
        modules=tuple(raw["modules"]),
    )


@functools.lru_cache(maxsize=256)
def _ask(python: str, packages: tuple[str, ...], modules: tuple[str, ...], timeout_s: float) -> dict[str, Any] | str:
    """The interpreter's answer, or in one line why there is none."""
    try:
        done = subprocess.run(
            [python, "-c", _SCRIPT, json.dumps([packages, modules])],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"did not answer within {timeout_s:g} s"
    except OSError as error:
        return f"cannot be run: {error.strerror or error}"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"ended with status {done.returncode}: {last[:300]}"
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        complete = {"version", "prefix", "packages", "sizes", "modules"} <= answer.keys()
    except (IndexError, ValueError, AttributeError):
        complete = False
    if not complete:
        return "is not a Python interpreter of version 3.8 or later (its answer makes no sense)"
    return dict(answer)


def missing(inspection: Inspection, needs: Sequence[Need]) -> list[str]:
    """What of `needs` the interpreter lacks, each in a few words; empty when it will do."""
    if inspection.error:
        return [inspection.error]
    lacking: list[str] = []
    for need in needs:
        stand_ins = [name for name in need.names if name in inspection.placeholders]
        real = [name for name in need.names if name in inspection.packages]
        if stand_ins and not real:
            lacking.append(f"{stand_ins[0]} is only a placeholder (the real package is served from elsewhere)")
        elif need.module not in inspection.modules:
            lacking.append(f"no {' or '.join(need.names)}")
    return lacking


def find(
    kind: str,
    settings: Settings,
    candidates: Iterable[Candidate | Path] = (),
    *,
    needs: Sequence[Need] = (),
    packages: Sequence[str] = (),
    placeholders: Mapping[str, Sequence[str]] | None = None,
    remedy: str = "",
) -> Stack:
    """The stack to use for `kind`.

    `candidates` are the backend's own, best first. `needs` is what it must import; `packages` are distributions whose
    versions are worth recording. Raises `LookupError` that lists every place, what each lacks, and how to make one.
    """
    asked = {*packages, *(name for need in needs for name in need.names)}
    modules = [need.module for need in needs]
    tried: list[str] = []

    def consider(candidate: Candidate) -> Stack | None:
        python = interpreter(candidate.path)
        if python is None:
            what = "no interpreter there" if candidate.path.exists() else "does not exist"
            tried.append(f"{candidate.path} ({candidate.source}): {what}")
            return None
        found = inspect(python, packages=asked, modules=modules, placeholders=placeholders)
        lacking = missing(found, needs)
        if lacking:
            tried.append(f"{python} ({candidate.source}): {'; '.join(lacking)}")
            return None
        versions = FrozenMap({**found.packages, "python": found.version})
        return Stack(kind=kind, python=python, source=candidate.source, packages=versions)

    told = kind if kind in settings.stacks else "any" if "any" in settings.stacks else None
    if told is not None:
        place = _told(told, settings)
        stack = consider(place)
        if stack is not None:
            return stack
        raise LookupError(_nothing(kind, needs, tried, f"correct {place.source} ({told}), or leave it out"))

    own = Path(sys.prefix).resolve()
    for entry in (*candidates, settings.root / PROJECT_STACK):
        if isinstance(entry, Candidate):
            candidate = entry
        else:
            beside = entry == settings.root / PROJECT_STACK
            candidate = Candidate(
                path=entry, source=f"{PROJECT_STACK} beside the project" if beside else "the backend's search"
            )
        if candidate.path.exists() and candidate.path.resolve() == own:
            tried.append(f"{candidate.path} ({candidate.source}): is the harness's own environment, kept apart")
            continue
        stack = consider(candidate)
        if stack is not None:
            return stack
    raise LookupError(_nothing(kind, needs, tried, remedy or _remedy(kind, settings)))


def _told(kind: str, settings: Settings) -> Candidate:
    """The place that the user named for `kind`; a relative one is below the project's folder."""
    path = Path(settings.stacks[kind]).expanduser()
    source = settings.stack_sources.get(kind, "settings")
    return Candidate(path=path if path.is_absolute() else settings.root / path, source=source)


def wrong_place(kind: str, settings: Settings) -> str:
    """Why what the user named for `kind` is no Python at all, with what to do; empty when it is one, whatever it lacks.

    Starts the interpreter.
    """
    place = _told(kind, settings)
    python = interpreter(place.path)
    if python is not None:
        error = inspect(python).error
        if not error:
            return ""
        found = f"{python}, which {error}"
    elif not place.path.exists():
        found = "nothing there"
    else:
        found = "a folder without bin/python" if place.path.is_dir() else "a file that cannot be run"
    return (
        f"{place.source}: {kind}={place.path}: expected a Python interpreter, or a venv with one in bin/, found {found}"
        "; correct it, or leave it out to have the usual places looked at"
    )


def _remedy(kind: str, settings: Settings) -> str:
    """`make stack` is of neuronbench's own repository: in another project it makes nothing."""
    give = f"--nb-stack {kind}=PATH (or [stacks] in neuronbench.toml)"
    if (settings.root / "requirements" / "stack-cpu.txt").is_file():
        return f"run `make stack`, or give one: {give}"
    return f"give one: {give}; `make stack` in neuronbench's repository makes one"


def _nothing(kind: str, needs: Sequence[Need], tried: Sequence[str], remedy: str) -> str:
    wanted = " and ".join(" or ".join(need.names) for need in needs)
    head = f"no Python environment for {kind!r}" + (f" with {wanted}" if wanted else "")
    places = "".join(f"\n  - {line}" for line in tried) or "\n  - nowhere: no candidates"
    return f"{head}; looked at:{places}\n  To do: {remedy}"
