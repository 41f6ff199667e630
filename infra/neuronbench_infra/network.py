"""Where boxes live: subnets, the way out, and a security group that lets nobody in."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Acknowledgment, Fn, Stack, Validations
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_s3 as s3
from constructs import Construct

from neuronbench_infra.settings import Network

CIDR = "10.83.0.0/16"
"""Of a new VPC. An uncommon one, since peering needs networks that differ."""


class StackWithZones(Stack):
    """A stack that is told its zones: the CDK would ask the account for them, and so need one to make templates."""

    zones: Sequence[str] = ()

    @property
    def availability_zones(self) -> list[str]:
        return list(self.zones)


def zones_of(network: Network) -> list[str]:
    """Names of zones, or the first so many that the region turns out to have."""
    return list(network.azs) or [Fn.select(number, Fn.get_azs()) for number in range(network.zones)]


class Place(Construct):
    """A VPC with subnets for boxes and, without a way in or out, for a database."""

    def __init__(self, scope: Construct, name: str, *, network: Network, logs: s3.Bucket) -> None:
        super().__init__(scope, name)
        self.vpc: ec2.IVpc = self._existing(network) if network.vpc_id else self._new(network, logs)
        kind = ec2.SubnetType.PRIVATE_WITH_EGRESS if network.nat else ec2.SubnetType.PUBLIC
        self.box_subnets = self.vpc.select_subnets(subnet_type=kind).subnet_ids
        self.boxes = ec2.SecurityGroup(
            self,
            "Boxes",
            vpc=self.vpc,
            description="neuronbench boxes: nobody comes in",
            allow_all_outbound=False,
        )
        for port in network.egress_ports:
            # Registries, hubs and AWS have no fixed addresses. DNS, time and metadata of AWS pass no security group.
            self.boxes.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(port), f"out to port {port}")

    def _existing(self, network: Network) -> ec2.IVpc:
        private = list(network.private_subnet_ids) or None
        return ec2.Vpc.from_vpc_attributes(
            self,
            "Vpc",
            vpc_id=network.vpc_id,
            availability_zones=list(network.azs),
            public_subnet_ids=list(network.subnet_ids),
            isolated_subnet_ids=private,
        )

    def _new(self, network: Network, logs: s3.Bucket) -> ec2.IVpc:
        subnets = [
            ec2.SubnetConfiguration(name="Public", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=22),
            ec2.SubnetConfiguration(name="Data", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=26),
        ]
        if network.nat:
            kind = ec2.SubnetType.PRIVATE_WITH_EGRESS
            subnets.append(ec2.SubnetConfiguration(name="Private", subnet_type=kind, cidr_mask=22))
        vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(CIDR),
            availability_zones=zones_of(network),
            nat_gateways=1 if network.nat else 0,
            subnet_configuration=subnets,
            # Receipts, weights and caches go by the gateway: free of charge, and not over the internet.
            gateway_endpoints={"S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3)},
        )
        if network.azs:
            reason = "Chips are sold in some zones only; these were asked for by name."
            Validations.of(vpc).acknowledge(Acknowledgment(id="CloudFormation-Validate::W3010", reason=reason))
        vpc.add_flow_log("Flows", destination=ec2.FlowLogDestination.to_s3(logs, "flows"))
        for subnet in vpc.public_subnets if network.nat else ():
            # Only boxes need addresses of their own, and behind a gateway they are elsewhere.
            subnet.node.default_child.map_public_ip_on_launch = False
        return vpc
