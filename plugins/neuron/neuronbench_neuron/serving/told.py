"""What a server says of itself once it is ready: times of its start by its own metrics, and notices in its log."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuronbench.failures import read_log
from neuronbench.model import Json
from neuronbench.telemetry.prometheus import Prometheus
from neuronbench_neuron.failures import notices

PREFIX: Final = "vllm_neuron:"
SINGLE: Final = ("startup_time_seconds", "model_load_time_seconds", "model_load_size_bytes")
COMPILED: Final = "compilation_time_seconds"
_BUCKET: Final = re.compile(r'bucket_name="([^"]*)"')
TIMEOUT_S: Final = 5.0


def by_metrics(url: str | None) -> dict[str, Json]:
    """`vllm_neuron:*` of the start: seconds, bytes, and seconds of compiling by bucket, cache hits included.

    Empty for a server that has none, or does not answer: what is missing is left out.
    """
    if url is None:
        return {}
    sampler = Prometheus(url, prefixes=[PREFIX], timeout_s=TIMEOUT_S)
    try:
        found = sampler.read()
    except Exception:  # a page that is none: the window's own sampler will say so
        return {}
    finally:
        sampler.close()
    return read(found)


def read(found: Mapping[str, float | None]) -> dict[str, Json]:
    """The same from series (`name{labels}` → value)."""
    told: dict[str, Any] = {}
    compiled: dict[str, float] = {}
    for series, value in found.items():
        name = series.partition("{")[0].removeprefix(PREFIX)
        bucket = _BUCKET.search(series)
        if value is None or value != value:
            continue
        if name in SINGLE:
            told[name] = value
        elif name == COMPILED and bucket:
            compiled[bucket[1]] = value
    return {**told, **({COMPILED: compiled} if compiled else {})}


def by_log(logs: Sequence[Path]) -> list[dict[str, Json]]:
    """Lines that are no failure and change what numbers mean: fewer requests at once, a cache that was not used."""
    return [dataclasses.asdict(notice) for log in logs for notice in notices(read_log(log))]
