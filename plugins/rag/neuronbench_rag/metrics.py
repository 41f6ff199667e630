"""Quality of a ranking and of an answer, each by its formula: no judge, no model, standard library only."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_THOUSANDS = re.compile(r"(?<=\d)[,\u202f\u00a0 '](?=\d{3}\b)")
_ARTICLES = frozenset({"a", "an", "the"})

SAME: Final = 1e-6
"""Distances this close are the same one: float32 in the server."""


def recall(ranked: Sequence[str], grades: Mapping[str, int], k: int) -> float:
    """Relevant passages among the first `k` / the lesser of `k` and the relevant ones there are.

    Raises `ValueError` for a question without any: its recall is not 0 but not defined.
    """
    relevant = {passage for passage, grade in grades.items() if grade > 0}
    if not relevant or k < 1:
        raise ValueError(f"recall: expected relevant passages and k from 1, found {len(relevant)} and {k}")
    return len(relevant.intersection(ranked[:k])) / min(k, len(relevant))


def ndcg(ranked: Sequence[str], grades: Mapping[str, int], k: int) -> float:
    """Discounted cumulative gain of the first `k` / that of the best order, with gains 2^grade − 1.

    Järvelin and Kekäläinen (2002) with the exponential gain of Burges et al. (2005). A passage that is ranked twice
    counts where it comes first.
    """
    best = sorted(grades.values(), reverse=True)
    ideal = _dcg(best[:k])
    if ideal == 0:
        raise ValueError("nDCG: expected a passage with a grade above 0, found none")
    return _dcg([grades.get(passage, 0) for passage in list(dict.fromkeys(ranked))[:k]]) / ideal


def _dcg(grades: Sequence[int]) -> float:
    return sum(float(2**grade - 1) / math.log2(rank + 1) for rank, grade in enumerate(grades, start=1))


def reciprocal_rank(ranked: Sequence[str], grades: Mapping[str, int]) -> float:
    """1 / rank of the first relevant passage; 0 when there is none."""
    for rank, passage in enumerate(ranked, start=1):
        if grades.get(passage, 0) > 0:
            return 1 / rank
    return 0.0


def words(text: str) -> list[str]:
    """Words and numbers, without case, accents and punctuation; `1,500` is the number 1500."""
    plain = unicodedata.normalize("NFKD", _THOUSANDS.sub("", text)).casefold()
    return _WORD.findall("".join(mark for mark in plain if not unicodedata.combining(mark)))


def is_exact(answer: str, accepted: Sequence[str], question: str = "") -> bool:
    """Whether `answer` has one of `accepted` in it as whole words.

    A number has to be the first one of the answer that the question does not name itself: an answer that tries one
    number after another, or copies all passages, is none.
    """
    found = words(answer)
    named = {word for word in words(question) if _number(word)}
    numbers = [word for word in found if _number(word) and word not in named]
    for text in accepted:
        wanted = words(text)
        if not wanted:
            continue
        if len(wanted) == 1 and _number(wanted[0]):
            first = numbers[0] if numbers else next((word for word in found if _number(word)), None)
            if first == wanted[0]:
                return True
        elif any(found[at : at + len(wanted)] == wanted for at in range(len(found) - len(wanted) + 1)):
            return True
    return False


def is_match(answer: str, accepted: Sequence[str]) -> bool:
    """Whether the whole answer is an accepted one, but for case, punctuation, accents and articles."""
    found = [word for word in words(answer) if word not in _ARTICLES]
    return any(found == [word for word in words(text) if word not in _ARTICLES] for text in accepted)


def _number(word: str) -> bool:
    return word[0].isdigit()


def mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def share_found(near: Sequence[float], true: Sequence[float], k: int) -> float:
    """Of the `k` nearest, those that the index gave: what is no farther than the k-th is one of them."""
    if not true:
        raise ValueError("exact search found nothing: the collection is empty")
    limit = true[min(k, len(true)) - 1] + SAME
    return sum(distance <= limit for distance in near[:k]) / min(k, len(true))
