"""The scenarios, one table: name, what happens, parameters."""

from __future__ import annotations

from typing import Any

from neuronbench.testing.truth.scenarios import MS, Apply, Context, Parameter, Scenario
from neuronbench.testing.truth.script import Script

SCENARIOS: dict[str, Scenario] = {}


def _scenario(name: str, meaning: str, apply: Apply, **parameters: tuple[Any, ...]) -> None:
    SCENARIOS[name] = Scenario(
        name=name,
        meaning=meaning,
        apply=apply,
        parameters={
            key: Parameter(default=value[0], meaning=value[1], choices=value[2] if len(value) > 2 else ())
            for key, value in parameters.items()
        },
    )


def _set(**fields: Any) -> Apply:
    """A scenario that sets fields of the script; a value may be a function of the parameters."""

    def apply(script: Script, values: dict[str, Any], context: Context) -> None:
        for name, value in fields.items():
            setattr(script, name, value(values) if callable(value) else value)

    return apply


_AT = (8, "after this many chunks")


def _die(script: Script, values: dict[str, Any], context: Context) -> None:
    if context.seen >= values["after"]:
        script.ending, script.stop_at, script.exit_code = "die", values["at"], values["code"]


_scenario("plain", "a correct answer; what a bare model name gives", _set())
_scenario(
    "stall",
    "one long pause inside the answer",
    lambda script, values, context: script.pauses.update({values["at"]: round(values["ms"] * MS)}),
    at=(10, "token before which it pauses"),
    ms=(5000.0, "length of the pause"),
)
_scenario("no_done", "a complete answer without `data: [DONE]`", _set(done=False))
_scenario(
    "close",
    "the connection is closed inside the answer, in the middle of the body",
    _set(ending="close", stop_at=lambda values: values["at"]),
    at=_AT,
)
_scenario(
    "die",
    "the server process exits, as if it had been killed",
    _die,
    after=(0, "how many requests with this model string are answered before"),
    at=(0, "chunks of the fatal answer that still leave"),
    code=(1, "exit status"),
)
