"""Prometheus text under vLLM's names, from what was really done."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """A Prometheus histogram of seconds."""

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> Iterable[str]:
        total = 0
        yield f"# TYPE {name} histogram"
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum!r}"
        yield f"{name}_count{{{labels}}} {total}"


class Counters:
    """Totals since the server started; nothing resets them but a new process."""

    def __init__(self, model: str) -> None:
        escaped = model.replace("\\", r"\\").replace('"', r"\"")
        self._labels = f'model_name="{escaped}",engine="0"'
        self._started = time.time()
        self.prompt_tokens = 0
        # Tokens of finished requests; those in progress are added when asked.
        self.generation_tokens = 0
        self.finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.cache_queries = 0
        self.cache_hits = 0
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.accepted_per_position: list[int] = []
        self.queue_time = Histogram()
        self.first_token = Histogram()
        self.end_to_end = Histogram()

    def accept(self, drafted: int, accepted: int) -> None:
        """Count one draft of which the first `accepted` tokens were kept."""
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted_tokens += accepted
        while len(self.accepted_per_position) < drafted:
            self.accepted_per_position.append(0)
        for position in range(accepted):
            self.accepted_per_position[position] += 1

    def text(self, *, running: int, waiting: int, kv_usage: float, generating: int) -> str:
        """The exposition; `generating` is the number of tokens sent so far by unfinished requests."""
        labels = self._labels
        lines: list[str] = []

        def one(name: str, kind: str, value: float) -> None:
            lines.append(f"# TYPE {name} {kind}")
            lines.append(f"{name}{{{labels}}} {value}")

        one("vllm:num_requests_running", "gauge", running)
        one("vllm:num_requests_waiting", "gauge", waiting)
        one("vllm:kv_cache_usage_perc", "gauge", kv_usage)
        one("vllm:prompt_tokens_total", "counter", self.prompt_tokens)
        one("vllm:generation_tokens_total", "counter", self.generation_tokens + generating)
        one("vllm:num_preemptions_total", "counter", 0)
        one("vllm:prefix_cache_queries_total", "counter", self.cache_queries)
        one("vllm:prefix_cache_hits_total", "counter", self.cache_hits)
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in self.finished.items():
            lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}')
        lines += self.queue_time.lines("vllm:request_queue_time_seconds", labels)
        lines += self.first_token.lines("vllm:time_to_first_token_seconds", labels)
        lines += self.end_to_end.lines("vllm:e2e_request_latency_seconds", labels)
        if self.drafts:  # vLLM has these only with speculative decoding on
            one("vllm:spec_decode_num_drafts_total", "counter", self.drafts)
            one("vllm:spec_decode_num_draft_tokens_total", "counter", self.draft_tokens)
            one("vllm:spec_decode_num_accepted_tokens_total", "counter", self.accepted_tokens)
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f"# TYPE {name} counter")
            for position, count in enumerate(self.accepted_per_position):
                lines.append(f'{name}{{{labels},position="{position}"}} {count}')
        lines.append("# TYPE process_start_time_seconds gauge")
        lines.append(f"process_start_time_seconds {self._started}")
        return "\n".join(lines) + "\n"
