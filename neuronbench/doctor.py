"""What a run needs from machine and project, checked one thing after another; every problem with its remedy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from neuronbench.protocols import Check
from neuronbench.stacks import OF_RESOURCE

if TYPE_CHECKING:
    from neuronbench.config import Settings
    from neuronbench.plugins import Plugins

Status: TypeAlias = Literal["ok", "info", "warn", "fail"]
TOKEN_VARIABLES: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
FILES_WANTED: Final = 4096
FREE_GB_WANTED: Final = 5.0
FREE_GB_NEEDED: Final = 0.5


def examine(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    """All checks, as they are done; one that breaks down is itself a failed check."""
    checks: tuple[tuple[str, Callable[[Settings, Plugins], Iterator[Check]]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("plugins", _plugins),
        ("backends", _backends),
        ("compiler", _compiler),
        ("model cache", _model_cache),
        ("hub token", _hub_token),
        ("receipts", _receipts),
        ("mlflow", _mlflow),
        ("files", _files),
        ("leftovers", _leftovers),
        ("host", _host),
    )
    for name, check in checks:
        try:
            yield from check(settings, plugins)
        except Exception as error:
            yield Check(name=name, status="fail", found=f"cannot be checked: {type(error).__name__}: {error}")


def _python(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    yield Check(name="python", status="ok", found=f"{platform.python_version()} at {sys.executable}")


def _packages(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    from packaging.requirements import Requirement

    try:
        version = importlib.metadata.version("neuronbench")
        needed = [Requirement(text) for text in importlib.metadata.requires("neuronbench") or ()]
    except importlib.metadata.PackageNotFoundError:
        yield Check(
            name="packages",
            status="warn",
            found="neuronbench runs from its source folder and is not installed: pytest will not find its plugin",
            remedy="make harness, or pip install -e .",
        )
        return
    wrong = []
    for requirement in needed:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            has = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(has, prereleases=True):
            wrong.append(f"{requirement.name} {has} does not satisfy {requirement.specifier}")
    if wrong:
        yield Check(name="packages", status="fail", found="; ".join(wrong), remedy="make harness")
    else:
        yield Check(name="packages", status="ok", found=f"neuronbench {version} and all that it needs")


def _plugins(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    broken = [report for report in plugins.reports.values() if not report.ok]
    for report in broken:
        yield Check(
            name="plugin",
            status="warn",
            found=f"{report.name} is left out: {report.error}",
            remedy=f"install another release of {report.distribution or report.name}, or remove it",
        )
    loaded = [report.name for report in plugins.reports.values() if report.ok and report.source != "core"]
    yield Check(name="plugins", status="ok", found=", ".join(loaded) or "none but the core's own")


def _backends(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    available = 0
    for info in plugins.backends:
        name = f"backend {info.name}"
        try:
            backend = plugins.backend(info.name)
            probe = backend.probe()
        except Exception as error:
            owner = plugins.backends.owner(info.name)
            yield Check(
                name=name,
                status="fail",
                found=f"plugin {owner!r} cannot look for it: {type(error).__name__}: {error}",
                remedy=f"report it to the plugin's authors; meanwhile: NEURONBENCH_DISABLE_PLUGINS={owner}",
            )
            continue
        if not probe.available:
            yield Check(name=name, status="info", found=f"not here: {probe.reason}")
            continue
        available += 1
        simulated = ", made up: what is measured here is recorded as simulated" if probe.facts.get("simulated") else ""
        yield Check(name=name, status="ok", found=f"{info.title}, capacity {probe.cores}{simulated}")
        kinds = {
            OF_RESOURCE[provider.kind]
            for provider in plugins.providers
            if info.family in provider.families and provider.kind in OF_RESOURCE
        }
        for kind in sorted(kinds):
            try:
                stack = backend.stack(kind, settings)
            except LookupError as error:
                found, _, remedy = str(error.args[0] if error.args else error).partition("\n  To do: ")
                yield Check(name=f"stack {kind}", status="fail", found=found, remedy=remedy or "make stack")
                continue
            versions = ", ".join(f"{package} {version}" for package, version in stack.packages.items())
            yield Check(
                name=f"stack {kind}", status="ok", found=f"{stack.python}, because of {stack.source} ({versions})"
            )
        own = getattr(backend, "checks", None)
        if own is not None:
            yield from own(settings)
    if not available:
        yield Check(
            name="backends",
            status="fail",
            found="no backend can be used on this machine",
            remedy="install a plugin for its hardware; neuronbench plugins shows what is there",
        )


def _compiler(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if found is None:
        yield Check(
            name="compiler",
            status="warn",
            found="no C++ compiler on PATH: models cannot be compiled for the CPU",
            remedy="install one (Debian and Ubuntu: apt-get install g++)",
        )
    else:
        yield Check(name="compiler", status="ok", found=found)


def _model_cache(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    folder = settings.cache_dir
    if not _writable(folder):
        yield Check(
            name="model cache",
            status="fail",
            found=f"{folder} cannot be written to",
            remedy="set cache_dir in neuronbench.toml to a folder that can",
        )
        return
    models = sorted(path.name for path in folder.glob("models/*/*") if path.is_dir() and not path.name.startswith("."))
    yield Check(name="model cache", status="ok", found=f"{folder}: {', '.join(models) or 'empty'}")


def _hub_token(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    """Whether there is one for models that the hub gives to some only. Its value is looked for, and never shown."""
    for name in TOKEN_VARIABLES:
        if os.environ.get(name):
            yield Check(name="hub token", status="ok", found=f"set ({name})")
            return
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    file = Path(os.environ.get("HF_TOKEN_PATH") or Path(home) / "token")
    if file.is_file() and file.stat().st_size > 0:
        yield Check(name="hub token", status="ok", found=f"there ({file})")
        return
    yield Check(
        name="hub token",
        status="info",
        found="none: models behind a licence cannot be fetched",
        remedy="set HF_TOKEN, or: hf auth login",
    )


def _receipts(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    from neuronbench.receipts import ReceiptStore

    folder = settings.data_root
    if not _writable(folder):
        yield Check(
            name="receipts",
            status="fail",
            found=f"{folder} cannot be written to",
            remedy="set data_root in neuronbench.toml to a folder that can",
        )
        return
    count = len(ReceiptStore(settings.receipts_dir).sessions())
    free = shutil.disk_usage(_nearest(folder)).free / 1e9
    found = f"{count} sessions in {settings.receipts_dir}, {free:.1f} GB free"
    if free < FREE_GB_WANTED:
        status: Status = "fail" if free < FREE_GB_NEEDED else "warn"
        yield Check(name="receipts", status=status, found=found, remedy="free some space on that disk")
    else:
        yield Check(name="receipts", status="ok", found=found)


def _mlflow(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    uri = settings.mlflow_uri
    if not uri:
        yield Check(name="mlflow", status="info", found="switched off (tracking_uri = off): receipts only")
        return
    problem = _reach(uri)
    if problem:
        yield Check(
            name="mlflow",
            status="warn",
            found=f"{problem}; receipts are written all the same and stay pending",
            remedy="put it right, then: neuronbench push",
        )
    else:
        from neuronbench.redaction import redact

        yield Check(name="mlflow", status="ok", found=redact(uri))


def _reach(uri: str) -> str:
    """Why MLflow's store cannot be reached; empty when it can, or when that cannot be told from here."""
    if uri.startswith("sqlite:///"):
        import sqlite3

        path = Path(uri.removeprefix("sqlite:///"))
        if not path.exists():
            return "" if _writable(path.parent) else f"{path.parent} cannot be written to"
        try:
            connection = sqlite3.connect(path, timeout=2.0, isolation_level=None)
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            finally:
                connection.close()
        except sqlite3.Error as error:
            return f"{path}: {error}"
        return ""
    if uri.startswith(("http://", "https://")):
        import urllib.error
        import urllib.request

        from neuronbench.redaction import redact

        try:
            with urllib.request.urlopen(uri.rstrip("/") + "/health", timeout=5):
                return ""
        except urllib.error.HTTPError as error:
            return "" if error.code < 500 else f"{redact(uri)} answers with status {error.code}"
        except OSError as error:
            return f"{redact(uri)} cannot be reached: {getattr(error, 'reason', error)}"
    return ""


def _files(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES_WANTED:
        yield Check(
            name="open files",
            status="warn",
            found=f"at most {soft} a process: a load of many streams needs one file each on both sides",
            remedy=f"ulimit -n {FILES_WANTED}" + ("" if hard < 0 or hard >= FILES_WANTED else " (as root)"),
        )
    else:
        yield Check(name="open files", status="ok", found=f"at most {'any number' if soft < 0 else soft} a process")


def _leftovers(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    from neuronbench.reap import reap

    left = [entry for entry in reap(settings.receipts_dir, dry_run=True) if entry.action == "ended"]
    for entry in left:
        yield Check(
            name="leftovers",
            status="warn",
            found=f"{entry.name} of session {entry.session} still runs (pid {', '.join(map(str, entry.pids))})",
            remedy="neuronbench reap",
        )
    if not left:
        yield Check(name="leftovers", status="ok", found="no process of a killed run")


def _host(settings: Settings, plugins: Plugins) -> Iterator[Check]:
    from neuronbench.environment import host_warnings

    warnings = host_warnings()
    for text in warnings:
        found, _, remedy = text.partition(": ")
        yield Check(name="host", status="warn", found=found, remedy=remedy)
    if not warnings:
        yield Check(name="host", status="ok", found="nothing that makes numbers worse or less steady")


def _nearest(folder: Path) -> Path:
    """`folder` itself, or the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _writable(folder: Path) -> bool:
    """Whether `folder` can be written to, or made where it is not there yet."""
    there = _nearest(folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
