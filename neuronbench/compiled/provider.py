"""The provider of compiled models that backends derive theirs from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from neuronbench import models
from neuronbench.compiled.boot import CompiledBoot
from neuronbench.compiled.settings import DEFAULTS, wrong_settings
from neuronbench.model import FrozenMap, Json, Point, ResourceSpec
from neuronbench.protocols import Backend, BootContext, ProviderInfo, Unsupported
from neuronbench.worker.boot import without_stack
from neuronbench.worker.compiled import WorkerModel

if TYPE_CHECKING:
    from neuronbench.config import Settings


class CompiledProvider:
    """`neuronbench.protocols.Provider` of compiled models; a backend's own derives from it."""

    defaults: ClassVar[Mapping[str, Json]] = DEFAULTS
    """Every parameter of a point that is this provider's business, with its default."""
    booting: ClassVar[type[CompiledBoot]]
    """How one boots: the backend's own."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Settings) -> ResourceSpec:
        given = {name: point.get(name, default) for name, default in self.defaults.items()}
        return ResourceSpec(
            kind="compiled_model", backend=backend.info.name, provider=self.info.name, settings=FrozenMap(given)
        )

    def check(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        wrong = wrong_settings(spec.settings) or self.wrong(spec.settings, backend, settings)
        if wrong:
            return Unsupported(reason=wrong)
        if spec.settings["model"]:
            known = models.metadata(spec.settings["model"], settings).max_model_len
            length = spec.settings["sequence_length"]
            if known is not None and length > known:
                return Unsupported(
                    reason=f"sequence_length {length} is above the {known} tokens that {spec.settings['model']} takes"
                )
        return self.missing(spec, backend, settings) or without_stack(backend, "compile", settings)

    def boot(self, spec: ResourceSpec, context: BootContext) -> WorkerModel:
        return self.booting(spec, context).run()

    # -- the backend's own

    def wrong(self, given: FrozenMap, backend: Backend, settings: Settings) -> str:
        """What makes these settings impossible on this backend, in one line; empty when nothing does."""
        return ""

    def missing(self, spec: ResourceSpec, backend: Backend, settings: Settings) -> Unsupported | None:
        """What this host lacks, other than a stack."""
        return None
