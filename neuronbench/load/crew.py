"""Who runs the drivers of a load, and where: on this host, or on several nodes of which each has a clock of its own.

One plan is driven by `size` processes; request i of it is process i modulo `size`, wherever that runs. A crew other
than this host's own is made by a factory (of the number of nodes) that an entry point in the group `neuronbench.crews`
names; `find` calls it, and `using` has every load within driven by what it made:

    with using(find(nodes=4)):
        measure(...)
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import neuronbench
from neuronbench.load.baton import AHEAD_NS
from neuronbench.model import Failure, Json
from neuronbench.protocols import PointFailure

if TYPE_CHECKING:
    from neuronbench.load.plan import Plan

GROUP: Final = "neuronbench.crews"
INSTALL: Final = 'pip install "neuronbench[ray]", here and on the nodes'
KEY_VARIABLE: Final = "NEURONBENCH_LOAD_API_KEY"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of which drivers ran, and how far its clock could be told from this host's."""

    name: str
    """Distinct among the nodes of a load, and what people know it by."""
    workers: tuple[int, ...]
    """Drivers that ran there."""
    same_host: bool = False
    """It is the host that this process runs on: their CPU is one."""
    offset_ns: int = 0
    """Added to the node's monotonic clock it is this host's; every instant of the records has it added."""
    bound_ns: int | None = 0
    """The instants are this host's to within so much, until the end of the load; None when it could not be told."""
    drift_ns: int | None = 0
    """How much the node's clock went ahead (below 0: fell behind) of this host's from before the load until after."""
    lost: str = ""
    """Why its records are missing; empty when it was there to the end."""
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be driven."""

    plan: Plan
    out: Path
    """Spill files have to be here when the shift is closed, with instants of this host's clock."""
    options: Mapping[str, Any]
    """`options.json` of the drivers."""
    processes: int
    """On each host."""
    api_key: str | None = field(default=None, repr=False)
    log: Path
    say: Callable[[str], None]
    """Told what is being done before the load."""


class Hand(Protocol):
    """One running driver."""

    where: str
    """Its node for messages; empty for this host."""
    lost: str
    """Why nothing is known of it any more; empty while something is."""

    def lines(self) -> Iterator[bytes | str]:
        """What it prints, until it has ended."""

    def tell(self, point: str, at_ns: int) -> None:
        """All have reached `point`; it is passed at `at_ns` of this host's monotonic clock."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def wait(self, timeout: float) -> int:
        """Raises `subprocess.TimeoutExpired`."""

    def terminate(self) -> None:
        """End it; returns when it has ended."""


class Shift(Protocol):
    """The drivers of one load."""

    ahead_ns: int
    """How far in the future a common instant has to be, to reach every driver before."""

    def start(self, index: int) -> Hand:
        """Start driver `index`."""

    def close(self) -> Sequence[Node]:
        """All have ended: bring their records. Says which nodes they ran on, none when that was this host alone."""


class Crew(Protocol):
    """Makes shifts."""

    def size(self, processes: int, base_url: str) -> int:
        """Number of drivers, with so many processes on each host, for a load on that server."""

    def shift(self, order: Order) -> Shift:
        """Get everything ready but start nothing. Raises `PointFailure` where that cannot be."""

    def close(self) -> None:
        """No more shifts: let go of what was held for them."""


class OnThisHost:
    """Drivers as children of this process. `spawn` has the signature of `neuronbench.processes.spawn`."""

    def __init__(self, spawn: Callable[..., Any]) -> None:
        self._spawn = spawn

    def size(self, processes: int, base_url: str) -> int:
        return processes

    def shift(self, order: Order) -> Shift:
        return _LocalShift(self._spawn, order)

    def close(self) -> None:
        """Nothing is held."""


class _LocalShift:
    ahead_ns = AHEAD_NS

    def __init__(self, spawn: Callable[..., Any], order: Order) -> None:
        self._spawn, self._order = spawn, order

    def start(self, index: int) -> Hand:
        order = self._order
        return LocalHand(driver_process(self._spawn, index, order.plan.folder, order.out, order.log, order.api_key))

    def close(self) -> Sequence[Node]:
        return ()


class LocalHand:
    """A driver that is a child of this process."""

    where = lost = ""

    def __init__(self, process: Any) -> None:
        self.process = process

    def lines(self) -> Iterator[bytes | str]:
        try:
            yield from self.process.stdout
        except (OSError, ValueError):
            return  # closed while it was being read

    def tell(self, point: str, at_ns: int) -> None:
        try:
            self.process.stdin.write(f"{point} {at_ns}\n".encode())
            self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # it has ended; its exit status says so

    def poll(self) -> int | None:
        status: int | None = self.process.poll()
        return status

    def wait(self, timeout: float) -> int:
        return int(self.process.wait(timeout=timeout))

    def terminate(self) -> None:
        self.process.terminate()


def driver_process(
    spawn: Callable[..., Any], index: int, plan: Path, out: Path, log: Path, api_key: str | None = None
) -> Any:
    """Start driver `index` on the plan and the options in these folders, its ends connected by pipes."""
    env = dict(os.environ)
    root = str(Path(neuronbench.__file__).parent.parent)
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    env.pop(KEY_VARIABLE, None)
    if api_key:
        env[KEY_VARIABLE] = api_key
    return spawn(
        [sys.executable, "-m", "neuronbench.load.driver", str(plan), str(out), str(index)],
        name=f"load-driver-{index}", env=env, log=log, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# another than this host's


_current: ContextVar[Crew | None] = ContextVar("neuronbench_crew", default=None)


@contextmanager
def using(crew: Crew | None) -> Iterator[None]:
    """Loads within are driven by `crew`; None leaves things as they are."""
    if crew is None:
        yield
        return
    token = _current.set(crew)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Crew | None:
    """The crew of the innermost `using`."""
    return _current.get()


def find(*, nodes: int) -> Crew:
    """A crew on `nodes` nodes (0: all there are), from the plugin that offers one; nothing is connected to yet.

    Raises `PointFailure` when no plugin offers any.
    """
    never = {each.strip() for each in os.environ.get("NEURONBENCH_DISABLE_PLUGINS", "").split(",")}
    known = {each.name: each for each in importlib.metadata.entry_points(group=GROUP) if each.name not in never}
    if not known:
        raise unavailable("a load from several nodes needs a plugin that reaches them, and none is installed", INSTALL)
    name = min(known)
    try:
        made: Crew = known[name].load()(nodes)
    except ImportError as error:
        raise unavailable(
            f"the plugin {name!r}, which reaches other nodes, cannot be used: {error}", INSTALL
        ) from error
    return made


def unavailable(message: str, remedy: str) -> PointFailure:
    """The nodes that were asked for are not to be had."""
    return PointFailure(Failure(kind="load_nodes", phase="window", message=message, remedy=remedy))
