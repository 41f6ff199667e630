"""What must be equal for two results to be compared, and what differs when it is not.

A protocol is flat: name of a field → its value as canonical JSON. The names are those that `--allow` takes:

* `backend.*`, `host.*`, `stack.*`, `env.*`: the facts of which the environment key is made
  (`neuronbench.environment.is_comparable`), `env.NEURON_CC_FLAGS` among them
* `resource.*`: all that was asked of the server, the compiled model or the trainer, `resource.compiler_flags` among it;
  `model.*` which weights that gave, `artifact.*` what the compiler was told
* `workload.*`: the load, with the digest of the requests that were sent
* `benchmark.source`: the benchmark's own code
* `params.*`, `definition`, `provenance`: found when points, metrics and sets are matched
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from neuronbench.environment import is_comparable
from neuronbench.model import Json, canonical_json

MISSING: Final = "null"
"""A field that is not there reads as null: the two say the same."""

CONTEXT: Final = (
    "git.commit", "git.branch", "git.dirty", "harness.neuronbench", "harness.python", "host.id", "host.kernel",
    "host.container", "host.governor", "host.memory_gib", "env.NEURONBENCH_LOAD_NODES",
)  # fmt: skip

_WHERE_ONLY: Final = frozenset({"url", "base_url", "host", "port", "endpoint", "tokenizer", "cache_dir"})
"""Settings of a resource that say where it is, not what it is."""
_MODEL: Final = ("weights_digest", "revision", "weights", "seed", "dtype")
_ARTIFACT: Final = ("flags", "env", "handler", "compiler")
_SERVING: Final = (
    "api", "model", "arrivals", "workload", "warmup", "exact_output", "exact_input", "distinct", "slo", "engine",
)  # fmt: skip
_LOOP: Final = ("workers", "batch_size", "inputs", "warmup_calls")
_FLOOR: Final = ("cores", "array_bytes", "matrix", "window_s")
_OWN: Final = frozenset(
    {*_SERVING, "digest", "loops", "training", "window", "epoch", "failures", "client_error", "checks", "published",
     "host_floor", "source", "count", "seed", "body_bytes"}
)  # fmt: skip
"""Parts of a workload that are known here; of others, such as a plugin's, the digests count."""
_DIGEST: Final = re.compile(r"(?:^|_)(?:digest|hash|sha256)$")


@dataclass(frozen=True, kw_only=True, eq=False)
class Protocol:
    """Field → canonical JSON. One object per distinct content, so that equal ones are the same."""

    fields: Mapping[str, str]

    def get(self, name: str) -> str:
        return self.fields.get(name, MISSING)


def plain(value: Json) -> str:
    """Canonical JSON, fast."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # a whole number of more than 64 bits
        return canonical_json(value)


def flat(value: Json, prefix: str) -> Iterator[tuple[str, str]]:
    """Nested objects as dotted names; anything else as its canonical JSON. What is null or empty is left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{prefix}.{key}" if prefix else str(key))
    elif value is not None and value != "" and value != []:
        yield prefix, plain(value)


def of_environment(facts: Mapping[str, Json]) -> dict[str, str]:
    """The facts that the environment key is made of."""
    return {name: plain(value) for name, value in facts.items() if value is not None and is_comparable(name)}


def context_of(facts: Mapping[str, Json]) -> dict[str, Json]:
    return {name: facts[name] for name in CONTEXT if facts.get(name) is not None}


def of_resource(spec: Mapping[str, Json], facts: Mapping[str, Json]) -> dict[str, str]:
    """What was asked of the resource, and which weights and compiler settings that came to."""
    found = dict(flat({key: value for key, value in spec.items() if key not in _WHERE_ONLY}, "resource"))
    model, artifact, env = facts.get("model"), facts.get("artifact"), facts.get("env")
    if isinstance(model, Mapping):
        found.update(flat({key: model.get(key) for key in _MODEL}, "model"))
    parts = artifact.get("parts") if isinstance(artifact, Mapping) else None
    if isinstance(parts, Mapping):
        found.update(flat({key: parts.get(key) for key in _ARTIFACT}, "artifact"))
    if isinstance(env, Mapping):
        told = {key: value for key, value in env.items() if is_comparable(f"env.{key}")}
        found.update(flat(told, "resource.env"))
    return found


def identity_of(workload: Mapping[str, Json]) -> dict[str, Json]:
    """What says which load it was, without what was seen while it ran and without the digest of its requests."""
    chosen: dict[str, Json] = {key: workload[key] for key in _SERVING if key in workload}
    for name, keep in (("loops", _LOOP), ("host_floor", _FLOOR)):
        part = workload.get(name)
        for index, item in enumerate(part if isinstance(part, list) else [part]):
            if isinstance(item, Mapping):
                where = f"{name}.{index}" if isinstance(part, list) and len(part) > 1 else name
                chosen[where] = {key: item.get(key) for key in keep}
    jobs = workload.get("training")
    jobs = jobs if isinstance(jobs, list) else []
    for index, item in enumerate(jobs):
        if isinstance(item, Mapping):
            where = f"training.{index}" if len(jobs) > 1 else "training"
            job = item.get("job")
            chosen[where] = {k: v for k, v in job.items() if k != "digest"} if isinstance(job, Mapping) else job
            chosen[f"{where}.data"] = dict(_digests(item.get("data")))
    chosen.update(_digests({key: value for key, value in workload.items() if key not in _OWN}))
    return chosen


def of_workload(identity: Mapping[str, Json]) -> dict[str, str]:
    return dict(flat(identity, "workload"))


def _digests(value: Json, name: str = "") -> Iterator[tuple[str, Json]]:
    """Whatever in `value` is named as a digest, at any depth."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _digests(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _digests(item, f"{name}.{index}")
    elif isinstance(value, str) and _DIGEST.search(name.rpartition(".")[2]):
        yield name, value


# --------------------------------------------------------------------------------------------------------------------
# differences


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A field of the protocol that the two sides do not share."""

    field: str
    base: str
    head: str
    allowed: str = ""
    """Why it is compared in spite of it: the pattern of `--allow`, or the axis that brings it about."""

    def __str__(self) -> str:
        return f"{self.field}: {self.base} → {self.head}"

    def to_json(self) -> dict[str, Any]:
        return {"field": self.field, "base": self.base, "head": self.head, "allowed": self.allowed}


def matches(field: str, pattern: str) -> bool:
    """Whether `--allow pattern` means a field: its name, a part of it up to a dot (`stack`), or a glob (`stack.v*`)."""
    return field == pattern or field.startswith(pattern + ".") or fnmatch.fnmatchcase(field, pattern)


def allowed_by(field: str, patterns: Sequence[str]) -> str:
    return next((pattern for pattern in patterns if matches(field, pattern)), "")


def short(values: Iterable[str], limit: int = 48) -> str:
    """Values of one side in words: `null` is `none`, several are joined, long ones are cut."""
    told = sorted({"none" if value == MISSING else value.strip('"') for value in values}) or ["none"]
    text = " and ".join(told)
    return text if len(text) <= limit else text[: limit - 1] + "…"
