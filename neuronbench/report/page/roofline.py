"""Where points lie under the roof of their hardware: arithmetic per byte of weights against arithmetic per second.

Intensity counts the bytes of the weights alone, each read once for what is worked on together; caches, activations and
the KV cache are left out, so that a point's true place is further left. It says which roof is the nearer one at best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from neuronbench.catalog.accelerators import accelerator_of
from neuronbench.catalog.instances import instance_of as instance_type
from neuronbench.model import Json, Record, Validity
from neuronbench.report.page.figure import SYMBOLS, Cell, Figure, Panel, Table, Text, Trace
from neuronbench.report.page.gather import Content, cores_of, instance_of
from neuronbench.report.page.lanes import label_of
from neuronbench.report.page.rows import Row, Standing, as_float, median_reading, order
from neuronbench.words import counted

POINTS: Final = 60
BYTES: Final = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0}
HOW: Final = (
    "Intensity: FLOPs per byte of weights read, at most: a decoded token is 2 × parameters, and the weights are read "
    "once for all requests in flight; of a compiled model once for a batch; of a training step once for its sequences. "
    "Caches and activations are not counted, so a point's true place is further left. Of served and compiled models "
    "attention is left out, and rows of an embedding that are looked up count as if they were multiplied. Prompts are "
    "not counted in a served model's rate."
)


@dataclass(frozen=True, kw_only=True)
class Roof:
    """Of the cores that were used."""

    name: str
    flops: float
    """FLOP/s."""
    bandwidth: float
    """Bytes a second."""
    source: str

    @property
    def ridge(self) -> float:
        return self.flops / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Place:
    """A point: FLOPs per byte, FLOP/s, and from what both were computed."""

    intensity: float
    flops: float
    how: str


def place(record: Record) -> Place | str:
    """Where a record lies, or why nobody can say."""
    for find in (_training, _serving, _compiled):
        found = find(record)
        if found is not None:
            return found
    return "no rate of tokens or items with a model of known size"


def _value(record: Record, key: str) -> float | None:
    metric = record.metrics.get(key)
    return None if metric is None else metric.value


def _parameters(record: Record) -> tuple[float, float] | None:
    """Parameters and bytes of each, of the model a resource runs."""
    if record.resource is None:
        return None
    model, spec = record.resource.facts.get("model"), record.resource.spec
    model = model if isinstance(model, Mapping) else {}
    count = model.get("parameter_count") or model.get("parameters")
    size = BYTES.get(str(spec.get("dtype") or model.get("dtype") or ""))
    if not _is_number(count) or not count or size is None:
        return None
    return float(count), size


def _serving(record: Record) -> Place | None:
    rate, batch, known = (
        _value(record, "output_throughput_tok_s"),
        _value(record, "in_flight_requests"),
        _parameters(record),
    )
    if not rate or not batch or known is None:
        return None
    count, size = known
    how = f"2 × {count:,.0f} parameters a token; {batch:.3g} requests in flight share a reading of {size:g} bytes each"
    return Place(intensity=2 * batch / size, flops=2 * count * rate, how=how)


def _compiled(record: Record) -> Place | None:
    rate, known = _value(record, "throughput_items_s"), _parameters(record)
    batch, sequence = record.point.get("batch_size"), record.point.get("sequence_length")
    if not rate or known is None or not _is_number(batch) or not _is_number(sequence):
        return None
    count, size = known
    how = f"2 × {count:,.0f} parameters × {sequence:g} tokens an item; {batch:g} items share a reading of the weights"
    return Place(intensity=2 * batch * sequence / size, flops=2 * count * sequence * rate, how=how)


def _training(record: Record) -> Place | None:
    runs = record.workload.get("training")
    run = runs[0] if isinstance(runs, list) and runs and isinstance(runs[0], Mapping) else None
    rate = _value(record, "train_throughput_tok_s")
    if run is None or not rate:
        return None
    flops, job = run.get("flops"), run.get("job")
    if not isinstance(flops, Mapping) or not _is_number(flops.get("per_token")):
        return None
    job = job if isinstance(job, Mapping) else {}
    count = sum(flops[name] for name in ("trainable", "frozen") if _is_number(flops.get(name)))
    sequence = flops.get("sequence")
    batch = job.get("micro_batch") or job.get("micro_batch_size") or job.get("batch_size") or 1
    size = BYTES.get(str(job.get("dtype") or record.point.get("dtype") or "bfloat16"), 2.0)
    if not count or not _is_number(sequence) or not sequence or not _is_number(batch):
        return None
    how = f"{flops['per_token']:.4g} FLOPs a token; {batch:g} × {sequence:g} tokens share a reading of the weights"
    return Place(
        intensity=flops["per_token"] * batch * sequence / (count * size), flops=flops["per_token"] * rate, how=how
    )


def _is_number(value: Json) -> bool:
    return as_float(value) is not None


# --------------------------------------------------------------------------------------------------------------------
# roofs


def roof(record: Record, floors: Mapping[str, Record]) -> Roof | str:
    """The roof over a record: its chip's by documentation, or its host's as measured in one of these receipts."""
    dtype = str((record.resource.spec.get("dtype") if record.resource else None) or record.point.get("dtype") or "")
    name, cores = instance_of(record), cores_of(record)
    kind = instance_type(name) if name else None
    chip = accelerator_of(name) if name else None
    if kind is not None and chip is not None:
        peak = chip.peak(dtype or "bfloat16")
        if peak is None:
            return f"no documented {dtype} peak of {chip.name}"
        used = min(cores[0], float(kind.cores())) if cores is not None else float(kind.cores())
        return Roof(
            name=f"{name}, {used:g} of {kind.cores()} cores, {peak.dtype}",
            flops=peak.flops * used,
            bandwidth=kind.bandwidth_per_core_gb_s() * 1e9 * used,
            source=f"{peak.source}, {peak.date}; {kind.bandwidth_documented} a device",
        )
    floor = floors.get(str(record.environment.facts.get("host.id")))
    if floor is None:
        return "no roof known: no documented chip, and no receipt of the host's floor among these"
    matmul, triad = _value(floor, "matmul_rate_max_GFLOP_s"), _value(floor, "memory_bandwidth_max_GB_s")
    if not matmul or not triad:
        return f"{floor.receipt_id} has not both a matrix product and a memory bandwidth"
    mark = "" if floor.validity is Validity.VALID else f", {floor.validity.value}"
    return Roof(
        name=f"this host, float32, as measured{mark} ({floor.receipt_id})",
        flops=matmul * 1e9,
        bandwidth=triad * 1e9,
        source=f"largest matrix product and triad of {floor.receipt_id}",
    )


def _floors(content: Content) -> dict[str, Record]:
    """By host, the youngest record of what it can do at best; one that may be quoted, where there is one."""
    found = {}
    for row in sorted(content.rows, key=lambda row: row.standing is Standing.VALID):
        usable = row.standing in (Standing.VALID, Standing.PROVISIONAL)
        if usable and row.point.lane == "host" and row.value("memory_bandwidth_max_GB_s"):
            record = content.source.record(row.readings[-1])
            if record is not None:
                found[str(record.environment.facts.get("host.id"))] = record
    return found


def roofline(content: Content) -> list[Figure | Table | Text]:
    """Points of all lanes under their roofs, and the same as a table."""
    floors = _floors(content)
    standings = (Standing.VALID, Standing.PROVISIONAL, Standing.SIMULATED)
    fit = order([row for row in content.rows if row.standing in standings and row.point.lane != "host"])
    missing: dict[str, int] = {}
    placed: list[tuple[Row, Record, Place, Roof | None]] = []
    looked = 0
    for row in fit:
        if len(placed) >= POINTS or looked >= 3 * POINTS:
            break
        looked += 1
        record = content.source.record(median_reading(row, ["output_throughput_tok_s", "train_throughput_tok_s"]))
        if record is None:
            continue
        where, over = place(record), roof(record, floors)
        if isinstance(where, str):
            missing[where] = missing.get(where, 0) + 1
            continue
        if isinstance(over, str):
            missing[over] = missing.get(over, 0) + 1
        placed.append((row, record, where, None if isinstance(over, str) else over))
    told = [f"{why} ({counted(count, 'point')})" for why, count in missing.items()]
    if looked < len(fit):
        told.append(f"Of {len(fit)} points the first {looked} were looked at.")
    if not placed:
        return [Text(lines=["No point can be placed under a roof.", *told])]
    figure = _figure(placed, content, told)
    return [*([figure] if figure else []), _table(placed, content, told)]


def _figure(placed: Sequence[tuple[Row, Record, Place, Roof | None]], content: Content, told: Sequence[str]) -> Figure:
    lanes = list(dict.fromkeys(row.point.lane for row, *_ in placed))
    roofs = {over.name: over for *_, over in placed if over is not None}
    lowest = min(where.intensity for _, _, where, _ in placed)
    highest = max(where.intensity for _, _, where, _ in placed)
    traces = []
    for index, over in enumerate(roofs.values()):
        begin, end = min(lowest, over.ridge) / 3, max(highest, over.ridge) * 3
        x = [begin, over.ridge, end]
        y = [begin * over.bandwidth / 1e9, over.flops / 1e9, over.flops / 1e9]
        traces.append(Trace(name=over.name, x=x, y=y, colour="ink", dashed=index > 0, texts=[over.source] * 3))
    groups: dict[tuple[str, str], list[tuple[Row, Place]]] = {}
    for row, _, where, _ in placed:
        groups.setdefault((row.point.lane, row.mark), []).append((row, where))
    for (lane, mark), members in groups.items():
        traces.append(
            Trace(
                name=f"{lane} ({mark})" if mark else lane,
                group=f"{lane} ({mark})" if mark else lane,
                x=[where.intensity for _, where in members],
                y=[where.flops / 1e9 for _, where in members],
                mode="markers",
                colour=lanes.index(lane),
                symbol=SYMBOLS.get(mark, "cross"),
                texts=[f"{label_of(row, content)}: {where.how}" for row, where in members],
                links=[content.source.link(median_reading(row, [])) for row, _ in members],
            )
        )
    panel = Panel(traces=traces, y="GFLOP/s", log_y=True)
    marks = list(dict.fromkeys(mark for row, *_ in placed for mark in row.marks))
    label = "FLOPs per byte of weights, at most"
    return Figure(title="Roofline", x=label, panels=[panel], log_x=True, notes=[HOW, *told], marks=marks)


def _table(placed: Sequence[tuple[Row, Record, Place, Roof | None]], content: Content, told: Sequence[str]) -> Table:
    rows: list[list[Cell | str]] = []
    for row, _, where, over in placed:
        attainable = None if over is None else min(over.flops, where.intensity * over.bandwidth)
        nearer = "–" if over is None else "memory" if where.intensity < over.ridge else "arithmetic"
        share = None if attainable is None else where.flops / attainable
        href = content.source.link(median_reading(row, []))
        rows.append(
            [
                row.point.lane,
                label_of(row, content),
                Cell(text=f"{where.intensity:.4g}", href=href, title=where.how, sort=where.intensity),
                Cell(text=f"{where.flops / 1e9:,.4g}", href=href, title=where.how, sort=where.flops),
                nearer,
                _share(share),
                Cell(text="–" if over is None else over.name, title="" if over is None else over.source),
            ]
        )
    columns = ["lane", "point", "FLOPs/byte", "GFLOP/s", "nearer roof", "share of it", "roof"]
    return Table(title="Places under the roof", columns=columns, rows=rows, right=frozenset({2, 3, 5}), folded=True)


def _share(share: float | None) -> Cell:
    if share is None:
        return Cell(text="–", tone="faint")
    if share > 1:
        title = "the roof was not the best that this hardware can do, or these FLOP/s are too many: see the note"
        return Cell(text="above it", title=title, tone="warn", sort=share)
    return Cell(text=f"{100 * share:.3g}%", title="of what the nearer roof allows at this intensity", sort=share)
