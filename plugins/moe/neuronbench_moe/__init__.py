"""The lane `moe`: mixtures of experts, served beside dense models of equal parameters, and what their routers do.

This module is loaded with every `neuronbench` and every `pytest`: it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from neuronbench import BackendInfo, LaneInfo, Point, ProviderInfo, Unsupported, hookimpl

NEURONBENCH_API = "1.1"
FAMILIES: Final = ("cpu", "neuron", "fake")

LANE: Final = LaneInfo(
    name="moe",
    title="Mixtures of experts",
    needs=("endpoint", "moe_model", "moe_router"),
    headline=(
        "output_throughput_tok_s", "tpot_p50_ms", "vs_dense_active", "vs_dense_total", "parameter_rate_active_Gparam_s",
        "load_imbalance_worst", "router_entropy_share",
    ),
    definitions={
        "active_parameters": (
            "parameters", None, "parameters that one token uses: all but the experts that it is not sent to"
        ),
        "control_off": ("share", "lower", "parameters of the dense control / those it is to have, - 1, absolute"),
        "parameter_rate": (
            "Gparam/s", "higher",
            "output tokens/s x parameters / 1e9: of the active ones, and of all, as if each token used them",
        ),
        "vs_dense": (
            "", "higher", "output tokens/s / those of the dense control with equal active (or total) parameters, same "
            "load, same session",
        ),
        "step_parameters": (
            "parameters", "lower",
            "parameters that a decode step reads when its sequences are routed evenly: common ones + layers x "
            "experts touched x one expert",
        ),
        "load_imbalance": ("", "lower", "assignments of a layer's busiest expert / the mean over its experts"),
        "rank_imbalance": ("", "lower", "assignments of a layer's busiest rank / the mean over ranks of neighbours"),
        "load_entropy": ("share", "higher", "entropy of a layer's load over its experts / log of their number"),
        "router_entropy": (
            "share", None, "entropy of a token's router probabilities / log of the number of experts; mean"
        ),
        "dropped": (
            "share", "lower",
            "assignments beyond an expert's capacity / all, where a capacity is factor x even share, rounded up",
        ),
        "experts_touched": (
            "experts", None, "different experts of a layer that a decode step of so many sequences uses; mean"
        ),
        "touched_vs_even": ("", None, "experts touched / those of a router that sends tokens anywhere at random"),
    },
    benchmarks="neuronbench_moe.benchmarks",
)  # fmt: skip


@hookimpl
def register_lanes(register: Callable[[LaneInfo], None]) -> None:
    register(LANE)


@hookimpl
def register_resources(register: Callable[[ProviderInfo], None]) -> None:
    for kind, target in (("moe_model", "models:ModelProvider"), ("moe_router", "router:RouterProvider")):
        register(
            ProviderInfo(name=f"{kind}/transformers", kind=kind, families=FAMILIES, target=f"neuronbench_moe.{target}")
        )


@hookimpl
def check_point(point: Point, backend: BackendInfo) -> Unsupported | None:
    """Shapes that cannot be, for the points of this lane only."""
    if point.lane != LANE.name:
        return None
    from neuronbench_moe import checks

    wrong = checks.wrong(point, backend.family)
    return Unsupported(reason=wrong) if wrong else None
