"""Exclusive cores: between processes, by real locks; freed when a process dies; strangers are respected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronbench.testing.neuron import FakeBox

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron import cores, hardware

TAKE = """
import json, sys
from pathlib import Path
from neuronbench_neuron import cores, hardware
host = hardware.look(Path(sys.argv[1]))
wanted = json.loads(sys.argv[2])
try:
    lease = cores.take(wanted, host=host, owner=sys.argv[3])
except cores.CoresBusy as error:
    print(json.dumps({"busy": str(error)}), flush=True)
else:
    print(json.dumps({"ids": lease.ids}), flush=True)
    sys.stdin.read()
"""


class Other:
    """Another process that takes cores, and holds them until it is told to end."""

    def __init__(self, box: FakeBox, wanted: object, owner: str = "session two, serving") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE, str(box.root), json.dumps(wanted), owner],
            env=box.environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.said = json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def others() -> Iterator[list[Other]]:
    started: list[Other] = []
    yield started
    for other in started:
        other.kill()


def host_of(box: FakeBox, **more: str) -> hardware.Hardware:
    return hardware.look(box.root, environ=box.environ(**more))


def test_two_processes_cannot_have_one_core(tmp_path: Path, others: list[Other]) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        host = host_of(box)
        other = Other(box, 1)
        others.append(other)
        assert other.said == {"ids": [0]}
        with cores.take(1, host=host, owner="me") as lease:
            assert lease.ids == (1,)
            with pytest.raises(cores.CoresBusy) as caught:
                cores.take(2, host=host, owner="a third")
        text = str(caught.value)
        assert f"pid {other.process.pid} (-c" in text
        assert "for session two, serving" in text
        assert {holder.pid for holder in caught.value.holders} == {other.process.pid, os.getpid()}
        with pytest.raises(cores.CoresBusy, match="expected core 0 to be free"):
            cores.take([0], host=host, owner="me")


def test_cores_of_a_process_that_was_killed_are_free(tmp_path: Path, others: list[Other]) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        host = host_of(box)
        others.append(Other(box, 2))
        with pytest.raises(cores.CoresBusy):
            cores.take(1, host=host, owner="me")
        others[0].kill()
        with cores.take(2, host=host, owner="me") as lease:
            assert lease.ids == (0, 1)
        assert cores.holders(host) == []


def test_tenants_get_disjoint_sets(tmp_path: Path, others: list[Other]) -> None:
    with FakeBox("inf2.24xlarge", tmp_path / "box") as box:
        for index in range(3):
            others.append(Other(box, 4, owner=f"tenant {index}"))
        got = [one for other in others for one in other.said["ids"]]
        assert sorted(got) == list(range(12))
        late = Other(box, 1)
        others.append(late)
        assert "tenant 0" in late.said["busy"]
        assert "tenant 2" in late.said["busy"]


def test_many_at_once_never_share(tmp_path: Path, others: list[Other]) -> None:
    """They start together: whoever loses a core takes the next free ones or says who has them."""
    with FakeBox("inf2.24xlarge", tmp_path / "box") as box:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", TAKE, str(box.root), "3", f"tenant {index}"],
                env=box.environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for index in range(4)
        ]  # fmt: skip
        said = []
        try:
            for process in processes:
                assert process.stdout is not None
                said.append(json.loads(process.stdout.readline()))
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    got = [one for answer in said for one in answer.get("ids", ())]
    assert got
    assert len(got) == len(set(got))


@pytest.mark.parametrize(
    ("shape", "count", "first", "second"),
    [
        ("inf2.24xlarge", 1, (0,), (1,)),
        ("inf2.24xlarge", 2, (0, 1), (2, 3)),
        ("inf2.24xlarge", 3, (0, 1, 2), (4, 5, 6)),  # a device is not split where it need not be
        ("trn1.32xlarge", 8, tuple(range(8)), tuple(range(8, 16))),
        ("trn2.3xlarge", 2, (0, 1), (2, 3)),
        ("trn2.48xlarge", 4, (0, 1, 2, 3), (4, 5, 6, 7)),
    ],
)
def test_neighbours_within_a_device(
    shape: str, count: int, first: tuple[int, ...], second: tuple[int, ...], tmp_path: Path
) -> None:
    with FakeBox(shape, tmp_path / "box") as box:
        host = host_of(box)
        with cores.take(count, host=host, owner="a") as one, cores.take(count, host=host, owner="b") as two:
            assert (one.ids, two.ids) == (first, second)


def test_three_of_a_device_of_four_leave_the_next_device_whole(tmp_path: Path) -> None:
    with FakeBox("trn2.48xlarge", tmp_path / "box") as box:
        host = host_of(box)
        with cores.take(3, host=host, owner="a") as one, cores.take(3, host=host, owner="b") as two:
            assert (one.ids, two.ids) == ((0, 1, 2), (4, 5, 6))


def test_the_same_physical_cores_under_another_grouping_are_taken_too(tmp_path: Path) -> None:
    with FakeBox("trn2.3xlarge", tmp_path / "box") as box:
        pairs, single = host_of(box), host_of(box, NEURON_LOGICAL_NC_CONFIG="1")
        assert (pairs.cores, single.cores) == (4, 8)
        with cores.take([1], host=pairs, owner="pairs"):
            for core in (2, 3):
                with pytest.raises(cores.CoresBusy, match="for pairs"):
                    cores.take([core], host=single, owner="single")
            with cores.take([0, 1], host=single, owner="single"), pytest.raises(cores.CoresBusy, match="for single"):
                cores.take([0], host=pairs, owner="pairs again")


def test_only_visible_cores_are_taken(tmp_path: Path) -> None:
    with FakeBox("inf2.24xlarge", tmp_path / "box") as box:
        host = host_of(box, NEURON_RT_VISIBLE_CORES="5-7")
        with cores.take(2, host=host, owner="a") as lease:
            assert lease.ids == (6, 7)  # of one device
        with cores.take(3, host=host, owner="a") as lease:
            assert lease.ids == (5, 6, 7)
        with pytest.raises(ValueError, match=r"expected 1 to 3 \(NEURON_RT_VISIBLE_CORES\), found 4"):
            cores.take(4, host=host, owner="a")
        with pytest.raises(ValueError, match=r"expected ids among 5-7 .*found \[4\]"):
            cores.take([4], host=host, owner="a")


@pytest.mark.parametrize("wanted", [0, -1, 3, [], [0, 0], [9], True])
def test_what_cannot_be_had_is_refused(wanted: object, tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        host = host_of(box)
        if wanted is True:
            with cores.take(True, host=host, owner="a") as lease:  # a whole number like any other in Python
                assert lease.ids == (0,)
            return
        with pytest.raises(ValueError, match="cores: expected"):
            cores.take(wanted, host=host, owner="a")  # type: ignore[arg-type]


# -- strangers ---------------------------------------------------------------------------------------------------------


def test_a_device_that_a_stranger_is_on_is_busy(tmp_path: Path) -> None:
    with FakeBox("inf2.24xlarge", tmp_path / "box") as box, subprocess.Popen(["sleep", "60"]) as stranger:
        host = host_of(box)
        box.hold([0], pid=stranger.pid, command="python train.py --token=hf_" + "a" * 30, static=False)
        with cores.take(2, host=host, owner="me") as lease:
            assert lease.ids == (2, 3)
        with pytest.raises(cores.CoresBusy) as caught:
            cores.take([1], host=host, owner="me", wait_s=0)
        assert f"pid {stranger.pid} (python train.py --token=[redacted]) is on the device of cores 0-1" in str(
            caught.value
        )
        assert caught.value.holders[0].stranger
        stranger.kill()
        stranger.wait()
        with cores.take([0, 1], host=host, owner="me"):
            pass


def test_a_stranger_that_is_just_ending_is_waited_for(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box, subprocess.Popen(["sleep", "1"]) as ending:
        host = host_of(box)
        box.hold([0, 1], pid=ending.pid, command="server that was stopped", static=False)
        reaper = threading.Thread(target=ending.wait)  # until somebody asks how it ended its id is not free
        reaper.start()
        with cores.take(2, host=host, owner="me", wait_s=60) as lease:
            assert lease.ids == (0, 1)
        reaper.join()


def test_what_a_lease_holder_started_is_no_stranger(tmp_path: Path, others: list[Other]) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box, subprocess.Popen(["sleep", "60"]) as mine:
        host = host_of(box)
        with cores.take([0], host=host, owner="tenant a"):
            box.hold([0], pid=mine.pid, command="server of tenant a", static=False)  # a child of this very process
            assert cores.strangers(host) == []
            with cores.take([1], host=host, owner="tenant b"):
                pass
        mine.kill()


def test_a_tool_that_fails_meanwhile_leaves_what_was_known(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        box.hold([0], pid=1, command="init")
        host = host_of(box)
        box.neuron_ls("crash")
        with pytest.raises(cores.CoresBusy, match="pid 1"):
            cores.take(1, host=host, owner="me", wait_s=0)


# -- what a program is told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vllm", "variable"),
    [("", "NEURON_RT_VISIBLE_CORES"), ("0.13.0", "NEURON_RT_VISIBLE_CORES"), ("0.21.0", "NEURON_VISIBLE_DEVICES"),
     ("0.24.0.1.1.0", "NEURON_VISIBLE_DEVICES"), ("unknown", "NEURON_RT_VISIBLE_CORES")],
)  # fmt: skip
def test_the_variable_is_that_of_the_generation(vllm: str, variable: str, tmp_path: Path) -> None:
    base = {"NEURON_RT_VISIBLE_CORES": "9", "NEURON_VISIBLE_DEVICES": "9", "NEURON_RT_NUM_CORES": "1", "KEPT": "yes"}
    with FakeBox("inf2.24xlarge", tmp_path / "box") as box, cores.take(4, host=host_of(box), owner="me") as lease:
        assert lease.environ(base, vllm=vllm) == {"KEPT": "yes", variable: "0-3"}


def test_grouping_is_said_where_there_is_a_choice(tmp_path: Path) -> None:
    with FakeBox("trn2.3xlarge", tmp_path / "box") as box:
        host = host_of(box, NEURON_LOGICAL_NC_CONFIG="1")
        with cores.take([7], host=host, owner="me") as lease:
            assert lease.environ({"NEURON_RT_VIRTUAL_CORE_SIZE": "2"}) == {
                "NEURON_RT_VISIBLE_CORES": "7", "NEURON_LOGICAL_NC_CONFIG": "1",
            }  # fmt: skip
        lease.release()  # again: nothing happens


def test_lock_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with FakeBox("inf2.xlarge", tmp_path / "box") as box:
        host = host_of(box)
        with cores.take(1, host=host, owner="me"):
            pass
        folder = box.root / "run" / "neuronbench" / "cores"
        (folder / "core-0000.lock").unlink()
        (folder / "core-0000.lock").mkdir()  # root may open what others made, so it has to be worse than that
        with pytest.raises(cores.CoresBusy, match="cannot be used: Is a directory"):
            cores.take([0], host=host, owner="me")
