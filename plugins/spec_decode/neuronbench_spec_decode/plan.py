"""What a point asks for: draft lengths, who drafts, prompts, rounds; and how a provider is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from neuronbench.model import Json, Point, closest
from neuronbench_spec_decode.prompts import CATEGORIES, texts

OWN: Final = "speculative_config"
"""A provider that has a parameter of this name is given it; any other gets it among vLLM's arguments."""
SELF: Final = "self"
SHALLOW: Final = "shallow:"


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """Who drafts: an entry of the point's `drafters`.

    `method` is vLLM's name of it, `model` a draft model: a reference, `self` (the served model drafts for itself), or
    `shallow:N` (the served model without N of its layers). `settings` are parameters of the point that are others while
    it drafts, in which `"{k}"` and `"{k+1}"` stand for numbers; all else goes into vLLM's configuration as it is.
    """

    name: str
    method: str
    model: str = ""
    settings: Mapping[str, Json] = field(default_factory=dict)
    more: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, told: Any) -> Self:
        if not isinstance(told, Mapping) or not isinstance(told.get("method"), str):
            raise ValueError(f"drafters.{name}: expected a table with a `method`, found {told!r}")
        model, settings = told.get("model", ""), told.get("settings", {})
        if not isinstance(model, str) or not isinstance(settings, Mapping):
            raise ValueError(
                f"drafters.{name}: expected `model` as text and `settings` as a table, found {dict(told)!r}"
            )
        if model.startswith(SHALLOW) and not model.removeprefix(SHALLOW).isdecimal():
            raise ValueError(
                f"drafters.{name}: expected `shallow:` and a number of layers to leave out, found {model!r}"
            )
        more = {key: value for key, value in told.items() if key not in ("method", "model", "settings")}
        return cls(name=name, method=told["method"], model=model, settings=settings, more=more)

    def config(self, k: int, model: str) -> dict[str, Json]:
        """vLLM's `--speculative-config`; `model` is the folder of the draft model, empty for none."""
        named: dict[str, Json] = {"model": model} if model else {}
        return {"method": self.method, **named, "num_speculative_tokens": k, **self.more}

    def changes(self, k: int, model: str, *, point: Point, known: Mapping[str, Json]) -> dict[str, Json]:
        """Parameters of the point that differ while `k` tokens are drafted; `known`: settings that the provider has."""
        if k == 0:
            return {}
        changed: dict[str, Json] = {}
        for name, value in self.settings.items():
            there, filled = point.get(name), _filled(value, k)
            changed[name] = {**there, **filled} if isinstance(there, Mapping) and isinstance(filled, dict) else filled
        config = self.config(k, model)
        if OWN in known:
            return {**changed, OWN: config}
        arguments = changed.pop("engine_args", None) or point.get("engine_args", {})
        return {**changed, "engine_args": {**arguments, OWN: config}}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One ladder."""

    ks: tuple[int, ...]
    """Draft lengths, rising, 0 first."""
    rounds: int
    drafter: Drafter
    categories: tuple[str, ...]
    each: int
    """Prompts of each category."""
    prompt_tokens: int
    output_tokens: int
    judged: int = 0
    """Texts of each category after which the baseline's tokens are held against its weights in fp32; 0 for none."""

    @classmethod
    def of(cls, point: Point) -> Self:
        """Read the point's parameters. Raises `ValueError` that says what was expected.

        On a command line commas part the values of an axis, so that a list is written with dashes: `ks=0-2-4`.
        """
        ks, categories = _listed(point["ks"]), _listed(point.get("categories", list(CATEGORIES)))
        if not _whole(ks, 0) or sorted({0, *ks}) != list(ks) or len(ks) < 2:
            raise ValueError(
                "ks: expected draft lengths that rise from 0, such as [0, 2, 4] in a grid or --nb-set ks=0-2-4; "
                f"found {point['ks']!r}"
            )
        if not categories or not set(categories) <= set(CATEGORIES):
            raise ValueError(f"categories: expected some of {', '.join(CATEGORIES)}, found {point['categories']!r}")
        name, drafters = point["drafter"], point["drafters"]
        if name not in drafters:
            raise ValueError(f"drafter: expected one of {', '.join(drafters)}, found {name!r}{closest(name, drafters)}")
        for key, least in (("rounds", 1), ("prompts", 1), ("prompt_tokens", 1), ("output_tokens", 2)):
            if not _whole([point[key]], least):
                raise ValueError(f"{key}: expected a whole number from {least}, found {point[key]!r}")
        most = min(len(texts(category)) for category in categories)
        if point["prompts"] > most:
            raise ValueError(f"prompts: expected 1 to {most} of each category, found {point['prompts']}")
        if not _whole([point.get("judged", 0)], 0):
            raise ValueError(f"judged: expected a whole number from 0, found {point['judged']!r}")
        return cls(
            ks=tuple(ks), rounds=point["rounds"], drafter=Drafter.of(name, drafters[name]),
            categories=tuple(categories), each=point["prompts"], prompt_tokens=point["prompt_tokens"],
            output_tokens=point["output_tokens"], judged=point.get("judged", 0),
        )  # fmt: skip

    @property
    def legs(self) -> list[tuple[int, int]]:
        """(round, k) in the order they are run: up the ladder, then down, so that a drift falls on all alike."""
        return [(turn, k) for turn in range(self.rounds) for k in (self.ks if turn % 2 == 0 else self.ks[::-1])]


def _listed(value: Any) -> Any:
    """A list that may have been written as text: `0-2-4`, `chat-repeat`; a single one as a list of it."""
    if isinstance(value, str):
        return [int(part) if part.isdecimal() else part for part in value.split("-")]
    return value if isinstance(value, Sequence) else [value]


def _whole(values: Any, least: int) -> bool:
    return isinstance(values, Sequence) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= least for value in values
    )


def _filled(value: Any, k: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _filled(each, k) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(each, k) for each in value]
    return {"{k}": k, "{k+1}": k + 1}.get(value, value) if isinstance(value, str) else value
