"""Points on several nodes of a real Ray cluster on this machine: placed, lost, placed again, interrupted, refused."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from place_project import NODE, Project, ended, held
from ray_nodes import add, new_cluster, until

from neuronbench import Outcome
from neuronbench.shipping import open_shelf

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, kw_only=True)
class Third:
    """A node that can be made useless."""

    name: str
    """By which the head names it, or the end of that."""
    modules: Path
    """First on its Python's path."""
    sent: Path
    """Where it keeps what it is sent."""

    @contextlib.contextmanager
    def without_neuronbench(self) -> Iterator[None]:
        hides = self.modules / "neuronbench_ray"
        hides.mkdir()
        (hides / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'neuronbench_ray'\")")
        try:
            yield
        finally:
            shutil.rmtree(hides)

    @contextlib.contextmanager
    def without_a_place_to_write(self) -> Iterator[None]:
        self.sent.touch()  # a file where a folder should be
        try:
            yield
        finally:
            self.sent.unlink()

    def takes_no_part(self, text: str, why: str) -> None:
        """It was named with the reason before anything ran, and nothing was placed there."""
        named = next(k for k, line in enumerate(text.splitlines()) if self.name in line and "takes no part" in line)
        placed = [(k, line) for k, line in enumerate(text.splitlines()) if " points (g" in line]
        assert why in text.splitlines()[named]
        assert placed
        assert all(k > named and self.name not in line for k, line in placed)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of two NeuronCores each."""
    made = new_cluster()
    try:
        for _ in range(2):
            add(made, **NODE)
        yield made
    finally:
        made.shutdown()


@pytest.fixture(scope="module")
def third(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Third]:
    """One more node like them."""
    modules = tmp_path_factory.mktemp("modules")
    path = os.pathsep.join(filter(None, [str(modules), os.environ.get("PYTHONPATH", "")]))
    user = f"test-{uuid.uuid4().hex}"
    node = add(cluster, **NODE, env_vars={"PYTHONPATH": path, "LOGNAME": user})
    sent = Path(tempfile.gettempdir()) / f"neuronbench-ray-{user}"
    yield Third(name=node.node_id[:6], modules=modules, sent=sent)
    shutil.rmtree(sent, ignore_errors=True)


@pytest.fixture
def project(cluster: Any, tmp_path: Path) -> Project:
    return Project(tmp_path / "project", cluster.address)


def gone(pid: int) -> Callable[[], bool]:
    return lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_every_point_is_measured_once_on_a_box_to_itself(project: Project, third: Third, tmp_path: Path) -> None:
    shelf = str(tmp_path / "shelf")
    args = ("benchmarks", "-m", "fake", "--nb-repeats", "2", "-k", "held")
    with third.without_a_place_to_write():
        status, text = ended(project.start("--store", shelf, "--", *args))
    third.takes_no_part(text, str(third.sent))
    records = project.records()
    assert status == 0, text
    names = [record.receipt_name for record in records if record.kind == "point"]
    assert sorted(names) == sorted(
        f"serving.held-fake-number={number}--r{repeat}" for number in range(1, 9) for repeat in (1, 2)
    )
    assert {record.outcome for record in records} == {Outcome.OK}
    assert len({record.session for record in records}) == 1
    assert not list((project.root / "mlruns" / "receipts").glob("*/.*")), "something half is left"
    manifest = project.store.manifest(records[0].session)
    assert (manifest.exit_status, len(manifest.planned)) == (0, 16)
    # boxes: more than one took part, each gave all of its cores, and to one point at a time
    assert len({record.tags["ray.node"] for record in records}) > 1
    assert {record.metrics["tpot_p50_ms"].value for record in records} == {2.0}
    for one, other in itertools.combinations(records, 2):
        if one.tags["ray.node"] == other.tags["ray.node"]:
            assert one.ended_at <= other.started_at or other.ended_at <= one.started_at, "on one box at one time"
    # repeats of a point are of one box; records name the code that was sent
    for point in {record.point.id for record in records}:
        assert len({record.tags["ray.attempt"] for record in records if record.point.id == point}) == 1
    assert all(record.environment.facts["code.sha256"] for record in records)
    assert "16 ok" in text
    assert sorted(name for _, name in open_shelf(shelf).names().whole) == sorted(names), "sent on as they came in"


def test_ctrl_c_leaves_nothing_on_the_nodes(project: Project, third: Third, tmp_path: Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    with third.without_neuronbench():
        run = project.start("--", "benchmarks/bench_held.py", NEURONBENCH_HELD=str(folder))
        until(lambda: len(held(folder)) == 2, run=run)
        run.send_signal(signal.SIGINT)
        status, text = ended(run)
    third.takes_no_part(text, "cannot run neuronbench: ModuleNotFoundError: No module named 'neuronbench_ray'")
    assert status == 2, text
    open_ones = {told["number"] for told in held(folder).values()}
    records = project.records()
    assert {record.outcome for record in records} == {Outcome.INTERRUPTED}
    assert {record.point["number"] for record in records} == open_ones
    for told in held(folder).values():
        until(gone(told["pid"]))
    assert project.store.manifest(records[0].session).exit_status == 2
    assert "missing" in text


def test_other_code_on_the_nodes_is_refused(project: Project, tmp_path: Path) -> None:
    """The head has a plugin that the nodes do not have."""
    extra = tmp_path / "extra"
    info = extra / "acme_lane-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-lane\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[neuronbench]\nacme = acme_lane\n")
    (extra / "acme_lane.py").write_text("")
    path = os.pathsep.join(filter(None, [str(extra), os.environ.get("PYTHONPATH", "")]))
    status, text = ended(project.start("--", "benchmarks/bench_held.py", PYTHONPATH=path))
    assert status == 1
    assert "acme_lane: " in text
    assert project.records() == []


def test_status_shows_nodes_and_leases(cluster: Any) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RAY_"))}
    argv = [sys.executable, "-m", "neuronbench", "ray", "status", "--address", cluster.address]
    done = subprocess.run(argv, env=kept, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "cores leased" in done.stdout
    assert "0/2" in done.stdout


@pytest.mark.usefixtures("third")
def test_what_is_lost_is_recorded_and_measured_elsewhere(project: Project, cluster: Any, tmp_path: Path) -> None:
    """A node goes, Ray's worker on another is killed, pytest on the third; then a fourth node joins."""
    folder = tmp_path / "held"
    folder.mkdir()
    run = project.start("--", "benchmarks/bench_held.py", NEURONBENCH_HELD=str(folder))
    until(lambda: len(held(folder)) == 3, run=run)
    began = held(folder)
    names = {node.node_id: node for node in cluster.worker_nodes}
    (first, lost), (second, worker), (_, alone) = sorted(
        began.items(), key=lambda pair: not any(pair[0].endswith(name[:6]) for name in names)
    )
    node = next(node for name, node in names.items() if first.endswith(name[:6]))
    cluster.remove_node(node, allow_graceful=False)
    agent = psutil.Process(worker["pid"]).parent().parent()
    assert agent.name().startswith("ray::")
    agent.send_signal(signal.SIGKILL)
    os.kill(alone["pid"], signal.SIGKILL)

    def losses() -> list[Any]:
        return [record for record in project.records() if "--lost" in record.receipt_name]

    until(lambda: len(losses()) == 3, run=run)
    until(gone(lost["pid"]))  # nothing goes on measuring on a node that is lost
    until(gone(worker["pid"]))
    add(cluster, **NODE)
    until(lambda: len(held(folder).keys() - {first}) == 3, run=run)
    (folder / "go").touch()
    status, text = ended(run)
    assert status == 0, text
    kinds = {record.error.kind: record for record in losses()}
    assert sorted(kinds) == ["node_lost", "session_died", "worker_lost"], text
    assert kinds["node_lost"].tags["ray.node"] == first
    assert kinds["worker_lost"].tags["ray.node"] == second
    assert "signal 9" in kinds["session_died"].error.causal_line
    told_kinds = ("node_lost", "worker_lost", "session_died")
    for told, record in zip((lost, worker, alone), (kinds[kind] for kind in told_kinds), strict=True):
        assert record.outcome is Outcome.INTERRUPTED
        assert record.point["number"] == told["number"]
        assert record.tags["lost_attempt"] == "1"
        assert record.error.causal_line
    good = [record for record in project.records() if record.kind == "point" and "--lost" not in record.receipt_name]
    assert sorted(record.point["number"] for record in good) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {record.outcome for record in good} == {Outcome.OK}
    assert first not in {record.tags["ray.node"] for record in good}, "a lost node's result came in"
    assert "8 ok, 3 lost attempts" in text
