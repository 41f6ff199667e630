"""One row of a published table, in one form for all of them, and what follows from its own figures."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from neuronbench.model import FrozenMap

_DEGREE: Final = re.compile(r"\b(TP|DP|PP)=(\d+)")


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a source states, and nothing else. None and the empty text: it does not say.

    Figures that no field has the meaning of are in `own` under the source's names, units in the names.
    """

    edition: str
    """Which collection of tables: `trn1-2024-04`."""
    group: str
    """Which table of it: `encoder`, `decoder`, `vision_cnn`, `training_decoder`, `llmperf`, ..."""
    table: Literal["throughput", "latency", "training", "results"]
    """What an inference row was optimised for, by its source; `training` and `results` for the others."""
    row: int
    model: str
    task: str = ""
    framework: str = ""
    sdk_version: str = ""
    instance_type: str
    instance_basis: str = "stated"
    """`stated`, or from what the type was inferred where the source does not name it."""
    instance_cores: int | None = None
    """Cores of one instance as programs see them."""
    nodes: int = 1
    application: Literal["batch", "real_time", ""] = ""
    run_mode: Literal["data_parallel", "tensor_parallel", ""] = ""
    tp_degree: int | None = None
    dp_degree: int | None = None
    topology: str = ""
    batch_size: int | None = None
    concurrency: int | None = None
    """Requests that the client kept in flight."""
    load: str = ""
    """Profile of the load generator: `synchronous` is one user, `throughput` saturates, `asynchronous` has a rate."""
    rate_req_s: float | None = None
    workload: str = ""
    sequence_length: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    image_size: str = ""
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    optimizer: str = ""
    scaling: str = ""
    dtype: str = ""
    training_dtype: str = ""
    weight_dtype: str = ""
    auto_cast: str = ""
    speculation: str = ""
    variant: str = ""
    """What else tells rows of a table apart: settings of the engine, with or without prefix cache, ..."""
    tool: str = ""
    """What measured it."""
    throughput: float | None = None
    throughput_of: Literal["items", "tokens", "output_tokens", "sequences", "unstated", ""] = ""
    """Per second; `tokens` are input and output together, `unstated` are tokens of which kind is not said."""
    throughput_decimals: int = 0
    """As printed."""
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    latency_of: Literal["call", "token", ""] = ""
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    cost_per_1m_usd: float | None = None
    hourly_usd: float | None = None
    """Price by which the source's cost was made."""
    on_page: bool = True
    """False for tables that are kept in the repository and shown by no page (any more)."""
    measured_on: str = ""
    as_of: str
    """Date of the edition."""
    source: str
    own: FrozenMap = FrozenMap()  # noqa: RUF009 - immutable

    @property
    def name(self) -> str:
        """Short and unique: `trn1-2024-04/encoder/throughput/14`."""
        return f"{self.edition}/{self.group}/{self.table}/{self.row}"

    @property
    def implied_workers(self) -> float | None:
        """Model copies that must have been busy at once: throughput × P50, per item of a batch."""
        alike = {"call": "items", "token": "tokens"}.get(self.latency_of) == self.throughput_of
        if self.throughput is None or self.latency_p50_ms is None or not alike:
            return None
        each = self.batch_size or 1 if self.latency_of == "call" else 1
        return self.throughput * self.latency_p50_ms / 1e3 / each

    @property
    def degrees(self) -> dict[str, int]:
        """Degrees of parallelism by name, `tp`, `dp`, `pp`, as far as they are stated; empty where none is."""
        told = {name.lower(): int(value) for name, value in _DEGREE.findall(self.topology)}
        given = {"tp": self.tp_degree, "dp": self.dp_degree}
        return told | {name: value for name, value in given.items() if value}

    @property
    def cores_used(self) -> float | None:
        """Cores that the run can have used: by its degrees of parallelism, else by the workers implied."""
        return math.prod(self.degrees.values()) if self.degrees else self.implied_workers

    @property
    def cores(self) -> int | None:
        """Cores of all its instances."""
        return None if self.instance_cores is None else self.instance_cores * self.nodes

    @property
    def cost_recomputed_usd(self) -> float | None:
        """The source's price of an hour / 3600 / throughput × 1e6, of the whole instance; None without a price."""
        if self.hourly_usd is None or not self.throughput:
            return None
        return cost_per_1m_usd(self.throughput, self.hourly_usd)

    @property
    def expected_throughput(self) -> float | None:
        """Tokens per second of its batch by its own medians: batch × n / (TTFT + (n − 1) × TPOT)."""
        if self.output_tokens is None or self.ttft_p50_ms is None or self.tpot_p50_ms is None:
            return None
        seconds = (self.ttft_p50_ms + (self.output_tokens - 1) * self.tpot_p50_ms) / 1e3
        return (self.batch_size or 1) * self.output_tokens / seconds


def cost_per_1m_usd(per_second: float, hourly_usd: float) -> float:
    """Of a million of what `per_second` counts: 1e6 / rate × price of an hour / 3600."""
    return 1e6 / per_second * hourly_usd / 3600


def cost_tolerance_usd(cost: float, per_second: float, decimals: int, printed: int = 3) -> float:
    """By how much a cost can be off that was made from an unrounded rate and printed with `printed` decimals.

    Half a unit of the last digit of the rate, relative, and half a unit of the last digit of the cost.
    """
    return cost * 0.5 * 10.0**-decimals / per_second + 0.5 * 10.0**-printed
