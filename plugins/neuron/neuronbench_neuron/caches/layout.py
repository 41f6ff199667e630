"""What the compilers' caches on disk hold: one `Module` per compiled graph, in any of three layouts.

`xla` (torch_neuronx's lazy graphs, neuronx-distributed, optimum training; `NEURON_COMPILE_CACHE_URL`):

    neuronxcc-<version>/MODULE_<hash of the graph>+<hash of the flags>/
        model.hlo_module.pb  compile_flags.json  model.neff  model.done      compiled
        model.hlo_module.pb  compile_flags.json  model.log                   a failure that is kept, and answers at once
        ... *.lock                                                           somebody compiles it, or died at it

`vllm` (vLLM Neuron from 0.21 on; `$VLLM_CACHE_ROOT/neuron/compile_cache`): a folder per digest, with `graph_*.neff`
and, once whole, `.compilation_complete`.

`nxdi` (vLLM Neuron up to 0.5; `NEURON_COMPILED_ARTIFACTS`): a folder per model, with `model.pt` and
`neuron_config.json`.

Only names, sizes and times are read, and the few lines that say why something failed: a cache may have hundreds of GB.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["xla", "vllm", "nxdi"]
State: TypeAlias = Literal["done", "failed", "partial", "damaged"]
"""`done`: compiled; `failed`: a failure is kept, which later runs get at once; `partial`: begun, neither compiled nor
failed; `damaged`: marked as compiled, without what was compiled."""

COMPILER: Final = re.compile(r"neuronxcc-(?P<version>[0-9][\w.]*(?:\+\w+)?)")
"""The folder of a compiler's version."""
MODULE: Final = re.compile(r"MODULE_(?P<graph>[0-9A-Za-z]+)(?:\+(?P<flags>[0-9A-Za-z]+))?")
_DIGEST: Final = re.compile(r"[0-9a-f]{32,64}")
_HIDDEN_WORK: Final = ".nb-"
"""What `install` is at work on begins so; it is no module yet."""
_SIZE_TOLD: Final = re.compile(r"neff_size:(\d+)")
_TELLING: Final = re.compile(r"\[?NCC_|ERROR|[Ff]ailed|Killed|\[F\d+\]")
_TAIL: Final = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Module:
    """One compiled graph, or what there is of it."""

    key: str
    """Its folder relative to the cache, as the layout names it."""
    folder: Path
    kind: Kind
    state: State
    compiler: str = ""
    """Version of neuronx-cc; empty where the layout does not say."""
    target: str = ""
    """Of the compiler: `trn1`, `inf2`, `trn2`; empty where neither flags nor command say."""
    flags: tuple[str, ...] = ()
    why: str = ""
    """Of what failed or is damaged: the telling line, or what is wrong."""
    size_bytes: int = 0
    made_at: float = 0.0
    """Seconds since the epoch: of the executable, else of the folder."""
    used_at: float = 0.0
    stamp: tuple[int, int] = (0, 0)
    """Size and time (ns) of the executable, or of what says that it failed; another after another compile."""
    locks: tuple[Path, ...] = field(default=(), compare=False)


def modules(folder: Path, kind: Kind) -> list[Module]:
    """All that is in a cache, by key; empty where there is no such folder."""
    found = {"xla": _xla, "vllm": _vllm, "nxdi": _nxdi}[kind](folder)
    return sorted(found, key=lambda module: module.key)


def kind_of(folder: Path) -> Kind:
    """The layout of a cache, by what it holds; `xla` where it holds nothing yet."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if COMPILER.fullmatch(entry.name):
                return "xla"
            if _DIGEST.fullmatch(entry.name) and entry.is_dir():
                return "vllm"
            if entry.name == "neuron_config.json" or Path(entry.path, "neuron_config.json").is_file():
                return "nxdi"
    return "xla"


# -- the layouts ------------------------------------------------------------------------------------------------------


def _xla(root: Path) -> Iterator[Module]:
    for version in _folders(root):
        named = COMPILER.fullmatch(version.name)
        if named is None:
            continue
        for folder in _folders(version):
            if MODULE.fullmatch(folder.name):
                yield _xla_module(folder, named["version"])


def _xla_module(folder: Path, compiler: str) -> Module:
    files = _files(folder)
    neff, done = files.get("model.neff"), "model.done" in files
    complaint = next((files[name] for name in ("model.error", "model.log") if name in files), None)
    state: State
    why, told = "", neff
    if neff is not None and neff.st_size and done:
        state = "done"
    elif done:
        state, why = "damaged", "model.done without " + ("a model.neff" if neff is None else "anything in model.neff")
    elif complaint is not None:
        state, told = "failed", complaint
        why = _telling_line(folder / ("model.error" if "model.error" in files else "model.log"))
    else:
        state = "partial"
    flags = _flags(folder / "compile_flags.json")
    return _module(
        folder, files, kind="xla", key=f"{folder.parent.name}/{folder.name}", state=state, why=why, told=told,
        compiler=compiler, flags=flags,
    )  # fmt: skip


def _vllm(root: Path) -> Iterator[Module]:
    for folder in _folders(root):
        if not _DIGEST.fullmatch(folder.name):
            continue
        files = _files(folder)
        neffs = {name: stat for name, stat in files.items() if name.endswith(".neff")}
        marker, size = ".compilation_complete" in files, sum(stat.st_size for stat in neffs.values())
        told = next(iter(neffs.values()), None)
        wanted = _SIZE_TOLD.search(_text(folder / ".compilation_complete")) if marker else None
        state: State = "partial"
        why = ""
        if marker and not size:
            state, why = "damaged", ".compilation_complete without a .neff"
        elif marker and wanted and int(wanted[1]) not in (size, *(stat.st_size for stat in neffs.values())):
            state, why = "damaged", f"the .neff has {size} bytes, .compilation_complete says {wanted[1]}"
        elif marker:
            state = "done"
        elif not neffs and (line := _telling_line(folder / "log-neuron-cc.txt", or_last=False)):
            state, why, told = "failed", line, files["log-neuron-cc.txt"]
        command = tuple(_text(folder / "command.txt").split())
        yield _module(folder, files, kind="vllm", key=folder.name, state=state, why=why, told=told, flags=command)


def _nxdi(root: Path) -> Iterator[Module]:
    whole = [root] if (root / "neuron_config.json").is_file() or (root / "model.pt").is_file() else []
    for folder in whole or _folders(root):
        files = _files(folder)
        model, config = files.get("model.pt"), files.get("neuron_config.json")
        if model is None and config is None:
            continue
        state: State = "done" if model is not None and model.st_size and config is not None else "partial"
        yield _module(folder, files, kind="nxdi", key=folder.name, state=state, why="", told=model)


def _module(
    folder: Path,
    files: dict[str, os.stat_result],
    *,
    kind: Kind,
    key: str,
    state: State,
    why: str,
    told: os.stat_result | None,
    compiler: str = "",
    flags: tuple[str, ...] = (),
) -> Module:
    made = told.st_mtime if told is not None else _mtime(folder)
    return Module(
        key=key, folder=folder, kind=kind, state=state, compiler=compiler, flags=flags, target=target_of(flags),
        why=why, size_bytes=sum(stat.st_size for stat in files.values()), made_at=made,
        # Times of reading are often not kept (noatime, relatime): then this is when it was made.
        used_at=max([made, *(stat.st_atime for name, stat in files.items() if name.endswith((".neff", ".pt")))]),
        stamp=(told.st_size, told.st_mtime_ns) if told is not None else (0, 0),
        locks=tuple(folder / name for name in sorted(files) if name.endswith(".lock")),
    )  # fmt: skip


# -- parts ------------------------------------------------------------------------------------------------------------


def target_of(flags: tuple[str, ...]) -> str:
    """The value of `--target` among flags of the compiler; empty when it is not there."""
    for index, flag in enumerate(flags):
        name, _, value = flag.partition("=")
        if name == "--target":
            return value or (flags[index + 1] if index + 1 < len(flags) else "")
    return ""


def lnc_of(flags: tuple[str, ...]) -> int | None:
    """Physical cores of a logical one among flags of the compiler; None when they do not say."""
    for index, flag in enumerate(flags):
        name, _, value = flag.partition("=")
        if name in ("-lnc", "--lnc", "--logical-nc-config"):
            told = value or (flags[index + 1] if index + 1 < len(flags) else "")
            return int(told) if told.isdecimal() else None
    return None


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as found:
            return sorted(
                Path(entry.path) for entry in found if entry.is_dir() and not entry.name.startswith(_HIDDEN_WORK)
            )
    except OSError:
        return []


def _files(folder: Path) -> dict[str, os.stat_result]:
    """Every file below `folder` by its relative name; what vanishes meanwhile is left out."""
    found: dict[str, os.stat_result] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                found[path.relative_to(folder).as_posix()] = path.stat()
    return found


def _flags(path: Path) -> tuple[str, ...]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    if isinstance(told, dict):
        told = next((value for value in told.values() if isinstance(value, list)), [])
    return tuple(str(flag) for flag in told) if isinstance(told, list) else tuple(str(told).split())


def _telling_line(path: Path, *, or_last: bool = True) -> str:
    lines = [" ".join(line.split()) for line in _text(path).splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    found = telling[:1] or (lines[-1:] if or_last else [])
    return found[0][:300] if found else ""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _TAIL, 0))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _mtime(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
