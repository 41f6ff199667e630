"""Samples for models whose inputs nobody has: drawn from a seed, the same on every backend. The reference says what is
right of them; they can tell a wrong graph, never how good a model is."""

from __future__ import annotations

from typing import Any

from neuronbench.accuracy.samples import Samples


def drawn(model: Any, count: int, *, seed: int = 100) -> Samples:
    """`count` items as `model.batch` draws them; texts of different lengths, where the model minds a mask."""
    import numpy as np

    mask = next((spec for spec in model.inputs if spec.kind == "attention_mask"), None)
    size = model.batch_size
    calls = [model.batch(seed + call, _lengths(mask, size, call)) for call in range(-(-count // size))]
    inputs = {spec.name: np.concatenate([call[spec.name] for call in calls])[:count] for spec in model.inputs}
    return Samples(name=f"{count} drawn items", inputs=inputs, protocol={"seed": seed, "drawn": "model.batch"})


def _lengths(mask: Any, rows: int, call: int) -> list[int] | None:
    """From half the width to all of it, in turn."""
    if mask is None:
        return None
    least = max(1, mask.shape[1] // 2)
    return [least + (call * rows + row) * 7 % (mask.shape[1] - least + 1) for row in range(rows)]
