"""What a person (or a pipeline) needs who uses `neuronbench fleet`: managed policies, attached to nobody here.

`results` reads the bucket and adds to it, which is all that looking at numbers takes. `operator` starts, uses and ends
boxes of one deployment, out of its launch templates. `buyer` buys Capacity Blocks: money spent at once and never
given back, so it is a right of its own. Each is below the 6,144 characters that IAM takes, with the longest names too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from aws_cdk import Aws, CfnOutput
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from neuronbench_infra.names import DEPLOYMENT_TAG, READ_ONLY, READ_WRITE, parameter_name
from neuronbench_infra.rules import explain
from neuronbench_infra.settings import WITH_BLOCKS, Settings

LOOK: Final = (
    # EC2, Systems Manager and Auto Scaling list without limits by resource.
    "ec2:DescribeCapacityBlockOfferings",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeVolumes",
    "ssm:DescribeInstanceInformation",
    "ssm:GetCommandInvocation",
)
TAGS: Final = ("Name", "neuronbench:*")
"""Tags that may be set."""


def add_people(
    scope: Construct, *, settings: Settings, bucket: s3.Bucket, key: kms.Key, role: iam.Role, subnets: list[str],
    door: ec2.SecurityGroup,
) -> None:  # fmt: skip
    """Make the policies; outputs of the stack say what they are called."""
    rights = _Rights(settings.deployment)
    statements = [
        *rights.looking(settings), *rights.starting(settings, role, subnets, door), *rights.using(), *rights.ending(),
    ]  # fmt: skip
    _policy(scope, "Operator", settings, statements, "starts, uses and ends boxes (needs results too)")
    _policy(scope, "Results", settings, [*rights.objects(bucket, key)], "reads what was measured, and adds to it")
    if any(box.kind in WITH_BLOCKS for box in settings.boxes):
        _policy(scope, "Buyer", settings, rights.buying(), "buys Capacity Blocks, which are paid at once")


def _policy(scope: Construct, name: str, settings: Settings, statements: list[iam.PolicyStatement], what: str) -> None:
    policy = iam.ManagedPolicy(
        scope,
        name,
        managed_policy_name=f"{settings.deployment}-{name.lower()}-{Aws.REGION}",
        description=f"neuronbench {settings.deployment}: {what}",
        statements=statements,
    )
    explain(
        policy,
        "IAM5",
        "What is made when a box starts has no name before; what is there is limited by the deployment's tag.",
        applies_to=[
            r"\*",
            r"arn:.+:(ec2|ssm|autoscaling|iam):.+",
            *(rf"<Bucket[0-9A-F]+\.Arn>\/{prefix[:-1]}\/\*" for prefix in (*READ_ONLY, *READ_WRITE)),
        ],
    )
    CfnOutput(scope, f"{name}Policy", value=policy.managed_policy_arn, description=f"Who has it {what}")


class _Rights:
    """Statements about one deployment's boxes."""

    def __init__(self, deployment: str) -> None:
        self.deployment = deployment
        self.tagged: dict[str, Any] = {f"aws:ResourceTag/{DEPLOYMENT_TAG}": deployment}
        self.to_be_tagged: dict[str, Any] = {f"aws:RequestTag/{DEPLOYMENT_TAG}": deployment}

    def looking(self, settings: Settings) -> Iterator[iam.PolicyStatement]:
        yield _allow("Look", LOOK, ["*"])
        # A launch template that names a parameter for its image has whoever starts from it read that parameter.
        images = sorted({box.ami_parameter for box in settings.boxes if not box.ami})
        if images:
            found = [_arn("ssm", f"parameter{path}", account=not path.startswith("/aws/")) for path in images]
            yield _allow("Images", ["ssm:GetParameters"], found)
        if any(box.purchase == "asg" for box in settings.boxes):
            yield _allow("LookAtGroups", ["autoscaling:DescribeAutoScalingGroups"], ["*"])
            groups = _arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/*")
            yield _allow("Groups", ["autoscaling:SetDesiredCapacity"], [groups], StringEquals=self.tagged)

    def starting(
        self, settings: Settings, role: iam.Role, subnets: list[str], door: ec2.SecurityGroup
    ) -> Iterator[iam.PolicyStatement]:
        """RunInstances asks once for everything it touches: each must be allowed, with the keys that it has."""
        start = ["ec2:RunInstances"]
        yield _allow(
            "StartBoxes", start, [_ec2("instance/*")],
            StringEquals={**self.to_be_tagged, "ec2:MetadataHttpTokens": "required"},
            StringLike={"ec2:InstanceType": [f"{box.kind}*" for box in settings.boxes]},
        )  # fmt: skip
        yield _allow("StartDisks", start, [_ec2("volume/*")], StringEquals=self.to_be_tagged,
                     Bool={"ec2:Encrypted": "true"})  # fmt: skip
        yield _allow("StartSpot", start, [_ec2("spot-instances-request/*")], StringEquals=self.to_be_tagged)
        yield _allow("StartFrom", start, [_ec2("launch-template/*")], StringEquals=self.tagged)
        yield _allow(
            "StartWith", start,
            [
                _ec2("image/*", account=False), _ec2("network-interface/*"), _ec2("capacity-reservation/*"),
                _ec2(f"security-group/{door.security_group_id}"), *(_ec2(f"subnet/{subnet}") for subnet in subnets),
            ],
        )  # fmt: skip
        yield _allow(
            "GiveBoxesTheirRole", ["iam:PassRole"], [role.role_arn],
            StringEquals={"iam:PassedToService": "ec2.amazonaws.com"},
        )  # fmt: skip
        spot = f"arn:{Aws.PARTITION}:iam::{Aws.ACCOUNT_ID}:role/aws-service-role/spot.amazonaws.com/*"
        yield _allow(  # the first spot box of an account makes EC2's own role for them
            "FirstSpot", ["iam:CreateServiceLinkedRole"], [spot],
            StringEquals={"iam:AWSServiceName": "spot.amazonaws.com"},
        )  # fmt: skip
        made = [_ec2(f"{what}/*") for what in ("instance", "volume", "spot-instances-request")]
        yield _allow(
            "TagWhatStarts", ["ec2:CreateTags"], made, StringEquals={"ec2:CreateAction": "RunInstances"}
        )  # fmt: skip

    def using(self) -> Iterator[iam.PolicyStatement]:
        """Run Command and sessions are root on the box, which holds nothing but what its role may read."""
        mine = {f"ssm:resourceTag/{DEPLOYMENT_TAG}": self.deployment}
        boxes = [_ec2("instance/*")]
        yield _allow("Reach", ["ssm:SendCommand", "ssm:StartSession"], boxes, StringEquals=mine)
        yield _allow("RunShell", ["ssm:SendCommand"], [_arn("ssm", "document/AWS-RunShellScript", account=False)])
        # A session that names no document is a shell; asked for by name, it could be a way to the box's ports.
        yield _allow("Shell", ["ssm:StartSession"], [_arn("ssm", "document/SSM-SessionManagerRunShell")])
        sessions = [_arn("ssm", f"session/${{aws:{who}}}-*") for who in ("username", "userid")]
        yield _allow("OwnSessions", ["ssm:ResumeSession", "ssm:TerminateSession"], sessions)

    def ending(self) -> Iterator[iam.PolicyStatement]:
        box, disk, request = (_ec2(f"{what}/*") for what in ("instance", "volume", "spot-instances-request"))
        plain = ("ec2:GetConsoleOutput", "ec2:StartInstances", "ec2:StopInstances", "ec2:TerminateInstances")
        yield _allow("WakeAndEnd", plain, [box], StringEquals=self.tagged)
        yield _allow("EndDisks", ["ec2:DeleteVolume"], [disk], StringEquals=self.tagged)
        yield _allow("EndSpot", ["ec2:CancelSpotInstanceRequests"], [request], StringEquals=self.tagged)
        yield _allow(
            "AfterARun", ["ec2:ModifyInstanceAttribute"], [box], StringEquals=self.tagged,
            # AWS's documents write names of attributes in two ways
            StringEqualsIgnoreCase={"ec2:Attribute": "InstanceInitiatedShutdownBehavior"},
        )  # fmt: skip
        yield _allow(
            "MoveTags", ["ec2:CreateTags"], [box],
            # never to another deployment: that would take a box out of the guard's sight
            StringEquals=self.tagged, StringEqualsIfExists=self.to_be_tagged,
            **{"ForAllValues:StringLike": {"aws:TagKeys": list(TAGS)}},
        )  # fmt: skip

    def objects(self, bucket: s3.Bucket, key: kms.Key) -> Iterator[iam.PolicyStatement]:
        """Everything is read, everything can be added to, once by the bucket's own policy; nothing is deleted."""
        own = _arn("ssm", f"parameter{parameter_name(self.deployment, '*')}")
        yield _allow("Deployed", ["ssm:GetParameter"], [own])
        add = ["s3:AbortMultipartUpload", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject"]
        yield _allow("Objects", add, [bucket.arn_for_objects(f"{prefix}*") for prefix in (*READ_ONLY, *READ_WRITE)])
        yield _allow("List", ["s3:ListBucket", "s3:ListBucketMultipartUploads"], [bucket.bucket_arn])
        yield _allow(
            "Key", ["kms:Decrypt", "kms:GenerateDataKey"], [key.key_arn],
            StringEquals={"kms:ViaService": f"s3.{Aws.REGION}.{Aws.URL_SUFFIX}"},
        )  # fmt: skip

    def buying(self) -> list[iam.PolicyStatement]:
        # An offer is of nobody's account. What comes of it is a reservation, which has tags.
        return [
            _allow("Buy", ["ec2:PurchaseCapacityBlock"], ["*"]),
            _allow(
                "TagWhatIsBought", ["ec2:CreateTags"], [_ec2("capacity-reservation/*"), _ec2("capacity-block/*")],
                StringEquals={"ec2:CreateAction": "PurchaseCapacityBlock", **self.to_be_tagged},
            ),
        ]  # fmt: skip


def _allow(sid: str, actions: Any, resources: list[str], **conditions: Any) -> iam.PolicyStatement:
    return iam.PolicyStatement(sid=sid, actions=list(actions), resources=resources, conditions=conditions or None)


def _arn(service: str, what: str, *, account: bool = True) -> str:
    return f"arn:{Aws.PARTITION}:{service}:{Aws.REGION}:{Aws.ACCOUNT_ID if account else ''}:{what}"


def _ec2(what: str, *, account: bool = True) -> str:
    return _arn("ec2", what, account=account)
