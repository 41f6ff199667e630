"""Chat prompts of an exact length, settled with the server's own tokenizer and chat template.

The length that matters is the one after the template: a prompt of 128 tokens becomes 140 on the device. So the text is
grown and trimmed until the server's `/tokenize`, template included, counts exactly what was asked for; a prompt that
cannot be brought there is refused, never sent at another length. All of this happens while the plan is made.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

from neuronbench.load.engine import Target

_VOCABULARY: Final = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education foot boy age policy music market sense nation plan college
interest death experience effect use class control field development role effort rate heart drug show leader
light voice wife whole police mind price report decision son view town road arm value action model season
society tax director position player record paper space ground form event official matter center couple site
project activity star table need court oil situation cost industry figure street image phone data picture
practice piece land product doctor wall worker news test movie north love support technology step baby computer
type attention film
"""
_WORDS: Final = tuple(_VOCABULARY.split())

_SMALL: Final = ("a", "I", "is", "of", "to", "in", "on", "it", "at", "we", "no", "so")
_CLOSE: Final = 4
_ROUNDS: Final = 60
_THREADS: Final = 4
_TIMEOUT_S: Final = 30.0


class CannotFit(ValueError):
    """A prompt of the length asked for cannot be made on this server."""


class Tokenizer:
    """Counts chat prompts with the server's `/tokenize`. Thread-safe; one connection per thread."""

    def __init__(self, base_url: str, *, model: str, api_key: str | None = None) -> None:
        self._target = Target.parse(base_url)
        self._url, self._model, self._key = base_url, model, api_key
        self._local = threading.local()
        self._open: list[http.client.HTTPConnection] = []

    def count(self, text: str) -> int:
        """Tokens of one user message with the chat template and the generation prompt. Raises `CannotFit`."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "add_generation_prompt": True,
        }
        answer = self._post("/tokenize", body)
        count = answer.get("count")
        if not isinstance(count, int):
            tokens = answer.get("tokens")
            if not isinstance(tokens, list):
                raise CannotFit(f"{self._url}/tokenize: expected a token count, found {str(answer)[:200]}")
            count = len(tokens)
        return count

    def _post(self, path: str, body: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        for attempt in (1, 2):
            connection = self._connection()
            try:
                connection.request("POST", self._target.prefix + path, json.dumps(body), headers)
                response = connection.getresponse()
                data = response.read()
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()  # it reopens by itself
                if attempt == 2:
                    raise CannotFit(f"{self._url}{path}: {error}; exact chat prompts need it") from error
        if response.status != 200:
            raise CannotFit(
                f"{self._url}{path}: HTTP {response.status} {data[:200].decode(errors='replace')}; prompts of an exact "
                f"length for chat need this route. Use the completions API, whose prompts are token ids"
            )
        try:
            answer = json.loads(data)
        except ValueError as error:
            raise CannotFit(f"{self._url}{path}: the answer is not JSON: {data[:200]!r}") from error
        return answer if isinstance(answer, dict) else {"answer": answer}

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            host, port = self._target.host, self._target.port
            if self._target.tls:
                connection = http.client.HTTPSConnection(
                    host, port, timeout=_TIMEOUT_S, context=ssl.create_default_context()
                )
            else:
                connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
            self._local.connection = connection
            self._open.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._open:
            connection.close()


def fit_text(count: Callable[[str], int], target: int, rng: random.Random, firsts: Sequence[str], overhead: int) -> str:
    """A text that begins with one of the words `firsts` and counts exactly `target` tokens; a fixed point over `count`.

    `overhead` is what the template alone costs. Raises `CannotFit` after a bounded number of rounds.
    """
    words = [rng.choice(firsts), *rng.choices(_WORDS, k=max(target - overhead - 1, 0))]
    found = 0
    for _ in range(_ROUNDS):
        found = count(" ".join(words))
        gap = target - found
        if gap == 0:
            return " ".join(words)
        per_word = max((found - overhead) / len(words), 1.0)
        many = max(int(abs(gap) / per_word), 1)
        if abs(gap) <= _CLOSE and len(words) > 2 and rng.random() < 0.5:
            # words merge with their neighbours or split: another one in some place moves the count by a token or two
            words[rng.randrange(1, len(words))] = rng.choice(_SMALL if gap < 0 else _WORDS)
        elif gap > 0:
            words += rng.choices(_SMALL if gap <= _CLOSE else _WORDS, k=many)
        elif len(words) > many:
            del words[-many:]
        elif len(words) > 1:
            del words[1:]
        else:
            words[0] = rng.choice(firsts)
    raise CannotFit(
        f"no chat prompt of {target} tokens found in {_ROUNDS} rounds (last: {found}; the template takes {overhead}); "
        f"ask for {'more' if target <= overhead else 'another number of'} input tokens or use the completions API"
    )


class ChatFitter:
    """Makes many prompts, each of its exact length."""

    def __init__(self, base_url: str, *, model: str, api_key: str | None = None, seed: int = 0) -> None:
        self._tokenizer = Tokenizer(base_url, model=model, api_key=api_key)
        self._seed = seed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tokenizer.close()

    def fit(self, lengths: Sequence[int], warmup: int = 0) -> list[str]:
        """One text per length in tokens. The first `warmup` begin with words that the others never begin with."""
        count_tokens = self._tokenizer.count
        overhead = max(count_tokens("a") - 1, 0)
        if lengths and min(lengths) <= overhead:
            raise CannotFit(
                f"{min(lengths)} input tokens asked for, but the chat template alone takes {overhead}; "
                f"ask for at least {overhead + 1}"
            )
        reserved = len(_WORDS) // 16

        def one(index: int) -> str:
            rng = random.Random(f"{self._seed}:{index}")
            firsts = _WORDS[:reserved] if index < warmup else _WORDS[reserved:]
            return fit_text(count_tokens, lengths[index], rng, firsts, overhead)

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(one, range(len(lengths))))
