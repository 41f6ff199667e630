"""Who shares a model and who shares the data: tensor ranks are neighbours, then copies, then stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

_sizes: dict[str, int] = {}
_groups: dict[tuple[tuple[int, ...], ...], Any] = {}


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    expert_model_parallel_size: int = 1,
    context_parallel_size: int = 1,
) -> None:
    world = dist.get_world_size()
    tensor, stages = tensor_model_parallel_size, pipeline_model_parallel_size
    if world % (tensor * stages):
        raise RuntimeError(f"`world_size` {world} is not divisible by {tensor} x {stages}")
    _sizes.update(tensor=tensor, stages=stages, data=world // (tensor * stages), world=world)
    for listed in (_tensor(), _data(), _stages()):
        _group_of(listed)


def model_parallel_is_initialized() -> bool:
    return bool(_sizes)


def _tensor() -> list[list[int]]:
    size = _sizes["tensor"]
    return [list(range(first, first + size)) for first in range(0, _sizes["world"], size)]


def _data() -> list[list[int]]:
    size, per_stage = _sizes["tensor"], _sizes["world"] // _sizes["stages"]
    return [
        list(range(stage * per_stage + place, (stage + 1) * per_stage, size))
        for stage in range(_sizes["stages"])
        for place in range(size)
    ]


def _stages() -> list[list[int]]:
    per_stage = _sizes["world"] // _sizes["stages"]
    return [list(range(place, _sizes["world"], per_stage)) for place in range(per_stage)]


def _group_of(listed: Sequence[Sequence[int]]) -> Any:
    """The process group of this rank in a list of groups; made by all ranks together, the first time."""
    key = tuple(tuple(one) for one in listed)
    if key not in _groups:
        made = {one: dist.new_group(list(one)) for one in key}
        _groups[key] = next(group for one, group in made.items() if dist.get_rank() in one)
    return _groups[key]


def _place(listed: Sequence[Sequence[int]]) -> int:
    return next(list(one).index(dist.get_rank()) for one in listed if dist.get_rank() in one)


def get_data_parallel_rank() -> int:
    return _place(_data())


def get_data_parallel_size() -> int:
    return _sizes["data"]


def get_data_parallel_group(as_list: bool = False) -> Any:
    return _data() if as_list else _group_of(_data())


def get_data_parallel_replica_groups() -> list[list[int]]:
    return _data()


def get_tensor_model_parallel_rank() -> int:
    return _place(_tensor())


def get_tensor_model_parallel_size() -> int:
    return _sizes["tensor"]


def get_tensor_model_parallel_group(as_list: bool = False) -> Any:
    return _tensor() if as_list else _group_of(_tensor())


def get_pipeline_model_parallel_rank() -> int:
    return _place(_stages())


def get_pipeline_model_parallel_size() -> int:
    return _sizes["stages"]


def get_pipeline_model_parallel_group(as_list: bool = False) -> Any:
    return _stages() if as_list else _group_of(_stages())
