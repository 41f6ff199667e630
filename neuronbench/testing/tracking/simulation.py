"""Many boxes that push to one server at once. Every box is a process of its own with a data root of its own."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from neuronbench.config import Settings
from neuronbench.testing.tracking import boxes
from neuronbench.testing.tracking.audit import Audit, audit
from neuronbench.testing.tracking.flaky import Choose, at_random, flaky_proxy
from neuronbench.testing.tracking.team import Team

_MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is simulated."""

    boxes: int = 10
    points: int = 20
    """Of each box, and a boot."""
    requests_every: int = 0
    """Each so many-th point has a table of requests, with figures and traces; 0: none."""
    traces: int = 3
    copies: int = 1
    """Boxes that hold the same receipts: with 3, boxes 0, 1 and 2 push the session of box 0, and so on."""
    flaky: float = 0.0
    """Share of the requests that a proxy in front lets fail."""
    restart_after: int = 0
    """The server is killed after so many deliveries of all boxes, and started again; 0: it is not."""
    kill_after: int = 0
    """Every box's pusher is killed after so many deliveries, and another one started; 0: none is."""


@dataclass(kw_only=True)
class Outcome:
    """What came of it."""

    plan: Plan
    audit: Audit
    wall_s: float = 0.0
    """From the start of all pushes to the end of the last."""
    delivered: int = 0
    already: int = 0
    failures: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What pushers said, the first of each."""
    point_s: list[float] = field(default_factory=list)
    """Seconds from one delivery of a box to its next, the first waiting for the start among them."""
    requests: Counter[str] = field(default_factory=Counter)
    """HTTP attempts by what they met: a status, or the name of an exception."""
    retries: int = 0
    server_cpu_s: float = 0.0
    database_cpu_s: float = 0.0
    s3_cpu_s: float = 0.0
    boxes_cpu_s: float = 0.0
    rss_early_mib: float = 0.0
    """Largest resident memory of a box after a tenth of its points."""
    rss_late_mib: float = 0.0
    """The same at its end."""
    proxy: dict[str, int] = field(default_factory=dict)

    @property
    def points(self) -> int:
        return self.audit.receipts

    @property
    def ok(self) -> bool:
        return self.audit.ok and not self.failures and not self.problems

    def to_json(self) -> dict[str, Any]:
        times = sorted(self.point_s)
        found = asdict(self)
        found["point_s"] = {f"p{share}": percentile(times, share) for share in (50, 99)}
        rate = self.points / self.wall_s if self.wall_s else None
        return found | {"ok": self.ok, "points_per_s": rate, "requests": dict(self.requests)}


def percentile(ordered: list[float], share: float) -> float | None:
    """Nearest rank."""
    return ordered[max(0, -(-len(ordered) * int(share) // 100) - 1)] if ordered else None


def simulate(
    team: Team,
    plan: Plan,
    folder: Path,
    *,
    choose: Choose | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Fill the boxes' data roots below `folder`, let all push at once, and audit the server.

    `choose` says which requests fail, in place of the plan's share.
    """
    with ExitStack() as stack:
        url, proxy = team.url, None
        if choose is not None or plan.flaky:
            proxy = stack.enter_context(flaky_proxy(team.url, choose or at_random(plan.flaky)))
            url = proxy.url
        there = [_Box(number, plan, folder, url, team.login()) for number in range(plan.boxes)]
        for box in there:
            stack.callback(box.end)
            box.start()
        for number, box in enumerate(there):
            box.hear("filled")
            say(f"{number + 1}/{plan.boxes} boxes have their receipts")
        for box in there:
            box.pipe.send("copy")
        for box in there:
            box.hear("ready")
        before = _cpu(team)
        begun = time.monotonic()
        for box in there:
            box.pipe.send("push")
        told = _gather(there, team, plan, say, begun)
        outcome = Outcome(plan=plan, audit=Audit(), wall_s=max(each["ended"] for each in told) - begun)
    spent = [after - start for start, after in zip(before, _cpu(team), strict=True)]
    outcome.server_cpu_s, outcome.database_cpu_s, outcome.s3_cpu_s = spent
    for each in told:
        outcome.delivered += each["delivered"]
        outcome.already += each["already"]
        outcome.failures += each["failed"][:3]
        outcome.problems += each["problems"][:3]
        outcome.point_s += each["point_s"]
        outcome.requests.update(each["requests"])
        outcome.retries += each["retries"]
        outcome.boxes_cpu_s += each["cpu_s"]
        outcome.rss_early_mib = max(outcome.rss_early_mib, each["rss_early_mib"])
        outcome.rss_late_mib = max(outcome.rss_late_mib, each["rss_late_mib"])
    outcome.proxy = dict(proxy.told) if proxy is not None else {}
    say("asking PostgreSQL and S3")
    sources = {box.source for box in there}
    outcome.audit = audit(team, (each for root in sources for each in boxes.expected(root / "mlruns")))
    return outcome


class _Box:
    """A box as the simulation sees it: a process, and the pipe to it."""

    def __init__(self, number: int, plan: Plan, folder: Path, url: str, login: dict[str, str]) -> None:
        self.number = number
        self.source = folder / f"box-{number - number % plan.copies:03d}"
        self.killed = False
        self._args = (plan, number, folder / f"box-{number:03d}", self.source, url, login)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["mlflow", "neuronbench.sinks.mlflow.push", __name__])

    def start(self) -> None:
        self.pipe, theirs = self._context.Pipe()
        self.child = self._context.Process(target=_box, args=(theirs, *self._args), daemon=True)
        self.child.start()
        theirs.close()

    def hear(self, word: str) -> None:
        found = self.pipe.recv()
        if found != word:
            raise RuntimeError(f"box {self.number} said {found!r}, expected {word!r}")

    def kill(self) -> None:
        """As when the box loses power; then it comes back and pushes again."""
        self.killed = True
        self.child.kill()
        self.child.join()
        self.pipe.close()
        self.start()
        for heard, said in (("filled", "copy"), ("ready", "push")):
            self.hear(heard)
            self.pipe.send(said)

    def end(self) -> None:
        """It has told all that it had to tell, or nobody listens any more."""
        self.child.kill()
        self.child.join()
        self.pipe.close()


def _cpu(team: Team) -> tuple[float, float, float]:
    return team.server.cpu_s(), team.database.cpu_s(), team.s3.cpu_s()


def _gather(
    there: list[_Box], team: Team, plan: Plan, say: Callable[[str], None], begun: float
) -> list[dict[str, Any]]:
    """What each box has told at its end; what they tell on the way is said, and misfortunes are sent to them."""
    told: dict[int, dict[str, Any]] = {}
    done: dict[int, int] = {}
    restart: threading.Thread | None = None
    while len(told) < len(there):
        waiting = {box.pipe: box for box in there if box.number not in told}
        for pipe in connection.wait(list(waiting)):
            box = waiting[pipe]  # type: ignore[index]
            message = box.pipe.recv()
            if isinstance(message, dict):
                told[box.number] = message
                continue
            done[box.number] = done.get(box.number, 0) + 1
            if plan.kill_after and not box.killed and done[box.number] >= plan.kill_after:
                box.kill()
        count, rate = sum(done.values()), sum(done.values()) / (time.monotonic() - begun)
        say(f"{count}/{plan.boxes * (plan.points + 1)} receipts, {rate:.1f}/s; {len(told)}/{plan.boxes} boxes are done")
        if restart is None and plan.restart_after and count >= plan.restart_after:
            restart = _restart(team)
    if restart is not None:
        restart.join()
    return [told[box.number] for box in there]


def _restart(team: Team) -> threading.Thread:
    """Kill the server now; it is started again while the boxes go on."""
    team.server.stop(kill=True)
    thread = threading.Thread(target=team.server.start, name="restart")
    thread.start()
    return thread


# --------------------------------------------------------------------------------------------------------------------
# in a box's process


def _box(
    pipe: connection.Connection, plan: Plan, number: int, root: Path, source: Path, url: str, login: dict[str, str]
) -> None:
    import shutil

    os.environ.update(login)
    root.mkdir(parents=True, exist_ok=True)
    settings = Settings(root=root, data_root=root / "mlruns", tracking_uri=url, traces=plan.traces)
    again = (root / "mlruns").exists()
    if root == source and not again:
        with patch("os.fsync"):  # made up: nobody would miss them
            boxes.fill(settings, number, plan.points, requests_every=plan.requests_every, traces=plan.traces)
    pipe.send("filled")
    pipe.recv()
    if root != source and not again:
        shutil.copytree(source / "mlruns", root / "mlruns")
    pipe.send("ready")
    pipe.recv()
    pipe.send(_push(pipe, settings, plan))


def _push(pipe: connection.Connection, settings: Settings, plan: Plan) -> dict[str, Any]:
    from neuronbench.sinks.mlflow.push import push

    counted = _count_requests()
    times = [time.monotonic()]
    early = 0.0
    cpu_s = time.process_time()

    def progress(text: str) -> None:
        nonlocal early
        if not text[:1].isdigit():  # it waits for the server
            return
        times.append(time.monotonic())
        if len(times) - 1 <= max(2, plan.points // 10):
            early = _rss_mib()
        pipe.send("delivered")

    result = push(settings, progress=progress)
    return {
        "ended": time.monotonic(), "delivered": len(result.delivered), "already": len(result.already),
        "failed": [f"{receipt}: {reason}" for receipt, reason in result.failed], "problems": list(result.problems),
        "point_s": [after - before for before, after in itertools.pairwise(times)],
        "requests": counted, "retries": counted.pop("retries", 0), "cpu_s": time.process_time() - cpu_s,
        "rss_early_mib": early, "rss_late_mib": _rss_mib(),
    }  # fmt: skip


def _rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB


def _count_requests() -> Counter[str]:
    """Count what leaves this process over HTTP from now on, each try of a request for itself."""
    pool: Any = importlib.import_module("urllib3.connectionpool").HTTPConnectionPool  # below MLflow's client
    counted: Counter[str] = Counter()
    make: Any = pool._make_request

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        retries = kwargs.get("retries")
        counted["retries"] += bool(retries is not None and getattr(retries, "history", ()))
        try:
            answer = make(self, *args, **kwargs)
        except Exception as error:
            counted[type(error).__name__] += 1
            raise
        counted[str(answer.status)] += 1
        return answer

    pool._make_request = counting
    return counted
