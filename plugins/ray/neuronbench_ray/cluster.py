"""The Ray cluster: getting into it without waiting forever, and its nodes.

`RAY_ADDRESS` says which cluster, as for every program of Ray; without it, one that was started on this machine. A
cluster is never started here unless `RAY_ADDRESS=local` asks for one, and then on the loopback interface only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

LOAD_RESOURCE: Final = "neuronbench_load"
"""Custom resource of nodes that are meant to send load: `ray start ... --resources '{"neuronbench_load": 1}'`."""
ACCELERATORS: Final = ("neuron_cores", "GPU", "TPU")
REACH_S: Final = 5.0
LOOPBACK: Final = "127.0.0.2"
"""Of a cluster of our own. Ray takes 127.0.0.1 for "this machine" and puts another address in its place."""
_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class ClusterError(Exception):
    """There is no cluster to work with, and why. `remedy` says what to do."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


HOW_TO_START: Final = (
    "start one: `ray start --head --port=6379` on one machine, `ray start --address=ADDRESS:6379` on the others, and "
    "RAY_ADDRESS=ADDRESS:6379 here (a machine of the cluster; the README of neuronbench-ray says more)"
)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that is alive."""

    id: str
    """Ray's, in hexadecimal."""
    address: str
    host: str
    resources: Mapping[str, float] = field(default_factory=dict)
    """All it has, in use or not."""
    labels: Mapping[str, str] = field(default_factory=dict)
    here: bool = False
    """This process is on it."""

    @property
    def cpus(self) -> float:
        return self.resources.get("CPU", 0.0)

    @property
    def accelerators(self) -> float:
        return sum(self.resources.get(name, 0.0) for name in ACCELERATORS)


def load_ray() -> Any:
    """The module `ray`, told beforehand to send nothing home. Raises `ClusterError` where it is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ClusterError(
            f"Ray is not installed for {sys.executable} ({error})",
            remedy='pip install "neuronbench[ray]", here and on every node',
        ) from error
    return ray


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """`ray`, connected to the cluster at `address` (default: `RAY_ADDRESS`, else one that runs on this machine).

    A connection that was there before is used and left alone. Raises `ClusterError` when there is no cluster, or one
    that does not answer within a few seconds: `ray.init` itself would wait for minutes.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "neuronbench"}
    if where == "local":
        options |= {"include_dashboard": False, "_node_ip_address": LOOPBACK}
    elif where.startswith("ray://"):
        raise ClusterError(
            f"{where} is Ray's client protocol: all goes through a proxy there, and no clock can be told through it",
            remedy="run neuronbench on a machine of the cluster (or as `ray job submit -- neuronbench ...`), and give "
            "the address of the head node's GCS: RAY_ADDRESS=HOST:6379",
        )
    else:
        where = _answering(where)
    try:
        with own_sigterm():
            ray.init(address=where, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ClusterError(f"no connection to the Ray cluster at {where}: {first}", remedy=HOW_TO_START) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def own_sigterm() -> Iterator[None]:
    """What this process does on SIGTERM is afterwards what it was: Ray has it print where its threads stand, and exit.

    For one that comes within, it does so at the end.
    """
    if threading.current_thread() is not threading.main_thread():  # Ray leaves handlers alone there
        yield
        return
    before, came = signal.getsignal(signal.SIGTERM), False
    try:
        yield
    except SystemExit as end:
        if end.code != signal.SIGTERM:  # what Ray's own handler ends with
            raise
        came = True
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    if came:
        signal.raise_signal(signal.SIGTERM)
        raise KeyboardInterrupt(signal.SIGTERM.name)  # there is no connection, whatever it was taken for


def _answering(address: str) -> str:
    """The address of a cluster that answers. Raises `ClusterError`."""
    from ray._private import services

    try:
        found = services.canonicalize_bootstrap_address(address)
    except (ConnectionError, ValueError, OSError) as error:
        raise ClusterError(f"RAY_ADDRESS={address}: {error}", remedy=HOW_TO_START) from error
    if not found:
        raise ClusterError("RAY_ADDRESS is not set, and no Ray cluster runs on this machine", remedy=HOW_TO_START)
    host, _, port = str(found).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except (OSError, ValueError) as error:
        asked = "" if found == address else f" (for {address})"
        raise ClusterError(
            f"nothing answers at {found}{asked}, where the head node of the Ray cluster should be: {error}",
            remedy=HOW_TO_START,
        ) from error
    return str(found)


def nodes(ray: Any) -> list[Node]:
    """Nodes that are alive, in the order of their addresses."""
    own = ray.get_runtime_context().get_node_id()
    found = [
        Node(
            id=each["NodeID"],
            address=each["NodeManagerAddress"],
            host=each["NodeManagerHostname"],
            resources=dict(each["Resources"]),
            labels=dict(each.get("Labels") or {}),
            here=each["NodeID"] == own,
        )
        for each in ray.nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: (_in_order(node.address), node.id))


def _in_order(address: str) -> tuple[int, int, str]:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return (9, 0, address)
    return (parsed.version, int(parsed), "")


def own_address(ray: Any) -> str:
    """The address under which the other nodes of the cluster reach this machine."""
    return str(ray.util.get_node_ip_address())


def choose(known: Sequence[Node], count: int, *, cpus: int = 1, server: str = "") -> list[Node]:
    """Nodes to send load from: `count` of them, 0 for all that may.

    Those with the resource `neuronbench_load`, if any has it. Else every node with so many CPUs: first those without an
    accelerator that are neither this machine nor `server`, the address of what is measured. Raises `ClusterError` when
    there are fewer than asked for.
    """
    meant = [node for node in known if node.resources.get(LOAD_RESOURCE)]
    able = [node for node in meant or known if node.cpus >= cpus]
    spoiled = {node.id: (bool(node.accelerators), node.address == server, node.here) for node in able}
    ordered = sorted(able, key=lambda node: spoiled[node.id])  # stable: by address where nothing else tells them apart
    if not count and not meant:
        ordered = [node for node in ordered if not any(spoiled[node.id])]
    if len(ordered) < max(count, 1):
        what = f"with the resource {LOAD_RESOURCE}" if meant else f"with {cpus} CPUs"
        listed = ", ".join(f"{node.address} ({node.cpus:g} CPUs)" for node in known) or "none"
        raise ClusterError(
            f"nodes for the load: expected {count or 'one'} {what}, found {len(ordered)}; the cluster has {listed}",
            remedy="ask for fewer with --nodes, or add nodes: ray start --address=HEAD:6379 "
            f"--resources='{{\"{LOAD_RESOURCE}\": 1}}'",
        )
    return ordered[: count or None]


def names(chosen: Sequence[Node]) -> list[str]:
    """What to call each: its host name, with its address where two have one name, with its id where those are alike."""
    found = []
    for node in chosen:
        same = [other for other in chosen if other.host == node.host]
        name = node.host if len(same) == 1 else node.address
        if sum(other.address == node.address for other in same) > 1:
            name = f"{node.address}/{node.id[:8]}"
        found.append(name)
    return found
