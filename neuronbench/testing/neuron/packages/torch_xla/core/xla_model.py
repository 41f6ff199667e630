"""The calls of `torch_xla.core.xla_model` that trainers use; see `torch_xla`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .. import _device

REDUCE_SUM = "sum"
_closures: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []


def xla_device(n: int | None = None, devkind: str | None = None) -> Any:
    return torch.device("cpu")


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    device = _device.get()
    device.hand_over()
    if wait:
        device.wait()
    closures, _closures[:] = list(_closures), []
    for closure, args in closures:
        closure(*args)


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Waits for what was handed over; what was only traced is not."""
    _device.get().wait()


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    _closures.append((closure, args))


def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Sequence[Sequence[int]] | None = None,
    pin_layout: bool = True,
) -> Any:
    if reduce_type != REDUCE_SUM:
        raise NotImplementedError(f"the fake sums only, found {reduce_type!r}")
    _device.get().trace("all_reduce", 1e-4)
    if not torch.distributed.is_initialized() or _device.extracting():
        return inputs * scale
    group = _group(groups)
    total = inputs.clone()
    torch.distributed.all_reduce(total, group=group)
    return total * scale


def _group(groups: Sequence[Sequence[int]] | None) -> Any:
    from neuronx_distributed.parallel_layers import parallel_state  # type: ignore[import-not-found,unused-ignore]

    return None if groups is None else parallel_state._group_of(groups)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    return [payload]


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    if is_master_ordinal() or not master_only:
        torch.save(data, file_or_path)


def get_ordinal() -> int:
    return int(os.environ.get("RANK", "0"))


def get_local_ordinal() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_master_ordinal(local: bool = True) -> bool:
    return (get_local_ordinal() if local else get_ordinal()) == 0
