"""The base of a deployment: key, bucket, network, what boxes may do, and the guard."""

from __future__ import annotations

from typing import Any

from aws_cdk import Aws, CfnOutput
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from neuronbench_infra.guard import Guard
from neuronbench_infra.names import READ_ONLY, READ_WRITE, publish, tag
from neuronbench_infra.network import Place, StackWithZones, zones_of
from neuronbench_infra.people import add_people
from neuronbench_infra.rules import explain
from neuronbench_infra.settings import Settings
from neuronbench_infra.store import make_bucket, make_key, make_log_bucket, never_by_boxes, write_once

SESSION_ACTIONS = (
    # What the agent of Systems Manager needs for Session Manager and Run Command. AWS's own policy for it
    # (AmazonSSMManagedInstanceCore) has more: reading every parameter of the account and writing inventories.
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)


class BaseStack(StackWithZones):
    """What all boxes of a deployment share."""

    def __init__(self, scope: Construct, name: str, *, settings: Settings, **stack: Any) -> None:
        super().__init__(scope, name, description=f"neuronbench {settings.deployment}: bucket, network, guard", **stack)
        self.zones = zones_of(settings.network)
        self.key = make_key(self, settings.deployment, groups=any(box.purchase == "asg" for box in settings.boxes))
        self.logs = make_log_bucket(self)
        self.bucket = make_bucket(self, "Bucket", key=self.key, logs=self.logs, prefix="bucket")
        write_once(self.bucket)
        self.place = Place(self, "Network", network=settings.network, logs=self.logs)
        self.role = _box_role(self, self.bucket, self.key)
        never_by_boxes(self.bucket, self.role)
        self.profile = iam.CfnInstanceProfile(self, "Profile", roles=[self.role.role_name])
        self.guard = Guard(self, "Guard", settings=settings, key=self.key)
        add_people(
            self,
            settings=settings,
            bucket=self.bucket,
            key=self.key,
            role=self.role,
            subnets=self.place.box_subnets,
            door=self.place.boxes,
        )
        publish(
            self,
            settings.deployment,
            "base",
            {
                "bucket": self.bucket.bucket_name,
                "region": Aws.REGION,
                "subnets": self.place.box_subnets,
                "security_group": self.place.boxes.security_group_id,
                "instance_profile": self.profile.ref,
            },
        )
        CfnOutput(self, "BucketName", value=self.bucket.bucket_name, description="Receipts; stays when the stack goes")
        tag(self, settings.deployment)

    @property
    def vpc(self) -> ec2.IVpc:
        return self.place.vpc


def _box_role(scope: Construct, bucket: s3.Bucket, key: kms.Key) -> iam.Role:
    """What a box may do: be reached by Systems Manager, read the bucket, add to it. It ends itself by `shutdown`."""
    role = iam.Role(
        scope,
        "BoxRole",
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        description="neuronbench boxes: sessions, and objects read and added",
    )
    read_write = [bucket.arn_for_objects(f"{prefix}*") for prefix in READ_WRITE]
    statements = (
        iam.PolicyStatement(sid="Sessions", actions=list(SESSION_ACTIONS), resources=["*"]),
        iam.PolicyStatement(
            sid="Read",
            actions=["s3:GetObject"],
            resources=[*(bucket.arn_for_objects(f"{prefix}*") for prefix in READ_ONLY), *read_write],
        ),
        iam.PolicyStatement(
            sid="Add",
            actions=["s3:AbortMultipartUpload", "s3:ListMultipartUploadParts", "s3:PutObject"],
            resources=read_write,
        ),
        iam.PolicyStatement(
            sid="List",
            actions=["s3:ListBucket", "s3:ListBucketMultipartUploads"],
            resources=[bucket.bucket_arn],
            # "IfExists": who may not list is told 403 instead of 404 of an object that is not there,
            # and a request for one has no prefix. There is nothing else in the bucket.
            conditions={"StringLikeIfExists": {"s3:prefix": [f"{prefix}*" for prefix in (*READ_ONLY, *READ_WRITE)]}},
        ),
        iam.PolicyStatement(sid="Key", actions=["kms:Decrypt", "kms:GenerateDataKey"], resources=[key.key_arn]),
    )
    for statement in statements:
        role.add_to_policy(statement)
    explain(
        role,
        "IAM5",
        "Objects of known prefixes of one bucket. The channels of Systems Manager know no resources.",
        applies_to=[
            r"\*",
            *(rf"<Bucket[0-9A-F]+\.Arn>\/{prefix[:-1]}\/\*" for prefix in (*READ_ONLY, *READ_WRITE)),
        ],
        children=True,
    )
    return role
