"""The `measure` object: what a benchmark calls to measure, to check, and to record.

One `Measure` belongs to one repeat and writes into its record. It holds the order of things together (samplers before
the driver, nothing else while the window is open, reduction afterwards); the parts do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from neuronbench.model import Json, Metric
from neuronbench.protocols import CompiledModel, Endpoint, Resource, Trainer
from neuronbench.protocols import DeadlineExceeded as DeadlineExceeded  # for benchmarks that raise it
from neuronbench.recording import Recording
from neuronbench.telemetry.request import TelemetryRequest

if TYPE_CHECKING:
    from neuronbench.accuracy import Answers, Comparison, Samples
    from neuronbench.accuracy import Measure as AccuracyMeasure
    from neuronbench.audit import Audit
    from neuronbench.load.workload import Warmup
    from neuronbench.measure_device import Timed
    from neuronbench.measure_ladder import Ladder
    from neuronbench.measure_search import Found as RateFound
    from neuronbench.measure_serving import Served
    from neuronbench.measure_training import Trained
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session
    from neuronbench.training import TrainJob
    from neuronbench.weights import Shipped


class Measure(Recording):
    """Measures one repeat of one point. Made by the `measure` fixture."""

    def __init__(
        self,
        session: Session,
        opened: OpenRecord,
        *,
        telemetry: TelemetryRequest | None = None,
        slo: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(session, opened)
        self._telemetry = telemetry or TelemetryRequest()
        self._slo = dict(slo or {})
        self._discarded: list[Path] = []

    def serve(
        self,
        endpoint: Endpoint,
        arrivals: Any,
        workload: Any,
        *,
        api: Literal["completions", "chat", "responses", "embeddings", "score", "rerank"] | None = None,
        slo: Mapping[str, float] | None = None,
        warmup: Warmup | None = None,
        processes: int = 1,
    ) -> Served:
        """Send `workload` to `endpoint` as `arrivals` say and record what came of it.

        Warm-up, ramp, steady window, drain; telemetry of the server meanwhile. `api` defaults to the point's own,
        `slo` (limits per request in ms by metric id, for goodput) to that of `nb.bench`, `warmup` to one request more
        than are in flight. Several driver `processes` share one schedule; one is enough for some hundred streams.
        Raises `PointFailure` when there is no result (server gone, driver killed, deadline), after everything that
        was seen has been recorded.
        """
        from neuronbench.measure_serving import serve

        return serve(
            self._session,
            self._opened,
            endpoint,
            arrivals,
            workload,
            telemetry=self._telemetry,
            api=api or self.point.get("api") or "completions",
            slo={**self._slo, **(slo or {})},
            warmup=warmup,
            processes=processes,
        )

    def search_rate(
        self,
        endpoint: Endpoint,
        workload: Any,
        *,
        slo: Mapping[str, float],
        percentile: float = 0.99,
        start: float = 1.0,
        lowest: float = 0.05,
        highest: float = 10_000.0,
        tolerance: float = 0.1,
        most_requests: int | None = None,
        api: Literal["completions", "chat", "responses"] | None = None,
        processes: int = 1,
    ) -> RateFound:
        """Find the highest rate of Poisson arrivals at which `percentile` of the requests keep every limit of `slo`.

        `slo`: ms by metric id, such as `{"ttft": 500, "tpot": 50}`; TTFT and E2E are judged from the instant at which a
        request was due, and a failed request is beyond all limits. Rates are
        doubled or halved from `start` (requests per second) until the answer is bracketed, then bisected to a factor of
        1 + `tolerance`. Each rate takes as many requests as it needs to be decided at 99 % confidence (for p99 some 800
        at least, for p90 some 80), `most_requests` at most; an undecided one counts as not met.

        Records `max_rate_under_slo` with its bracket, the goodput there, gates of client and host in the two rates of
        the bracket (`measure_search_gates`), and every load in `search.parquet`. Raises `PointFailure` when a load has
        no result, or the client itself spoiled it twice.
        """
        from neuronbench import measure_search

        asked = measure_search.Search(
            slo=slo, percentile=percentile, start=start, lowest=lowest, highest=highest, tolerance=tolerance,
            most_requests=most_requests,
        )  # fmt: skip
        return measure_search.search_rate(
            self._session, self._opened, endpoint, workload, asked,
            telemetry=self._telemetry, api=api or self.point.get("api") or "completions", processes=processes,
        )  # fmt: skip

    def latency(self, model: CompiledModel, *, calls: int, warmup: int = 10) -> Timed:
        """Time `calls` calls of a compiled model one after the other on one copy, device finished inside the timer.

        Records percentiles with bounds, the wall per call, gates, and every call in a table. Raises `PointFailure`
        when the model fails; its workers' last words are then in the receipt.
        """
        from neuronbench import measure_device

        return measure_device.latency(
            self._session, self._opened, model, calls=calls, warmup=warmup, telemetry=self._telemetry
        )

    def throughput(self, model: CompiledModel, *, seconds: float, workers: int | None = None, warmup: int = 3) -> Timed:
        """Let `workers` copies of a compiled model (all that fit, by default) call without pauses for a window.

        Records items per second over all copies, the rate by the wall of the whole loops beside it, the latency of the
        calls under this load (unless `latency` was measured before in the same record), gates and the table of calls.
        """
        from neuronbench import measure_device

        return measure_device.throughput(
            self._session, self._opened, model, seconds=seconds, workers=workers, warmup=warmup,
            telemetry=self._telemetry,
        )  # fmt: skip

    def agreement(self, model: CompiledModel, inputs: Mapping[str, Any] | None = None) -> float:
        """Compare a compiled model's outputs with those of the same weights in fp32, not compiled, on the same inputs.

        Records `max_abs_err` over all outputs and returns it (infinite when an answer is not finite).
        """
        from neuronbench import measure_device

        return measure_device.agreement(self._opened, model, inputs)

    def accuracy(
        self,
        model: CompiledModel,
        samples: Samples,
        *,
        measure: AccuracyMeasure,
        reference: Answers | None = None,
        seed: int = 0,
    ) -> Comparison:
        """Ask a compiled model `samples`, ask its reference the same, and record whether it still answers right.

        `measure` says what is right (`neuronbench.accuracy`). The reference is the same weights in fp32, not compiled,
        on this host, unless `reference` has answers made elsewhere; those must be to the same samples under the same
        protocol, else the point fails as `incomparable` with the fields that differ. `seed` is of the bootstrap.

        Records `accuracy_ratio` with its interval, `agreement`, `accuracy` of both, errors of the tensors, a gate per
        check, and the artifact's hash: performance of that artifact stands on it.
        """
        from neuronbench import measure_accuracy

        return measure_accuracy.accuracy(
            self._session, self._opened, model, samples, measure=measure, reference=reference, seed=seed
        )

    def token_accuracy(
        self,
        endpoint: Endpoint,
        texts: Sequence[str],
        *,
        prompt_tokens: int = 32,
        output_tokens: int = 32,
        tie_nats: float | None = None,
        likelihoods: bool = False,
        concurrency: int = 8,
        seed: int = 0,
    ) -> Comparison:
        """Ask a served model for greedy tokens after the beginnings of `texts`, and record whether they are right ones.

        The reference is the same weights in fp32, by transformers on this host; it is made once and kept. A token is
        right when the reference holds it for at most `tie_nats` less likely than its own choice; where the two part the
        model is asked again from the reference's beginning, so that every token is judged. `likelihoods`: compare those
        of the tokens as well; vLLM takes half a minute to be able to tell them, once after each start.

        Records `accuracy_ratio` with its interval, `agreement`, a gate per check, every token in `tokens.parquet`, and
        the identity of weights and configuration: performance of that server stands on it. Raises `PointFailure`
        for a server whose weights are not known, or that does not say which tokens it generated.
        """
        from neuronbench import measure_tokens
        from neuronbench.accuracy.greedy import TIE_NATS, GreedyTokens

        asked = measure_tokens.Asked(
            texts=texts, prompt_tokens=prompt_tokens, output_tokens=output_tokens, likelihoods=likelihoods,
            concurrency=concurrency, seed=seed,
            measure=GreedyTokens(tie_nats=TIE_NATS if tie_nats is None else tie_nats),
        )  # fmt: skip
        return measure_tokens.accuracy(self._session, self._opened, endpoint, asked)

    def train(
        self, trainer: Trainer, job: TrainJob, *, resume: bool | Trained = False, check_loss: bool = True
    ) -> Trained:
        """Train `job` and record rates, utilisation, losses and gates; every step is in `steps.parquet`.

        `resume=True`: go on from the latest checkpoint that an interrupted run of the same point left, if there is one;
        the record says from which step, and rates are of this attempt's steps only. `resume=trained`: go on from the
        latest checkpoint of that run as if it had been cut off after it. `check_loss`: a gate that the loss falls.

        The run's checkpoints and final state are in `folder` of what is returned, until the point ends. May be called
        several times in a point; the metrics are those of the first run, and each run has its own table. Raises
        `PointFailure` when the run did not come to its end: its steps are in the receipt then, and no number is.
        """
        from neuronbench import measure_training

        return measure_training.train(
            self._session, self._opened, trainer, job, resume=resume, check_loss=check_loss, telemetry=self._telemetry,
            discard=self._discarded.append,
        )  # fmt: skip

    def same_losses(self, one: Trained, other: Trained) -> bool:
        """Record whether two runs have the same losses, to the bit; a gate says so if not (same seed, same job)."""
        from neuronbench import measure_training

        return measure_training.compare(self._opened, one, other, same=True)

    def different_losses(self, one: Trained, other: Trained) -> bool:
        """Record whether two runs have different losses; if not, what was changed between them does nothing."""
        from neuronbench import measure_training

        return measure_training.compare(self._opened, one, other, same=False)

    @contextmanager
    def lease(self, kind: str, *, beside: bool = False, **changes: Json) -> Iterator[Any]:
        """Lease a resource for a part of the point: `with measure.lease("trainer") as trainer:`.

        For benchmarks that need several, one after the other, or one that they make themselves; say which kinds with
        `nb.bench(leases=...)`, so that points are skipped where there is none. `changes` are parameters of the point
        that differ for this resource, such as `model="file:/tmp/merged"` or `world_size=2`. It stays alive for later
        leases of an equal spec until its cores are needed. The record lists all that were leased, as they were given
        back; the first of them is the record's own. `beside`: it takes none of the backend's cores, for a backend whose
        device is the host and whose work the benchmark itself keeps apart, by pinning, while it uses several at once.

        Raises `PointFailure` when this backend cannot do it, `BootError` when it does not come up.
        """
        from neuronbench import measure_handover

        with measure_handover.lease(self._session, self._opened, kind, changes, beside=beside) as resource:
            yield resource

    def ladder(
        self, values: Sequence[int], attempt: Callable[[int], Any], *, metric: str, resolution: int = 1
    ) -> Ladder:
        """Call `attempt(value)` for rising `values` until it raises `PointFailure` or `BootError`, then bisect.

        Bisecting ends when the largest value that passed and the smallest that failed are `resolution` apart; values in
        between are multiples of it above the one that passed. Records `metric` (`largest_batch`, `largest_context`)
        with the class of the failure as note, and every rung in the record's workload. A failed first rung is raised.
        """
        from neuronbench import measure_ladder

        return measure_ladder.climb(self._session, self._opened, values, attempt, id=metric, resolution=resolution)

    def ship(
        self, folder: Path, *, into: Path, store: str | None = None, files: Mapping[str, Json] | None = None
    ) -> Shipped:
        """Put the model in `folder` into a store and get it out of it as `into`; every byte is hashed on both ways.

        `store`: `s3://BUCKET/PREFIX` or a folder, which keep it; by default a folder beside `into`. `files`: what
        `folder` has to hold, as `Trainer.export` said it. Records `ship_time` and the hash of every file. Raises
        `PointFailure` with both hashes when something is not what it was.
        """
        from neuronbench import measure_handover

        place = store or str(into.with_name(f"{into.name}-store"))
        return measure_handover.ship(self._session, self._opened, folder, into=into, place=place, files=files)

    def same_weights(self, endpoint: Endpoint, shipped: Shipped) -> None:
        """Record that the server loaded what was shipped; raises `PointFailure` with both hashes if it did not."""
        from neuronbench import measure_handover

        measure_handover.same_weights(self._opened, endpoint, shipped)

    def answers(self, endpoint: Endpoint, prompts: Sequence[str], *, max_tokens: int = 32) -> list[str]:
        """What a chat model answers to single questions, greedily, one after the other; kept in `answers.jsonl`.

        Outside any window: nothing is timed. Raises `PointFailure` when an answer does not come.
        """
        from neuronbench import measure_handover

        return measure_handover.answers(self._session, self._opened, endpoint, prompts, max_tokens=max_tokens)

    def audit(self, endpoint: Endpoint, *, forbid_caching: bool = False) -> Audit:
        """Look whether a server earns its numbers: caches nobody was told of, false first tokens, tokens only counted.

        Some forty small requests, outside of any window. Records a gate each (`audit_caching`, `audit_first_token`,
        `audit_output_tokens`) and what they stand on. `forbid_caching`: prompts were promised to be computed, so a
        prefix cache is a fault even where the server says that it has one. See `neuronbench.audit`.
        """
        from neuronbench.audit import audit

        label = self.point.id
        found = audit(
            endpoint, forbid_caching=forbid_caching, deadline_s=self._session.settings.deadlines.point,
            progress=lambda text: self._session.progress(f"{label}: {text}"),
        )  # fmt: skip
        self.record.gate(*found.gates)
        answered = [gate for gate in found.gates if gate.passed is not None]
        self.metric("audits_passed", sum(gate.passed is True for gate in answered), n=len(answered))
        self.record.workload["audit"] = dict(found.facts)
        return found

    def host_floor(self, *, seconds: float = 0.5, model: str | None = None) -> dict[str, Metric]:
        """Measure what this host can do at best, each figure in a window of `seconds`; later records cite this one.

        Records memory bandwidth and matrix products over thread counts, and the rate of `model`'s tokenizer.
        """
        from neuronbench import measure_host

        return measure_host.floor(self._session, self._opened, seconds=seconds, model=model)

    def close(self) -> None:
        """Remove what was kept for the benchmark only, such as checkpoints. The `measure` fixture calls it."""
        from neuronbench.training import folders

        while self._discarded:
            folders.discard(self._discarded.pop())

    def run(self, resource: Resource | None, body: Any) -> Any:
        """Run `body()` as the measured part: inside the `measuring` hook, so that profilers see it."""
        return self._session.plugins.measuring(self.point, resource, self.record, body)
