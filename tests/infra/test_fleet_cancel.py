"""`fleet stop --run`: a run ends in order, its box stays; also where the agent is killed meanwhile, and said twice."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import pytest
from aws_stand_in import DROPPED, LOST
from fleet_lab import Desk, Lab
from local_box import until
from neuronbench_fleet import runs
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.deployment import find_deployment

from neuronbench.cli import main
from neuronbench.receipts import ReceiptStore

pytestmark = pytest.mark.timeout(900)  # several starts of pytest on boxes, on a machine that others use, too
PATIENT = ("--within", "9h")
"""Of a clock that runs fast in tests."""


@pytest.fixture
def fleet(local_fleet: Lab) -> Lab:
    return local_fleet


def stop(fleet: Lab, run: str, *more: str) -> Desk:
    return Desk(*fleet.command("stop", "night", "--run", run, *more))


def asked_for(fleet: Lab, run: str) -> None:
    """As `fleet run` leaves it in the bucket before anything is on a box."""
    asked = runs.Asked(run=run, deployment="lab", fleet="night", kind="inf2", pytest_args=[], code={})
    runs.write_asked(runs.bucket_of(Aws(), find_deployment(Aws(), "lab")), asked)


def test_a_run_is_cancelled_twice_while_its_agent_is_killed_in_the_middle(
    fleet: Lab, capfd: pytest.CaptureFixture[str]
) -> None:
    aws, gates = fleet.aws, fleet.gates
    id_ = fleet.box(purchase="on-demand")
    box = fleet.boxes[id_]
    gates.open(1)
    desk = fleet.run("benchmarks", "-m", "fake", run="r1", extra=("--after", "terminate"))
    until(lambda: gates.begun == [1, 2], "point 2 is begun")

    # -- pytest cannot end yet: it is held; the agent asks it to, and is killed before it does
    pytest_pid = json.loads((box.state("r1") / "child.json").read_text())["pid"]
    os.kill(pytest_pid, signal.SIGSTOP)
    aws.fault("ssm", "SendCommand", LOST)  # so it is sent twice
    first = stop(fleet, "r1", *PATIENT)
    until(lambda: "stopping" in box.kinds("r1"), "the agent asks pytest to end")
    second = stop(fleet, "r1", *PATIENT)
    until(lambda: box.commands >= 4, "it is said again")
    box.kill_agent()

    # -- the next agent finds it cancelled; the store is away, and it is killed once more
    away = aws.fault("s3", "PutObject", DROPPED, times=None)
    os.kill(pytest_pid, signal.SIGCONT)
    until(lambda: (box.state("r1") / "ended.json").exists(), "the run has ended, and is not sent yet")
    box.kill_agent()
    until(lambda: box.kinds("r1").count("boot") == 3, "the third agent is there")
    aws.rules.remove(away)
    assert [first.wait(), second.wait(), desk.wait()] == [0, 0, 12]
    said = capfd.readouterr()
    assert "r1 is cancelled: exit status 2, cancelled by " in said.out
    assert f"{id_} stays and costs on" in said.out

    # -- in order: the open record is closed, all is sent, and it is over; the box stays, though it was to be terminated
    assert gates.ended == [1]
    store = ReceiptStore(fleet.root / "mlruns" / "receipts")
    assert [header.outcome.value for header in store.headers(kind="point")] == ["ok", "interrupted"]
    assert fleet.receipts(fleet.root / "mlruns") == fleet.receipts(box.state("r1") / "mlruns")
    done = json.loads((box.state("r1") / "done.json").read_text())
    assert (done["reason"], done["exit_code"]) == ("cancelled", 2)
    (finished,) = [event for event in box.events("r1") if event["kind"] == "finished"]
    assert (finished["reason"], finished["after"], finished["refused"]) == ("cancelled", "keep", {})
    until(lambda: not box.processes(), "the unit has ended")
    assert [one["State"]["Name"] for one in aws.instances()] == ["running"]
    assert not (box.root / "shutdown-asked").exists()

    # -- said once more, asked to go on, and at the next start of the box: it is over
    assert main([*fleet.command("stop", "night", "--run", "r1", "--json")]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["outcome"], told["reason"], told["boxes"], told["receipts"]) == ("over", "cancelled", [], 2)
    assert main([*fleet.command("stop", "night", "--run", "r1")]) == 0
    assert "r1 is over already: exit status 2, cancelled by" in capfd.readouterr().out
    assert Desk(*fleet.command("run", "night", "--run", "r1")).wait() == 12
    assert main([*fleet.command("status", "night")]) == 0
    assert "r1: finished (cancelled by" in " ".join(capfd.readouterr().out.split())
    fleet.boxes.stop(id_)
    fleet.boxes.start(id_)
    assert box.processes() == []
    assert gates.begun == [1, 2]
    assert main([*fleet.command("down", "night")]) == 0


def test_a_run_that_is_on_no_box(fleet: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    assert stop(fleet, "r1").wait() == 1
    assert "there is no run 'r1' in s3://lab-results" in capfd.readouterr().err
    asked_for(fleet, "r1")
    assert Desk(*fleet.command("stop", "other", "--run", "r1")).wait() == 2
    assert "is a run of the fleet 'night', not of 'other'" in capfd.readouterr().err
    assert stop(fleet, "r1").wait() == 0
    assert "r1 goes on nowhere: no box of night has it" in capfd.readouterr().out
    id_ = fleet.box(purchase="on-demand", run="r1")
    assert stop(fleet, "r1", "--dry-run").wait() == 0
    said = capfd.readouterr().out
    assert "would call  ssm SendCommand" in said
    assert "nothing was changed" in said
    assert (fleet.boxes[id_].commands, fleet.aws.operations("ssm", changes=True)) == (0, [])
    assert stop(fleet, "r1").wait() == 0  # it was never sent there
    said = capfd.readouterr().out
    assert f"{id_}: neuronbench: there is no run r1 on this box" in said
    assert "r1 goes on nowhere" in said
    fleet.boxes[id_].state("r1").mkdir(parents=True)
    assert stop(fleet, "r1").wait() == 0  # its set-up has failed, say
    assert "run r1 was never started on this box" in capfd.readouterr().out
    fleet.boxes.stop(id_)
    assert stop(fleet, "r1").wait() == 1
    said = capfd.readouterr().err
    assert f"r1 is not finished on {id_}, stopped: started again, it goes on by itself" in said
    assert "neuronbench fleet up night" in said


def test_a_run_that_is_cancelled_while_it_is_set_up_ends_when_that_is_done(
    fleet: Lab, capfd: pytest.CaptureFixture[str]
) -> None:
    id_ = fleet.box(purchase="on-demand")
    box, gate = fleet.boxes[id_], fleet.root.parent / "set-up-is-done"
    held = f'touch "{gate}.begun"; until [ -e "{gate}" ]; do sleep 0.05; done'
    own = ("--setup", held, "--python", sys.executable, "--run", "r1")
    desk = Desk(*fleet.command("run", "night", *own), "--", "benchmarks", "-m", "fake")
    until(lambda: gate.with_name(f"{gate.name}.begun").exists(), "the set-up is begun")
    assert stop(fleet, "r1", "--within", "1s").wait() == 1
    said = capfd.readouterr()
    assert "run r1 is still being set up: it ends as soon as that is done" in said.out
    assert "r1 was asked to end and has not after " in said.err
    assert f": {id_} (nothing heard yet)\n" in said.err
    words = (box.state("r1") / "cancel.json").read_text()
    gate.touch()
    assert desk.wait() == 12
    assert fleet.gates.begun == []  # pytest was never started
    assert "started" not in box.kinds("r1")
    capfd.readouterr()
    assert stop(fleet, "r1", "--json").wait() == 0
    assert json.loads(capfd.readouterr().out)["outcome"] == "over"
    assert (box.state("r1") / "cancel.json").read_text() == words  # whose word came first stays


def test_a_box_that_goes_away_before_the_run_has_ended(fleet: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    asked_for(fleet, "r1")
    id_ = fleet.box(purchase="on-demand", run="r1")
    box = fleet.boxes[id_]
    box.state("r1").mkdir(parents=True)
    unit = box.root / "etc" / "systemd" / "system" / "neuronbench-run-r1.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("ExecStart=/bin/true\nWorkingDirectory=/\n", encoding="utf-8")  # an agent that says nothing
    ended = stop(fleet, "r1", *PATIENT)
    until(lambda: (box.state("r1") / "cancel.json").exists(), "the box is told")
    threading.Thread(target=lambda: fleet.boxes.stop(id_, terminate=True), daemon=True).start()
    assert ended.wait() == 1
    said = capfd.readouterr().err
    assert f"{id_} is terminated, before r1 had ended there" in said
    assert "neuronbench fleet pull r1" in said
