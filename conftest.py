"""Policy of this repository for pytest; the plugin itself comes from the installed package."""

import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("neuronbench"):
        raise pytest.UsageError(
            f"neuronbench is not installed in this Python ({sys.executable}): make its environment with "
            "`make harness`, then `source .venv/bin/activate`"
        )
