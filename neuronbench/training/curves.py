"""What of the tables of steps is drawn and sent on: a record's runs, whose tokens count, and so many points at most."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neuronbench.model import Record

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow


def runs(record: Record) -> dict[int, str]:
    """Number of a run, from 1 → its table: `steps`, `steps-2`, ..."""
    found = {}
    for name in record.tables:
        match = re.fullmatch(r"steps(?:-(\d+))?", name)
        if match is not None:
            found[int(match[1] or 1)] = name
    return dict(sorted(found.items()))


def described(record: Record, number: int) -> Mapping[str, Any]:
    """What the record says of a run; empty when it says nothing."""
    told = record.workload.get("training")
    found = told[number - 1] if isinstance(told, list) and 0 < number <= len(told) else None
    return found if isinstance(found, Mapping) else {}


def counted_ranks(record: Record, number: int) -> set[int] | None:
    """A rank of each distinct data shard; None where the record does not tell, and all ranks are taken to have their
    own."""
    shards = described(record, number).get("shards")
    if not isinstance(shards, Mapping):
        return None
    one_of_each: dict[Any, int] = {}
    for rank, shard in sorted(shards.items(), key=lambda each: int(each[0])):
        one_of_each.setdefault(tuple(shard) if isinstance(shard, (list, tuple)) else shard, int(rank))
    return {*one_of_each.values()}


def of_rank_zero(table: pyarrow.Table, ranks: set[int] | None) -> dict[str, npt.NDArray[Any]]:
    """Columns of rank 0's steps; `tokens` are those of all `ranks` (None: of all there are) in the step."""
    import numpy as np

    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    rank, step = columns["rank"], columns["step"]
    mine = rank == 0
    found = {name: values[mine] for name, values in columns.items()}
    if "tokens" in found:
        counts = np.ones(len(rank), dtype=bool) if ranks is None else np.isin(rank, sorted(ranks))
        order = np.argsort(found["step"], kind="stable")
        at = np.searchsorted(found["step"][order], step[counts])
        there = at < len(order)
        there[there] = found["step"][order][at[there]] == step[counts][there]
        sums = np.zeros(len(order), dtype=np.int64)
        np.add.at(sums, at[there], columns["tokens"][counts][there])
        found["tokens"] = np.empty_like(sums)
        found["tokens"][order] = sums
    return found


def rates(columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Tokens per second of each step by the wall, from the end of the step before. NaN for the first step, which has
    compilation in it, and where no time passed."""
    import numpy as np

    wall_s = columns["wall_ns"].astype(float) / 1e9
    out = np.full(len(wall_s), np.nan)
    np.divide(columns["tokens"].astype(float), wall_s, out=out, where=wall_s > 0)
    out[:1] = np.nan
    return out


def bounded(count: int, limit: int, extremes: Sequence[int] = ()) -> list[int]:
    """Indices of at most `limit` of `count` points: the first, the last, `extremes`, and every so-manieth."""
    if limit < 2:
        raise ValueError(f"limit: expected at least 2 points, found {limit}")
    if count <= limit:
        return list(range(count))
    must = sorted({0, count - 1, *extremes})[:limit]
    room = limit - len(must)
    stride = math.ceil(count / room) if room > 0 else count
    return sorted({*must, *range(0, count, stride)})[:limit] if room > 0 else must


def thinned(values: npt.NDArray[Any], limit: int) -> list[int]:
    """`bounded` with the smallest and the largest finite value among them."""
    import numpy as np

    finite = np.flatnonzero(np.isfinite(values))
    extremes = [int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])] if len(finite) else []
    return bounded(len(values), limit, extremes)
