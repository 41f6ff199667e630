"""The guard of a deployment: stops boxes when the budget is spent, when their time is over, or when a group lost one.

Runs in AWS Lambda, where boto3 is there. It is asked by a clock every few minutes, by the budget's own message, and by
EC2 when a box goes down. All it knows is in tags; it keeps no state, so a raised budget or a moved tag counts at once.

A box in a Capacity Block is not stopped for the budget: the block was paid for when it was bought, and may well be what
used the budget up; stopping its boxes would save nothing and throw away what was paid for. Its time still ends.

Environment: NEURONBENCH_DEPLOYMENT, NEURONBENCH_MAX_HOURS, NEURONBENCH_BUDGET (its name; empty without one),
NEURONBENCH_ACCOUNT.
"""

from __future__ import annotations

import datetime
import json
import os
from typing import Any

DEPLOYMENT_TAG = "neuronbench:deployment"
EXPIRES_TAG = "neuronbench:expires"
GROUP_TAG = "aws:autoscaling:groupName"
CANNOT_BE_STOPPED = ("UnsupportedOperation",)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answer to one event; what was done, by instance id. Raises at the end if anything could not be done."""
    guard = Guard(
        deployment=os.environ["NEURONBENCH_DEPLOYMENT"],
        max_hours=float(os.environ["NEURONBENCH_MAX_HOURS"]),
        budget=os.environ.get("NEURONBENCH_BUDGET", ""),
        account=os.environ.get("NEURONBENCH_ACCOUNT", ""),
    )
    if event.get("detail-type") == "EC2 Instance State-change Notification":
        guard.gone(event["detail"]["instance-id"])
    else:
        guard.sweep(spent=any(record.get("EventSource") == "aws:sns" for record in event.get("Records", ())))
    if guard.problems:
        raise RuntimeError("; ".join(guard.problems))  # Lambda tries again, and the alarm on errors rings
    return {"done": guard.done}


class Guard:
    """One look at a deployment."""

    def __init__(self, *, deployment: str, max_hours: float, budget: str, account: str) -> None:
        import boto3

        self.deployment, self.max_hours, self.budget, self.account = deployment, max_hours, budget, account
        self.ec2, self.groups = boto3.client("ec2"), boto3.client("autoscaling")
        self.budgets = boto3.client("budgets")
        self.done: dict[str, str] = {}
        self.problems: list[str] = []

    def sweep(self, *, spent: bool = False) -> None:
        """Stop what is over: everything that costs by the hour when the money is, else each box whose time is."""
        spent = self.spent() or spent
        if spent:
            self.empty_groups()
        now = datetime.datetime.now(datetime.UTC)
        for instance in self.running():
            costs = instance.get("InstanceLifecycle") != "capacity-block"
            reason = "the budget is spent" if spent and costs else self.over(instance, now)
            if reason:
                self.stop(instance, reason)

    def gone(self, instance_id: str) -> None:
        """A box went down by itself: its group, if it is of one, must not start another in its place."""
        found = self.ec2.describe_instances(
            Filters=[{"Name": "instance-id", "Values": [instance_id]}, self.of_this_deployment()]
        )
        for reservation in found["Reservations"]:
            for instance in reservation["Instances"]:
                if GROUP_TAG in tags(instance):
                    self.leave_group(instance_id, f"it is {instance['State']['Name']}")

    def spent(self) -> bool:
        """Whether this month's budget is used up, as Budgets knows it (some hours late)."""
        if not self.budget:
            return False
        try:
            found = self.budgets.describe_budget(AccountId=self.account, BudgetName=self.budget)["Budget"]
        except Exception as error:  # the rest of the sweep must not wait for this
            self.problem("look up the budget", error)
            return False
        actual = found.get("CalculatedSpend", {}).get("ActualSpend", {}).get("Amount", "0")
        return float(actual) >= float(found["BudgetLimit"]["Amount"])

    def over(self, instance: dict[str, Any], now: datetime.datetime) -> str:
        """Why a box's time is over; empty when it is not."""
        text = tags(instance).get(EXPIRES_TAG, "")
        try:
            expires = datetime.datetime.fromisoformat(text)
        except ValueError:
            expires = None
        if expires is None:
            limit = instance["LaunchTime"] + datetime.timedelta(hours=self.max_hours)
            found = f"{EXPIRES_TAG}={text!r}"
            return f"it has run for {self.max_hours:g} hours with {found}" if now >= limit else ""
        if expires.tzinfo is None:
            expires = expires.replace(tzinfo=datetime.UTC)
        return f"it expired at {text}" if now >= expires else ""

    def running(self) -> list[dict[str, Any]]:
        pages = self.ec2.get_paginator("describe_instances").paginate(
            Filters=[self.of_this_deployment(), {"Name": "instance-state-name", "Values": ["pending", "running"]}]
        )
        return [each for page in pages for reservation in page["Reservations"] for each in reservation["Instances"]]

    def of_this_deployment(self) -> dict[str, Any]:
        return {"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [self.deployment]}

    def stop(self, instance: dict[str, Any], reason: str) -> None:
        """Stop a box; one of a group leaves it, one that cannot be stopped (spot) is terminated."""
        name = instance["InstanceId"]
        try:
            if GROUP_TAG in tags(instance):
                self.leave_group(name, reason)
            elif instance.get("InstanceLifecycle") == "spot":
                self.terminate(name, reason)
            else:
                self.halt(name, reason)
        except Exception as error:  # the others must be stopped all the same
            self.problem(f"stop {name}", error)

    def halt(self, name: str, reason: str) -> None:
        """Stop a box, its disk stays; terminate it where EC2 says that it is none that can be stopped."""
        try:
            self.ec2.stop_instances(InstanceIds=[name])
        except Exception as error:
            if code(error) not in CANNOT_BE_STOPPED:
                raise
            self.terminate(name, f"{reason}; it cannot be stopped ({error})")
        else:
            self.did(name, "stopped", reason)

    def terminate(self, name: str, reason: str) -> None:
        self.ec2.terminate_instances(InstanceIds=[name])
        self.did(name, "terminated", reason)

    def leave_group(self, name: str, reason: str) -> None:
        """Terminate a box of a group so that the group wants one less."""
        try:
            self.groups.terminate_instance_in_auto_scaling_group(InstanceId=name, ShouldDecrementDesiredCapacity=True)
        except Exception as error:
            if code(error) == "ValidationError":
                self.did(name, "nothing", f"its group has let it go already ({error})")
                return
            self.problem(f"take {name} out of its group", error)
        else:
            self.did(name, "terminated, its group wants one less", reason)

    def empty_groups(self) -> None:
        """Groups of the deployment want no boxes any more."""
        pages = self.groups.get_paginator("describe_auto_scaling_groups").paginate(
            Filters=[{"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [self.deployment]}]
        )
        for group in (group for page in pages for group in page["AutoScalingGroups"]):
            name = group["AutoScalingGroupName"]
            if group["DesiredCapacity"] == 0 == group["MinSize"]:
                continue
            try:
                self.groups.update_auto_scaling_group(AutoScalingGroupName=name, MinSize=0, DesiredCapacity=0)
                self.did(name, "emptied", "the budget is spent")
            except Exception as error:  # boxes must be stopped all the same
                self.problem(f"empty {name}", error)

    def did(self, name: str, what: str, reason: str) -> None:
        self.done[name] = what
        print(json.dumps({"deployment": self.deployment, "name": name, "did": what, "because": reason}))

    def problem(self, what: str, error: Exception) -> None:
        self.problems.append(f"cannot {what}: {error}")
        print(json.dumps({"deployment": self.deployment, "cannot": what, "error": str(error)}))


def code(error: Exception) -> str:
    """AWS's word for what went wrong; empty for an error of another kind."""
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def tags(instance: dict[str, Any]) -> dict[str, str]:
    """Tags of an instance as a mapping."""
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
