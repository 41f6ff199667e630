"""Published figures: what others say of this hardware, which row of which table, and what is odd about that row.

A published figure is shown with its source and date; a ratio is formed on the same type of instance only, and only
where the definition is the same: figures of unlike things are not compared.
"""

from __future__ import annotations

from dataclasses import asdict

from neuronbench.catalog.published.checks import Finding, findings
from neuronbench.catalog.published.matching import match, model_name, tensor_degree
from neuronbench.catalog.published.prices import Cost, Incomparable, Price, cost_of, price_of, prices
from neuronbench.catalog.published.reading import rows
from neuronbench.catalog.published.rows import Published, cost_per_1m_usd, cost_tolerance_usd
from neuronbench.model import Json, jsonable

__all__ = [
    "Cost",
    "Finding",
    "Incomparable",
    "Price",
    "Published",
    "cost_of",
    "cost_per_1m_usd",
    "cost_tolerance_usd",
    "described",
    "findings",
    "match",
    "model_name",
    "price_of",
    "prices",
    "rows",
    "tensor_degree",
]


def described(row: Published) -> dict[str, Json]:
    """The row as JSON, with what follows from it: workers, costs, findings."""
    workers, cost = row.implied_workers, cost_of(row)
    derived: dict[str, Json] = {
        "implied_workers": None if workers is None else round(workers, 3),
        "cost_recomputed_usd": row.cost_recomputed_usd,
        "cost_by_price": None if cost is None else asdict(cost),
        "findings": [asdict(finding) for finding in findings(row)],
    }
    stated = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return {**{name: jsonable(value) for name, value in stated.items()}, **derived}
