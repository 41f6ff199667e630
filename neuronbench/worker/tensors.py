"""Tensors beside the protocol: raw files and their descriptions. Standard library only; used on both sides.

A tensor travels as a file of its elements, C order, little endian, nothing else; its description, which travels in the
message, is `{"name", "dtype", "shape", "file"}`. `dtype` is a name that numpy knows (`float32`, `int64`, `bool`, ...).
What has no such name (bfloat16) is converted before it is sent.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip


class Tensor(NamedTuple):
    """Elements of an array as bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def numpy(self) -> Any:
        """The same as a (read-only) numpy array; needs numpy."""
        import numpy

        return numpy.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)


def check(name: str, tensor: Any) -> Tensor:
    """`tensor` as a `Tensor`; raises `ValueError` when its parts do not fit together."""
    dtype, shape, data = tensor
    if dtype not in ITEM_BYTES:
        raise ValueError(f"tensor {name!r}: dtype {dtype!r} cannot be sent; one of: {', '.join(ITEM_BYTES)}")
    count = 1
    for length in shape:
        count *= length
    if len(data) != count * ITEM_BYTES[dtype]:
        wanted = count * ITEM_BYTES[dtype]
        raise ValueError(f"tensor {name!r}: {dtype} {list(shape)} takes {wanted} bytes, found {len(data)}")
    return Tensor(dtype, tuple(shape), data)


def write(tensors: dict[str, Any], folder: str, prefix: str) -> list[dict[str, Any]]:
    """Write each tensor to `folder/prefix-<n>.bin`; returns their descriptions."""
    if sys.byteorder != "little":
        raise RuntimeError("tensors travel as little endian; this machine is big endian")
    described = []
    for index, (name, given) in enumerate(tensors.items()):
        tensor = check(name, given)
        file = f"{prefix}-{index}.bin"
        with open(os.path.join(folder, file), "wb") as sink:
            sink.write(tensor.data)
        described.append({"name": name, "dtype": tensor.dtype, "shape": list(tensor.shape), "file": file})
    return described


def take(described: list[dict[str, Any]], folder: str) -> dict[str, Tensor]:
    """Read the tensors that `write` described and remove their files."""
    tensors = {}
    for entry in described:
        path = os.path.join(folder, entry["file"])
        with open(path, "rb") as source:
            tensors[entry["name"]] = check(entry["name"], (entry["dtype"], entry["shape"], source.read()))
        os.unlink(path)
    return tensors
