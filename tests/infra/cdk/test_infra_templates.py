"""Templates of every stack for every way to set a deployment up: made once, offline, and judged by rules."""

from __future__ import annotations

import ast
import base64
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from iam_judge import PSEUDO, allowed, settled
from neuronbench_fleet.boxes import checked_name
from neuronbench_fleet.capacity import Candidate, Limits, Order
from neuronbench_fleet.deployment import find_box, find_deployment, find_tracking
from neuronbench_fleet.errors import AwsError, Trouble
from neuronbench_fleet.launch import request
from neuronbench_infra import keys

pytestmark = pytest.mark.timeout(600)
SOURCES = Path(keys.__file__).parent
MONEY = {"budget-usd": "200", "budget-mail": "team@example.com"}
SERVER = {
    "tracking-host": "mlflow.example.com",
    "tracking-certificate": f"arn:aws:acm:us-west-2:{'1' * 12}:certificate/0a0b",
    "tracking-cidrs": "10.1.0.0/16,192.168.7.0/24",
}
HERE = {"account": "2" * 12, "region": "us-west-2", "azs": "us-west-2a,us-west-2b"}
CONTEXTS: Mapping[str, Mapping[str, str]] = {
    "plain": MONEY,
    "full": {**MONEY, **SERVER, **HERE, "egress": "nat", "tracking-multi-az": "true"},
    "group": {
        **MONEY, **SERVER, **HERE, "trn2-purchase": "asg", "trn2-max": "3", "trn2-az": "us-west-2b",
        "inf2-ami": "ami-0123456789abcdef0", "tracking-scheme": "internet-facing", "tracking-cidrs": "0.0.0.0/0",
        "tracking-open": "true", "tracking-zone-id": "Z0123456789ABC", "tracking-image": "example.com/mlflow:1",
    },
    "block": {
        **MONEY, **SERVER, "budget-scope": "tag", "kinds": "trn2,trn1", "trn2-purchase": "capacity-block",
        "trn2-reservation": "cr-0123456789abcdef0", "vpc-id": "vpc-01234567", "on-shutdown": "terminate",
        "subnet-ids": "subnet-01234567,subnet-01234568", "private-subnet-ids": "subnet-11234567,subnet-11234568",
        "azs": "sa-east-1a,sa-east-1b", "trn1-disk-gib": "300",
    },
    "bare": {"budget-usd": "none", "kinds": "inf2", "deployment": "lab", "egress-ports": "443,80", "zones": "2"},
}  # fmt: skip
Template = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def node() -> Iterator[None]:
    """What the CDK runs in. Where it is old, jsii says so at length on the error output; that is silenced."""
    if shutil.which("node") is None:
        assert not os.environ.get("NEURONBENCH_NODE_REQUIRED"), "node is not installed"
        pytest.skip("node is not installed; the CDK needs it to make templates")
    with pytest.MonkeyPatch.context() as patch:
        version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
        patch.setenv("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", version.lstrip("v").partition(".")[0])
        patch.setenv("JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION", "1")
        patch.setenv("JSII_SILENCE_WARNING_DEPRECATED_NODE_VERSION", "1")
        yield


@pytest.fixture(scope="module")
def assemblies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folder of templates by context."""
    made: dict[str, Path] = {}
    with pytest.MonkeyPatch.context() as patch:
        # The CDK's own validation asks what cfn-lint asks below, and takes ten seconds of a processor more. It is node
        # that looks at this, and node is started by the import.
        patch.setenv("CDK_VALIDATION", "false")
        from neuronbench_infra.app import make_app

        for name, context in CONTEXTS.items():
            made[name] = tmp_path_factory.mktemp(name)
            make_app({keys.PREFIX + key: value for key, value in context.items()}, {}, outdir=str(made[name])).synth()
    return made


@pytest.fixture(scope="module")
def templates(assemblies: dict[str, Path]) -> dict[tuple[str, str], Template]:
    """Template by context and stack (without the deployment's name)."""
    return {
        (name, path.name.partition(".")[0].partition("-")[2]): json.loads(path.read_text())
        for name, folder in assemblies.items()
        for path in sorted(folder.glob("*.template.json"))
    }


def resources(template: Template, kind: str) -> dict[str, Any]:
    """Properties by logical id of the resources of a type."""
    return {
        name: each.get("Properties", {}) for name, each in template["Resources"].items() if each["Type"] == kind
    }  # fmt: skip


def everywhere(templates: dict[tuple[str, str], Template], kind: str) -> list[tuple[str, Any]]:
    found = [
        (f"{context}/{stack}/{name}", properties)
        for (context, stack), template in templates.items()
        for name, properties in resources(template, kind).items()
    ]
    assert found, kind
    return found


def statements(policy: Any) -> list[dict[str, Any]]:
    return list(policy["PolicyDocument" if "PolicyDocument" in policy else "KeyPolicy"]["Statement"])


def several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def text_of(value: Any) -> str:
    """A value with what is only known when deployed as `${...}`."""
    if isinstance(value, dict) and "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return str(separator).join(map(text_of, parts))
    if isinstance(value, dict) and len(value) == 1:
        ((kind, told),) = value.items()
        return "${" + (told if kind == "Ref" else ".".join(map(str, several(told)))) + "}"
    return str(value)


# -- the whole -----------------------------------------------------------------------------------------------------


def test_stacks_of_every_context(templates: dict[tuple[str, str], Template]) -> None:
    found = {context: sorted(stack for name, stack in templates if name == context) for context in CONTEXTS}
    assert found == {
        "plain": ["base", "inf2", "trn1", "trn2"],
        "full": ["base", "inf2", "tracking", "trn1", "trn2"],
        "group": ["base", "inf2", "tracking", "trn1", "trn2"],
        "block": ["base", "tracking", "trn1", "trn2"],
        "bare": ["base", "inf2"],
    }


def test_cdk_nag_finds_nothing_that_is_not_explained(assemblies: dict[str, Path]) -> None:
    from neuronbench_infra.rules import findings

    assert {name: found for name, folder in assemblies.items() if (found := findings(folder))} == {}
    reports = [path for folder in assemblies.values() for path in folder.glob("AwsSolutions-*NagReport.csv")]
    assert len(reports) == sum(len(list(folder.glob("*.template.json"))) for folder in assemblies.values())
    assert any("Compliant" in path.read_text() for path in reports), "no rule was tried"


def test_findings_are_found(tmp_path: Path) -> None:
    from neuronbench_infra.rules import findings

    stack = {"type": "aws:cloudformation:stack", "additionalMetadataFile": "s.json"}
    (tmp_path / "manifest.json").write_text(json.dumps({"artifacts": {"s": stack}}))
    (tmp_path / "s.json").write_text(json.dumps({"/s/B": [{"type": "aws:cdk:error", "data": "AwsSolutions-S1"}]}))
    assert findings(tmp_path) == ["s: /s/B: AwsSolutions-S1"]


def test_exceptions_are_few_and_explained(templates: dict[tuple[str, str], Template]) -> None:
    given: dict[str, set[str]] = {}
    for (_, stack), template in templates.items():
        for name, each in template["Resources"].items():
            for rule in each.get("Metadata", {}).get("cdk_nag", {}).get("rules_to_suppress", ()):
                assert len(rule["reason"]) > 30, (name, rule)
                given.setdefault(rule["id"].removeprefix("AwsSolutions-"), set()).add(stack)
    assert given == {
        "IAM5": {"base", "tracking"},  # objects below prefixes, services without resources: each listed
        "S1": {"base"},  # the log bucket logs not to itself
        "SMG4": {"tracking"},  # MLflow keeps its logins itself
        "RDS3": {"tracking"}, "RDS11": {"tracking"},
        "ECS2": {"tracking"},  # names, no secrets
        "EC23": {"tracking"},  # only where the whole internet was asked for
    }  # fmt: skip


IGNORED_BY_LINT = {
    "W3005": "the CDK names some dependencies twice",
    "W3010": "zones are named because they were asked for by name",
    "W3691": "`17` stands for the newest minor version; the table of cfn-lint has whole versions only",
    "E3628": "the table of cfn-lint does not know where trn2.3xlarge is sold",
}


def test_cfn_lint_has_nothing_to_say(templates: dict[tuple[str, str], Template], tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "cfn-lint"
    if not program.exists():
        pytest.skip("cfn-lint is not installed; `make harness` installs it")
    texts = {
        json.dumps(each, sort_keys=True): "-".join(name)
        for name, each in templates.items()
        # All kinds of resources with all that they can have; linting a base takes three seconds.
        if name in {("full", "base"), ("group", "inf2"), ("group", "trn2"), ("group", "tracking"), ("block", "trn2")}
    }
    for text, name in texts.items():
        (tmp_path / f"{name}.json").write_text(text)
    done = subprocess.run(
        [program, "--regions", "us-west-2", "--ignore-checks", *IGNORED_BY_LINT, "--template", *tmp_path.glob("*")],
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[:4000] + done.stderr[:4000]


def test_nothing_is_hard_wired() -> None:
    """No id of an account, image, network or anything else: in no file of the application, nor in cdk.json."""
    ids = re.compile(r"\b\d{12}\b|\b(ami|i|subnet|vpc|sg|lt|cr|vol|eni|igw|rtb)-[0-9a-f]{8,17}\b|\bAKIA[0-9A-Z]{16}\b")
    files = [path for path in SOURCES.parent.rglob("*") if path.suffix in (".py", ".json", ".sh", ".md", ".toml")]
    files = [path for path in files if "cdk.out" not in path.parts and "node_modules" not in path.parts]
    assert len(files) > 15
    regions = re.compile(r"\b(us|eu|ap|sa|ca)-(east|west|north|south|central|northeast|southeast)-\d[a-z]?\b")
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not ids.search(text), path
        if path.is_relative_to(SOURCES):
            assert not regions.search(text), path


def test_without_an_account_templates_fit_any(templates: dict[tuple[str, str], Template]) -> None:
    for context in ("plain", "bare"):
        for (name, _), template in templates.items():
            if name == context:
                assert not re.search(r"\b\d{12}\b", json.dumps(template).replace(SERVER["tracking-certificate"], ""))


# -- buckets ---------------------------------------------------------------------------------------------------------


def test_every_bucket_is_private_versioned_encrypted_logged_and_kept(
    templates: dict[tuple[str, str], Template],
) -> None:
    for template in templates.values():
        for name, each in template["Resources"].items():
            if each["Type"] != "AWS::S3::Bucket":
                continue
            bucket = each["Properties"]
            assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}, name
            assert len(bucket["PublicAccessBlockConfiguration"]) == 4
            assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
            (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
            expected = "AES256" if name.startswith("Logs") else "aws:kms"
            assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == expected
            assert ("LoggingConfiguration" in bucket) is not name.startswith("Logs")
            assert bucket["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
            assert (each["DeletionPolicy"], each["UpdateReplacePolicy"]) == ("Retain", "Retain")
            assert "AccessControl" not in bucket
            rules = bucket["LifecycleConfiguration"]["Rules"]
            assert any("AbortIncompleteMultipartUpload" in rule for rule in rules)
            if not name.startswith("Logs"):
                assert not any("ExpirationInDays" in rule for rule in rules), "what was measured does not expire"


def test_every_bucket_refuses_what_is_not_tls_and_lets_nobody_else_in(
    templates: dict[tuple[str, str], Template],
) -> None:
    for template in templates.values():
        guarded = {
            text_of(policy["Bucket"]): policy for policy in resources(template, "AWS::S3::BucketPolicy").values()
        }
        assert set(guarded) == {"${" + name + "}" for name in resources(template, "AWS::S3::Bucket")}
        for policy in guarded.values():
            said = statements(policy)
            assert any(
                each["Effect"] == "Deny"
                and each["Principal"] == {"AWS": "*"}
                and each["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
                for each in said
            )
            for each in said:
                if each["Effect"] == "Allow":  # only services that deliver logs
                    assert set(each["Principal"]) == {"Service"}, each
                    assert each["Action"] in ("s3:PutObject", "s3:GetBucketAcl", ["s3:GetBucketAcl", "s3:ListBucket"])


def test_no_object_is_ever_put_over_another_and_boxes_delete_nothing(
    templates: dict[tuple[str, str], Template],
) -> None:
    for context in CONTEXTS:
        base = templates[context, "base"]
        said = {
            each.get("Sid"): each
            for policy in resources(base, "AWS::S3::BucketPolicy").values()
            for each in statements(policy)
        }
        once = said["WriteOnce"]
        assert (once["Effect"], once["Principal"], once["Action"]) == ("Deny", {"AWS": "*"}, "s3:PutObject")
        assert once["Condition"] == {
            "Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"},
        }  # fmt: skip
        prefixes = {text_of(each).partition("}/")[2] for each in once["Resource"]}
        assert prefixes == {"code/*", "runs/*", "weights/*", "caches/*"}
        history = said["BoxesKeepHistory"]
        assert history["Effect"] == "Deny"
        assert "BoxRole" in json.dumps(history["Principal"])
        assert {"s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutBucketVersioning"} <= set(history["Action"])


# -- network ---------------------------------------------------------------------------------------------------------


def test_nobody_comes_in_but_to_the_tracking_servers_balancer(templates: dict[tuple[str, str], Template]) -> None:
    for (context, stack), template in templates.items():
        for name, group in resources(template, "AWS::EC2::SecurityGroup").items():
            inward = group.get("SecurityGroupIngress", [])
            if stack == "tracking" and name.startswith("Balancer"):
                asked = CONTEXTS[context]["tracking-cidrs"].split(",")
                assert [(each["CidrIp"], each["FromPort"], each["ToPort"]) for each in inward] == [
                    (cidr, 443, 443) for cidr in asked
                ]
            else:
                assert inward == [], (context, name)
        for name, rule in resources(template, "AWS::EC2::SecurityGroupIngress").items():
            assert stack == "tracking", name
            assert "CidrIp" not in rule, "from a security group, never from addresses"
            assert rule["SourceSecurityGroupId"]
            assert (rule["FromPort"], rule["ToPort"]) in ((5000, 5000), (5432, 5432))


def test_boxes_reach_what_was_said_and_nothing_else(templates: dict[tuple[str, str], Template]) -> None:
    for context, settings in CONTEXTS.items():
        (boxes,) = resources(templates[context, "base"], "AWS::EC2::SecurityGroup").values()
        ports = [(each["IpProtocol"], each["FromPort"], each["ToPort"]) for each in boxes["SecurityGroupEgress"]]
        assert ports == [("tcp", int(port), int(port)) for port in settings.get("egress-ports", "443").split(",")]


def test_a_new_vpc_has_a_way_to_s3_and_a_log_of_flows(templates: dict[tuple[str, str], Template]) -> None:
    for context, settings in CONTEXTS.items():
        base = templates[context, "base"]
        own = "vpc-id" not in settings
        assert len(resources(base, "AWS::EC2::VPC")) == own
        assert len(resources(base, "AWS::EC2::FlowLog")) == own
        assert len(resources(base, "AWS::EC2::VPCEndpoint")) == own
        assert len(resources(base, "AWS::EC2::NatGateway")) == (settings.get("egress") == "nat")
        if settings.get("egress") == "nat":
            public = resources(base, "AWS::EC2::Subnet").values()
            assert not any(subnet["MapPublicIpOnLaunch"] for subnet in public)


def test_zones_without_names_are_the_first_of_the_region(templates: dict[tuple[str, str], Template]) -> None:
    zones = {
        json.dumps(each["AvailabilityZone"])
        for each in resources(templates["bare", "base"], "AWS::EC2::Subnet").values()
    }
    assert zones == {json.dumps({"Fn::Select": [number, {"Fn::GetAZs": ""}]}) for number in (0, 1)}
    named = resources(templates["full", "base"], "AWS::EC2::Subnet").values()
    assert {each["AvailabilityZone"] for each in named} == {"us-west-2a", "us-west-2b"}


# -- rights ----------------------------------------------------------------------------------------------------------

WITHOUT_RESOURCES = {
    # what AWS cannot limit by resource, by who may do it
    "GuardRole": {"ec2:DescribeInstances", "autoscaling:DescribeAutoScalingGroups"},
    "BoxRole": {
        "ec2messages:AcknowledgeMessage", "ec2messages:DeleteMessage", "ec2messages:FailMessage",
        "ec2messages:GetEndpoint", "ec2messages:GetMessages", "ec2messages:SendReply", "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel", "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
    },
    "TaskExecutionRole": {"ecr:GetAuthorizationToken"},
    "Operator": {
        "ec2:DescribeCapacityBlockOfferings", "ec2:DescribeCapacityReservations", "ec2:DescribeImages",
        "ec2:DescribeInstanceStatus", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeInstances",
        "ec2:DescribeSpotInstanceRequests", "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets",
        "ec2:DescribeVolumes", "ssm:DescribeInstanceInformation", "ssm:GetCommandInvocation",
        "autoscaling:DescribeAutoScalingGroups",
    },
    "Buyer": {"ec2:PurchaseCapacityBlock"},
}  # fmt: skip


def test_no_right_is_wider_than_it_must_be(templates: dict[tuple[str, str], Template]) -> None:
    policies = [*everywhere(templates, "AWS::IAM::Policy"), *everywhere(templates, "AWS::IAM::ManagedPolicy")]
    for where, policy in policies:
        role = where.rpartition("/")[2].partition("DefaultPolicy")[0]
        wide = next((actions for name, actions in WITHOUT_RESOURCES.items() if role.startswith(name)), set())
        for each in statements(policy):
            actions = set(several(each["Action"]))
            assert not any("*" in action for action in actions), (where, actions)
            if "*" in several(each["Resource"]):
                assert actions <= wide, where
    for where, role_ in everywhere(templates, "AWS::IAM::Role"):
        assert "ManagedPolicyArns" not in role_, f"{where}: AWS's own policies are wide"
        for each in role_["AssumeRolePolicyDocument"]["Statement"]:
            assert set(each["Principal"]) == {"Service"}, where
    assert not [name for name, each in templates.items() if resources(each, "AWS::IAM::User")]


def test_a_box_may_do_exactly_this(templates: dict[tuple[str, str], Template]) -> None:
    for context in CONTEXTS:
        policies = resources(templates[context, "base"], "AWS::IAM::Policy")
        (policy,) = [each for name, each in policies.items() if name.startswith("BoxRole")]
        said = {each["Sid"]: each for each in statements(policy)}
        assert set(said) == {"Sessions", "Read", "Add", "List", "Key"}
        under = {
            sid: {text_of(each).partition("}/")[2] for each in several(said[sid]["Resource"])}
            for sid in ("Read", "Add")
        }
        assert said["Read"]["Action"] == "s3:GetObject"
        assert under["Read"] == {"code/*", "runs/*", "weights/*", "caches/*"}
        assert said["Add"]["Action"] == ["s3:AbortMultipartUpload", "s3:ListMultipartUploadParts", "s3:PutObject"]
        assert under["Add"] == {"runs/*", "weights/*", "caches/*"}
        assert said["List"]["Action"] == ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
        assert said["Key"]["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
        everything = json.dumps(said)
        assert "Delete" not in everything.replace("ec2messages:DeleteMessage", "")
        assert '"ec2:' not in everything
        assert "iam:" not in everything


def test_what_stops_boxes_stops_only_the_deployments(templates: dict[tuple[str, str], Template]) -> None:
    for context, settings in CONTEXTS.items():
        policies = resources(templates[context, "base"], "AWS::IAM::Policy")
        (policy,) = [each for name, each in policies.items() if name.startswith("GuardRole")]
        said = {each.get("Sid"): each for each in statements(policy)}
        deployment = settings.get("deployment", "neuronbench")
        for sid in ("StopBoxes", "EmptyGroups"):
            assert said[sid]["Condition"] == {
                "StringEquals": {"aws:ResourceTag/neuronbench:deployment": deployment}
            }  # fmt: skip
        assert said["StopBoxes"]["Action"] == ["ec2:StopInstances", "ec2:TerminateInstances"]
        assert ("LookAtBudget" in said) is (settings["budget-usd"] != "none")


def test_keys_turn_and_are_kept(templates: dict[tuple[str, str], Template]) -> None:
    for context in CONTEXTS:
        template = templates[context, "base"]
        (key,) = [each for each in template["Resources"].values() if each["Type"] == "AWS::KMS::Key"]
        assert key["Properties"]["EnableKeyRotation"] is True
        assert key["DeletionPolicy"] == "Retain"
        for each in statements(key["Properties"]):
            if "Service" in each["Principal"]:
                assert "aws:SourceAccount" in each["Condition"]["StringEquals"]
            elif each["Principal"] == {"AWS": "*"}:  # only Auto Scaling's own role, and only where there is a group
                assert context == "group"
                assert set(each["Condition"]["StringEquals"]) == {"kms:CallerAccount"}
                assert ":role/aws-service-role/autoscaling." in text_of(
                    each["Condition"]["ArnLike"]["aws:PrincipalArn"]
                )
            else:
                assert ":root" in json.dumps(each["Principal"])


# -- budget and guard ------------------------------------------------------------------------------------------------


def test_the_budget_warns_and_then_stops(templates: dict[tuple[str, str], Template]) -> None:
    for context, settings in CONTEXTS.items():
        base = templates[context, "base"]
        found = list(resources(base, "AWS::Budgets::Budget").values())
        if settings["budget-usd"] == "none":
            assert found == []
            continue
        (budget,) = found
        assert budget["Budget"]["BudgetLimit"] == {"Amount": 200, "Unit": "USD"}
        filters = budget["Budget"].get("CostFilters")
        tag = {"TagKeyValue": ["user:neuronbench:deployment$neuronbench"]}
        assert filters == (tag if settings.get("budget-scope") == "tag" else None)
        told = [
            (each["Notification"]["NotificationType"], each["Notification"]["Threshold"],
             [who["SubscriptionType"] for who in each["Subscribers"]])
            for each in budget["NotificationsWithSubscribers"]
        ]  # fmt: skip
        assert told == [
            ("ACTUAL", 50, ["EMAIL"]), ("ACTUAL", 80, ["EMAIL"]), ("FORECASTED", 100, ["EMAIL"]),
            ("ACTUAL", 100, ["EMAIL", "SNS"]),
        ]  # fmt: skip
        (after,) = [each["DependsOn"] for each in base["Resources"].values() if each["Type"] == "AWS::Budgets::Budget"]
        assert any("Policy" in name for name in after), "Budgets takes no topic that it may not send to"
        subscribed = {each["Protocol"] for each in resources(base, "AWS::SNS::Subscription").values()}
        assert subscribed == {"email", "lambda"}


def test_the_guard_looks_every_ten_minutes_and_somebody_hears_when_it_does_not(
    templates: dict[tuple[str, str], Template],
) -> None:
    for context, settings in CONTEXTS.items():
        base = templates[context, "base"]
        (function,) = resources(base, "AWS::Lambda::Function").values()
        variables = function["Environment"]["Variables"]
        assert variables["NEURONBENCH_MAX_HOURS"] == "24"
        assert variables["NEURONBENCH_DEPLOYMENT"] == settings.get("deployment", "neuronbench")
        rules = list(resources(base, "AWS::Events::Rule").values())
        assert [rule["ScheduleExpression"] for rule in rules if "ScheduleExpression" in rule] == ["rate(10 minutes)"]
        assert (len(rules) == 2) is (settings.get("trn2-purchase") == "asg")
        alarms = {
            each["MetricName"]: each["TreatMissingData"] for each in resources(base, "AWS::CloudWatch::Alarm").values()
        }
        assert alarms == {"Errors": "notBreaching", "Invocations": "breaching"}


def test_topics_are_encrypted_and_take_tls_only(templates: dict[tuple[str, str], Template]) -> None:
    for where, topic in everywhere(templates, "AWS::SNS::Topic"):
        assert topic["KmsMasterKeyId"], where
    for where, policy in everywhere(templates, "AWS::SNS::TopicPolicy"):
        assert any(each["Effect"] == "Deny" for each in statements(policy)), where
        for each in statements(policy):
            if each["Effect"] == "Allow":
                assert "aws:SourceAccount" in each["Condition"]["StringEquals"], where


def test_all_that_can_be_tagged_is_the_deployments(templates: dict[tuple[str, str], Template]) -> None:
    for kind in ("AWS::S3::Bucket", "AWS::EC2::SecurityGroup", "AWS::KMS::Key", "AWS::Lambda::Function"):
        for where, properties in everywhere(templates, kind):
            name = "lab" if where.startswith("bare/") else "neuronbench"
            assert {"Key": "neuronbench:deployment", "Value": name} in properties["Tags"], where


# -- boxes -----------------------------------------------------------------------------------------------------------


def test_every_box_is_closed_encrypted_and_ends_itself(templates: dict[tuple[str, str], Template]) -> None:
    for where, template in everywhere(templates, "AWS::EC2::LaunchTemplate"):
        data = template["LaunchTemplateData"]
        assert data["MetadataOptions"] == {
            "HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        }, where  # fmt: skip
        assert "KeyName" not in data
        assert "NetworkInterfaces" not in data
        assert len(data["SecurityGroupIds"]) == 1
        assert data["IamInstanceProfile"]["Arn"]
        for device in data["BlockDeviceMappings"]:
            assert device["Ebs"]["Encrypted"] is True
            assert device["Ebs"]["VolumeType"] == "gp3"
            assert device["Ebs"]["DeleteOnTermination"] is True
        tags = {
            spec["ResourceType"]: {tag["Key"]: tag["Value"] for tag in spec["Tags"]}
            for spec in data["TagSpecifications"]
        }
        assert set(tags) == {"instance", "volume"}
        assert tags["instance"] == tags["volume"]
        assert tags["instance"]["neuronbench:kind"] == where.split("/")[1]
        expected = "terminate" if where.split("/")[0] == "block" or "group/trn2" in where else "stop"
        assert data["InstanceInitiatedShutdownBehavior"] == expected


def test_images_are_looked_up_when_a_box_starts_unless_pinned(templates: dict[tuple[str, str], Template]) -> None:
    images = {
        where.rpartition("/")[0]: template["LaunchTemplateData"]["ImageId"]
        for where, template in everywhere(templates, "AWS::EC2::LaunchTemplate")
    }
    assert images.pop("group/inf2") == "ami-0123456789abcdef0"
    dlami = r"resolve:ssm:/aws/service/neuron/dlami/[a-z0-9.-]+/ubuntu-24\.04/latest/image_id"
    assert all(re.fullmatch(dlami, image) for image in images.values())


def test_a_capacity_block_is_aimed_at(templates: dict[tuple[str, str], Template]) -> None:
    for where, template in everywhere(templates, "AWS::EC2::LaunchTemplate"):
        data = template["LaunchTemplateData"]
        if where.startswith("block/trn2/"):
            assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
            target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
            assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}
        else:
            assert "InstanceMarketOptions" not in data
            assert "CapacityReservationSpecification" not in data


def test_a_group_begins_empty_and_may_be_empty(templates: dict[tuple[str, str], Template]) -> None:
    ((where, group),) = everywhere(templates, "AWS::AutoScaling::AutoScalingGroup")
    assert where.startswith("group/trn2/")
    assert (group["MinSize"], group["MaxSize"]) == ("0", "3")
    assert "DesiredCapacity" not in group, "an update must not start or stop boxes"
    assert len(group["VPCZoneIdentifier"]) == 1, "trn2-az names one zone"
    assert all(tag["PropagateAtLaunch"] for tag in group["Tags"])
    tags = {tag["Key"]: tag["Value"] for tag in group["Tags"]}
    assert tags["neuronbench:deployment"] == "neuronbench"
    assert (tags["neuronbench:fleet"], tags["neuronbench:kind"]) == ("trn2-group", "trn2"), "else no command finds it"
    checked_name(tags["neuronbench:fleet"])


def test_a_box_gets_the_script_that_was_tried(templates: dict[tuple[str, str], Template], tmp_path: Path) -> None:
    for where, template in everywhere(templates, "AWS::EC2::LaunchTemplate"):
        script = template["LaunchTemplateData"]["UserData"]["Fn::Base64"]
        assert len(script.encode()) < 16384
        assert script.startswith("#!/bin/bash\n")
        assert not re.search(r"@[A-Z_]+@", script), "a place that was not filled"
        inner = re.search(r"<<'SCRIPT'\n(.*?)\nSCRIPT\n", script, flags=re.DOTALL)
        assert inner is not None
        assert base64.b64decode(inner[1]) == (SOURCES / "on_box" / "idle_stop.sh").read_bytes()
        assert f"NEURONBENCH_KIND={where.split('/')[1]}\n" in script
        assert "NEURONBENCH_IDLE_STOP_MIN=30\n" in script
    path = tmp_path / "user_data.sh"
    path.write_text(script)
    subprocess.run(["bash", "-n", path], check=True)


# -- tracking --------------------------------------------------------------------------------------------------------

tracked = pytest.mark.parametrize("context", [name for name, each in CONTEXTS.items() if "tracking-host" in each])


@tracked
def test_the_database_is_private_encrypted_and_kept(templates: dict[tuple[str, str], Template], context: str) -> None:
    template = templates[context, "tracking"]
    (instance,) = [each for each in template["Resources"].values() if each["Type"] == "AWS::RDS::DBInstance"]
    database = instance["Properties"]
    assert (database["PubliclyAccessible"], database["StorageEncrypted"]) == (False, True)
    assert database["KmsKeyId"]
    assert database["ManageMasterUserPassword"] is True, "RDS makes it and changes it"
    assert "MasterUserPassword" not in database
    assert database["BackupRetentionPeriod"] >= 7
    assert database["DeletionProtection"] is True
    assert database["MultiAZ"] is (context == "full")
    assert instance["DeletionPolicy"] == "Snapshot"
    (parameters,) = resources(template, "AWS::RDS::DBParameterGroup").values()
    assert parameters["Parameters"] == {"rds.force_ssl": "1"}


@tracked
def test_logins_only_go_over_tls(templates: dict[tuple[str, str], Template], context: str) -> None:
    template = templates[context, "tracking"]
    (listener,) = resources(template, "AWS::ElasticLoadBalancingV2::Listener").values()
    assert (listener["Port"], listener["Protocol"]) == (443, "HTTPS")
    assert listener["Certificates"] == [{"CertificateArn": SERVER["tracking-certificate"]}]
    assert listener["SslPolicy"].startswith("ELBSecurityPolicy-TLS13-1-2-")
    (balancer,) = resources(template, "AWS::ElasticLoadBalancingV2::LoadBalancer").values()
    assert balancer["Scheme"] == CONTEXTS[context].get("tracking-scheme", "internal")
    attributes = {each["Key"]: each["Value"] for each in balancer["LoadBalancerAttributes"]}
    assert attributes["routing.http.drop_invalid_header_fields.enabled"] == "true"
    assert attributes["deletion_protection.enabled"] == "true"
    assert attributes["access_logs.s3.enabled"] == "true"
    assert len(resources(template, "AWS::Route53::RecordSet")) == (context == "group")


@tracked
def test_no_password_is_in_a_template(templates: dict[tuple[str, str], Template], context: str) -> None:
    template = templates[context, "tracking"]
    (task,) = resources(template, "AWS::ECS::TaskDefinition").values()
    (container,) = task["ContainerDefinitions"]
    values = {each["Name"]: text_of(each["Value"]) for each in container["Environment"]}
    assert values["NB_DATABASE_SSL"] == "verify-full"
    assert values["NB_HOST"] == "mlflow.example.com"
    for name in ("NB_ADMIN_SECRET", "NB_CLIENT_SECRET", "NB_DATABASE_SECRET"):
        assert values[name].startswith("${"), "a name that is filled in, not a value"
    assert "{{resolve" not in json.dumps(template)
    for secret in resources(template, "AWS::SecretsManager::Secret").values():
        assert secret["GenerateSecretString"]["PasswordLength"] >= 32
        assert "SecretString" not in secret


@tracked
def test_the_server_may_do_exactly_this(templates: dict[tuple[str, str], Template], context: str) -> None:
    policies = resources(templates[context, "tracking"], "AWS::IAM::Policy")
    (policy,) = [each for name, each in policies.items() if name.startswith("TaskRole")]
    actions = {action for each in statements(policy) for action in several(each["Action"])}
    assert actions == {
        "s3:AbortMultipartUpload", "s3:GetObject", "s3:ListBucket", "s3:ListMultipartUploadParts", "s3:PutObject",
        "secretsmanager:GetSecretValue", "kms:Decrypt", "kms:GenerateDataKey",
    }  # fmt: skip


# -- what the fleet's commands read ------------------------------------------------------------------------------------


class Parameters:
    """Stands in for the door to AWS: what a context's stacks would write to Systems Manager, and nothing else."""

    region = "ap-southeast-2"
    dry_run = False

    def __init__(self, templates: dict[tuple[str, str], Template], context: str) -> None:
        self.values = {
            settled(each["Name"]): settled(each["Value"])
            for (name, _), template in templates.items()
            if name == context
            for each in resources(template, "AWS::SSM::Parameter").values()
        }

    def call(self, service: str, operation: str, *, Name: str) -> Any:
        assert (service, operation) == ("ssm", "get_parameter")
        if Name not in self.values:
            raise AwsError(service, "GetParameter", Trouble(kind="not_found", code="ParameterNotFound", message=Name))
        return {"Parameter": {"Value": self.values[Name]}}


def test_the_fleets_commands_read_the_parameters_that_are_written(templates: dict[tuple[str, str], Template]) -> None:
    for context, asked in CONTEXTS.items():
        aws: Any = Parameters(templates, context)
        found = find_deployment(aws, asked.get("deployment", "neuronbench"))
        base = templates[context, "base"]
        assert found.region == "ap-southeast-2"
        assert base["Resources"][found.bucket]["Type"] == "AWS::S3::Bucket"
        assert base["Resources"][found.instance_profile]["Type"] == "AWS::IAM::InstanceProfile"
        assert base["Resources"][found.security_group.removesuffix(".GroupId")]["Type"] == "AWS::EC2::SecurityGroup"
        assert len(set(found.subnets)) == int(asked.get("zones", 2 if "azs" in asked else 3))
        for kind in asked.get("kinds", "trn1,trn2,inf2").split(","):
            box = find_box(aws, found, kind)
            (template,) = resources(templates[context, kind], "AWS::EC2::LaunchTemplate")
            assert (box.launch_template, box.idle_stop_min) == (template, 30)
            assert box.instance_type.startswith(kind)
            assert bool(box.ami_parameter) is not bool(asked.get(f"{kind}-ami"))
            assert box.purchase == asked.get(f"{kind}-purchase", "on-demand")
            assert box.reservation == asked.get(f"{kind}-reservation", "")
        tracking = find_tracking(aws, found)
        if "tracking-host" not in asked:
            assert tracking is None
            continue
        assert tracking is not None
        assert tracking.uri == "https://mlflow.example.com"
        assert templates[context, "tracking"]["Resources"][tracking.secret]["Type"] == "AWS::SecretsManager::Secret"


# -- what people may do ------------------------------------------------------------------------------------------------


def people(template: Template, *names: str) -> list[Any]:
    """Statements of the policies for people, by the beginning of their names."""
    return [
        settled(each)
        for name, policy in resources(template, "AWS::IAM::ManagedPolicy").items()
        if name.startswith(names)
        for each in statements(policy)
    ]


def test_policies_for_people_are_given_to_nobody_and_not_too_long(
    templates: dict[tuple[str, str], Template],
) -> None:
    for context, asked in CONTEXTS.items():
        policies = resources(templates[context, "base"], "AWS::IAM::ManagedPolicy")
        assert len(policies) == (2 if context == "bare" else 3), "nobody buys blocks of what is not sold in blocks"
        name = asked.get("deployment", "neuronbench")
        for key, policy in policies.items():
            assert not {"Users", "Groups", "Roles"} & set(policy), key
            assert settled(policy["ManagedPolicyName"]).startswith(f"{name}-")
            text = json.dumps(settled(policy["PolicyDocument"]), separators=(",", ":"))
            longest = text.replace(f'"{name}"', f'"{"n" * 32}"')
            size = len(re.sub(r':subnet/[^"]*', f":subnet/{'n' * 24}", longest))
            if ":subnet/" in longest:
                size += 90 * (6 - longest.count(":subnet/"))
            assert size < 6144, (context, key, size)


def called_by(folder: Path) -> set[str]:
    """Rights for what the commands' code calls: `aws.call("ec2", "run_instances")` wants ec2:RunInstances."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="call" | "pages"),
                    args=[ast.Constant(value=str(service)), ast.Constant(value=str(operation)), *_],
                ):
                    found.add(f"{service}:{''.join(part.capitalize() for part in operation.split('_'))}")
    return found


def test_who_uses_the_fleets_commands_has_the_rights_for_what_they_call_and_no_others(
    templates: dict[tuple[str, str], Template],
) -> None:
    calls = called_by(SOURCES.parent / "neuronbench_fleet")
    assert {"ec2:RunInstances", "ssm:SendCommand"} <= calls
    assert len(calls) > 20
    given = {
        action
        for each in people(templates["group", "base"], "Operator", "Results", "Buyer")
        for action in several(each["Action"])
    }
    assert calls - given == {"s3:ListObjectsV2"}, "that one's right is s3:ListBucket"
    assert given - calls == {
        "ssm:GetParameters",  # of the image, by whoever starts from a launch template that names it so
        "iam:PassRole", "iam:CreateServiceLinkedRole",
        "ec2:DescribeImages",  # to pin one
        "ssm:StartSession", "ssm:ResumeSession", "ssm:TerminateSession",  # a shell
        "autoscaling:DescribeAutoScalingGroups", "autoscaling:SetDesiredCapacity",
        # the bucket, by neuronbench.weights: to look up is to get
        "s3:AbortMultipartUpload", "s3:GetObject", "s3:ListBucket", "s3:ListBucketMultipartUploads",
        "s3:ListMultipartUploadParts", "kms:Decrypt", "kms:GenerateDataKey",
    }  # fmt: skip


def started(request: Mapping[str, Any], data: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What RunInstances touches, each with the condition keys it has: of a real request and its launch template."""
    prefix = "arn:aws:ec2:ap-southeast-2"
    here = f"{prefix}:{PSEUDO['AWS::AccountId']}"
    tags = {spec["ResourceType"]: spec["Tags"] for spec in request["TagSpecifications"]}

    def told(what: str) -> dict[str, Any]:
        keys_ = {f"aws:RequestTag/{tag['Key']}": tag["Value"] for tag in tags.get(what, ())}
        return {**keys_, "aws:TagKeys": [tag["Key"] for tag in tags[what]]} if keys_ else {}

    instance = {
        **told("instance"), "ec2:InstanceType": request["InstanceType"],
        "ec2:MetadataHttpTokens": data["MetadataOptions"]["HttpTokens"],
    }  # fmt: skip
    encrypted = str(data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"]).lower()
    found = [
        (f"{here}:instance/*", instance),
        (f"{here}:volume/*", {**told("volume"), "ec2:Encrypted": encrypted}),
        (f"{here}:network-interface/*", {}), (f"{prefix}::image/ami-0123456789abcdef0", {}),
        (f"{here}:subnet/{request['SubnetId']}", {}),
        *((f"{here}:security-group/{group}", {}) for group in settled(data["SecurityGroupIds"])),
        (
            f"{here}:launch-template/{request['LaunchTemplate']['LaunchTemplateId']}",
            {"aws:ResourceTag/neuronbench:deployment": request["of"]},
        ),
    ]  # fmt: skip
    if "InstanceMarketOptions" in request and request["InstanceMarketOptions"]["MarketType"] == "spot":
        found.append((f"{here}:spot-instances-request/*", told("spot-instances-request")))
    if "CapacityReservationSpecification" in request:
        found.append((f"{here}:capacity-reservation/cr-0123456789abcdef0", {}))
    return found


def refused(said: list[Any], touched: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Kinds of what may not be touched."""
    bad = [resource for resource, told in touched if not allowed(said, "ec2:RunInstances", resource, **told)]
    return [resource.split(":")[5].partition("/")[0] for resource in bad]


@pytest.mark.parametrize(
    ("context", "kind", "purchase"),
    [("plain", "inf2", "on-demand"), ("plain", "trn1", "spot"), ("block", "trn2", "block"), ("bare", "inf2", "spot")],
)
def test_an_operator_starts_the_deployments_boxes_and_no_others(
    templates: dict[tuple[str, str], Template], context: str, kind: str, purchase: str
) -> None:
    aws: Any = Parameters(templates, context)
    there = find_deployment(aws, CONTEXTS[context].get("deployment", "neuronbench"))
    box = find_box(aws, there, kind)
    order = Order(
        deployment=there, box=box, fleet="night", instance_type=box.instance_type, count=1, limits=Limits(max_hours=1)
    )
    candidate = Candidate(purchase=purchase, zone="a", subnets={"a": there.subnets[0]})
    now = datetime.datetime.now(datetime.UTC)
    asked = request(order, candidate, expires=now, token="t", reservation="cr-0123456789abcdef0")
    (template,) = resources(templates[context, kind], "AWS::EC2::LaunchTemplate").values()
    marks = {tag["Key"]: tag["Value"] for spec in template["TagSpecifications"] for tag in spec["Tags"]}
    asked["of"] = marks["neuronbench:deployment"]
    data = template["LaunchTemplateData"]
    (door,) = data["SecurityGroupIds"]
    assert there.security_group.removesuffix(".GroupId") in json.dumps(door), "imported from the base"
    data = {**data, "SecurityGroupIds": [there.security_group]}
    said = people(templates[context, "base"], "Operator")

    assert refused(said, started(asked, data)) == []
    for resource, told in started(asked, data):
        if "aws:TagKeys" in told:
            making = {**told, "ec2:CreateAction": "RunInstances"}
            assert allowed(said, "ec2:CreateTags", resource, **making), resource
            assert not allowed(said, "ec2:CreateTags", resource, **told), "only what is just being made"
    elsewhere = {**asked, "SubnetId": "subnet-of-others", "InstanceType": "p5.48xlarge", "of": "other"}
    assert refused(said, started(elsewhere, data)) == ["instance", "subnet", "launch-template"]
    open_ = {**data, "MetadataOptions": {"HttpTokens": "optional"}, "SecurityGroupIds": ["sg-open"],
             "BlockDeviceMappings": [{"Ebs": {"Encrypted": False}}]}  # fmt: skip
    assert refused(said, started(asked, open_)) == ["instance", "volume", "security-group"]
    untagged = {**asked, "TagSpecifications": []}
    assert {"instance", "volume"} <= set(refused(said, started(untagged, data)))
    role = next(name for name in templates[context, "base"]["Resources"] if name.startswith("BoxRole"))
    to_ec2 = {"iam:PassedToService": "ec2.amazonaws.com"}
    assert allowed(said, "iam:PassRole", f"arn:of:{role}", **to_ec2)
    assert not allowed(said, "iam:PassRole", "arn:of:Admin", **to_ec2)
    assert not allowed(said, "iam:PassRole", f"arn:of:{role}", **{"iam:PassedToService": "lambda.amazonaws.com"})


def test_an_operator_uses_and_ends_the_deployments_boxes_and_no_others(
    templates: dict[tuple[str, str], Template],
) -> None:
    said = people(templates["plain", "base"], "Operator")
    box = f"arn:aws:ec2:ap-southeast-2:{PSEUDO['AWS::AccountId']}:instance/i-1"
    for of in ("neuronbench", "other"):
        mine = of == "neuronbench"
        tag = {"aws:ResourceTag/neuronbench:deployment": of}
        for action in ("StartInstances", "StopInstances", "TerminateInstances", "GetConsoleOutput"):
            assert allowed(said, f"ec2:{action}", box, **tag) is mine
        for action in ("SendCommand", "StartSession"):
            assert allowed(said, f"ssm:{action}", box, **{"ssm:resourceTag/neuronbench:deployment": of}) is mine
        shutdown = {**tag, "ec2:Attribute": "instanceInitiatedShutdownBehavior"}
        assert allowed(said, "ec2:ModifyInstanceAttribute", box, **shutdown) is mine
        assert not allowed(said, "ec2:ModifyInstanceAttribute", box, **{**tag, "ec2:Attribute": "groupSet"})
        longer = {**tag, "aws:TagKeys": ["neuronbench:expires"], "aws:RequestTag/neuronbench:expires": "2030"}
        assert allowed(said, "ec2:CreateTags", box, **longer) is mine
        away = {**tag, "aws:TagKeys": ["neuronbench:deployment"], "aws:RequestTag/neuronbench:deployment": "hidden"}
        assert not allowed(said, "ec2:CreateTags", box, **away), "out of the guard's sight"
        costs = {**tag, "aws:TagKeys": ["cost-centre"], "aws:RequestTag/cost-centre": "theirs"}
        assert not allowed(said, "ec2:CreateTags", box, **costs)
    document = "arn:aws:ssm:ap-southeast-2::document/"
    assert allowed(said, "ssm:SendCommand", f"{document}AWS-RunShellScript")
    assert not allowed(said, "ssm:SendCommand", f"{document}AWS-ConfigureAWSPackage")
    assert not allowed(said, "ssm:StartSession", f"{document}AWS-StartPortForwardingSession")
    assert not allowed(said, "ec2:PurchaseCapacityBlock", "*")
    assert allowed(people(templates["plain", "base"], "Buyer"), "ec2:PurchaseCapacityBlock", "*")


def test_objects_are_added_once_by_boxes_and_people_and_deleted_by_neither(
    templates: dict[tuple[str, str], Template],
) -> None:
    base = templates["plain", "base"]
    bucket = next(
        name for name, each in base["Resources"].items() if each["Type"] == "AWS::S3::Bucket" and "Logs" not in name
    )
    everybody = [
        settled(each)
        for policy in resources(base, "AWS::S3::BucketPolicy").values()
        if policy["Bucket"] == {"Ref": bucket}
        for each in statements(policy)
        if each["Sid" if "Sid" in each else "Effect"] == "WriteOnce"
    ]
    assert len(everybody) == 1
    (rights,) = [
        policy for name, policy in resources(base, "AWS::IAM::Policy").items() if name.startswith("BoxRole")
    ]  # fmt: skip
    person, box = people(base, "Results"), [settled(each) for each in statements(rights)]
    put, part = {"s3:ObjectCreationOperation": "true"}, {"s3:ObjectCreationOperation": "false"}
    once = {**put, "s3:if-none-match": "*"}
    for who in (person, box):
        said = [*who, *everybody]
        at = f"arn:of:{bucket}/"
        for prefix in ("runs/", "weights/", "caches/"):
            assert allowed(said, "s3:PutObject", f"{at}{prefix}x", **once)
            assert allowed(said, "s3:PutObject", f"{at}{prefix}x", **part), "a part of an upload is no object yet"
            assert not allowed(said, "s3:PutObject", f"{at}{prefix}x", **put), "over what is there"
            for action in ("AbortMultipartUpload", "GetObject", "ListMultipartUploadParts"):
                assert allowed(said, f"s3:{action}", f"{at}{prefix}x")
        assert allowed(said, "s3:PutObject", f"{at}code/x", **once) is (who is person)
        assert allowed(said, "s3:GetObject", f"{at}code/x")
        for action in ("ListBucket", "ListBucketMultipartUploads"):
            assert allowed(said, f"s3:{action}", f"arn:of:{bucket}", **{"s3:prefix": "weights/"})
        assert allowed(said, "s3:ListBucket", f"arn:of:{bucket}"), "else what is not there is forbidden, not missing"
        for action in ("DeleteObject", "DeleteObjectVersion", "PutObjectRetention"):
            assert not allowed(said, f"s3:{action}", f"{at}runs/x")
        key = next(name for name, each in base["Resources"].items() if each["Type"] == "AWS::KMS::Key")
        for action in ("Decrypt", "GenerateDataKey"):
            via = {"kms:ViaService": "s3.ap-southeast-2.amazonaws.com"}
            assert allowed(said, f"kms:{action}", f"arn:of:{key}", **via)
    # A presigned URL has the rights of who signed it: a person's reading of the code, and of the key.
    assert allowed(person, "s3:GetObject", f"arn:of:{bucket}/code/x")
