"""Linear layers split over the tensor ranks. Forward and backward sums are done over gloo."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

from . import parallel_state


class _Copy(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """The same on all ranks forward, summed backward."""

    @staticmethod
    def forward(ctx: Any, given: Any) -> Any:
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _summed(gradient)


class _Sum(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """Summed forward, the same on all ranks backward."""

    @staticmethod
    def forward(ctx: Any, given: Any) -> Any:
        return _summed(given)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


def _summed(given: Any) -> Any:
    total = given.contiguous().clone()
    dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
    return total


class _Split(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, rows: int, columns: int, bias: int, dtype: Any, dim: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(rows, columns, dtype=dtype))
        torch.nn.init.normal_(self.weight, std=0.02)
        self.weight.tensor_model_parallel = True
        self.weight.partition_dim = dim
        self.bias = torch.nn.Parameter(torch.zeros(bias, dtype=dtype)) if bias else None


class ColumnParallelLinear(_Split):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        gather_output: bool = True,
        dtype: Any = torch.float32,
        device: Any = None,
        stride: int = 1,
        init_method: Any = None,
        sequence_parallel_enabled: bool = False,
        sequence_dimension: int | None = None,
        keep_master_weight: bool = False,
        skip_bias_add: bool = False,
        pad: bool = False,
    ) -> None:
        if gather_output:
            raise NotImplementedError("the fake does not gather outputs")
        each = output_size // parallel_state.get_tensor_model_parallel_size()
        super().__init__(each, input_size, each if bias else 0, dtype, 0)
        if self.bias is not None:
            self.bias.tensor_model_parallel, self.bias.partition_dim = True, 0

    def forward(self, given: Any) -> Any:
        return torch.nn.functional.linear(_Copy.apply(given), self.weight, self.bias)


class RowParallelLinear(_Split):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        input_is_parallel: bool = False,
        dtype: Any = torch.float32,
        device: Any = None,
        stride: int = 1,
        init_method: Any = None,
        sequence_parallel_enabled: bool = False,
        sequence_dimension: int | None = None,
        keep_master_weight: bool = False,
        skip_bias_add: bool = False,
        pad: bool = False,
        reduce_output: bool = True,
    ) -> None:
        if not input_is_parallel:
            raise NotImplementedError("the fake takes inputs that are split already")
        each = input_size // parallel_state.get_tensor_model_parallel_size()
        super().__init__(output_size, each, output_size if bias else 0, dtype, 1)

    def forward(self, given: Any) -> Any:
        made = _Sum.apply(torch.nn.functional.linear(given, self.weight))
        return made if self.bias is None else made + self.bias
