"""What a truth server can be told before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one server. Times are in milliseconds or seconds as their names say.

    ttft_ms, tpot_ms: the instants of an undisturbed answer: token k leaves at `anchor + ttft + k * tpot`.
    anchor: what the clock of a request starts at: "arrival" is the kernel's stamp of the request's last byte, so a
        busy server does not hide its own queue; "parsed" is the instant the server had read and parsed it.
    max_concurrency: answers in progress at once; further requests wait first come, first served. None: no bound.
    models: names served besides "truth"; every one takes scenarios ("NAME:scenario,key=value").
    natural_tokens: how many tokens an answer has when neither `max_tokens` nor `ignore_eos` says otherwise.
    prefix_cache: keep blocks of 16 prompt tokens and count hits; the first token comes earlier by the cached share.
    keep_records: how many requests `/truth` remembers; older ones are dropped and counted.
    freeze_at_s, freeze_s: stop answering anything for `freeze_s` seconds, `freeze_at_s` after the first request.
    accept_delay_ms: how long a new connection waits before it is accepted.
    api_key: when set, requests without `Authorization: Bearer <key>` get 401.
    log: file that receives every record as one JSON line when the server ends.
    """

    host: str = "127.0.0.1"
    port: int = 0
    ttft_ms: float = 50.0
    tpot_ms: float = 10.0
    anchor: Literal["arrival", "parsed"] = "arrival"
    max_concurrency: int | None = None
    models: tuple[str, ...] = ()
    natural_tokens: int = 256
    max_model_len: int = 131_072
    kv_tokens: int = 1_000_000
    prefix_cache: bool = False
    keep_records: int = 200_000
    freeze_at_s: float | None = None
    freeze_s: float = 0.0
    accept_delay_ms: float = 0.0
    api_key: str | None = None
    log: Path | None = None

    def __post_init__(self) -> None:
        if self.anchor not in ("arrival", "parsed"):
            raise ValueError(f"anchor is {self.anchor!r}; expected 'arrival' or 'parsed'")
        for name in ("ttft_ms", "tpot_ms", "freeze_s", "accept_delay_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; a duration cannot be negative")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency is {self.max_concurrency}; expected at least 1, or None for no bound")

    @cached_property
    def served(self) -> tuple[str, ...]:
        """Every model name this server answers to, the given ones first."""
        return tuple(dict.fromkeys((*self.models, "truth")))
