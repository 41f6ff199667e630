"""From words on a command line to a load: lengths, laws of arrival, traces, shared prefixes, sessions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from neuronbench.load.arrivals import Arrivals, Trace
    from neuronbench.load.workload import Lengths, Workload

LAWS: Final = ("poisson", "constant", "gamma", "burst", "ramp", "steps")
LENGTHS_HELP: Final = "exact (256), any of a range (100..500), or log-normal: lognormal:MEDIAN:SIGMA:HIGHEST"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was said. Raises `ValueError` for what contradicts itself."""

    input_tokens: str = "256"
    output_tokens: str = "128"
    law: str = "poisson"
    rate: float | None = None
    duration_s: float | None = None
    burstiness: float | None = None
    """Of gamma: the shape of its gaps, whose coefficient of variation is 1/√shape."""
    burst_size: int | None = None
    rate_end: float | None = None
    """Of a ramp."""
    rates: tuple[float, ...] = ()
    """Of steps, each for `duration_s`."""
    turns: int = 1
    think_s: float = 0.0
    trace: Path | None = None
    trace_format: str = "jsonl"
    trace_speed: float = 1.0
    prefix_tokens: int | None = None
    prefixes: int = 1
    prefix_hit_ratio: float | None = None

    def __post_init__(self) -> None:
        needs = {"gamma": ("burstiness", self.burstiness), "burst": ("burst_size", self.burst_size),
                 "ramp": ("rate_end", self.rate_end), "steps": ("rates", self.rates or None)}  # fmt: skip
        for law, (name, value) in needs.items():
            option = "--" + name.replace("_", "-")
            if self.law == law and value is None:
                raise ValueError(f"--arrivals {law} needs {option}")
            if self.law != law and value is not None:
                raise ValueError(f"{option} is for --arrivals {law}, found --arrivals {self.law}")
        if self.law != "steps" and self.rate is None and self.law != "poisson" and self.trace is None:
            raise ValueError(f"--arrivals {self.law} needs --rate")
        if self.turns > 1 and self.rate is None:
            raise ValueError("--turns needs --rate: so many sessions begin per second")
        if self.turns > 1 and self.law not in ("poisson", "constant"):
            raise ValueError(f"--turns goes with --arrivals poisson or constant, found {self.law}")
        if self.think_s and self.turns < 2:
            raise ValueError("--think-time is the pause between a session's turns: give --turns")
        if self.trace is not None and (self.rate is not None or self.rates or self.turns > 1 or self.prefixed):
            raise ValueError("--trace gives arrivals and lengths: leave --rate, --rates, --turns and prefixes out")
        if self.prefix_tokens is not None and self.prefix_hit_ratio is not None:
            raise ValueError("give either --shared-prefix or --prefix-hit-ratio")
        if self.prefixes > 1 and not self.prefixed:
            raise ValueError("--prefix-groups needs --shared-prefix or --prefix-hit-ratio")

    @property
    def prefixed(self) -> bool:
        return self.prefix_tokens is not None or self.prefix_hit_ratio is not None

    @property
    def special(self) -> bool:
        """Whether it takes more than a number in flight or a plain rate."""
        return self.law not in ("poisson", "constant") or self.turns > 1 or self.trace is not None

    def arrivals(self) -> Arrivals | None:
        """The arrivals, where they are special; None where a job says them by itself."""
        from neuronbench.load import arrivals

        if self.trace is not None:
            return self._trace()
        if not self.special:
            return None
        if self.duration_s is None:
            what = "each of the steps lasts so long" if self.law == "steps" else "the window lasts so long"
            raise ValueError(f"--arrivals {self.law} needs --duration: {what}")
        seconds = self.duration_s
        if self.turns > 1:
            law: Any = self.law
            return arrivals.sessions(
                self.rate or 0.0, turns=self.turns, think_s=self.think_s, duration_s=seconds, law=law
            )
        if self.law == "gamma":
            return arrivals.gamma(self.rate or 0.0, shape=self.burstiness or 0.0, duration_s=seconds)
        if self.law == "burst":
            return arrivals.burst(self.rate or 0.0, size=self.burst_size or 0, duration_s=seconds)
        if self.law == "ramp":
            return arrivals.ramp(self.rate or 0.0, self.rate_end or 0.0, duration_s=seconds)
        return arrivals.steps(self.rates, seconds=seconds)

    def workload(self) -> Workload | Trace | None:
        """Prompts and answers, where they are more than two fixed lengths; a trace gives them with its arrivals."""
        from neuronbench.load.workload import synthetic

        if self.trace is not None:
            return self._trace()
        given, answers = lengths("--input-tokens", self.input_tokens), lengths("--output-tokens", self.output_tokens)
        if isinstance(given, int) and isinstance(answers, int) and not self.prefixed:
            return None
        return synthetic(
            input_tokens=given, output_tokens=answers, prefixes=self.prefixes, prefix_tokens=self.prefix_tokens,
            prefix_hit_ratio=self.prefix_hit_ratio,
        )  # fmt: skip

    def _trace(self) -> Trace:
        from neuronbench.load import arrivals

        assert self.trace is not None
        form: Any = self.trace_format
        return arrivals.trace(self.trace, format=form, speed=self.trace_speed, duration_s=self.duration_s)

    def longest(self) -> tuple[int, int]:
        """Longest prompt and longest answer, in tokens."""
        pair = lengths("--input-tokens", self.input_tokens), lengths("--output-tokens", self.output_tokens)
        first, second = (each if isinstance(each, int) else each.high for each in pair)
        return first, second

    def words(self) -> str:
        """The lengths and the load in a few words; empty for what a job says by itself."""
        if self.workload() is None and not self.special:
            return ""
        parts = [] if self.trace is not None else [f"{self.input_tokens} + {self.output_tokens} tokens"]
        if self.prefixed:
            share = f"{self.prefix_tokens} tokens" if self.prefix_tokens else f"{self.prefix_hit_ratio:.0%}"
            parts.append(f"{share} shared in {self.prefixes} groups")
        if self.trace is not None:
            parts.append(f"trace {self.trace.name}")
        elif self.turns > 1:
            parts.append(f"{self.rate:g} sessions/s of {self.turns} turns")
        elif self.special:
            rates = ", ".join(f"{rate:g}" for rate in self.rates) or f"{self.rate:g}"
            parts.append(f"{self.law} arrivals, {rates} req/s" + (f" to {self.rate_end:g}" if self.rate_end else ""))
        return "; ".join(parts)


def lengths(option: str, text: str) -> int | Lengths:
    """Tokens, or how they are spread. Raises `ValueError` naming the option."""
    from neuronbench.load.workload import lognormal, uniform

    try:
        if re.fullmatch(r"\d+", text) and int(text) > 0:
            return int(text)
        if found := re.fullmatch(r"(\d+)\.\.(\d+)", text):
            return uniform(int(found[1]), int(found[2]))
        kind, *rest = text.split(":")
        if kind == "lognormal" and len(rest) == 3:
            return lognormal(float(rest[0]), float(rest[1]), high=int(rest[2]))
    except ValueError as error:
        raise ValueError(f"{option} {text!r}: {error}") from error
    raise ValueError(f"{option}: expected tokens {LENGTHS_HELP}; found {text!r}")


def rates(text: str) -> tuple[float, ...]:
    """`1,2,4` as numbers. Raises `ValueError`."""
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--rates: expected numbers like 1,2,4; found {text!r}") from None
