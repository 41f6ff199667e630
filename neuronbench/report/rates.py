"""A rate that keeps limits, in words: which limits, for what share of the requests, and between which two rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuronbench.model import Record
from neuronbench.report.tables import short_ids

KEY: Final = "max_rate_under_slo_req_s"


def rate_notes(records: Sequence[Record], limit: int = 6) -> list[str]:
    """A line for each record of such a rate: a number that means nothing without its limits."""
    lines = []
    for record, name in zip(records, short_ids(records), strict=True):
        metric = record.metrics.get(KEY)
        if metric is None:
            continue
        where = "met at no rate" if metric.value is None else f"met at {metric.value:.4g} req/s"
        if metric.high is not None:
            where += f", not at {metric.high:.4g} req/s"
        repeat = f" r{record.repeat}" if record.repeat > 1 else ""
        lines.append(f"{name}{repeat}: {where}: {metric.note}".strip())
    more = len(lines) - limit
    return lines if more <= 0 else [*lines[:limit], f"limits of {more} more: in their records"]
