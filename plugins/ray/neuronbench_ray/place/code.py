"""The code that measures: a digest of each part of it, and the project's files on their way to the nodes.

Numbers of two nodes belong together only when the same code made them. The project (benchmarks, conftest.py, settings)
is sent along and unpacked under its digest; neuronbench and its plugins are installed on the nodes and compared.
"""

from __future__ import annotations

import getpass
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import platform
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMIT_BYTES: Final = 64 << 20
"""Of all files of a project together; what is larger is data, and does not travel as code."""
_NEVER: Final = frozenset({"__pycache__", "node_modules", "mlruns", "build", "dist"})


class CodeError(Exception):
    """The project cannot be sent, or is another one on the node; the text says what to do."""


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """A project as it is sent."""

    digest: str
    """SHA-256 over names and contents."""
    files: int
    data: bytes
    """A zip archive; empty when the project is on the nodes already."""
    root: str
    """Where it is on the head; the same path on the nodes when nothing is sent."""
    environ: Mapping[str, str]
    """What records say of the checkout it was made of."""


def parts() -> dict[str, str]:
    """Name → digest or version of what is installed here and takes part in measuring."""
    found = {"python": platform.python_version(), "neuronbench": _package("neuronbench")}
    for entry in importlib.metadata.entry_points(group="neuronbench"):
        package = entry.value.partition(":")[0].partition(".")[0]
        if package not in found:
            found[package] = _package(package)
    return found


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """What differs between the head and a node, each with both sides."""
    return [
        f"{name}: {here.get(name, 'not installed')[:12]} on the head, {there.get(name, 'not installed')[:12]} there"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]


def ship(root: Path, *, send: bool = True) -> Shipment:
    """The project at `root`, ready to be sent. Raises `CodeError` when it is too large."""
    names = _names(root)
    total = sum((root / name).stat().st_size for name in names)
    if total > LIMIT_BYTES:
        large = sorted(names, key=lambda name: (root / name).stat().st_size, reverse=True)[:3]
        raise CodeError(
            f"{root}: expected at most {LIMIT_BYTES >> 20} MiB of code, found {total >> 20} MiB "
            f"(largest: {', '.join(large)}). Keep data out of the project or in its .gitignore; or have the project on "
            "all nodes under the same path and give --no-ship"
        )
    stream = io.BytesIO()
    if send:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.writestr(zipfile.ZipInfo(name), (root / name).read_bytes())
    digest = _digest(root, names)
    return Shipment(
        digest=digest,
        files=len(names),
        data=stream.getvalue(),
        root=str(root),
        environ={"NEURONBENCH_CODE_SHA256": digest, **_checkout(root)},
    )


def unpack(shipment: Shipment) -> Path:
    """The project's folder on this node. Raises `CodeError` when what is there is not what the head has."""
    if not shipment.data:
        root = Path(shipment.root)
        found = _digest(root, _names(root)) if root.is_dir() else "no such folder"
    else:
        root = scratch() / "code" / shipment.digest[:24]
        if not root.is_dir():
            root.parent.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix=".code-", dir=root.parent))
            with zipfile.ZipFile(io.BytesIO(shipment.data)) as archive:
                archive.extractall(fresh)
            try:
                os.rename(fresh, root)
            except OSError:  # another process of this node was faster
                shutil.rmtree(fresh, ignore_errors=True)
        found = _digest(root, _walk(root))
    if found != shipment.digest:
        raise CodeError(
            f"the project at {root} differs: {shipment.digest[:12]} on the head, {found[:12]} there"
            + ("" if shipment.data else "; bring both to the same state, or leave --no-ship out")
        )
    return root


def scratch() -> Path:
    """Where nodes keep what they are sent and what they measure until the head has it: one folder a user."""
    return Path(tempfile.gettempdir()) / f"neuronbench-ray-{getpass.getuser()}"


# -- parts ------------------------------------------------------------------------------------------------------------


def _package(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return "not found"
    path = Path(spec.origin)
    if path.name != "__init__.py":
        return _digest(path.parent, [path.name])
    return _digest(path.parent, _walk(path.parent))


def _digest(root: Path, names: Iterable[str]) -> str:
    state = hashlib.sha256()
    for name in sorted(names):
        state.update(f"{name}\0{hashlib.sha256((root / name).read_bytes()).hexdigest()}\n".encode())
    return state.hexdigest()


def _names(root: Path) -> list[str]:
    """Files of a project: what git knows or would add; without git, all but environments, caches and results."""
    done = _git(root, "ls-files", "-coz", "--exclude-standard")
    if done is None:
        return _walk(root)
    there = (root / name for name in done.split("\0") if name)
    return sorted(path.relative_to(root).as_posix() for path in there if _plain(path, root))


def _walk(root: Path) -> list[str]:
    found = []
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _NEVER and not (here / name / "pyvenv.cfg").is_file()
        ]
        found += [here / name for name in names]
    return sorted(path.relative_to(root).as_posix() for path in found if _plain(path, root))


def _plain(path: Path, root: Path) -> bool:
    names = path.relative_to(root).parts
    hidden = any(name.startswith(".") or name in _NEVER for name in names)
    return not hidden and path.suffix != ".pyc" and path.is_file() and not path.is_symlink()


def _checkout(root: Path) -> dict[str, str]:
    commit = (_git(root, "rev-parse", "HEAD") or "").strip()
    if not commit:
        return {}
    return {
        "NEURONBENCH_CODE_COMMIT": commit,
        "NEURONBENCH_CODE_BRANCH": (_git(root, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        "NEURONBENCH_CODE_DIRTY": "1" if _git(root, "status", "--porcelain") else "0",
    }


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
