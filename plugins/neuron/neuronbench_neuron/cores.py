"""Exclusive sets of NeuronCores for processes of this host: between lanes, between sessions, beside strangers.

A core belongs to one process at a time, and who asks for a taken one fails in the middle of loading. So cores are taken
before anything starts: one lock file for each physical core (a group of them for a logical one), held by this process
and let go of when it ends, however it ends. Processes that know nothing of these locks show in `neuron-ls`, which tells
devices and not cores: a device that a stranger is on is busy altogether.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
from packaging.version import InvalidVersion, Version

from neuronbench import keylocks
from neuronbench.redaction import redact, redact_argv
from neuronbench_neuron import ids, neuron_ls
from neuronbench_neuron.hardware import GROUP_VARIABLES, VISIBLE_VARIABLES, Hardware, tool_environment

SHARED: Final = Path("/tmp/neuronbench-neuron-cores")
"""Lock files of a real host: one folder for all users of it."""
STRANGER_WAIT_S: Final = 5.0
POLL_S: Final = 0.25
VISIBLE_DEVICES_SINCE: Final = Version("0.21.dev0")
"""The vLLM from which on Neuron's plugin takes NEURON_VISIBLE_DEVICES and refuses NEURON_RT_VISIBLE_CORES."""

NAMED: Final = (*VISIBLE_VARIABLES, "NEURON_RT_NUM_CORES", *GROUP_VARIABLES)
"""Variables that tell a program its cores, or how they are grouped."""


def named_by(table: str, environ: Mapping[str, object], whose: str, ask: str) -> str:
    """Why variables that a point gives to its processes cannot be, in one line; empty when they can: cores that are
    named there are not those that were leased. `table`: the point's parameter that has them, `ask`: the one to use."""
    taken = sorted(name for name in environ if name in NAMED)
    if not taken:
        return ""
    return (
        f"{table} may not set {', '.join(taken)}: the cores of {whose} are leased, grouped as this host's are; ask for "
        f"{ask}, or set the grouping for neuronbench itself"
    )


class CoresBusy(RuntimeError):
    """The cores asked for are taken; the text says by whom. `holders`: what is known of each."""

    def __init__(self, message: str, holders: Sequence[Holder] = ()) -> None:
        super().__init__(message)
        self.holders = tuple(holders)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has cores: another run of neuronbench (`owner` says which part of it), or a stranger."""

    cores: tuple[int, ...]
    pid: int | None
    command: str = ""
    owner: str = ""
    stranger: bool = False

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid else "a process that has not said its name yet"
        what = f" ({self.command})" if self.command else ""
        for_whom = f" for {self.owner}" if self.owner else ""
        does = "is on the device of" if self.stranger else "has"
        return f"{who}{what} {does} {_cores(self.cores)}{for_whom}"


class CoreLease:
    """Cores that are this process's until `release`, or the end of the `with` block."""

    def __init__(self, cores: Sequence[int], *, host: Hardware, owner: str, locks: ExitStack) -> None:
        self.ids: tuple[int, ...] = tuple(cores)
        """Ids as programs see them."""
        self.owner = owner
        self._group = host.logical_core_config or 1
        self._grouped = host.core_version not in ("", "v2")
        self._locks = locks

    def variable(self, vllm: str = "") -> str:
        """The variable that tells a program its cores; `vllm` is the version of vLLM when that is the program."""
        try:
            newer = bool(vllm) and Version(vllm) >= VISIBLE_DEVICES_SINCE
        except InvalidVersion:
            newer = False
        return "NEURON_VISIBLE_DEVICES" if newer else "NEURON_RT_VISIBLE_CORES"

    def environ(self, base: Mapping[str, str] | None = None, *, vllm: str = "") -> dict[str, str]:
        """Variables for a program on these cores: `base` without what speaks of others, and those that name these.

        vLLM for Neuron from 0.21 on refuses to start where NEURON_RT_VISIBLE_CORES is set; older ones, and all else,
        need it. How cores are grouped is said too where the hardware can do it in more than one way.
        """
        dropped = (*VISIBLE_VARIABLES, "NEURON_RT_NUM_CORES", *(GROUP_VARIABLES if self._grouped else ()))
        environ = {name: value for name, value in (base or {}).items() if name not in dropped}
        environ[self.variable(vllm)] = ids.show(self.ids)
        if self._grouped:
            environ["NEURON_LOGICAL_NC_CONFIG"] = str(self._group)
        return environ

    def also(self, lock: keylocks.Lock) -> None:
        """Let go of this one too with them."""
        self._locks.enter_context(lock)

    def release(self) -> None:
        """Let go of them; idempotent."""
        self._locks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def take(cores: int | Sequence[int], *, host: Hardware, owner: str, wait_s: float = STRANGER_WAIT_S) -> CoreLease:
    """Take so many cores, or these, for `owner` (a session and what it is for, in words for other people).

    A number takes neighbours: within one device where they fit, from the start of one where they do not. Only cores
    that this process may see are taken (`Hardware.visible`). Raises `ValueError` for what this host cannot have, and
    `CoresBusy` for what is taken, with pid, command and purpose of who has it. A process that holds no lock may be one
    that is just ending: it is given `wait_s` to be gone.
    """
    choices = _choices(cores, host)
    until = time.monotonic() + wait_s
    while True:
        try:
            return _take(cores, choices, host, owner)
        except CoresBusy as error:
            if not any(holder.stranger for holder in error.holders) or time.monotonic() > until:
                raise
        time.sleep(min(POLL_S, wait_s))


def _take(cores: int | Sequence[int], choices: Sequence[tuple[int, ...]], host: Hardware, owner: str) -> CoreLease:
    foreign = strangers(host)
    busy: list[Holder] = []
    for wanted in choices:
        in_the_way = [holder for holder in foreign if set(holder.cores) & set(wanted)]
        locks = ExitStack()
        if not in_the_way:
            in_the_way = _lock(wanted, host, owner, locks)
        if not in_the_way:
            return CoreLease(wanted, host=host, owner=owner, locks=locks)
        locks.close()
        busy += [holder for holder in in_the_way if str(holder) not in map(str, busy)]
    beside = "cores beside each other" if cores != 1 else "core"
    what = f"{cores} {beside}" if isinstance(cores, int) else _cores(cores)
    raise CoresBusy(
        f"expected {what} to be free on this {host.instance_type or host.family}, found "
        f"{'; '.join(map(str, busy))}. Wait for it or end it; `neuronbench reap` ends what a killed run left",
        busy,
    )


def strangers(host: Hardware) -> list[Holder]:
    """Processes on a device that hold no lock on a core of it, and are of no process that does.

    `neuron-ls` is asked anew; what it cannot tell now it told when the host was looked at.
    """
    devices: Iterable[neuron_ls.Device] = host.devices
    if host.tool is not None:
        with suppress(neuron_ls.NeuronLsError):
            asked = {device.index: device for device in neuron_ls.ask(host.tool, environ=tool_environment(host.root))}
            devices = [
                neuron_ls.Device(index=device.index, core_ids=device.core_ids, processes=asked[device.index].processes)
                for device in host.devices
                if device.index in asked
            ]
    locked = holders(host)
    found: dict[int, Holder] = {}
    for device in devices:
        known = {holder.pid for holder in locked if set(holder.cores) & set(device.core_ids)}
        for process in device.processes:
            if process.pid in known or known & set(_ancestors(process.pid)):
                continue
            before = found[process.pid].cores if process.pid in found else ()
            found[process.pid] = Holder(
                cores=(*before, *device.core_ids), pid=process.pid, command=redact(process.command), stranger=True
            )
    return list(found.values())


def holders(host: Hardware) -> list[Holder]:
    """Who holds locks on cores of this host now, this process included."""
    found: dict[str, Holder] = {}
    for core in host.core_ids:
        for path in _lock_files(core, host):
            if keylocks.is_held(path):
                told = _told(path)
                key = json.dumps(told, sort_keys=True)
                before = found[key].cores if key in found else ()
                found[key] = _holder((*before, core), told)
                break
    return list(found.values())


# -- parts ------------------------------------------------------------------------------------------------------------


def _choices(cores: int | Sequence[int], host: Hardware) -> list[tuple[int, ...]]:
    """Sets of cores that would do, best first."""
    there = host.visible
    limit = f" ({host.visible_source})" if host.visible_source else ""
    if not isinstance(cores, int):
        wanted = tuple(cores)
        unknown = sorted(set(wanted) - set(there))
        if not wanted or unknown or len(set(wanted)) != len(wanted):
            raise ValueError(f"cores: expected ids among {ids.show(there) or 'none'}{limit}, found {list(wanted)}")
        return [wanted]
    if not 1 <= cores <= len(there):
        raise ValueError(f"cores: expected 1 to {len(there)}{limit}, found {cores}")
    each = max((device.cores for device in host.devices), default=1)
    step = 1 << (cores - 1).bit_length() if cores < each else each
    runs = [tuple(range(first, first + cores)) for first in there]
    fitting = [run for run in runs if set(run) <= set(there)]
    aligned = [run for run in fitting if run[0] % step == 0]
    if not aligned and not fitting:
        raise ValueError(f"cores: {cores} neighbouring ones are not among {ids.show(there)}{limit}")
    return aligned or fitting  # where the visible cores begin in the middle of a device nothing is aligned


def _lock(cores: Sequence[int], host: Hardware, owner: str, locks: ExitStack) -> list[Holder]:
    """Lock all of them, or return who is in the way."""
    me = {"pid": os.getpid(), "command": _command(), "owner": owner, "since": time.time()}
    busy: list[Holder] = []
    for core in cores:
        for path in _lock_files(core, host):
            lock = _open(path)
            if lock is None:
                busy.append(_holder((core,), _told(path)))
                break
            locks.enter_context(lock)
            path.write_text(json.dumps(me), encoding="utf-8")
    merged: dict[tuple[Any, ...], Holder] = {}
    for holder in busy:
        key = (holder.pid, holder.owner)
        before = merged[key].cores if key in merged else ()
        merged[key] = Holder(cores=(*before, *holder.cores), pid=holder.pid, command=holder.command, owner=holder.owner)
    return list(merged.values())


def _open(path: Path) -> keylocks.Lock | None:
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            # Others who use this host take cores here too. No sticky bit: in folders that have it the kernel keeps
            # users from opening each other's files (fs.protected_regular).
            path.parent.chmod(0o777)
    try:
        lock = keylocks.take(path)
    except OSError as error:
        raise CoresBusy(
            f"the lock files of this host's cores cannot be used: {error.strerror}: {path}; where another user made "
            "them, run as that user, or have them removed while nothing runs"
        ) from error
    if lock is not None:
        with suppress(OSError):
            path.chmod(0o666)
    return lock


def _lock_files(core: int, host: Hardware) -> list[Path]:
    """One for each physical core of a logical one: who groups them otherwise meets the same files."""
    group = host.logical_core_config or 1
    folder = SHARED if host.root == Path("/") else host.root / "run" / "neuronbench" / "cores"
    return [folder / f"core-{physical:04d}.lock" for physical in range(core * group, (core + 1) * group)]


def _told(path: Path) -> Mapping[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _holder(cores: Sequence[int], told: Mapping[str, Any]) -> Holder:
    pid = told.get("pid")
    return Holder(
        cores=tuple(cores),
        pid=pid if isinstance(pid, int) else None,
        command=str(told.get("command", "")),
        owner=str(told.get("owner", "")),
    )


def _ancestors(pid: int) -> list[int]:
    try:
        return [parent.pid for parent in psutil.Process(pid).parents()]
    except (psutil.Error, OSError):
        return []


def _command() -> str:
    return " ".join(redact_argv([Path(sys.argv[0]).name or "python", *sys.argv[1:]]))[:200]


def _cores(cores: Sequence[int]) -> str:
    return f"core{'s' if len(cores) > 1 else ''} {ids.show(cores)}"
