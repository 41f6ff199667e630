"""The pytest plugin: collection, markers, skips, fixtures, and records that close whatever happens.

The only package that imports pytest. It stays light (no numpy, no MLflow): what is heavy is imported when a benchmark
runs. A run without benchmarks never notices it. One feature, one module; pytest finds the hooks and fixtures here.
"""

from neuronbench.pytest_plugin.collection import pytest_collection_modifyitems, pytest_generate_tests
from neuronbench.pytest_plugin.compiled import compiled_model
from neuronbench.pytest_plugin.fixtures import endpoint, measure, nb, nb_repeat, point, telemetry
from neuronbench.pytest_plugin.options import pytest_addoption
from neuronbench.pytest_plugin.registering import pytest_configure
from neuronbench.pytest_plugin.running import (
    pytest_runtest_call,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
    pytest_runtestloop,
    pytest_sessionfinish,
)
from neuronbench.pytest_plugin.trainer import trainer

__all__ = [
    "compiled_model",
    "endpoint",
    "measure",
    "nb",
    "nb_repeat",
    "point",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
    "pytest_runtestloop",
    "pytest_sessionfinish",
    "telemetry",
    "trainer",
]
