"""Pages and files of the form in which AWS publishes its tables, made of rows of the catalogue."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from neuronbench.catalog import published
from neuronbench.catalog.published import Published

Cells = Sequence[tuple[str, Callable[[Published], object]]]


def _said(text: str) -> str:
    return text.replace("_", " ").title()


def _type(name: str) -> str:
    return {"float32": "FP32", "float16": "FP16", "bfloat16": "bf16"}.get(name, name)


_ABOUT: Final[Cells] = (
    ("Model", lambda row: row.model), ("Scripts", lambda row: "Benchmark"), ("Framework", lambda row: row.framework),
    ("Inst. Type", lambda row: row.instance_type.capitalize()), ("Task", lambda row: _said(row.task)),
)  # fmt: skip
_RUN: Final[Cells] = (
    ("Application Type", lambda row: _said(row.application)), ("Neuron Version", lambda row: row.sdk_version),
    ("Run Mode", lambda row: _said(row.run_mode)),
)  # fmt: skip
_CALLS: Final[Cells] = (
    ("Latency P50 (ms)", lambda row: row.latency_p50_ms), ("Latency P99 (ms)", lambda row: row.latency_p99_ms),
)  # fmt: skip
_LENGTHS: Final[Cells] = (
    ("Batch Size", lambda row: row.batch_size), ("Sequence Length", lambda row: row.sequence_length),
)  # fmt: skip
_TYPES: Final[Cells] = (
    ("Model Data Type", lambda row: _type(row.dtype)),
    ("Compilation Autocast Data Type", lambda row: row.auto_cast.capitalize()),
)  # fmt: skip
ENCODER: Final[Cells] = (
    *_ABOUT, ("Throughput (inference/sec)", lambda row: row.throughput), *_CALLS,
    ("Cost per 1M inferences", lambda row: f"${row.cost_per_1m_usd:.3f}"), *_RUN, *_LENGTHS, *_TYPES,
    ("OS Type", lambda row: "U22"),
)  # fmt: skip
SEQ2SEQ: Final[Cells] = (
    *_ABOUT, ("Throughput (tokens/second)", lambda row: row.throughput),
    ("Latency per Token P50 (ms)", lambda row: row.latency_p50_ms),
    ("Latency per Token P99 (ms)", lambda row: row.latency_p99_ms),
    ("Cost per 1M inferences", lambda row: f"${row.cost_per_1m_usd:.3f}"), *_RUN,
    ("TP Degree", lambda row: row.tp_degree), ("DP Degree", lambda row: row.dp_degree), *_LENGTHS,
    ("Input Length", lambda row: row.input_tokens), ("Output Length", lambda row: row.output_tokens), *_TYPES,
)  # fmt: skip
DECODER: Final[Cells] = (
    *_ABOUT, ("Output Token Throughput (tokens/sec)", lambda row: row.throughput),
    ("TTFT Latency P50 (ms)", lambda row: row.ttft_p50_ms), ("TTFT Latency P99 (ms)", lambda row: row.ttft_p99_ms),
    ("TPOT Latency P50 (ms)", lambda row: row.tpot_p50_ms), ("TPOT Latency P99 (ms)", lambda row: row.tpot_p99_ms),
    ("Cost per 1M tokens", lambda row: f"${row.cost_per_1m_usd:.3f}"), *_RUN, ("TP Degree", lambda row: row.tp_degree),
    *_LENGTHS, ("Input Length", lambda row: row.input_tokens), ("Output Length", lambda row: row.output_tokens),
    *_TYPES, ("Weight Storage Data Type", lambda row: _type(row.weight_dtype)),
)  # fmt: skip
TRAINING: Final[Cells] = (
    ("Model", lambda row: f"{row.model} {row.task.replace('_', '-')}"),
    ("Instance-Type", lambda row: row.instance_type),
    ("Training Data-Type", lambda row: row.training_dtype), ("Nodes", lambda row: row.nodes),
    ("Topology", lambda row: row.topology), ("Microbatch", lambda row: row.micro_batch_size),
    ("Globalbatch", lambda row: row.global_batch_size), (" Optimizer", lambda row: row.optimizer),
    (" Sequence Length", lambda row: row.sequence_length), (" Performance [seq/sec]", lambda row: row.throughput),
    ("Strong/Weak Scaling", lambda row: row.scaling.replace("_", " ")), ("Neuron Version", lambda row: row.sdk_version),
    ("Neuron Tutorial/Example", lambda row: "`NxD <https://example.org/x.rst>`_"), (" OS Type.", lambda row: "U22"),
)  # fmt: skip


def rows(group: str, table: str = "throughput", edition: str = "trn1-2024-04") -> list[Published]:
    return [row for row in published.rows() if (row.edition, row.group, row.table) == (edition, group, table)]


def grid(cells: Cells, of: Iterable[Published]) -> list[list[str]]:
    """A header and lines of text; as published, missing is empty."""
    values = [["" if (value := get(row)) is None else str(value) for _, get in cells] for row in of]
    return [[name for name, _ in cells], *values]


def csv_text(cells: Cells, of: Iterable[Published], drop: str = "Cost") -> str:
    """As in the documentation's repository: costs are joined when the page is built."""
    kept = [cell for cell in cells if not cell[0].startswith(drop)]
    quoted = [[f'"{cell}"' if "," in cell else cell for cell in line] for line in grid(kept, of)]
    return "\n".join(",".join(line) for line in quoted) + "\n"


def table_html(lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th class="head"><p>{html.escape(cell)}</p></th>' for cell in lines[0])
    body = "".join(
        "<tr>" + "".join(f"<td><p>{html.escape(cell)}</p></td>" for cell in line) + "</tr>\n" for line in lines[1:]
    )
    return f'<table class="df-table">\n<thead>\n<tr>{head}</tr>\n</thead>\n<tbody>\n{body}</tbody>\n</table>\n'


def tabs(title: str, cells: Cells, group: str, limit: int | None = None) -> str:
    """A section with the two tabs, `Throughput optimized` and `Latency optimized`."""
    parts = [f"<section><h2>{title}</h2><div class='sd-tab-set'>"]
    for table in ("throughput", "latency"):
        parts.append(f'<input type="radio"/><label class="sd-tab-label">{table.capitalize()} optimized</label>')
        parts.append(f'<div class="sd-tab-content">{table_html(grid(cells, rows(group, table)[:limit]))}</div>')
    return "\n".join([*parts, "</div></section>"])


GLOSSARY: Final = "<table><tr><th>Term</th><th>Meaning</th></tr><tr><td>NC</td><td>NeuronCore</td></tr></table>"
FOOTNOTE: Final = "<strong>Cost per 1M inferences</strong> is calculated using On-Demand hourly rate."


def page_html(limit: int | None = None) -> str:
    """The whole page of April 2024: all of its six tables (or so many rows of each), the footnote on costs."""
    parts = [
        tabs("Encoder Models", ENCODER, "encoder", limit),
        tabs("Encoder-Decoder Models", SEQ2SEQ, "seq2seq", limit),
        tabs("Decoder Models", DECODER, "decoder", limit),
    ]
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><title>Trn1 &amp; more</title><style>td { color: red }</style>"
        "<script>document.write('<table><tr><td>Model</td></tr></table>')</script></head>\n<body>"
        "<h1>Trn1/Trn1n Inference Performance</h1><p><em>Last update: April 30th, 2024</em></p>\n"
        + "\n".join(parts) + GLOSSARY + f"<div class='note'><p>{FOOTNOTE}</p></div></body></html>\n"
    )  # fmt: skip


def as_tabs(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("\t".join(line) for line in lines)


def as_pipes(lines: Sequence[Sequence[str]]) -> str:
    made = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([made[0], "|" + "---|" * len(lines[0]), *made[1:]])


def as_stack(lines: Sequence[Sequence[str]]) -> str:
    """One cell to a line, as some browsers copy."""
    return "\n".join(cell for line in lines for cell in line) + "\n"


def as_paragraphs(lines: Sequence[Sequence[str]]) -> str:
    """One cell to a paragraph, as readers of pages make it."""
    return "\n\n".join(cell for line in lines for cell in line) + "\n"


def page_text(form: Callable[[Sequence[Sequence[str]]], str], limit: int | None = None) -> str:
    parts = ["Trn1/Trn1n Inference Performance", "", "Last update: April 30th, 2024", ""]
    for title, cells, group in (("Encoder Models", ENCODER, "encoder"), ("Decoder Models", DECODER, "decoder")):
        for table in ("throughput", "latency"):
            parts += [
                title,
                "",
                f"{table.capitalize()} optimized",
                "",
                form(grid(cells, rows(group, table)[:limit])),
                "",
                "",
            ]
    return "\n".join([*parts, "Note", "", "Cost per 1M inferences is calculated using On-Demand hourly rate.", ""])
