"""What a router does with text and with random tokens: evenness, what batches touch, what capacities would drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import neuronbench as nb
from neuronbench import datasets
from neuronbench_moe import routing
from neuronbench_moe.router import Router

if TYPE_CHECKING:
    import numpy.typing as npt

TABLE: Final = "routing"
SOURCES: Final = ("text", "random")


def study(measure: Any, point: nb.Point) -> None:
    """Ask the router of the point, and record. Raises `PointFailure`, for parameters before anything is asked."""
    if point["tokens"] not in SOURCES:
        raise _bad(f"tokens: expected one of {', '.join(SOURCES)}, found {point['tokens']!r}")
    sequences = point["sequences"]
    odd = [batch for batch in point["batches"] if not 1 <= batch <= sequences]
    if odd:
        raise _bad(f"batches: expected 1 to {sequences}, the `sequences` that a step is taken from; found {odd}")
    with measure.lease("moe_router") as router:
        experts = router.shape.experts
        odd = [ranks for ranks in point["ranks"] if ranks < 1 or experts % ranks]
        if odd:
            raise _bad(f"ranks: expected divisors of {experts}, the number of experts; found {odd}")
        counted = int(router.told["parameters"])
        measure.gate(
            nb.Gate(
                id="parameters_counted", passed=counted == router.shape.total, observed=counted,
                limit=router.shape.total, unit="parameters",
                message="what is loaded has other parameters than its configuration was counted to have",
            )
        )  # fmt: skip
        logits = router.logits(rows_of(router, point))
        shape = router.shape
    wanted = (shape.moe_layers, point["sequences"], point["positions"], shape.experts)
    measure.gate(
        nb.Gate(
            id="all_layers_seen", passed=logits.shape == wanted, observed=str(logits.shape), limit=str(wanted),
            message="the router of some layer was not seen, or of more than there are",
        )
    )  # fmt: skip
    found = routing.Routed.of(logits, shape.top_k)
    record(measure, found, shape.experts, shape.top_k, point)
    measure.record.workload["moe"] = {**shape.to_json(), "weights": router.facts["weights"], "tokens": found.tokens}
    if router.facts["weights"] != "pretrained":
        measure.note("random weights: this router was never trained to be even, nor to be anything else")


def rows_of(router: Router, point: nb.Point) -> list[list[int]]:
    """The tokens that the point asks about. Raises `PointFailure`."""
    source = point["tokens"]
    if source == "random":
        return router.random(point["sequences"], point["positions"], seed=0)
    try:
        rows = datasets.read(datasets.find(str(point["texts"])))
    except datasets.DataError as error:
        raise nb.PointFailure(error.failure("window")) from error
    texts = ["\n".join(str(value) for value in row.values() if isinstance(value, str)) for row in rows]
    return router.text(texts, point["sequences"], point["positions"])


def record(measure: Any, found: routing.Routed, count: int, top_k: int, point: nb.Point) -> None:
    """All that is said of it, over layers: the mean, and the worst."""
    uneven, spread = routing.imbalance(found.shares), routing.entropy(found.shares)
    n = found.tokens
    worst = int(uneven.argmax())
    measure.metric("load_imbalance", float(uneven.mean()), stat="mean", n=n)
    measure.metric(
        "load_imbalance", float(uneven[worst]), stat="worst", n=n, note=f"layer {worst} of those with experts"
    )
    measure.metric("load_entropy", float(spread.mean()), stat="mean", n=n)
    measure.metric("load_entropy", float(spread.min()), stat="worst", n=n)
    measure.metric("router_entropy", found.router_entropy, n=n)
    for factor in point["capacity_factors"]:
        stat = f"cf{factor:g}".replace(".", "p")
        measure.metric("dropped", found.dropped(float(factor)), stat=stat, n=n, note="of all tokens as one batch")
    for batch, used in found.touched(point["batches"]).items():
        measure.metric("experts_touched", used, stat=f"b{batch}", n=n // batch)
        even = routing.touched_evenly(count, top_k, batch)
        measure.metric("touched_vs_even", used / even, stat=f"b{batch}", n=n // batch)
    for ranks in point["ranks"]:
        busiest = routing.imbalance(routing.over_ranks(found.shares, ranks))
        measure.metric("rank_imbalance", float(busiest.max()), stat=f"ep{ranks}", n=n, note="worst layer")
    measure.record.tables[TABLE] = _write(measure.folder, found.shares)


def _write(folder: Path, shares: npt.NDArray[Any]) -> str:
    """Every expert's share of its layer."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    layers, count = shares.shape
    columns: Mapping[str, Sequence[Any]] = {
        "layer": [layer for layer in range(layers) for _ in range(count)],
        "expert": list(range(count)) * layers,
        "share": shares.reshape(-1).tolist(),
    }
    name = f"{TABLE}.parquet"
    parquet.write_table(arrow.table(dict(columns)), folder / name, compression="zstd")
    return name


def _bad(text: str) -> nb.PointFailure:
    return nb.PointFailure(
        nb.Failure(
            kind="bad_parameters",
            phase="window",
            message=text,
            causal_line=text,
            remedy="correct the grid, or --nb-set",
        )
    )
