"""Load from the two nodes of a real cluster, the head and one that has a host of its own, nearly.

All of it is on this machine and on its loopback interface. The node 127.0.0.3 has a clock that is an hour off and a
small disk, by namespaces of Linux: raylet, agent and driver on it see another CLOCK_MONOTONIC and another folder for
temporary files, and nothing of neuronbench knows that it is a test. Where namespaces are not allowed, what is said of
the hour and of the disk is skipped.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import neuronbench_ray
import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from neuronbench_ray.load.crew import RayCrew, RayShift
from ray_nodes import Apart, add, alive, below, end_apart, new_cluster, start_apart, until

import neuronbench
from neuronbench import cli
from neuronbench.load import arrivals as at
from neuronbench.load import crew as crews
from neuronbench.load.plan import Plan, make_plan
from neuronbench.load.reduce import Reduction
from neuronbench.load.run import Drive, Timeouts, drive, reduce_run
from neuronbench.load.workload import Warmup, synthetic
from neuronbench.model import Failure
from neuronbench.processes import spawn
from neuronbench.protocols import PointFailure, Vocabulary
from neuronbench.testing.truth_server import TruthServer

pytest.importorskip("ray", reason="Ray is not installed: pip install 'neuronbench[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

IN_TIME_NS = 40 * 10**6
"""Where this host lets a request come later than this, what a server sees then says nothing about the schedule."""
HOST = socket.gethostname()
STAMP_NS = 10**6
"""Of a stamp of the kernel's wall clock when it is put onto the monotonic one."""


class Nodes(NamedTuple):
    """The cluster, as tests need it."""

    apart: Apart
    """The node 127.0.0.3."""
    head: psutil.Process
    """The raylet of the head, 127.0.0.9."""
    address: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes for load, of which one is the head; this process is connected to it."""
    import ray

    made, apart = new_cluster(), None
    try:
        head = add(made, num_cpus=1, resources={"neuronbench_load": 1}, node_ip_address="127.0.0.9")
        apart = start_apart(made, tmp_path_factory.mktemp("apart"), "127.0.0.3")
        ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
        assert len(alive(made)) == 2
        yield Nodes(apart, psutil.Process(head.all_processes["raylet"][0].process.pid), made.address)
    finally:
        ray.shutdown()
        if apart is not None:
            end_apart(apart)
        made.shutdown()


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


def send(folder: Path, truth: TruthServer, arrivals: Any, *, nodes: int, url: str = "", **options: Any) -> Ran:
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
        plan, base_url=url or truth.url, out=folder / "out", spawn=spawn, crew=RayCrew(nodes), deadline_s=90,
        timeouts=waits, **options,
    )  # fmt: skip
    return Ran(plan, driven, reduce_run(plan, folder / "out", drive=driven), truth.truth(chunks=False)["requests"])


def refused(folder: Path, truth: TruthServer, **options: Any) -> Failure:
    """Why a load from one node was not begun: from 127.0.0.3, which has the name of this host where it is alone."""
    with pytest.raises(PointFailure) as no:
        send(folder, truth, at.constant(10, duration_s=1), nodes=1, **options)
    assert truth.truth(chunks=False)["requests"] == []
    return no.value.failure


def dispersion_limits(bins: int) -> tuple[float, float]:
    """Between these lies the dispersion of poisson counts in so many bins, but for one time in a thousand."""
    from scipy.special import chdtri

    low, high = (float(chdtri(bins - 1, 1 - p) / (bins - 1)) for p in (0.0005, 0.9995))
    return low, high


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


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_server_sees_the_arrivals_of_one(one_and_two: dict[int, Ran], nodes: int) -> None:
    """However busy this host is: each arrival lies between what the driver says it sent and what it says came back."""
    ran = one_and_two[nodes]
    bound = max(node["clock"]["bound_ns"] for node in ran.reduction.window["nodes"]) + STAMP_NS
    assert len(ran.seen) == len(ran.rows)  # nothing was lost and nothing sent twice
    came = np.array(sorted(each["received_ns"] for each in ran.seen))
    # of each request one instant is before the other, and so it is of the k-th of all of them
    due, sent, answered = (
        np.array(sorted(row[name] for row in ran.rows)) for name in ("scheduled_ns", "sent_ns", "first_output_ns")
    )
    assert (sent >= due).all()
    assert (came >= sent - bound).all()
    assert (came <= answered + bound).all()
    lag = np.array(sorted(row["sent_ns"] - row["scheduled_ns"] for row in ran.load))
    assert lag[0] >= 0


@pytest.mark.parametrize("nodes", [1, 2])
def test_arrivals_are_those_of_independent_requests(one_and_two: dict[int, Ran], nodes: int) -> None:
    """As they were due, all of them; as the server saw them, wherever this host let them come in time."""
    ran = one_and_two[nodes]
    opened, bins, width = ran.reduction.window["start_ns"], 20, 2 * 10**8

    def judge(instants: Any, kept: Any) -> None:
        inside = instants[(instants >= opened) & (instants < opened + bins * width)]
        counts = np.histogram(inside, bins=bins, range=(opened, opened + bins * width))[0][kept]
        low, high = dispersion_limits(len(kept))
        assert low <= counts.var(ddof=1) / counts.mean() <= high
        place = (inside - opened) // width
        gaps = np.diff(inside)[np.isin(place[:-1], kept) & np.isin(place[1:], kept)] / 1e9
        shortest = -np.log(1 - 10 / (len(inside) - 1)) / RATE
        # of exponential gaps ten are this short; many more would be requests of several nodes in step
        assert (gaps < shortest).sum() <= 25

    due = np.array(sorted(row["scheduled_ns"] for row in ran.load))
    assert ((due >= opened) & (due < opened + bins * width)).sum() == ran.plan.arrivals["scheduled"]["count"]
    judge(due, np.arange(bins))
    came = np.array(sorted(each["received_ns"] for each in ran.seen))[-len(due) :]  # those of the warm-up came before
    late = came - due > IN_TIME_NS  # of the k-th: chosen by how late they are, never by how many
    starts = opened + width * np.arange(bins)
    spoiled = [bool(((due[late] < start + width) & (came[late] >= start)).any()) for start in starts]
    in_time = np.flatnonzero(~np.array(spoiled))
    if len(in_time) >= bins // 2:  # else this host says nothing of the server's side
        judge(came, in_time)


def test_percentiles_of_one_and_of_two_nodes_agree_within_their_bounds(one_and_two: dict[int, Ran]) -> None:
    """Both are held against what the server did meanwhile: a busy host makes it slower in one run than in the other."""
    low, high, lags = {}, {}, []
    for nodes, ran in one_and_two.items():
        by_key = {metric.key: metric for metric in ran.reduction.metrics}
        median, lag = by_key["ttft_p50_ms"], by_key["client_lag_p99_ms"].value or 0.0
        opened = ran.reduction.window["start_ns"]
        inside = [each for each in ran.seen if opened <= each["received_ns"] < opened + 4 * 10**9]
        true = float(np.median([(each["first_sent_ns"] - each["received_ns"]) / 1e6 for each in inside]))
        assert median.low is not None
        assert median.low - 0.5 <= true + lag + 1.0
        assert median.high is not None
        assert median.high >= true - 0.5
        low[nodes], high[nodes] = median.low - true, median.high - true
        lags.append(lag)
    allowed = 0.5 + max(lags)
    assert low[1] <= high[2] + allowed
    assert low[2] <= high[1] + allowed


def test_the_clocks_are_told_and_reported(one_and_two: dict[int, Ran], cluster: Nodes) -> None:
    ran = one_and_two[2]
    nodes = ran.reduction.window["nodes"]
    assert [node["address"] for node in nodes] == ["127.0.0.3", "127.0.0.9"]
    for node, ahead_ns in zip(nodes, (cluster.apart.ahead_ns, 0), strict=True):
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


LENGTHS = ("--input-tokens", "8", "--output-tokens", "4", "--warmup", "2")


def test_the_command_measures_from_several_nodes_and_tests_limits(
    cluster: Nodes,
    truth: TruthServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "result.json"
    words = ["load", truth.url, "--nodes", "2", "--rate", "20", *LENGTHS, "--json", str(file),
             "--slo-test", "--slo", "ttft=20000", "--slo-percentile", "80"]  # fmt: skip
    status = cli.main(["--root", str(tmp_path), *words])
    printed = capsys.readouterr().out
    assert "127.0.0.3" in printed
    assert "clock offset ms" in printed
    result = json.loads(file.read_text("utf-8"))
    # a host that takes the CPU from a driver makes it write late: such a result shows nothing, and that is its status
    assert status == (1 if result["validity"] == "invalid" else 0)
    nodes = result["window"]["nodes"]
    assert [node["name"] for node in nodes] == ["127.0.0.3", "127.0.0.9"]
    assert result["window"]["processes"] == 2
    assert crews.current() is None
    # the test of the limit is over the requests of both, as many as it takes
    test = result["slo_tests"]["ttft"]
    assert (test["verdict"], test["within"] + test["beyond"]) == ("met", sum(node["requests"] for node in nodes))
    assert all(node["requests"] > 0 for node in nodes)


def test_a_test_of_limits_with_fewer_requests_in_flight_than_nodes_is_refused_before_the_load(
    cluster: Nodes, truth: TruthServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["load", truth.url, "--nodes", "2", *LENGTHS, "--slo-test", "--slo", "ttft=20000"]  # one in flight
    assert cli.main(["--root", str(tmp_path), *words]) == 1
    told = capsys.readouterr().err
    assert "1 in flight at once cannot be dealt to 2 drivers" in told
    assert "send it from fewer nodes" in told


def test_the_highest_rate_is_found_from_several_nodes(
    cluster: Nodes, truth: TruthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[crews.Node]] = []
    close = RayShift.close

    def closing(shift: RayShift) -> Any:
        seen.append(list(close(shift)))
        return seen[-1]

    monkeypatch.setattr(RayShift, "close", closing)
    file = tmp_path / "result.json"
    words = ["load", truth.url, "--nodes", "2", "--find-rate", "--rate", "20", "--max-rate", "40", *LENGTHS,
             "--slo", "ttft=20000", "--slo-percentile", "50", "--json", str(file)]  # fmt: skip
    assert cli.main(["--root", str(tmp_path), *words]) == 0
    result = json.loads(file.read_text("utf-8"))
    assert result["max_rate_under_slo_req_s"] == 40
    steps = result["search"]["steps"]
    assert [(step["rate"], step["verdict"], step["failures"]) for step in steps] == [(20, "met", 0), (40, "met", 0)]
    assert len(seen) >= 2  # each rate has a load of its own, or more
    assert {tuple((node.name, node.lost) for node in nodes) for nodes in seen} == {
        (("127.0.0.3", ""), ("127.0.0.9", ""))
    }


@pytest.mark.parametrize(("number", "nodes"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_a_command_that_is_ended_keeps_what_was_measured_and_leaves_nothing_on_the_nodes(
    cluster: Nodes, truth: TruthServer, tmp_path: Path, number: signal.Signals, nodes: int
) -> None:
    out = tmp_path / "out"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    truth.reset()
    run = subprocess.Popen(
        [sys.executable, "-m", "neuronbench", "--root", str(tmp_path), "load", truth.url, "--nodes", str(nodes),
         "--rate", "50", "--duration", "300", *LENGTHS, "--out", str(out), "--json", str(tmp_path / "told.json")],
        env={**kept, "RAY_ADDRESS": cluster.address, "XDG_CACHE_HOME": str(tmp_path / "cache")}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip

    def drivers() -> list[psutil.Process]:
        return [one for above in (cluster.apart.process, cluster.head) for one in below(above, "load.driver")]

    until(lambda: len(truth.truth(chunks=False)["requests"]) >= 60, run=run, every_s=0.3)
    assert drivers()
    run.send_signal(number)
    said = run.communicate(timeout=240)[0]
    assert run.returncode == 128 + number, said
    assert f"ended by {number.name}" in said
    for word in ("Traceback", "***", "@ 0x", "ray::", "core_worker"):
        assert word not in said
    until(lambda: not drivers(), every_s=0.5)
    result = json.loads((out / "result.json").read_text("utf-8"))
    assert (result["status"], result["validity"]) == ("killed", "invalid")
    assert json.loads((tmp_path / "told.json").read_text("utf-8"))["status"] == "killed"
    rows = [row for row in pq.read_table(out / "requests.parquet").to_pylist() if not row["warmup"]]
    assert len([row for row in rows if row["ok"]]) >= 40
    assert {row["worker"] for row in rows} == set(range(nodes))
    assert not list(cluster.apart.temporary.glob("*neuronbench-node-*"))


def test_ctrl_c_before_the_load_waits_for_no_node(
    cluster: Nodes, truth: TruthServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One node is ready, the other has no CPU free and would be waited for."""
    import ray

    class Other:
        def there(self) -> bool:
            return True

    made: Any = ray.remote(num_cpus=1, resources={"node:127.0.0.9": 0.01})(Other)
    other = made.remote()
    assert ray.get(other.there.remote(), timeout=120)
    truth.reset()

    def interrupt() -> None:
        until(lambda: any(cluster.apart.temporary.glob("neuronbench-node-*")))  # its agent is there
        os.kill(os.getpid(), signal.SIGINT)

    hand = threading.Thread(target=interrupt)
    hand.start()
    try:
        words = ["load", truth.url, "--nodes", "2", "--rate", "20", "--duration", "1", *LENGTHS]
        assert cli.main(["--root", str(tmp_path), *words]) == 130
    finally:
        hand.join(240)
        ray.kill(other)
    assert "ended by SIGINT: nothing had been sent yet" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    until(lambda: not any(below(cluster.apart.process, "ray::Agent")), every_s=0.5)


# -- a clock that is an hour off ---------------------------------------------------------------------------------------


def test_the_table_is_right_although_a_clock_is_an_hour_off(one_and_two: dict[int, Ran], cluster: Nodes) -> None:
    if not cluster.apart.ahead_ns:
        pytest.skip("no time namespaces here: a clock cannot be made wrong")
    ran = one_and_two[2]
    # rows of both are in one order: that of the k-th holds for the larger of their bounds, whosever row it is
    bound = max(node["clock"]["bound_ns"] for node in ran.reduction.window["nodes"]) + STAMP_NS
    sent = sorted(row["sent_ns"] for row in ran.rows)
    came = sorted(each["received_ns"] for each in ran.seen)
    assert len(sent) == len(came)
    # one order of sending and receiving on one clock: none was received before it was sent, none an hour later
    assert all(-bound <= there - here < 20 * 10**9 for here, there in zip(sent, came, strict=True))
    ends = sorted(row["end_ns"] for row in ran.rows)
    done = sorted(each["done_ns"] for each in ran.seen)
    assert all(abs(there - here) < 20 * 10**9 for here, there in zip(ends, done, strict=True))


# -- nodes that cannot be used, or not to the end ----------------------------------------------------------------------


def test_a_server_that_a_node_does_not_reach_is_named_before_the_load(
    cluster: Nodes, truth: TruthServer, tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and nobody listens
        port = nobody.getsockname()[1]
        why = refused(tmp_path, truth, url=f"http://127.0.0.1:{port}")
    assert f"node {HOST} does not reach 127.0.0.1:{port}: " in why.message
    assert "let its port through" in why.remedy


def test_a_node_without_neuronbench_is_named_before_the_load(
    cluster: Nodes, truth: TruthServer, tmp_path: Path
) -> None:
    hides = cluster.apart.modules / "neuronbench_ray"
    hides.mkdir()
    try:
        (hides / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'neuronbench_ray'\")")
        why = refused(tmp_path, truth)
    finally:
        shutil.rmtree(hides)
    assert f"node {HOST} cannot run the agent: " in why.message
    assert "No module named 'neuronbench_ray'" in why.message
    assert "pip install" in why.remedy


def test_a_node_with_other_code_or_another_version_is_named_before_the_load(
    cluster: Nodes, truth: TruthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cluster.apart.modules / "neuronbench_ray"
    shutil.copytree(Path(neuronbench_ray.__file__).parent, other, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        with (other / "load" / "parts.py").open("a") as file:
            file.write("# changed\n")
        why = refused(tmp_path / "code", truth)
        assert f"node {HOST} has other code of the same version of neuronbench" in why.message
        assert "install the same on all nodes" in why.remedy
        monkeypatch.setattr(neuronbench, "__version__", "0.0.9")
        why = refused(tmp_path / "version", truth)
        assert f"node {HOST} has version " in why.message
        assert "here it is 0.0.9" in why.message
    finally:
        shutil.rmtree(other)


@pytest.mark.parametrize("left", [1 << 19, 1 << 14])
def test_a_node_without_room_is_named_before_the_load(
    cluster: Nodes, truth: TruthServer, tmp_path: Path, left: int
) -> None:
    """Enough for the plan and not for records; not even enough for the plan."""
    if cluster.apart.disk is None:
        pytest.skip("no namespaces here: a node cannot have a small disk")
    filler = cluster.apart.fill(but=left)
    try:
        why = refused(tmp_path, truth)
    finally:
        filler.unlink()
    assert why.message.startswith(f"node {HOST}")
    assert "No space left on device" in why.message
    assert "make room there" in why.remedy


def test_a_disk_that_fills_up_in_mid_run_makes_the_result_invalid_and_the_rest_is_kept(
    cluster: Nodes, truth: TruthServer, tmp_path: Path
) -> None:
    if cluster.apart.disk is None:
        pytest.skip("no namespaces here: a node cannot have a small disk")
    fillers: list[Path] = []

    def fill_in_the_window(text: str) -> None:
        if "window" in text and not fillers:
            fillers.append(cluster.apart.fill())

    load = at.poisson(40, duration_s=60, lead_s=0.3, tail_s=1)
    try:
        ran = send(tmp_path, truth, load, nodes=2, progress=fill_in_the_window)
    finally:
        for filler in fillers:
            filler.unlink()
    assert ran.drive.status == "node_lost"
    gates = {gate.id: gate for gate in ran.reduction.gates}
    assert (gates["load_nodes"].passed, gates["load_nodes"].severity) == (False, "invalid")
    for told in (ran.drive.message, gates["load_nodes"].message):
        assert "127.0.0.3" in told
        assert "load driver 0 ended with status 1 and left no result" in told
        assert "No space left on device" in told
        assert "127.0.0.9" not in told
    assert gates["window_complete"].passed is False
    assert {row["worker"] for row in ran.load} == {0, 1}  # of the full disk, too: what was on it by then
    assert all(node["requests"] > 0 for node in ran.reduction.window["nodes"])


def test_a_node_that_is_killed_makes_the_result_invalid_and_the_rest_is_kept(
    cluster: Nodes, truth: TruthServer, tmp_path: Path
) -> None:
    raylet = cluster.apart.raylet

    def kill_in_the_window(text: str) -> None:
        if "window" in text and not killed.is_set():
            killed.set()
            os.kill(raylet.pid, signal.SIGKILL)

    killed = threading.Event()
    load = at.poisson(20, duration_s=60, lead_s=0.3, tail_s=1)
    ran = send(tmp_path, truth, load, nodes=2, progress=kill_in_the_window)
    assert killed.is_set()
    assert ran.drive.status == "node_lost"
    assert "127.0.0.3" in ran.drive.message
    gates = {gate.id: gate for gate in ran.reduction.gates}
    assert gates["load_nodes"].passed is False
    assert gates["load_nodes"].severity == "invalid"
    assert "127.0.0.3" in gates["load_nodes"].message
    assert gates["window_complete"].passed is False
    kept = {row["worker"] for row in ran.load}
    assert kept == {1}
    assert ran.reduction.window["nodes"][1]["requests"] > 0
