"""What a stand-in can be told, in variables of its environment (the server's, so `server_env` of a point reaches it).

| variable | default | meaning |
|---|---|---|
| `FAKE_VLLM_FAIL` | – | end with the words of a failure: a name of `vllm.fake.failing` |
| `FAKE_VLLM_FAIL_AT` | `load` | `compile`, `load`, `ready`, or `request`: when |
| `FAKE_VLLM_LOAD_S` | 0 | seconds of loading weights |
| `FAKE_VLLM_COMPILE_S` | 0 | seconds of compiling one graph |
| `FAKE_VLLM_LAZY` | 0 | 1: compile a size when its first request comes, after the health check answers |
| `FAKE_VLLM_RECOMPILE_AFTER` | – | compile one more graph when that many requests were answered |
| `FAKE_VLLM_KV_SEQS` | – | sequences the KV cache holds, where fewer than `max_num_seqs` |
| `FAKE_VLLM_TTFT_MS` | 5 | time to the first token, before what its size costs |
| `FAKE_VLLM_PREFILL_US` | 20 | microseconds for each prompt token that is computed, padding included |
| `FAKE_VLLM_TPOT_MS` | 2 | time of a decode step, before what its size costs |
| `FAKE_VLLM_DECODE_US` | 50 | microseconds for each sequence of a step that is computed, padding included |
| `FAKE_VLLM_OFF_BY_ONE` | 0 | 1: a prompt of exactly a size goes to the next one |
| `FAKE_VLLM_IDLE_DEVICE` | 0 | 1: tokens come, and no program runs on the device |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Told:
    """The variables, read."""

    fail: str = ""
    fail_at: str = "load"
    load_s: float = 0.0
    compile_s: float = 0.0
    lazy: bool = False
    recompile_after: int | None = None
    kv_seqs: int | None = None
    ttft_ms: float = 5.0
    prefill_us: float = 20.0
    tpot_ms: float = 2.0
    decode_us: float = 50.0
    off_by_one: bool = False
    idle_device: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Told:
        def told(name: str) -> str:
            return environ.get(f"FAKE_VLLM_{name}", "")

        def number(name: str, default: float) -> float:
            return float(told(name) or default)

        return cls(
            fail=told("FAIL"),
            fail_at=told("FAIL_AT") or "load",
            load_s=number("LOAD_S", 0.0),
            compile_s=number("COMPILE_S", 0.0),
            lazy=told("LAZY") == "1",
            recompile_after=int(told("RECOMPILE_AFTER")) if told("RECOMPILE_AFTER") else None,
            kv_seqs=int(told("KV_SEQS")) if told("KV_SEQS") else None,
            ttft_ms=number("TTFT_MS", 5.0),
            prefill_us=number("PREFILL_US", 20.0),
            tpot_ms=number("TPOT_MS", 2.0),
            decode_us=number("DECODE_US", 50.0),
            off_by_one=told("OFF_BY_ONE") == "1",
            idle_device=told("IDLE_DEVICE") == "1",
        )
