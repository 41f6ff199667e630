"""Load from the nodes of a real cluster: a head, and two nodes for load of which one has a clock that is an hour off.

All of it is on this machine and on its loopback interface. The hour is a time namespace of Linux: raylet, agent and
driver on that node see another CLOCK_MONOTONIC, and nothing of neuronbench knows that it is a test. Where namespaces
are not allowed, its clock is the others', and what is said of the hour is skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from neuronbench_ray.load.crew import RayCrew

from neuronbench import cli
from neuronbench.load import arrivals as at
from neuronbench.load import crew as crews
from neuronbench.load.plan import Plan, make_plan
from neuronbench.load.reduce import Reduction
from neuronbench.load.run import Drive, Timeouts, drive, reduce_run
from neuronbench.load.workload import Warmup, synthetic
from neuronbench.processes import spawn
from neuronbench.protocols import Vocabulary
from neuronbench.testing.truth_server import TruthServer

pytest.importorskip("ray", reason="Ray is not installed: pip install 'neuronbench[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

HOUR_NS = 3600 * 10**9
STORE_BYTES = 80 << 20
BUSY_MS = 40.0
"""Where this host lets drivers write later than this, what a server saw says nothing about the schedule."""


class Nodes(NamedTuple):
    """The cluster, as tests need it."""

    hidden: psutil.Process
    """Parent of all that runs on the node 127.0.0.9."""
    ahead_ns: int
    """Of that node's clock; 0 where it could not be moved."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """A head without CPUs and two nodes for load; this process is connected to it."""
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}.items():
        os.environ[name] = value
    import ray
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": STORE_BYTES, "include_dashboard": False, "include_log_monitor": False}
    made, hidden = Cluster(), None
    try:
        patiently(lambda: made.add_node(num_cpus=0, node_ip_address="127.0.0.2", **common))
        ahead = moved_clock()
        hidden = psutil.Process(start_hidden(ahead, made.address).pid)
        of_load = {"num_cpus": 1, "resources": {"neuronbench_load": 1}, "node_ip_address": "127.0.0.3"}
        patiently(lambda: made.add_node(wait=False, **of_load, **common))
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        wait_for(lambda: sum(each["Alive"] for each in ray.nodes()) == 3, "three nodes")
        yield Nodes(hidden=hidden, ahead_ns=HOUR_NS if ahead else 0)
    finally:
        ray.shutdown()
        if hidden is not None:
            for each in (*hidden.children(recursive=True), hidden):
                try:
                    each.kill()
                except psutil.NoSuchProcess:
                    pass
            hidden.wait(30)
        made.shutdown()


def moved_clock() -> list[str]:
    """Words before a command that give it a monotonic clock an hour ahead; none where that is not allowed."""
    ahead = ["unshare", "--user", "--map-root-user", "--time", "--monotonic", "3600", "--fork", "--kill-child"]
    read = "import time; print(time.monotonic_ns())"
    try:
        told = subprocess.run([*ahead, sys.executable, "-c", read], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return []
    return ahead if not told.returncode and int(told.stdout) > time.monotonic_ns() + HOUR_NS // 2 else []


def start_hidden(ahead: list[str], address: str) -> subprocess.Popen[bytes]:
    """A node for load, started as users start one, behind these words."""
    script = str(Path(sys.executable).parent / "ray")
    return subprocess.Popen(
        [*ahead, sys.executable, script, "start", f"--address={address}", "--node-ip-address=127.0.0.9",
         "--num-cpus=1", '--resources={"neuronbench_load": 1}', f"--object-store-memory={STORE_BYTES}",
         "--min-worker-port=0", "--max-worker-port=0", "--block"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def patiently(start: Callable[[], Any], tries: int = 3) -> None:
    """Ray gives a node half a minute to start, which a host with many other tests on it may not have."""
    for left in reversed(range(tries)):
        try:
            start()
            return
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise


def wait_for(there: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < until, f"{what}: not there after {seconds:g} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def truth() -> Iterator[TruthServer]:
    with TruthServer(ttft_ms=20, tpot_ms=2) as server:
        yield server


class Ran(NamedTuple):
    plan: Plan
    drive: Drive
    reduction: Reduction
    seen: list[dict[str, Any]]
    """What the server saw of it."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.reduction.table).to_pylist()
        return rows

    @property
    def load(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if not row["warmup"]]


def send(folder: Path, truth: TruthServer, arrivals: Any, *, nodes: int, **options: Any) -> Ran:
    plan = make_plan(
        folder / "plan",
        arrivals=arrivals,
        workload=synthetic(input_tokens=8, output_tokens=4),
        api="completions",
        model="truth",
        vocabulary=Vocabulary(size=32_000, special_ids=(0, 1, 2)),
        warmup=Warmup(requests=4),
        seed=11,
    )
    truth.reset()
    waits = Timeouts(connect_s=20, first_token_s=20, inter_token_s=20, total_s=40, drain_s=20)
    driven = drive(
        plan, base_url=truth.url, out=folder / "out", spawn=spawn, crew=RayCrew(nodes), deadline_s=90, timeouts=waits,
        **options,
    )  # fmt: skip
    return Ran(plan, driven, reduce_run(plan, folder / "out", drive=driven), truth.truth(chunks=False)["requests"])


# -- one schedule -----------------------------------------------------------------------------------------------------

RATE = 50.0


@pytest.fixture(scope="module")
def one_and_two(cluster: Nodes, truth: TruthServer, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Ran]:
    folder = tmp_path_factory.mktemp("open")
    load = at.poisson(RATE, duration_s=4, lead_s=0.5, tail_s=1)
    return {nodes: send(folder / f"{nodes}", truth, load, nodes=nodes) for nodes in (1, 2)}


def test_two_nodes_are_given_the_schedule_of_one(one_and_two: dict[int, Ran]) -> None:
    one, two = one_and_two[1], one_and_two[2]
    assert (one.drive.status, two.drive.status) == ("ok", "ok")
    assert one.plan.digest == two.plan.digest
    due = one.plan.column("due_ns")
    inside = {}
    for nodes, ran in one_and_two.items():
        rows = ran.load
        bodies = [row["body"] for row in rows]
        assert len(bodies) == len(set(bodies))  # each request once, whichever node it was dealt to
        begun = {row["scheduled_ns"] - int(due[row["body"]]) for row in rows}
        assert len(begun) == 1  # on the head's clock, to the nanosecond, over all nodes
        assert {row["worker"] for row in rows} == set(range(nodes))
        inside[nodes] = {row["body"] for row in rows if row["in_window"]}
    planned = {k for k, d in enumerate(due.tolist()) if 0 <= d - 500_000_000 < 4_000_000_000}
    assert inside[1] == inside[2] == planned
    assert two.reduction.window["seconds"] == pytest.approx(4)
    shares = [node["requests"] for node in two.reduction.window["nodes"]]
    assert sum(shares) == len(planned)
    assert abs(shares[0] - shares[1]) <= 1


def test_the_server_sees_the_arrivals_of_one(one_and_two: dict[int, Ran]) -> None:
    from scipy.special import chdtri

    for ran in one_and_two.values():
        assert len(ran.seen) == len(ran.rows)  # nothing was lost and nothing sent twice
    late = {nodes: max(row["send_lag_ms"] for row in ran.load) for nodes, ran in one_and_two.items()}
    if max(late.values()) > BUSY_MS:
        pytest.skip(f"this host let drivers write up to {max(late.values()):.0f} ms late")
    for ran in one_and_two.values():
        opened = ran.reduction.window["start_ns"]
        came = np.array(sorted(each["received_ns"] for each in ran.seen))
        inside = came[(came >= opened) & (came < opened + 4 * 10**9)]
        expected = ran.plan.arrivals["scheduled"]["count"]
        assert abs(len(inside) - expected) <= 3  # at the edges some come a little after the instant they were due
        bins = 20
        counts = np.histogram(inside, bins=bins, range=(opened, opened + 4 * 10**9))[0]
        dispersion = counts.var(ddof=1) / counts.mean()
        low, high = (float(chdtri(bins - 1, 1 - p) / (bins - 1)) for p in (0.0005, 0.9995))
        assert low <= dispersion <= high
        gaps = np.diff(inside) / 1e9
        shortest = -np.log(1 - 10 / len(gaps)) / RATE
        # of exponential gaps ten are this short; many more would be requests of several nodes in step
        assert (gaps < shortest).sum() <= 25


def test_percentiles_of_one_and_of_two_nodes_agree_within_their_bounds(one_and_two: dict[int, Ran]) -> None:
    found = {}
    for nodes, ran in one_and_two.items():
        by_key = {metric.key: metric for metric in ran.reduction.metrics}
        found[nodes] = by_key["ttft_p50_ms"], by_key["client_lag_p99_ms"]
        median = found[nodes][0]
        true = np.median([(each["first_sent_ns"] - each["received_ns"]) / 1e6 for each in ran.seen])
        assert median.low is not None
        assert median.low - 0.5 <= true + (found[nodes][1].value or 0) + 1.0
        assert median.high is not None
        assert median.high >= true - 0.5
    one, two = found[1][0], found[2][0]
    allowed = 0.5 + max(lag.value or 0.0 for _, lag in found.values())
    assert one.low is not None
    assert two.high is not None
    assert one.low <= two.high + allowed
    assert two.low <= (one.high or 0) + allowed


def test_the_clocks_are_told_and_reported(one_and_two: dict[int, Ran], cluster: Nodes) -> None:
    ran = one_and_two[2]
    nodes = ran.reduction.window["nodes"]
    assert [node["address"] for node in nodes] == ["127.0.0.3", "127.0.0.9"]
    for node, ahead_ns in zip(nodes, (0, cluster.ahead_ns), strict=True):
        clock = node["clock"]
        assert abs(clock["offset_ns"] + ahead_ns) <= clock["bound_ns"] < 10**9
        assert node["clock_read"]["how"] == "tcp"
        assert node["clock_read"]["times"] >= 2
        assert node["same_host"] is True
    gates = {gate.id: gate for gate in ran.reduction.gates}
    assert gates["load_nodes"].passed is True
    assert gates["clock_offset"].passed is True
    assert gates["clock_arrivals"].passed is not None
    assert gates["node_send_lag"].observed is not None
    throughput = next(metric for metric in ran.reduction.metrics if metric.key == "request_throughput_req_s")
    assert "the clocks of 2 nodes" in throughput.note
    assert "clocks" not in next(metric for metric in ran.reduction.metrics if metric.key == "ttft_p50_ms").note


def test_a_closed_loop_is_split_and_adds_up(cluster: Nodes, truth: TruthServer, tmp_path: Path) -> None:
    ran = send(tmp_path, truth, at.closed_loop(5, requests=60), nodes=2)
    assert ran.drive.status == "ok", ran.drive.message
    edges = sorted((row["sent_ns"], 1) for row in ran.load) + sorted((row["end_ns"], -1) for row in ran.load)
    in_flight = np.cumsum([step for _, step in sorted(edges)])
    assert in_flight.max() == 5  # three of one node and two of the other
    assert len([row for row in ran.load if row["in_window"]]) >= 60
    for worker, slots in ((0, 3), (1, 2)):
        mine = [row for row in ran.load if row["worker"] == worker]
        steps = sorted([(row["sent_ns"], 1) for row in mine] + [(row["end_ns"], -1) for row in mine])
        assert np.cumsum([step for _, step in steps]).max() == slots
    assert len(ran.seen) == len(ran.rows)


def test_the_command_measures_from_several_nodes(
    cluster: Nodes,
    truth: TruthServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "result.json"
    words = ["load", truth.url, "--nodes", "2", "--rate", "20", "--duration", "1", "--warmup", "2",
             "--input-tokens", "8", "--output-tokens", "4", "--json", str(file)]  # fmt: skip
    assert cli.main(["--root", str(tmp_path), *words]) == 0
    printed = capsys.readouterr().out
    assert "127.0.0.3" in printed
    assert "clock offset ms" in printed
    result = json.loads(file.read_text("utf-8"))
    assert [node["name"] for node in result["window"]["nodes"]] == ["127.0.0.3", "127.0.0.9"]
    assert result["window"]["processes"] == 2
    assert crews.current() is None


# -- a clock that is an hour off, and a node that goes ----------------------------------------------------------------


def test_the_table_is_right_although_a_clock_is_an_hour_off(one_and_two: dict[int, Ran], cluster: Nodes) -> None:
    if not cluster.ahead_ns:
        pytest.skip("no time namespaces here: a clock cannot be made wrong")
    ran = one_and_two[2]
    bound = max(node["clock"]["bound_ns"] for node in ran.reduction.window["nodes"])  # rows of both are in one order
    sent = sorted(row["sent_ns"] for row in ran.rows)
    came = sorted(each["received_ns"] for each in ran.seen)
    assert len(sent) == len(came)
    # one order of sending and receiving on one clock: none was received before it was sent, none an hour later
    assert all(-bound - 10**6 <= there - here < 20 * 10**9 for here, there in zip(sent, came, strict=True))
    ends = sorted(row["end_ns"] for row in ran.rows)
    done = sorted(each["done_ns"] for each in ran.seen)
    assert all(abs(there - here) < 20 * 10**9 for here, there in zip(ends, done, strict=True))


def test_a_node_that_is_killed_makes_the_result_invalid_and_the_rest_is_kept(
    cluster: Nodes, truth: TruthServer, tmp_path: Path
) -> None:
    raylet = next(each for each in cluster.hidden.children(recursive=True) if "raylet" in each.name())

    def kill_in_the_window(text: str) -> None:
        if "window" in text and not killed.is_set():
            killed.set()
            os.kill(raylet.pid, signal.SIGKILL)

    killed = threading.Event()
    load = at.poisson(20, duration_s=60, lead_s=0.3, tail_s=1)
    ran = send(tmp_path, truth, load, nodes=2, progress=kill_in_the_window)
    assert killed.is_set()
    assert ran.drive.status == "node_lost"
    assert "127.0.0.9" in ran.drive.message
    gates = {gate.id: gate for gate in ran.reduction.gates}
    assert gates["load_nodes"].passed is False
    assert gates["load_nodes"].severity == "invalid"
    assert "127.0.0.9" in gates["load_nodes"].message
    assert gates["window_complete"].passed is False
    kept = {row["worker"] for row in ran.load}
    assert kept == {0}
    assert ran.reduction.window["nodes"][0]["requests"] > 0
