"""A kind of box: the launch template that `neuronbench fleet up` starts from, or a group that can scale to zero."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

from aws_cdk import Fn, Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from neuronbench_infra.base import BaseStack
from neuronbench_infra.names import DEPLOYMENT_TAG, FLEET_TAG, KIND_TAG, PURCHASE_TAG, publish, tag
from neuronbench_infra.settings import Box, Settings

ON_BOX: Final = Path(__file__).parent / "on_box"
MOST_USER_DATA_BYTES: Final = 16384
_Template = ec2.CfnLaunchTemplate


class BoxStack(Stack):
    """Makes nothing that costs anything until a box is started."""

    def __init__(
        self, scope: Construct, name: str, *, settings: Settings, box: Box, base: BaseStack, **stack: Any
    ) -> None:
        super().__init__(
            scope, name, description=f"neuronbench {settings.deployment}: boxes of {box.instance_type}", **stack
        )
        self.template = _Template(
            self,
            "Template",
            launch_template_data=_template_data(settings, box, base),
            tag_specifications=[
                _Template.LaunchTemplateTagSpecificationProperty(
                    resource_type="launch-template", tags=[_tag(DEPLOYMENT_TAG, settings.deployment)]
                )
            ],
        )
        values: dict[str, Any] = {
            "launch_template": self.template.ref,
            "instance_type": box.instance_type,
            "ami_parameter": "" if box.ami else box.ami_parameter,
            "ami": box.ami,
            "idle_stop_min": settings.idle_stop_min,
            "purchase": box.purchase,
            "reservation": box.reservation,
            "zone": box.az,
            "group": "",
        }
        if box.purchase == "asg":
            values["group"] = self._group(settings, box, base).ref
        publish(self, settings.deployment, f"box/{box.kind}", values)
        tag(self, settings.deployment)

    def _group(self, settings: Settings, box: Box, base: BaseStack) -> autoscaling.CfnAutoScalingGroup:
        """Empty at first. A box that shuts itself down leaves it for good: the guard sees to that."""
        Group = autoscaling.CfnAutoScalingGroup
        fleet = f"{box.kind}-group"  # as which `neuronbench fleet run` finds its boxes
        marks = {
            DEPLOYMENT_TAG: settings.deployment,
            KIND_TAG: box.kind,
            FLEET_TAG: fleet,
            PURCHASE_TAG: "on-demand",
            "Name": f"{settings.deployment}-{fleet}",
        }
        subnets = base.place.box_subnets
        return Group(
            self,
            "Group",
            min_size="0",
            max_size=str(box.most),
            launch_template=Group.LaunchTemplateSpecificationProperty(
                launch_template_id=self.template.ref, version=self.template.attr_latest_version_number
            ),
            vpc_zone_identifier=[subnets[settings.network.azs.index(box.az)]] if box.az else subnets,
            notification_configurations=[
                Group.NotificationConfigurationProperty(
                    topic_arn=base.guard.alarms.topic_arn,
                    notification_types=[
                        f"autoscaling:EC2_INSTANCE_{what}"
                        for what in ("LAUNCH", "LAUNCH_ERROR", "TERMINATE", "TERMINATE_ERROR")
                    ],
                )
            ],
            tags=[
                Group.TagPropertyProperty(key=key, value=value, propagate_at_launch=True)
                for key, value in marks.items()
            ],
        )


def _template_data(settings: Settings, box: Box, base: BaseStack) -> ec2.CfnLaunchTemplate.LaunchTemplateDataProperty:
    block = box.purchase == "capacity-block"
    marks = [
        _tag(DEPLOYMENT_TAG, settings.deployment),
        _tag(KIND_TAG, box.kind),
        _tag("Name", f"{settings.deployment}-{box.kind}"),
    ]
    return _Template.LaunchTemplateDataProperty(
        # A parameter is looked up when a box starts, not when the stack is deployed: the newest image, unless pinned.
        image_id=box.ami or f"resolve:ssm:{box.ami_parameter}",
        instance_type=box.instance_type,
        iam_instance_profile=_Template.IamInstanceProfileProperty(arn=base.profile.attr_arn),
        security_group_ids=[base.place.boxes.security_group_id],
        instance_initiated_shutdown_behavior="terminate" if box.purchase == "asg" else settings.on_shutdown,
        metadata_options=_Template.MetadataOptionsProperty(
            http_endpoint="enabled",
            http_tokens="required",
            http_put_response_hop_limit=1,  # not from inside a container's own network
            instance_metadata_tags="enabled",  # a box reads there when it expires
        ),
        block_device_mappings=[
            _Template.BlockDeviceMappingProperty(
                device_name="/dev/sda1",  # the root of Ubuntu's images
                ebs=_Template.EbsProperty(
                    encrypted=True,  # with the account's key for EBS: a key of ours would need grants of whoever starts
                    volume_type="gp3",
                    volume_size=box.disk_gib,
                    throughput=box.disk_mib_s,
                    iops=box.disk_iops,
                    delete_on_termination=True,
                ),
            )
        ],
        instance_market_options=_Template.InstanceMarketOptionsProperty(market_type="capacity-block")
        if block
        else None,
        capacity_reservation_specification=_Template.CapacityReservationSpecificationProperty(
            capacity_reservation_target=_Template.CapacityReservationTargetProperty(
                capacity_reservation_id=box.reservation
            )
        )
        if block
        else None,
        tag_specifications=[
            _Template.TagSpecificationProperty(resource_type=what, tags=marks) for what in ("instance", "volume")
        ],
        user_data=Fn.base64(user_data(settings, box)),
    )


def user_data(settings: Settings, box: Box) -> str:
    """The script of a box's first boot, with the watch over idleness in it."""
    text = (ON_BOX / "user_data.sh").read_text(encoding="utf-8")
    script = base64.encodebytes((ON_BOX / "idle_stop.sh").read_bytes()).decode().strip()
    for name, value in {
        "IDLE_STOP": script,
        "DEPLOYMENT": settings.deployment,
        "KIND": box.kind,
        "IDLE_STOP_MIN": str(settings.idle_stop_min),
        "MAX_HOURS": str(settings.max_hours),
    }.items():
        text = text.replace(f"@{name}@", value)
    size = len(text.encode())
    assert size < MOST_USER_DATA_BYTES, f"user data: EC2 takes {MOST_USER_DATA_BYTES} bytes, found {size}"
    return text


def _tag(key: str, value: str) -> Any:
    from aws_cdk import CfnTag

    return CfnTag(key=key, value=value)
