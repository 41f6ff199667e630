"""A line of progress on a narrow terminal."""

from __future__ import annotations

import pytest

from neuronbench.report.lines import fitted

LINE = "window 12 s, 18 s left  7.9 of 8.0 req/s  8 in flight  211 tok/s"


@pytest.mark.parametrize("width", range(len(LINE) + 5))
def test_parts_are_shown_whole_or_not_at_all(width: int) -> None:
    shown = fitted(LINE, width)
    assert len(shown) <= width
    parts = LINE.split("  ")
    if width >= len(parts[0]):
        assert shown.split("  ") == parts[: len(shown.split("  "))]
    else:
        assert shown == LINE[:width]


def test_all_of_it_where_there_is_room() -> None:
    assert fitted(LINE, len(LINE)) == LINE
    assert fitted(LINE, -1) == ""
