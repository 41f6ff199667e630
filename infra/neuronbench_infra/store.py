"""Buckets: versioned, encrypted, private, kept when the stack goes; and one in which nothing is ever written twice."""

from __future__ import annotations

from aws_cdk import Aws, Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from neuronbench_infra.names import READ_ONLY, READ_WRITE
from neuronbench_infra.rules import explain

KEEP_LOGS_DAYS = 400
KEEP_OLD_VERSIONS_DAYS = 365


def make_key(scope: Construct, deployment: str, *, groups: bool) -> kms.Key:
    """The deployment's key. A key of our own is a second lock: who may read the bucket by mistake still cannot."""
    key = kms.Key(
        scope,
        "Key",
        description=f"neuronbench {deployment}: bucket, database, messages",
        alias=f"alias/neuronbench/{deployment}",
        enable_key_rotation=True,
        removal_policy=RemovalPolicy.RETAIN,  # without it the bucket that stays could not be read
    )
    for service in ("budgets", "cloudwatch"):  # they send to encrypted topics
        key.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.ServicePrincipal(f"{service}.amazonaws.com")],
                actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                resources=["*"],  # of a key's policy: this key
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            )
        )
    if groups:  # Auto Scaling tells of boxes through an encrypted topic, as a role of this account that AWS makes
        role = "role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling*"
        key.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.AnyPrincipal()],
                actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                resources=["*"],
                conditions={
                    "StringEquals": {"kms:CallerAccount": Aws.ACCOUNT_ID},
                    "ArnLike": {"aws:PrincipalArn": f"arn:{Aws.PARTITION}:iam::{Aws.ACCOUNT_ID}:{role}"},
                },
            )
        )
    return key


def make_log_bucket(scope: Construct) -> s3.Bucket:
    """Who read and wrote what, and who talked to whom. S3 and the flow logs write it themselves, with S3's own keys."""
    logs = s3.Bucket(
        scope,
        "Logs",
        encryption=s3.BucketEncryption.S3_MANAGED,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        enforce_ssl=True,
        minimum_tls_version=1.2,
        versioned=True,
        lifecycle_rules=[
            s3.LifecycleRule(
                id="Expire",
                expiration=Duration.days(KEEP_LOGS_DAYS),
                noncurrent_version_expiration=Duration.days(30),
                abort_incomplete_multipart_upload_after=Duration.days(7),
            )
        ],
        removal_policy=RemovalPolicy.RETAIN,
    )
    logs.add_to_resource_policy(
        iam.PolicyStatement(
            sid="LoadBalancers",
            principals=[iam.ServicePrincipal("logdelivery.elasticloadbalancing.amazonaws.com")],
            actions=["s3:PutObject"],
            resources=[logs.arn_for_objects(f"tracking/AWSLogs/{Aws.ACCOUNT_ID}/*")],
        )
    )
    explain(logs, "S1", "The bucket that holds the access logs: logging it to itself would never end.")
    return logs


def make_bucket(scope: Construct, name: str, *, key: kms.IKey, logs: s3.IBucket, prefix: str) -> s3.Bucket:
    """A bucket for what must not be lost."""
    return s3.Bucket(
        scope,
        name,
        encryption=s3.BucketEncryption.KMS,
        encryption_key=key,
        bucket_key_enabled=True,  # a call to KMS now and then instead of one for each object
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        enforce_ssl=True,
        minimum_tls_version=1.2,
        versioned=True,
        server_access_logs_bucket=logs,
        server_access_logs_prefix=f"{prefix}/",
        lifecycle_rules=[
            s3.LifecycleRule(
                id="Tidy",
                abort_incomplete_multipart_upload_after=Duration.days(7),
                noncurrent_version_expiration=Duration.days(KEEP_OLD_VERSIONS_DAYS),
            )
        ],
        removal_policy=RemovalPolicy.RETAIN,
    )


def write_once(bucket: s3.Bucket) -> None:
    """Have S3 refuse, whoever asks, to put an object where there is one: writes must say If-None-Match.

    Uploads in parts say it when they are completed; creating one and sending parts cannot, and makes no object.
    """
    bucket.add_to_resource_policy(
        iam.PolicyStatement(
            sid="WriteOnce",
            effect=iam.Effect.DENY,
            principals=[iam.AnyPrincipal()],
            actions=["s3:PutObject"],
            resources=[bucket.arn_for_objects(f"{prefix}*") for prefix in (*READ_ONLY, *READ_WRITE)],
            conditions={"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}},
        )
    )


def never_by_boxes(bucket: s3.Bucket, role: iam.IRole) -> None:
    """Deny boxes what would undo history, whatever else their role may be given one day."""
    bucket.add_to_resource_policy(
        iam.PolicyStatement(
            sid="BoxesKeepHistory",
            effect=iam.Effect.DENY,
            principals=[iam.ArnPrincipal(role.role_arn)],
            actions=[
                "s3:DeleteObject",
                "s3:DeleteObjectVersion",
                "s3:PutBucketPolicy",
                "s3:PutBucketVersioning",
                "s3:PutLifecycleConfiguration",
                "s3:PutObjectAcl",
                "s3:PutObjectVersionAcl",
            ],
            resources=[bucket.bucket_arn, bucket.arn_for_objects("*")],
        )
    )
