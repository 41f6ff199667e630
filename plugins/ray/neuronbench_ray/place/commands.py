"""`neuronbench ray run` and `neuronbench ray status`."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench_ray.place.arguments import Asked
    from neuronbench_ray.place.code import Shipment
    from neuronbench_ray.place.ledger import Ledger
    from neuronbench_ray.place.prepare import Prepared
    from neuronbench_ray.place.run import Result

INTERRUPTED, NOTHING = 2, 5
"""Exit status, as pytest's: ended by somebody; there was nothing to measure."""
LEAST_BYTES = 1 << 20
"""Room that the store has to have as a run begins."""
ADDRESS = typer.Option(
    metavar="HOST:PORT", help="The cluster's head (default: RAY_ADDRESS, or the cluster this host is part of)."
)


def run(
    context: typer.Context,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="-- PYTEST_ARGS", help="What pytest is told: benchmarks -m inf2 ...")
    ] = None,
    address: Annotated[str, ADDRESS] = "",
    cores: Annotated[int, typer.Option(min=0, help="NeuronCores that each point needs at least.")] = 0,
    share: Annotated[
        bool, typer.Option(help="Several points on one box, each on cores of its own; their records are provisional.")
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="How often a point is placed again after it was lost.")] = 2,
    patience: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds to wait for a node when none is left for what remains.")
    ] = 60.0,
    store: Annotated[
        str, typer.Option(metavar="WHERE", help="Send receipts on to s3://BUCKET/PREFIX or a folder, as they come in.")
    ] = "",
    ship: Annotated[
        bool, typer.Option(help="Send the project to the nodes; without, it is there under the same path.")
    ] = True,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME[=VALUE]", help="A variable for pytest on the nodes; repeatable.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would go where, and measure nothing.")] = False,
) -> None:
    """Run benchmarks on all nodes of a Ray cluster, a box at a time to itself.

    \b
        neuronbench ray run -- benchmarks -m inf2 --nb-repeats 3

    Each node collects the benchmarks and says what it can run. Points that need the same model stay together, so that
    one boot serves them; a node is leased whole, with all its NeuronCores and CPUs, for as long as it measures.
    Receipts come into this project's store as they are closed, under one session, so that list, compare and report
    see one run. When a node is lost, the point that was open is recorded as a lost attempt and placed again.

    The exit status is pytest's: 0 all passed, 1 something failed or is missing, 2 interrupted or refused, 5 nothing
    to measure.
    """
    from neuronbench_ray.place import arguments, code

    here = host.of(context)
    root, within = here.settings.root, Path.cwd()
    if not within.is_relative_to(root):
        within = root
    try:
        asked = arguments.read(args or ["benchmarks"], root=root, here=within)
        environ = arguments.environ(env or (), os.environ)
        shipment = code.ship(root, send=ship)
    except (arguments.ArgumentError, code.CodeError) as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    shelf = _shelf(store)
    if not plan:
        _writable(here.store.root)
    try:
        with _cluster(address), _signals():
            ended = _run(
                here, asked, shipment, shelf, within.relative_to(root).as_posix() if within != root else "",
                cores=cores, share=share, retries=retries, patience_s=patience, only_plan=plan, environ=environ,
            )  # fmt: skip
    except KeyboardInterrupt:  # before anything was measured, or again while what was being measured was ended
        host.complain("interrupted; what ran on the nodes ends with this command")
        ended = INTERRUPTED
    raise typer.Exit(ended)


def _run(
    here: host.Host, asked: Asked, shipment: Shipment, shelf: Any, within: str, *, environ: dict[str, str],
    cores: int, share: bool, retries: int, patience_s: float, only_plan: bool,
) -> int:  # fmt: skip
    from neuronbench_ray.place import code, fleet, prepare
    from neuronbench_ray.place.agent import Order
    from neuronbench_ray.place.run import Member
    from neuronbench_ray.place.screen import Screen

    screen, began, parts = Screen(), time.monotonic(), code.parts()
    environ = {**environ, "RAY_ADDRESS": fleet.address()}  # a benchmark may spread its load over the cluster
    order = Order(
        session=f"survey-{secrets.token_hex(4)}", node="", args=asked.args, within=within, environ=environ, parts=parts
    )
    sent = fleet.put(shipment)
    nodes = [node for node in fleet.nodes() if node.measures]
    try:
        boxes = prepare.ask_all(nodes, order, sent, parts, progress=screen.progress, warn=screen.warn)
        ready = prepare.check(boxes, cores=cores, resume=asked.resume, store=here.store)
    except prepare.Refused as error:
        ended = NOTHING if error.nothing else host.USAGE if error.usage else host.FAILURE
        raise host.CommandError(str(error), remedy=error.remedy, status=ended) from error
    screen.begins(boxes, ready.groups, ready.skipped, len(ready.cached))
    if only_plan:
        _show_plan(ready)
        return 0
    if not ready.groups:
        host.say("everything has a good receipt already")
        return 0
    members = [Member(node=node, box=box) for node in nodes for box in boxes if box.id == node.id]
    return _measure(
        here, ready, members, order, sent, parts, shelf, screen,
        tracking_uri=asked.tracking_uri, retries=retries, share=share, patience_s=patience_s, began=began,
    )  # fmt: skip


def _measure(
    here: host.Host, ready: Prepared, members: list[Any], order: Any, sent: Any, parts: dict[str, str], shelf: Any,
    screen: Any, *, tracking_uri: str, retries: int, share: bool, patience_s: float, began: float,
) -> int:  # fmt: skip
    from neuronbench_ray.place import fleet, prepare
    from neuronbench_ray.place.landing import Landing
    from neuronbench_ray.place.ledger import Ledger
    from neuronbench_ray.place.run import Run

    settings = replace(here.settings, tracking_uri=tracking_uri or here.settings.tracking_uri)
    names = [item.name for group in ready.groups for item in group.items]
    try:
        session = here.store.begin_session(settings, planned=names)
    except OSError as error:
        raise host.CommandError(f"receipts cannot be kept: {error}; nothing was run") from error
    order = replace(order, session=session)
    ledger = Ledger(ready.groups, retries=retries, share=share)

    def join(node: Any) -> Any:
        return fleet.ask(node, replace(order, node=node.name), sent)

    def meet(node: Any, ref: Any) -> Any:
        try:
            return prepare.meet(node, fleet.value(ref), parts)
        except Exception as error:  # of Ray, or of the code on the node
            return fleet.why(error)[1]

    landing = Landing(here.store, session, shelf=shelf)
    going = Run(
        ledger, members, landing, order=order, shipment=sent, screen=screen, join=join, meet=meet, share=share,
        patience_s=patience_s,
    )  # fmt: skip
    status = 1
    try:
        result = going.go()
        status, counts = verdict(ledger, result, skipped=len(ready.skipped), cached=len(ready.cached))
    except OSError as error:
        raise host.CommandError(f"receipts cannot be kept: {error}; what came in is in {session}") from error
    except KeyboardInterrupt:
        status = INTERRUPTED
        raise
    finally:
        try:
            here.store.end_session(session, status)
        except OSError as error:  # of a full disk, which is told of already or here
            screen.warn(f"{session} does not say how it ended: {error}")
    for problem in landing.flush(session):
        screen.warn(problem)
    screen.ends(counts, time.monotonic() - began, result.missing, str(here.store.root / session))
    if settings.mlflow_uri and result.records:
        _push(here, session, tracking_uri)
    return status


def verdict(ledger: Ledger, result: Result, *, skipped: int = 0, cached: int = 0) -> tuple[int, dict[str, int]]:
    """Exit status as pytest's, and how many points came to what."""
    from neuronbench_ray.place.screen import GOOD

    points = [record for record in result.records if record.receipt_name in ledger.done]
    words = Counter(str(record.outcome) for record in points)
    strict = sum(1 for record in points if record.outcome in GOOD and record.receipt_name in result.failed)
    counts = {
        **dict(words), "failed by --nb-strict or a check": strict, "skipped on all nodes": skipped, "cached": cached,
        "lost attempts": len(ledger.losses), "missing": len(result.missing),
    }  # fmt: skip
    bad = strict or result.missing or any(record.outcome not in GOOD for record in points)
    return (2 if result.interrupted else 1 if bad else 0), counts


def status(context: typer.Context, address: Annotated[str, ADDRESS] = "") -> None:
    """The nodes of the cluster: their NeuronCores, and which of them are leased."""
    from neuronbench_ray.place import fleet

    with _cluster(address):
        free, nodes = fleet.free(), fleet.nodes()
    rows = []
    for node in nodes:
        left = free.get(node.id, {})
        leased = node.cores - int(left.get(fleet.CORES, 0)) if node.alive else 0
        rows.append(
            (
                node.name, node.address, "up" if node.alive else "lost",
                f"{leased}/{node.cores}" if node.cores else "–",
                f"{node.cpus - left.get('CPU', 0):g}/{node.cpus:g}" if node.alive else "", node.accelerator,
            )
        )  # fmt: skip
    right = ("cores leased", "CPUs leased")
    host.show(host.table(("node", "address", "state", *right, "accelerator"), rows, right=right))


# -- parts ------------------------------------------------------------------------------------------------------------


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    from neuronbench_ray.cluster import ClusterError, connected

    try:
        with connected(address or None):
            yield
    except ClusterError as error:
        raise host.CommandError(str(error), remedy=error.remedy) from error


def _writable(store: Path) -> None:
    """Receipts can be kept: found out before nodes are asked, and not when the first of them has measured."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=store, prefix=".room-") as file:
            file.write(bytes(LEAST_BYTES))
            file.flush()
    except OSError as error:
        raise host.CommandError(
            f"receipts cannot be kept in {store}: {error}",
            remedy="make room there, or name another folder: NEURONBENCH_DATA_ROOT, or data_root in neuronbench.toml",
        ) from error


def _shelf(where: str) -> Any:
    if not where:
        return None
    from neuronbench.shipping import open_shelf
    from neuronbench.weights import StoreError

    try:
        return open_shelf(where if "://" in where else str(Path(where).expanduser().absolute()))
    except StoreError as error:
        raise host.CommandError(f"--store {where}: {error}", status=host.USAGE) from error


def _show_plan(ready: Prepared) -> None:
    names = {box.id: box.name for box in ready.boxes}
    rows = [
        (
            group.id, str(len(group.items)), str(group.cores or "–"),
            group.items[0].resource_id or "–", ", ".join(sorted(names[box] for box in group.boxes)),
        )
        for group in ready.groups
    ]  # fmt: skip
    host.show(host.table(("group", "points", "cores", "resource", "could run on"), rows, right=("points", "cores")))
    for group in ready.groups:
        host.say(f"{group.id}:")
        for item in group.items:
            host.say(f"  {item.name}")


def _push(here: host.Host, session: str, tracking_uri: str) -> None:
    """What MLflow does not have yet, in a process of its own: the run is over, whatever comes of it."""
    environ = {**os.environ, **({"NEURONBENCH_TRACKING_URI": tracking_uri} if tracking_uri else {})}
    argv = [sys.executable, "-m", "neuronbench", "--root", str(here.settings.root), "push", "--session", session]
    if subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL).returncode:
        host.complain(f"MLflow does not have all of it; deliver with: neuronbench push --session {session}")


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(f"received {signal.Signals(number).name}")

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
