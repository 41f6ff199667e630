"""What S3 complains of, in words that say what to do. Knows errors by their names and codes: nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from neuronbench.weights.manifest import StoreError

THERE: Final = frozenset({"PreconditionFailed", "412"})
CONFLICT: Final = frozenset({"ConditionalRequestConflict", "409"})
"""Another writer of the same key is at it: whether there is an object then has to be asked."""
ABSENT: Final = frozenset({"404", "NoSuchKey", "NotFound"})
UNKNOWN: Final = frozenset({"NotImplemented", "501"})
DAMAGED: Final = frozenset({"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"})
"""What arrived is not what was sent."""
LOST: Final = frozenset({"NoSuchUpload", "InvalidPart", "InvalidPartOrder"})
"""An upload that others have ended, or whose parts others have replaced."""
_THROTTLED: Final = frozenset(
    {"SlowDown", "503", "ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded",
     "TooManyRequests", "429"}
)  # fmt: skip
_EXPIRED: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "RequestExpired"}
)
_SIGN_IN: Final = frozenset(
    {"TokenRetrievalError", "SSOError", "SSOTokenLoadError", "UnauthorizedSSOTokenError", "NoAuthTokenError",
     "LoginError", "LoginRefreshRequired", "LoginTokenLoadError", "LoginInsufficientPermissions",
     "LoginAuthorizationCodeError", "RefreshWithMFAUnsupportedError"}
)  # fmt: skip
"""Exceptions of botocore for a sign-in that is over, or was never made; no request is sent then."""
_NO_CREDENTIALS: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"}
)
_FORBIDDEN: Final = frozenset({"403", "AccessDenied", "Forbidden", "AllAccessDisabled", "AccountProblem"})
_UNKNOWN_CALLER: Final = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "UnrecognizedClientException"})
_ELSEWHERE: Final = frozenset(
    {"PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_ACTIONS: Final[Mapping[str, str]] = {
    "HeadObject": "s3:GetObject and s3:ListBucket", "GetObject": "s3:GetObject", "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject", "UploadPart": "s3:PutObject", "CompleteMultipartUpload": "s3:PutObject",
    "ListObjectsV2": "s3:ListBucket", "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListParts": "s3:ListMultipartUploadParts", "AbortMultipartUpload": "s3:AbortMultipartUpload",
}  # fmt: skip
"""Operation → what a role must allow. Without s3:ListBucket an object that is not there reads as forbidden."""
_TOLD_ACTION: Final = re.compile(r"perform: ([a-z0-9-]+:\w+)")
_AGAIN: Final = "do the same again, it goes on where it stopped"


def code(error: BaseException) -> str:
    """The service's own code for an error; empty when it did not come from the service."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def forbidden(error: BaseException) -> bool:
    """Whether the caller may not do that."""
    return code(error) in _FORBIDDEN


def told(error: BaseException, url: str, verb: str, key: str) -> StoreError:
    """An error of boto3 as one of a store: `verb` and `key` say what was tried."""
    if isinstance(error, StoreError):
        return error
    kind, remedy = _judged(error, url)
    text = " ".join(str(error).split())[:300]
    return StoreError(kind, f"{url}: cannot {verb} {key}: {type(error).__name__}: {text}", remedy=remedy)


def _judged(error: BaseException, url: str) -> tuple[str, str]:
    said, name = code(error), type(error).__name__
    if said in _EXPIRED or name in _SIGN_IN:
        return (
            "store_auth",
            f"The session's token has expired: get a new one (aws sso login, aws login, aws configure); {_AGAIN}.",
        )
    if said in _FORBIDDEN:
        return "store_auth", f"Allow {_action(error)} on {url} for this role or user (bucket policy, IAM, KMS key)."
    if said in _UNKNOWN_CALLER or name in _NO_CREDENTIALS:
        return "store_auth", f"Give credentials that may read and write {url} (AWS_PROFILE, a role)."
    if said == "RequestTimeTooSkewed":
        return "store_auth", f"The clock of this host is wrong: set it (chronyc makestep); {_AGAIN}."
    if said in ("NoSuchBucket", "InvalidBucketName"):
        return "store_not_found", "Create the bucket, or give another."
    if said in _ELSEWHERE:
        region = _region(error)
        where = f"in {region}: set AWS_REGION={region}" if region else "in another region: set AWS_REGION to it"
        return "store_region", f"The bucket is {where}; {_AGAIN}."
    if said in _THROTTLED:
        return "store_throttled", f"S3 asked for a slower pace all the way: wait some minutes; {_AGAIN}."
    if said in DAMAGED:
        return (
            "weights_mismatch",
            f"Bytes were changed on their way, again and again: look at proxy and memory; {_AGAIN}.",
        )
    if said in ("EntityTooLarge", "QuotaExceeded", "StorageFull", "507"):
        return "disk_full", "Make room in the store, or use another."
    return "store_unreachable", f"Check the network and the endpoint; {_AGAIN}."


def _action(error: BaseException) -> str:
    named = _TOLD_ACTION.search(str(error))
    operation = str(getattr(error, "operation_name", ""))
    return named[1] if named else _ACTIONS.get(operation, f"s3:{operation}" if operation else "reading and writing")


def _region(error: BaseException) -> str:
    response: Any = getattr(error, "response", None) or {}
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    found = headers.get("x-amz-bucket-region") or response.get("Error", {}).get("Region") or ""
    if not found:
        expecting = re.search(r"expecting '([a-z0-9-]+)'", str(error))
        found = expecting[1] if expecting else ""
    return str(found) if re.fullmatch(r"[a-z0-9-]{1,40}", str(found)) else ""
