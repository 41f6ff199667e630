"""What cannot work, said before anything is fetched, built or booted: divisibility of heads and experts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from neuronbench import Point, modelfiles
from neuronbench.catalog.architectures import plain_name
from neuronbench_moe import control
from neuronbench_moe import shape as shapes

TILE: Final = 128
"""Kernels for experts on Neuron work on tiles of so many hidden units; the compiler says NCC_INKI016 otherwise."""
ENGINE: Final = "engine_args"
NEURON: Final = "neuron_config"


def config_at(point: Point) -> Mapping[str, Any] | None:
    """The configuration that a point is about, where it is at hand: in the point, a local folder, or published."""
    architecture = point.get("architecture")
    pretrained = point.get("weights") == "pretrained"
    if isinstance(architecture, Mapping) and not pretrained:
        return architecture
    reference = str(point.get("model") or "")
    folder = Path(reference.removeprefix("file:")).expanduser()
    if reference.startswith(("file:", "/", "~", "./", "../")) and (folder / "config.json").is_file():
        return modelfiles.read_config(folder)
    return published().get(plain_name(reference))


@lru_cache(maxsize=1)
def published() -> Mapping[str, Mapping[str, Any]]:
    """Configurations of published models by plain name."""
    return tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


def wrong(point: Point, family: str) -> str:
    """Why the point cannot run on hardware of that family, in one line; empty where nothing is known against it."""
    tp, ep = point.get("tensor_parallel", 1), point.get("expert_parallel", 1)
    for name, value in (("tensor_parallel", tp), ("expert_parallel", ep)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            return f"{name}: expected a whole number from 1, found {value!r}"
    tp, ep = tp or 1, ep or 1
    by = point.get("parallel_by", ENGINE)
    if by not in (ENGINE, NEURON):
        return f"parallel_by: expected {ENGINE!r} or {NEURON!r}, found {by!r}"
    if by == ENGINE and ep not in (1, tp):
        return f"expert_parallel {ep}: vLLM spreads experts over the ranks of tensor_parallel, of which there are {tp}"
    try:
        config = config_at(point)
        if config is None:
            return ""
        found = shapes.of(config)
        if point.get("weights", "seeded") != "pretrained":
            found = shapes.of(control.config_of(config, str(point.get("arm", "moe"))))
    except ValueError as error:
        return str(error)
    if found.heads % tp:
        return f"tensor_parallel {tp}: {found.heads} attention heads do not divide over {tp} ranks"
    if found.kv_heads % tp and tp % found.kv_heads:
        return f"tensor_parallel {tp}: {found.kv_heads} heads of keys and values neither divide over it nor into it"
    if not found.experts:
        return ""
    if found.experts % ep:
        return f"expert_parallel {ep}: {found.experts} experts do not divide over {ep} ranks"
    if ep == 1 and found.expert_width % tp:
        return f"tensor_parallel {tp}: experts of width {found.expert_width} cannot be cut into {tp} parts"
    return untileable(found, family)


def untileable(found: shapes.Shape, family: str) -> str:
    """Why the kernels for experts of that family cannot take the shape; empty where they can."""
    if family != "neuron" or not found.experts or found.hidden % TILE == 0:
        return ""
    return (
        f"hidden_size {found.hidden}: kernels for experts on Neuron need a multiple of {TILE} "
        "(the compiler's NCC_INKI016, after the weights were fetched and traced)"
    )


def server_parameters(point: Point) -> dict[str, Any]:
    """Parameters of the endpoint that the point's parallelism comes to."""
    tp, ep = point.get("tensor_parallel") or 1, point.get("expert_parallel") or 1
    if point.get("parallel_by", ENGINE) == NEURON:  # its provider reads `tensor_parallel` itself
        return {NEURON: {**(point.get(NEURON) or {}), "ep_degree": ep}} if ep > 1 else {}
    given = dict(point.get(ENGINE) or {})
    if tp > 1:
        given["tensor_parallel_size"] = tp
    if ep > 1:
        given["enable_expert_parallel"] = True
    if point.get("weights", "seeded") == "dummy":
        given["load_format"] = "dummy"
    return {ENGINE: given}
