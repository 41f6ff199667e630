"""What is odd about a published row, found by its own figures, by those of its table, or by what another table says."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from neuronbench.catalog.architectures import plain_name
from neuronbench.catalog.published.reading import rows
from neuronbench.catalog.published.rows import Published, cost_tolerance_usd
from neuronbench.model import Json

ALL_BUSY: Final = 0.85
"""Share of the cores below which a row used a part of its instance."""
QUEUED: Final = 1.25
"""Batches in flight for each core above which latency has queueing in it."""
RECONCILED: Final = (0.8, 1.25)
"""Of a throughput / what the row's own medians make of it; medians of skewed times give no more than that."""
WAITED: Final = 1.5
"""How far from the median a mean or an upper quartile may be before the median hides waiting."""
SAME: Final = 0.01
"""Relative difference below which two rates are one."""
FILLED: Final = 0.6
"""Share of its batch below which a saturating load did not saturate."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something about a published row that a reader must know."""

    id: str
    text: str


Found = Iterator[Finding]


def findings(row: Published, among: Sequence[Published] | None = None) -> list[Finding]:
    """What our own checks find wrong or misleading in this row.

    `among` are the rows it was published with, of all tables; those of its edition in the catalogue by default.
    """
    mates = _editions().get(row.edition, []) if among is None else among
    own = [finding for check in _CHECKS for finding in check(row)]
    return own + [finding for beside in _BESIDE for finding in beside(row, mates)]


# --------------------------------------------------------------------------------------------------------------------
# by its own figures


def _percentiles(row: Published) -> Found:
    for name in ("latency", "ttft", "tpot"):
        low, high = getattr(row, f"{name}_p50_ms"), getattr(row, f"{name}_p99_ms")
        if low is not None and high is not None and low > high:
            what = "" if name == "latency" else f"{name.upper()} "
            yield Finding(id="p50_above_p99", text=f"{what}P50 {low:g} ms is above P99 {high:g} ms: swapped, or wrong")


def _part_billed_as_whole(row: Published) -> Found:
    used, cores = row.cores_used, row.cores
    if used is None or cores is None or used > ALL_BUSY * cores:
        return
    parts = " × ".join(map(str, row.degrees.values()))
    how = parts if row.degrees else f"throughput × P50 / batch = {used:.2f}"
    text = f"{how} cores of {cores} were used; a cost by the price of the instance is that of all of them"
    yield Finding(id="part_billed_as_whole", text=text)


def _queueing(row: Published) -> Found:
    workers, cores = row.implied_workers, row.cores
    if row.latency_of == "call" and workers is not None and cores is not None and workers > QUEUED * cores:
        text = f"throughput × P50 / batch = {workers:.2f} batches were in flight on {cores} cores: latency has queueing"
        yield Finding(id="more_in_flight_than_cores", text=f"{text} in it")


def _labels(row: Published) -> Found:
    if row.application == "batch" and row.batch_size == 1:
        yield Finding(id="batch_of_one", text="called a batch application, with batch size 1")
    if row.application == "real_time" and row.table == "throughput":
        text = "a real-time row of batch 1 among those that were optimised for throughput"
        yield Finding(id="real_time_in_throughput_table", text=text)


def _cost_of_tokens(row: Published) -> Found:
    if row.throughput_of == "tokens":
        text = "the cost column says per million inferences and divides by tokens (input and output)"
        yield Finding(id="cost_mislabelled", text=text)


def _cost(row: Published) -> Found:
    cost, again = row.cost_per_1m_usd, row.cost_recomputed_usd
    if cost is None or again is None or row.throughput is None:
        return
    if abs(cost - again) > cost_tolerance_usd(again, row.throughput, row.throughput_decimals):
        text = f"printed cost {cost:g} USD, {again:.3f} by its own price and throughput"
        yield Finding(id="cost_not_reproduced", text=text)


def _tokens_per_second(row: Published) -> Found:
    expected = row.expected_throughput
    if expected is None or row.throughput_of != "output_tokens" or row.throughput is None or row.table == "results":
        return
    ratio = row.throughput / expected
    if not RECONCILED[0] <= ratio <= RECONCILED[1]:
        text = (
            f"{row.throughput:.2f} tok/s, and {expected:.2f} by batch × n / (TTFT + (n − 1) × TPOT): {ratio:.2f} of it"
        )
        yield Finding(id="throughput_not_reconciled", text=text)


def _topology(row: Published) -> Found:
    product = math.prod(row.degrees.values())
    if row.topology and row.degrees and row.cores and product != row.cores:
        text = f"{row.topology} is {product} cores, and {row.nodes} instances have {row.cores}"
        yield Finding(id="topology_not_nodes", text=text)


def _instance(row: Published) -> Found:
    if row.instance_basis != "stated":
        yield Finding(id="instance_not_stated", text=f"{row.instance_type}: {row.instance_basis}")
    if "/" in row.instance_type:
        text = f"{row.instance_type} are one row: the source does not tell them apart, and their networks differ"
        yield Finding(id="instances_not_told_apart", text=text)
    if row.throughput_of == "unstated":
        yield Finding(id="throughput_undefined", text="the source does not say which tokens its throughput counts")
    if not row.on_page:
        yield Finding(id="not_on_a_page", text="the table is kept in the repository, and no page shows it (any more)")


# --------------------------------------------------------------------------------------------------------------------
# by figures under the source's own names


def _value(row: Published, name: str) -> float | None:
    value: Json = row.own.get(name)
    return value if isinstance(value, float) else None


def _waits(row: Published) -> Found:
    median, top = row.ttft_p50_ms, _value(row, "ttft_s_max")
    if median is None or top is None:
        return
    seconds = median / 1e3
    far = {"p75": _value(row, "ttft_s_p75"), "mean": _value(row, "ttft_s_mean")}
    words = [f"{name} {value:.1f} s" for name, value in far.items() if value is not None and value > WAITED * seconds]
    if words or top > 5 * seconds:
        said = ", ".join([*words, f"max {top:.1f} s"])
        text = (
            f"TTFT is {seconds:.2f} s at the median, and {said}: requests waited for others, and P50 does not show it"
        )
        yield Finding(id="median_hides_waits", text=text)


def _rates(row: Published) -> Found:
    each, ended = _value(row, "request_output_throughput_token_per_s_p50"), _value(row, "end_to_end_latency_s_p50")
    if each is not None and row.throughput and abs(each - row.throughput) > SAME * each:
        text = f"{row.throughput:.2f} tok/s overall, {each:.2f} as the median of single requests: two definitions"
        yield Finding(id="two_rates", text=text)
    if ended is not None and row.ttft_p50_ms is not None and row.tpot_p50_ms is not None:
        tokens = _value(row, "number_output_tokens_p50") or 1
        made = (row.ttft_p50_ms + (tokens - 1) * row.tpot_p50_ms) / 1e3
        if abs(made - ended) > SAME * ended:
            text = f"end to end {ended:.2f} s, and {made:.2f} by TTFT + (n − 1) × TPOT"
            yield Finding(id="end_to_end_not_reconciled", text=text)
    best = _value(row, "throughput_p99_tok_s")
    if best is not None:
        yield Finding(id="rate_percentile", text=f"P99 of a rate ({best:g} tok/s) is its best case, not its worst")


def _load(row: Published) -> Found:
    other = row.own.get("env_model")
    if isinstance(other, str) and other and plain_name(other) != plain_name(row.model):
        text = f"the settings beside it are of {other}, the row of {row.model}: its batch is not known"
        yield Finding(id="settings_of_another_model", text=text)
        return
    rate, latency = _value(row, "requests_per_second"), _value(row, "request_latency_s")
    if row.load == "throughput" and rate is not None and latency is not None and row.batch_size:
        flying = rate * latency
        if flying < FILLED * row.batch_size:
            text = (
                f"a saturating load kept {flying:.2f} requests in flight at batch {row.batch_size}: it did not saturate"
            )
            yield Finding(id="load_below_batch", text=text)


def _contributed(row: Published) -> Found:
    if _value(row, "mfu_pct_token_generation") == 0:
        yield Finding(id="utilisation_of_zero", text="MFU of token generation is printed as 0")
    time = _value(row, "execution_time_us_token_generation")
    if time is not None and time < 1:
        yield Finding(id="unit_wrong", text=f"execution time of {time:g} µs for a token: more likely seconds")
    whole, seconds = _value(row, "end_to_end_tok_s"), _value(row, "end_to_end_s")
    length = row.sequence_length or 0
    if whole is not None and seconds is not None and abs(whole * seconds - length) < SAME * length:
        text = f"{whole:g} tok/s end to end divides all {length} tokens, the prompt's too, by {seconds:g} s"
        yield Finding(id="prompt_counted", text=text)


def _accepted(row: Published) -> Found:
    length = _value(row, "mean_acceptance_length_tokens")
    each = [value for position in range(8) if (value := _value(row, f"acceptance_pos{position}_pct")) is not None]
    if length is None or not each:
        return
    made = 1 + sum(each) / 100
    if abs(made - length) > 0.005 + 0.0005 * len(each) + 1e-9:
        text = f"mean acceptance length {length:g}, and {made:.3f} by 1 + the sum of the positions' rates"
        yield Finding(id="acceptance_not_reconciled", text=text)


# --------------------------------------------------------------------------------------------------------------------
# by other rows


@functools.cache
def _editions() -> dict[str, list[Published]]:
    found: dict[str, list[Published]] = {}
    for row in rows():
        found.setdefault(row.edition, []).append(row)
    return found


def _of(mates: Sequence[Published], group: str, table: str) -> Iterator[Published]:
    return (each for each in mates if each.group == group and each.table == table)


def _versions(row: Published, mates: Sequence[Published]) -> Found:
    versions = sorted({each.sdk_version for each in _of(mates, row.group, row.table) if each.sdk_version})
    if len(versions) > 1 and row.group != "reports":
        yield Finding(id="mixed_versions", text=f"rows of its table were measured on SDK {', '.join(versions)}")


_FIGURES: Final = (
    "model", "instance_type", "batch_size", "sequence_length", "input_tokens", "output_tokens", "image_size", "dtype",
    "throughput", "latency_p50_ms", "latency_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms",
)  # fmt: skip


def _repeated(row: Published, mates: Sequence[Published]) -> Found:
    if row.table != "throughput":
        return
    others = _of(mates, row.group, "latency")
    if any(all(getattr(each, name) == getattr(row, name) for name in _FIGURES) for each in others):
        text = "the same figures are in the table of rows that were optimised for latency"
        yield Finding(id="same_as_latency_row", text=text)


def _padded(row: Published, mates: Sequence[Published]) -> Found:
    """TTFT that does not grow with the prompt is that of the prompt's bucket."""
    alike = [
        (each.input_tokens, time)
        for each in _of(mates, row.group, row.table)
        if each.model == row.model and each.input_tokens and (time := _value(each, "ttft_ms")) is not None
    ]
    if row.input_tokens is None or len(alike) < 3 or max(alike)[0] < 4 * min(alike)[0]:
        return
    times = sorted(time for _, time in alike)
    if times[-1] - times[0] < 2 * SAME * times[0]:
        text = f"TTFT is {times[0]:g} to {times[-1]:g} ms for prompts of {min(alike)[0]} to {max(alike)[0]} tokens"
        yield Finding(id="prompts_padded", text=f"{text}: it is that of a padded bucket")


def _summarised(row: Published, mates: Sequence[Published]) -> Found:
    """A tutorial's summary beside the whole distribution that the same tutorial prints."""
    rate = _value(row, "output_token_throughput_tok_s")
    mate = next((each for each in _of(mates, "llmperf", "results") if _same_run(row, each)), None)
    if rate is None or mate is None:
        return
    single = _value(mate, "request_output_throughput_token_per_s_p50")
    pairs = [("TPOT P50", row.tpot_p50_ms, mate.tpot_p50_ms), ("throughput", rate, mate.throughput)]
    if single is not None and mate.throughput is not None and abs(rate - single) < abs(rate - mate.throughput):
        pairs[1] = ("throughput", rate, single)
        text = f"its throughput {rate:g} is the median of single requests, elsewhere it is the overall rate"
        yield Finding(id="two_rates", text=f"{text} ({mate.throughput:.2f})")
    cut = [f"{name} {mine:g} of {true:.4g}" for name, mine, true in pairs if mine and true and _is_cut(mine, true)]
    if cut:
        yield Finding(id="truncated", text=f"cut off, not rounded: {', '.join(cut)}")


def _same_run(row: Published, other: Published) -> bool:
    plain = other.speculation == "none"
    return other.model.startswith(row.model) and plain == row.variant.startswith("no ")


def _is_cut(printed: float, true: float) -> bool:
    digits = len(f"{printed:g}".partition(".")[2])
    return printed != round(true, digits) and printed == math.floor(true * 10**digits) / 10**digits


_CHECKS: Final[Sequence[Callable[[Published], Found]]] = (
    _percentiles, _part_billed_as_whole, _queueing, _labels, _cost_of_tokens, _cost, _tokens_per_second, _topology,
    _instance, _waits, _rates, _load, _contributed, _accepted,
)  # fmt: skip
_BESIDE: Final[Sequence[Callable[[Published, Sequence[Published]], Found]]] = (
    _versions, _repeated, _padded, _summarised,
)  # fmt: skip
