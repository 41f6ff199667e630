"""What the parts promise each other. Objects that satisfy these do the work; hooks only register and observe.

Third parties implement `Backend`, `Provider`, `Resource`, `Sink` and `Sampler`; nothing here needs a base class.
"""

from neuronbench.model import Failure, Record
from neuronbench.protocols.backends import (
    Backend,
    Check,
    Probe,
    Stack,
)
from neuronbench.protocols.booting import (
    BootContext,
    BootError,
    DeadlineExceeded,
    PointFailure,
    Progress,
    Provider,
)
from neuronbench.protocols.recording import (
    Cache,
    CacheEntry,
    Delivery,
    Sampler,
    Sink,
)
from neuronbench.protocols.registered import (
    BackendInfo,
    LaneInfo,
    ProviderInfo,
    SamplerSpec,
    SinkInfo,
    Unsupported,
)
from neuronbench.protocols.resources import (
    CompiledModel,
    Endpoint,
    Floor,
    InputSpec,
    Peak,
    Resource,
    Trainer,
    Vocabulary,
)

__all__ = [
    "Backend",
    "BackendInfo",
    "BootContext",
    "BootError",
    "Cache",
    "CacheEntry",
    "Check",
    "CompiledModel",
    "DeadlineExceeded",
    "Delivery",
    "Endpoint",
    "Failure",
    "Floor",
    "InputSpec",
    "LaneInfo",
    "Peak",
    "PointFailure",
    "Probe",
    "Progress",
    "Provider",
    "ProviderInfo",
    "Record",
    "Resource",
    "Sampler",
    "SamplerSpec",
    "Sink",
    "SinkInfo",
    "Stack",
    "Trainer",
    "Unsupported",
    "Vocabulary",
]  # fmt: skip
