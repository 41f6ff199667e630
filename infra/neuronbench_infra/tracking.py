"""The team's MLflow: a container behind TLS and logins, PostgreSQL, artifacts in a bucket of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from aws_cdk import Aws, CfnOutput, Duration, RemovalPolicy
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_route53 as route53
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from neuronbench_infra.base import BaseStack
from neuronbench_infra.database import Database
from neuronbench_infra.names import publish, tag
from neuronbench_infra.network import StackWithZones
from neuronbench_infra.rules import explain
from neuronbench_infra.settings import Settings, Tracking
from neuronbench_infra.store import make_bucket

SERVER: Final = Path(__file__).parent / "tracking_server"
PORT: Final = 5000
USER: Final = "bench"
"""Whom clients log in as. What it makes it may change; what others make it may read."""


class TrackingStack(StackWithZones):
    """The server and all that only it needs."""

    def __init__(
        self, scope: Construct, name: str, *, settings: Settings, tracking: Tracking, base: BaseStack, **stack: Any
    ) -> None:
        super().__init__(scope, name, description=f"neuronbench {settings.deployment}: MLflow", **stack)
        self.zones = base.zones
        self.tracking, self.base = tracking, base
        self.artifacts = make_bucket(self, "Artifacts", key=base.key, logs=base.logs, prefix="artifacts")
        self.admin = self._login("Admin", "admin", "administrator of MLflow; used by the server's first start")
        self.client = self._login("Client", USER, "login of those who send receipts")
        self.doors = {
            name: ec2.SecurityGroup(
                self, name, vpc=base.vpc, description=f"neuronbench tracking: {what}", allow_all_outbound=False
            )
            for name, what in (("Balancer", "load balancer"), ("Server", "MLflow"))
        }
        self.database = Database(
            self,
            "Database",
            vpc=base.vpc,
            client=self.doors["Server"],
            key=base.key,
            instance_class=tracking.database_class,
            multi_az=tracking.multi_az,
        )
        self._open_doors()
        service = self._service(settings, self._task(settings))
        balancer = self._balancer(service)
        if tracking.zone_id:
            route53.CfnRecordSet(
                self,
                "Name",
                hosted_zone_id=tracking.zone_id,
                name=tracking.host,
                type="A",
                alias_target=route53.CfnRecordSet.AliasTargetProperty(
                    dns_name=balancer.load_balancer_dns_name,
                    hosted_zone_id=balancer.load_balancer_canonical_hosted_zone_id,
                ),
            )
        publish(
            self,
            settings.deployment,
            "tracking",
            {"uri": f"https://{tracking.host}", "secret": self.client.secret_arn},
        )
        CfnOutput(
            self, "BalancerName", value=balancer.load_balancer_dns_name, description=f"{tracking.host} points here"
        )
        tag(self, settings.deployment)

    def _login(self, name: str, user: str, what: str) -> secretsmanager.Secret:
        login = secretsmanager.Secret(
            self,
            name,
            description=f"neuronbench tracking: {what}",
            encryption_key=self.base.key,
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template=json.dumps({"username": user}),
                generate_string_key="password",
                password_length=40,
                exclude_punctuation=True,
            ),
            removal_policy=RemovalPolicy.DESTROY,
        )
        explain(
            login,
            "SMG4",
            "MLflow keeps its logins itself: a new password is given to it by hand or at a start (see the runbook).",
        )
        return login

    def _open_doors(self) -> None:
        balancer, server = self.doors["Balancer"], self.doors["Server"]
        for cidr in self.tracking.cidrs:
            balancer.add_ingress_rule(ec2.Peer.ipv4(cidr), ec2.Port.tcp(443), "who may use it (tracking-cidrs)")
        balancer.add_egress_rule(server, ec2.Port.tcp(PORT), "to the server")
        server.add_ingress_rule(balancer, ec2.Port.tcp(PORT), "from the load balancer")
        server.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "S3, Secrets Manager, logs, its image")
        if any(cidr.endswith("/0") for cidr in self.tracking.cidrs):
            explain(balancer, "EC23", "Asked for in so many words: tracking-open.")

    def _task(self, settings: Settings) -> ecs.FargateTaskDefinition:
        role = iam.Role(
            self,
            "TaskRole",
            assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"),
            description="neuronbench tracking: artifacts, and its own passwords",
        )
        key = self.base.key
        for statement in (
            iam.PolicyStatement(sid="Find", actions=["s3:ListBucket"], resources=[self.artifacts.bucket_arn]),
            iam.PolicyStatement(
                sid="Artifacts",
                actions=["s3:AbortMultipartUpload", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject"],
                resources=[self.artifacts.arn_for_objects("proxied/*")],
            ),
            iam.PolicyStatement(
                sid="Passwords",
                actions=["secretsmanager:GetSecretValue"],
                resources=[self.admin.secret_arn, self.client.secret_arn, self.database.secret_arn],
            ),
            iam.PolicyStatement(sid="Key", actions=["kms:Decrypt", "kms:GenerateDataKey"], resources=[key.key_arn]),
        ):
            role.add_to_policy(statement)
        one_prefix = r"<Artifacts[0-9A-F]+\.Arn>\/proxied\/\*"
        explain(role, "IAM5", "Objects below one prefix of one bucket.", applies_to=[one_prefix], children=True)
        task = ecs.FargateTaskDefinition(
            self,
            "Task",
            cpu=1024,
            memory_limit_mib=4096,
            task_role=role,
            runtime_platform=ecs.RuntimePlatform(
                cpu_architecture=ecs.CpuArchitecture.X86_64, operating_system_family=ecs.OperatingSystemFamily.LINUX
            ),
        )
        task.add_container(
            "mlflow",
            image=self._image(),
            port_mappings=[ecs.PortMapping(container_port=PORT)],
            environment=self._environment(),
            logging=ecs.LogDrivers.aws_logs(
                stream_prefix="mlflow",
                log_group=logs.LogGroup(
                    self, "Log", retention=logs.RetentionDays.THREE_MONTHS, removal_policy=RemovalPolicy.DESTROY
                ),
            ),
            stop_timeout=Duration.seconds(60),
        )
        explain(task, "ECS2", "Names and addresses only; passwords are read from Secrets Manager while it runs.")
        execution = task.obtain_execution_role()
        explain(execution, "IAM5", "A token for ECR is not of any one repository.", applies_to=[r"\*"], children=True)
        return task

    def _image(self) -> ecs.ContainerImage:
        if self.tracking.image:
            return ecs.ContainerImage.from_registry(self.tracking.image)
        return ecs.ContainerImage.from_asset(
            str(SERVER), platform=ecr_assets.Platform.LINUX_AMD64, exclude=["__pycache__"]
        )

    def _environment(self) -> dict[str, str]:
        """What `tracking_server/start.py` wants."""
        instance = self.database.instance
        return {
            "AWS_DEFAULT_REGION": Aws.REGION,
            "NB_ADMIN_SECRET": self.admin.secret_arn,
            "NB_ARTIFACTS": f"s3://{self.artifacts.bucket_name}/proxied",
            "NB_CLIENT_SECRET": self.client.secret_arn,
            "NB_DATABASE_HOST": instance.attr_endpoint_address,
            "NB_DATABASE_PORT": instance.attr_endpoint_port,
            "NB_DATABASE_SECRET": self.database.secret_arn,
            "NB_DATABASE_SSL": "verify-full",
            "NB_HOST": self.tracking.host,
            "NB_LISTEN": f"0.0.0.0:{PORT}",
            "NB_WORKERS": "2",
        }

    def _service(self, settings: Settings, task: ecs.FargateTaskDefinition) -> ecs.FargateService:
        cluster = ecs.Cluster(self, "Cluster", vpc=self.base.vpc, container_insights_v2=ecs.ContainerInsights.ENABLED)
        nat = settings.network.nat
        kind = ec2.SubnetType.PRIVATE_WITH_EGRESS if nat else ec2.SubnetType.PUBLIC
        return ecs.FargateService(
            self,
            "Service",
            cluster=cluster,
            task_definition=task,
            desired_count=1,
            # One at a time: two that start together would both bring the database's tables up to date.
            min_healthy_percent=0,
            max_healthy_percent=100,
            circuit_breaker=ecs.DeploymentCircuitBreaker(rollback=True),
            health_check_grace_period=Duration.minutes(5),
            assign_public_ip=not nat,  # the way out; nobody comes in but the load balancer
            security_groups=[self.doors["Server"]],
            vpc_subnets=ec2.SubnetSelection(subnet_type=kind),
        )

    def _balancer(self, service: ecs.FargateService) -> elb.ApplicationLoadBalancer:
        public = self.tracking.public
        kind = ec2.SubnetType.PUBLIC if public else ec2.SubnetType.PRIVATE_ISOLATED
        balancer = elb.ApplicationLoadBalancer(
            self,
            "LoadBalancer",
            vpc=self.base.vpc,
            internet_facing=public,
            vpc_subnets=ec2.SubnetSelection(subnet_type=kind),
            security_group=self.doors["Balancer"],
            deletion_protection=True,
            drop_invalid_header_fields=True,
            idle_timeout=Duration.minutes(5),  # an artifact of 100 MB takes its time
        )
        _log_access(balancer, self.base.logs)
        listener = elb.ApplicationListener(
            self,
            "Https",
            load_balancer=balancer,
            port=443,
            protocol=elb.ApplicationProtocol.HTTPS,
            certificates=[acm.Certificate.from_certificate_arn(self, "Certificate", self.tracking.certificate)],
            ssl_policy=elb.SslPolicy.TLS13_RES,
            open=False,
        )
        listener.add_targets(
            "Mlflow",
            port=PORT,
            protocol=elb.ApplicationProtocol.HTTP,
            targets=[service],
            deregistration_delay=Duration.seconds(30),
            health_check=elb.HealthCheck(path="/health", healthy_http_codes="200", interval=Duration.seconds(30)),
        )
        return balancer


def _log_access(balancer: elb.ApplicationLoadBalancer, logs_bucket: s3.Bucket) -> None:
    """Who asked for what, into the base's bucket for logs, which lets load balancers of this account write there."""
    balancer.set_attribute("access_logs.s3.enabled", "true")
    balancer.set_attribute("access_logs.s3.bucket", logs_bucket.bucket_name)
    balancer.set_attribute("access_logs.s3.prefix", "tracking")
