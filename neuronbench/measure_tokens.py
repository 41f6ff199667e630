"""Asking a served model for greedy tokens, and holding them against its weights in fp32 on this host.

The reference is made by transformers in a worker of the server's own stack, beside the server, and is kept: for the
same weights and prompts it is made once. What is right, and why a sequence is not given up where it parts from the
reference's, is in `neuronbench.accuracy.greedy`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuronbench import artifacts
from neuronbench.accuracy.compare import Comparison, compare
from neuronbench.accuracy.greedy import MISSING, TOP, Ask, Continuation, GreedyTokens, Walked, gaps, likelihoods, walk
from neuronbench.accuracy.samples import Answers, Samples
from neuronbench.environment import host_facts
from neuronbench.model import Failure, Json
from neuronbench.protocols import Endpoint, PointFailure
from neuronbench.receipts.evidence import PART, artifact_hash
from neuronbench.serving import http
from neuronbench.serving.tokens import NoTokens, continuations
from neuronbench.stacks import clean_environment
from neuronbench.worker.batches import to_tensors
from neuronbench.worker.client import Launch, Worker
from neuronbench.worker.compiled import COMMON_HANDLERS
from neuronbench.worker.references import References

if TYPE_CHECKING:
    from neuronbench.records import OpenRecord
    from neuronbench.session import Session

HANDLER: Final = "causal"
TABLE: Final = "tokens.parquet"
REFERENCE: Final = "same weights in fp32, by transformers, on this host"
_QUIET: Final = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `Measure.token_accuracy` was asked."""

    texts: Sequence[str]
    prompt_tokens: int
    output_tokens: int
    measure: GreedyTokens
    likelihoods: bool
    concurrency: int
    seed: int
    name: str = "texts"


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What is served, as far as a reference needs to know it."""

    folder: Path
    digest: str
    python: Path
    """Interpreter that can load them."""
    versions: Mapping[str, Json]

    @classmethod
    def of(cls, endpoint: Endpoint) -> Weights:
        """Raises `PointFailure` for a server that does not say which weights it has, or that another stack runs."""
        model, stack = endpoint.facts.get("model"), endpoint.facts.get("stack")
        if not isinstance(model, Mapping) or not isinstance(stack, Mapping) or not model.get("path"):
            text = "it is not known which weights this server has, so there is nothing to hold its answers against"
            raise PointFailure(
                Failure(
                    kind="no_reference", phase="check", message=text, causal_line=text,
                    cause="somebody else runs the server" if endpoint.facts.get("external") else "",
                    remedy="Let neuronbench start it (without --nb-endpoint).",
                )
            )  # fmt: skip
        return cls(
            folder=Path(str(model["path"])), digest=str(model.get("weights_digest") or ""),
            python=Path(str(stack["python"])), versions=dict(stack.get("packages") or {}),
        )  # fmt: skip


def accuracy(session: Session, opened: OpenRecord, endpoint: Endpoint, asked: Asked) -> Comparison:
    """See `Measure.token_accuracy`."""
    import numpy as np

    record = opened.record
    weights = Weights.of(endpoint)
    bench = _Bench(session, opened, endpoint, asked, weights)
    samples = bench.samples()
    reference, kept = bench.reference(samples)
    session.progress(f"{record.point.id}: {samples.count} × {asked.output_tokens} tokens of {endpoint.model}")
    walked = walk(reference["tokens"], partial(bench.ask, samples))
    protocol = bench.protocol(samples)
    candidate: dict[str, Any] = {"tokens": walked.tokens}
    judged = dict(reference)
    if asked.likelihoods:
        judged["logprobs"] = likelihoods(candidate, reference)
        # A token that was not asked for any more is wrong, but its likelihood is not.
        candidate["logprobs"] = np.where(walked.tokens == MISSING, judged["logprobs"], walked.logprobs)
    found = compare(
        Answers(samples=samples.digest, outputs=candidate, protocol=protocol, made_by=endpoint.model),
        Answers(samples=samples.digest, outputs=judged, protocol=protocol, made_by=REFERENCE),
        samples, asked.measure, seed=asked.seed,
    )  # fmt: skip
    record.add(*(each for each in found.metrics if each.key not in record.metrics))
    record.gate(*found.gates)
    record.workload.setdefault(PART, []).append(
        {
            "name": samples.name, "artifact": artifact_hash(endpoint.facts), "passed": found.passed, **found.facts,
            "kept": dict(kept), "requests": walked.requests,
        }
    )  # fmt: skip
    record.notes += [f"reference: {note}" for note in kept.get("notes", ())]
    _write(opened, walked, reference)
    return found


class _Bench:
    """One measurement: prompts, the reference, the server."""

    def __init__(
        self, session: Session, opened: OpenRecord, endpoint: Endpoint, asked: Asked, weights: Weights
    ) -> None:
        self._session, self._opened, self._endpoint = session, opened, endpoint
        self._asked, self._weights = asked, weights
        self._label = opened.record.point.id
        self._until = time.monotonic() + session.settings.deadlines.point

    def _left_s(self) -> float:
        return max(self._until - time.monotonic(), 0.1)

    def samples(self) -> Samples:
        """Prompts of exactly so many tokens: the beginnings of the texts. Raises `ValueError` for one that is short."""
        import numpy as np

        asked = self._asked
        self._session.progress(f"{self._label}: prompts")
        said = self._aside("text", "encode", {
            "folder": str(self._weights.folder), "texts": list(asked.texts), "length": asked.prompt_tokens,
        }).value  # fmt: skip
        short = [text for text, ids in zip(asked.texts, said["ids"], strict=True) if len(ids) < asked.prompt_tokens]
        if short:
            raise ValueError(f"{len(short)} texts have fewer than {asked.prompt_tokens} tokens, such as {short[0]!r}")
        protocol = {"tokenizer": said["digest"], "length": asked.prompt_tokens, "output_tokens": asked.output_tokens}
        return Samples(name=asked.name, inputs={"input_ids": np.array(said["ids"], dtype="int64")}, protocol=protocol)

    def protocol(self, samples: Samples) -> dict[str, Json]:
        measure = self._asked.measure
        settings = {f"measure.{name}": value for name, value in measure.settings().items()}
        return {**samples.protocol, "measure": measure.name, **settings, "model.weights_digest": self._weights.digest}

    def reference(self, samples: Samples) -> tuple[Mapping[str, Any], Mapping[str, Json]]:
        """Its tokens and likelihoods, and where they are from."""
        arguments = {"folder": str(self._weights.folder), "output_tokens": self._asked.output_tokens, "top": TOP}

        def compute() -> list[Mapping[str, Any]]:
            self._session.progress(f"{self._label}: the reference in fp32")
            reply = self._aside(HANDLER, "reference", arguments, inputs=samples.inputs)
            return [{name: tensor.numpy() for name, tensor in reply.tensors.items()}]

        if not self._weights.digest:
            return compute()[0], {}
        host = host_facts()
        parts: dict[str, Json] = {
            "reference": REFERENCE,
            "weights": self._weights.digest,
            "config": _digest(self._weights.folder / "config.json"),
            "output_tokens": self._asked.output_tokens,
            "top": TOP,
            "versions": {name: self._weights.versions.get(name) for name in ("torch", "transformers", "python")},
            "target": {"arch": host["host.arch"], "cpu": host["host.cpu_model"]},
            "handler": artifacts.source_digest(COMMON_HANDLERS / f"{HANDLER}.py"),
        }
        kept = References(
            cache_dir=self._session.settings.cache_dir, parts=parts,
            title=f"{self._endpoint.model} {samples.count} × {self._asked.output_tokens} greedy tokens",
        )  # fmt: skip
        found, said = kept.obtain([samples.inputs], compute, progress=self._session.progress, deadline_s=self._left_s())
        return found[0], said

    def ask(self, samples: Samples, wanted: Sequence[Ask]) -> list[Continuation]:
        """The server's continuations."""
        prompts = samples.inputs["input_ids"]
        given = [([*prompts[each.row].tolist(), *each.after], each.count) for each in wanted]
        endpoint = self._endpoint
        try:
            return list(
                continuations(
                    endpoint.base_url, endpoint.model, given, likelihoods=self._asked.likelihoods,
                    api_key=endpoint.api_key, concurrency=self._asked.concurrency, deadline_s=self._left_s(),
                )
            )  # fmt: skip
        except NoTokens as error:
            text = f"{endpoint.model} cannot be judged token by token: {error}"
            raise PointFailure(
                Failure(
                    kind="no_token_ids", phase="check", message=text, causal_line=text,
                    cause="the server is not vLLM, or too old a one",
                    remedy="Ask for likelihoods=True, which older ones answer with ids, or measure by other means.",
                )
            ) from error  # fmt: skip
        except (http.Unreachable, ValueError) as error:
            found = None if endpoint.alive() else endpoint.diagnose("check")
            text = f"the server did not continue a prompt: {error}"
            raise PointFailure(
                found or Failure(kind="generation_failed", phase="check", message=text, causal_line=text)
            ) from error

    def _aside(
        self, module: str, verb: str, arguments: Mapping[str, Json], inputs: Mapping[str, Any] | None = None
    ) -> Any:
        """Ask a handler in a worker of its own in the server's stack."""
        env = {**clean_environment(), **_QUIET}
        if hasattr(os, "sched_getaffinity"):
            env["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
        launch = Launch(python=self._weights.python, handlers=COMMON_HANDLERS, module=module, env=env)
        worker = Worker.start(
            launch, name=f"reference-{module}", folder=self._opened.folder, spawn=self._session.spawn,
            deadline_s=self._left_s(), phase="check",
        )  # fmt: skip
        try:
            return worker.call(
                verb, arguments, inputs=None if inputs is None else to_tensors(inputs), deadline_s=self._left_s(),
                phase="check", progress=lambda text: self._session.progress(f"{self._label}: {text}"),
            )  # fmt: skip
        finally:
            worker.stop()
            if worker.log.is_file() and not worker.log.stat().st_size:
                worker.log.unlink()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(opened: OpenRecord, walked: Walked, reference: Mapping[str, Any]) -> None:
    """Every token: prompt, position, what the server and what the reference chose, and how they are judged."""
    import numpy as np
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    rows, length = reference["tokens"].shape
    found = gaps({"tokens": walked.tokens}, reference)
    columns = {
        "prompt": np.repeat(np.arange(rows, dtype="int32"), length),
        "position": np.tile(np.arange(length, dtype="int32"), rows),
        "token": walked.tokens.reshape(-1),
        "logprob": arrow.array(walked.logprobs.reshape(-1), from_pandas=True),  # what was not said is null
        "reference_token": reference["tokens"].reshape(-1),
        "gap_nats": found.reshape(-1),
    }
    parquet.write_table(arrow.table(columns), opened.folder / TABLE, compression="zstd")
    opened.record.tables["tokens"] = TABLE
