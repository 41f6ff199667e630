"""A backend whose servers speculate as they are told: the truth server, by the arguments that vLLM would get.

`kept` and `step_ms`, `draft_ms` of a point are those of the scenario `speculate`; `amiss` is added to it where tokens
are drafted, and `amiss_base` where none are, to have something wrong with the one or the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from neuronbench import Backend, BackendInfo, Point, ProviderInfo, ResourceSpec, hookimpl
from neuronbench.model import FrozenMap
from neuronbench.testing.fake_backend import NAME, TruthProvider
from neuronbench.testing.fake_backend import register_backends as _backends

CONFTEST: Final = "import neuronbench\nfrom spec_truth import register_backends, register_resources\n"


@hookimpl
def register_backends(register: Callable[[BackendInfo], None]) -> None:
    _backends(register)


@hookimpl
def register_resources(register: Callable[[ProviderInfo], None]) -> None:
    register(ProviderInfo(name=f"endpoint/{NAME}", kind="endpoint", families=(NAME,), target="spec_truth:SpecTruth"))


class SpecTruth(TruthProvider):
    """Endpoints of the truth server that draft as many tokens as `--speculative-config` says."""

    def spec(self, point: Point, backend: Backend, settings: Any) -> ResourceSpec:
        config = point.get("engine_args", {}).get("speculative_config", {})
        k = config.get("num_speculative_tokens", 0)
        words = [
            "speculate", f"drafted={k}", f"kept={point.get('kept', '2-0-x-4')}",
            f"step_ms={point.get('step_ms', 3)}", f"draft_ms={point.get('draft_ms', 0.5)}",
            point.get("amiss" if k else "amiss_base", ""),
        ]  # fmt: skip
        scenario = ",".join(word for word in words if word)
        return super().spec(replace(point, params=FrozenMap({**point.params, "scenario": scenario})), backend, settings)
