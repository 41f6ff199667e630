"""A parser that takes exactly the options of a vLLM: names, kinds and choices are data (`options.json`).

The data were read off the parsers of the real ones; `plugins/neuron/tools/check_parsers.py` does it again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).parent.parent / "options.json"


def versions() -> list[str]:
    """Those in the table, oldest first."""
    found = {version for rows in _table().values() for row in rows for version in row["vllm"]}
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def nearest(version: str) -> str:
    """The version of the table whose options one has: the newest that is not newer, by major and minor."""
    asked = _minor(version)
    older = [known for known in versions() if _minor(known) <= asked]
    return older[-1] if older else versions()[0]


def parser(version: str) -> argparse.ArgumentParser:
    """The parser of the vLLM of that version, or of the nearest one in the table."""
    wanted = nearest(version)
    made = argparse.ArgumentParser(prog="api_server.py", allow_abbrev=True)
    for rows in _table().values():
        for row in rows:
            if wanted in row["vllm"]:
                _add(made, row)
    return made


def _add(made: argparse.ArgumentParser, row: dict[str, Any]) -> None:
    kind, names = row["kind"], row["names"]
    positive = [name for name in names if not name.startswith("--no-")] if kind == "bool" else names
    if kind == "bool":
        made.add_argument(*(positive or names), action=argparse.BooleanOptionalAction, default=None)
    elif kind == "switch":
        made.add_argument(*names, action="store_true")
    else:
        more: dict[str, Any] = {}
        if kind in _TYPES:
            more["type"] = _TYPES[kind]
        if kind in ("values", "optional"):
            more = {"nargs": "+" if kind == "values" else "?"}
        if row.get("choices"):
            more["choices"] = [more["type"](choice) for choice in row["choices"]] if "type" in more else row["choices"]
        made.add_argument(*names, default=None, **more)


def _whole(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else int(float(text[:-1]) * {"k": 1e3, "m": 1e6}[text[-1].lower()])


def _json(text: str) -> Any:
    return json.loads(text) if text.lstrip().startswith("{") else text


_TYPES: Final[dict[str, Callable[[str], Any]]] = {"int": _whole, "float": float, "json": _json}


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def _table() -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table
