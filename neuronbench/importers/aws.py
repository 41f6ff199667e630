"""AWS's published tables of Trainium and Inferentia: a record per row, its definitions kept, its costs made anew.

Read are a page saved as HTML, a page saved or copied as text, and the CSV files of the documentation's repository. A
column that no such table has had keeps its own name. What is odd about a row is found by the same checks as for the
rows that come along (`neuronbench.catalog.published`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuronbench.catalog import published
from neuronbench.catalog.published import Published
from neuronbench.definitions import metric
from neuronbench.importers.aws_columns import INSTANCE, Column, column, decimals, is_header, number
from neuronbench.importers.aws_tables import Page, Table, read
from neuronbench.importers.base import Imported, text, whole
from neuronbench.importers.safe import ImportFailure, few_enough
from neuronbench.model import FrozenMap, Gate, Json, Metric

EDITION: Final = "imported"
_CORES: Final = {
    "trn1.2xlarge": 2, "trn1.32xlarge": 32, "trn1n.32xlarge": 32, "inf2.xlarge": 2, "inf2.8xlarge": 2,
    "inf2.24xlarge": 12, "inf2.48xlarge": 24, "trn2.3xlarge": 4, "trn2.48xlarge": 64,
}  # fmt: skip
_TYPES: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_TASKS: Final = {
    "raw_output_(automodel)": "raw_output", "raw_output_(automodelformaskedlm)": "masked_lm",
    "text_generation": "generate",
}  # fmt: skip
_UNSAID: Final = "the source says neither its window nor its timer"
_LANES: Final = {"encoder": "encoder", "seq2seq": "seq2seq", "decoder": "serving", "training": "training"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row, and what no field of a published row is for."""

    row: Published
    own: Mapping[str, Json]
    params: Mapping[str, Json]
    facts: Mapping[str, Json]
    price_kind: str


def aws(path: Path) -> Sequence[Imported]:
    """Every row of every table of results in the file; tables of other things on a page are passed over."""
    page = read(path)
    tables = [table for table in page.tables if is_header(table.columns)]
    if not tables:
        seen = "; ".join(", ".join(table.columns[:6]) for table in page.tables[:3]) or "no table at all"
        raise ImportFailure(
            f"{path}: expected a table with Model, Inst. Type, a rate such as 'Throughput (inference/sec)' and a "
            f"fourth column that is known, such as Batch Size, found {text(seen, 300)}"
        )
    few_enough(path, sum(len(table.rows) for table in tables))
    lines = [line for table in tables for line in _lines(path, table, page)]
    among = [line.row for line in lines]
    updated = re.search(r"last update:?\s*(\w+\.? \w+,? \d{4})", page.text, re.IGNORECASE)
    return [_imported(path, line, among, updated[1] if updated else "") for line in lines]


# --------------------------------------------------------------------------------------------------------------------
# from cells to rows


def _lines(path: Path, table: Table, page: Page) -> Iterator[Line]:
    known = [column(name) for name in table.columns]
    doubled = [found.field for found in known if found is not None]
    for name in doubled:
        if doubled.count(name) > 1:
            raise ImportFailure(f"{path}: {table.where}: two columns are the {name} of a row: which is it?")
    for index, cells in enumerate(table.rows, start=1):
        where = f"{path}: {table.where}, row {index}"
        yield _line(where, index, table, known, cells, page)


def _line(
    where: str, index: int, table: Table, known: Sequence[Column | None], cells: Sequence[str], page: Page
) -> Line:
    values: dict[str, Any] = {}
    own: dict[str, Json] = {}
    rate = ""
    for name, found, cell in zip(table.columns, known, cells, strict=True):
        if cell and (found is None or found.kind == "number"):
            own[text(name)] = value if (value := number(cell)) is not None else text(cell)
        if found is None or not cell or cell.lower() in ("n/a", "-", "none"):
            continue
        values[found.field] = _value(where, name, found, cell)
        if found.field == "throughput":
            rate = cell
            values["throughput_of"] = found.of
        if found.field == "latency_p50_ms":
            values["latency_of"] = found.of
    if "model" not in values or "throughput" not in values:
        raise ImportFailure(f"{where}: expected a model and a throughput, found {text(' | '.join(cells), 200)}")
    aside = ("script", "os", "torch_neuronx", "on_demand", "ri_effective")
    extra: dict[str, Any] = {name: values.pop(name) for name in aside if name in values}
    if values["throughput_of"] == "tokens" and values.get("latency_of") != "token":
        values["throughput_of"] = "unstated"  # older tables of decoders say tokens, and not which
    values = _normal(where, values)
    group, kind = _place([*table.headings, table.where], values, values["throughput_of"])
    priced = "ri_effective" if "ri_effective" in extra else "on_demand" if "on_demand" in extra else ""
    row = Published(
        edition=EDITION, group=group, table=kind, row=index, as_of="", source=where,
        instance_cores=_CORES.get(values["instance_type"].partition("/")[0]), throughput_decimals=decimals(rate),
        hourly_usd=extra.get(priced), own=FrozenMap(), **values,
    )  # fmt: skip
    params = {name: extra[name] for name in ("script",) if name in extra}
    names = {"os": "host.os", "torch_neuronx": "stack.torch_neuronx"}
    facts = {names[name]: extra[name] for name in names if name in extra}
    return Line(row=row, own=own, params=params, facts=facts, price_kind=priced or _kind_of_price(page.text))


def _value(where: str, name: str, found: Column, cell: str) -> Any:
    if found.kind == "text":
        return text(re.sub(r":[\w-]+:`([^`<]*)(<[^`]*>)?`|`([^`<]*)<[^`]*>`_+", r"\1\3", cell))
    value = number(cell)
    value = whole(value) if found.kind == "whole" and value is not None else value
    if value is None:
        what = "a whole number" if found.kind == "whole" else "a finite number that is not negative"
        raise ImportFailure(f"{where}: {text(name)}: expected {what}, found {text(cell)!r}")
    return value


def _normal(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """One form for what tables write differently: `Inf2.xlarge`, `Data Parallel`, `FP32`."""
    made = dict(values)
    made["instance_type"] = str(made.get("instance_type", "")).lower().replace(" ", "")
    if not INSTANCE.fullmatch(made["instance_type"]):
        raise ImportFailure(f"{where}: expected an instance type such as inf2.xlarge, found {made['instance_type']!r}")
    for name in ("application", "run_mode", "auto_cast", "task", "optimizer", "scaling"):
        if name in made:
            made[name] = str(made[name]).lower().replace(" ", "_")
    if made.get("application", "batch") not in ("batch", "real_time"):
        raise ImportFailure(f"{where}: expected Batch or Real Time, found {made['application']!r}")
    if made.get("run_mode", "data_parallel") not in ("data_parallel", "tensor_parallel"):
        raise ImportFailure(f"{where}: expected Data Parallel or Tensor Parallel, found {made['run_mode']!r}")
    made["task"] = _TASKS.get(made.get("task", ""), made.get("task", ""))
    for name in ("dtype", "weight_dtype"):
        if name in made:
            parts = [_TYPES.get(part.strip().lower(), part.strip().lower()) for part in str(made[name]).split(",")]
            made[name] = "+".join(parts)
    trained = re.fullmatch(r"(.+) (pre-training|fine-tuning)", str(made["model"]))
    if trained is not None:
        made["model"], made["task"] = trained[1], trained[2].replace("-", "_")
    return made


def _place(headings: Sequence[str], values: Mapping[str, Any], of: str) -> tuple[str, Any]:
    """Which kind of table it is by its columns; for what it was optimised by the heading next above, or its file."""
    if of == "sequences":
        return "training", "training"
    group = "vision" if "image_size" in values else "seq2seq" if of == "tokens" else "encoder"
    if of == "output_tokens" or (of == "unstated" and "tp_degree" in values):
        group = "decoder"
    for heading in map(str.lower, reversed(headings)):
        for kind in ("throughput", "latency"):
            if f"{kind} optim" in heading or f"{kind}_data" in heading:
                return group, kind
    return group, "results"


def _kind_of_price(said: str) -> str:
    """By which price the page says that its costs were made; empty where it does not say, or says both."""
    reserved = re.search(r"RI-?\s?effective", said, re.IGNORECASE) is not None
    on_demand = re.search(r"on-?\s?demand (hourly )?rate", said, re.IGNORECASE) is not None
    return "" if reserved == on_demand else "ri_effective" if reserved else "on_demand"


# --------------------------------------------------------------------------------------------------------------------
# from rows to records


def _imported(path: Path, line: Line, among: Sequence[Published], updated: str) -> Imported:
    row = line.row
    findings = published.findings(row, among)
    gates = [_cost_gate(line)]
    gates += [
        Gate(id=f"published_{finding.id}", passed=False, severity="info", message=finding.text) for finding in findings
    ]
    params = {
        name: value
        for name in _PARAMS
        if (value := getattr(row, name)) not in (None, "") and not (name == "nodes" and value == 1)
    }
    facts = {"backend.instance_type": row.instance_type, "stack.neuron_sdk": row.sdk_version or None,
             "stack.framework": row.framework or None, "source.last_update": updated or None, **line.facts}  # fmt: skip
    return Imported(
        source=path,
        name="-".join(filter(None, (row.group, row.table if row.table != row.group else "", text(row.model, 60),
                                    f"b{row.batch_size or row.global_batch_size or 0}", str(row.row)))),
        lane=_LANES.get(row.group, "vision"),
        backend=re.sub(r"n?\..*", "", row.instance_type.partition("/")[0]),
        params={**params, **line.params},
        metrics=_metrics(row),
        own=line.own,
        gates=gates,
        facts={name: value for name, value in facts.items() if value is not None},
        notes=[f"published: {finding.text} ({finding.id})" for finding in findings],
    )  # fmt: skip


_PARAMS: Final = (
    "model", "task", "instance_type", "nodes", "application", "run_mode", "tp_degree", "dp_degree", "topology",
    "batch_size", "sequence_length", "input_tokens", "output_tokens", "image_size", "micro_batch_size",
    "global_batch_size", "optimizer", "scaling", "dtype", "training_dtype", "weight_dtype", "auto_cast", "table",
)  # fmt: skip


def _metrics(row: Published) -> list[Metric]:
    """Figures under our ids where the definition is the same; the others null, with the reason."""
    rate, made = row.throughput, []
    if row.throughput_of == "items":
        made.append(metric("throughput", rate, note=_UNSAID))
    elif row.throughput_of == "tokens":
        made.append(metric("total_token_throughput", rate, note=f"input and output together; {_UNSAID}"))
    elif row.throughput_of == "sequences":
        length = row.sequence_length
        value = None if rate is None or length is None else rate * length
        why = f"sequences × length, padding included; {_UNSAID}"
        made.append(metric("train_throughput_padded", value, note=why if length else "no length of a sequence is said"))
        made.append(metric("train_throughput", None, note="how much of the sequences is padding is not said"))
    elif row.throughput_of == "output_tokens":
        odd = [finding.text for finding in published.findings(row, ()) if finding.id == "throughput_not_reconciled"]
        value = None if odd or row.expected_throughput is None else rate
        why = odd[0] if odd else "batch × n / (TTFT + (n − 1) × TPOT): a closed loop of that many"
        made.append(metric("output_throughput", value, note=why))
    else:
        made.append(metric("output_throughput", None, note="which tokens it counts is not said"))
    names = {"latency": "latency_per_token" if row.latency_of == "token" else "latency"}
    for name in ("latency", "ttft", "tpot"):
        low, high = getattr(row, f"{name}_p50_ms"), getattr(row, f"{name}_p99_ms")
        if low is None and high is None:
            continue
        why = f"P50 {low:g} is above P99 {high:g} there" if low is not None and high is not None and low > high else ""
        if name == "latency" and row.group == "decoder":
            why = "of a token or of a whole answer: not said"
        for stat, value in (("p50", low), ("p99", high)):
            note = why or "how it is made of observations is not said"
            made.append(metric(names.get(name, name), None if why else value, stat=stat, note=note))
    return made


def _cost_gate(line: Line) -> Gate:
    """The printed cost against price of an hour / 3600 / throughput × 1e6, within the rounding of what is printed."""
    row, cost = line.row, line.row.cost_per_1m_usd
    if cost is None or not row.throughput:
        return Gate(id="published_cost", passed=None, severity="info", message="the source prints no cost")
    prices = {line.price_kind or "as printed": row.hourly_usd} if row.hourly_usd else {}
    for kind in ("on_demand", "ri_effective") if not prices else ():
        price = published.price_of(row.instance_type.partition("/")[0], "", kind=kind)
        if price is not None and line.price_kind in ("", kind):
            prices[kind] = price.usd_per_hour
    if not prices:
        text_ = f"no price of {row.instance_type} is known to compute it by"
        return Gate(id="published_cost", passed=None, severity="info", observed=cost, unit="USD", message=text_)
    made = {kind: published.cost_per_1m_usd(row.throughput, hourly or 0.0) for kind, hourly in prices.items()}
    kind = min(made, key=lambda each: abs(made[each] - cost))
    tolerance = published.cost_tolerance_usd(made[kind], row.throughput, row.throughput_decimals)
    said = f"price of an hour / 3600 / throughput × 1e6 with {prices[kind]:g} USD ({kind})"
    if not line.price_kind:
        said += "; the source does not say by which price"
    return Gate(
        id="published_cost", passed=abs(made[kind] - cost) <= tolerance, observed=cost, limit=round(made[kind], 3),
        unit="USD", severity="provisional", message=said,
    )  # fmt: skip
