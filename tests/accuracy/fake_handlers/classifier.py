"""A classifier of token rows in plain Python, made to answer wrongly on demand. Loaded by workers, never imported."""

from __future__ import annotations

import math
import struct

ROWS, WIDTH, CLASSES = 4, 12, 5


class Handler:
    """`behaviour`: plain, nan, ignores_mask, constant, flat, wrong_labels, rounded, raises."""

    def __init__(self, progress, behaviour="plain"):
        self._behaviour = behaviour

    def load(self):
        size = [ROWS, WIDTH]
        inputs = [
            {"name": "ids", "dtype": "int64", "shape": size, "kind": "token_ids", "low": 0, "high": 100},
            {"name": "attention_mask", "dtype": "int64", "shape": size, "kind": "attention_mask"},
        ]
        return {"inputs": inputs, "outputs": ["logits"], "seconds": 0.0}

    def step(self, inputs):
        count = ROWS * WIDTH
        ids = struct.unpack(f"<{count}q", inputs["ids"].data)
        mask = struct.unpack(f"<{count}q", inputs["attention_mask"].data)
        rows = [(ids[i : i + WIDTH], mask[i : i + WIDTH]) for i in range(0, count, WIDTH)]
        if self._behaviour == "raises":
            raise ValueError("the classifier was told to raise")
        return lambda: [value for row in rows for value in self._scores(*row)]

    def tensors(self, output):
        scales = struct.pack("<f", 2.5)  # no entry per item
        return {
            "logits": ("float32", (ROWS, CLASSES), struct.pack(f"<{ROWS * CLASSES}f", *output)),
            "scale": ("float32", (), scales),
        }

    def reference(self, inputs):
        return self.tensors(Handler(None).step(inputs)())

    def _scores(self, ids, mask):
        real = [1] * WIDTH if self._behaviour == "ignores_mask" else mask
        scores = [
            sum(math.sin(token * (kind + 1.3)) * keep for token, keep in zip(ids, real, strict=True))
            / max(sum(real), 1)
            for kind in range(CLASSES)
        ]
        if self._behaviour == "nan" and ids[0] < 3:
            scores[2] = float("nan")
        elif self._behaviour == "constant":
            scores = [0.1, 0.2, 0.3, 0.4, 0.5]
        elif self._behaviour == "flat":
            scores = [0.25] * CLASSES
        elif self._behaviour == "wrong_labels" and ids[0] < 3:
            scores = [-score for score in scores]
        elif self._behaviour == "rounded":
            scores = [score * (1 + 1e-5) for score in scores]
        return scores
