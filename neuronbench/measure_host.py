"""What the host can do at best: memory bandwidth, arithmetic, and its tokenizer, by the worker's timed loops.

Recorded once per session and cited by the records of all others: a rate that is near the host's floor says nothing of
the accelerator. Each figure is of a short window in processes pinned to their cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench import models
from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Gate, Json, Metric, ResourceSpec
from neuronbench.protocols import Floor
from neuronbench.session import FLOOR
from neuronbench.stacks import clean_environment
from neuronbench.worker.client import Launch
from neuronbench.worker.compiled import COMMON_HANDLERS, WorkerModel
from neuronbench.worker.copies import Plan, start_copy

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session
    from neuronbench.worker.runs import Run

TIMES_CACHE: Final = 4
"""Arrays of the triad are so many times the last-level caches: STREAM's own rule."""
UNKNOWN_CACHE_BYTES: Final = 64 << 20
MEMORY_SHARE: Final = 0.5
"""Of the memory that is free, at most, for the three arrays."""
BUSY_LIMIT: Final = 0.1
"""Share of all cores that other processes may have before the first kernel."""
LISTEN_S: Final = 0.5
MATRIX: Final = 1024
START_S: Final = 120.0
TEXT: Final = (
    "The tide leaves the harbour twice a day, and with it go the boats that have work to do.",
    "A compiler that is asked for speed may give it at the price of an answer.",
    "In 1987 the valley had 312 inhabitants, two shops and no telephone.",
    "Whoever measures once knows a number; whoever measures twice knows how much it moves.",
)
"""What the tokenizer is given, over and over."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The part of the host that may be used."""

    cores: Sequence[int]
    caches_bytes: int | None
    """Last-level caches of all of them together; None when the system does not say."""
    free_bytes: int

    @classmethod
    def here(cls, root: Path = Path("/")) -> Host:
        import psutil

        cores = (
            sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
        )
        free = int(psutil.virtual_memory().available)
        return cls(cores=cores, caches_bytes=last_level_bytes(root, cores), free_bytes=free)

    @property
    def wanted_bytes(self) -> int:
        """Size of one array of the triad by STREAM's rule."""
        return TIMES_CACHE * (self.caches_bytes or UNKNOWN_CACHE_BYTES)

    @property
    def array_bytes(self) -> int:
        """Size of one array of the triad, as far as memory allows."""
        return min(self.wanted_bytes, int(MEMORY_SHARE * self.free_bytes / 3))


def last_level_bytes(root: Path, cores: Sequence[int]) -> int | None:
    """Size of the last-level caches that these cores have, each counted once; None when the kernel does not say."""
    found: dict[str, int] = {}
    for core in cores:
        levels: list[tuple[int, str, int]] = []
        for index in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
            try:
                level, shared, size = (
                    (index / name).read_text().strip() for name in ("level", "shared_cpu_list", "size")
                )
                if (index / "type").read_text().strip() != "Instruction":
                    levels.append((int(level), shared, int(size.removesuffix("K")) << 10))
            except (OSError, ValueError):
                continue
        if levels:
            last = max(levels)
            found[f"{last[0]}:{last[1]}"] = last[2]
    return sum(found.values()) if found else None


def ladder(count: int) -> list[int]:
    """1, 2, 4, ... and `count` itself."""
    return sorted({1 << power for power in range(count.bit_length())} | {count})


def floor(session: Session, opened: OpenRecord, *, seconds: float, model: str | None) -> dict[str, Metric]:
    """See `Measure.host_floor`."""
    if seconds <= 0:
        raise ValueError(f"seconds: expected more than 0, found {seconds}")
    host = Host.here()
    quiet = host_quiet()
    bench = _Bench(session, opened, host, seconds)
    counts = ladder(len(host.cores))
    metrics = []
    for kernel in (bench.bandwidth, bench.products):
        found = [kernel(count) for count in counts]
        metrics += [*found, _best(found)]
    metrics.append(bench.tokenizer(model))
    record = opened.record
    record.add(*metrics)
    record.gate(quiet, beyond_cache(host))
    record.workload[FLOOR] = {
        "cores": list(host.cores),
        "array_bytes": host.array_bytes,
        "last_level_bytes": host.caches_bytes,
        "matrix": MATRIX,
        "window_s": seconds,
        **bench.facts,
    }
    return {each.key: each for each in metrics}


def host_quiet() -> Gate:
    """Whether anything else computes on this host: what is measured beside it is not the best the host can do."""
    import psutil

    busy = round(psutil.cpu_percent(interval=LISTEN_S) / 100, 4)
    why = f"other processes had {busy:.0%} of all cores just before: end them and measure again"
    return Gate(
        id="host_quiet", passed=busy <= BUSY_LIMIT, observed=busy, limit=BUSY_LIMIT, unit="share",
        severity="provisional", message=why if busy > BUSY_LIMIT else "",
    )  # fmt: skip


def _best(found: Sequence[Metric]) -> Metric:
    best = max(found, key=lambda each: each.value or 0.0)
    return replace(best, stat="max", note=f"at {best.stat}: {best.note}")


def beyond_cache(host: Host) -> Gate:
    """Whether the triad's arrays were so large that memory, not a cache, was measured."""
    passed = None if host.caches_bytes is None else host.array_bytes >= host.wanted_bytes
    why = {
        True: "",
        False: f"an array should be {TIMES_CACHE} × the last-level caches; free memory allows no more than it is",
        None: "the system does not say how large its caches are",
    }
    return Gate(
        id="beyond_cache",
        passed=passed,
        observed=host.array_bytes,
        limit=host.wanted_bytes,
        unit="B",
        message=why[passed],
    )


class _Bench:
    """Kernels in workers that end with their figure."""

    def __init__(self, session: Session, opened: OpenRecord, host: Host, seconds: float) -> None:
        self._session, self._folder, self._host, self._seconds = session, opened.folder, host, seconds
        self._name = opened.record.point.id
        self.facts: dict[str, Json] = {}

    def bandwidth(self, count: int) -> Metric:
        """The triad in `count` processes at once, a core each; their arrays together are as large as one must be."""
        elements = max(self._host.array_bytes // 8 // count, 1)
        run, loaded = self._run("triad", elements, copies=count, threads=1)
        rates = [loaded["bytes"] / _median_ns(loop.durations_ns[run.inside(loop)]) for loop in run.loops]
        note = f"{count} processes, {24 * elements * count >> 20} MiB in three arrays"
        return metric("memory_bandwidth", sum(rates), stat=f"t{count}", n=run.calls, note=note)

    def products(self, count: int) -> Metric:
        """Matrix products on `count` threads of one process."""
        run, loaded = self._run("matmul", MATRIX, copies=1, threads=count)
        (loop,) = run.loops
        rate = loaded["flops"] / _median_ns(loop.durations_ns[run.inside(loop)])
        note = f"{MATRIX} × {MATRIX}, fp32, {count} threads of {self.facts['blas']}"
        return metric("matmul_rate", rate, stat=f"t{count}", n=run.calls, note=note)

    def tokenizer(self, reference: str | None) -> Metric:
        """Tokens per second of a model's tokenizer, text after text; null where there is no stack or no tokenizer."""
        if not reference:
            return metric("tokenizer_rate", None, note="no model was named")
        backend = self._session.plugins.backend("cpu")
        try:
            stack = backend.stack("compile", self._session.settings)
            model = models.resolve(
                reference, self._session.settings, progress=self._session.progress, python=stack.python,
                spawn=self._session.spawn, deadline_s=START_S,
            )  # fmt: skip
        except (LookupError, models.ModelError) as error:
            return metric("tokenizer_rate", None, note=" ".join(str(error.args[0]).split())[:300])
        if not (model.path / "tokenizer.json").is_file():
            return metric("tokenizer_rate", None, note=f"{reference} comes without tokenizer.json")
        load = {"folder": str(model.path), "texts": [*TEXT] * 4}
        run, loaded = self._timed("text", load, stack.python, copies=1, threads=1)
        (loop,) = run.loops
        self.facts["tokenizer"] = {
            "model": reference,
            "digest": loaded["digest"],
            "tokenizers": loaded["version"],
            "tokens": loaded["tokens"],
        }
        rate = 1e9 * loaded["tokens"] / _median_ns(loop.durations_ns[run.inside(loop)])
        note = f"{reference}, {len(load['texts'])} texts a call, tokenizers {loaded['version']}"
        return metric("tokenizer_rate", rate, n=run.calls, note=note)

    # -- parts

    def _run(self, kernel: str, size: int, *, copies: int, threads: int) -> tuple[Run, Mapping[str, Json]]:
        return self._timed(
            "host", {"kernel": kernel, "size": size}, Path(sys.executable), copies=copies, threads=threads
        )

    def _timed(
        self, module: str, load: Mapping[str, Json], python: Path, *, copies: int, threads: int
    ) -> tuple[Run, Mapping[str, Json]]:
        self._session.progress(f"{self._name}: {load.get('kernel', module)} on {copies * threads} cores")
        cores, pinned = list(self._host.cores), hasattr(os, "sched_setaffinity")

        def launch(index: int) -> Launch:
            mine = cores[index * threads : (index + 1) * threads]
            return Launch(
                python=python, handlers=COMMON_HANDLERS, module=module, cores=mine if pinned else None,
                env={**clean_environment(), **_threads(threads)},
            )  # fmt: skip

        label = f"{load.get('kernel', module)}-{copies * threads}"
        plan = Plan(
            launch=launch, load=load, reference=launch(0), folder=self._folder, spawn=self._session.spawn, name=label,
            call_deadline_s=START_S, load_deadline_s=START_S,
        )  # fmt: skip
        spec = ResourceSpec(kind="host", backend="host", provider="host", settings=FrozenMap(load=dict(load)))
        worker, reply = start_copy(plan, 0)
        model = WorkerModel(
            spec, plan, worker, reply.value,
            batch_size=1, floor=Floor(), max_workers=copies, facts={}, boot_metrics=(),
        )  # fmt: skip
        try:
            if module == "host":
                facts = worker.call("facts", deadline_s=START_S).value
                self.facts.update({name: facts[name] for name in ("numpy", "blas")})
                _check(model.outputs()["sample"], label)
            return model.throughput(seconds=self._seconds, workers=copies, warmup=1), reply.value
        finally:
            model.stop()


def _check(sample: Any, label: str) -> None:
    value, wanted = sample.tolist()
    if value != wanted:
        raise ValueError(f"{label} computed {value!r}, expected {wanted!r}: this host or its numpy cannot be trusted")


def _threads(count: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return {**dict.fromkeys(names, str(count)), "TOKENIZERS_PARALLELISM": "false"}


def _median_ns(durations: Any) -> float:
    """Of the calls that ended inside the window."""
    import numpy as np

    if not len(durations):
        raise ValueError("no call ended inside the window: make it longer")
    return float(np.median(durations))
