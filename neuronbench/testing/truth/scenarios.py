"""Model names as scripts: `truth:stall,at=10,ms=5000` is a server that pauses five seconds at the tenth token.

The scenario travels in the model name so that any client can ask for it, also those that cannot be taught anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from neuronbench.testing.truth.script import Script

MS = 1_000_000


class ScenarioError(Exception):
    """The model name names no scenario of this server; the message says what it has."""


@dataclass(slots=True, kw_only=True)
class Context:
    """What a scenario may know beside the request.

    seen: earlier requests with the same model string; since_first_ns: time since the first of them;
    cached_share: part of the prompt that was asked before; state: kept from request to request of one model string;
    freeze, slow_accept: what happens to the whole server, for nanoseconds.
    """

    seen: int
    since_first_ns: int
    prompt_tokens: int
    cached_share: float
    state: dict[Any, Any]
    freeze: Callable[[int], None]
    slow_accept: Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A `key=value` of a scenario; its type is that of its default."""

    default: int | float | str
    meaning: str
    choices: tuple[str, ...] = ()

    def read(self, key: str, text: str) -> int | float | str:
        if self.choices and text not in self.choices:
            raise ScenarioError(f"{key}={text}: expected one of {', '.join(self.choices)}")
        try:
            return type(self.default)(text)
        except ValueError:
            raise ScenarioError(f"{key}={text}: expected {_KINDS[type(self.default)]}") from None


_KINDS = {int: "a whole number", float: "a number", str: "a word"}

Apply = Callable[[Script, dict[str, Any], Context], None]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A named way to answer."""

    name: str
    meaning: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    apply: Apply


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A model string taken apart; `values` holds every parameter of the scenario, given or by default."""

    base: str
    scenario: Scenario
    values: dict[str, Any]
    common: dict[str, float]


COMMON: dict[str, str] = {
    "ttft": "milliseconds to the first token",
    "tpot": "milliseconds from token to token",
    "tokens": "length of the answer, whatever was asked",
}


def choose(model: str, served: tuple[str, ...], table: dict[str, Scenario]) -> Chosen:
    """Take a model string apart. Raises ScenarioError when the name or a part of it is unknown."""
    base = max((name for name in served if model == name or model.startswith(name + ":")), key=len, default=None)
    if base is None:
        raise ScenarioError(f"the model `{model}` does not exist; served: {', '.join(served)}")
    words = [part.strip() for part in model[len(base) + 1 :].split(",") if part.strip()]
    names = [part for part in words if "=" not in part]
    if len(names) > 1 or (names and names[0] not in table):
        raise ScenarioError(f"no scenario {' '.join(names)!r} in {model!r}; there are: {', '.join(sorted(table))}")
    scenario = table[names[0] if names else "plain"]
    values: dict[str, Any] = {key: parameter.default for key, parameter in scenario.parameters.items()}
    common: dict[str, float] = {}
    for part in words:
        key, separator, text = part.partition("=")
        if not separator:
            continue
        if key in scenario.parameters:
            values[key] = scenario.parameters[key].read(key, text)
        elif key in COMMON:
            try:
                common[key] = float(text)
            except ValueError:
                raise ScenarioError(f"{key}={text}: expected a number") from None
        else:
            known = ", ".join((*scenario.parameters, *COMMON))
            raise ScenarioError(f"scenario {scenario.name} has no parameter {key!r}; it has: {known}")
    return Chosen(base=base, scenario=scenario, values=values, common=common)


def apply(chosen: Chosen, script: Script, context: Context) -> None:
    """Set the script as the model string says."""
    if "ttft" in chosen.common:
        script.ttft_ns = round(chosen.common["ttft"] * MS)
    if "tpot" in chosen.common:
        script.tpot_ns = round(chosen.common["tpot"] * MS)
    if "tokens" in chosen.common:
        script.tokens = int(chosen.common["tokens"])
        script.finish = "stop"
    if chosen.scenario.name != "plain":
        script.plain = False
        chosen.scenario.apply(script, chosen.values, context)
    if script.tokens < 1:
        script.plain = False
