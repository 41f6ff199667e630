"""Up and down the ladder of draft lengths: every prompt at every k, each k on a server of its own.

The baseline is k = 0 on the same stack, of the same weights, in the same session, booted between the others: every
round goes through all draft lengths, the second one backwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from neuronbench import config, models
from neuronbench.model import Failure, Json
from neuronbench.protocols import Endpoint, PointFailure
from neuronbench.serving import http
from neuronbench_spec_decode import prompts, shallow
from neuronbench_spec_decode.asking import Answer, NoTokens, ask, tokenize
from neuronbench_spec_decode.counters import Counts, Reader
from neuronbench_spec_decode.host import CpuTimes
from neuronbench_spec_decode.plan import SELF, SHALLOW, Plan
from neuronbench_spec_decode.prompts import Prompt

WARM_UPS: Final = 2
DRAFT_DEADLINE_S: Final = 600.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One answer, and what the server counted meanwhile."""

    turn: int
    k: int
    prompt: Prompt
    answer: Answer
    counted: Counts


@dataclass(kw_only=True)
class Climb:
    """All that was seen."""

    plan: Plan
    rows: list[Row] = field(default_factory=list)
    legs: list[dict[str, Json]] = field(default_factory=list)
    """Each server in the order they were used."""
    draft: dict[str, Json] = field(default_factory=dict)
    """The draft model, where there is one."""
    dtype: str = ""


def climb(measure: Any, plan: Plan, into: Climb) -> None:
    """Run all legs of `plan`; `into` has what was seen up to wherever this ends.

    Raises `PointFailure`, `BootError`, or `ValueError` for prompts that cannot be had.
    """
    asked: list[Prompt] = []
    warm: tuple[int, ...] = ()
    model: str | None = None
    known: Mapping[str, Json] = {}
    for turn, k in plan.legs:
        changes: dict[str, Json] = {}
        if k:
            assert model is not None  # the first leg is the baseline
            changes = plan.drafter.changes(k, model, point=measure.point, known=known)
        with measure.lease("endpoint", **changes) as endpoint:
            if not asked:
                known = endpoint.spec.settings
                into.dtype = str(known.get("dtype", ""))
                asked, warm = _prompts(endpoint, plan)
                model = _draft(endpoint, plan, into)
            _leg(endpoint, plan, asked, warm, into, turn=turn, k=k, deadline_s=_deadline_s())
            if plan.judged and (turn, k) == plan.legs[0]:  # no speed without it; of the baseline, whose tokens all have
                texts = [text for category in plan.categories for text in prompts.texts(category)[: plan.judged]]
                measure.token_accuracy(endpoint, texts)


def _leg(
    endpoint: Endpoint, plan: Plan, asked: list[Prompt], warm: tuple[int, ...], into: Climb, *, turn: int, k: int,
    deadline_s: float,
) -> None:  # fmt: skip
    """Every prompt once, one after the other, each between two reads of the counters."""
    reader = Reader(endpoint.metrics_url, endpoint.api_key)
    try:
        for _ in range(WARM_UPS):
            _ask(endpoint, warm, plan.output_tokens, deadline_s)
        begun = CpuTimes.now(endpoint.pids())
        for prompt in asked:
            before = reader.read()
            answer = _ask(endpoint, prompt.ids, plan.output_tokens, deadline_s)
            counted = reader.after(before, len(answer.tokens))
            into.rows.append(Row(turn=turn, k=k, prompt=prompt, answer=answer, counted=counted))
        ended = CpuTimes.now(endpoint.pids())
    finally:
        reader.close()
    into.legs.append(
        {
            "round": turn + 1, "k": k, "resource": endpoint.spec.id, "seconds": ended.at - begun.at,
            "others_cpu_pct": ended.others_pct(begun),
        }
    )  # fmt: skip


def _prompts(endpoint: Endpoint, plan: Plan) -> tuple[list[Prompt], tuple[int, ...]]:
    def encode(text: str, asked: bool) -> list[int]:
        return tokenize(endpoint, text, asked=asked, timeout_s=30.0)

    try:
        return prompts.cut(encode, categories=plan.categories, each=plan.each, tokens=plan.prompt_tokens)
    except http.Unreachable as error:
        raise _failed(endpoint, "no_tokens", f"the server did not tokenise a prompt: {error}") from error


def _draft(endpoint: Endpoint, plan: Plan, into: Climb) -> str:
    """The folder of the draft model; empty where none is needed."""
    wanted = plan.drafter.model
    if not wanted:
        return ""
    facts = endpoint.facts.get("model")
    served: Mapping[str, Any] = facts if isinstance(facts, Mapping) else {}
    if wanted == SELF or wanted.startswith(SHALLOW):
        if not served.get("path"):
            raise _failed(endpoint, "no_draft", f"{wanted}: the server does not say which weights it has")
        path, digest = Path(str(served["path"])), str(served.get("weights_digest") or "")
        into.draft = {"model": wanted, "of": served.get("reference"), "weights_digest": digest}
        if wanted == SELF:
            return str(path)
        drop = int(wanted.removeprefix(SHALLOW))
        made = shallow.obtain(
            path, digest, drop, cache_dir=config.load().cache_dir, progress=lambda text: None,
            deadline_s=DRAFT_DEADLINE_S,
        )  # fmt: skip
        into.draft |= {"key": made.key, "hit": made.hit, **made.facts}
        return str(made.folder)
    stack = endpoint.facts.get("stack")
    python = Path(str(stack["python"])) if isinstance(stack, Mapping) and stack.get("python") else None
    try:
        found = models.resolve(wanted, config.load(), python=python, deadline_s=DRAFT_DEADLINE_S)
    except models.ModelError as error:
        raise PointFailure(error.failure("boot")) from error
    into.draft = {"model": wanted, "source": found.source, "weights_digest": found.weights_digest}
    return str(found.path)


def _ask(endpoint: Endpoint, ids: tuple[int, ...], tokens: int, deadline_s: float) -> Answer:
    try:
        return ask(endpoint, ids, tokens=tokens, timeout_s=deadline_s)
    except NoTokens as error:
        raise _failed(endpoint, "no_token_ids", f"{endpoint.model} cannot be judged token by token: {error}") from error
    except (http.Unreachable, ValueError) as error:
        found = None if endpoint.alive() else endpoint.diagnose("window")
        if found is not None:
            raise PointFailure(found) from error
        raise _failed(endpoint, "generation_failed", f"the server did not answer a prompt: {error}") from error


def _failed(endpoint: Endpoint, kind: str, text: str) -> PointFailure:
    remedies = {"no_token_ids": "vLLM says them from 0.10.2 on (`return_token_ids`)."}
    return PointFailure(
        Failure(kind=kind, phase="window", message=text, causal_line=text, remedy=remedies.get(kind, ""))
    )


def _deadline_s() -> float:
    return config.load().deadlines.request
