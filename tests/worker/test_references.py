"""Answers of references that are kept: computed once for weights and inputs, found damaged, counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench.artifacts import REFERENCES, ArtifactCache
from neuronbench.worker import references
from neuronbench.worker.references import References

INPUTS = [{"ids": np.arange(6).reshape(2, 3)}, {"ids": np.arange(6, 12).reshape(2, 3)}]
ANSWERS = [
    {"scores": np.array([[0.5, np.nan]], dtype="float32"), "half": np.array([1.5], dtype="float16")},
    {"scores": np.array([[2.5, -np.inf]], dtype="float32"), "half": np.array([2.5], dtype="float16")},
]


@pytest.fixture
def kept(tmp_path: Path) -> References:
    return References(cache_dir=tmp_path, parts={"model": {"digest": "w1"}, "task": "t"}, title="a model t 2×3 float32")


class Asked:
    """The reference model; counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> list[dict[str, Any]]:
        self.times += 1
        return ANSWERS


def same(found: Any) -> bool:
    return len(found) == len(ANSWERS) and all(
        one.keys() == other.keys()
        and all(one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes() for name in other)
        for one, other in zip(found, ANSWERS, strict=True)
    )


def test_the_same_inputs_to_the_same_weights_are_computed_once(kept: References) -> None:
    ask = Asked()
    first, said_first = kept.obtain(INPUTS, ask, deadline_s=5)
    second, said_second = kept.obtain([dict(each) for each in INPUTS], ask, deadline_s=5)
    assert ask.times == 1
    assert same(first)
    assert same(second)  # to the bit: type, NaN, infinity
    assert (said_first["cache"], said_second["cache"]) == ("miss", "hit")
    assert said_first["key"] == said_second["key"]
    journal = ArtifactCache(kept.cache_dir, "references", REFERENCES).journal()
    assert [event["event"] for event in journal] == ["miss", "published", "hit"]


CHANGES: dict[str, Callable[[References], tuple[References, Any]]] = {
    "weights": lambda kept: (replace(kept, parts={**kept.parts, "model": {"digest": "w2"}}), INPUTS),
    "task": lambda kept: (replace(kept, parts={**kept.parts, "task": "other"}), INPUTS),
    "inputs": lambda kept: (kept, [{"ids": INPUTS[0]["ids"] + 1}, INPUTS[1]]),
    "order": lambda kept: (kept, INPUTS[::-1]),
    "type": lambda kept: (kept, [{"ids": each["ids"].astype("int32")} for each in INPUTS]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_differs_is_computed_anew(kept: References, change: str) -> None:
    ask = Asked()
    kept.obtain(INPUTS, ask, deadline_s=5)
    other, inputs = CHANGES[change](kept)
    assert other.obtain(inputs, ask, deadline_s=5)[1]["cache"] == "miss"
    assert ask.times == 2


def test_damaged_answers_are_found_and_computed_anew(kept: References) -> None:
    ask = Asked()
    kept.obtain(INPUTS, ask, deadline_s=5)
    (path,) = kept.cache_dir.glob(f"references/*/{references.FILE}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found, said = kept.obtain(INPUTS, ask, deadline_s=5)
    assert ask.times == 2
    assert same(found)
    assert said["cache"] == "miss"
    assert "the reference in the cache was damaged" in said["notes"][0]
    assert "computed anew" in said["notes"][0]
    assert kept.obtain(INPUTS, ask, deadline_s=5)[1] == {**said, "cache": "hit", "notes": []}


def test_what_is_kept_is_released_and_can_be_removed(kept: References) -> None:
    kept.obtain(INPUTS, Asked(), deadline_s=5)
    cache = ArtifactCache(kept.cache_dir, "references", REFERENCES)
    (entry,) = cache.entries()
    assert (entry.title, entry.in_use) == ("a model t 2×3 float32", False)
    assert cache.remove(entry.key)


def test_a_reference_that_fails_leaves_nothing(kept: References) -> None:
    def fails() -> Any:
        raise ValueError("out of luck")

    with pytest.raises(ValueError, match="out of luck"):
        kept.obtain(INPUTS, fails, deadline_s=5)
    ask = Asked()
    _, said = kept.obtain(INPUTS, ask, deadline_s=5)
    assert "computing the same failed 1 time(s) before" in said["notes"][0]
