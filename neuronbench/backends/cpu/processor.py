"""The processor as compilers and bounds see it: cores, instruction sets, C++ compiler, the fastest a call can be."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from neuronbench.protocols import Floor

GHZ: Final = 6.0
"""Above the clock of any processor this may run on: the peak is a bound, not an estimate."""
LAUNCH_US: Final = 1.0
"""No call from Python through AOTInductor's runtime has been seen below some ten times this."""


def host_cores() -> list[int]:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_of(index: int, threads: int) -> list[int] | None:
    """Cores of model copy `index`; None where processes cannot be pinned."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return host_cores()[index * threads : (index + 1) * threads]


@functools.cache
def cpu_flags(root: Path = Path("/")) -> tuple[str, ...]:
    """Instruction sets of the processor, by the kernel; empty where it does not say."""
    try:
        for line in (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return tuple(sorted(value.split()))
    except OSError:
        pass
    return ()


@functools.cache
def cxx() -> str:
    """First line of the C++ compiler's own version; empty when there is none."""
    program = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
    if program is None:
        return ""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""


def floor(flops_per_call: float, dtype: str, threads: int, flags: Sequence[str] | None = None) -> Floor:
    """A bound on how fast a call can be, from its operations and the widest instructions the processor has."""
    flags = cpu_flags() if flags is None else flags
    per_cycle, unit = 64, "512-bit vectors"  # two fused multiply-adds of 16 lanes
    if dtype != "float32":
        per_cycle, unit = (2048, "matrix tiles") if any("amx" in flag for flag in flags) else (256, "512-bit vectors")
    return Floor(
        launch_us=LAUNCH_US,
        flops_per_call=flops_per_call,
        peak_flops=per_cycle * GHZ * 1e9 * threads,
        source=f"{per_cycle} {dtype} operations a cycle ({unit}) at {GHZ:g} GHz, {threads} cores",
    )
