"""What can go wrong with AWS: errors that it answers, and connections that break. See `aws_stand_in.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """An error that the service answers: HTTP status, and code and message by service."""

    status: int
    code: str
    message: str
    ssm_code: str = ""
    s3_code: str = ""

    def code_of(self, service: str) -> str:
        return {"ssm": self.ssm_code, "s3": self.s3_code}.get(service) or self.code


@dataclass(frozen=True)
class Breakage:
    """Something that happens to the connection or to the bytes."""

    name: str


DROPPED, LOST, CUT, SPOILED = map(Breakage, ("dropped", "lost", "cut", "spoiled"))
THROTTLED = Refusal(503, "RequestLimitExceeded", "Request limit exceeded.", "ThrottlingException", "SlowDown")
BROKEN = Refusal(500, "InternalError", "An internal error has occurred", "InternalServerError", "InternalError")
CAPACITY = Refusal(
    500, "InsufficientInstanceCapacity", "We currently do not have sufficient capacity in the Availability Zone."
)
UNSUPPORTED = Refusal(400, "Unsupported", "Your requested instance type is not supported in your Availability Zone.")
QUOTA = Refusal(400, "VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit of 0.")
SPOT_QUOTA = Refusal(400, "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
SPOT_PRICE = Refusal(400, "SpotMaxPriceTooLow", "Your Spot request price of 0.01 is lower than the minimum of 0.2.")
FORBIDDEN = Refusal(
    403,
    "UnauthorizedOperation",
    "You are not authorized to perform this operation. User: arn:aws:iam::role/me is not authorized to perform:"
    " ec2:RunInstances. Encoded authorization failure message: " + "q" * 600,
    "AccessDeniedException",
    "AccessDenied",
)
