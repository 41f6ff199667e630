"""Finding a tool in its environment, probing what it can do, running it within a deadline."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench.engines.aiperf import AIPerf
from neuronbench.engines.base import Adapter, EngineError, Probe, Reading
from neuronbench.engines.guidellm import GuideLLM
from neuronbench.engines.job import Job
from neuronbench.engines.vllm import VLLM
from neuronbench.model import closest

if TYPE_CHECKING:
    from neuronbench.protocols import Progress

_ADAPTERS: Final[Sequence[Adapter]] = (VLLM(), GuideLLM(), AIPerf())
ENGINES: Final[Mapping[str, Adapter]] = {adapter.name: adapter for adapter in _ADAPTERS}

PROBE_TIMEOUT_S: Final = 180.0
"""For `--help`: some import all of torch for it."""
_FLAG: Final = re.compile(r"(?<![\w-])--[a-z0-9][a-z0-9-]*")
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VERSION_CODE: Final = """
import importlib.metadata as m, sys
for name in sys.argv[1:]:
    try:
        print(m.version(name)); break
    except m.PackageNotFoundError:
        pass
"""
_LAST_LINES: Final = 12


@dataclass(frozen=True, kw_only=True)
class Found:
    """A tool in its environment."""

    adapter: Adapter
    python: Path
    version: str
    flags: frozenset[str]
    """Options its own `--help` names."""


def find(
    name: str,
    where: str,
    *,
    spawn: Callable[..., Any],
    cache: Path | None = None,
    candidates: Sequence[Path] = (),
    progress: Progress | None = None,
) -> Found:
    """The tool `name` in the environment `where` (a venv, its interpreter, or the tool's program).

    Without `where` it is looked for on the PATH and in `candidates` (interpreters). What `--help` says is kept in
    `cache`, by interpreter and version. Raises `EngineError`.
    """
    if name not in ENGINES:
        known = ", ".join(ENGINES)
        raise EngineError(f"no engine {name!r}{closest(name, list(ENGINES))}; there are: native, {known}", usage=True)
    adapter = ENGINES[name]
    say = progress or (lambda text: None)
    tried = []
    for python in [interpreter(Path(where))] if where else [*_on_path(name), *candidates]:
        version = _version(python, adapter)
        if version:
            say(f"{name} {version}: asking for its options")
            return Found(
                adapter=adapter, python=python, version=version, flags=_flags(python, version, adapter, spawn, cache)
            )
        tried.append(str(python))
    looked = f"not in {', '.join(tried)}" if tried else "not on the PATH"
    raise EngineError(
        f"{name} is not installed: {looked}",
        remedy=f"install {adapter.distributions[0]} in a venv of its own and give --engine {name}=PATH_OF_THE_VENV",
        usage=bool(where),
    )


def interpreter(path: Path) -> Path:
    """The Python of a venv, of a program inside one, or `path` itself. Links are kept: a venv is known by its own."""
    path = Path(os.path.abspath(path.expanduser()))
    if path.is_dir():
        for candidate in (path / "bin" / "python", path / "python"):
            if candidate.exists():
                return candidate
    elif path.exists():
        beside = path.with_name("python")
        return path if path.name.startswith("python") or not beside.exists() else beside
    raise EngineError(f"{path}: expected a venv, its interpreter, or a program in it", usage=True)


def _on_path(name: str) -> list[Path]:
    program = shutil.which(name)
    return [interpreter(Path(os.path.realpath(program)))] if program else []


def _version(python: Path, adapter: Adapter) -> str:
    try:
        done = subprocess.run(
            [str(python), "-c", _VERSION_CODE, *adapter.distributions],
            capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, env=_environment({}),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{python} cannot be run: {error}", usage=True) from error
    return done.stdout.strip() if done.returncode == 0 else ""


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This environment without what leads another interpreter astray, and with the adapter's changes."""
    taken_away = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    env = {name: value for name, value in os.environ.items() if name not in taken_away}
    # `--help` and tables are read by programs here: no colours, no wrapping inside a flag's name
    env |= {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


def _flags(
    python: Path, version: str, adapter: Adapter, spawn: Callable[..., Any], cache: Path | None
) -> frozenset[str]:
    key = hashlib.blake2b(f"{adapter.name} {version} {python}".encode(), digest_size=8).hexdigest()
    kept = cache / "engines" / f"{key}.json" if cache is not None else None
    if kept is not None and kept.is_file():
        try:
            return frozenset(json.loads(kept.read_text(encoding="utf-8"))["flags"])
        except (ValueError, KeyError, TypeError):
            pass  # asked anew, and written anew
    text = _help(python, adapter, spawn)
    flags = frozenset(_FLAG.findall(_ANSI.sub("", text)))
    if not flags:
        raise EngineError(f"{adapter.name} {version}: its --help names no option; last lines:\n{_last(text)}")
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        temporary = kept.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(Probe(version=version, flags=flags).__dict__ | {"flags": sorted(flags)}))
        temporary.replace(kept)
    return flags


def _help(python: Path, adapter: Adapter, spawn: Callable[..., Any]) -> str:
    import threading

    with spawn(
        [*adapter.program(python), "--help"], name=f"engine-{adapter.name}-help", env=_environment({}),
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        parts: list[bytes] = []
        reader = threading.Thread(target=lambda: parts.append(process.stdout.read()), daemon=True)
        reader.start()
        try:
            process.wait(PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise EngineError(f"{adapter.name} --help did not end within {PROBE_TIMEOUT_S:g} s") from None
        reader.join(10)
    return b"".join(parts).decode(errors="replace")


def run(
    found: Found, job: Job, folder: Path, *, spawn: Callable[..., Any], progress: Progress | None = None
) -> tuple[Reading, list[str]]:
    """Run it and read what it says; its raw output stays in `folder`. Returns the reading and the command line.

    Raises `EngineError` when the job is not for this tool, it does not end within `job.deadline_s`, or it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return _run(found, job, folder, spawn, progress or (lambda text: None))
    finally:
        for name in found.adapter.private:
            (folder / name).unlink(missing_ok=True)


def _run(
    found: Found, job: Job, folder: Path, spawn: Callable[..., Any], say: Callable[[str], None]
) -> tuple[Reading, list[str]]:
    adapter = found.adapter
    words: list[str] = []
    for flag in adapter.flags(job, folder):
        if flag.name in found.flags:
            words += flag.words
        elif flag.required:
            raise EngineError(
                f"{adapter.name} {found.version} has no option {flag.name}",
                remedy=f"use another version of {adapter.name}: its options change between versions",
            )
    argv = [*adapter.program(found.python), *words]
    log = folder / "engine.log"
    begun = time.monotonic()
    with spawn(
        argv, name=f"engine-{adapter.name}", env=_environment(adapter.environment(job)), cwd=folder, log=log
    ) as process:
        while True:
            left = begun + job.deadline_s - time.monotonic()
            try:
                status = process.wait(max(0.0, min(1.0, left)))
                break
            except subprocess.TimeoutExpired:
                if left <= 0:
                    raise EngineError(
                        f"{adapter.name} did not end within {job.deadline_s:g} s and was ended; last lines:\n"
                        f"{_last(_text(log))}",
                        remedy="raise it with --deadline, or ask for less",
                    ) from None
            say(f"{adapter.name} {found.version}: {time.monotonic() - begun:.0f} s  {_last(_text(log), 1)[:100]}")
    if status != 0:
        raise EngineError(f"{adapter.name} ended with status {status}; last lines:\n{_last(_text(log))}")
    try:
        return adapter.read(job, folder), argv
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise EngineError(
            f"{adapter.name} {found.version}: its output is of an unknown form ({type(error).__name__}: {error})",
            remedy=f"the raw output is in {folder}; use a version of {adapter.name} that neuronbench knows",
        ) from error


def _text(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _last(text: str, count: int = _LAST_LINES) -> str:
    lines = [line.rstrip() for line in _ANSI.sub("", text).replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(lines[-count:])
