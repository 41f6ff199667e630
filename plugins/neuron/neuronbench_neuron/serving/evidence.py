"""What a server on Neuron has to say of a measured window: compiles in it, buckets, concurrency that was capped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuronbench.definitions import metric
from neuronbench.model import Gate, Json, Metric
from neuronbench.witness import SeenWindow, Testimony
from neuronbench_neuron.serving import watch
from neuronbench_neuron.serving.buckets import BucketMap, with_metrics
from neuronbench_neuron.serving.counters import EXECUTIONS, SEQS, TOKENS, Counters, Padding

TABLE: Final = "buckets.parquet"
SHARE_OFF: Final = 0.05
"""Shares of executions by bucket that differ by more do not agree with what was predicted."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a server since its start."""

    buckets: BucketMap
    sequences: int | None
    """`max_num_seqs` as it was asked for, or is by default."""
    capped: int | None
    """Requests at once that its KV cache holds, where its log says that these are fewer."""
    cache: Mapping[str, Json]
    """Facts of the compile cache at the start: `state` is `cold`, `warm`, `empty` or `unknown`."""
    reports: bool
    """Whether it should have metrics of its own (`vllm_neuron:*`)."""


def testify(seen: SeenWindow, known: Known) -> Testimony:
    """Metrics, gates, facts and the table of buckets for one window."""
    start, end = seen.window.get("start_ns"), seen.window.get("end_ns")
    if start is None or end is None:
        return Testimony(facts={"buckets": known.buckets.to_json(), "compile_cache": dict(known.cache)})
    counters = Counters(seen.telemetry, start, end)
    whole = Counters(seen.telemetry)
    buckets = with_metrics(known.buckets, whole.names())
    requests = _Requests.read(seen.requests)
    computed = requests.computed(buckets)
    requests.write(seen.folder / TABLE, buckets, computed)
    tokens, seqs = counters.padding(TOKENS, "prefill"), counters.padding(SEQS, "decode")
    agreement = _agreement(requests.predicted(buckets), whole.padding(TOKENS, "prefill"))
    gates = [compile_gate(seen, counters), _concurrency_gate(requests.peak(start, end), known)]
    gates += [gate for gate in (_device_gate(counters, known), agreement) if gate is not None]
    return Testimony(
        metrics=_metrics(requests, buckets, counters, tokens, seqs),
        gates=gates,
        facts={
            "buckets": buckets.to_json(),
            "compile_cache": dict(known.cache),
            "effective_concurrency": known.capped if known.capped is not None else known.sequences,
            "prompts_at_an_edge": requests.at_edge(buckets),
        },
        tables={"buckets": TABLE},
        notes=_notes(requests, buckets),
    )


# -- was anything compiled? -------------------------------------------------------------------------------------------


def compile_gate(seen: SeenWindow, counters: Counters) -> Gate:
    """Fails when anything was compiled, or appeared in the cache, while the window was open.

    Three witnesses: the cache's folder, the server's log, its own metrics; one is enough to fail. With none the gate
    cannot be evaluated.
    """
    start, end = int(seen.window["start_ns"]), int(seen.window["end_ns"])
    told: dict[str, Json] = {}
    for name in ("modules", "log_compiles"):
        grown = _grown(seen.telemetry.get(f"{watch.NAME}/{name}"), start, end)
        if grown is not None:
            told[name] = grown
    buckets = counters.compiled()
    if buckets is not None:
        told["metrics"] = buckets
    found = {name: value for name, value in told.items() if value}
    if not told:
        return Gate(
            id="compiled_in_window", passed=None, limit=0,
            message="neither cache, log nor metrics of the server were seen on both sides of the window",
        )  # fmt: skip
    return Gate(
        id="compiled_in_window",
        passed=not found,
        observed=found or 0,
        limit=0,
        message="a graph was compiled while the window was open; what it delayed is in the numbers. Warm up longer, or "
        f"send a request of each size before (witnesses: {', '.join(told)})"
        if found
        else f"witnesses: {', '.join(told)}",
    )


def _grown(series: Any, start_ns: int, end_ns: int) -> int | None:
    """How much a count rose from the last sample before the window to the first after it; None without both sides.

    A count that fell tells of something removed, and of nothing compiled.
    """
    before = [value for at, value in zip(series.mono_ns, series.values, strict=True) if at <= start_ns]
    later = [value for at, value in zip(series.mono_ns, series.values, strict=True) if at > start_ns]
    inside = [value for at, value in zip(series.mono_ns, series.values, strict=True) if start_ns < at < end_ns]
    if not before or not later:
        return None
    until = [*inside, *later[len(inside) : len(inside) + 1]]
    return int(max(0, round(max(until) - before[-1])))


def _device_gate(counters: Counters, known: Known) -> Gate | None:
    """A server that generated tokens without running a program on the device did not use it."""
    ran = counters.delta(EXECUTIONS)
    if ran is None:
        if not known.reports:
            return None
        return Gate(
            id="device_executions", passed=None, limit=1, unit="executions", severity="provisional",
            message="the server does not report what its device ran (PROMETHEUS_MULTIPROC_DIR?)",
        )  # fmt: skip
    return Gate(
        id="device_executions", passed=ran > 0, observed=round(ran), limit=1, unit="executions",
        message="" if ran > 0 else "tokens came, and the device ran nothing: it did not compute them",
    )  # fmt: skip


def _concurrency_gate(peak: int | None, known: Known) -> Gate:
    """More requests at once than the server works on wait in its queue: a point's label says more than it does."""
    limit = known.capped if known.capped is not None else known.sequences
    if peak is None or limit is None:
        return Gate(
            id="effective_concurrency", passed=None, observed=peak, limit=limit, unit="requests", severity="info",
            message="not known how many requests the server works on at once",
        )  # fmt: skip
    over = peak > limit
    capped = known.capped is not None and known.sequences is not None and known.capped < known.sequences
    return Gate(
        id="effective_concurrency",
        passed=not over,
        observed=peak,
        limit=limit,
        unit="requests",
        severity="provisional" if capped else "info",
        message=f"max_num_seqs is {known.sequences}, but its KV cache holds {limit} at once; the others waited: these "
        "are numbers of a queue. Lower max_model_len, or raise VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"
        if over and capped
        else "more requests were in flight than the server works on at once; the others waited"
        if over
        else "",
    )


# -- buckets ----------------------------------------------------------------------------------------------------------


class _Requests:
    """Columns of the table of requests that matter here."""

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self._columns = columns
        self._tokens: list[int | None] = [
            told if told is not None else asked
            for told, asked in zip(columns["input_tokens"], columns["asked_input_tokens"], strict=True)
        ]

    @classmethod
    def read(cls, path: Path) -> _Requests:
        import pyarrow.parquet as parquet

        names = ["worker", "request_id", "in_window", "ok", "input_tokens", "asked_input_tokens", "sent_ns", "end_ns"]
        table = parquet.read_table(path, columns=names)
        return cls({name: table[name].to_pylist() for name in names})

    def computed(self, buckets: BucketMap) -> list[int | None]:
        return [None if count is None else buckets.prefill_computed(count) for count in self._tokens]

    def in_window(self, buckets: BucketMap) -> list[tuple[int, int]]:
        """Prompt tokens and computed ones of each good request of the window, where both are known."""
        return [
            (count, size)
            for count, size, inside, ok in zip(
                self._tokens, self.computed(buckets), self._columns["in_window"], self._columns["ok"], strict=True
            )
            if inside and ok and count is not None and size is not None
        ]

    def at_edge(self, buckets: BucketMap) -> int:
        """Good requests of the window whose prompt is exactly as long as a bucket."""
        return sum(buckets.at_edge(count) for count, _ in self.in_window(buckets))

    def predicted(self, buckets: BucketMap) -> dict[int, int]:
        """Steps of prefill by bucket that all good requests together should have taken, warm-up and drain included."""
        steps: dict[int, int] = {}
        for count, ok in zip(self._tokens, self._columns["ok"], strict=True):
            edge = None if count is None or not ok else buckets.prefill_bucket(count)
            if edge is None or count is None:
                continue
            steps[edge] = steps.get(edge, 0) + 1
            if buckets.chunk is not None and count > buckets.chunk:
                steps[buckets.chunk] = steps.get(buckets.chunk, 0) + (count - 1) // buckets.chunk
        return steps

    def peak(self, start_ns: int, end_ns: int) -> int | None:
        """Most requests in flight at once inside the window."""
        events = []
        for sent, end in zip(self._columns["sent_ns"], self._columns["end_ns"], strict=True):
            if sent is None or sent >= end_ns or (end is not None and end <= start_ns):
                continue
            events.append((max(sent, start_ns), 1))
            if end is not None and end < end_ns:
                events.append((end, -1))
        flying = highest = 0
        for _, step in sorted(events):  # an end before a beginning at the same instant
            flying += step
            highest = max(highest, flying)
        return highest if events else None

    def write(self, path: Path, buckets: BucketMap, computed: Sequence[int | None]) -> None:
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        tokens = self._tokens
        table = arrow.table(
            {
                "worker": arrow.array(self._columns["worker"], arrow.int32()),
                "request_id": arrow.array(self._columns["request_id"], arrow.int64()),
                "in_window": arrow.array(self._columns["in_window"], arrow.bool_()),
                "input_tokens": arrow.array(tokens, arrow.int64()),
                "bucket": arrow.array(
                    [None if count is None else buckets.prefill_bucket(count) for count in tokens], arrow.int64()
                ),
                "computed_tokens": arrow.array(list(computed), arrow.int64()),
                "padding_tokens": arrow.array(
                    [
                        None if count is None or size is None else size - count
                        for count, size in zip(tokens, computed, strict=True)
                    ],
                    arrow.int64(),
                ),
                "fill": arrow.array(
                    [
                        None if count is None or size is None else count / size
                        for count, size in zip(tokens, computed, strict=True)
                    ],
                    arrow.float64(),
                ),
                "at_edge": arrow.array([None if count is None else buckets.at_edge(count) for count in tokens]),
            }
        )
        parquet.write_table(table, path, compression="zstd")


def _metrics(
    requests: _Requests, buckets: BucketMap, counters: Counters, tokens: Padding | None, seqs: Padding | None
) -> list[Metric]:
    unknown = "the compiled sizes of this server are not known"
    sizes = requests.in_window(buckets)
    prompts, computed = sum(count for count, _ in sizes), sum(size for _, size in sizes)
    predicted = f"predicted: smallest bucket that holds the prompt, by {buckets.source}"
    found = [
        metric("prefill_fill", prompts / computed, stat="predicted", n=len(sizes), note=predicted)
        if computed
        else metric(
            "prefill_fill",
            None,
            stat="predicted",
            note=unknown if not buckets.prefill else "no request whose prompt fits",
        )
    ]
    silent = "the server does not report its padding, or not on both sides of the window"
    if tokens is not None:
        steps = round(sum(tokens.steps.values()))
        found.append(metric("prefill_fill", tokens.useful / tokens.computed, stat="counted", n=steps))
    else:
        found.append(metric("prefill_fill", None, stat="counted", note=silent))
    if seqs is not None:
        steps = round(sum(seqs.steps.values()))
        found.append(metric("decode_fill", seqs.useful / seqs.computed, stat="counted", n=steps))
    else:
        found.append(_sampled_decode_fill(counters.running(), buckets) or metric(
            "decode_fill", None, stat="counted", note=silent))  # fmt: skip
    if tokens is not None and seqs is not None:
        useful, slots = tokens.useful + seqs.useful, tokens.computed + seqs.computed
        found.append(metric("useful_compute", useful / slots, n=round(slots)))
    else:
        found.append(metric("useful_compute", None, note=silent))
    ran = counters.delta(EXECUTIONS)
    found.append(
        metric("device_executions", None, note="the server does not report what its device ran")
        if ran is None
        else metric("device_executions", ran, n=1)
    )
    return found


def _sampled_decode_fill(running: Sequence[float], buckets: BucketMap) -> Metric | None:
    """From samples of the requests that run, where padding is not counted: each stands for the steps around it."""
    pairs = [(count, buckets.decode_bucket(round(count))) for count in running if count >= 1]
    known = [(min(count, size), size) for count, size in pairs if size is not None]
    if not known:
        return None
    share = sum(count for count, _ in known) / sum(size for _, size in known)
    note = "from samples of the requests that run; those that are being prefilled count as decoding"
    return metric("decode_fill", share, stat="sampled", n=len(known), note=note)


def _agreement(predicted: Mapping[int, int], counted: Padding | None) -> Gate | None:
    """Whether the server padded prompts as predicted, by the share of its steps in each bucket."""
    if counted is None or not predicted:
        return None
    whole, total = sum(predicted.values()), sum(counted.steps.values())
    shares = {edge: (predicted.get(edge, 0) / whole, counted.steps.get(edge, 0.0) / total)
              for edge in sorted({*predicted, *counted.steps})}  # fmt: skip
    off = {str(edge): [round(told, 3), round(seen, 3)] for edge, (told, seen) in shares.items()
           if abs(told - seen) > SHARE_OFF}  # fmt: skip
    return Gate(
        id="bucket_map",
        passed=not off,
        observed=off or {str(edge): round(seen, 3) for edge, (_, seen) in shares.items()},
        limit=SHARE_OFF,
        severity="info",
        message="shares of prefill steps by bucket, predicted and counted by the server, differ: it pads otherwise "
        "than documented (a prompt of exactly a bucket's length to the next one?), or it had other load"
        if off
        else "",
    )


def _notes(requests: _Requests, buckets: BucketMap) -> list[str]:
    edge = requests.at_edge(buckets)
    if not edge:
        return []
    return [
        f"{edge} prompts are exactly as long as a compiled size: there are measurements by which such prompts are "
        "padded to the next size; one token less tells"
    ]
