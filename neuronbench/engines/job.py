"""What is to be measured, in words that every engine understands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from neuronbench.model import Json

DEFAULT_REQUESTS = 100


@dataclass(frozen=True, kw_only=True)
class Job:
    """A load on one endpoint: `concurrency` requests in flight, or `rate` requests per second."""

    url: str
    """Without `/v1`."""
    model: str
    api: Literal["completions", "chat", "responses"] = "completions"
    input_tokens: int = 256
    """Exact length of every prompt, the chat template included."""
    output_tokens: int = 128
    """Exact length of every answer."""
    concurrency: int | None = None
    rate: float | None = None
    arrivals: Literal["constant", "poisson"] = "poisson"
    """With a rate: equal gaps, or independent arrivals."""
    requests: int | None = None
    duration_s: float | None = None
    seed: int = 0
    warmup: int | None = None
    """Warm-up requests; None leaves it to the engine."""
    tokenizer: Path | None = None
    """A folder with `tokenizer.json`, where prompts cannot be made without one."""
    deadline_s: float = 1800.0
    api_key: str | None = field(default=None, repr=False)
    described: str = ""
    """A load that is more than a number in flight or a plain rate, or lengths that are not fixed, in words."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for what is contradictory or out of range."""
        if (self.concurrency is None) == (self.rate is None):
            raise ValueError("give either a concurrency or a rate")
        if self.requests is not None and self.duration_s is not None:
            raise ValueError("give either a number of requests or a duration")
        for name in ("concurrency", "requests", "input_tokens", "output_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected a whole number from 1, found {value}")
        for name in ("rate", "duration_s", "deadline_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a number above 0, found {value}")
        if self.warmup is not None and self.warmup < 0:
            raise ValueError(f"warmup: expected 0 or more, found {self.warmup}")

    @property
    def count(self) -> int:
        """Requests to send, where an engine has to be told a number and only a duration is known."""
        if self.requests is not None:
            return self.requests
        if self.duration_s is not None and self.rate is not None:
            return max(1, round(self.rate * self.duration_s))
        return DEFAULT_REQUESTS

    @property
    def seconds(self) -> float | None:
        """Length of the window where it is known: of a rate and a number of requests it follows."""
        if self.duration_s is not None or self.rate is None:
            return self.duration_s
        return self.count / self.rate

    def to_json(self) -> dict[str, Json]:
        """Everything but the key."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "api_key"}
        return {**values, "tokenizer": str(self.tokenizer) if self.tokenizer else None, "api_key": bool(self.api_key)}
