"""What is refused before AWS is asked anything, and with which words; what a run is said to cost before it starts."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aws_stand_in import Deployed, StandIn
from fleet_project import project
from neuronbench_fleet import checks, estimate
from neuronbench_fleet.boxes import Box
from neuronbench_fleet.costs import Rate
from neuronbench_fleet.errors import UsageError
from neuronbench_fleet.runs import Asked

Fleet = Callable[..., Any]
INF2 = ("up", "night", "--kind", "inf2")
RUN = ("run", "night")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*INF2, "--purchase", "spto"), "expected some of on-demand, spot, block; found 'spto'"),
        ((*INF2, "--purchase", ","), "expected some of on-demand, spot, block"),
        (("up", "night", "--kind", "inf3"), "--kind: expected trn1, trn2, inf2; found 'inf3'"),
        ((*INF2, "--instance-type", "inf2.16xlarge"), "of kind inf2 there are inf2.xlarge, inf2.8xlarge"),
        ((*INF2, "--instance-type", "trn1.2xlarge"), "its kind is trn1, not inf2"),
        ((*INF2, "--zone", "west"), "--zone: expected a zone such as us-west-2a, found 'west'"),
        ((*INF2, "--zone", "us-west-2"), "--zone: expected a zone"),
        ((*INF2, "--zone", "us-east-1a"), "--zone us-east-1a: not in us-west-2"),
        ((*INF2, "--max-hours", "0"), "--max-hours: expected more than 0, found 0"),
        ((*INF2, "--max-usd", "-1"), "--max-usd: expected more than 0"),
        ((*INF2, "--usd-per-hour", "nan"), "--usd-per-hour: expected more than 0"),
        ((*INF2, "--spot-max", "1"), "--spot-max: spot is not among the ways of buying"),
        ((*INF2, "--wait", "soon"), "--wait: expected a time such as 90s"),
        ((*INF2, "--region", "west"), "--region: expected a region such as us-west-2, found 'west'"),
        ((*INF2, "--deployment", "My Lab"), "--deployment: expected 2 to 32 lower-case letters"),
        (("up", "my night", "--kind", "inf2"), "the name of a fleet: expected"),
        (("run", "my night"), "the name of a fleet: expected"),
        ((*RUN, "--run", "R 1"), "lower-case letters"),
        ((*RUN, "--max-hours", "0"), "--max-hours: expected more than 0, found 0"),
        ((*RUN, "--max-usd", "inf"), "--max-usd: expected more than 0"),
        ((*RUN, "--python", "/my python"), "without spaces"),
        ((*RUN, "--env", "novalue"), "expected NAME=VALUE"),
        ((*RUN, "--max-hour", "3"), "did you mean --max-hours?"),
        (("stop", "night", "--run", "R 1"), "lower-case letters"),
        (("stop", "night", "--within", "0x"), "--within: expected a time"),
        (("stop", "my night"), "the name of a fleet: expected"),
        (("down", "my night"), "the name of a fleet: expected"),
        (("status", "my night"), "the name of a fleet: expected"),
        (("logs", "my night"), "the name of a fleet: expected"),
        (("pull", "my night"), "the name of a fleet: expected"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_a_call(
    aws: StandIn, lab: Deployed, fleet: Fleet, words: tuple[str, ...], said: str
) -> None:
    ended = fleet(*words)
    assert (ended.status, aws.operations()) == (2, []), ended
    assert said in ended.err


def test_a_deployments_name_in_the_environment_is_checked_too(
    aws: StandIn, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURONBENCH_DEPLOYMENT", "lab/x")
    ended = fleet("status")
    assert (ended.status, aws.operations()) == (2, [])
    assert "NEURONBENCH_DEPLOYMENT: expected 2 to 32" in ended.err


# -- the set-up --------------------------------------------------------------------------------------------------------

MAKEFILE = "ALL := x\n.PHONY: harness test\n# make other: no\nharness lock: requirements.txt\n\techo other:\n"


@pytest.mark.parametrize(
    ("setup", "makefile", "said"),
    [
        ("make harness", None, "no Makefile is among"),
        ("make", None, "no Makefile is among"),
        ("make other", MAKEFILE, "has no target 'other'"),
        ("make ALL", MAKEFILE, "has no target 'ALL'"),
        ("python3 -m venv .venv && .venv/bin/pip install -r dev.txt", None, "dev.txt is not among the files"),
        ("pip install -r requirements.txt; make other", MAKEFILE, "has no target 'other'"),
        ("make harness", MAKEFILE, ""),
        ("make lock", MAKEFILE, ""),
        ("make X=1 harness", MAKEFILE, ""),
        ("make sub/file", MAKEFILE, ""),
        ("make", MAKEFILE, ""),
        ("python3 -m venv .venv && .venv/bin/pip install -r requirements.txt", None, ""),
        # what only the box can know
        ("make other", MAKEFILE + "include more.mk\n", ""),
        ("make other", MAKEFILE + "%er:\n\ttrue\n", ""),
        ("make other", MAKEFILE + "$(ALL):\n\ttrue\n", ""),
        ("make -C sub other", MAKEFILE, ""),
        ("cd sub && make other", None, ""),
        ("make other || true", None, ""),
        ("make $TARGET", MAKEFILE, ""),
        ("touch dev.txt; pip install -r dev.txt", None, ""),
        ("echo 'a; b' && make other", None, ""),
        ("true", None, ""),
        ("", None, ""),
    ],
)
def test_a_set_up_that_cannot_work_on_the_box(setup: str, makefile: str | None, said: str) -> None:
    shipped = frozenset({"requirements.txt", "sub/file"})
    if not said:
        checks.check_setup(setup, shipped, makefile)
        return
    with pytest.raises(UsageError) as refused:
        checks.check_setup(setup, shipped, makefile)
    assert said in refused.value.message
    assert "--setup" in refused.value.remedy


def test_a_project_without_a_makefile_is_told_so_and_how_before_any_call(
    aws: StandIn, lab: Deployed, fleet: Fleet, tmp_path: Path
) -> None:
    ended = fleet(*RUN)
    assert (ended.status, aws.operations()) == (1, [])
    assert "is in no git checkout" in ended.err
    project(tmp_path)
    ended = fleet(*RUN)
    assert (ended.status, aws.operations()) == (2, [])
    assert "--setup 'make harness': no Makefile is among the files that are shipped" in ended.err
    assert "--setup 'python3 -m venv .venv && .venv/bin/pip install -r requirements.txt'" in ended.err
    (tmp_path / "Makefile").write_text("harness:\n\ttrue\n", encoding="utf-8")
    (tmp_path / ".gitignore").write_text("Makefile\n", encoding="utf-8")
    assert "no Makefile is among" in fleet(*RUN).err  # it is here, and would not be there
    (tmp_path / ".gitignore").write_text("", encoding="utf-8")
    assert "has no box that runs" in fleet(*RUN).err
    (tmp_path / "Makefile").write_text("other:\n\ttrue\n", encoding="utf-8")
    assert "the Makefile has no target 'harness'" in fleet(*RUN).err


# -- what it costs -----------------------------------------------------------------------------------------------------

NOW = dt.datetime(2026, 11, 30, 4, 0, tzinfo=dt.UTC)
BOX = Box(
    id="i-1", fleet="night", kind="trn1", state="running", zone="us-west-2a", instance_type="trn1.32xlarge",
    purchase="on-demand", launched=NOW, ended=None, reason="", expires=NOW + dt.timedelta(hours=8),
    rate=Rate(usd_per_hour=20.0, date="2026-11", source="somebody"), max_usd=None, hours_before=0.0, run="",
    reservation="", spot_request="", token="", tags={},
)  # fmt: skip
ASKED = Asked(run="r1", deployment="lab", fleet="night", kind="trn1", pytest_args=[], code={})


def told(box: Box = BOX, taken: tuple[float, float] = (0.0, 0.0), **asked: Any) -> list[str]:
    return list(estimate.told(dataclasses.replace(ASKED, **asked), box, NOW, region="us-west-2", taken=taken))


def test_a_run_is_said_to_cost_no_more_than_its_first_limit_allows() -> None:
    assert told() == [
        "i-1 costs 20 USD/h without disks (2026-11, somebody)",
        "the run takes at most 160.00 USD in 8 h 00 min: the box has to be gone at 2026-11-30 12:00 UTC",
        "the box stays afterwards and costs on (--after keep): its own end is 2026-11-30 12:00 UTC",
    ]
    assert told(max_hours=2.0, after="terminate")[1:] == [
        "the run takes at most 40.00 USD in 2 h 00 min: --max-hours 2"
    ]
    assert told(max_hours=2.0, max_usd=10.0, after="stop")[1:] == [
        "the run takes at most 10.00 USD in 30 min: --max-usd 10",
        "the box is stopped afterwards (--after stop): its disk goes on costing",
    ]
    again = told(max_hours=2.0, max_usd=50.0, taken=(1.5, 30.0))[1]
    assert again == "the run takes at most 10.00 USD in 30 min: --max-hours 2, of which 1.50 h are gone"
    assert told(max_usd=5.0, taken=(1.5, 30.0))[1].startswith("the run takes at most 0.00 USD in 0 s: --max-usd 5")
    endless = dataclasses.replace(BOX, expires=None)
    assert told(endless)[1:] == [
        "neither the run nor the box has a limit: --max-hours or --max-usd is one",
        "the box stays afterwards and costs on (--after keep): nobody ends it but you",
    ]


def test_why_nobody_knows_what_a_run_costs() -> None:
    lines = told(dataclasses.replace(BOX, rate=None), max_hours=2.0)
    assert lines[0].startswith("what i-1 costs is not known: it was started without a price; no published on_demand")
    assert "price of trn1.32xlarge in us-west-2; known: on_demand 21.5 in us-east-1" in lines[0]
    assert lines[0].endswith("neuronbench fleet up --usd-per-hour")
    assert lines[1] == "the run takes at most 2 h 00 min: --max-hours 2"
    group = told(dataclasses.replace(BOX, rate=None, purchase="asg"))
    assert "without a price. Your word" in group[0]
