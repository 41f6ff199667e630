"""A plan on disk: writing it, opening it, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from neuronbench.load.bodies import Bodies
from neuronbench.load.layout import PLAN_COLUMNS
from neuronbench.model import Json, canonical_json, jsonable

PLAN_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan on disk."""

    folder: Path
    digest: str
    """Identity of the workload."""
    info: Mapping[str, Json]
    """`plan.json`."""

    @property
    def api(self) -> str:
        return str(self.info["api"])

    @property
    def model(self) -> str:
        return str(self.info["model"])

    @property
    def count(self) -> int:
        return int(self.info["count"])

    @property
    def warmup_count(self) -> int:
        return int(self.info["warmup"]["count"])

    @property
    def arrivals(self) -> Mapping[str, Json]:
        arrivals: Mapping[str, Json] = self.info["arrivals"]
        return arrivals

    def column(self, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A column of the index, warm-up bodies first."""
        return np.fromfile(self.folder / f"{name}.i64", dtype="<i8")

    def describe(self) -> dict[str, Json]:
        """For the record: identity, what was asked, how it is sent."""
        return {"digest": self.digest, **{key: value for key, value in self.info.items() if key != "version"}}

    @classmethod
    def open(cls, folder: Path) -> Plan:
        info = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        return cls(folder=folder, digest=info["digest"], info={k: v for k, v in info.items() if k != "digest"})


def write_plan(
    folder: Path,
    *,
    sets: tuple[Bodies, Bodies],
    arrivals: Mapping[str, Json],
    api: str,
    model: str,
    workload: Mapping[str, Json],
    seed: int,
    exact: bool,
    rule: str,
    columns: Mapping[str, Sequence[int]] | None = None,
    extra: Mapping[str, Json] | None = None,
) -> Plan:
    """Write bodies, index and `plan.json`. `columns` gives columns of the load's index that its bodies do not."""
    folder.mkdir(parents=True, exist_ok=True)
    warm, load = sets
    if not load.bodies:
        raise ValueError("the plan has no request; ask for at least one")
    digest = hashlib.blake2b(digest_size=16)
    lengths = np.array([len(body) for body in (*warm.bodies, *load.bodies)], dtype="<i8")
    ends = np.cumsum(lengths)
    with (folder / "bodies.bin").open("wb") as file:
        for body in (*warm.bodies, *load.bodies):
            file.write(body)
            digest.update(body)
    given = dict(columns or {})
    index = {
        "offset": ends - lengths,
        "length": lengths,
        "input_tokens": np.array([*warm.input_tokens, *load.input_tokens], dtype="<i8"),
        "output_tokens": np.array([*warm.output_tokens, *load.output_tokens], dtype="<i8"),
    }
    for name in PLAN_COLUMNS:
        if name not in index:
            column = np.full(len(lengths), -1, dtype="<i8")
            if name in given:
                column[len(warm.bodies) :] = given[name]
            index[name] = column
        index[name].astype("<i8").tofile(folder / f"{name}.i64")
        digest.update(index[name].tobytes())
    known = index["input_tokens"][len(warm.bodies) :]
    info: dict[str, Json] = {
        "version": PLAN_VERSION,
        "api": api,
        "model": model,
        "arrivals": jsonable(dict(arrivals)),
        "workload": jsonable(dict(workload)),
        "seed": seed,
        "count": len(load.bodies),
        "count_rule": rule,
        "distinct": load.distinct,
        "warmup": {"count": len(warm.bodies), "disjoint": warm.notes.get("disjoint", True)},
        "exact_output": exact,
        "exact_input": bool((known >= 0).all()),
        "body_bytes": int(lengths.sum()),
        **dict(extra or {}),
    }
    digest.update(canonical_json({key: info[key] for key in ("version", "api", "arrivals", "exact_output")}).encode())
    info = {"digest": digest.hexdigest(), **info}
    temporary = folder / "plan.json.tmp"
    temporary.write_text(json.dumps(info, indent=1), encoding="utf-8")
    temporary.replace(folder / "plan.json")
    return Plan.open(folder)
