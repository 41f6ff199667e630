"""From the tables beside this file to rows."""

from __future__ import annotations

import csv
import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

from neuronbench.catalog.published.rows import Published
from neuronbench.model import FrozenMap, Json

FILES: Final = (
    "encoder.csv", "seq2seq.csv", "decoder.csv", "vision.csv", "training.csv", "llmperf.csv", "tutorials.csv",
    "guidellm.csv", "contrib.csv",
)  # fmt: skip
OWN: Final = "own."
"""Columns with figures that keep the source's name."""


@functools.cache
def rows() -> tuple[Published, ...]:
    """Every published row, in the order of the files."""
    return tuple(_row(entry, file) for file in FILES for entry in table(file))


def table(name: str) -> list[dict[str, str]]:
    """Lines of a table of this folder."""
    text = (resources.files(__package__ or __name__) / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@functools.cache
def _kinds() -> Mapping[str, str]:
    """Field → how its text becomes a value."""
    hints = typing.get_type_hints(Published)
    found = {}
    for each in dataclasses.fields(Published):
        hint = hints[each.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        found[each.name] = next((kind.__name__ for kind in (bool, int, float) if kind in members), "str")
    return found


def _row(entry: Mapping[str, str], file: str) -> Published:
    kinds = _kinds()
    values: dict[str, Any] = {}
    own: dict[str, Json] = {}
    for column, text in entry.items():
        if text == "":
            continue
        if column.startswith(OWN):
            own[column.removeprefix(OWN)] = _own(text)
        elif column not in kinds:
            raise ValueError(f"{file}: column {column!r} is no field of a row; a figure of its own is called own.NAME")
        elif kinds[column] == "bool":
            values[column] = text == "yes"
        else:
            values[column] = {"int": int, "float": float, "str": str}[kinds[column]](text)
    return Published(
        **values, own=FrozenMap(own), throughput_decimals=len(entry.get("throughput", "").partition(".")[2])
    )


def _own(text: str) -> Json:
    try:
        return float(text)
    except ValueError:
        return text
