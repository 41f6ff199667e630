"""A second look at what was found: late interaction by token vectors, a served cross-encoder, or a seeded shuffle.

No weights of a cross-encoder come from PyPI, so the one that runs without a hub is late interaction (MaxSim, Khattab
and Zaharia 2020) over the token vectors of the embedder, which was not trained for it. The shuffle is a negative test:
what it does to quality has to be found.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from neuronbench import Endpoint, Failure, PointFailure
from neuronbench.model import Json
from neuronbench_rag.embedders import Embedded, post

NAMES: Final = ("none", "maxsim", "endpoint", "seeded")


class Reranker(Protocol):
    """Orders candidates anew."""

    is_model: bool
    facts: Mapping[str, Json]

    def order(self, question: str, embedded: Embedded, candidates: Sequence[str]) -> list[str]:
        """The ids in `candidates`, best first. May be called by several threads."""


class MaxSim:
    """For each token of the question the nearest token of the passage; the sum of their cosines.

    The passages' token vectors are kept in memory from when they were embedded, as late interaction does.
    """

    is_model = True

    def __init__(self, ids: Sequence[str], tokens: Sequence[Any] | None) -> None:
        if tokens is None:
            raise ValueError("maxsim: the embedder gives no token vectors; a compiled model of the family encoder does")
        self._tokens = dict(zip(ids, tokens, strict=True))
        held = sum(rows.nbytes for rows in self._tokens.values())
        self.facts: Mapping[str, Json] = {"kind": "maxsim", "token_vectors_bytes": held}

    def order(self, question: str, embedded: Embedded, candidates: Sequence[str]) -> list[str]:
        assert embedded.tokens is not None
        asked = embedded.tokens[0]
        score = {id: float((asked @ self._tokens[id].T).max(axis=1).sum()) for id in candidates}
        return sorted(candidates, key=lambda id: -score[id])


class ServedReranker:
    """A cross-encoder behind `/v1/rerank`."""

    is_model = True

    def __init__(self, endpoint: Endpoint, passages: Mapping[str, str]) -> None:
        self._endpoint, self._passages = endpoint, passages
        self.facts: Mapping[str, Json] = {"kind": "endpoint", "model": endpoint.facts.get("model")}

    def order(self, question: str, embedded: Embedded, candidates: Sequence[str]) -> list[str]:
        documents = [self._passages[id] for id in candidates]
        payload = {"model": self._endpoint.model, "query": question, "documents": documents}
        results = post(self._endpoint, "/v1/rerank", payload).get("results")
        try:
            best = sorted(results or (), key=lambda entry: -float(entry["relevance_score"]))
            found = [candidates[int(entry["index"])] for entry in best]
        except (TypeError, KeyError, ValueError, IndexError):
            found = []
        if sorted(found) != sorted(candidates):
            text = f"/v1/rerank: expected a score for each of {len(candidates)} documents, found {str(results)[:200]!r}"
            raise PointFailure(Failure(kind="generation_failed", phase="window", message=text, causal_line=text))
        return found


class Shuffle:
    """Seeded chance. It looks at nothing, and is there to be found out."""

    is_model = False

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.facts: Mapping[str, Json] = {"kind": "seeded", "seed": seed}

    def order(self, question: str, embedded: Embedded, candidates: Sequence[str]) -> list[str]:
        shuffled = list(candidates)
        random.Random(f"{self._seed} {question}").shuffle(shuffled)
        return shuffled


def bootstrap(differences: Sequence[float], *, resamples: int = 2000, seed: int = 1234) -> tuple[float, float]:
    """Limits of the mean of paired differences at 95 %, by resampling them."""
    values = np.asarray(differences, dtype=float)
    chance = np.random.default_rng(seed)
    means = np.sort(values[chance.integers(0, len(values), size=(resamples, len(values)))].mean(axis=1))
    return float(means[int(0.025 * resamples)]), float(means[int(0.975 * resamples) - 1])
