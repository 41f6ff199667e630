"""Seeded inputs for a compiled model: the same on every backend, so that answers and speeds are of one question."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neuronbench.protocols import InputSpec
from neuronbench.worker import speech
from neuronbench.worker.tensors import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

Arrays = Mapping[str, "npt.NDArray[Any]"]


def make(inputs: Sequence[InputSpec], seed: int = 0, lengths: Sequence[int] | None = None) -> Arrays:
    """Values for each input. `lengths`: tokens of each row before its padding; full rows by default.

    Padding has mask 0 and the token id `low`. Each input draws from a stream of its own, so that adding one leaves the
    others as they were.
    """
    import numpy as np

    batch: dict[str, npt.NDArray[Any]] = {}
    for spec in inputs:
        values: npt.NDArray[Any]
        draw = np.random.Generator(np.random.PCG64([seed, _stream(spec.name)]))
        if spec.kind == "token_ids":
            values = draw.integers(spec.low, spec.high, size=spec.shape)
            if lengths is not None:
                values[~_valid(spec, lengths)] = spec.low
        elif spec.kind == "attention_mask":
            values = np.ones(spec.shape) if lengths is None else _valid(spec, lengths)
        elif spec.kind == "zeros":
            values = np.zeros(spec.shape)
        elif spec.kind == "normal":
            values = draw.standard_normal(spec.shape)
        elif spec.kind == "audio":
            values = np.stack([clip.samples for clip in speech.clips(spec.shape[0], spec.shape[1], seed)])
        else:
            raise ValueError(f"input {spec.name!r}: no values for kind {spec.kind!r}")
        batch[spec.name] = np.ascontiguousarray(values, dtype=spec.dtype)
    return batch


def _valid(spec: InputSpec, lengths: Sequence[int]) -> npt.NDArray[Any]:
    import numpy as np

    rows, width = spec.shape[0], spec.shape[1]
    if len(lengths) != rows or not all(1 <= length <= width for length in lengths):
        raise ValueError(f"lengths: expected {rows} from 1 to {width}, found {list(lengths)}")
    valid: npt.NDArray[Any] = np.arange(width)[None, :] < np.asarray(lengths)[:, None]
    return valid


def _stream(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def other_padding(inputs: Sequence[InputSpec], batch: Arrays, lengths: Sequence[int]) -> Arrays | None:
    """The same batch with other tokens where it is padded; None for inputs without tokens or mask."""
    changed = dict(batch)
    kinds = {spec.kind for spec in inputs}
    if not {"token_ids", "attention_mask"} <= kinds:
        return None
    for spec in inputs:
        if spec.kind == "token_ids":
            values = changed[spec.name].copy()
            values[~_valid(spec, lengths)] = spec.high - 1
            changed[spec.name] = values
    return changed


def to_tensors(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays as they travel."""
    import numpy as np

    given = {}
    for name, value in batch.items():
        array = np.ascontiguousarray(value)
        given[name] = Tensor(str(array.dtype), array.shape, array.tobytes())
    return given


def digest(batch: Mapping[str, Any]) -> str:
    """Identity of a batch: names, types, shapes and values."""
    state = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(to_tensors(batch).items()):
        state.update(f"{name}:{tensor.dtype}:{tensor.shape};".encode())
        state.update(tensor.data)
    return state.hexdigest()
