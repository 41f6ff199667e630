"""`fleet run` with the real script, agent and pytest on local boxes: nothing lost, nothing repeated, nothing left."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aws_stand_in import CAPACITY, DROPPED, LOST, THROTTLED, Request, StandIn
from aws_wire import Answer
from fleet_lab import Desk, Lab
from local_box import until
from neuronbench_fleet import following, runs
from neuronbench_fleet.aws import Aws
from neuronbench_fleet.deployment import find_deployment

from neuronbench.cli import main
from neuronbench.model import Outcome
from neuronbench.receipts import ReceiptStore


def cut_short(aws: StandIn) -> Callable[[Request], Answer]:
    """The object arrives without its end, and the service says that all is well."""

    def act(request: Request) -> Answer:
        told = request.parameters
        aws.client("s3").put_object(Bucket=told["Bucket"], Key=told["Key"], Body=request.body[: len(request.body) // 2])
        return Answer(status=200)

    return act


pytestmark = pytest.mark.timeout(900)  # several starts of pytest on boxes, on a machine that others use, too
ARGS = ("benchmarks", "-m", "fake")


@pytest.fixture
def fleet(local_fleet: Lab) -> Lab:
    return local_fleet


def test_a_run_through_faults_from_its_start_to_its_end(fleet: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    """Throttling, lost answers, a cut upload, a killed agent, a store that is away, a stopped box, a killed desk."""
    aws, gates = fleet.aws, fleet.gates
    id_ = fleet.box(purchase="on-demand")
    box = fleet.boxes[id_]

    # -- the desk: throttled, the answer to SendCommand lost (so it is sent twice), the code cut short on its way up
    aws.fault("ssm", "SendCommand", THROTTLED, times=2)
    aws.fault("ssm", "SendCommand", LOST)
    aws.before("s3", "PutObject", cut_short(aws))
    gates.open(1)
    desk = fleet.run(*ARGS, run="r1", extra=("--after", "terminate"))
    until(lambda: gates.begun[-1:] == [2], "point 2 is begun")
    until(lambda: fleet.measured() == ["custom.tiny-fake-n=1"], "the receipt of point 1 comes home while point 2 runs")
    assert box.commands >= 2
    assert box.kinds("r1").count("boot") == 1  # sent twice, started once
    assert fleet.run(*ARGS, run="r2", extra=("--after", "stop")).wait() == 1
    assert "another run is on its way" in capfd.readouterr().err
    # what was refused leaves no trace on the box: it is still the first one's, to be terminated at its end
    assert {"Key": "neuronbench:run", "Value": "r1"} in aws.instances()[0]["Tags"]
    assert fleet.boxes.on_shutdown[id_] == "terminate"

    # -- the agent is killed: pytest ends with it, the record is closed, the unit starts it again; point 1 is cached
    box.kill_agent()
    until(lambda: gates.begun == [1, 2, 2], "point 2 is begun again")

    # -- the store is away: the point ends, its receipt stays on the disk, and goes when the store is back
    away = aws.fault("s3", "PutObject", DROPPED, times=None)
    gates.open(2)
    until(lambda: gates.begun[-1:] == [3], "point 3 is begun")
    until(lambda: "trouble" in box.kinds("r1") and away.fired > 2, "the agent meets the trouble")
    assert not [receipt for receipt in fleet.measured() if receipt.endswith("n=2")]
    aws.rules.remove(away)
    until(lambda: "custom.tiny-fake-n=2" in fleet.measured(), "the receipt of point 2 comes home")

    # -- the box is stopped in the middle of point 3, and started again
    fleet.boxes.stop(id_)
    assert box.processes() == []
    assert desk.wait() == 7
    said = capfd.readouterr()
    assert f"{id_} is stopped" in said.err
    assert "neuronbench fleet run night --run r1" in said.err
    fleet.boxes.start(id_)
    until(lambda: gates.begun == [1, 2, 2, 3, 3], "point 3 is begun again, by the unit alone")

    # -- a desk of its own process is killed; another one watches to the end
    other = subprocess.Popen(
        [sys.executable, "-m", "neuronbench", *fleet.command("run", "night", "--run", "r1")], cwd=fleet.root,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: box.commands >= 4, "the other desk has sent its command")
    other.kill()
    other.wait()
    last = Desk(*fleet.command("run", "night", "--run", "r1"))
    until(lambda: box.commands >= 5, "the last desk has sent its command")
    gates.open(3)
    assert last.wait() == 0

    # -- nothing is lost, nothing repeated, nothing left
    assert gates.ended == [1, 2, 3]
    assert fleet.measured() == [f"custom.tiny-fake-n={n}" for n in (1, 2, 3)]
    until(lambda: [one["State"]["Name"] for one in aws.instances()] == ["terminated"], "the box ends itself")
    assert box.processes() == []
    here, there = fleet.receipts(fleet.root / "mlruns"), fleet.receipts(box.state("r1") / "mlruns")
    assert here == there
    store = ReceiptStore(fleet.root / "mlruns" / "receipts")
    outcomes = sorted(header.outcome.value for header in store.headers(kind="point"))
    assert outcomes == ["cached"] * 3 + ["interrupted"] * 2 + ["ok"] * 3
    assert all(store.manifest(session).planned for session in store.sessions())
    code = json.loads(box.state("r1").joinpath("run.json").read_text())["environment"]["NEURONBENCH_CODE_SHA256"]
    facts = [receipt.record.environment.facts for receipt in store.iter(outcome=Outcome.OK)]
    assert {(fact["code.sha256"], fact["env.NEURONBENCH_RUN"], fact["git.dirty"]) for fact in facts} == {
        (code, "r1", True)
    }
    assert {"DeleteObject", "DeleteObjects", "CopyObject"}.isdisjoint(aws.operations("s3"))
    writes = [request.parameters for request in aws.requests if request.operation == "PutObject"]
    assert all(write.get("IfNoneMatch") == "*" for write in writes)

    # -- what was printed is in the bucket, in order and once
    capfd.readouterr()
    assert main(list(fleet.command("logs", "night"))) == 0
    told = capfd.readouterr().out
    assert [told.count(f"point {n} waits") for n in (1, 2, 3)] == [1, 2, 2]
    assert "finished: exit status 0" in told
    assert main(list(fleet.command("pull", "r1", "--json"))) == 0
    assert len(json.loads(capfd.readouterr().out)["kept"]) == len(here)


def test_from_up_to_down_with_a_spot_box_that_is_taken_away(fleet: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    aws, gates = fleet.aws, fleet.gates
    aws.gaps.spot_prices.update({("inf2.xlarge", zone): 0.25 for zone in fleet.lab.subnets})
    up = ("up", "night", "--kind", "inf2", "--purchase", "spot", "--max-hours", "3")
    assert main([*fleet.command(*up)]) == 0
    (first,) = [box["InstanceId"] for box in aws.instances("running")]
    gates.open(1)
    desk = fleet.run(*ARGS, extra=("--replace",))
    until(lambda: gates.begun[-1:] == [2], "point 2 is begun")
    (run,) = [path.parent.name for path in (fleet.boxes[first].root / "var/lib/neuronbench").glob("*/run.json")]
    assert main([*fleet.command("status", "night")]) == 0
    assert run in capfd.readouterr().out

    # -- two minutes' notice: the record is closed and sent, then the box is gone; all zones are full for a while
    fleet.boxes.metadata.action = {"action": "terminate", "time": "2026-11-30T04:15:00Z"}
    until(lambda: "suspended" in fleet.boxes[first].kinds(run), "the agent has heard of it")
    until(lambda: fleet.boxes[first].processes() == [], "the agent has sent everything and ended")
    full = aws.fault("ec2", "RunInstances", CAPACITY, times=4)
    fleet.boxes.metadata.action = None
    gates.open(2, 3)
    gates.fail(3)
    fleet.boxes.stop(first, pulled=True, terminate=True)
    assert desk.wait() == 1
    assert full.fired == 4
    said = capfd.readouterr()
    assert "the spot box is taken away (terminate)" in said.out
    assert f"{first} is terminated" in said.err
    assert "receipts of the run were fetched" in said.out

    # -- another box went on: nothing repeated, nothing lost
    (second,) = [box["InstanceId"] for box in aws.instances("running")]
    assert gates.ended == [1, 2]
    assert gates.begun == [1, 2, 2, 3]
    store = ReceiptStore(fleet.root / "mlruns" / "receipts")
    outcomes = [header.outcome.value for header in store.headers(kind="point")]
    assert outcomes == ["ok", "interrupted", "cached", "ok", "failed"]
    events = [fleet.boxes[box].events(run) for box in (first, second)]
    assert events[1][-1]["hours"] > max(event.get("hours", 0.0) for event in events[0])  # all boxes together
    assert fleet.receipts(fleet.root / "mlruns") == fleet.receipts(fleet.boxes[second].state(run) / "mlruns")

    # -- a receipt that was changed in the bucket is refused by name, and the others come
    s3, bucket = aws.client("s3"), fleet.lab.bucket
    keys = [found["Key"] for found in s3.list_objects_v2(Bucket=bucket, Prefix=f"runs/{run}/receipts/")["Contents"]]
    changed = next(key for key in keys if key.endswith("--r1/files/record.json"))
    s3.put_object(Bucket=bucket, Key=changed, Body=b"{}")
    into = str(fleet.root.parent / "elsewhere")
    assert main(list(fleet.command("pull", "night", into=into))) == 8
    named = "/".join(changed.split("/")[3:5])
    assert f"refused: {named}: " in capfd.readouterr().err
    assert set(fleet.receipts(Path(into))) == set(fleet.receipts(fleet.root / "mlruns")) - {named}

    assert main([*fleet.command("down", "night")]) == 0
    assert aws.instances("pending", "running", "stopping", "stopped") == []
    assert [box for box in fleet.boxes if box.processes()] == []


def test_code_with_a_wrong_hash_is_not_run(fleet: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    box = fleet.box()

    def change(request: Request) -> None:
        key = next(
            r.parameters["Key"] for r in fleet.aws.requests if str(r.parameters.get("Key", "")).startswith("code/")
        )
        fleet.aws.client("s3").put_object(Bucket=fleet.lab.bucket, Key=key, Body=b"something else")

    fleet.aws.before("ssm", "SendCommand", change)
    assert fleet.run(*ARGS, run="r1").wait() == 8
    said = capfd.readouterr().err
    assert "nothing of it was run" in said
    assert not list((fleet.boxes[box].root / "opt" / "neuronbench").glob("*.ready"))
    assert fleet.boxes[box].processes() == []


def test_a_desk_that_detaches_and_a_box_whose_time_is_over(
    fleet: Lab, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = fleet.box()
    fleet.gates.open(1)

    def ctrl_c(aws: Aws, seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(following, "pause", ctrl_c)
        assert fleet.run(*ARGS, run="r1").wait() == 130
    said = capfd.readouterr()
    assert f"detached; r1 goes on on {box}" in said.err
    until(lambda: fleet.gates.begun[-1:] == [2], "point 2 is begun, with nobody watching")
    fleet.boxes.metadata.expires = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # the tag was moved
    assert Desk(*fleet.command("run", "night", "--run", "r1")).wait() == 4
    assert "the box has to be gone at" in capfd.readouterr().out
    store = ReceiptStore(fleet.root / "mlruns" / "receipts")
    assert [header.outcome.value for header in store.headers()] == ["ok", "interrupted"]
    assert fleet.receipts(fleet.root / "mlruns") == fleet.receipts(fleet.boxes[box].state("r1") / "mlruns")
    until(lambda: not fleet.boxes[box].processes(), "the agent has ended")
    done = fleet.boxes[box].commands
    assert (
        Desk(*fleet.command("run", "night", "--run", "r1")).wait() == 4
    )  # it is over, and asking again starts nothing
    assert fleet.boxes[box].commands == done + 1
    assert fleet.boxes[box].processes() == []


def test_a_dry_run_prints_every_call_and_makes_none_that_changes_anything(
    fleet: Lab, capfd: pytest.CaptureFixture[str]
) -> None:
    box = fleet.box()
    assert fleet.run(*ARGS, extra=("--dry-run", "--after", "terminate", "--max-usd", "5")).wait() == 0
    said = capfd.readouterr().out
    for call in ("s3 PutObject", "ec2 ModifyInstanceAttribute", "ec2 CreateTags", "ssm SendCommand"):
        assert f"would call  {call}" in said
    assert "5 calls would have been made" in said
    assert f"{box} costs 10 USD/h without disks (2026-11-30, test)" in said
    assert "the run takes at most 5.00 USD in 30 min: --max-usd 5\n" in said
    assert fleet.aws.operations(changes=True) == []
    assert fleet.boxes[box].commands == 0


def test_what_cannot_be_meant_is_said_before_anything_is_sent(fleet: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    assert fleet.run(*ARGS).wait() == 1
    assert "has no box that runs (boxes: none)" in capfd.readouterr().err
    fleet.box(usd_per_hour="")
    for extra, arguments, status, words in (
        (("--max-usd", "5"), ARGS, 2, "nobody knows what an hour of"),
        (("--after", "stop"), ARGS, 2, "is a spot box"),
        (("--max-hour", "3"), ARGS, 2, "did you mean --max-hours?"),
        (("--env", "HF_TOKEN=x"), ARGS, 2, "may be a secret"),
        (("--env", "novalue"), ARGS, 2, "expected NAME=VALUE"),
        (("--env", "PLAIN=https://me:hunter2@example.org"), ARGS, 2, "may be a secret"),
        ((), ("--nb-tracking-uri=https://me:hunter2@example.org",), 2, "may hold a secret"),
        ((), ("-k", "x" * 20_000), 2, "can be sent to a box"),
        (("--require-clean",), ARGS, 1, "differs from its commit"),
        (("--run", "Not A Name"), ARGS, 2, "lower-case letters"),
        ((), ("--nb-data-root=x",), 2, "a folder of its own"),
    ):
        assert fleet.run(*arguments, extra=extra).wait() == status, extra
        said = capfd.readouterr()
        assert words in said.err
        assert "hunter2" not in said.out + said.err
    assert main([*fleet.command("logs", "night")]) == 1
    assert "there is no run 'night'" in capfd.readouterr().err
    assert fleet.aws.operations(changes=True) == []  # not even the code


def test_a_set_up_that_is_interrupted_and_a_run_that_never_began(
    fleet: Lab, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = fleet.box()

    def ctrl_c(aws: Aws, *_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (fleet.root / "serving").mkdir()  # a folder with the name of a word of -k is no place for benchmarks
    with monkeypatch.context() as patch:
        patch.setattr(runs, "await_online", ctrl_c)
        assert fleet.run("-k", "serving", run="r1").wait() == 130
    said = capfd.readouterr()
    assert "pytest benchmarks -k serving" in said.out
    assert f"set up on {box}, where it may start all the same" in said.err
    assert "neuronbench fleet run night --run r1" in said.err
    assert not list((fleet.root.parent / "cache").rglob("code*.tar.gz"))
    monkeypatch.setattr(following, "SILENCE_S", 0.0)
    assert Desk(*fleet.command("logs", "r1", "--follow")).wait() == 7
    assert "no box has it" in capfd.readouterr().err


def test_runs_of_fleets_whose_names_look_alike_are_told_apart(fleet: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    bucket = runs.bucket_of(Aws(), find_deployment(Aws(), "lab"))
    for second, name in enumerate(("night.1", "Night_1", "night-1")):
        asked = runs.Asked(
            run=runs.new_run_id(name, now=dt.datetime(2026, 11, 30, 4, 15, second)), deployment="lab", fleet=name,
            kind="inf2", pytest_args=[], code={}, asked_at=f"2026-11-30T04:15:0{second}+00:00",
        )  # fmt: skip
        runs.write_asked(bucket, asked)
        assert main(list(fleet.command("logs", name))) == 0
        assert asked.run in capfd.readouterr().err
    assert main(list(fleet.command("logs", "night.1"))) == 0
    assert "night-1-20261130-041500" in capfd.readouterr().err
