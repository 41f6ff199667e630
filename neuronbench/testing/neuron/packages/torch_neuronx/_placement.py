"""Where modules are loaded, and when: cores by their place among those that the process may see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import _runtime

_contexts: list[tuple[int, int]] = []


def current() -> list[int]:
    """How a module made now is loaded."""
    start, count = _contexts[-1] if _contexts else (-1, -1)
    return [start, count, 0, 0, 0]


def _told(trace: Any) -> Any:
    found = _runtime.parts_of(trace)
    if found is None:
        raise TypeError(f"expected a module made by torch_neuronx.trace, found {type(trace).__name__}")
    return found[1]


def set_neuron_cores(trace: Any, start_nc: int = -1, nc_count: int = -1) -> None:
    """Put a module on cores; −1 is automatic."""
    placement = _told(trace)
    if start_nc < -1 or nc_count < -1 or nc_count == 0:
        raise ValueError(f"start_nc, nc_count: expected -1 or more, found {start_nc}, {nc_count}")
    _runtime.Device.get().place(start_nc, nc_count)
    placement[_runtime.START], placement[_runtime.COUNT] = start_nc, nc_count


def set_multicore(trace: Any) -> None:
    """Put a module on all cores of the process."""
    set_neuron_cores(trace, 0, len(_runtime.Device.get().cores))


@contextmanager
def neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> Iterator[None]:
    """Modules that are loaded within go there."""
    _contexts.append((start_nc, nc_count))
    try:
        yield
    finally:
        _contexts.pop()


@contextmanager
def multicore_context() -> Iterator[None]:
    """Modules that are loaded within go to all cores of the process."""
    with neuron_cores_context(0, len(_runtime.Device.get().cores)):
        yield


def move_trace_to_device(trace: Any, device_id: int) -> None:
    """Put a module on one core."""
    set_neuron_cores(trace, device_id, 1)


def lazy_load(trace: Any, enable_lazy_load: bool = True) -> None:
    """Once saved, it is loaded by its first call."""
    _told(trace)[_runtime.LAZY] = int(enable_lazy_load)


def async_load(trace: Any, enable_async_load: bool = True) -> None:
    """Once saved, loading does not wait for the device."""
    _told(trace)[_runtime.ASYNC] = int(enable_async_load)


def dynamic_batch(neuron_script: Any) -> Any:
    """Let the first dimension of all inputs be any; the runtime splits it."""
    _told(neuron_script)[_runtime.DYNAMIC] = 1
    return neuron_script
