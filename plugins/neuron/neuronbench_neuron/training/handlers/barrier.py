"""The device's barrier: what has to be called, in which order, until the device has finished all that it was given.

A stack's torch may have the device itself (`torch.neuron`, TorchNeuron), whose calls come back before the work is done.
The trainers here trace through torch-xla on every stack. Where a stack has both, both are waited for: to wait for one
that has nothing to do takes no time, and to leave out the one that has makes steps of no length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch_xla  # type: ignore[import-not-found,unused-ignore]
import torch_xla.core.xla_model as xm  # type: ignore[import-not-found,unused-ignore]

XLA = "torch_xla.sync(wait=True), then xm.wait_device_ops()"
NATIVE = "torch.neuron.synchronize()"


def native() -> Callable[[], Any] | None:
    """`torch.neuron.synchronize` of this stack's torch; None where torch has no device of that name."""
    found = getattr(getattr(torch, "neuron", None), "synchronize", None)
    return found if callable(found) else None


def name() -> str:
    """Of the barrier, for the record: all that `wait` calls."""
    return XLA if native() is None else f"{XLA}, then {NATIVE}"


def wait() -> None:
    """Hand everything that was traced to the device, and return when the device has finished it.

    Waiting alone would not do: what was traced since the last step marker has not been handed over yet, and in a
    trainer's own callback at the end of a step that is the optimizer.
    """
    torch_xla.sync(wait=True)
    xm.wait_device_ops()
    synchronize = native()
    if synchronize is not None:
        synchronize()
