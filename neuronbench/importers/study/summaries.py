"""What the study concluded from receipts of its own: kept under its names, and nothing of it a measurement of ours.

Summaries of ladders, pairs and probes, differences of versions, overlays of losses, and why something was withdrawn.
Their conclusions are words in JSON, some of them later taken back; the receipts they are of are imported beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronbench.importers.base import Imported, plain, text
from neuronbench.importers.study.files import Place
from neuronbench.importers.study.made import figures_of, result
from neuronbench.model import Gate, Json

_DERIVED = Gate(
    id="derived_elsewhere",
    passed=None,
    severity="info",
    message="computed by the study from receipts of its own, by rules that are not in it",
)


def summary(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Any of them: numbers with their dotted names, rows of a ladder by their position."""
    own: dict[str, Json] = {}
    for name in ("rungs", "attempts", "candidates", "lanes"):
        rows = data.get(name)
        for index, row in enumerate(rows[:50] if isinstance(rows, list) else [], start=1):
            if isinstance(row, Mapping):
                own |= dict(figures_of(row, f"{name}.{index}."))
    return [result(place, data, lane=place.lane, record="summary", own=own, gates=[_DERIVED],
                   params={"summary": place.path.stem, "box": plain(data.get("box"))})]  # fmt: skip


def withdrawn(place: Place, data: Mapping[str, Any]) -> list[Imported]:
    """Why receipts of a folder do not count."""
    names = data["invalidated"]
    told = ", ".join(text(name, 80) for name in names) if isinstance(names, list) else text(names)
    gate = Gate(id="withdrawn", passed=False, severity="info", message=text(data.get("reason") or "", 500))
    return [result(place, data, lane=place.lane, record="summary", params={"withdrawn": text(told)}, gates=[gate])]
