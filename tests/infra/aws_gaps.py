"""What moto does not do of EC2 and SSM, in the form that AWS documents: see `aws_stand_in.py`."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aws_wire import Answer, Request, ec2, error, ssm

Carried: TypeAlias = tuple[str, list[tuple[str, str]], bytes]
_OUTPUT = 24_000
"""Characters of a command's output that GetCommandInvocation tells."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of SSM for one instance."""

    id: str
    instance: str
    document: str
    parameters: Mapping[str, list[str]]
    """Of AWS-RunShellScript: `commands` (lines), `executionTimeout`, `workingDirectory`."""
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """How a command ended."""

    code: int = 0
    stdout: str = ""
    stderr: str = ""
    status: str = ""
    """`Success`, `Failed`, `TimedOut`, `Cancelled`; empty: by the code."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A Capacity Block that is offered."""

    id: str
    instance_type: str
    zone: str
    hours: int
    usd: float
    start: dt.datetime
    count: int = 1


@dataclass
class Gaps:
    """State of what is bridged; a test sets it as it likes."""

    run_command: Callable[[Command], CommandResult] | None = None
    ping: dict[str, str] = field(default_factory=dict)
    """Instance → what SSM says of it: `Online`, `ConnectionLost`, `` (not registered)."""
    default_ping: str = "Online"
    spot_prices: dict[tuple[str, str], float] = field(default_factory=dict)
    """(type, zone) → USD an hour. Where nothing is said there is no history."""
    blocks: list[Block] = field(default_factory=list)
    bought: dict[str, Block] = field(default_factory=dict)
    """Reservation → the block it is."""
    reservation_tags: dict[str, dict[str, str]] = field(default_factory=dict)
    reservation_states: dict[str, str] = field(default_factory=dict)
    """Reservation → `active` and so on; where nothing is said, by its times."""
    _launched: dict[str, tuple[dict[str, Any], Carried]] = field(default_factory=dict)
    _commands: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def answer(self, request: Request, carry_out: Callable[[], Carried]) -> Answer | Carried | None:
        """The answer; None where moto answers itself."""
        name = f"_{request.service}_{request.operation}"
        bridge = getattr(self, name, None)
        if bridge is None:
            return None
        if request.operation == "RunInstances":
            with self._lock:
                answered: Answer | Carried | None = bridge(request, carry_out)
                return answered
        made: Answer | None = bridge(request)
        return made

    # -- EC2

    def _ec2_RunInstances(self, request: Request, carry_out: Callable[[], Carried]) -> Answer | Carried | None:
        token = str(request.parameters.get("ClientToken") or "")
        asked = {key: value for key, value in request.parameters.items() if key != "Version"}
        if token in self._launched:
            before, answer = self._launched[token]
            if before != asked:
                text = (
                    "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
                )
                return error(request, 400, "IdempotentParameterMismatch", text)
            return answer
        target = request.parameters.get(
            "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
        )
        if target is not None and self._state(str(target)) != "active":
            text = f"The Capacity Reservation {target} is not active."
            return error(request, 400, "InvalidCapacityReservationState", text)
        answer = carry_out()
        if token and answer[0].startswith("200"):
            self._launched[token] = (asked, answer)
        return answer

    def _ec2_DescribeSpotPriceHistory(self, request: Request) -> Answer:
        types = request.listed("InstanceType")
        now = _iso(dt.datetime.now(dt.UTC))
        found = [
            {"instanceType": kind, "productDescription": "Linux/UNIX", "spotPrice": f"{usd:.6f}", "timestamp": now,
             "availabilityZone": zone}
            for (kind, zone), usd in self.spot_prices.items()
            if not types or kind in types
        ]  # fmt: skip
        return ec2(request.operation, {"spotPriceHistorySet": found, "nextToken": ""})

    def _ec2_DescribeCapacityBlockOfferings(self, request: Request) -> Answer:
        hours = int(request.parameters.get("CapacityDurationHours") or 0)
        found = [
            {"capacityBlockOfferingId": block.id, "instanceType": block.instance_type, "availabilityZone": block.zone,
             "instanceCount": block.count, "startDate": _iso(block.start), "endDate": _iso(_end(block)),
             "capacityBlockDurationHours": block.hours, "upfrontFee": f"{block.usd:.2f}", "currencyCode": "USD",
             "tenancy": "default"}
            for block in self.blocks
            if block.instance_type == request.parameters.get("InstanceType") and block.hours == hours
        ]  # fmt: skip
        return ec2(request.operation, {"capacityBlockOfferingSet": found})

    def _ec2_PurchaseCapacityBlock(self, request: Request) -> Answer:
        wanted = request.parameters.get("CapacityBlockOfferingId")
        block = next((block for block in self.blocks if block.id == wanted), None)
        if block is None:
            return error(request, 400, "InvalidCapacityBlockOfferingId.NotFound", f"no offering {wanted}")
        id_ = f"cr-{uuid.uuid4().hex[:17]}"
        self.bought[id_] = block
        self.reservation_tags[id_] = _tags(request)
        return ec2(request.operation, {"capacityReservation": self._reservation(id_)})

    def _ec2_DescribeCapacityReservations(self, request: Request) -> Answer:
        asked = request.listed("CapacityReservationId")
        filters = _filters(request)
        found = [
            self._reservation(id_)
            for id_ in self.bought
            if (not asked or id_ in asked)
            and all(
                self.reservation_tags[id_].get(name.removeprefix("tag:")) in values
                for name, values in filters.items()
                if name.startswith("tag:")
            )
        ]
        return ec2(request.operation, {"capacityReservationSet": found})

    def _reservation(self, id_: str) -> dict[str, Any]:
        block = self.bought[id_]
        return {
            "capacityReservationId": id_, "instanceType": block.instance_type, "availabilityZone": block.zone,
            "totalInstanceCount": block.count, "availableInstanceCount": block.count, "state": self._state(id_),
            "startDate": _iso(block.start), "endDate": _iso(_end(block)), "reservationType": "capacity-block",
            "tagSet": [{"key": key, "value": value} for key, value in self.reservation_tags[id_].items()],
        }  # fmt: skip

    def _state(self, id_: str) -> str:
        if id_ in self.reservation_states:
            return self.reservation_states[id_]
        block, now = self.bought[id_], dt.datetime.now(dt.UTC)
        return "scheduled" if now < block.start else "active" if now < _end(block) else "expired"

    # -- SSM

    def _ssm_DescribeInstanceInformation(self, request: Request) -> Answer:
        asked: list[str] = []
        for filter_ in request.parameters.get("Filters", []):
            if filter_.get("Key") == "InstanceIds":
                asked += filter_["Values"]
        found = [
            {"InstanceId": id_, "PingStatus": ping, "LastPingDateTime": time.time(), "AgentVersion": "3.3.0.0",
             "PlatformType": "Linux"}
            for id_, state in _states().items()
            if (not asked or id_ in asked) and (ping := self._ping(id_, state))
        ]  # fmt: skip
        return ssm({"InstanceInformationList": found})

    def _ping(self, id_: str, state: str) -> str:
        if id_ in self.ping:
            return self.ping[id_]
        return self.default_ping if state == "running" else "ConnectionLost" if state != "terminated" else ""

    def _ssm_SendCommand(self, request: Request) -> Answer:
        asked, states = list(request.parameters.get("InstanceIds", [])), _states()
        for id_ in asked:
            if states.get(id_) != "running" or self._ping(id_, "running") != "Online":
                return error(request, 400, "InvalidInstanceId", f"Instances [[{id_}]] not in a valid state for account")
        command_id = str(uuid.uuid4())
        for id_ in asked:
            command = Command(
                id=command_id, instance=id_, document=str(request.parameters["DocumentName"]),
                parameters=request.parameters.get("Parameters", {}), comment=str(request.parameters.get("Comment", "")),
            )  # fmt: skip
            state: dict[str, Any] = {"status": "InProgress", "result": None, "document": command.document}
            self._commands[command_id, id_] = state
            if self.run_command is None:
                _finish(state, CommandResult())
            else:
                threading.Thread(target=self._execute, args=(command, state), daemon=True).start()
        return ssm({
            "Command": {
                "CommandId": command_id, "DocumentName": request.parameters["DocumentName"], "Status": "Pending",
                "StatusDetails": "Pending", "InstanceIds": asked, "TargetCount": len(asked), "CompletedCount": 0,
                "ErrorCount": 0, "Parameters": request.parameters.get("Parameters", {}),
                "RequestedDateTime": time.time(), "Comment": request.parameters.get("Comment", ""),
            }
        })  # fmt: skip

    def _execute(self, command: Command, state: dict[str, Any]) -> None:
        assert self.run_command is not None
        try:
            result = self.run_command(command)
        except Exception as failed:  # a box that breaks is a command that fails
            result = CommandResult(code=1, stderr=f"{type(failed).__name__}: {failed}")
        if state["status"] == "InProgress":
            _finish(state, result)

    def _ssm_GetCommandInvocation(self, request: Request) -> Answer:
        key = (str(request.parameters["CommandId"]), str(request.parameters["InstanceId"]))
        if key not in self._commands:
            return error(request, 400, "InvocationDoesNotExist", "")
        return ssm(self._invocation(key))

    def _ssm_ListCommandInvocations(self, request: Request) -> Answer:
        wanted, instance = request.parameters.get("CommandId"), request.parameters.get("InstanceId")
        found = [
            {**self._invocation(key), "CommandPlugins": []}
            for key in self._commands
            if wanted in (None, key[0]) and instance in (None, key[1])
        ]
        return ssm({"CommandInvocations": found})

    def _ssm_CancelCommand(self, request: Request) -> Answer:
        for (command, _), state in self._commands.items():
            if command == request.parameters["CommandId"] and state["status"] == "InProgress":
                state.update(status="Cancelled", result=CommandResult(code=-1))
        return ssm({})

    def _invocation(self, key: tuple[str, str]) -> dict[str, Any]:
        state = self._commands[key]
        result: CommandResult | None = state["result"]
        return {
            "CommandId": key[0], "InstanceId": key[1], "DocumentName": state["document"], "Status": state["status"],
            "StatusDetails": state["status"], "ResponseCode": -1 if result is None else result.code,
            "StandardOutputContent": "" if result is None else result.stdout[:_OUTPUT],
            "StandardErrorContent": "" if result is None else result.stderr[:_OUTPUT],
        }  # fmt: skip


def _finish(state: dict[str, Any], result: CommandResult) -> None:
    state["result"] = result
    state["status"] = result.status or ("Success" if result.code == 0 else "Failed")


def _states() -> dict[str, str]:
    """Instance → state, as moto has them."""
    from moto.backends import get_backend
    from moto.core.models import DEFAULT_ACCOUNT_ID

    backend = get_backend("ec2")[DEFAULT_ACCOUNT_ID]["us-west-2"]
    return {instance.id: instance.state for instance in backend.all_instances()}


def _filters(request: Request) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in request.parameters.items():
        if key.startswith("Filter.") and key.endswith(".Name"):
            found[str(value)] = request.listed(key.removesuffix(".Name") + ".Value")
    return found


def _tags(request: Request) -> dict[str, str]:
    names = {key: value for key, value in request.parameters.items() if key.startswith("TagSpecification.")}
    return {
        str(value): str(names[key.removesuffix(".Key") + ".Value"])
        for key, value in names.items()
        if key.endswith(".Key")
    }


def _end(block: Block) -> dt.datetime:
    return block.start + dt.timedelta(hours=block.hours)


def _iso(instant: dt.datetime) -> str:
    return instant.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
