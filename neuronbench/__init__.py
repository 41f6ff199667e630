"""neuronbench: a plugin-based benchmark framework for AWS Trainium and Inferentia.

A benchmark is a pytest file. This module holds the public names and nothing else; see `neuronbench.hookspecs` for the
hooks and `neuronbench.protocols` for what plugins implement.
"""

from neuronbench.bench import bench
from neuronbench.hookspecs import hookimpl
from neuronbench.load.arrivals import burst, closed_loop, constant, gamma, poisson, ramp, sessions, steps, trace
from neuronbench.load.workload import dataset, empirical, lognormal, synthetic, uniform, warm_up
from neuronbench.model import Failure, Gate, Metric, Outcome, Point, Record, ResourceSpec
from neuronbench.protocols import (
    Backend,
    BackendInfo,
    BootContext,
    BootError,
    Delivery,
    Endpoint,
    LaneInfo,
    Peak,
    PointFailure,
    Probe,
    Provider,
    ProviderInfo,
    Resource,
    Sampler,
    SamplerSpec,
    Sink,
    SinkInfo,
    Stack,
    Trainer,
    Unsupported,
    Vocabulary,
)
from neuronbench.training.job import TrainJob

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "BackendInfo",
    "BootContext",
    "BootError",
    "Delivery",
    "Endpoint",
    "Failure",
    "Gate",
    "LaneInfo",
    "Metric",
    "Outcome",
    "Peak",
    "Point",
    "PointFailure",
    "Probe",
    "Provider",
    "ProviderInfo",
    "Record",
    "Resource",
    "ResourceSpec",
    "Sampler",
    "SamplerSpec",
    "Sink",
    "SinkInfo",
    "Stack",
    "TrainJob",
    "Trainer",
    "Unsupported",
    "Vocabulary",
    "__version__",
    "bench",
    "burst",
    "closed_loop",
    "constant",
    "dataset",
    "empirical",
    "gamma",
    "hookimpl",
    "lognormal",
    "poisson",
    "ramp",
    "sessions",
    "steps",
    "synthetic",
    "trace",
    "uniform",
    "warm_up",
]
