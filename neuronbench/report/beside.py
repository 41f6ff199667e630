"""Published figures beside measured ones, in lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neuronbench.model import Json, Record
from neuronbench.report.tables import short_ids

LIMIT = 6


def published_lines(records: Sequence[Record], limit: int = LIMIT) -> list[str]:
    """Of each point that has a published row: the ratios, or why there is none, and what is odd about the row."""
    lines = []
    for record, name in zip(records, short_ids(records), strict=True):
        told = record.workload.get("published")
        if isinstance(told, Mapping):
            lines.append(f"{name}: {_line(told)}")
    more = len(lines) - limit
    return lines if more <= 0 else [*lines[:limit], f"published rows of {more} more: in their records"]


def _line(told: Mapping[str, Json]) -> str:
    row = "/".join(str(told[part]) for part in ("edition", "group", "table", "row"))
    where = f"published {row}, {told['instance_type']}"
    compared = told.get("compared") or ()
    ratios = [f"{each['stat'].replace('_', ' ')} {each['ratio']:.3f}" for each in compared if each["ratio"] is not None]
    said = [f"measured / published: {', '.join(ratios)}" if ratios else ""]
    if not ratios:
        figures = [f"{each['stat'].replace('_', ' ')} {each['published']:g} {each['unit']}" for each in compared]
        why = next((each["why"] for each in compared if each["why"] != "not measured here"), "not measured here")
        said = [", ".join(figures), f"no ratio: {why}" if compared else ""]
    odd = ", ".join(finding["id"] for finding in told.get("findings") or ())
    return "; ".join(part for part in (where, *said, f"the row has {odd}" if odd else "") if part)
