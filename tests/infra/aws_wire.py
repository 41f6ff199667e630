"""How AWS' services speak on the wire, as far as the stand-in does: requests read, answers and errors made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

EC2_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request that arrived."""

    service: str
    operation: str
    """As AWS calls it: `RunInstances`, `PutObject`."""
    parameters: Mapping[str, Any]
    """EC2: flat, as on the wire (`SubnetId`, `TagSpecification.1.Tag.1.Key`). SSM: the JSON. S3: Bucket, Key, Size."""
    body: bytes = field(repr=False)

    def listed(self, prefix: str) -> list[str]:
        """Values of EC2's numbered parameters: `listed("InstanceId")`."""
        return [str(value) for key, value in self.parameters.items() if key.startswith(f"{prefix}.")]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is sent back."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/xml"


def read(environ: Mapping[str, Any], body: bytes) -> Request:
    """The service and operation of a request that boto3 has signed."""
    scope = str(environ.get("HTTP_AUTHORIZATION", "")).partition("Credential=")[2].split(",")[0].split("/")
    service = scope[3] if len(scope) >= 5 else ""
    target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
    if target:
        return Request(
            service=service, operation=target.rpartition(".")[2], parameters=json.loads(body or b"{}"), body=body
        )
    if service == "s3":
        return _s3(environ, body)
    flat = {
        key: values[-1] for key, values in parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True).items()
    }
    return Request(service=service, operation=flat.pop("Action", ""), parameters=flat, body=body)


def error(request: Request, status: int, code: str, message: str) -> Answer:
    """An error as the service of `request` words it."""
    if request.service == "ssm":
        text = json.dumps({"__type": code, "message": message}).encode()
        return Answer(status=status, body=text, content_type="application/x-amz-json-1.1")
    if request.service == "s3":
        text = (
            f"<Error><Code>{code}</Code><Message>{escape(message)}</Message><RequestId>0</RequestId></Error>".encode()
        )
        return Answer(status=status, body=text, content_type="application/xml")
    text = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></Errors>"
        "<RequestID>0</RequestID></Response>"
    ).encode()
    return Answer(status=status, body=text)


def ssm(value: Any) -> Answer:
    return Answer(body=json.dumps(value).encode(), content_type="application/x-amz-json-1.1")


def ec2(operation: str, value: Mapping[str, Any]) -> Answer:
    """EC2's XML: lists become `<item>`s; keys are the names on the wire (`capacityBlockOfferingSet`)."""
    text = f'<{operation}Response xmlns="{EC2_NAMESPACE}"><requestId>0</requestId>{_xml(value)}</{operation}Response>'
    return Answer(body=text.encode())


def _xml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "".join(f"<{key}>{_xml(item)}</{key}>" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return "".join(f"<item>{_xml(item)}</item>" for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return escape(str(value))


def _s3(environ: Mapping[str, Any], body: bytes) -> Request:
    bucket, _, key = unquote(str(environ.get("PATH_INFO", "/"))).lstrip("/").partition("/")
    query = parse_qs(str(environ.get("QUERY_STRING", "")), keep_blank_values=True)
    method = str(environ["REQUEST_METHOD"])
    operation = f"{method.capitalize()}{'Object' if key else 'Bucket'}"
    if "uploads" in query and method == "POST":
        operation = "CreateMultipartUpload"
    elif "uploads" in query:
        operation = "ListMultipartUploads"
    elif "uploadId" in query:
        operation = {
            "PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload",
            "GET": "ListParts",
        }[method]  # fmt: skip
    elif method == "GET" and not key:
        operation = "ListObjectsV2" if "list-type" in query else "ListObjects"
    parameters: dict[str, Any] = {"Bucket": bucket, "Key": key, "Size": len(body)}
    parameters.update({name: values[-1] for name, values in query.items()})
    if "HTTP_IF_NONE_MATCH" in environ:
        parameters["IfNoneMatch"] = environ["HTTP_IF_NONE_MATCH"]
    return Request(service="s3", operation=operation, parameters=parameters, body=body)
