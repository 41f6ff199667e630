"""`DataParallel`: copies of a module on several cores of one process, a share of the batch for each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from . import _placement, _runtime


class DataParallel:
    """Splits inputs along `dim` over `device_ids`, which are places among the cores the process may see."""

    def __init__(self, model: Any, device_ids: Any = None, dim: int = 0, set_dynamic_batching: bool = True) -> None:
        device = _runtime.Device.get()
        ids = list(range(len(device.cores))) if device_ids is None else [int(each) for each in device_ids]
        for each in ids:
            device.place(each, 1)
        self.device_ids, self.dim = ids, dim
        self.num_workers = 2 * len(ids)
        self._models = [model for _ in ids]
        self._dynamic = set_dynamic_batching
        if set_dynamic_batching:
            _placement.dynamic_batch(model)

    def disable_dynamic_batching(self) -> None:
        """Each core's share has to be the compiled batch."""
        self._dynamic = False
        for model in self._models:
            _placement._told(model)[_runtime.DYNAMIC] = 0

    def __call__(self, *inputs: Any) -> Any:
        shares = [each.chunk(len(self.device_ids), self.dim) for each in inputs]
        with ThreadPoolExecutor(max(self.num_workers, 1)) as pool:
            answers = list(pool.map(lambda work: work[0](*work[1:]), zip(self._models, *shares)))  # noqa: B905 - fewer
        if isinstance(answers[0], torch.Tensor):
            return torch.cat(answers, self.dim)
        return tuple(torch.cat(each, self.dim) for each in zip(*answers, strict=True))
