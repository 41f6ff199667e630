"""Plugins of neuronbench within pytest: loading them, their markers, and hooks in `conftest.py`."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from neuronbench import lane_benchmarks
from neuronbench.bench import MARK
from neuronbench.plugins import PluginError, Plugins, PluginWarning
from neuronbench.pytest_plugin.benchmark_clock import BenchmarkIntegration
from neuronbench.pytest_plugin.keys import ERRORS, PLUGINS, SETTINGS, WARNINGS
from neuronbench.pytest_plugin.options import settings_of
from neuronbench.pytest_plugin.terminal import Terminal


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getini("neuronbench"):
        config.addinivalue_line("python_files", "bench_*.py")
        config.addinivalue_line("python_functions", "bench_*")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # told in the header, once and in one line
        try:
            plugins = config.stash[PLUGINS] = Plugins()
        except PluginError as error:
            raise pytest.UsageError(str(error)) from error
    # A plugin that misbehaves is told about and never fails a run, also where warnings are errors.
    config.addinivalue_line("filterwarnings", "default::neuronbench.plugins.PluginWarning")
    config.stash[ERRORS] = []
    config.stash[WARNINGS] = []
    config.stash[SETTINGS] = settings_of(config)
    config.addinivalue_line("markers", f"{MARK}(lane, grid, backends, params, slo): set by neuronbench.bench")
    _add_markers(config, plugins)
    _add_benchmarks_of_lanes(config, plugins)
    config.pluginmanager.register(ConftestBridge(config), "neuronbench-conftest-bridge")
    config.pluginmanager.register(Terminal(config), "neuronbench-terminal")
    config.pluginmanager.register(BenchmarkIntegration(config), "neuronbench-benchmark")


def _add_markers(config: pytest.Config, plugins: Plugins, known: frozenset[str] = frozenset()) -> None:
    for backend in plugins.backends:
        for name in {backend.name, *backend.aliases} - known:
            config.addinivalue_line("markers", f"{name}: runs on {backend.title}")
    for lane in plugins.lanes:
        if lane.name not in known:
            config.addinivalue_line("markers", f"{lane.name}: lane: {lane.title}")


def _add_benchmarks_of_lanes(config: pytest.Config, plugins: Plugins) -> None:
    """Where the whole of a project's `benchmarks` is collected, those that installed lanes bring are, too.

    One that is named, or lies in a folder that is named, is pytest's affair alone.
    """
    project = config.stash[SETTINGS].root / "benchmarks"
    named = {Path(os.path.abspath(config.invocation_params.dir / arg)) for arg in config.args}
    if project in named:
        folders = lane_benchmarks.folders(plugins.lanes)
        config.args += [str(folder) for folder in folders if not any(folder.is_relative_to(name) for name in named)]


class ConftestBridge:
    """Lets a `conftest.py` carry hooks of neuronbench, with no packaging."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_plugin_registered(self, plugin: object) -> None:
        file = getattr(plugin, "__file__", None)
        if not isinstance(file, str) or Path(file).name != "conftest.py":
            return
        if not any(isinstance(getattr(value, "neuronbench_impl", None), dict) for value in vars(plugin).values()):
            return
        plugins = self._config.stash[PLUGINS]
        known = frozenset([*plugins.backends.names(), *plugins.lanes.names()])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            if not plugins.register(plugin, name=file, source="conftest"):
                self._config.stash[ERRORS].append(f"{file}: {plugins.reports[file].error}")
        _add_markers(self._config, plugins, known)
