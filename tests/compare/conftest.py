"""A store of receipts to compare."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_helpers import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "mlruns" / "receipts")
