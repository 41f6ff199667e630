"""Running the driver: start it, listen to it, end it in time, and say what became of it."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from neuronbench.load import crew as crews
from neuronbench.load.progress import describe

if TYPE_CHECKING:
    from neuronbench.load.plan import Plan
    from neuronbench.load.reduce import Reduction
    from neuronbench.protocols import Progress

COALESCE_MS: Final = 1.0
"""How long arrived data may be left unread, with the kernel's stamp on it, so that one wake-up serves many streams."""
MOST_COALESCE_MS: Final = 5.0
_GRACE_S: Final = 15.0
"""How long past its own deadline a driver may take to write its last records."""
_STRAGGLER_S: Final = 3.0
_POLL_S: Final = 0.2

Status = Literal["ok", "server_gone", "all_failed", "timeout", "killed", "error", "node_lost"]


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Limits per request and phase, in seconds."""

    connect_s: float = 10.0
    first_token_s: float = 180.0
    """From the first byte written to the first output."""
    inter_token_s: float = 60.0
    """Between two outputs."""
    total_s: float = 300.0
    """From the first byte written to the end of the answer."""
    drain_s: float = 30.0
    """For requests that belong to no window, after the last one that does has ended."""


@dataclass(frozen=True, kw_only=True)
class Drive:
    """What became of a drive. Anything but `ok` leaves a partial result, never a shorter success."""

    status: Status
    message: str = ""
    opened_ns: int | None = None
    """The window's edges, monotonic ns; None when the run did not come that far."""
    closed_ns: int | None = None
    seconds: float = 0.0
    """Wall time of the whole drive."""
    workers: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """`driver-<worker>.json` of each worker that ended by itself."""
    nodes: Sequence[crews.Node] = ()
    """Where the workers ran; none where that was this host alone."""

    @property
    def coalesce_ms(self) -> float:
        """The longest that arrived data was left unread on purpose; 0 where each was read as it came."""
        return max((float(worker.get("coalesce_ms", 0.0)) for worker in self.workers), default=0.0)

    @property
    def partial(self) -> bool:
        """The window was not seen to its end."""
        return self.status != "ok" or self.opened_ns is None or self.closed_ns is None


def drive(
    plan: Plan,
    *,
    base_url: str,
    out: Path,
    spawn: Callable[..., Any],
    progress: Progress | None = None,
    deadline_s: float = 1800.0,
    timeouts: Timeouts | None = None,
    api_key: str | None = None,
    processes: int = 1,
    ca_file: Path | None = None,
    verify: bool = True,
    stamps: bool = True,
    coalesce_ms: float = COALESCE_MS,
    log: Path | None = None,
    crew: crews.Crew | None = None,
) -> Drive:
    """Drive `plan` against `base_url` in `processes` processes and wait for them.

    `out` must be new or empty; it is given the spill files. `spawn` has the signature of `neuronbench.processes.spawn`.
    `crew` runs the processes, so many on each of its hosts (default: that of `neuronbench.load.crew.using`, else this
    host by `spawn`).
    `coalesce_ms` is the longest that data may be left unread on purpose, 0 for never; it saves CPU where many streams
    are open, delays no instant (they are the kernel's) and is in `client_lag`; what was taken of it is in the record.
    Never takes longer than `deadline_s` and a few seconds. Raises `ValueError` for an unusable URL, process count
    or pause, before anything is started, and `PointFailure` when a crew's nodes are not to be had; what happens to the
    load itself is the returned status.
    """
    from neuronbench.load.engine import Target

    Target.parse(base_url)
    most, of_what = _most(plan)
    crew = crew or crews.current() or crews.OnThisHost(spawn)
    count = crew.size(processes, base_url)
    if processes <= most < count:  # it would do on one host
        raise crews.unavailable(
            f"{most} {of_what} cannot be dealt to {count} drivers, {processes} on each of "
            f"{count // processes} nodes: each of them needs one",
            "send it from fewer nodes (--nodes, NEURONBENCH_LOAD_NODES); of benchmarks, run such points without",
        )
    if not 1 <= count <= most:
        raise ValueError(f"processes: expected 1 to {most} ({of_what}), found {count}")
    if not 0 <= coalesce_ms <= MOST_COALESCE_MS:
        raise ValueError(f"coalesce_ms: expected 0 to {MOST_COALESCE_MS:g}, found {coalesce_ms!r}")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty; records of one drive are never mixed with another's")
    options = {
        "base_url": base_url,
        "timeouts": asdict(timeouts or Timeouts()),
        "deadline_s": deadline_s,
        "processes": count,
        "api_key_env": crews.KEY_VARIABLE if api_key else None,
        "ca_file": str(ca_file) if ca_file else None,
        "verify": verify,
        "stamps": stamps,
        "coalesce_ms": coalesce_ms,
    }
    (out / "options.json").write_text(json.dumps(options), encoding="utf-8")
    order = crews.Order(
        plan=plan, out=out, options=options, processes=processes, api_key=api_key, log=log or out / "driver.log",
        say=progress or (lambda text: None),
    )  # fmt: skip
    shift = crew.shift(order)
    begun = time.monotonic()
    workers: list[_Worker] = []
    nodes: Sequence[crews.Node] = ()
    team = _Team(count, progress, shift.ahead_ns)
    try:
        for index in range(count):
            workers.append(_Worker(index, shift.start(index), team))
        _wait(workers, begun + deadline_s + _GRACE_S)
    finally:
        try:
            for worker in workers:
                worker.end()
        finally:
            ended = time.monotonic()
            nodes = shift.close()
    return _judge(out, workers, ended - begun, nodes)


def _most(plan: Plan) -> tuple[int, str]:
    """The most drivers that `plan` can be dealt to so that each has something to send, and what it is dealt by."""
    if plan.arrivals["kind"] == "open":
        return sum(due >= 0 for due in plan.column("due_ns").tolist()), "arrivals in all"
    return int(plan.arrivals["in_flight"]), "in flight at once"


def _wait(workers: Sequence[_Worker], until: float) -> None:
    """Until all have ended; those left behind by one that failed get a moment, as they would wait for it in vain."""
    while time.monotonic() < until:
        running = [worker for worker in workers if not worker.ended()]
        if not running:
            return
        if any(worker.ended() and worker.returncode for worker in workers):
            until = min(until, time.monotonic() + _STRAGGLER_S)
        running[0].wait(min(until, time.monotonic() + _POLL_S))
    for worker in workers:
        worker.late = not worker.ended()


class _Team:
    """Lets the workers pass their common points together, and merges their progress."""

    def __init__(self, size: int, progress: Progress | None, ahead_ns: int) -> None:
        self.size, self.progress, self.ahead_ns = size, progress, ahead_ns
        self.lock = threading.Lock()
        self.workers: list[_Worker] = []
        self.reached: dict[str, set[int]] = {}
        self.lines: dict[int, dict[str, Any]] = {}

    def hear(self, worker: _Worker, message: dict[str, Any]) -> None:
        if message.get("event") == "at":
            with self.lock:
                there = self.reached.setdefault(message["point"], set())
                there.add(worker.index)
                together = len(there) == self.size
            if together:
                at = time.monotonic_ns() + self.ahead_ns
                for other in self.workers:
                    other.hand.tell(message["point"], at)
        elif message.get("event") == "progress":
            with self.lock:
                self.lines[worker.index] = message
                whole = list(self.lines.values()) if worker.index == 0 else []
            if whole and self.progress is not None:
                self.progress(describe(_merged(whole)))


def _merged(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One line for all workers; their TTFT percentiles cannot be merged, so the worst is shown, as of the lags."""
    merged = dict(lines[0])
    for line in lines[1:]:
        for key in ("achieved_req_s", "in_flight", "ended", "failed", "tok_s"):
            merged[key] += line[key]
        for key in ("ttft_p50_ms", "ttft_p99_ms", "lag_max_ms"):
            if line[key] is not None:
                merged[key] = max(merged[key] or 0.0, line[key])
    return merged


class _Worker:
    def __init__(self, index: int, hand: crews.Hand, team: _Team) -> None:
        self.index, self.hand, self.team = index, hand, team
        self.returncode: int | None = None
        self.late = False
        team.workers.append(self)
        self._thread = threading.Thread(target=self._listen, name=f"load-driver-{index}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return f"load driver {self.index}" + (f" on {self.hand.where}" if self.hand.where else "")

    def _listen(self) -> None:
        for line in self.hand.lines():
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a library's chatter
            if isinstance(message, dict):
                self.team.hear(self, message)

    def ended(self) -> bool:
        if self.returncode is None:
            self.returncode = self.hand.poll()
        return self.returncode is not None

    def wait(self, until: float) -> None:
        try:
            self.returncode = self.hand.wait(max(until - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            pass

    def end(self) -> None:
        self.hand.terminate()
        self._thread.join(5)


def _judge(out: Path, workers: Sequence[_Worker], seconds: float, nodes: Sequence[crews.Node]) -> Drive:
    from neuronbench.load.window import read_edges

    results: list[dict[str, Any]] = []
    for worker in workers:
        path = out / f"driver-{worker.index}.json"
        if path.exists():
            results.append(json.loads(path.read_text(encoding="utf-8")))
    edges = read_edges(out)
    status: Status = "ok"
    message = ""
    bad = [result for result in results if result["status"] != "ok"]
    lost = [worker for worker in workers if not (out / f"driver-{worker.index}.json").exists()]
    gone = [node for node in nodes if node.lost]
    if gone:
        # the others were ended because of it, and what they sent was less than the load
        status = "node_lost"
        message = "; ".join(f"node {node.name} was lost: {node.lost}" for node in gone)
    elif bad:
        status, message = bad[0]["status"], bad[0]["message"]
    elif lost:
        worker = lost[0]
        if worker.late:
            status, message = "timeout", f"{worker.name} did not end within its deadline and was ended"
        elif (worker.returncode or 0) < 0 or worker.returncode is None:
            status, message = "killed", f"{worker.name} was ended by signal {-(worker.returncode or 0)}"
        else:
            tail = _tail(out / "driver.log")
            status = "error"
            message = f"{worker.name} ended with status {worker.returncode} and no result{tail}"
    elif edges.opened is None or edges.closed is None:
        status, message = "error", "the driver ended without having seen the window to its end"
    return Drive(
        status=status,
        message=message,
        opened_ns=edges.opened,
        closed_ns=edges.closed,
        seconds=seconds,
        workers=tuple(results),
        nodes=tuple(nodes),
    )


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def reduce_run(
    plan: Plan,
    out: Path,
    *,
    drive: Drive | None = None,
    table: Path | None = None,
    slo: Mapping[str, float] | None = None,
) -> Reduction:
    """Reduce the records of a drive: metrics, gates, failures, and `requests.parquet` (at `table`, default in `out`).

    `slo` holds limits per request in ms by metric id, such as `{"ttft": 500, "tpot": 50}`, for goodput.
    """
    from neuronbench.load.reduce import reduce

    return reduce(plan, out, drive=drive, table=table or out / "requests.parquet", slo=slo or {})
