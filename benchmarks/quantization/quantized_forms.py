"""Forms of quantisation as points name them, what a server of one is seen to hold and to say, and whether it changed
anything at all beside the unquantised server of the same session."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import int8_weights

import neuronbench as nb
from neuronbench import config
from neuronbench.compare.effect import no_effect_gate
from neuronbench.model import Json
from neuronbench.serving import http
from neuronbench.serving.tokens import Continuation, NoTokens, continuations

MEMORY: Final = ("weights_size", "kv_bytes_per_token")
WITNESSES: Final = ("greedy tokens", "bytes of a token in the KV cache")
"""What the server itself says, and quantisation cannot leave as it is. Not the digest of the weights: other files are
given to it, and whether it computes with what is in them is the question."""
DRIFT_LIMIT: Final = 0.10
PROBES, PROBE_INPUT, PROBE_OUTPUT = 4, 48, 32
"""Prompts of random tokens that every server continues, one after the other: where text is sure of its next token,
noise is not, so that small changes of the arithmetic show."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One of a point's `options`: which parameters differ from the unquantised server's.

    `weights = "int8"`: the weights are quantised by `int8_weights`. `shrinks`: which memory must be less (`MEMORY`).
    The point's `refused` says why one is not tried on its backend.
    """

    name: str
    parameters: Mapping[str, Json] = field(default_factory=dict)
    weights: str = ""
    shrinks: str = ""
    refused: str = ""

    @classmethod
    def of(cls, point: nb.Point) -> Option:
        """Raises `ValueError` for a name that is not among the options, or an option that is none."""
        options, name = point.get("options") or {}, point["option"]
        if name not in options:
            raise ValueError(f"option: expected one of {', '.join(options)}, found {name!r}")
        given = dict(options[name])
        made = cls(
            name=name, weights=str(given.pop("weights", "")), shrinks=str(given.pop("shrinks", "")),
            refused=str((point.get("refused") or {}).get(name, "")), parameters=given,
        )  # fmt: skip
        if made.weights not in ("", "int8"):
            raise ValueError(f"options.{name}.weights: expected 'int8', found {made.weights!r}")
        if made.shrinks not in ("", *MEMORY):
            raise ValueError(f"options.{name}.shrinks: expected one of {', '.join(MEMORY)}, found {made.shrinks!r}")
        return made

    @property
    def plain(self) -> bool:
        """Whether it is no quantisation: the baseline, or the baseline once more."""
        return not self.parameters and not self.weights

    def changes(self, point: nb.Point, base: Seen | None) -> dict[str, Json]:
        """Parameters of its server; tables are added to those of the point."""
        made: dict[str, Json] = {}
        for name, value in self.parameters.items():
            there = point.get(name)
            both = isinstance(value, Mapping) and isinstance(there, Mapping)
            made[name] = {**there, **value} if both else value
        if self.weights:
            assert base is not None  # only the plain ones go without
            made["model"] = f"file:{self._quantised(base)}"
            made["served_model"] = f"{base.served}-int8"
        return made

    def _quantised(self, base: Seen) -> Path:
        if not base.model.get("path"):
            raise failed("no_weights", "the unquantised server does not say where its weights are")
        source, digest = Path(str(base.model["path"])), str(base.model.get("weights_digest") or "")
        try:
            made = int8_weights.obtain(
                source, digest, cache_dir=config.load().cache_dir, progress=lambda text: None, deadline_s=1800.0
            )
        except ValueError as error:
            raise failed("not_quantisable", str(error)) from error
        return made.folder


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of one server. What it does not say is None."""

    served: str
    model: Mapping[str, Any]
    """Of its facts: where the weights are, and their digest."""
    answers: tuple[tuple[int, ...], ...]
    """Greedy tokens after the probes."""
    weights_size: int | None
    kv_bytes_per_token: float | None
    values: Mapping[str, float | None] = field(default_factory=dict)
    """Of the record, by key: what is set beside the other server's."""
    against: tuple[str, ...] = ()
    """Gates that spoke against its record: a ratio with it is worth no more."""

    def pairs(self, other: Seen) -> dict[str, tuple[Any, Any]]:
        """What an option may change, here and in `other`. Times and RSS are not: noise changes them."""
        return {
            "greedy tokens": (_digest(self.answers), _digest(other.answers)),
            "bytes of a token in the KV cache": (self.kv_bytes_per_token, other.kv_bytes_per_token),
            "digest of the weights": (self.model.get("weights_digest"), other.model.get("weights_digest")),
        }

    def changed(self, other: Seen) -> float:
        """Share of greedy tokens that are not `other`'s, from where the two part."""
        total = sum(map(len, self.answers))
        same = 0
        for mine, theirs in zip(self.answers, other.answers, strict=True):
            same += next(
                (at for at, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]), len(mine)
            )
        return 1 - same / total


def look(endpoint: nb.Endpoint, point: nb.Point, *, deadline_s: float = 300.0) -> Seen:
    """Ask the probes, and read what the server's start told. Raises `PointFailure`."""
    told = endpoint.facts.get("model")
    model: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    folder = Path(str(model["path"])) if model.get("path") else None
    files = [folder / name for name in model.get("files") or ()] if folder else []
    return Seen(
        served=endpoint.model,
        model=model,
        answers=tuple(tuple(ids) for ids, _ in _continue(endpoint, deadline_s)),
        weights_size=sum(path.stat().st_size for path in files) if files else None,
        kv_bytes_per_token=kv_bytes(endpoint.facts, endpoint.spec.settings.get("kv_cache_gib")),
    )


def kv_bytes(facts: Mapping[str, Any], gib: Any) -> float | None:
    """Bytes of the KV cache / the tokens that the server says fit into it; None for one that does not say."""
    readings = facts.get("readings")
    text = str(readings.get("kv_cache_tokens", "")) if isinstance(readings, Mapping) else ""
    tokens = int(text.replace(",", "")) if text.replace(",", "").isdigit() else 0
    return gib * (1 << 30) / tokens if tokens and isinstance(gib, int) else None


def _continue(endpoint: nb.Endpoint, deadline_s: float) -> list[Continuation]:
    vocabulary = endpoint.vocabulary
    if vocabulary is None:
        raise failed("no_vocabulary", f"{endpoint.model}: which token ids its prompts may have is not known")
    special = set(vocabulary.special_ids)
    draw = random.Random(20)
    ordinary = [token for token in range(vocabulary.size) if token not in special]
    prompts = [(draw.sample(ordinary, PROBE_INPUT), PROBE_OUTPUT) for _ in range(PROBES)]
    try:
        return continuations(
            endpoint.base_url, endpoint.model, prompts, likelihoods=False, api_key=endpoint.api_key, concurrency=1,
            deadline_s=deadline_s,
        )  # fmt: skip
    except NoTokens as error:
        raise failed("no_token_ids", f"{endpoint.model} does not say which tokens it generates: {error}") from error
    except (http.Unreachable, ValueError) as error:
        found = None if endpoint.alive() else endpoint.diagnose("check")
        raise (nb.PointFailure(found) if found else failed("generation_failed", str(error))) from error


def judged_by(endpoint: nb.Endpoint, base: Seen) -> nb.Endpoint:
    """The same server, to be held against the *unquantised* weights: its own would agree with their own rounding."""
    twin = copy.copy(endpoint)
    twin.facts = {**endpoint.facts, "model": base.model}
    return twin


def gates(option: Option, seen: Seen, base: Seen) -> list[nb.Gate]:
    """Whether the option changed anything, and the memory it is for; of the baseline once more, that it did not."""
    if option.plain:
        return [_control(seen, base)]
    found = no_effect_gate(option.name, base.pairs(seen), witnesses=WITNESSES)
    made = [replace(found, severity="invalid")]
    if option.shrinks:
        made.append(_shrinks(option.shrinks, getattr(base, option.shrinks), getattr(seen, option.shrinks)))
    return made


def _shrinks(what: str, before: float | None, after: float | None) -> nb.Gate:
    if before is None or after is None:
        why = f"{what} was not told by one of the servers: nothing is known of what the option saves"
        return nb.Gate(id="memory_saved", passed=None, severity="provisional", message=why)
    return nb.Gate(
        id="memory_saved", passed=after < before, observed=after / before, limit=1.0, unit="of the unquantised",
        severity="invalid", message=f"{what}: {before:.6g} unquantised, {after:.6g} with the option",
    )  # fmt: skip


def _control(seen: Seen, base: Seen) -> nb.Gate:
    same = seen.answers == base.answers
    return nb.Gate(
        id="control_unchanged", passed=same, observed=seen.changed(base), limit=0.0, unit="share of tokens",
        severity="provisional",
        message="" if same else "the same server answers otherwise when it is started again: what an option changes "
        "may be chance",
    )  # fmt: skip


def against(gates: Iterable[nb.Gate]) -> tuple[str, ...]:
    """Ids of the gates that failed."""
    return tuple(gate.id for gate in gates if gate.passed is False and gate.severity != "info")


def clean(base: Seen) -> nb.Gate:
    """Whether the record of the unquantised server may be set beside anything."""
    text = f"gates speak against the unquantised server's record, so against ratios with it: {', '.join(base.against)}"
    return nb.Gate(
        id="baseline_clean", passed=not base.against, severity="provisional", message=text if base.against else ""
    )


def drift(ratio: float | None) -> nb.Gate:
    """Of the baseline once more: how far its rate is from the first time's; a gain below that is none."""
    if ratio is None:
        return nb.Gate(id="drift", passed=None, severity="provisional", message="a rate is missing")
    return nb.Gate(
        id="drift", passed=abs(ratio - 1) <= DRIFT_LIMIT, observed=abs(ratio - 1), limit=DRIFT_LIMIT, unit="share",
        severity="provisional",
        message="the unquantised server's own rate moved this far in one session: no ratio is known better than that",
    )  # fmt: skip


def failed(kind: str, text: str, remedy: str = "") -> nb.PointFailure:
    return nb.PointFailure(nb.Failure(kind=kind, phase="check", message=text, causal_line=text, remedy=remedy))


def _digest(answers: tuple[tuple[int, ...], ...]) -> str:
    return hashlib.sha256(repr(answers).encode()).hexdigest()[:16]


__all__ = ["Option", "Seen", "against", "clean", "drift", "failed", "gates", "judged_by", "kv_bytes", "look"]
