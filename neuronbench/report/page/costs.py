"""What it cost: boots and compilations in seconds, tokens and inferences in dollars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from neuronbench.catalog.instances import Price, prices
from neuronbench.compare.reading import Reading
from neuronbench.model import Json, Metric, Outcome, Provenance, Record
from neuronbench.report import tables
from neuronbench.report.compiles import artifact_of
from neuronbench.report.page.figure import Cell, Figure, Panel, Table, Text, Trace
from neuronbench.report.page.gather import Content, instance_of
from neuronbench.report.page.lanes import label_of, value_cell
from neuronbench.report.page.rows import Row, Standing, as_float, median_reading
from neuronbench.words import counted

BOOTS: Final = 200
BARS: Final = 16
PRICED: Final = 200
"""Points in the table of costs."""
PHASES: Final = {
    "boot_spawn_s": "spawn", "boot_weights_s": "weights", "boot_compile_s": "compile", "boot_listen_s": "listen",
    "boot_first_token_s": "first token", "export_time_s": "export", "compile_time_cold_s": "compile",
    "load_time_s": "load",
}  # fmt: skip
RATES: Final = {
    "output_throughput_tok_s": "1M output tokens", "total_token_throughput_tok_s": "1M tokens",
    "train_throughput_tok_s": "1M trained tokens", "throughput_items_s": "1M inferences",
}  # fmt: skip
COST: Final = (
    "USD per 1M = price of an hour / 3600 / rate × 1e6, of the whole instance whatever part of it was used. Of a "
    "Capacity Block two numbers stand beside each other: by its hourly share, as if every hour of it were used like "
    "this one, and its whole price over the tokens that this record produced. A price is one that somebody has "
    "published, with region and day; it is not the reader's bill."
)
_BY_METRIC: Final = "cost_"


# --------------------------------------------------------------------------------------------------------------------
# boots and compilations


def boots(readings: Sequence[Reading], content: Content) -> list[Figure | Table | Text]:
    """A row a boot or compilation, its phases, and how the last of them divide."""
    if not readings:
        return [Text(lines=["No boot and no compilation is among these receipts."])]
    shown = list(readings)[-BOOTS:]
    rows, records = [], []
    keys = _boot_keys(shown)
    for reading in shown:
        record = content.source.record(reading)
        if record is None:
            continue
        records.append((reading, record))
        failed = record.outcome is not Outcome.OK
        cells: list[Cell | str] = [
            record.kind,
            Cell(text=_what(record), href=content.source.link(reading), title=reading.receipt_id),
            Cell(
                text=record.outcome.value if record.outcome else "?",
                tone="bad" if failed else "good",
                marks=_marks(record),
            ),
            str(artifact_of(record).get("cache", "–")) if record.kind == "compile" else "–",
            *(_metric_cell(record.metrics.get(key)) for key in keys),
        ]
        rows.append(cells)
    omitted = len(readings) - len(shown)
    first = 4
    table = Table(
        title="Boots and compilations",
        columns=["kind", "of", "result", "cache", *(_heading(key) for key in keys)],
        rows=rows,
        right=frozenset(range(first, first + len(keys))),
        omitted=omitted,
        notes=[f"{omitted} earlier ones are left out of this table."] if omitted else [],
    )
    figure = _phases(records, content)
    return [*([figure] if figure else []), table]


def _boot_keys(readings: Sequence[Reading]) -> list[str]:
    wanted = ("boot_time_s", *PHASES, "artifact_size_bytes", "graphs_graphs", "cache_hits_artifacts")
    there = {key for reading in readings for key in reading.values}
    return [key for key in wanted if key in there]


def _heading(key: str) -> str:
    """`weights s` of `boot_weights_s`."""
    names = {
        "boot_time_s": "total s",
        "artifact_size_bytes": "size MB",
        "compile_time_cold_s": "compile s",
        "graphs_graphs": "graphs",
    }
    name, _, unit = key.removeprefix("boot_").removesuffix("_artifacts").rpartition("_")
    return names.get(key) or f"{name.removesuffix('_time').replace('_', ' ')} {unit}".strip()


def _metric_cell(metric: Metric | None) -> Cell:
    if metric is None:
        return Cell(text="–", tone="faint")
    if metric.unit == "B" and metric.value is not None:
        return Cell(text=f"{metric.value / 1e6:.1f}", title=f"{metric.value:,.0f} bytes", sort=metric.value)
    return Cell(text=tables.number(metric), title=metric.note, sort=metric.value)


def _what(record: Record) -> str:
    spec: Mapping[str, Json] = record.resource.spec if record.resource else record.point.params
    shape = spec.get("architecture")
    kind = shape.get("model_type") if isinstance(shape, Mapping) else None
    model = spec.get("served_model") or spec.get("model") or kind or spec.get("url") or record.point.id
    return " ".join(str(part) for part in (model, spec.get("task"), spec.get("dtype")) if part)


def _marks(record: Record) -> list[str]:
    return [] if record.provenance is Provenance.MEASURED else [record.provenance.value]


def _phases(records: Sequence[tuple[Reading, Record]], content: Content) -> Figure | None:
    """Seconds by phase, stacked; the longest first."""
    fit = [(reading, record) for reading, record in records if _phase_values(record)]
    fit = sorted(fit, key=lambda pair: -sum(_phase_values(pair[1]).values()))[:BARS]
    if not fit:
        return None
    names = [f"{index + 1} {_what(record)[:28]}" for index, (_, record) in enumerate(fit)]
    phases = list(dict.fromkeys(PHASES[key] for key in PHASES if any(key in _phase_values(r) for _, r in fit)))
    traces = []
    for colour, phase in enumerate(phases):
        y = [sum(value for key, value in _phase_values(record).items() if PHASES[key] == phase) for _, record in fit]
        links = [content.source.link(reading) for reading, _ in fit]
        traces.append(Trace(name=phase, x=names, y=y, mode="bars", colour=colour, links=links))
    marks = list(dict.fromkeys(mark for _, record in fit for mark in _marks(record)))
    more = f"The {len(fit)} longest of {len(records)}." if len(records) > len(fit) else ""
    return Figure(
        title="Boots and compilations by phase",
        x="",
        panels=[Panel(traces=traces, y="s", from_zero=True)],
        stacked=True,
        notes=[more] if more else [],
        marks=marks,
    )


def _phase_values(record: Record) -> dict[str, float]:
    found = {}
    for key in PHASES:
        metric = record.metrics.get(key)
        if metric is not None and metric.value is not None:
            if key == "export_time_s" and "compile_time_cold_s" in record.metrics:
                continue  # is part of it
            found[key] = metric.value
    return found


# --------------------------------------------------------------------------------------------------------------------
# dollars


def dollars(rows: Sequence[Row], content: Content) -> list[Table | Text]:
    """What 1M tokens or inferences cost, by records' own figures or by published prices of their instance type."""
    made: list[list[Cell | str]] = []
    without: dict[str, int] = {}
    marks: dict[str, None] = {}
    instances: dict[str, str] = {}
    omitted = 0
    for row in rows:
        if row.standing in (Standing.FAILED, Standing.ABSENT, Standing.INVALID):
            continue
        own = [key for key in row.readings[0].values if key.startswith(_BY_METRIC)]
        key = next((key for key in RATES if row.value(key)), "")
        if not own and not key:
            continue
        if len(made) >= PRICED:
            omitted += 1
            continue
        if own:
            made += [_by_metric(row, each, content) for each in own]
        else:
            if row.environment not in instances:
                record = content.source.record(row.readings[0])
                instances[row.environment] = "" if record is None else instance_of(record)
            instance = instances[row.environment]
            known = prices(instance) if instance else ()
            if not known:
                why = f"no price known of {instance}" if instance else "no price known: nothing says on which instance"
                without[why] = without.get(why, 0) + 1
                continue
            made += [_by_price(row, key, price, content) for price in known]
        marks.update(dict.fromkeys(row.marks))
    notes = [COST, *(f"{why} ({counted(count, 'point')})" for why, count in without.items())]
    if omitted:
        notes.append(f"{counted(omitted, 'more point is', 'more points are')} left out of this table.")
    if not made:
        told = [f"{why} ({counted(count, 'point')})." for why, count in without.items()]
        return [Text(lines=told or ["No record has a rate that a price could be set against."])]
    columns = ["lane", "point", "rate", "of", "price", "USD/h", "USD per 1M", "USD per 1M, whole block"]
    return [
        Table(
            title="Cost",
            columns=columns,
            rows=made,
            right=frozenset({2, 5, 6, 7}),
            notes=notes,
            omitted=omitted,
            marks=list(marks),
        )
    ]


def _point(row: Row, content: Content) -> Cell:
    return Cell(text=label_of(row, content))


def _by_metric(row: Row, key: str, content: Content) -> list[Cell | str]:
    cell = value_cell(row, key, content)
    found = row.get(key)
    note = found.note if found is not None else ""
    block = "block" in key
    return [
        row.point.lane,
        _point(row, content),
        "–",
        key.removeprefix(_BY_METRIC).replace("_", " "),
        Cell(text=note or "–"),
        "–",
        "–" if block else cell,
        cell if block else "–",
    ]


def _by_price(row: Row, key: str, price: Price, content: Content) -> list[Cell | str]:
    rate = row.value(key) or 0.0
    hourly = price.usd_per_hour / 3600 / rate * 1e6
    reading = median_reading(row, [key])
    where = content.source.link(reading)
    told = f"{price.kind.replace('_', ' ')}, {price.region}, {price.date}"
    whole: Cell = Cell(text="–", tone="faint", title="not a Capacity Block")
    if price.kind == "capacity_block":
        whole = Cell(text="–", tone="faint", title="the block's whole price or the tokens of this record are not known")
        record = content.source.record(reading)
        total = None if record is None else produced(record, key)
        if price.block_usd and total:
            per_million = price.block_usd / total * 1e6
            title = f"{price.block_usd:g} USD for {price.block_hours or 0:g} h / {total:,.0f} produced by this record"
            whole = Cell(text=_usd(per_million), href=where, title=title, sort=per_million)
    return [
        row.point.lane,
        _point(row, content),
        value_cell(row, key, content),
        RATES[key],
        Cell(text=f"{price.instance}: {told}", title=price.source),
        Cell(text=f"{price.usd_per_hour:g}", sort=price.usd_per_hour),
        Cell(text=_usd(hourly), href=where, title=f"{price.usd_per_hour:g} / 3600 / {rate:g} × 1e6", sort=hourly),
        whole,
    ]


def _usd(value: float) -> str:
    return f"{value:,.3f}" if value >= 0.01 else f"{value:.3g}"


def produced(record: Record, key: str) -> float | None:
    """Tokens or items that a record produced in all, of the kind that its rate counts; None where it does not say."""
    if key == "train_throughput_tok_s":
        metric = record.metrics.get("tokens_tokens")
        return None if metric is None else metric.value
    window = record.workload.get("window")
    if key == "output_throughput_tok_s" and isinstance(window, Mapping):
        totals = window.get("totals")
        found = totals.get("generation_tokens") if isinstance(totals, Mapping) else None
        return as_float(found)
    return None
