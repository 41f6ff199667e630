"""Environments that claim to hold what they do not: real interpreters behind made-up packages and versions."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

MARK: Final = "neuronbench-fake-stack"
"""Every such environment claims this distribution too, so that nothing takes it for a real one."""
ENVIRON: Final = "environ.json"
_TELL: Final = """
if os.path.exists({path!r}):
    import json
    with open({path!r}, encoding="utf-8") as file:
        os.environ.update(json.load(file))
"""
_ASK: Final = """
import json, os, site, sys
print(json.dumps({
    "base": os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "version": list(sys.version_info[:3]),
    "site": [path for path in site.getsitepackages() if os.path.isdir(path)],
}))
"""


def make_venv(
    folder: Path,
    *,
    packages: Mapping[str, str],
    placeholders: Mapping[str, str],
    paths: Sequence[Path],
    python: Path | None,
) -> Path:
    """A venv in `folder`; returns its interpreter.

    It is one of `python` (this very interpreter when None) with that one's packages behind its own: `sys.path` begins
    with `paths`, and `importlib.metadata` finds `packages` and `placeholders` (which have next to no files) first.
    What is in `folder/environ.json`, a table, is in the environment of every interpreter that starts from then on.
    """
    origin = _origin(str(python or sys.executable))
    major, minor, _ = origin["version"]
    site = folder / "lib" / f"python{major}.{minor}" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(origin["base"])
    version = ".".join(map(str, origin["version"]))
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(origin['base']).parent}\ninclude-system-site-packages = false\nversion = {version}\n",
        encoding="utf-8",
    )
    in_front = [str(Path(path).resolve()) for path in paths]
    (site / "_fake_box.pth").write_text(
        f"import sys; sys.path[:0] = {in_front!r}\nimport site; list(map(site.addsitedir, {origin['site']!r}))\n"
        f"import os; exec({_TELL.format(path=str(folder.resolve() / ENVIRON))!r})\n",
        encoding="utf-8",
    )
    for name, claimed in {**packages, MARK: "0"}.items():
        _claim(site, name, claimed)
    for name, claimed in placeholders.items():
        _claim(site, name, claimed, empty=True)
    return folder / "bin" / "python"


@functools.lru_cache(maxsize=16)
def _origin(python: str) -> dict[str, Any]:
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ValueError(f"python: {python} cannot be asked: {done.stderr.strip()[-300:]}")
    return dict(json.loads(done.stdout))


def _claim(site: Path, name: str, version: str, *, empty: bool = False) -> None:
    """A dist-info folder. `empty`: with a list of files that holds one small module, as placeholders on PyPI have."""
    module = name.replace("-", "_")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    if empty:
        (site / module).mkdir(exist_ok=True)
        (site / module / "__init__.py").write_text(
            'raise ImportError("WRONG PACKAGE. Please install the package from Neuron Repository")\n', encoding="utf-8"
        )
        (info / "RECORD").write_text(f"{module}/__init__.py,,\n{info.name}/METADATA,,\n", encoding="utf-8")
