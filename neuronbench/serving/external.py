"""A server that somebody else runs, taken as it is: verified, measured, never stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from neuronbench import modelfiles
from neuronbench.definitions import metric
from neuronbench.model import Failure, Json, ResourceSpec
from neuronbench.protocols import BootContext, BootError, Vocabulary
from neuronbench.redaction import redact
from neuronbench.serving import http, ports, verify
from neuronbench.serving.server import HEALTH_TIMEOUT_S, OpenAIServer
from neuronbench.serving.vocabulary import NoVocabulary, of_server, of_tokenizer

API_KEY_VARIABLE: Final = "NEURONBENCH_API_KEY"
"""Key sent to a server that is attached to."""
VOCABULARY_TIMEOUT_S: Final = 20.0


def attach(spec: ResourceSpec, context: BootContext) -> OpenAIServer:
    """A server that already runs, at `spec.settings["url"]`, serving `spec.settings["model"]` (default: its first).

    Verified with one generation like any other; never stopped from here. Raises `BootError`.
    """
    try:
        return connect(
            spec,
            deadline_s=context.deadline_s,
            progress=context.progress,
            api_key=os.environ.get(API_KEY_VARIABLE) or None,
        )
    except NoVocabulary as problem:
        text = redact(str(problem))
        raise BootError(
            Failure(
                kind="bad_arguments",
                phase="boot",
                message=text,
                causal_line=text,
                remedy="Give --nb-tokenizer the tokenizer.json of the model that is served, or the folder it is in.",
            )
        ) from problem


def connect(
    spec: ResourceSpec,
    *,
    deadline_s: float,
    progress: Callable[[str], None],
    api_key: str | None = None,
    unlisted: bool = False,
) -> OpenAIServer:
    """As `attach`. `spec.settings["tokenizer"]` may name a tokenizer.json; raises `NoVocabulary` when it is none.

    With `unlisted` a model that the server does not list is tried all the same: gateways answer to more names than
    they tell.
    """
    deadline = time.monotonic() + deadline_s
    asked = str(spec.settings.get("url") or "")
    facts: dict[str, Any] = {"external": True, "base_url": redact(asked)}

    def left(limit: float = float("inf")) -> float:
        return max(0.001, min(limit, deadline - time.monotonic()))

    def error(kind: str, message: str, remedy: str, cause: str = "") -> BootError:
        text = redact(message)
        return BootError(
            Failure(kind=kind, phase="boot", message=text, causal_line=text, cause=cause, remedy=remedy), facts=facts
        )

    try:
        base_url = http.clean_url(asked)
        progress(f"asking {redact(base_url)} what it serves")
        served = verify.served_models(base_url, timeout_s=left(10.0), api_key=api_key)
        wanted = spec.settings.get("model")
        entry = next((entry for entry in served if wanted in (None, entry["id"])), None)
        if entry is None and unlisted and wanted:
            entry = {"id": str(wanted)}
            facts["unlisted"] = True
        if entry is None:
            raise error(
                "model_name_mismatch",
                f"{base_url} serves {', '.join(e['id'] for e in served) or 'nothing'}, not {wanted!r}",
                "Set served_model to one of the names it serves.",
            )
        model = str(entry["id"])
        progress(f"{model}: first generation")
        started = time.monotonic_ns()
        generation = verify.generate(base_url, model, timeout_s=left(), api_key=api_key)
        first_s = round((time.monotonic_ns() - started) / 1e9, 3)
    except ValueError as problem:
        raise error("bad_arguments", str(problem), "Give --nb-endpoint http://HOST:PORT.") from problem
    except http.Unreachable as problem:
        remedy = "Check that the server runs and that its address is reachable from here."
        raise error("endpoint_unreachable", str(problem), remedy) from problem
    except verify.GenerationError as problem:
        if facts.get("unlisted"):
            names = ", ".join(str(e["id"]) for e in served) or "nothing"
            raise error(
                "model_name_mismatch",
                f"{base_url} serves {names}, not {wanted!r}: {problem}",
                "Ask for one of the names it serves.",
            ) from problem
        remedy = f"Set {API_KEY_VARIABLE}." if problem.kind == "endpoint_auth" else verify.REMEDY
        raise error(problem.kind, str(problem), remedy) from problem
    return _attached(spec, base_url, entry, generation, first_s, api_key, facts)


def _attached(
    spec: ResourceSpec,
    base_url: str,
    entry: Mapping[str, Any],
    generation: verify.Generation,
    first_s: float,
    api_key: str | None,
    facts: dict[str, Json],
) -> OpenAIServer:
    def reached(path: str) -> bool:
        try:
            return http.request(base_url, path, timeout_s=HEALTH_TIMEOUT_S, api_key=api_key).status == 200
        except http.Unreachable:
            return False

    length = entry.get("max_model_len")
    vocabulary = _vocabulary(spec, base_url, entry, api_key, facts)
    if vocabulary is not None and isinstance(length, int):
        vocabulary = replace(vocabulary, max_model_len=length)
    parts = urlsplit(base_url)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    owner = ports.owner_of(parts.port or 80) if local else None
    facts.update(
        model=entry["id"],
        max_model_len=length,
        first_generation={"text": generation.text, "tokens": generation.tokens, "api": generation.api},
        pid=owner.pid if owner else None,
    )
    note = "the server was running already"
    return OpenAIServer(
        spec=spec,
        base_url=base_url,
        model=str(entry["id"]),
        facts=facts,
        boot_metrics=[metric("boot_time", None, note=note), metric("boot_first_token", first_s, n=1, note=note)],
        vocabulary=vocabulary,
        metrics_url=f"{base_url}/metrics" if reached("/metrics") else None,
        api_key=api_key,
        health="/health" if reached("/health") else "/v1/models",
        external_pid=owner.pid if owner else None,
    )


def _vocabulary(
    spec: ResourceSpec, base_url: str, entry: Mapping[str, Any], api_key: str | None, facts: dict[str, Json]
) -> Vocabulary | None:
    """Of the tokenizer that was named, of the model's folder where the server says so, of its `/tokenize`, or none."""
    root = Path(str(entry.get("root") or ""))
    if named := spec.settings.get("tokenizer"):
        facts["vocabulary"] = f"tokenizer {named}"
        return of_tokenizer(Path(str(named)))
    if root.is_absolute() and (root / "config.json").is_file() and (found := modelfiles.vocabulary(root)):
        facts["vocabulary"] = f"model folder {root}"
        return found
    try:
        found = of_server(base_url, str(entry["id"]), timeout_s=VOCABULARY_TIMEOUT_S, api_key=api_key)
    except NoVocabulary as problem:
        facts["vocabulary"] = f"unknown: {redact(str(problem))}"
        return None
    facts["vocabulary"] = f"{found.size - len(found.special_ids)} ordinary tokens by the server's /tokenize"
    return found
