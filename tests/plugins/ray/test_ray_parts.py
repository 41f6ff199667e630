"""Load from many nodes, without a cluster: dealing a plan, telling clocks, bringing records onto one of them."""

from __future__ import annotations

import builtins
import json
import sys
import time
from pathlib import Path
from typing import Any

import neuronbench_ray
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuronbench_ray import cluster
from neuronbench_ray.load import agent, clocks, hooks, parts

from neuronbench import cli
from neuronbench.compare.protocol import context_of, of_environment
from neuronbench.load import arrivals as at
from neuronbench.load import crew as crews
from neuronbench.load import layout
from neuronbench.load.clockshift import INSTANTS, shift
from neuronbench.load.nodes import NodeTally
from neuronbench.load.plan import Plan, make_plan
from neuronbench.load.planfile import PlanView
from neuronbench.load.run import drive
from neuronbench.load.workload import Warmup, synthetic
from neuronbench.model import FrozenMap, Point, Record
from neuronbench.plugins import Plugins
from neuronbench.protocols import PointFailure, Vocabulary

VOCABULARY = Vocabulary(size=32_000, special_ids=(0, 1, 2))


def planned(folder: Path, arrivals: Any, *, warmup: int = 5) -> Plan:
    return make_plan(
        folder,
        arrivals=arrivals,
        workload=synthetic(input_tokens=6, output_tokens=3),
        api="completions",
        model="truth",
        vocabulary=VOCABULARY,
        warmup=Warmup(requests=warmup),
        seed=3,
    )


def delivered(plan: Plan, folder: Path, workers: tuple[int, ...], size: int) -> PlanView:
    """The part as a driver on a node sees it."""
    folder.mkdir()
    for name, data in parts.files(plan, workers, size):
        with (folder / name).open("ab") as file:
            file.write(data)
    return PlanView(folder)


# -- dealing ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    folder = tmp_path_factory.mktemp("plans")
    return {
        "poisson": planned(folder / "poisson", at.poisson(40, duration_s=2, lead_s=0.5, tail_s=0.5)),
        "sessions": planned(folder / "sessions", at.sessions(15, turns=3, think_s=0.1, duration_s=2, tail_s=0.5)),
        "closed": planned(folder / "closed", at.closed_loop(7, requests=20)),
    }


@pytest.mark.parametrize("kind", ["poisson", "sessions", "closed"])
@pytest.mark.parametrize("processes", [1, 2])
def test_dealing_over_any_number_of_nodes_loses_nothing(plans: dict[str, Plan], kind: str, processes: int) -> None:
    plan = plans[kind]
    session = plan.column("session")
    for nodes in range(1, 8):
        size = nodes * processes
        dealt = [parts.workers_of(node, nodes, processes) for node in range(nodes)]
        assert sorted(worker for workers in dealt for worker in workers) == list(range(size))
        wanted = [parts.needed(plan, workers, size) for workers in dealt]
        assert np.all(np.sum(wanted, axis=0) >= 1)
        if kind == "closed":
            assert all(part.all() for part in wanted)  # a slot may come round to any body
        else:
            assert np.all(np.sum(wanted, axis=0) == 1)  # each request has one node
        if kind == "sessions":
            load = np.arange(len(session)) >= plan.warmup_count
            for part in wanted:  # a session is one node's
                assert not set(session[load & part]) & set(session[load & ~part])


def test_a_part_has_every_request_under_its_own_number_with_its_own_bytes_and_instant(
    plans: dict[str, Plan], tmp_path: Path
) -> None:
    plan, whole = plans["poisson"], PlanView(plans["poisson"].folder)
    for node in range(3):
        workers = parts.workers_of(node, 3, 1)
        part = delivered(plan, tmp_path / f"node{node}", workers, 3)
        wanted = parts.needed(plan, workers, 3)
        assert list(part.column("due_ns")) == list(whole.column("due_ns"))
        for index in range(plan.warmup_count + plan.count):
            assert bytes(part.body(index)) == (bytes(whole.body(index)) if wanted[index] else b"")
        assert (tmp_path / f"node{node}" / "bodies.bin").stat().st_size == plan.column("length")[wanted].sum()
        part.touch()


def test_a_node_without_a_request_gets_a_plan_it_can_open(tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", at.constant(2, duration_s=1, lead_s=0, tail_s=0.1), warmup=1)
    delivered(plan, tmp_path / "part", (6,), 7).touch()


def test_fewer_requests_in_flight_than_drivers_are_refused_with_what_to_do(
    plans: dict[str, Plan], tmp_path: Path
) -> None:
    class Crew:
        def size(self, processes: int, base_url: str) -> int:
            return 4 * processes

    options: Any = {"base_url": "http://127.0.0.1:9", "out": tmp_path, "spawn": None, "crew": Crew(), "processes": 2}
    with pytest.raises(PointFailure, match="7 in flight at once cannot be dealt to 8 drivers, 2 on each of 4") as no:
        drive(plans["closed"], **options)
    assert "NEURONBENCH_LOAD_NODES" in no.value.failure.remedy


# -- clocks -----------------------------------------------------------------------------------------------------------


@settings(deadline=None)  # a busy host may take the processor away for longer than Hypothesis waits
@given(
    true=st.integers(-(10**15), 10**15),
    ways=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20),
    there=st.integers(0, 10**6),
)
def test_the_true_offset_is_within_the_bound_whatever_the_ways_took(
    true: int, ways: list[tuple[int, int]], there: int
) -> None:
    now, readings = 10**9, []
    for out, back in ways:
        heard = now + out + true
        readings.append(clocks.one(now, heard, heard + there, now + out + there + back))
        now += out + there + back + 5
    found = clocks.best(readings)
    assert abs(found.offset_ns - true) <= found.bound_ns
    assert found.bound_ns <= min(out + back for out, back in ways) // 2 + clocks.GRANULARITY_NS + 1
    assert found.rounds == len(ways)


@settings(deadline=None)
@given(
    steps=st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=6),
    errors=st.lists(st.tuples(st.integers(-500, 500), st.integers(500, 10**5)), min_size=7, max_size=7),
)
def test_the_bound_of_a_run_covers_what_the_clock_was_seen_to_do(
    steps: list[int], errors: list[tuple[int, int]]
) -> None:
    truth = [0, *np.cumsum(steps).tolist()]
    seen = [
        clocks.Reading(at_ns=k, offset_ns=true + error, bound_ns=bound)
        for k, (true, (error, bound)) in enumerate(zip(truth, errors, strict=False))
    ]
    span = clocks.over(seen)
    assert span.offset_ns == seen[0].offset_ns
    assert span.bound_ns is not None
    assert abs(truth[0] - span.offset_ns) <= span.bound_ns
    assert abs(truth[-1] - span.offset_ns) <= span.bound_ns
    for reading, (_, bound) in zip(seen, errors, strict=False):  # between: as far as a reading rules out anything else
        assert abs(reading.offset_ns - span.offset_ns) <= span.bound_ns + bound
    unknown = clocks.over(seen, closed=False)
    assert (unknown.bound_ns, unknown.drift_ns) == (None, None)


def test_a_wrong_clock_is_told_over_tcp() -> None:
    wrong = 86_400_000_000_123
    echo = clocks.Echo("127.0.0.1")
    try:
        found = clocks.ask("127.0.0.1", echo.port, rounds=16, clock=lambda: time.monotonic_ns() + wrong)
    finally:
        echo.close()
    assert abs(found.offset_ns + wrong) <= found.bound_ns
    assert (found.rounds, found.how) == (16, "tcp")
    with pytest.raises(OSError):
        clocks.ask("127.0.0.1", echo.port)


# -- one table --------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(by=st.integers(-(10**15), 10**15))
def test_records_are_moved_whole_and_what_did_not_happen_stays_so(by: int, tmp_path_factory: Any) -> None:
    out = tmp_path_factory.mktemp("spill")
    rows = np.zeros(3, dtype=layout.request_dtype())
    rows["seq"] = [0, 1, 2]
    base = 2 * 10**15
    for k, name in enumerate(INSTANTS):
        rows[name] = [base + k, 0, base + 100 * k]
    rows.tofile(out / "requests-4.bin")
    times = np.arange(5, dtype="<i8") + base
    times.tofile(out / "chunks-4.bin")
    events = [{"event": "edge", "name": "open", "t": base, "noted": base + 7, "utc_ns": 1}, {"event": "x", "seq": 9}]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (out / "events-4.jsonl").write_text(text + '{"event": "cut o', encoding="utf-8")
    (out / "driver-4.json").write_text(json.dumps({"status": "ok", "ended": base}), encoding="utf-8")
    shift(out, 4, by, wall_ns=1000)
    moved = np.fromfile(out / "requests-4.bin", dtype=layout.request_dtype())
    for name in INSTANTS:
        assert moved[name].tolist() == [value + by if value else 0 for value in rows[name].tolist()]
    assert all((moved[name] == rows[name]).all() for name in rows.dtype.names or () if name not in INSTANTS)
    assert np.fromfile(out / "chunks-4.bin", dtype="<i8").tolist() == (times + by).tolist()
    first, second = (json.loads(line) for line in (out / "events-4.jsonl").read_text("utf-8").splitlines())
    assert (first["t"], first["noted"], first["utc_ns"]) == (base + by, base + 7 + by, base + by + 1000)
    assert second == events[1]
    assert json.loads((out / "driver-4.json").read_text("utf-8"))["ended"] == base + by


@pytest.mark.parametrize(
    ("bound_ns", "lost", "failed"),
    [
        (50_000, "", []),
        (13_000_000, "", ["clock_arrivals"]),
        (40_000_000, "", ["clock_arrivals", "clock_offset"]),
        (50_000, "it burned", ["load_nodes"]),
    ],
)
def test_clocks_are_held_against_the_window_and_the_gaps(
    plans: dict[str, Plan], bound_ns: int, lost: str, failed: list[str]
) -> None:
    nodes = [
        crews.Node(name="a", workers=(0,), bound_ns=1000),
        crews.Node(name="b", workers=(1,), bound_ns=bound_ns, lost=lost),
    ]
    gates = {gate.id: gate for gate in NodeTally(nodes).gates(plans["poisson"], 20.0, None)}
    assert sorted(gate.id for gate in gates.values() if gate.passed is False) == failed
    assert gates["clock_offset"].observed == bound_ns / 1e6
    assert gates["clock_arrivals"].severity == "provisional"
    if lost:
        assert gates["load_nodes"].message == "b: it burned"


def test_a_clock_that_could_not_be_told_is_no_verdict(plans: dict[str, Plan]) -> None:
    nodes = [crews.Node(name="a", workers=(0,)), crews.Node(name="b", workers=(1,), bound_ns=None)]
    gates = {gate.id: gate.passed for gate in NodeTally(nodes).gates(plans["poisson"], 20.0, None)}
    assert gates == {"load_nodes": True, "clock_offset": None, "clock_arrivals": None}


# -- nodes ------------------------------------------------------------------------------------------------------------


def node(number: int, *, cpus: float = 4, here: bool = False, **resources: float) -> cluster.Node:
    return cluster.Node(
        id=f"{number:08x}",
        address=f"10.0.0.{number}",
        host=f"h{number}",
        resources={"CPU": cpus, **resources},
        here=here,
    )


def test_nodes_that_do_nothing_else_come_first() -> None:
    known = [node(1, here=True), node(2, neuron_cores=2), node(3), node(4), node(5, cpus=1)]
    chosen = cluster.choose(known, 2, cpus=2, server="10.0.0.3")
    assert [each.address for each in chosen] == ["10.0.0.4", "10.0.0.1"]
    assert [each.address for each in cluster.choose(known, 0, server="10.0.0.3")] == ["10.0.0.4", "10.0.0.5"]
    with pytest.raises(cluster.ClusterError, match=r"expected 6 with 1 CPUs, found 5; the cluster has 10\.0\.0\.1"):
        cluster.choose(known, 6)


def test_nodes_that_are_meant_for_load_are_the_only_ones() -> None:
    known = [node(1), node(2, neuronbench_load=1), node(3, neuronbench_load=1)]
    assert [each.address for each in cluster.choose(known, 0)] == ["10.0.0.2", "10.0.0.3"]
    with pytest.raises(cluster.ClusterError, match="expected 3 with the resource neuronbench_load, found 2"):
        cluster.choose(known, 3)


def test_names_tell_nodes_apart() -> None:
    twin = cluster.Node(id="ffffffff00", address="10.0.0.9", host="h9", resources={})
    other = cluster.Node(id="eeeeeeee00", address="10.0.0.9", host="h9", resources={})
    assert cluster.names([node(1), node(2)]) == ["h1", "h2"]
    assert cluster.names([twin, other]) == ["10.0.0.9/ffffffff", "10.0.0.9/eeeeeeee"]


# -- without Ray, without a cluster -----------------------------------------------------------------------------------


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refusing(name: str, *args: Any, **options: Any) -> Any:
        if name == "ray" or name.startswith("ray."):
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refusing)
    monkeypatch.delitem(sys.modules, "ray", raising=False)


@pytest.mark.usefixtures("without_ray")
def test_without_ray_the_command_names_the_extra(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["--root", str(tmp_path), "load", "http://127.0.0.1:9", "--nodes", "2"]) == 2
    assert 'pip install "neuronbench[ray]"' in capsys.readouterr().err


def test_without_the_plugin_the_command_names_the_extra(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURONBENCH_DISABLE_PLUGINS", "ray")
    assert cli.main(["--root", str(tmp_path), "load", "http://127.0.0.1:9", "--nodes", "2"]) == 2
    assert 'pip install "neuronbench[ray]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "words"),
    [("127.0.0.2:9", "nothing answers at 127.0.0.2:9"), ("ray://127.0.0.2:9", "Ray's client protocol")],
)
def test_a_cluster_that_does_not_answer_is_not_waited_for(
    address: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    crew = crews.find(nodes=2)
    with pytest.raises(PointFailure, match=words):
        crew.size(1, "http://127.0.0.1:9")


def test_a_number_of_nodes_in_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hooks.VARIABLE, "two")
    with pytest.raises(ValueError, match="expected a whole number of nodes"):
        hooks.asked()
    monkeypatch.setenv(hooks.VARIABLE, "3")
    assert hooks.asked() == 3
    monkeypatch.delenv(hooks.VARIABLE)
    assert hooks.asked() is None


def test_what_a_point_sends_comes_from_the_nodes_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    plugins = Plugins(entry_points=False)
    plugins.register(neuronbench_ray, name="ray", source="test", strict=True)
    point = Point(benchmark="bench_x.py::bench_x", lane="serving", backend="cpu", params=FrozenMap(), id="x")

    def driving() -> Any:
        return plugins.measuring(point, None, Record(session="s", point=point), crews.current)

    assert driving() is None
    monkeypatch.setenv(hooks.VARIABLE, "2")
    crew = driving()
    assert type(crew).__name__ == "RayCrew"
    assert driving() is crew  # one connection for all points
    assert crews.current() is None
    plugins.session_finished(None, 0)
    assert hooks._made == {}


def test_compare_tells_how_many_nodes_sent_the_load_and_compares() -> None:
    facts = {f"env.{hooks.VARIABLE}": "2"}
    assert context_of(facts) == facts
    assert of_environment(facts) == {}


# -- the agent --------------------------------------------------------------------------------------------------------


def test_what_killed_agents_left_behind_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"{agent.PREFIX}1-left"
    foreign = tmp_path / f"{agent.PREFIX}foreign"
    for folder in (left, foreign):
        folder.mkdir()
    (left / agent.LOCK).touch()
    first = agent.Agent("127.0.0.1", 9)
    assert not left.exists()
    assert foreign.exists()  # no agent's: it has no lock
    second = agent.Agent("127.0.0.1", 9)
    assert len(list(tmp_path.iterdir())) == 3  # the first one's is held
    assert isinstance(first.clock(), str)  # nobody there; said, not raised
    assert first.room() == ""
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == [foreign]


def test_why_a_driver_left_no_result_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = agent.Agent("127.0.0.1", 9)
    try:
        for index in (0, 1):
            made.start(index, json.dumps({"base_url": "http://127.0.0.1:9"}), None)  # without a plan
        told: dict[int, tuple[int | None, str]] = {}
        after, until = 0, time.monotonic() + 120
        while len(told) < 2 and time.monotonic() < until:
            for number, index, line, status, why in made.hear(after, 1.0):
                after = number
                if line is None:
                    told[index] = (status, why)
    finally:
        made.close()
    for index in (0, 1):
        status, why = told[index]
        assert status == 1
        assert why.startswith(f"load driver {index} ended with status 1 and left no result; FileNotFoundError: ")
