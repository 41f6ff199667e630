"""What a node says it could measure: the points it collected, whether it can run them, and what they need."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neuronbench.model import Environment, FrozenMap, Json, Point, Provenance


@dataclass(frozen=True, kw_only=True)
class Item:
    """One repeat of one point, as a node collected it."""

    name: str
    """Name of its receipt: point and repeat. The same on all nodes, for they collect the same."""
    nodeid: str
    point: Point
    repeat: int
    resource: str = ""
    """Key of the resource it leases; items with the same key share a boot. Empty: none."""
    resource_id: str = ""
    cores: int = 0
    """Cores its resource holds, in the backend's own unit."""
    skip: str = ""
    """Why this node cannot run it; empty when it can."""
    leads: bool = False
    """Of a lane that runs before all others."""

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name, "nodeid": self.nodeid, "point": self.point.to_json(), "repeat": self.repeat,
            "resource": self.resource, "resource_id": self.resource_id, "cores": self.cores, "skip": self.skip,
            "leads": self.leads,
        }  # fmt: skip

    @classmethod
    def from_json(cls, told: Mapping[str, Json]) -> Item:
        return cls(**{**told, "point": Point.from_json(told["point"])})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a node collected."""

    items: Sequence[Item] = ()
    others: int = 0
    """Collected items that are no benchmarks; they are not run on a fleet."""
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """Backend → facts of that node, for those backends that it can run something on."""
    simulated: Sequence[str] = ()
    """Backends whose hardware there is made up."""

    def provenance(self, backend: str) -> Provenance:
        return Provenance.SIMULATED if backend in self.simulated else Provenance.MEASURED

    def write(self, path: Path) -> None:
        path.write_text(
            json.dumps(
                {
                    "items": [item.to_json() for item in self.items],
                    "others": self.others,
                    "environments": {
                        name: {"facts": one.facts.to_json(), "key": one.key} for name, one in self.environments.items()
                    },
                    "simulated": list(self.simulated),
                }
            ),
            encoding="utf-8",
        )

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Raises `ValueError` for what is no plan."""
        try:
            told = json.loads(text)
            return cls(
                items=tuple(Item.from_json(item) for item in told["items"]),
                others=int(told["others"]),
                environments={
                    name: Environment(facts=FrozenMap(one["facts"]), key=one["key"])
                    for name, one in told["environments"].items()
                },
                simulated=tuple(told["simulated"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected what a node collected, found another form: {error!r}") from error
