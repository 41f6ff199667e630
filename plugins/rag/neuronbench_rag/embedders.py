"""From texts to vectors: a compiled model with its tokenizer, a served model, or a hash of words for tests.

All give vectors of length 1 as float32. Each says what it is, and how much its vectors change with padding that should
not count: an embedder that does not mind its attention mask answers quickly, and wrongly.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from neuronbench import Endpoint, Failure, PointFailure
from neuronbench.model import Json
from neuronbench.serving import http
from neuronbench_rag.metrics import words

if TYPE_CHECKING:
    from neuronbench.protocols import CompiledModel
    from neuronbench_rag.tokenizer import Tokenizer

PADDING_LIMIT: Final = 1e-3
"""Of 1 − cosine; 16-bit arithmetic stays below it, a mask that is ignored goes beyond 0.01."""
REQUEST_S: Final = 60.0
LONG: Final = " ".join(["the quay is long and the water is deep"] * 12)
"""Beside a short text it makes a server pad."""


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """Vectors of texts, one row each."""

    vectors: Any
    tokens: Sequence[Any] | None = None
    """Vectors of the tokens of each text, special ones left out; None where the embedder has none to give."""
    device_ns: int | None = None
    """Of the calls, on the worker's clock."""


class Embedder(Protocol):
    """What the pipeline needs."""

    is_model: bool
    """False: its vectors come from no model, and nothing that is measured with it may be quoted."""
    facts: Mapping[str, Json]

    def embed(self, texts: Sequence[str]) -> Embedded:
        """May be called by several threads; they wait for each other where there is one model copy."""

    def padding_error(self, texts: Sequence[str]) -> float:
        """Largest 1 − cosine of vectors of a text whose padding differs."""


def unit(vectors: Any) -> Any:
    """Rows brought to length 1. Raises `PointFailure` for a row that has no direction."""
    rows = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    if not np.isfinite(rows).all() or (lengths == 0).any():
        text = "the embedder answered with NaN, infinity or a vector of zeros"
        raise PointFailure(Failure(kind="non_finite_output", phase="window", message=text, causal_line=text))
    return rows / lengths


def apart(one: Any, other: Any) -> float:
    """Largest 1 − cosine of rows of length 1, in double precision."""
    return float(np.max(1.0 - np.sum(np.asarray(one, "f8") * np.asarray(other, "f8"), axis=-1), initial=0.0))


class CompiledEmbedder:
    """A model compiled for a fixed shape. A text is cut at its length; what a batch has free repeats its first text.

    Of the family `embedding` the device pools; of the family `encoder` this process does (mean over real tokens), and
    has the tokens' vectors as well.
    """

    is_model = True

    def __init__(self, model: CompiledModel, tokenizer: Tokenizer) -> None:
        self._model, self._tokenizer, self._lock = model, tokenizer, threading.Lock()
        self._specs = {spec.kind: spec for spec in model.inputs}
        wrong = sorted(spec.name for spec in model.inputs if spec.kind not in ("token_ids", "attention_mask", "zeros"))
        if "token_ids" not in self._specs or wrong:
            raise ValueError(
                f"{model.spec.id}: expected a model of tokens and mask, found {', '.join(wrong) or 'none'}"
            )
        self._batch, self._length = self._specs["token_ids"].shape
        self.truncated = 0
        told = model.facts.get("model")
        self.facts = {
            "kind": "compiled", "model": told if isinstance(told, Mapping) else None, "batch_size": self._batch,
            "sequence_length": self._length, "tokenizer": tokenizer.facts["digest"],
        }  # fmt: skip

    def embed(self, texts: Sequence[str]) -> Embedded:
        said = self._tokenizer.encode(texts, self._length)
        self.truncated += said["truncated"]
        return self._run(said["ids"], said["special"], padding=None)

    def padding_error(self, texts: Sequence[str]) -> float:
        """The length is compiled in, so all texts are padded: other tokens are put into the padding."""
        said = self._tokenizer.encode(texts, self._length)
        plain = self._run(said["ids"], said["special"], padding=None).vectors
        chance = np.random.default_rng(0)
        spec = self._specs["token_ids"]
        noise = chance.integers(max(spec.low, 1), spec.high, size=self._length)
        return apart(plain, self._run(said["ids"], said["special"], padding=noise).vectors)

    def _run(self, ids: Sequence[Sequence[int]], special: Sequence[Sequence[int]], *, padding: Any) -> Embedded:
        vectors, tokens, device_ns = [], [], 0
        for at in range(0, len(ids), self._batch):
            rows = list(ids[at : at + self._batch])
            filled = rows + [rows[0]] * (self._batch - len(rows))
            inputs = self._inputs(filled, padding)
            with self._lock:
                called = self._model.call(inputs)
                answer = called.outputs
            device_ns += called.duration_ns
            if "embedding" in answer:
                vectors.append(answer["embedding"][: len(rows)])
                continue
            hidden = np.asarray(answer["last_hidden_state"], dtype=np.float32)
            for row, (one, marks) in enumerate(zip(rows, special[at : at + self._batch], strict=True)):
                real = hidden[row, : len(one)]
                vectors.append(real.mean(axis=0, keepdims=True))
                text = [place for place, mark in enumerate(marks[: len(one)]) if not mark]
                tokens.append(unit(real[text or [0]]))
        return Embedded(vectors=unit(np.concatenate(vectors)), tokens=tokens or None, device_ns=device_ns)

    def _inputs(self, rows: Sequence[Sequence[int]], padding: Any) -> dict[str, Any]:
        made = {}
        for kind, spec in self._specs.items():
            values = np.zeros(spec.shape, dtype=spec.dtype)
            if kind == "token_ids":
                values[:] = self._tokenizer.padding if padding is None else padding
            for row, ids in enumerate(rows):
                if kind == "token_ids":
                    values[row, : len(ids)] = ids
                elif kind == "attention_mask":
                    values[row, : len(ids)] = 1
            made[spec.name] = values
        return made


class EndpointEmbedder:
    """A served model behind `/v1/embeddings`; `batch` texts go into a request."""

    is_model = True

    def __init__(self, endpoint: Endpoint, *, batch: int = 8) -> None:
        self._endpoint, self._batch = endpoint, batch
        self.facts: Mapping[str, Json] = {
            "kind": "endpoint", "model": endpoint.facts.get("model"), "served_as": endpoint.model, "batch_size": batch,
        }  # fmt: skip

    def embed(self, texts: Sequence[str]) -> Embedded:
        parts = [self._ask(texts[at : at + self._batch]) for at in range(0, len(texts), self._batch)]
        return Embedded(vectors=unit(np.concatenate(parts)))

    def padding_error(self, texts: Sequence[str]) -> float:
        """Each text by itself, and beside a long one, to whose length a server that pads has to bring it."""
        alone = unit(np.concatenate([self._ask([text]) for text in texts]))
        beside = unit(np.concatenate([self._ask([text, LONG])[:1] for text in texts]))
        return apart(alone, beside)

    def _ask(self, texts: Sequence[str]) -> Any:
        payload = {"model": self._endpoint.model, "input": list(texts), "encoding_format": "float"}
        data = post(self._endpoint, "/v1/embeddings", payload).get("data")
        try:
            rows = [entry["embedding"] for entry in sorted(data or (), key=lambda entry: entry["index"])]
            vectors = np.asarray(rows, dtype=np.float32)
        except (TypeError, KeyError, ValueError):
            rows, vectors = [], np.zeros((0, 0), dtype=np.float32)
        if len(rows) != len(texts) or vectors.ndim != 2:
            text = f"/v1/embeddings: expected {len(texts)} vectors of one length, found {str(data)[:200]!r}"
            raise PointFailure(Failure(kind="generation_failed", phase="window", message=text, causal_line=text))
        return vectors


class HashingEmbedder:
    """Words and their letters hashed to signed places: the same everywhere, and no model. For tests of the pipeline.

    `ignores_mask`: its padding, to `length` words, counts as words, as with a model that was traced without a mask.
    """

    is_model = False

    def __init__(self, dimension: int = 256, *, length: int = 64, ignores_mask: bool = False) -> None:
        self._dimension, self._length, self._ignores_mask = dimension, length, ignores_mask
        self.facts: Mapping[str, Json] = {"kind": "hashing", "dimension": dimension, "ignores_mask": ignores_mask}

    def embed(self, texts: Sequence[str]) -> Embedded:
        return self._embed(texts, "[pad]")

    def padding_error(self, texts: Sequence[str]) -> float:
        return apart(self._embed(texts, "[pad]").vectors, self._embed(texts, "noise").vectors)

    def _embed(self, texts: Sequence[str], padding: str) -> Embedded:
        tokens = []
        for text in texts:
            found = words(text)[: self._length] or ["nothing"]
            if self._ignores_mask:
                found += [padding] * (self._length - len(found))
            tokens.append(np.stack([self._word(word) for word in found]))
        return Embedded(vectors=unit(np.stack([rows.sum(axis=0) for rows in tokens])), tokens=[unit(r) for r in tokens])

    def _word(self, word: str) -> Any:
        marked = f"<{word}>"
        vector = np.zeros(self._dimension, dtype=np.float32)
        for part in {marked, *(marked[at : at + 4] for at in range(len(marked) - 3))}:
            digest = hashlib.blake2b(part.encode(), digest_size=5).digest()
            # rare parts weigh more: short words are mostly grammar
            vector[int.from_bytes(digest[:4], "big") % self._dimension] += (1 if digest[4] & 1 else -1) * len(
                word
            ) ** 0.5
        return vector if vector.any() else vector + 1


def post(endpoint: Endpoint, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON that a server answers with. Raises `PointFailure` for anything else."""
    try:
        answer = http.request(endpoint.base_url, path, payload=payload, api_key=endpoint.api_key, timeout_s=REQUEST_S)
    except http.Unreachable as error:
        found = None if endpoint.alive() else endpoint.diagnose("window")
        text = str(error)
        failure = Failure(kind="generation_failed", phase="window", message=text, causal_line=text)
        raise PointFailure(found or failure) from error
    body = answer.json()
    if answer.status != 200 or not isinstance(body, Mapping):
        text = f"{path}: expected JSON with status 200, found status {answer.status}: {answer.text[:300]!r}"
        raise PointFailure(Failure(kind="generation_failed", phase="window", message=text, causal_line=text))
    return body
