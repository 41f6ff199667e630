"""Settings of a deployment: what is read from where, and what is refused with which words."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

import pytest
from neuronbench_infra.__main__ import main
from neuronbench_infra.keys import GENERAL, KINDS, OF_A_KIND, PREFIX, SettingsError, env_name, known_keys
from neuronbench_infra.settings import AMI_PARAMETERS, INSTANCE_TYPES, Settings, read_settings

from neuronbench.catalog.instances import instances

MONEY = {"budget-usd": "200", "budget-mail": "team@example.com"}
CERTIFICATE = f"arn:aws:acm:eu-west-1:{'1' * 12}:certificate/0a"
SERVER = {"tracking-host": "mlflow.example.com", "tracking-certificate": CERTIFICATE, "tracking-cidrs": "10.1.0.0/16"}


def settings(environ: dict[str, str] | None = None, **context: Any) -> Settings:
    given = {key.replace("_", "-"): value for key, value in context.items()}
    return read_settings({PREFIX + key: value for key, value in {**MONEY, **given}.items()}, environ or {})


def refused(environ: dict[str, str] | None = None, **context: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        settings(environ, **context)
    return str(caught.value)


def test_defaults_are_for_no_account_and_stop_what_is_forgotten() -> None:
    found = settings()
    assert (found.deployment, found.account, found.region) == ("neuronbench", None, None)
    assert [box.kind for box in found.boxes] == list(KINDS)
    assert all(box.purchase == "on-demand" and not box.ami for box in found.boxes)
    assert found.tracking is None
    assert 5 <= found.idle_stop_min <= 60
    assert found.max_hours <= 24
    assert found.network.egress_ports == (443,)


def test_default_boxes_are_the_smallest_of_their_kind_in_the_catalogue() -> None:
    for kind, name in INSTANCE_TYPES.items():
        smallest = min((each for each in instances() if each.family == kind), key=lambda each: each.vcpus)
        assert smallest.name == name
    assert set(AMI_PARAMETERS) == set(KINDS)


def test_help_explains_what_it_is_and_every_key_without_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aws_cdk", None)  # an import of it fails
    monkeypatch.setattr(sys, "argv", ["neuronbench_infra", "--help"])
    assert main() == 0
    told = capsys.readouterr().out
    assert told.startswith("python -m neuronbench_infra\n")
    for key, text in {**GENERAL, **{f"KIND-{key}": text for key, text in OF_A_KIND.items()}}.items():
        assert re.search(rf"^  {key} +{re.escape(text)}$", told, flags=re.MULTILINE), key
    assert main(["deploy"]) == 2
    assert "deploy: no arguments are taken" in capsys.readouterr().err


def test_context_goes_before_the_environment_and_that_before_defaults() -> None:
    environ = {
        "NEURONBENCH_INFRA_MAX_HOURS": "5",
        "NEURONBENCH_INFRA_IDLE_STOP_MIN": "10",
        "NEURONBENCH_DEPLOYMENT": "lab",
    }
    found = settings(environ, max_hours=7)
    assert (found.max_hours, found.idle_stop_min, found.deployment) == (7, 10, "lab")
    assert settings({"NEURONBENCH_INFRA_DEPLOYMENT": "b1", "NEURONBENCH_DEPLOYMENT": "lab"}).deployment == "b1"


def test_account_and_region_of_the_command_line_tool_are_taken_unless_others_are_named() -> None:
    environ = {"CDK_DEFAULT_ACCOUNT": "9" * 12, "CDK_DEFAULT_REGION": "us-west-2"}
    assert (settings(environ).account, settings(environ).region) == ("9" * 12, "us-west-2")
    assert settings(environ, region="sa-east-1").region == "sa-east-1"


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("budgt-usd", "budget-usd"), ("trn3-instance-type", "trn2-instance-type"), ("idle-stop-mins", "idle-stop-min")],
)
def test_a_misspelt_name_is_an_error_that_knows_the_right_one(wrong: str, near: str) -> None:
    assert f"did you mean {PREFIX}{near}?" in refused(**{wrong: "1"}) or "trn" in near
    text = refused({env_name(wrong): "1"})
    assert env_name(wrong) in text
    assert "did you mean NEURONBENCH_INFRA_" in text


@pytest.mark.parametrize("name", ["nueronbench:max-hours", "neuronbench-infra:max-hours", "max-hours"])
def test_a_misspelt_prefix_is_an_error_too(name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: .*did you mean neuronbench:max-hours"):
        read_settings({**{PREFIX + key: value for key, value in MONEY.items()}, name: "2"}, {})


def test_names_of_others_are_left_alone() -> None:
    others = {"@aws-cdk/core:newStyle": True, "availability-zones:account=1:region=x": ["a"], "team:azs": "x"}
    assert read_settings({**{PREFIX + key: value for key, value in MONEY.items()}, **others}, {}).network.azs == ()


def test_errors_say_how_to_set_it() -> None:
    text = refused(max_hours="a day")
    assert "expected a whole number from 1 to 336, found 'a day'" in text
    assert "-c neuronbench:max-hours=" in text
    assert "NEURONBENCH_INFRA_MAX_HOURS=" in text


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({"budget_usd": ""}, "dollars a month, or `none`"),
        ({"budget_usd": "0"}, "dollars a month"),
        ({"budget_usd": "ten"}, "found 'ten'"),
        ({"budget_mail": ""}, "who is told when money runs out"),
        ({"budget_mail": "nobody"}, "addresses"),
        ({"budget_usd": "none"}, "an amount, since budget-mail"),
        ({"trn2_purchase": "capacity-block"}, "trn2-reservation: expected the Capacity Block's reservation"),
        ({"trn2_reservation": "cr-0123456789abcdef0"}, "capacity-block, since trn2-reservation is set"),
        (
            {"inf2_purchase": "capacity-block", "inf2_reservation": "cr-0123456789abcdef0"},
            "no Capacity Blocks are sold",
        ),
        ({"trn2_max": 3}, "asg, since trn2-max is set"),
        ({"trn2_purchase": "spot"}, "on-demand or capacity-block or asg"),
        ({"inf2_instance_type": "trn1.2xlarge"}, "one of inf2.xlarge, inf2.8xlarge"),
        ({"inf2_instance_type": "inf2.huge"}, "found 'inf2.huge'"),
        ({"inf2_ami": "latest"}, "an id such as ami-0"),
        ({"inf2_ami": "ami-0123456789abcdef0", "inf2_ami_parameter": "/aws/x"}, "nothing, since inf2-ami pins one"),
        ({"inf2_disk_gib": 20}, "a whole number from 120"),
        ({"inf2_disk_mib_s": 1000, "inf2_disk_iops": 3000}, "4000 or more for 1000 MiB/s"),
        ({"inf2_az": "us-west-2a"}, "one of azs (which is not set)"),
        ({"kinds": "inf2", "trn1_disk_gib": 500}, "leaves trn1 out"),
        ({"kinds": "gpu"}, "expected trn1, trn2, inf2"),
        ({"kinds": "inf2,inf2"}, "each only once"),
        ({"vpc_id": "vpc-0123456789abcdef0"}, "subnets of the VPC"),
        ({"subnet_ids": "subnet-0123456789abcdef0"}, "needs neuronbench:vpc-id too"),
        ({"vpc_id": "vpc-01234567", "subnet_ids": "subnet-01234567,subnet-01234568", "azs": "us-west-2a"}, "2 subnets"),
        ({"azs": "us-west-2a,us-west-2b", "zones": 2}, "azs says it already"),
        ({"azs": "us-west-2a,us-west-2b", "region": "us-east-1"}, "zones of us-east-1, the region that is deployed to"),
        (
            {**SERVER, "region": "us-east-1"},
            "one in us-east-1, the region that is deployed to, found 'one in eu-west-1'",
        ),
        ({"egress_ports": "80"}, "443 among them"),
        ({"egress_ports": "443,70000"}, "1 to 65535"),
        ({"account": "12"}, "twelve digits"),
        ({"deployment": "My Lab"}, "lower-case letters"),
        ({"tracking_cidrs": "10.0.0.0/8"}, "tracking-host is not, so there is no server"),
        ({**SERVER, "tracking-certificate": ""}, "logins go over it"),
        ({**SERVER, "tracking-cidrs": ""}, "networks that may reach the server"),
        ({**SERVER, "tracking-cidrs": "0.0.0.0/0"}, "tracking-open=true if it is really meant"),
        ({**SERVER, "tracking-cidrs": "10.0.0.1/8"}, "host bits"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(context: dict[str, Any], words: str) -> None:
    assert words in refused(**context)


def test_the_whole_internet_is_let_in_only_when_that_is_said() -> None:
    found = settings(**{**SERVER, "tracking-cidrs": "0.0.0.0/0", "tracking-open": "true"})
    assert found.tracking is not None
    assert found.tracking.cidrs == ("0.0.0.0/0",)


def test_no_budget_has_to_be_asked_for() -> None:
    assert settings(budget_usd="none", budget_mail="").budget is None


def test_every_key_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from neuronbench_infra.keys import Source

    asked: set[str] = set()
    text = Source.text

    def noting(self: Source, key: str, default: str = "") -> str:
        asked.add(key)
        return text(self, key, default)

    monkeypatch.setattr(Source, "text", noting)
    settings(**SERVER)
    settings(**SERVER, **{"tracking-open": "true"})
    open_only = {"tracking-open"}  # looked at only when a network is wide
    assert known_keys().keys() - asked <= open_only


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().max_hours = 99  # type: ignore[misc]
