"""What is said of a compiled model: to a record, to people, and in the key of its reference's answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from neuronbench import artifacts
from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Json, Metric
from neuronbench.protocols import Stack

_OF_TOKENS: Final = frozenset({"encoder", "embedding", "seq2seq"})
"""Families whose input is as many tokens as `sequence_length` says."""


def artifact_metrics(found: artifacts.Artifact) -> list[Metric]:
    """Cold and warm apart: a compile that did not happen has no time, and the note says what stands for it."""
    seconds = found.facts["seconds"]
    cold = None if found.hit else float(found.facts["wall_s"])
    note = f"nothing was compiled: the artifact of {found.manifest['created_at']} was in the cache" if found.hit else ""
    return [
        metric("compile_time", cold, stat="cold", n=0 if found.hit else 1, note=note),
        metric("compile_time", found.found_s if found.hit else None, stat="warm", n=int(found.hit),
               note="" if found.hit else "the artifact was not in the cache"),
        *([metric("export_time", None if found.hit else seconds["export"], n=0 if found.hit else 1, note=note)]
          if "export" in seconds else []),
        *(metric("compile_stage", None if found.hit else took, stat=stage, n=0 if found.hit else 1, note=note)
          for stage, took in seconds.items()),
        metric("artifact_size", found.size_bytes, n=1),
        metric("graphs", found.facts["graphs"], n=1),
        metric("cache_hits", found.counts["hits"], n=1),
        metric("cache_misses", found.counts["misses"], n=1),
    ]  # fmt: skip


def artifact_facts(found: artifacts.Artifact) -> dict[str, Json]:
    """What a record says of the artifact it rests on."""
    files = found.manifest["files"]
    return {
        "key": found.key,
        "cache": "hit" if found.hit else "miss",
        "created_at": found.manifest["created_at"],
        "sha256": {name: entry["sha256"] for name, entry in files.items()},
        "bytes": found.size_bytes,
        "inputs": {each["name"]: each["shape"] for each in found.facts["inputs"]},
        "parts": found.manifest["parts"],
        "compiler": found.facts["compiler"],
        "seconds": found.facts["seconds"],
        "operations": found.facts.get("operations"),
        "flops_per_call": found.facts["flops_per_call"],
        "parts_made": found.facts.get("parts", {}),
        "model": found.facts["model"],
        "notes": list(found.notes),
    }


def reference_parts(parts: Mapping[str, Json], given: FrozenMap) -> dict[str, Json]:
    """Of what decides the artifact all that decides the reference's answers, too: it is fp32 and not compiled."""
    kept = {name: parts[name] for name in ("model", "family", "task", "shape", "threads", "env", "versions", "target")}
    return {"reference": "fp32, not compiled", **kept, "handler": parts["handler"]}


def weights_in_words(made: Mapping[str, Json]) -> str:
    """`real`, `random (seed 0)`, what of both, `none`: what a quality that is measured can be a quality of."""
    if made["weights"] == "none":
        return "none"
    if made["weights"] == "seeded":
        return f"random (seed {made['seed']})"
    return f"real, but for random (seed {made['seed']}): {', '.join(made['new'])}" if made["new"] else "real"


def stack_facts(stack: Stack) -> dict[str, Json]:
    """Which interpreter, why this one, and versions."""
    return {"python": str(stack.python), "source": stack.source, "packages": stack.packages.to_json()}


def title(given: FrozenMap) -> str:
    """For people: `all-MiniLM-L6-v2 raw_output 1×128 float32`."""
    name = str(given["model"] or (given["architecture"] or {}).get("model_type", ""))
    shape = f"batch {given['batch_size']}"
    if given["family"] in _OF_TOKENS:
        shape = f"{given['batch_size']}×{given['sequence_length']}"
    return f"{name.rpartition(':')[2]} {given['task']} {shape} {given['dtype']}"


def source_files(folder: Path) -> str:
    """Digest of the files beside the weights that decide how a model is built and what it starts with."""
    names = ("config.json", "generation_config.json", "modules.json", "1_Pooling/config.json")
    state = hashlib.sha256()
    for path in (folder / name for name in names):
        if path.is_file():
            state.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return state.hexdigest()
