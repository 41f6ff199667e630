"""How servers on Neuron end: last words and status, by the name of the failure."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Final, NoReturn

WRAPPER: Final = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


@dataclass(frozen=True, kw_only=True)
class Failing:
    """What is written before the end."""

    lines: tuple[str, ...]
    status: int = 1
    wrapped: bool = True
    """Whether the API server adds its own words, which are no cause."""


def _raised(*lines: str) -> Failing:
    """Of the engine's process, as its logger writes them."""
    head = "ERROR 11-30 02:00:00 [core.py:708] "
    return Failing(lines=(head + "Traceback (most recent call last):", *(head + line for line in lines)))


_CACHED: Final = "/var/tmp/neuron-compile-cache/neuronxcc-2.21.33363.0+82129205/MODULE_7411938889920977621+abb26765"
FAILURES: Final = {
    "host_oom": _raised(
        "[F137] neuronx-cc was forcibly killed - This most commonly occurs due to insufficient system memory.",
        "RuntimeError: neuronx-cc failed with -9",
    ),
    "compiler_70": _raised("RuntimeError: neuronx-cc compilation failed with 70. Check compiler logs."),
    "compiler_bug": _raised("[NCC_INLA001] Unhandled exception with message: type must be boolean, but is null"),
    "tensoriser": _raised("[NCC_ITEN404] Internal tensorizer error: BirCodeGenLoop:Too many strides!"),
    "compile_hbm": _raised("[NCC_EOOM001] peak HBM usage 19.46GB exceeds the capacity of 16.00GB"),
    "instructions": _raised("[NCC_EXTP004] Number of instructions 5900000 is over the limit of 5000000"),
    "poisoned": _raised(
        f"ERROR ||NEURON_CC_WRAPPER||: Got a cached failed neff at {_CACHED}/model.neff. Will skip compilation, please "
        "set --retry_failed_compilation for recompilation:"
    ),
    "cores_busy": _raised(
        "ERROR NRT:nrt_allocate_neuron_cores NeuronCore(s) not available - Requested:2 Available:0",
        "RuntimeError: The PyTorch Neuron Runtime could not be initialized.",
    ),
    "no_device": _raised("RuntimeError: cannot determine the number of available NeuronCores"),
    "visible_cores": _raised(
        "RuntimeError: NEURON_RT_VISIBLE_CORES cannot be used with multi-processing execution on vLLM. "
        "Set NEURON_VISIBLE_DEVICES to control device visibility."
    ),
    "topology": _raised(
        "ERROR TDRV: Unsupported topology. Supported number of Neuron Cores is 1, 2, 8, 16 or a multiple of 32"
    ),
    "neff_version": _raised(
        "ERROR NMGR: NEFF version 2.0, features 0x100 are not supported. This Neuron Runtime is not compatible with it"
    ),
    "hbm": _raised('ERROR TDRV: nrt_tensor_allocate status=4 message="Allocation Failure"'),
    "foreign_neff": _raised("RuntimeError: Could not load the model status=2 message=Invalid"),
    "numerical": _raised("RuntimeError: Failed to execute the model status=1003 message=Numerical Error"),
    "execution": _raised(
        "RuntimeError: Failed to execute the model status=1004 message=Execution was completed with other errors"
    ),
    "dma_abort": _raised("ERROR NRT: NRT_EXEC_HW_ERR_DMA_ABORT: DMA abort on nd0 nc0"),
    "timeout": _raised("ERROR NRT: NRT_TIMEOUT: execution timed out, status=5"),
    "abstract_worker": _raised(
        "TypeError: Can't instantiate abstract class NeuronWorker with abstract method get_supported_tasks"
    ),
    "two_plugins": Failing(
        lines=("RuntimeError: Only one platform plugin can be activated, but got: ['neuron', 'optimum_neuron']",),
        wrapped=False,
    ),
    "no_plugin": Failing(
        lines=("Traceback (most recent call last):", "RuntimeError: Failed to infer device type"), wrapped=False
    ),
    "wrong_family": _raised("RuntimeError: Unsupported instance family: inf2"),
    "cache_miss": _raised("RuntimeError: Compile cache miss while VLLM_NEURON_ASSERT_CACHE_HIT is set"),
    "sampler": _raised("NotImplementedError: Only support greedy sampling"),
    "killed": Failing(lines=("INFO 11-30 02:00:00 [core.py:1] working",), status=-9, wrapped=False),
    "hang": Failing(lines=("INFO 11-30 02:00:00 [core.py:1] waiting for nrt_load_collectives",), wrapped=False),
}
"""Name → last words."""


def fail(name: str) -> NoReturn:
    """Say the last words of a failure and end as it does; `hang` stays."""
    failing = FAILURES[name]
    end(*failing.lines, status=failing.status, wrapped=failing.wrapped, hang=name == "hang")


def end(*lines: str, status: int = 1, wrapped: bool = True, hang: bool = False) -> NoReturn:
    """Write these lines and end."""
    for line in lines:
        print(line, file=sys.stderr)
    if wrapped:
        print(WRAPPER, file=sys.stderr)
    sys.stderr.flush()
    sys.stdout.flush()
    while hang:
        time.sleep(60)
    if status < 0:
        os.kill(os.getpid(), -status)
        time.sleep(60)
    os._exit(status)
