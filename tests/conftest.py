"""What holds for the tests and not for benchmarks: a test that takes five minutes hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_fixtures import browser, web  # fixtures of every folder

__all__ = ["browser", "web"]

TIMEOUT_S = 300
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
