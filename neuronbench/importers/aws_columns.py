"""Names of columns in AWS's tables, which differ from table to table, and the figures and parameters they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NUMBER: Final = re.compile(r"\$?\s*([+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*%?")
INSTANCE: Final = re.compile(r"(?:trn|inf)\d\w*\.\w+(?:/(?:trn|inf)\d\w*\.\w+)*")
_LIMIT: Final = 40
"""Characters of a number: longer ones are none, and take long to convert."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a column holds."""

    field: str
    """Field of `neuronbench.catalog.published.Published`, or a name of this module for what is worked on further."""
    kind: str = "text"
    """`text`, `whole` or `number`."""
    of: str = ""
    """Of a rate or a latency: what it counts."""


_TEXT: Final = {
    "model": "model", "framework": "framework", "task": "task", "image size": "image_size",
    "image size px": "image_size",
    "inst. type": "instance_type", "inst type": "instance_type", "instance-type": "instance_type",
    "instance type": "instance_type", "application type": "application", "neuron version": "sdk_version",
    "run mode": "run_mode", "model data type": "dtype", "model dtype": "dtype", "optimizer": "optimizer",
    "compilation autocast data type": "auto_cast", "compiler autocast": "auto_cast", "topology": "topology",
    "weight storage data type": "weight_dtype", "weight storage dtype": "weight_dtype",
    "training data-type": "training_dtype", "training dtype": "training_dtype", "strong/weak scaling": "scaling",
    "scaling": "scaling", "scripts": "script", "script ref": "script", "neuron tutorial/example": "script",
    "example": "script", "os type": "os", "pytorch neuron(torch-neuronx) version": "torch_neuronx",
    "torch neuronx version": "torch_neuronx",
}  # fmt: skip
_WHOLE: Final = {
    "tp degree": "tp_degree", "dp degree": "dp_degree", "batch size": "batch_size", "nodes": "nodes",
    "sequence length": "sequence_length", "sequence length tokens": "sequence_length", "input length": "input_tokens",
    "input length tokens": "input_tokens", "output length": "output_tokens", "output length tokens": "output_tokens",
    "microbatch": "micro_batch_size", "micro batch size": "micro_batch_size", "globalbatch": "global_batch_size",
    "global batch size": "global_batch_size", "global minibatch": "global_batch_size",
}  # fmt: skip
_FIGURES: Final = (
    (r"(avg )?throughput ?\((inferences?/(sec|second)|/sec)\)|throughput inferences per s", "throughput", "items"),
    (r"throughput \(tokens/(sec|second)\)|throughput tokens per s input plus output", "throughput", "tokens"),
    (r"output token throughput \(tokens/(sec|second)\)|output throughput tokens per s", "throughput", "output_tokens"),
    (r"(performance|throughput) ?\[seq/sec\]|throughput sequences per s", "throughput", "sequences"),
    (r"latency p50( \(ms\)| ms)", "latency_p50_ms", "call"),
    (r"latency p99( \(ms\)| ms)", "latency_p99_ms", "call"),
    (r"latency per token p50( \(ms\)| ms)", "latency_p50_ms", "token"),
    (r"latency per token p99( \(ms\)| ms)", "latency_p99_ms", "token"),
    (r"ttft (latency )?p50( \(ms\)| ms)", "ttft_p50_ms", ""),
    (r"ttft (latency )?p99( \(ms\)| ms)", "ttft_p99_ms", ""),
    (r"tpot (latency )?p50( \(ms\)| ms)", "tpot_p50_ms", ""),
    (r"tpot (latency )?p99( \(ms\)| ms)", "tpot_p99_ms", ""),
    (
        r"cost per 1m (inferences?|images?|tokens?|sequences?)|cost per 1m (tokens )?published usd",
        "cost_per_1m_usd",
        "",
    ),
    (r"on-?demand hourly rate.*|on-demand usd per hour", "on_demand", ""),
    (r"ri-effective hourly rate.*", "ri_effective", ""),
)


def column(name: str) -> Column | None:
    """What the column of this name is; None for a name that no table of AWS's had."""
    key = " ".join(name.replace("_", " ").replace("\xa0", " ").lower().split()).strip(". ")
    if key in _TEXT:
        return Column(field=_TEXT[key])
    if key in _WHOLE:
        return Column(field=_WHOLE[key], kind="whole")
    for pattern, target, of in _FIGURES:
        if re.fullmatch(pattern, key):
            return Column(field=target, kind="number", of=of)
    return None


def is_column(name: str) -> bool:
    return column(name) is not None


def is_instance_column(name: str) -> bool:
    found = column(name)
    return found is not None and found.field == "instance_type"


def is_instance(text: str) -> bool:
    """Whether it names an instance type, or several with a slash between: `Inf2.xlarge`."""
    return INSTANCE.fullmatch(text.lower().replace(" ", "")) is not None


def is_header(names: Sequence[str]) -> bool:
    """Whether these are the columns of a table of results: a model, an instance type, a rate, and others known."""
    known = [found.field for found in map(column, names) if found is not None]
    return len(known) >= 4 and {"model", "instance_type", "throughput"} <= set(known)


def number(text: str) -> float | None:
    """`$0.120`, `3,098.91`, `25.83%`; None for what is no number, or none that is finite and not negative."""
    match = NUMBER.fullmatch(text.strip()) if len(text) <= _LIMIT else None
    value = float(match[1].replace(",", "")) if match else None
    return value if value is not None and 0 <= value < float("inf") else None


def decimals(text: str) -> int:
    """Digits behind the point, as printed."""
    match = NUMBER.fullmatch(text.strip())
    return len(match[1].partition(".")[2].rstrip("eE+-")) if match and "e" not in match[1].lower() else 0
