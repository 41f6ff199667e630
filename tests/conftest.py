"""What holds for the tests and not for benchmarks: when a test is taken for one that hangs, and that long files come
first."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import hypothesis
import inside_runs
import pytest
from browser_fixtures import browser, web  # fixtures of every folder

__all__ = ["browser", "web"]

TIMEOUT_S = 300
LONG_TIMEOUT_S = 900
HERE = Path(__file__).parent
LONG = (
    "e2e/test_real_cpu.py",
    "test_repository.py",
    "plugins/neuron/test_training_worker.py",
    "new_plugin/test_new_plugin.py",
    "plugins/neuron/test_serving_neuron_runs.py",
    "backends/test_cpu_trainer_real.py",
    "backends/test_cpu_trainer_weights.py",
    "plugins/neuron/test_compiled_neuron.py",
    "plugins/neuron/test_training_boxes.py",
    "e2e/test_compiled_sessions.py",
    "plugins/ray/test_ray_load.py",
    "infra/test_fleet_run.py",
    "plugins/ray/test_ray_place.py",
    "plugins/neuron/test_compiled_e2e.py",
    "backends/test_cpu_lanes_real.py",
    "backends/test_cpu_compiled_real.py",
    "plugins/neuron/test_profile_runs.py",
    "infra/cdk/test_infra_templates.py",
)
"""Files that take a minute of a core and more: one that begins last is waited for by idle cores. The real server comes
first, beside what has no threads of its own: two programs whose threads wait for each other by spinning, on two cores,
are ten times as slow as one after the other."""


inside_runs.keep_libraries()
# How long an example takes says how busy the host is; and examples are the same wherever the suite runs. To look for
# others: --hypothesis-profile=default.
hypothesis.settings.register_profile(
    "any-host",
    hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name()),
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any-host")


def pytest_configure(config: pytest.Config) -> None:
    # Hundreds of processes are started, and each would compile this project's modules for itself.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Shells let programs that they start in the background ignore Ctrl-C, and so would all that is started here.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # else xdist begins with the files that have most tests


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {HERE / name: place for place, name in enumerate(LONG)}
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S if item.path in places else TIMEOUT_S))
    items.sort(key=lambda item: places.get(item.path, len(places)))
