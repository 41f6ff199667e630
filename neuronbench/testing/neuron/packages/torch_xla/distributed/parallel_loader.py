"""Loaders that put batches on the device; imported by others, not used here."""

from __future__ import annotations

from typing import Any


class MpDeviceLoader:
    def __init__(self, loader: Any, device: Any, **kwargs: Any) -> None:
        raise NotImplementedError("the fake has no loader")


ParallelLoader = MpDeviceLoader
