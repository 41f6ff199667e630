"""Greedy tokens of a served model beside those of its reference, each after the reference's own beginning.

Two arithmetics part sooner or later: where two tokens are all but equally likely, one of them says the one, the other
the other, and from there on they tell different stories, both right. So a sequence is not given up where it parts:
whether the token was a right one is decided there, the candidate is asked again from the reference's beginning up to
and with the reference's token, and so on to the end. Every token of the candidate is thus judged after a beginning that
the reference has judged, too, and it was made the way a served model makes tokens: by prefill, and then step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from neuronbench.accuracy.measures import Scores, output
from neuronbench.accuracy.samples import Arrays, Samples
from neuronbench.definitions import metric
from neuronbench.model import Json

if TYPE_CHECKING:
    import numpy.typing as npt

TIE_NATS: Final = 0.25
"""Up to here the arithmetic of 16 bits decides which of two tokens is the likelier one: a factor of 1.28.

SmolLM2-135M in bfloat16 says likelihoods that are off by up to 0.13 nats, so a difference of two by up to twice that;
24 of 768 greedy tokens were not those of fp32, none by more than 0.15."""
TOP: Final = 20
"""Tokens whose likelihood the reference tells at each position."""
MISSING: Final = -1
"""Stands for a token that the candidate was not asked for any more."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A continuation that is wanted: of row `row`, after `tokens` of the reference's answer, `count` more."""

    row: int
    after: Sequence[int]
    count: int


Continuation = tuple[Sequence[int], Sequence[float] | None]
"""Tokens, and the logarithms of their probabilities where the candidate says them."""


@dataclass(frozen=True, kw_only=True)
class Walked:
    """The candidate's choice at every position, and how often it was asked."""

    tokens: npt.NDArray[Any]
    """[rows, positions]; `MISSING` where it was given up."""
    logprobs: npt.NDArray[Any]
    """NaN where the candidate did not say, or was given up."""
    requests: int


def walk(reference: npt.NDArray[Any], ask: Callable[[Sequence[Ask]], Sequence[Continuation]]) -> Walked:
    """Ask for continuations until the candidate has chosen a token at every position of the reference's answers.

    `ask` gets all that are wanted at once and answers in their order. A row that parts from the reference more often
    than every fourth token is given up: what is left of it counts as wrong. Raises `ValueError` for an answer that is
    shorter than it was asked for.
    """
    import numpy as np

    rows, length = reference.shape
    tokens = np.full((rows, length), MISSING, dtype="int64")
    logprobs = np.full((rows, length), np.nan)
    at, parted, requests = [0] * rows, [0] * rows, 0
    most = max(length // 4, 4)
    while True:
        wanted = [
            Ask(row=row, after=reference[row, : at[row]].tolist(), count=length - at[row])
            for row in range(rows)
            if at[row] < length and parted[row] <= most
        ]
        if not wanted:
            return Walked(tokens=tokens, logprobs=logprobs, requests=requests)
        requests += len(wanted)
        for asked, (given, said) in zip(wanted, ask(wanted), strict=True):
            if len(given) < asked.count:
                raise ValueError(f"prompt {asked.row}: asked for {asked.count} tokens, got {len(given)}")
            for index, token in enumerate(given[: asked.count]):
                position = at[asked.row]
                tokens[asked.row, position] = token
                if said is not None:
                    logprobs[asked.row, position] = said[index]
                at[asked.row] += 1
                if token != reference[asked.row, position]:
                    parted[asked.row] += 1
                    break  # what follows is after a beginning of its own


@dataclass(frozen=True, kw_only=True)
class GreedyTokens:
    """A token is right when the reference holds it for at most `tie_nats` less likely than its own choice there.

    For the outputs of `walk` (`tokens`) and of the reference (`tokens`, `top_ids`, `top_logprobs`).
    """

    tie_nats: float = TIE_NATS
    name: str = "greedy_tokens"
    level: str = "token"

    def settings(self) -> Mapping[str, Json]:
        return {"tie_nats": self.tie_nats, "top": TOP}

    def score(self, candidate: Arrays, reference: Arrays, samples: Samples) -> Scores:
        import numpy as np

        chosen, wanted = output(candidate, "tokens"), output(reference, "tokens")
        found = gaps(candidate, reference)
        same = chosen == wanted
        right = found <= self.tie_nats
        weight = np.full(len(wanted), wanted.shape[1], dtype=float)
        whole = int(same.all(axis=1).sum())
        parted = found[~same]
        known = parted[np.isfinite(parted)]
        beyond = int((~np.isfinite(parted)).sum())
        note = f"{len(parted)} of {same.size} tokens are not the reference's, {int((right & ~same).sum())} as good as"
        note += f"; {beyond} are not among its {TOP} likeliest" if beyond else ""
        metrics = [
            metric("exact_match", whole / len(wanted), n=len(wanted)),
            metric("token_gap", float(known.max()) if len(known) else None if beyond else 0.0, stat="max", n=same.size,
                   note=note),
        ]  # fmt: skip
        return Scores(
            candidate=right.sum(axis=1).astype(float), reference=weight, weight=weight,
            same=same.sum(axis=1).astype(float), by_truth=False, metrics=metrics,
        )  # fmt: skip


def gaps(candidate: Arrays, reference: Arrays) -> npt.NDArray[Any]:
    """How much less likely the reference holds each chosen token than its own, in nats; infinite beyond its top."""
    import numpy as np

    chosen, own = output(candidate, "tokens"), output(reference, "tokens")
    ids, logprobs = output(reference, "top_ids"), np.asarray(output(reference, "top_logprobs"), dtype=float)
    if ids.shape != (*chosen.shape, ids.shape[-1]) or logprobs.shape != ids.shape:
        raise ValueError(f"expected likeliest tokens for each of {chosen.shape}, found {ids.shape}")
    found = np.where(ids == chosen[..., None], logprobs[..., :1] - logprobs, np.inf).min(axis=-1)
    return np.asarray(np.where(chosen == own, 0.0, found))


def likelihoods(candidate: Arrays, reference: Arrays) -> npt.NDArray[Any]:
    """What the reference says of the likelihood of each chosen token; of one beyond its top, that of the last in it."""
    import numpy as np

    chosen, ids = output(candidate, "tokens"), output(reference, "top_ids")
    logprobs = np.asarray(output(reference, "top_logprobs"), dtype=float)
    return np.asarray(np.where(ids == chosen[..., None], logprobs, -np.inf).max(axis=-1, initial=-np.inf)).clip(
        min=logprobs[..., -1]
    )
