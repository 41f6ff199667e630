"""A draft model out of the served one: the same weights without some of its layers, same tokenizer, made once.

It is a fast draft that agrees with the served model now and then, where no draft model of the family is at hand; its
acceptance says nothing about a draft that was trained. Weights are copied byte for byte, layers are counted anew.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from neuronbench import modelfiles
from neuronbench.artifacts import Artifact, ArtifactCache, Words
from neuronbench.model import Json
from neuronbench.protocols import Progress

DRAFTS: Final = Words(title="draft models", noun="draft model", made="cut", making="cutting")
FOLDER: Final = "drafts"
FORMAT: Final = 1
_LAYER: Final = re.compile(r"^(.*\blayers\.)(\d+)(\..+)$")
_BLOCK: Final = 1 << 24


def kept_layers(total: int, drop: int) -> list[int]:
    """Layers that stay when `drop` of `total` go: the last but one and those before it.

    The last layer prepares what the output matrix reads, so it stays. Raises `ValueError` for more than there are.
    """
    if not 1 <= drop <= total - 2:
        raise ValueError(f"shallow: expected 1 to {total - 2} layers to leave out of {total}, found {drop}")
    return [*range(total - 1 - drop), total - 1]


def obtain(source: Path, digest: str, drop: int, *, cache_dir: Path, progress: Progress, deadline_s: float) -> Artifact:
    """The model in `source` (weights of that `digest`) with `drop` layers fewer; from the cache, or cut now.

    Raises `ValueError` for a model whose layers cannot be told.
    """
    parts: dict[str, Json] = {"draft": FORMAT, "weights": digest or str(source), "drop": drop}

    def make(folder: Path) -> Mapping[str, Json]:
        progress(f"cutting a draft model: {drop} layers fewer")
        return cut(source, folder, drop)

    cache = ArtifactCache(cache_dir, FOLDER, DRAFTS)
    title = f"{source.name} without {drop} layers"
    return cache.obtain(parts, make, progress=progress, deadline_s=deadline_s, title=title)


def cut(source: Path, target: Path, drop: int) -> dict[str, Json]:
    """Write the smaller model into `target`; its number of layers and which of the source's they were."""
    config = modelfiles.read_config(source)
    total = config.get("num_hidden_layers")
    if not isinstance(total, int):
        raise ValueError(f"{source}: its config.json does not say `num_hidden_layers`, so no layer can be left out")
    kept = kept_layers(total, drop)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in (".json", ".txt", ".model", ".jinja") and ".index." not in path.name:
            shutil.copyfile(path, target / path.name)
    config["num_hidden_layers"] = len(kept)
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = [config["layer_types"][layer] for layer in kept]
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    chosen: list[tuple[str, Mapping[str, Any], Path, int]] = []
    for path in sorted(source.glob("*.safetensors")):
        header = modelfiles.safetensors_header(path)
        with path.open("rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little")
        for name, tensor in header.items():
            if name != "__metadata__" and (renamed := _renamed(name, kept)):
                chosen.append((renamed, tensor, path, begin))
    if not any(_LAYER.match(name) for name, *_ in chosen):
        raise ValueError(f"{source}: none of its tensors is of a layer (`...layers.N...`) in a safetensors file")
    _write(target / "model.safetensors", chosen)
    return {"layers": len(kept), "of_layers": total, "kept": [str(layer) for layer in kept], "tensors": len(chosen)}


def _renamed(name: str, kept: Sequence[int]) -> str:
    """Its name in the smaller model; empty for a tensor of a layer that goes."""
    found = _LAYER.match(name)
    if found is None:
        return name
    layer = int(found[2])
    return f"{found[1]}{kept.index(layer)}{found[3]}" if layer in kept else ""


def _write(path: Path, chosen: Sequence[tuple[str, Mapping[str, Any], Path, int]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor, _, _ in chosen:
        first, last = tensor["data_offsets"]
        header[name] = {"dtype": tensor["dtype"], "shape": tensor["shape"], "data_offsets": [at, at + last - first]}
        at += last - first
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, tensor, source, begin in chosen:
            first, last = tensor["data_offsets"]
            with source.open("rb") as file:
                file.seek(begin + first)
                _copy(file, out, last - first)


def _copy(source: BinaryIO, target: BinaryIO, count: int) -> None:
    while count > 0:
        block = source.read(min(count, _BLOCK))
        if not block:
            raise ValueError("a weight file ends before its last tensor does")
        target.write(block)
        count -= len(block)
