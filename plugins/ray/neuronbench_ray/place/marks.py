"""What a record says of where it was placed. Hooks of neuronbench; silent where no fleet is at work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from neuronbench import Gate, Record, hookimpl

LOST: str = "lost_attempt"
"""Tag of a record of an attempt that was lost; the point was placed again."""


@hookimpl
def describe_environment() -> Mapping[str, Any] | None:
    """The node by the name that the run shows it under, and its cores."""
    if not os.environ.get("NEURONBENCH_RAY_ATTEMPT"):
        return None
    return {
        "ray.node": os.environ.get("NEURONBENCH_RAY_NODE") or None,
        "ray.cores": os.environ.get("NEURONBENCH_RAY_CORES") or None,
    }


@hookimpl
def finish_record(record: Record) -> None:
    """Attempt, node and cores; a box that was shared disturbs what is measured on it, and the record says so."""
    attempt = os.environ.get("NEURONBENCH_RAY_ATTEMPT")
    if not attempt:
        return
    record.tags["ray.attempt"] = attempt
    record.tags["ray.node"] = os.environ.get("NEURONBENCH_RAY_NODE", "")
    record.tags["ray.cores"] = os.environ.get("NEURONBENCH_RAY_CORES", "")
    if os.environ.get("NEURONBENCH_RAY_SHARED"):
        record.tags["shared_host"] = "true"
        record.gate(
            Gate(
                id="shared_host", passed=False, severity="provisional",
                message="other points may have run on the same box meanwhile (--share); leave it out to quote",
            )
        )  # fmt: skip
