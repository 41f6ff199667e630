"""The plan: everything that is decided before the clock starts, as a folder the driver maps into memory.

Bodies are encoded to bytes here and never touched again. The plan's digest covers the bodies and the index, the
arrivals and the API: equal digests mean that two runs sent the same bytes by the same rule, so it is the workload's
identity.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from neuronbench.load.apis import APIS
from neuronbench.load.arrivals import ClosedLoop
from neuronbench.load.layout import PLAN_COLUMNS
from neuronbench.load.prompts import PromptSource, encode_ids
from neuronbench.load.workload import Synthetic, Warmup
from neuronbench.model import Json, canonical_json, jsonable
from neuronbench.protocols import Vocabulary

PLAN_VERSION: Final = 1
DEFAULT_REQUESTS: Final = 100
"""Requests of a closed loop that was given neither a number nor a duration."""
_FASTEST_TOKEN_S: Final = 0.002
_FASTEST_REQUEST_S: Final = 0.01
"""For the number of bodies of a timed window: no server is expected to answer faster than this."""
_MAX_BODIES: Final = 200_000
_MAX_BLOB_BYTES: Final = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan on disk."""

    folder: Path
    digest: str
    """Identity of the workload."""
    info: Mapping[str, Json]
    """`plan.json`."""

    @property
    def api(self) -> str:
        return str(self.info["api"])

    @property
    def model(self) -> str:
        return str(self.info["model"])

    @property
    def count(self) -> int:
        return int(self.info["count"])

    @property
    def warmup_count(self) -> int:
        return int(self.info["warmup"]["count"])

    @property
    def arrivals(self) -> Mapping[str, Json]:
        arrivals: Mapping[str, Json] = self.info["arrivals"]
        return arrivals

    def column(self, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A column of the index, warm-up bodies first."""
        return np.fromfile(self.folder / f"{name}.i64", dtype="<i8")

    def describe(self) -> dict[str, Json]:
        """For the record: identity, what was asked, how it is sent."""
        return {"digest": self.digest, **{key: value for key, value in self.info.items() if key != "version"}}

    @classmethod
    def open(cls, folder: Path) -> Plan:
        info = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        return cls(folder=folder, digest=info["digest"], info={k: v for k, v in info.items() if k != "digest"})


@dataclass(kw_only=True)
class Bodies:
    """Encoded requests with what is expected of them; one row per body."""

    bodies: list[bytes]
    input_tokens: Sequence[int]
    """Exact prompt length in tokens, -1 unknown."""
    output_tokens: Sequence[int]
    """Exact answer length in tokens, -1 unknown."""
    distinct: bool = True
    """No two prompts are equal."""


def closed_loop_bodies(arrivals: ClosedLoop, output_tokens: int, body_bytes: int) -> tuple[int, str]:
    """How many distinct bodies a closed loop gets, and by which rule.

    With a number of requests: that number, and four times the concurrency for ramp, hand-over and tail. With a
    duration: as many as the fastest server imaginable could answer in it, up to a cap; a run that uses them up starts
    over with the first, and its record says how often.
    """
    slots = arrivals.concurrency
    if arrivals.duration_s is None:
        requests = arrivals.requests or DEFAULT_REQUESTS
        return requests + 4 * slots, "requests + 4 × concurrency"
    fastest = _FASTEST_REQUEST_S + output_tokens * _FASTEST_TOKEN_S
    wanted = math.ceil(1.5 * slots * (arrivals.duration_s + 10) / fastest)
    cap = max(min(_MAX_BODIES, _MAX_BLOB_BYTES // max(body_bytes, 1)), 4 * slots)
    return min(wanted, cap), "upper bound by duration, capped" if wanted > cap else "upper bound by duration"


def make_plan(
    folder: Path,
    *,
    arrivals: ClosedLoop,
    workload: Synthetic,
    api: str,
    model: str,
    vocabulary: Vocabulary | None = None,
    warmup: Warmup | None = None,
    seed: int = 0,
    extra_body: Mapping[str, Json] | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
) -> Plan:
    """Write the plan into `folder` (made if needed, must hold no plan yet) and return it.

    `base_url` is only needed where lengths have to be settled with the server's own tokenizer (chat prompts).
    Raises `ValueError` for what cannot be planned: lengths beyond the model's context, an unknown API, a vocabulary
    that is missing where token-id prompts need one.
    """
    if api not in APIS:
        raise ValueError(f"api: expected one of {', '.join(APIS)}, found {api!r}")
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "plan.json").exists():
        raise FileExistsError(f"{folder} already holds a plan; a plan is never rewritten")
    warm = Warmup() if warmup is None else warmup
    in_flight = arrivals.concurrency
    warm_count = in_flight + 1 if warm.requests is None else warm.requests
    estimate = 8 * workload.input_tokens + 300
    count, rule = closed_loop_bodies(arrivals, workload.output_tokens, estimate)
    if vocabulary is not None and vocabulary.max_model_len is not None:
        needed = workload.input_tokens + workload.output_tokens
        if needed > vocabulary.max_model_len:
            raise ValueError(
                f"{workload.input_tokens} input + {workload.output_tokens} output tokens = {needed} do not fit the "
                f"model's context of {vocabulary.max_model_len}; ask for less or serve it with a longer context"
            )
    common = request_body(api, model, workload.output_tokens, extra_body)
    seed = seed + 1_000_003 * workload.seed
    sets = synthetic_sets(
        api,
        workload,
        common,
        (warm_count, count),
        vocabulary=vocabulary,
        seed=seed,
        base_url=base_url,
        model=model,
        api_key=api_key,
    )
    described: dict[str, Json] = {"kind": "closed", **asdict(arrivals), "in_flight": in_flight, "rate": None}
    if arrivals.duration_s is None and arrivals.requests is None:
        described["requests"] = DEFAULT_REQUESTS
    return write_plan(
        folder,
        sets=sets,
        arrivals=described,
        api=api,
        model=model,
        workload={"kind": "synthetic", **asdict(workload)},
        seed=seed,
        exact=bool(common.get("ignore_eos")),
        rule=rule,
    )


def request_body(api: str, model: str, output_tokens: int, extra: Mapping[str, Json] | None) -> dict[str, Json]:
    """All of a request but its prompt."""
    body: dict[str, Json] = {"model": model}
    if APIS[api].generates:
        limit = "max_output_tokens" if api == "responses" else "max_tokens"
        body |= {"temperature": 0, limit: output_tokens, "stream": True}
        if api != "responses":
            body |= {"min_tokens": output_tokens, "ignore_eos": True, "stream_options": {"include_usage": True}}
    return body | dict(extra or {})


def synthetic_sets(
    api: str,
    workload: Synthetic,
    common: Mapping[str, Json],
    counts: tuple[int, int],
    *,
    vocabulary: Vocabulary | None,
    seed: int,
    base_url: str | None,
    model: str,
    api_key: str | None,
) -> tuple[Bodies, Bodies]:
    """Warm-up set and load of a synthetic workload."""
    if api == "chat":
        from neuronbench.load.chatfit import ChatFitter

        if base_url is None:
            raise ValueError("chat prompts of an exact length are settled with the server's /tokenize: give base_url")
        with ChatFitter(base_url, model=model, api_key=api_key, seed=seed) as fitter:
            texts = fitter.fit(workload.input_tokens, sum(counts), warmup=counts[0])
        bodies = [orjson.dumps({**common, "messages": [{"role": "user", "content": text}]}) for text in texts]
        parts = (bodies[: counts[0]], bodies[counts[0] :])
        return tuple(  # type: ignore[return-value]
            Bodies(
                bodies=part,
                input_tokens=[workload.input_tokens] * len(part),
                output_tokens=[workload.output_tokens] * len(part),
                distinct=len(set(texts)) == len(texts),
            )
            for part in parts
        )
    if api != "completions":
        raise ValueError(f"synthetic prompts: expected api completions or chat, found {api!r}")
    if vocabulary is None:
        raise ValueError(
            "prompts of an exact length are drawn as token ids: the model's vocabulary is needed, found None"
        )
    source = PromptSource(vocabulary, seed)
    opening = orjson.dumps(common)[:-1] + b',"prompt":'
    sets = []
    for part, count in zip(("warmup", "load"), counts, strict=True):
        prompts, distinct = source.draw([workload.input_tokens] * count, part) if count else ([], True)
        sets.append(
            Bodies(
                bodies=[opening + encode_ids(ids) + b"}" for ids in prompts],
                input_tokens=[workload.input_tokens] * count,
                output_tokens=[workload.output_tokens] * count,
                distinct=distinct,
            )
        )
    return sets[0], sets[1]


def write_plan(
    folder: Path,
    *,
    sets: tuple[Bodies, Bodies],
    arrivals: Mapping[str, Json],
    api: str,
    model: str,
    workload: Mapping[str, Json],
    seed: int,
    exact: bool,
    rule: str,
    columns: Mapping[str, Sequence[int]] | None = None,
    extra: Mapping[str, Json] | None = None,
) -> Plan:
    """Write bodies, index and `plan.json`. `columns` gives columns of the load's index that its bodies do not."""
    folder.mkdir(parents=True, exist_ok=True)
    warm, load = sets
    if not load.bodies:
        raise ValueError("the plan has no request; ask for at least one")
    digest = hashlib.blake2b(digest_size=16)
    lengths = np.array([len(body) for body in (*warm.bodies, *load.bodies)], dtype="<i8")
    ends = np.cumsum(lengths)
    with (folder / "bodies.bin").open("wb") as file:
        for body in (*warm.bodies, *load.bodies):
            file.write(body)
            digest.update(body)
    given = dict(columns or {})
    index = {
        "offset": ends - lengths,
        "length": lengths,
        "input_tokens": np.array([*warm.input_tokens, *load.input_tokens], dtype="<i8"),
        "output_tokens": np.array([*warm.output_tokens, *load.output_tokens], dtype="<i8"),
    }
    for name in PLAN_COLUMNS:
        if name not in index:
            column = np.full(len(lengths), -1, dtype="<i8")
            if name in given:
                column[len(warm.bodies) :] = given[name]
            index[name] = column
        index[name].astype("<i8").tofile(folder / f"{name}.i64")
        digest.update(index[name].tobytes())
    known = index["input_tokens"][len(warm.bodies) :]
    info: dict[str, Json] = {
        "version": PLAN_VERSION,
        "api": api,
        "model": model,
        "arrivals": jsonable(dict(arrivals)),
        "workload": jsonable(dict(workload)),
        "seed": seed,
        "count": len(load.bodies),
        "count_rule": rule,
        "distinct": load.distinct,
        "warmup": {"count": len(warm.bodies), "disjoint": True},
        "exact_output": exact,
        "exact_input": bool((known >= 0).all()),
        "body_bytes": int(lengths.sum()),
        **dict(extra or {}),
    }
    digest.update(canonical_json({key: info[key] for key in ("version", "api", "arrivals", "exact_output")}).encode())
    info = {"digest": digest.hexdigest(), **info}
    temporary = folder / "plan.json.tmp"
    temporary.write_text(json.dumps(info, indent=1), encoding="utf-8")
    temporary.replace(folder / "plan.json")
    return Plan.open(folder)
