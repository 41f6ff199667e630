"""The truth server, playing a server on Neuron: sizes decide how long a request takes, and are counted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

from neuronbench.testing.truth.loop import Loop
from neuronbench.testing.truth.playback import Answer
from neuronbench.testing.truth.records import RequestRecord
from neuronbench.testing.truth.scenarios import Chosen
from neuronbench.testing.truth.service import Service
from neuronbench.testing.truth.settings import Settings

from .compiling import Compiler
from .failing import fail
from .plan import Plan
from .profiling import Capture
from .settings import Told
from .watched import Runtime

_SEQS = tuple(2**power for power in range(8))
_TOKENS = tuple(2**power for power in range(5, 15))


class Bucketed:
    """A histogram of padding by bucket."""

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self._bounds = bounds
        self._rows: dict[str, list[float]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, bucket: str, padded: float, times: float = 1.0) -> None:
        row = self._rows.setdefault(bucket, [0.0] * (len(self._bounds) + 1))
        row[bisect_left(self._bounds, padded)] += times
        self._sums[bucket] = self._sums.get(bucket, 0.0) + padded * times

    def lines(self, name: str, model: str) -> Iterable[str]:
        yield f"# TYPE {name} histogram"
        for bucket, row in sorted(self._rows.items()):
            labels = f'bucket_name="{bucket}",model_name="{model}"'
            total = 0.0
            for bound, count in zip((*map(float, self._bounds), "+Inf"), row, strict=True):
                total += count
                yield f'{name}_bucket{{{labels},le="{bound}"}} {total:.3f}'
            yield f"{name}_sum{{{labels}}} {self._sums[bucket]:.3f}"
            yield f"{name}_count{{{labels}}} {total:.3f}"


class NeuronService(Service):
    """Answers like the truth server, in the time that its compiled sizes take."""

    def __init__(
        self, settings: Settings, loop: Loop, slow_accept: Callable[[int], None], *, plan: Plan, told: Told,
        compiler: Compiler, startup_s: float, capture: Capture, runtime: Runtime,
    ) -> None:  # fmt: skip
        super().__init__(settings, loop, slow_accept)
        self.plan, self.told, self.compiler, self.startup_s = plan, told, compiler, startup_s
        self.capture, self.runtime = capture, runtime
        self.executions: dict[str, float] = {}
        self.seqs, self.batched = Bucketed(_SEQS), Bucketed(_TOKENS)
        self._answered = 0

    # -- time -------------------------------------------------------------------------------------------------------

    def _script(
        self, path: str, data: dict[str, Any], record: RequestRecord, chosen: Chosen
    ) -> tuple[Any, Any, dict[str, Any] | None]:
        if self.told.fail and self.told.fail_at == "request":
            fail(self.told.fail)
        script, generation, payload = super()._script(path, data, record, chosen)
        if generation is None or "ttft" in chosen.common:
            return script, generation, payload
        computed = sum(self._prefill(record.prompt_tokens))
        at_once = min(len(self._running) + 1, self.plan.seqs)
        edge = _edge(self.plan.decode, at_once)
        self._decode(edge, at_once, script.tokens - 1)
        script.ttft_ns += round(computed * self.told.prefill_us * 1e3)
        script.tpot_ns += round(edge * self.told.decode_us * 1e3)
        return script, generation, payload

    def _prefill(self, tokens: int) -> list[int]:
        """Sizes that a prompt takes, each counted."""
        sizes = []
        left = max(1, tokens)
        while left > 0:
            part = left if self.plan.chunk is None else min(left, self.plan.chunk)
            edge = _edge(self.plan.prefill, part + self.told.off_by_one)
            name = f"prefill_s{edge}"
            self.compiler.graph(name)
            self._ran(name, 1.0, (self.told.ttft_ms * 1e3 + edge * self.told.prefill_us) / 1e6)
            self.batched.observe(name, edge - part)
            sizes.append(edge)
            left -= part
        return sizes

    def _decode(self, edge: int, at_once: int, steps: int) -> None:
        """A step serves all that run; each of them is charged its share."""
        name = f"decode_b{edge}"
        self.compiler.graph(name)
        share = max(0, steps) / at_once
        self._ran(name, share, share * (self.told.tpot_ms * 1e3 + edge * self.told.decode_us) / 1e6)
        self.seqs.observe(name, edge - at_once, share)

    def _ran(self, name: str, times: float, seconds: float) -> None:
        """All executions of a request's steps count as one that takes `seconds`: they end together here."""
        if not self.told.idle_device:
            self.runtime.executed(seconds)
            self.executions[name] = self.executions.get(name, 0.0) + times
            self.capture.ran(name)

    def finish(self, answer: Answer, outcome: str) -> None:
        super().finish(answer, outcome)
        self._answered += 1
        if self._answered == self.told.recompile_after:
            self.compiler.graph(f"prefill_s{self.plan.prefill[-1]}_ctx{self._answered}")

    # -- metrics ----------------------------------------------------------------------------------------------------

    def exposition(self) -> str:
        """Those of the truth server, and of a native generation the plugin's own."""
        text = super().exposition()
        return text + "\n".join(self._lines()) + "\n" if self.plan.native else text

    def _lines(self) -> Iterable[str]:
        model = self.plan.served
        of = f'{{model_name="{model}"}}'
        yield f"vllm_neuron:startup_time_seconds{of} {self.startup_s:.3f}"
        yield f"vllm_neuron:model_load_time_seconds{of} {self.told.load_s:.3f}"
        yield f"vllm_neuron:model_load_size_bytes{of} 1.606e+10"
        for name, seconds in sorted(self.compiler.seconds.items()):
            labels = f'{{bucket_name="{name}",model_name="{model}"}}'
            yield f"vllm_neuron:compilation_time_seconds{labels} {max(seconds, 0.01):.3f}"
        for name, count in sorted(self.executions.items()):
            labels = f'{{bucket_name="{name}",model_name="{model}"}}'
            yield f"vllm_neuron:neff_execution_count_total{labels} {count:.3f}"
        yield from self.seqs.lines("vllm_neuron:num_seqs_padding", model)
        yield from self.batched.lines("vllm_neuron:num_batched_tokens_padding", model)


def _edge(edges: tuple[int, ...], count: int) -> int:
    index = bisect_left(edges, count)
    return edges[min(index, len(edges) - 1)]
