"""Which published row has the parameters of a point: of compiled models, of served ones, of training.

A row is a match only when everything that the source says of its load is what the point asks for. Which of its figures
may then be divided by is another question (`neuronbench.beside_published`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from neuronbench.catalog.architectures import plain_name
from neuronbench.catalog.published.reading import rows
from neuronbench.catalog.published.rows import Published
from neuronbench.model import Json, Point

COMPILED: Final = ("batch_size", "sequence_length", "dtype", "run_mode", "instance_type")
"""Parameters besides the model that a point of a compiled model must have for a table to be able to have its row."""
IMAGES: Final = ("batch_size", "image_size", "dtype", "run_mode", "instance_type")
OPTIONAL: Final = (
    "edition", "task", "application", "output_tokens", "tp_degree", "auto_cast", "weight_dtype",
)  # fmt: skip
"""Must agree where both sides have them."""
UNSAID: Final = ("sequence_length", "input_tokens", "output_tokens")
"""What many tables of served models and of training do not say: a row without it is shown, and gives no ratio."""
PLAIN: Final = ("", "none", "baseline", "no speculation")
"""How tables call rows without speculation."""
_TRAINED_AS: Final = {"pretrain": "pre_training", "full_sft": "fine_tuning"}
_PREFIX: Final = re.compile(r"^(meta-|huggingface )")
_CALLED: Final = {"bert-large": "bert-large-uncased"}
"""What tables of training call a model → the one that the scripts they name train."""
_SUFFIX: Final = re.compile(r"(-hf| ph[12]| \(text\))$")


def match(point: Point, known: Mapping[str, Json] | None = None) -> Published | None:
    """The row with the parameters of `point`; of several editions the newest, unless the point names one (`edition`).

    `known` is what became known of parameters that the point does not name: `instance_type`, `tensor_parallel_size`,
    `global_batch_size`.
    """
    told = {name: value for name, value in point.params.items() if value is not None}
    params: dict[str, Json] = {**{name: value for name, value in (known or {}).items() if value is not None}, **told}
    if params.get("model") is None or params.get("instance_type") is None:
        return None
    kind = next((kind for kind in (_trained, _served, _images, _compiled) if kind(params) is not None), None)
    if kind is None:
        return None
    wanted = kind(params) or {}
    groups = _GROUPS[kind.__name__]
    found = [row for row in rows() if row.group.startswith(groups) and _fits(row, point, params, wanted)]
    return max(found, key=lambda row: (sum(getattr(row, name) is not None for name in wanted), row.as_of), default=None)


_GROUPS: Final = {
    "_trained": ("training_",),
    "_served": ("decoder", "llmperf", "tutorials", "guidellm", "contrib"),
    "_images": ("vision", "stable_diffusion", "diffusion"),
    "_compiled": ("encoder", "seq2seq"),
}


def _compiled(params: Mapping[str, Json]) -> dict[str, Json] | None:
    return {name: params[name] for name in COMPILED} if _all(params, COMPILED) else None


def _images(params: Mapping[str, Json]) -> dict[str, Json] | None:
    if not _all(params, IMAGES):
        return None
    size = params["image_size"]
    told = f"{size}x{size}" if isinstance(size, int) else size
    return {**{name: params[name] for name in IMAGES}, "image_size": told}


def _served(params: Mapping[str, Json]) -> dict[str, Json] | None:
    """A closed loop of so many requests; a table's batch is what was in flight where it says nothing else."""
    if not _all(params, ("concurrency", "input_tokens", "output_tokens")):
        return None
    names = ("concurrency", "input_tokens", "output_tokens", "instance_type")
    degree = tensor_degree(params)
    wanted = {name: params[name] for name in names}
    return wanted if degree is None else {**wanted, "tp_degree": degree}


def _trained(params: Mapping[str, Json]) -> dict[str, Json] | None:
    task = _TRAINED_AS.get(str(params.get("method")))
    size = global_batch(params)
    if task is None or size is None:
        return None
    return {"task": task, "global_batch_size": size, "nodes": params.get("nodes", 1),
            "sequence_length": params.get("sequence_length"), "instance_type": params["instance_type"]}  # fmt: skip


def tensor_degree(params: Mapping[str, Json]) -> Json:
    """Over how many cores a model is spread: `tp_degree`, or as engines and trainers call it."""
    return params.get("tp_degree", params.get("tensor_parallel_size"))


def global_batch(params: Mapping[str, Json]) -> int | None:
    """Sequences of one optimiser step: as named, else micro-batch × accumulation × ranks with data of their own."""
    named = params.get("global_batch_size")
    if isinstance(named, int):
        return named
    parts = [params.get("batch_size"), params.get("accumulation", 1), params.get("world_size", params.get("ranks", 1))]
    degree = int(tensor_degree(params) or 1) * int(params.get("pp_degree", params.get("pipeline_parallel_size")) or 1)
    if not all(isinstance(part, int) for part in parts) or parts[2] % degree:
        return None
    return int(parts[0] * parts[1] * parts[2] // degree)


def _all(params: Mapping[str, Json], names: Sequence[str]) -> bool:
    return all(params.get(name) is not None for name in names)


def _fits(row: Published, point: Point, params: Mapping[str, Json], wanted: Mapping[str, Json]) -> bool:
    if model_name(str(params["model"])) != model_name(row.model) or not _as_plain(row, point):
        return False
    open_ended = row.group not in ("encoder", "seq2seq")
    for name, value in wanted.items():
        told = (row.concurrency or row.batch_size) if name == "concurrency" else getattr(row, name)
        if told is None and name in UNSAID and open_ended:
            continue
        if value not in str(told).split("/") if name == "instance_type" else told != value:
            return False
    return all(
        point.get(name) is None or getattr(row, name) in (None, "", point.get(name))
        for name in OPTIONAL
        if name not in wanted
    )


def _as_plain(row: Published, point: Point) -> bool:
    """Rows with speculation are for points that name the same, and rows at a rate for none that has a loop."""
    if row.load == "asynchronous":
        return False
    asked = point.get("speculation")
    if asked is not None or point.lane == "spec_decode":
        return asked in (row.speculation, row.variant)
    return row.speculation in PLAIN and (row.group != "tutorials" or row.variant in PLAIN)


def model_name(reference: str) -> str:
    """What a model is called, whoever names it: `hub:meta-llama/Meta-Llama-3-8B` and `Llama-3-8B` are one."""
    name = _SUFFIX.sub("", _PREFIX.sub("", plain_name(reference)))
    return _CALLED.get(name, name)
