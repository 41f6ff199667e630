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
from neuronbench_ray.load.ending import Ending
from neuronbench_ray.load.station import MAKE_ROOM, NodeLost, Station

LEAST_AHEAD_NS: Final = 50_000_000
MOST_AHEAD_NS: Final = 500_000_000
CALLS: Final = 10
"""A common instant is so many of the slowest call of Ray ahead, within the two above: it has to reach every driver."""


class RayCrew:
    """Drivers on `nodes` nodes of the cluster that `RAY_ADDRESS` names; 0 for all that are meant for load."""

    def __init__(self, nodes: int, *, address: str | None = None, ending: Ending | None = None) -> None:
        """`ending`: of the command that this is all for; without, signals are somebody else's."""
        self._wanted, self._address, self._ending = nodes, address, ending or Ending()
        self._minds_signals = ending is not None
        self._open = contextlib.ExitStack()
        self._ray: Any = None
        self._known: list[cluster.Node] = []

    def size(self, processes: int, base_url: str) -> int:
        if self._minds_signals:
            self._ending.begin()
        self._ending.check()
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
        chosen = self._choose(order.processes, str(order.options["base_url"]))
        return RayShift(self._ray, chosen, order, self._ending)

    def close(self) -> None:
        """Leave the cluster. Raises `CommandError` when a signal ended what this was for."""
        try:
            self._open.close()
            self._ray = None
        finally:
            self._ending.close()


class RayShift:
    """The drivers of one load on these nodes."""

    def __init__(self, ray: Any, chosen: Sequence[cluster.Node], order: Order, ending: Ending) -> None:
        self._order, self._ending = order, ending
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
        ending.under_way = self._end
        ending.loads += 1

    def _each(self, do: Callable[[Station], None]) -> None:
        """On all nodes at once; raises the first error, when all are done. An interrupt waits for none of them."""
        with ThreadPoolExecutor(max_workers=min(len(self._stations), 32)) as pool:
            try:
                for done in [pool.submit(do, station) for station in self._stations]:
                    try:
                        done.result()
                    except NodeLost as error:
                        raise unavailable(str(error), error.remedy) from error
            except KeyboardInterrupt:
                self._leave()  # calls that are under way end with their agents
                raise

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
        if why := station.call("room"):
            raise unavailable(f"node {station.name} cannot keep records: {why}", MAKE_ROOM)
        if order.options.get("ca_file"):
            with open(str(order.options["ca_file"]), "rb") as file:
                station.send([(agent.CA_FILE, file.read())])
        order.say(f"reading the clocks of {len(self._stations)} nodes")
        station.readings = [station.clock()]
        station.call("watch")
        station.time_calls()

    def start(self, index: int) -> Hand:
        self._ending.check()
        station = self._stations[index % len(self._stations)]
        hand = station.start(index, self._order)
        self._ending.check()  # one that came meanwhile has not ended this driver
        return hand

    def _end(self) -> None:
        """End all drivers, on all nodes at once; each closes its records."""
        self._order.say(f"{self._ending.name}: ending the load; again to give it up")
        with ThreadPoolExecutor(max_workers=min(len(self._stations), 32)) as pool:
            for station in self._stations:
                pool.submit(station.stop_all)

    def close(self) -> Sequence[Node]:
        try:
            if any(station.started for station in self._stations):
                self._order.say(f"fetching the records of {len(self._stations)} nodes")
                self._each(self._fetch)
        finally:
            self._ending.under_way = None
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
        with ThreadPoolExecutor(max_workers=min(len(self._stations), 32) or 1) as pool:
            for station in self._stations:
                pool.submit(station.leave)
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
    """What the entry point names, for a command. Raises `PointFailure` where Ray is not installed."""
    return made(nodes, ending=Ending())


def made(nodes: int, *, ending: Ending | None = None) -> RayCrew:
    """A crew. Raises `PointFailure` where Ray is not installed."""
    try:
        cluster.load_ray()
    except cluster.ClusterError as error:
        raise unavailable(str(error), error.remedy) from error
    return RayCrew(nodes, ending=ending)
