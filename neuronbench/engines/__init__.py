"""Other measuring tools as sub-processes, each in an environment of its own.

For parity, and for what neuronbench does not do itself. Their figures are mapped to our metric ids only where the
definitions agree; the rest is null here and stands under the tool's own names beside it.
"""

from neuronbench.engines.base import Adapter, EngineError, Reading
from neuronbench.engines.job import Job
from neuronbench.engines.run import ENGINES, Found, find, run

__all__ = ["ENGINES", "Adapter", "EngineError", "Found", "Job", "Reading", "find", "run"]
