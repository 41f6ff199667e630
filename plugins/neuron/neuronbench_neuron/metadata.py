"""EC2's instance metadata service, version 2: where this instance is and how it was bought. Asked with short time-outs.

Only what a record needs is asked for; ids of the instance, its image and its account are not.
"""

from __future__ import annotations

import http.client
import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

ENDPOINT = "http://169.254.169.254"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
DISABLED_VARIABLE = "AWS_EC2_METADATA_DISABLED"
TIMEOUT_S = 0.5
"""For one answer; the service is on the host and answers within milliseconds."""
BUDGET_S = 2.0
"""For all of them."""
_PATHS = {
    "instance_type": "instance-type",
    "region": "placement/region",
    "availability_zone": "placement/availability-zone",
    "availability_zone_id": "placement/availability-zone-id",
    "life_cycle": "instance-life-cycle",
}


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What the service told; empty where it did not. `problem`: why there is nothing, or not all."""

    instance_type: str = ""
    region: str = ""
    availability_zone: str = ""
    availability_zone_id: str = ""
    life_cycle: str = ""
    """How it was bought: `on-demand`, `spot`, `capacity-block`."""
    problem: str = ""


def endpoint(environ: Mapping[str, str]) -> str:
    """Where to ask."""
    return environ.get(ENDPOINT_VARIABLE, "").strip() or ENDPOINT


def is_stand_in(environ: Mapping[str, str]) -> bool:
    """Whether a program of this host is asked in place of EC2: what it says is not what EC2 says."""
    host = urlsplit(endpoint(environ)).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ask(environ: Mapping[str, str], *, timeout_s: float = TIMEOUT_S, budget_s: float = BUDGET_S) -> Metadata:
    """Ask the service; never raises, and takes `budget_s` at most (plus one answer's time-out)."""
    if environ.get(DISABLED_VARIABLE, "").lower() == "true":
        return Metadata(problem=f"not asked: {DISABLED_VARIABLE} is true")
    where = urlsplit(endpoint(environ))
    if where.scheme != "http" or not where.hostname:
        return Metadata(problem=f"{ENDPOINT_VARIABLE}: expected http://HOST[:PORT], found {endpoint(environ)!r}")
    until = time.monotonic() + budget_s
    found: dict[str, str] = {}
    problem = ""

    def request(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=timeout_s)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(4096).decode("utf-8", errors="replace").strip()
        finally:
            connection.close()

    try:
        status, token = request("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        if status != 200:
            return Metadata(problem=_refused("a token", status))
        for name, path in _PATHS.items():
            if time.monotonic() > until:
                problem = problem or f"not all was answered within {budget_s:g} s"
                break
            status, text = request("GET", f"/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token})
            if status == 200 and text:
                found[name] = text
            elif not problem:
                problem = _refused(path, status)
    except TimeoutError:
        problem = (
            f"no answer within {timeout_s:g} s; in a container the hop limit of the instance may be 1: "
            "aws ec2 modify-instance-metadata-options --http-put-response-hop-limit 2"
        )
    except (OSError, http.client.HTTPException, ValueError) as error:
        problem = f"cannot be reached ({type(error).__name__}: {error})"
    return Metadata(**found, problem=problem)


def _refused(what: str, status: int) -> str:
    if status == 403:
        return "switched off for this instance (status 403)"
    return f"refused {what} (status {status})"
