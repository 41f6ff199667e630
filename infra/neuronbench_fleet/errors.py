"""What can go wrong when AWS is called, in classes that one can act on, and the exit status of each.

The class decides what is done next: `capacity` goes on to another zone, `quota` gives up that way of buying, `auth` and
`invalid` stop at once, `throttle`, `network` and `service` are tried again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from neuronbench.commands.host import FAILURE, USAGE, CommandError
from neuronbench.redaction import redact

if TYPE_CHECKING:
    from neuronbench.weights import StoreError

Kind: TypeAlias = Literal[
    "capacity", "unsupported", "quota", "price", "auth", "throttle", "network", "service", "not_found", "conflict",
    "invalid", "limit", "failed",
]  # fmt: skip

NO_CAPACITY, LIMIT, NOT_ALLOWED, QUOTA, BOX_LOST, INTERRUPTED = 3, 4, 5, 6, 7, 130
EXIT_STATUS: Final[Mapping[Kind, int]] = {
    "capacity": NO_CAPACITY, "unsupported": NO_CAPACITY, "limit": LIMIT, "price": LIMIT, "auth": NOT_ALLOWED,
    "quota": QUOTA, "invalid": FAILURE,
}  # fmt: skip
EXIT_HELP: Final = (
    f"Exit status: 0 done, {FAILURE} failure, {USAGE} wrong usage, {NO_CAPACITY} no capacity within the limits,"
    f" {LIMIT} a limit of time or money, {NOT_ALLOWED} not allowed by AWS, {QUOTA} a quota, {INTERRUPTED} interrupted."
)

TRANSIENT: Final[frozenset[Kind]] = frozenset({"throttle", "network", "service"})
"""The same call may succeed a moment later."""

_CAPACITY: Final = frozenset(
    {
        "InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "UnfulfillableCapacity",
        "InsufficientReservedInstanceCapacity", "InsufficientCapacityOnHost", "ReservationCapacityExceeded",
        "InsufficientFreeAddressesInSubnet",
    }
)  # fmt: skip
_PRICE: Final = frozenset({"SpotMaxPriceTooLow", "InvalidSpotMaxPrice"})
_QUOTA: Final = frozenset(
    {"InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "ServiceQuotaExceededException"}
)
_AUTH: Final = frozenset(
    {
        "UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AuthFailure", "InvalidClientTokenId",
        "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "RequestExpired", "OptInRequired",
        "UnrecognizedClientException", "PendingVerification", "Blocked", "InvalidAccessKeyId", "IncompleteSignature",
        "InvalidSignatureException", "MissingAuthenticationToken", "InvalidToken", "TokenRefreshRequired",
        "RequestTimeTooSkewed", "NotAuthorized", "AllAccessDisabled", "403", "Forbidden",
    }
)  # fmt: skip
_THROTTLE: Final = frozenset(
    {
        "RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
        "RequestThrottledException", "TooManyRequestsException", "SlowDown", "BandwidthLimitExceeded",
        "EC2ThrottledException", "PriorRequestNotComplete", "TransactionInProgressException", "429",
    }
)  # fmt: skip
_SERVICE: Final = frozenset(
    {"InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable", "Unavailable", "RequestTimeout"}
)
_CONFLICT: Final = frozenset(
    {
        "PreconditionFailed", "412", "ConditionalRequestConflict", "IdempotentParameterMismatch", "DependencyViolation",
        "IncorrectInstanceState", "IncorrectState", "IncorrectSpotRequestState", "UnsupportedOperation",
    }
)  # fmt: skip
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_CLOCK: Final = frozenset({"RequestTimeTooSkewed"})
_SKEWED: Final = ("Signature expired", "Signature not yet current")
"""How services other than EC2 and S3 begin to say so, under a code that has other reasons too."""
_KEYS: Final = frozenset(
    {
        "AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException",
        "InvalidSignatureException", "InvalidAccessKeyId", "MissingAuthenticationToken", "InvalidToken",
        "IncompleteSignature",
    }
)  # fmt: skip
_CREDENTIALS: Final = frozenset(
    {
        "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError",
        "SSOTokenLoadError", "UnauthorizedSSOTokenError", "SSOError", "NoAuthTokenError",
        "RefreshWithMFAUnsupportedError", "LoginError", "LoginRefreshRequired", "LoginTokenLoadError",
        "LoginInsufficientPermissions", "LoginAuthorizationCodeError",
    }
)  # fmt: skip
_NETWORK: Final = frozenset(
    {
        "EndpointConnectionError", "ConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "SSLError",
        "ConnectionClosedError", "ProxyConnectionError", "HTTPClientError", "IncompleteReadError",
        "ResponseStreamingError", "ResponseParserError", "FlexibleChecksumError",
    }
)  # fmt: skip
_ENCODED: Final = re.compile(r"\s*Encoded authorization failure message: \S+")
_ACTION: Final = re.compile(r"not authorized to perform:? (?:the action )?([a-z0-9-]+:[A-Za-z*]+)")

QUOTAS: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("inf", "on-demand"): ("L-1945791B", "Running On-Demand Inf instances"),
    ("inf", "spot"): ("L-B5D1601B", "All Inf Spot Instance Requests"),
    ("trn", "on-demand"): ("L-2C3B7624", "Running On-Demand Trn instances"),
    ("trn", "spot"): ("L-6B0D517C", "All Trn Spot Instance Requests"),
}
"""Family of instances and way of buying → code and name of the quota, which counts vCPUs in a region."""


class FleetError(CommandError):
    """Ends a fleet command; the class of the failure decides the exit status."""

    def __init__(self, message: str, *, kind: Kind = "failed", remedy: str = "", status: int | None = None) -> None:
        super().__init__(message, remedy=remedy, status=EXIT_STATUS.get(kind, FAILURE) if status is None else status)
        self.kind: Kind = kind
        self.message, self.remedy = message, remedy


class UsageError(FleetError):
    """What was asked for cannot be meant."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message, kind="invalid", remedy=remedy, status=USAGE)


class BoxLost(FleetError):
    """A box went away while something was waited for on it. `lost`: what became of it."""

    def __init__(self, lost: str, doing: str) -> None:
        super().__init__(f"{lost}, while {doing}", status=BOX_LOST)
        self.lost = lost


def of_store(error: StoreError) -> FleetError:
    """What the bucket has refused, as the end of a command; without credentials it is as of any other call."""
    return FleetError(str(error), kind="auth" if error.kind == "store_auth" else "failed")


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A failed call, classified. `message` has no secrets and no encoded blobs."""

    kind: Kind
    code: str
    """AWS' error code, or the name of botocore's exception."""
    message: str
    remedy: str = ""


class AwsError(FleetError):
    """A call to AWS that failed for good. `trouble` says why; `answered` is False when no answer came."""

    def __init__(self, service: str, operation: str, trouble: Trouble, *, attempts: int = 1) -> None:
        tried = f" ({attempts} attempts)" if attempts > 1 else ""
        super().__init__(
            f"{service} {operation}: {trouble.code}: {trouble.message}{tried}", kind=trouble.kind, remedy=trouble.remedy
        )
        self.service, self.operation, self.trouble, self.attempts = service, operation, trouble, attempts

    @property
    def answered(self) -> bool:
        """False: the request may or may not have been carried out."""
        return self.kind not in ("network", "service")


def classify_code(code: str, status: int = 400) -> Kind:
    """Class of an error code that AWS answered, whatever the HTTP status says (EC2 calls missing capacity a 500)."""
    bare = code.removeprefix("Server.").removeprefix("Client.")
    for kind, codes in _BY_CODE:
        if bare in codes:
            return kind
    if bare == "Unsupported":
        return "unsupported"
    if bare.endswith(("LimitExceeded", "LimitExceededException")):
        return "quota"
    if ".NotFound" in bare or bare.startswith("NoSuch") or bare.endswith("NotFound") or status == 404:
        return "not_found"
    if bare in ("ParameterNotFound", "InvalidInstanceId", "InvocationDoesNotExist"):
        return "not_found"
    if bare.endswith(("AlreadyExists", "InUse")) or ".Duplicate" in bare:
        return "conflict"
    return "service" if status >= 500 else "invalid"


_BY_CODE: Final[tuple[tuple[Kind, frozenset[str]], ...]] = (
    ("capacity", _CAPACITY), ("price", _PRICE), ("throttle", _THROTTLE), ("quota", _QUOTA), ("auth", _AUTH),
    ("service", _SERVICE), ("conflict", _CONFLICT),
)  # fmt: skip


def classify(error: BaseException, *, service: str = "", operation: str = "") -> Trouble:
    """What an exception of boto3 means. What is not one of AWS is `failed`."""
    name = type(error).__name__
    response = getattr(error, "response", None)
    if isinstance(response, Mapping) and "Error" in response:
        found = response["Error"]
        code = str(found.get("Code") or "Unknown")
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
        return _answered(code, str(found.get("Message") or ""), status, service, operation)
    text = redact(str(error))
    if name in _CREDENTIALS:
        remedy = (
            "sign in (aws sso login, aws configure), or name the profile: --profile NAME or AWS_PROFILE;"
            " on a box of AWS its role is used"
        )
        return Trouble(kind="auth", code=name, message=text, remedy=remedy)
    if name == "ProfileNotFound":
        return Trouble(kind="auth", code=name, message=text, remedy="aws configure list-profiles shows what there is")
    if name in ("NoRegionError", "InvalidRegionError"):
        return Trouble(
            kind="invalid", code=name, message=text, remedy="name the region: --region us-west-2, or AWS_REGION"
        )
    if name in _NETWORK or isinstance(error, (ConnectionError, TimeoutError)):
        remedy = "is the network there, and does the service exist in this region? Then again; nothing is started twice"
        return Trouble(kind="network", code=name, message=text, remedy=remedy)
    if name in ("ParamValidationError", "UnknownParameterError", "ValidationError"):
        return Trouble(kind="invalid", code=name, message=text)
    return Trouble(kind="failed", code=name, message=text)


def quota_of(instance_type: str, purchase: str) -> tuple[str, str] | None:
    """Code and name of the quota that instances of that type count towards; None where it is not known."""
    return QUOTAS.get((instance_type[:3], purchase))


def quota_remedy(instance_type: str, purchase: str, vcpus: int | None, region: str) -> str:
    """How the quota that stands in the way is raised."""
    known = quota_of(instance_type, purchase)
    if known is None:
        return "raise the quota that the message names: console, Service Quotas, Amazon EC2"
    code, name = known
    wanted = f" to at least {vcpus}" if vcpus else ""
    return (
        f"raise the quota {name!r} ({code}, counted in vCPUs) of {region}{wanted}: aws service-quotas"
        f" request-service-quota-increase --region {region} --service-code ec2 --quota-code {code} --desired-value"
        f" {vcpus or 'VCPUS'}; that takes hours to days; meanwhile another region or way of buying (--purchase)"
    )


def _answered(code: str, message: str, status: int, service: str, operation: str) -> Trouble:
    kind = classify_code(code, status)
    action = _ACTION.search(message)
    encoded = _ENCODED.search(message) is not None
    text = redact(_ENCODED.sub("", message).strip()) or f"HTTP status {status}"
    remedy = _remedy(kind, code, text, service, operation, action, encoded)
    return Trouble(kind=kind, code=code, message=text, remedy=remedy)


def _remedy(
    kind: Kind, code: str, message: str, service: str, operation: str, action: re.Match[str] | None, encoded: bool
) -> str:  # fmt: skip
    if kind == "auth":
        if code in _EXPIRED:
            return "the sign-in has expired: aws sso login, or fresh credentials"
        if code == "RequestExpired":  # EC2's word for a token that has expired, too
            return (
                "the sign-in has expired: aws sso login, or fresh credentials; if it has not, this machine's clock is"
                " minutes off: set it"
            )
        if code in _CLOCK or message.startswith(_SKEWED):
            return "this machine's clock is wrong (AWS refuses what is minutes off): set it, then again"
        if code in _KEYS:
            return "the credentials are not known to AWS: which ones are used says aws sts get-caller-identity"
        if code == "OptInRequired":
            return "the account has not enabled this region or service: console, Account, AWS Regions"
        if code in ("PendingVerification", "Blocked"):
            return "the account itself is held back by AWS: see its health page, or ask AWS Support"
        needed = action[1] if action is not None else f"{service or 'SERVICE'}:{operation or 'OPERATION'}"
        more = " (a long encoded reason was sent, too: aws sts decode-authorization-message)" if encoded else ""
        return f"allow {needed} to the identity that aws sts get-caller-identity shows{more}"
    if kind == "throttle":
        return "AWS asks for patience: fewer commands at a time, or again in some minutes"
    if kind == "capacity":
        return "more zones, another way of buying (--purchase on-demand,spot,block), or a longer --wait"
    if kind == "unsupported":
        return "another zone or instance type"
    if kind == "service":
        return "AWS had an error of its own: try again; nothing is started twice"
    return ""
