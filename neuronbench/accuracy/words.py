"""Word error rate: transcripts against known texts, by jiwer, with the normaliser named."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from neuronbench.accuracy.measures import Scores
from neuronbench.accuracy.samples import Arrays, Samples
from neuronbench.definitions import metric
from neuronbench.model import Json


def plain(text: str) -> str:
    """Lower case, no punctuation (an apostrophe within a word stays), single spaces; NFKC."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    text = re.sub(r"(?<!\w)'|'(?!\w)", " ", text)
    return " ".join(re.sub(r"[^\w\s']|_", " ", text).split())


NORMALISERS: Final[Mapping[str, Callable[[str], str]]] = {"plain@1": plain, "none": lambda text: " ".join(text.split())}
"""By the name that goes into the protocol."""


@dataclass(frozen=True, kw_only=True)
class WordErrors:
    """Word error rate of transcripts. Truth: the text that was spoken, per item.

    `transcripts` makes texts of outputs, such as a decoder of tokens; it is the same for candidate and reference and
    `decoding` names it in the protocol. Accuracy is 1 − WER, and the words of an utterance are drawn together.
    """

    transcripts: Callable[[Arrays], Sequence[str]] = field(compare=False)
    decoding: str
    normaliser: str = "plain@1"
    name: str = "wer"
    level: str = "word"

    def settings(self) -> Mapping[str, Json]:
        return {"decoding": self.decoding, "normaliser": self.normaliser}

    def score(self, candidate: Arrays, reference: Arrays, samples: Samples) -> Scores:
        import numpy as np

        if samples.truth is None:
            raise ValueError(f"samples {samples.name!r}: a word error rate needs the text that was spoken as truth")
        if self.normaliser not in NORMALISERS:
            raise ValueError(f"normaliser: expected one of {', '.join(NORMALISERS)}; found {self.normaliser!r}")
        clean = NORMALISERS[self.normaliser]
        spoken = [clean(str(text)) for text in samples.truth]
        if not all(spoken):
            raise ValueError(f"samples {samples.name!r}: a spoken text has no words")
        heard = [[clean(text) for text in self.transcripts(each)] for each in (candidate, reference)]
        errors = [np.array(word_errors(spoken, texts), dtype=float) for texts in heard]
        words = np.array([len(text.split()) for text in spoken], dtype=float)
        between = np.minimum(np.array(word_errors_or_all(heard[1], heard[0]), dtype=float), words)
        note = f"normaliser {self.normaliser}"
        metrics = [
            metric("wer", float(each.sum() / words.sum()), stat=stat, n=int(words.sum()), note=note)
            for each, stat in zip(errors, ("", "reference"), strict=True)
        ]
        return Scores(
            candidate=words - errors[0], reference=words - errors[1], weight=words, same=words - between,
            by_truth=True, metrics=metrics,
        )  # fmt: skip


def word_errors(spoken: Sequence[str], heard: Sequence[str]) -> list[int]:
    """Substitutions, insertions and deletions of each text; both lists are normalised."""
    import jiwer

    if len(spoken) != len(heard):
        raise ValueError(f"expected a transcript for each of {len(spoken)} texts, found {len(heard)}")
    found = []
    for one, other in zip(spoken, heard, strict=True):
        said = jiwer.process_words(one, other)
        found.append(said.substitutions + said.insertions + said.deletions)
    return found


def word_errors_or_all(spoken: Sequence[str], heard: Sequence[str]) -> list[int]:
    """The same where `spoken` may be empty: every word that was heard is then one too many."""
    counted = iter(word_errors(*zip(*pairs, strict=True)) if (pairs := _said(spoken, heard)) else [])
    return [next(counted) if one else len(other.split()) for one, other in zip(spoken, heard, strict=True)]


def _said(spoken: Sequence[str], heard: Sequence[str]) -> list[tuple[str, str]]:
    return [(one, other) for one, other in zip(spoken, heard, strict=True) if one]
