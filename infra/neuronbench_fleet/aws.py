"""The one door to AWS: clients, every call counted and classified, retries, and a dry run that changes nothing.

Credentials, region and endpoint are boto3's own affair (AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL, a role, ...).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuronbench.redaction import redact
from neuronbench_fleet.errors import TRANSIENT, AwsError, classify, classify_code
from neuronbench_fleet.pace import Pace, backoff_s

ATTEMPTS: Final = 8
"""Of one call, while the trouble may pass by itself: about a minute and a half of patience."""
_READING: Final = ("Describe", "Get", "List", "Head", "Select", "Search")
_NEVER_REPEATED: Final = frozenset({"PurchaseCapacityBlock"})
"""It has no token that would make a second request mean the first one: a lost answer is looked up, not repeated."""
_SHOWN: Final = 1500
"""Characters of a parameter that are printed."""
_LINES: Final = 12
"""Texts of a list that are printed; a script has a hundred."""
_HIDDEN: Final = frozenset({"UserData", "SecretString", "SecretBinary"})


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call that was made, or in a dry run would be made."""

    service: str
    operation: str
    """As AWS calls it: `RunInstances`."""
    parameters: Mapping[str, Any]
    changes: bool
    """Whether it changes anything; those are not made in a dry run."""
    made: bool

    def line(self) -> str:
        """For people, without secrets and without bodies; scripts and long texts are cut, `to_json` has them whole."""
        shown = " ".join(f"{name}={_shown(name, value)}" for name, value in self.parameters.items())
        return f"{self.service} {self.operation} {shown}".rstrip()

    def to_json(self) -> dict[str, Any]:
        return {
            "service": self.service, "operation": self.operation, "changes": self.changes, "made": self.made,
            "parameters": {name: _plain(name, value) for name, value in self.parameters.items()},
        }  # fmt: skip


class Aws:
    """Calls to one region.

    Every call, also one through a `client` that was handed out, is kept in `calls`, retried while the trouble may pass,
    and in a dry run not made if it changes anything (the answer is then empty). Failures that last are `AwsError`.
    """

    def __init__(
        self,
        *,
        region: str | None = None,
        profile: str | None = None,
        dry_run: bool = False,
        on_call: Callable[[Call], None] | None = None,
        on_retry: Callable[[str], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`on_call` hears of every call before it is made, `on_retry` of every wait before a repetition.

        Raises `AwsError` for a profile that does not exist and a region that nobody named.
        """
        import boto3
        import botocore.exceptions

        self.dry_run = dry_run
        self.pace = pace if pace is not None else Pace()
        self.calls: list[Call] = []
        self.repeated = 0
        """Requests that were sent again."""
        self._on_call, self._on_retry = on_call, on_retry
        self._clients: dict[str, Any] = {}
        try:
            self._session = boto3.Session(region_name=region or os.environ.get("AWS_REGION"), profile_name=profile)
            if self._session.region_name is None:
                raise botocore.exceptions.NoRegionError
        except botocore.exceptions.BotoCoreError as error:
            raise AwsError("aws", "session", classify(error)) from error
        self.region: str = self._session.region_name

    def client(self, service: str) -> Any:
        """boto3's client; its calls are counted, repeated and held back as all others. It raises boto3's exceptions."""
        if service not in self._clients:
            self._clients[service] = self._connect(service)
        return self._clients[service]

    def call(self, service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """One call, by the name of boto3's method (`run_instances`). Raises `AwsError`."""
        with self.translating(service, operation):
            answer: dict[str, Any] = getattr(self.client(service), operation)(**parameters)
        return answer

    def pages(self, service: str, operation: str, key: str, /, **parameters: Any) -> Iterator[Any]:
        """The items under `key` of all pages of a listing. Raises `AwsError`."""
        with self.translating(service, operation):
            for page in self.client(service).get_paginator(operation).paginate(**parameters):
                yield from page.get(key, ())

    def presigned(self, bucket: str, key: str, *, expires_s: int) -> str:
        """A URL that reads one object without credentials: by the region's own endpoint, with Signature 4.

        boto3's own choice is the global endpoint and Signature 2: a VPC's endpoint does not lead there, and KMS refuses
        it. Makes no call.
        """
        import botocore.config

        config = botocore.config.Config(signature_version="s3v4", s3={"addressing_style": "virtual"})
        with self.translating("s3", "presign"):
            url: str = self._session.client("s3", config=config).generate_presigned_url(
                "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=expires_s
            )
        return url

    def translating(self, service: str, operation: str) -> _Translating:
        """A context in which boto3's exceptions become `AwsError`."""
        return _Translating(service, operation)

    def counts(self) -> dict[str, int]:
        """Operation (`ec2 RunInstances`) → calls that were made."""
        return dict(Counter(f"{call.service} {call.operation}" for call in self.calls if call.made))

    def plan(self) -> list[Call]:
        """Of a dry run: the calls that would have changed something."""
        return [call for call in self.calls if call.changes and not call.made]

    def _connect(self, service: str) -> Any:
        import botocore.config
        import botocore.exceptions

        config = botocore.config.Config(
            # one attempt by botocore: repetitions are decided in `_again`, which tells missing capacity from an outage
            retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=10, read_timeout=60,
            user_agent_extra="neuronbench-fleet",
        )  # fmt: skip
        try:
            client = self._session.client(service, config=config)
        except botocore.exceptions.BotoCoreError as error:
            raise AwsError(service, "client", classify(error)) from error
        events = client.meta.events
        events.register("before-parameter-build", self._heard)
        events.register("before-call", self._held_back)
        events.register("needs-retry", self._again)
        if service == "ec2":
            events.register("before-parse", _readable)
        return client

    def _heard(self, params: Mapping[str, Any], model: Any, **_: Any) -> None:
        service, operation = str(model.service_model.service_name), str(model.name)
        changes = not operation.startswith(_READING)
        call = Call(
            service=service, operation=operation, parameters=dict(params), changes=changes,
            made=not (changes and self.dry_run),
        )  # fmt: skip
        self.calls.append(call)
        if self._on_call is not None:
            self._on_call(call)

    def _held_back(self, model: Any, **_: Any) -> Any:
        """A response in place of the call, in a dry run."""
        if not self.dry_run or str(model.name).startswith(_READING):
            return None
        import botocore.awsrequest

        nothing = botocore.awsrequest.AWSResponse("", 200, {}, None)
        return nothing, {"ResponseMetadata": {"HTTPStatusCode": 200, "RetryAttempts": 0}}

    def _again(
        self, response: Any, operation: Any, attempts: int, caught_exception: BaseException | None, **_: Any
    ) -> float | None:
        """Seconds to sleep before the request is sent again; None: the answer stands."""
        if caught_exception is not None:
            trouble = classify(caught_exception)
            kind, code = trouble.kind, trouble.code
        else:
            http, parsed = response
            if http.status_code < 300 or "Error" not in parsed:
                return None
            code = str(parsed["Error"].get("Code") or http.status_code)
            kind = classify_code(code, http.status_code)
        name = str(operation.name)
        if kind not in TRANSIENT or attempts >= ATTEMPTS:
            return None
        if name in _NEVER_REPEATED and kind != "throttle":
            return None
        delay_s = backoff_s(attempts, base_s=2.0 if kind == "throttle" else 1.0)
        self.repeated += 1
        if self._on_retry is not None:
            self._on_retry(f"{name}: {code}; again in {delay_s:.1f} s ({attempts} of {ATTEMPTS} attempts)")
        return self.pace.shortened(delay_s)


class _Translating:
    def __init__(self, service: str, operation: str) -> None:
        self.service, self.operation = service, operation

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, AwsError):
            return
        if not type(error).__module__.startswith(("botocore.", "boto3.", "s3transfer.", "urllib3.")):
            return
        name = "".join(part.capitalize() for part in self.operation.split("_"))
        trouble = classify(error, service=self.service, operation=name)
        attempts = 1 if trouble.kind not in TRANSIENT or name in _NEVER_REPEATED else ATTEMPTS
        raise AwsError(self.service, name, trouble, attempts=attempts) from error


def _readable(response_dict: dict[str, Any], **_: Any) -> None:
    """Let a page of HTML that something between here and EC2 sends for an error be one, and not break the parser."""
    status, body = int(response_dict["status_code"]), bytes(response_dict["body"])
    if status >= 300 and b"<Errors>" not in body:
        error = f"<Code>HTTP{status}</Code><Message>no answer of EC2's own</Message>"
        response_dict["body"] = f"<Response><Errors><Error>{error}</Error></Errors></Response>".encode()


def _plain(name: str, value: Any) -> Any:
    if name in _HIDDEN:
        return "[hidden]"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"[{len(value)} bytes]"
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if name == "Body":
        return "[stream]"
    return str(value)


def _shown(name: str, value: Any) -> str:
    text = json.dumps(_brief(_plain(name, value)), ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _brief(value: Any) -> Any:
    """The same with tags as `{name: value}`, and with the first of many lines alone."""
    if isinstance(value, Mapping):
        return {key: _brief(item) for key, item in value.items()}
    if not isinstance(value, list) or not value:
        return value
    if all(isinstance(item, Mapping) and item.keys() == {"Key", "Value"} for item in value):
        return {item["Key"]: item["Value"] for item in value}
    if len(value) > _LINES and all(isinstance(item, str) for item in value):
        return [value[0], f"… and {len(value) - 1} more"]
    return [_brief(item) for item in value]
