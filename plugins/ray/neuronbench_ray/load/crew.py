"""A crew of drivers on the nodes of a Ray cluster: `neuronbench load URL --nodes 4`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from neuronbench.load.clock import realtime_offset_ns
from neuronbench.load.clockshift import shift
from neuronbench.load.crew import INSTALL, Hand, Node, Order, Shift, unavailable
from neuronbench.load.engine import Target
from neuronbench_ray import cluster
from neuronbench_ray.load import agent, clocks, parts
from neuronbench_ray.load.station import NodeLost, Station

LEAST_AHEAD_NS: Final = 50_000_000
MOST_AHEAD_NS: Final = 500_000_000
CALLS: Final = 10
"""A common instant is so many of the slowest call of Ray ahead, within the two above: it has to reach every driver."""


class RayCrew:
    """Drivers on `nodes` nodes of the cluster that `RAY_ADDRESS` names; 0 for all that are meant for load."""

    def __init__(self, nodes: int, *, address: str | None = None) -> None:
        self._wanted, self._address = nodes, address
        self._open = contextlib.ExitStack()
        self._ray: Any = None
        self._known: list[cluster.Node] = []

    def size(self, processes: int, base_url: str) -> int:
        return len(self._choose(processes, base_url)) * processes

    def _choose(self, processes: int, base_url: str) -> list[cluster.Node]:
        server = _address_of(Target.parse(base_url).host)
        try:
            if self._ray is None:
                self._ray = self._open.enter_context(cluster.connected(self._address))
            self._known = cluster.nodes(self._ray)
            return cluster.choose(self._known, self._wanted, cpus=processes, server=server)
        except cluster.ClusterError as error:
            raise unavailable(str(error), error.remedy) from error

    def shift(self, order: Order) -> Shift:
        order.say("connecting to the nodes")
        return RayShift(self._ray, self._choose(order.processes, str(order.options["base_url"])), order)

    def close(self) -> None:
        """Leave the cluster."""
        self._open.close()
        self._ray = None


class RayShift:
    """The drivers of one load on these nodes."""

    def __init__(self, ray: Any, chosen: Sequence[cluster.Node], order: Order) -> None:
        self._order = order
        self._echo = clocks.Echo(cluster.own_address(ray))
        self._stations: list[Station] = []
        try:
            names = cluster.names(chosen)
            for number, node in enumerate(chosen):
                workers = parts.workers_of(number, len(chosen), order.processes)
                self._stations.append(Station(ray, node, names[number], workers, self._echo))
            self._each(self._prepare)
            slowest = max(station.slowest_ns for station in self._stations)
            self.ahead_ns = min(max(CALLS * slowest, LEAST_AHEAD_NS), MOST_AHEAD_NS)
        except BaseException:
            self._leave()
            raise

    def _each(self, do: Callable[[Station], None]) -> None:
        """On all nodes at once; raises the first error, when all are done."""
        with ThreadPoolExecutor(max_workers=min(len(self._stations), 32)) as pool:
            for done in [pool.submit(do, station) for station in self._stations]:
                try:
                    done.result()
                except NodeLost as error:
                    raise unavailable(str(error), error.remedy) from error

    def _prepare(self, station: Station) -> None:
        order = self._order
        station.facts = facts = station.call("facts", timeout_s=station.START_S)
        for name, own in (("neuronbench", _version()), ("source", agent.source_digest())):
            if facts[name] != own:
                what = f"version {facts[name]}" if name == "neuronbench" else "other code of the same version"
                raise unavailable(
                    f"node {station.name} has {what} of neuronbench; here it is {own}: they are not one client",
                    f"install the same on all nodes ({INSTALL}); there it is for {facts['python']}",
                )
        station.same_host = facts["boot_id"] == agent.boot_id()
        target = Target.parse(str(order.options["base_url"]))
        if _loopback(target.host) and not station.same_host:
            raise unavailable(
                f"{order.options['base_url']} is each node itself, and node {station.name} is another host",
                "give the server's address in the network of the cluster, and have the server listen there",
            )
        if why := station.call("reach", target.host, target.port):
            raise unavailable(
                f"node {station.name} does not reach {target.host}:{target.port}: {why}",
                "have the server listen in the cluster's network (--host 0.0.0.0), and let its port through",
            )
        size = len(self._stations) * order.processes
        order.say(f"sending the plan to {len(self._stations)} nodes")
        station.send(parts.files(order.plan, station.workers, size))
        if order.options.get("ca_file"):
            with open(str(order.options["ca_file"]), "rb") as file:
                station.send([(agent.CA_FILE, file.read())])
        order.say(f"reading the clocks of {len(self._stations)} nodes")
        station.readings = [station.clock()]
        station.call("watch")
        station.time_calls()

    def start(self, index: int) -> Hand:
        station = self._stations[index % len(self._stations)]
        return station.start(index, self._order)

    def close(self) -> Sequence[Node]:
        try:
            if any(station.started for station in self._stations):
                self._order.say(f"fetching the records of {len(self._stations)} nodes")
                self._each(self._fetch)
        finally:
            self._leave()
        return [station.seen() for station in self._stations]

    def _fetch(self, station: Station) -> None:
        """Last reading of the clock, records, onto this host's clock. What fails here loses the node, not the load."""
        try:
            station.finish(self._order)
        except NodeLost as error:
            station.lose(str(error))
            for path in self._order.out.iterdir():  # half a file would pass for all of it
                stem = path.name.partition(".")[0]
                if stem.rpartition("-")[2] in map(str, station.workers):
                    path.unlink()
            return
        for worker in station.workers:
            shift(self._order.out, worker, station.readings[0].offset_ns, wall_ns=realtime_offset_ns())

    def _leave(self) -> None:
        for station in self._stations:
            station.leave()
        self._echo.close()


def _version() -> str:
    import neuronbench

    return neuronbench.__version__


def _loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _address_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host  # whoever connects will say so


def crew(nodes: int) -> RayCrew:
    """What the entry point names. Raises `PointFailure` where Ray is not installed."""
    try:
        cluster.load_ray()
    except cluster.ClusterError as error:
        raise unavailable(str(error), error.remedy) from error
    return RayCrew(nodes)
