"""Measuring an endpoint without pytest: what `neuronbench load` does."""

from neuronbench.standalone.foreign import measure_with
from neuronbench.standalone.native import Extras, MeasureError, measure
from neuronbench.standalone.result import Result
from neuronbench.standalone.search import find_rate

__all__ = ["Extras", "MeasureError", "Result", "find_rate", "measure", "measure_with"]
