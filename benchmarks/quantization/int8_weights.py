"""A served model's weights in int8, made here: rounded to the nearest, one scale a row, in compressed-tensors' format.

It is the plainest way to quantise (no calibration data, no search), and so the floor of what int8 costs in accuracy,
not the best of it. Matrices of layers are quantised; embeddings, norms and the output matrix stay as they are. A server
quantises the activations of each token as it goes, so that products are of int8 with int8.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from neuronbench import modelfiles
from neuronbench.artifacts import Artifact, ArtifactCache, Words
from neuronbench.model import Json
from neuronbench.protocols import Progress

WORDS: Final = Words(title="quantised weights", noun="quantised model", made="quantised", making="quantising")
FOLDER: Final = "quantized"
FORMAT: Final = 1
LARGEST: Final = 127
_MATRIX: Final = re.compile(r"\.layers\.\d+\..*_proj\.weight$")
_READ: Final = {"BF16": 2, "F16": 2, "F32": 4}
CONFIG: Final[Mapping[str, Json]] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
            },
        }
    },
}  # fmt: skip


def obtain(source: Path, digest: str, *, cache_dir: Path, progress: Progress, deadline_s: float) -> Artifact:
    """The int8 form of the model in `source` (weights of that `digest`): from the cache, or made now.

    Raises `ValueError` for a model that has no matrices of the kind in safetensors files.
    """
    parts: dict[str, Json] = {"quantized": FORMAT, "weights": digest or str(source), "to": dict(CONFIG)}

    def make(folder: Path) -> Mapping[str, Json]:
        progress("quantising the weights to int8")
        return quantise(source, folder)

    return ArtifactCache(cache_dir, FOLDER, WORDS).obtain(
        parts, make, progress=progress, deadline_s=deadline_s, title=f"{source.name} in int8"
    )


def quantise(source: Path, target: Path) -> dict[str, Json]:
    """Write the int8 form into `target`; how many matrices, bytes before and after, and the largest error of rounding.

    The error is relative to the largest weight of the row it is in: 1/254 at most.
    """
    config = modelfiles.read_json(source / "config.json")
    if config.get("quantization_config"):
        raise ValueError(f"{source}: its weights are quantised already ({config['quantization_config']})")
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in (".json", ".txt", ".model", ".jinja") and ".index." not in path.name:
            shutil.copyfile(path, target / path.name)
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": CONFIG}, indent=2), "utf-8")
    entries: list[tuple[str, str, tuple[int, ...], bytes]] = []
    before = matrices = 0
    worst = 0.0
    for name, dtype, shape, data in tensors(source):
        before += len(data)
        if not _MATRIX.search(name) or dtype not in _READ or len(shape) != 2:
            entries.append((name, dtype, shape, data))
            continue
        values, scales, error = rounded(_floats(dtype, data).reshape(shape))
        matrices, worst = matrices + 1, max(worst, error)
        entries.append((name, "I8", shape, values.tobytes()))
        entries.append((name + "_scale", "F32", (shape[0], 1), scales.tobytes()))
    if not matrices:
        raise ValueError(f"{source}: no matrix of a layer (`...layers.N...._proj.weight`) in a safetensors file")
    _write(target / "model.safetensors", entries)
    after = sum(len(data) for *_, data in entries)
    return {"matrices": matrices, "bytes_before": before, "bytes_after": after, "largest_error": worst}


def rounded(weights: Any) -> tuple[Any, Any, float]:
    """[rows, columns] in fp32 → int8 of the same shape, scales [rows, 1], and the largest error / the row's largest."""
    import numpy as np

    largest = np.abs(weights).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / LARGEST, 1.0).astype("float32")
    values = np.clip(np.rint(weights / scales), -LARGEST, LARGEST).astype("int8")
    error = np.abs(values * scales - weights) / np.where(largest > 0, largest, 1.0)
    return values, scales, float(error.max(initial=0.0))


def tensors(folder: Path) -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
    """Name, type, shape and bytes of every tensor in the folder's safetensors files."""
    for path in sorted(folder.glob("*.safetensors")):
        header = modelfiles.safetensors_header(path)
        with path.open("rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little")
            for name, told in header.items():
                if name == "__metadata__":
                    continue
                first, last = told["data_offsets"]
                file.seek(begin + first)
                yield name, told["dtype"], tuple(told["shape"]), file.read(last - first)


def _floats(dtype: str, data: bytes) -> Any:
    import numpy as np

    if dtype == "BF16":  # the upper half of an fp32
        return (np.frombuffer(data, dtype="<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, dtype="<f2" if dtype == "F16" else "<f4").astype("<f4")


def _write(path: Path, entries: list[tuple[str, str, tuple[int, ...], bytes]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, data in entries:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little") + encoded)
        for *_, data in entries:
            out.write(data)
