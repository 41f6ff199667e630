"""Figures are drawn from the same synthetic tables as the sinks' tests use."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sinks"))
