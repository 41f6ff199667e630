"""What no figure of a source can be, whatever measured it: less than nothing, or a median above its own maximum."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from neuronbench.importers.base import Imported
from neuronbench.importers.safe import ImportFailure
from neuronbench.model import Metric

_NEVER_NEGATIVE: Final = frozenset({"ms", "s", "us", "tok/s", "items/s", "req/s", "tokens", "requests", "B", "MiB"})
_ORDER: Final = ("min", "p50", "p90", "p95", "p99", "max")
_OK: Final = "ok_"
_ROUNDING: Final = 1e-3
"""Relative: sources round their percentiles, some of them to other digits than the maximum."""


def checked(item: Imported) -> Imported:
    """`item`, its percentiles null where they contradict each other. Raises `ImportFailure` for impossible figures."""
    for one in item.metrics:
        below = one.unit in _NEVER_NEGATIVE and one.value is not None and one.value < 0
        if below or one.n < 0:
            found = f"n = {one.n}" if one.n < 0 else f"{one.value:g} {one.unit}"
            raise ImportFailure(
                f"{item.source}: {item.name}: expected {one.key} from 0 on, found {found}: is the file what it was?"
            )
        if one.id == "error_rate" and one.value is not None and not 0 <= one.value <= 1:
            raise ImportFailure(
                f"{item.source}: {item.name}: expected between none and all requests to have failed, "
                f"found a share of {one.value:g}"
            )
    wrong = _contradictions(item.metrics)
    return replace(item, metrics=[_null(one, wrong) for one in item.metrics]) if wrong else item


def _contradictions(metrics: Sequence[Metric]) -> Mapping[str, str]:
    """Id → what is out of order about its statistics, those of the successes alone looked at by themselves."""
    groups: dict[tuple[str, bool], dict[str, float]] = {}
    for one in metrics:
        if one.value is not None:
            group = groups.setdefault((one.id, one.stat.startswith(_OK)), {})
            group[one.stat.removeprefix(_OK)] = one.value
    found: dict[str, str] = {}
    for (id_, _), values in groups.items():
        steps = [*itertools.pairwise(stat for stat in _ORDER if stat in values), ("min", "mean"), ("mean", "max")]
        for low, high in steps:
            if {low, high} <= values.keys() and values[low] > values[high] + _ROUNDING * abs(values[high]):
                found.setdefault(
                    id_, f"its {low} {values[low]:g} is above its {high} {values[high]:g}: swapped, or wrong"
                )
    return found


def _null(one: Metric, wrong: Mapping[str, str]) -> Metric:
    """All statistics of an id go together: which of them is the wrong one is not known."""
    if one.value is None or one.id not in wrong:
        return one
    return replace(one, value=None, low=None, high=None, note=wrong[one.id])
