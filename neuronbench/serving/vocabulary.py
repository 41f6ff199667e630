"""Token ids that prompts for a server may use, when nobody has its model's files.

A prompt given as token ids has exactly as many tokens as ids: no tokenizer has to agree with the server's. All that is
needed is a set of ordinary ids, and the server's own `/tokenize` gives one: those of harmless short words. One request
then proves that the server counts such a prompt as it was sent.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any, Final

from neuronbench import modelfiles
from neuronbench.protocols import Vocabulary
from neuronbench.serving import http

_CONSONANTS: Final = "bcdfghklmnprstvwyz"
_VOWELS: Final = "aeiou"
_LEAST_IDS: Final = 32
_PROBE_TOKENS: Final = 7
REMEDY: Final = (
    "Give --tokenizer PATH (the folder of the model's tokenizer.json), or send prompts from a file (--dataset), or use "
    "--api chat on a server with /tokenize."
)


class NoVocabulary(ValueError):
    """Prompts of an exact length cannot be made for this server; says why."""


def of_tokenizer(path: Path) -> Vocabulary:
    """Ids of ordinary tokens from a `tokenizer.json` or the folder it is in. Raises `NoVocabulary`."""
    folder = path if path.is_dir() else path.parent
    if not (folder / "tokenizer.json").is_file() or (path.is_file() and path.name != "tokenizer.json"):
        raise NoVocabulary(f"{path}: expected a tokenizer.json or a folder that has one")
    try:
        found = modelfiles.vocabulary(folder)
    except ValueError as error:
        raise NoVocabulary(str(error)) from error
    if found is None:
        raise NoVocabulary(f"{folder / 'tokenizer.json'}: it has no table of tokens")
    return found


def of_server(base_url: str, model: str, *, timeout_s: float, api_key: str | None = None) -> Vocabulary:
    """Ordinary ids by the server's `/tokenize`. Raises `NoVocabulary`."""
    deadline = time.monotonic() + timeout_s

    def tokenized(text: str, special: bool) -> dict[str, Any]:
        asked = {"model": model, "prompt": text, "add_special_tokens": special}
        answer = _post(base_url, "/tokenize", asked, deadline - time.monotonic(), api_key)
        document = answer.json()
        ids = document.get("tokens") if isinstance(document, dict) else None
        if answer.status != 200 or not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
            raise NoVocabulary(f"{base_url}/tokenize gives no token ids (status {answer.status})")
        return dict(document)

    plain = tokenized(" ".join(_words()), special=False)
    # what a text without words is made of is special: begin and end of a text
    ids = set(plain["tokens"]) - set(tokenized("", special=True)["tokens"])
    if len(ids) < _LEAST_IDS:
        raise NoVocabulary(f"{base_url}/tokenize makes only {len(ids)} different tokens of {len(_words())} words")
    length = plain.get("max_model_len")
    size = max(ids) + 1
    return Vocabulary(
        size=size,
        special_ids=tuple(token for token in range(size) if token not in ids),
        max_model_len=length if isinstance(length, int) else None,
    )


def prove(base_url: str, model: str, vocabulary: Vocabulary, *, timeout_s: float, api_key: str | None = None) -> None:
    """Send a prompt of a few ids; raises `NoVocabulary` unless the server counts exactly as many prompt tokens."""
    special = set(vocabulary.special_ids)
    ordinary = (token for token in range(vocabulary.size) if token not in special)
    prompt = list(itertools.islice(ordinary, _PROBE_TOKENS))
    asked = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = _post(base_url, "/v1/completions", asked, timeout_s, api_key)
    document = answer.json()
    usage = document.get("usage") if isinstance(document, dict) else None
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if answer.status != 200:
        raise NoVocabulary(f"{base_url} takes no prompts of token ids (status {answer.status}: {answer.text[:200]})")
    if counted != len(prompt):
        raise NoVocabulary(f"{base_url} counts {counted} prompt tokens where {len(prompt)} token ids were sent")


def _post(base_url: str, path: str, payload: dict[str, Any], timeout_s: float, api_key: str | None) -> http.Answer:
    try:
        return http.request(base_url, path, timeout_s=timeout_s, payload=payload, api_key=api_key)
    except http.Unreachable as error:
        raise NoVocabulary(str(error)) from error


def _words() -> list[str]:
    """Every syllable of consonant, vowel and perhaps another consonant: mostly tokens of their own, never special."""
    open_ones = ["".join(letters) for letters in itertools.product(_CONSONANTS, _VOWELS)]
    return open_ones + ["".join(letters) for letters in itertools.product(_CONSONANTS, _VOWELS, _CONSONANTS)]
