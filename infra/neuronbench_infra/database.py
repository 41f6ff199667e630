"""PostgreSQL for the tracking server: private, encrypted; RDS makes its password, keeps it and changes it."""

from __future__ import annotations

from typing import Final

from aws_cdk import CfnDeletionPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_rds as rds
from constructs import Construct

from neuronbench_infra.rules import explain

PORT: Final = 5432
MAJOR: Final = "17"
"""RDS takes the newest of its minor versions, and the next ones by itself."""
BACKUP_DAYS: Final = 14


class Database(Construct):
    """The instance, and the security group that lets one other group in."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        vpc: ec2.IVpc,
        client: ec2.ISecurityGroup,
        key: kms.IKey,
        instance_class: str,
        multi_az: bool,
    ) -> None:
        super().__init__(scope, name)
        group = ec2.SecurityGroup(
            self, "Group", vpc=vpc, description="neuronbench tracking database", allow_all_outbound=False
        )
        group.add_ingress_rule(client, ec2.Port.tcp(PORT), "from the tracking server")
        client.add_egress_rule(group, ec2.Port.tcp(PORT), "to the database")
        subnets = rds.CfnDBSubnetGroup(
            self,
            "Subnets",
            db_subnet_group_description="neuronbench tracking database",
            subnet_ids=vpc.select_subnets(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED).subnet_ids,
        )
        parameters = rds.CfnDBParameterGroup(
            self,
            "Parameters",
            description="neuronbench tracking database: TLS only",
            family=f"postgres{MAJOR}",
            parameters={"rds.force_ssl": "1"},
        )
        self.instance = rds.CfnDBInstance(
            self,
            "Instance",
            engine="postgres",
            engine_version=MAJOR,
            db_instance_class=instance_class,
            allocated_storage="20",
            max_allocated_storage=200,
            storage_type="gp3",
            storage_encrypted=True,
            kms_key_id=key.key_arn,
            master_username="mlflow",
            manage_master_user_password=True,
            master_user_secret=rds.CfnDBInstance.MasterUserSecretProperty(kms_key_id=key.key_arn),
            port=str(PORT),
            publicly_accessible=False,
            multi_az=multi_az,
            db_subnet_group_name=subnets.ref,
            db_parameter_group_name=parameters.ref,
            vpc_security_groups=[group.security_group_id],
            backup_retention_period=BACKUP_DAYS,
            copy_tags_to_snapshot=True,
            delete_automated_backups=False,
            deletion_protection=True,
            auto_minor_version_upgrade=True,
            ca_certificate_identifier="rds-ca-rsa2048-g1",
            enable_cloudwatch_logs_exports=["postgresql", "upgrade"],
        )
        self.instance.cfn_options.deletion_policy = CfnDeletionPolicy.SNAPSHOT
        self.instance.cfn_options.update_replace_policy = CfnDeletionPolicy.SNAPSHOT
        self.secret_arn = self.instance.attr_master_user_secret_secret_arn
        explain(
            self.instance,
            "RDS11",
            "Only one security group reaches the port; another number would hide it from nobody.",
        )
        if not multi_az:
            explain(
                self.instance,
                "RDS3",
                "Receipts are the truth and can be delivered again; a standby doubles the price (tracking-multi-az).",
            )
