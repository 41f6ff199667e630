"""vLLM as a server, whatever hardware it runs on: what points may ask of it, its command line, and what a boot needs.

A provider of one kind of hardware adds its own parameters to `COMMON`, its own words to `words`, and what must hold on
that hardware; everything else about vLLM is here, so that the same benchmark files run everywhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from neuronbench import models
from neuronbench.model import Failure, FrozenMap, Json, Point, ResourceSpec, slug
from neuronbench.protocols import Backend, BootContext, BootError, ProviderInfo, Stack, Unsupported, Vocabulary

if TYPE_CHECKING:
    from neuronbench.config import Settings

COMMON: Final[Mapping[str, Json]] = {
    "model": "",
    "served_model": None,
    "dtype": "bfloat16",
    "max_model_len": None,
    "max_num_seqs": None,
    "prefix_caching": False,
    "engine_args": {},
    "server_env": {},
}
"""Parameters of a point that every vLLM has, with their defaults; see the providers' own tables for what they mean."""
OURS: Final = frozenset({"model", "host", "port", "served_model_name", "uds"})
"""Arguments of vLLM that neuronbench decides."""
QUIET: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
}  # fmt: skip
"""Environment of every server: the weights are local by then, and nothing is told to anyone."""


def spec(
    point: Point, backend: Backend, info: ProviderInfo, defaults: Mapping[str, Json], *, cores: int = 1
) -> ResourceSpec:
    """What to serve and how; parameters that the point does not give have their `defaults` written out."""
    given = {name: point.get(name, default) for name, default in defaults.items()}
    if not given["served_model"]:
        given["served_model"] = served_name(str(given["model"]))
    return ResourceSpec(
        kind="endpoint", backend=backend.info.name, provider=info.name, settings=FrozenMap(given), cores=cores
    )


def served_name(reference: str) -> str:
    """A short name for a reference: the catalogue's, else its last part."""
    try:
        parsed = models.parse(reference)
    except models.ModelError:
        return ""
    entry = models.known(parsed.name)
    return str(entry["name"]) if entry else slug(parsed.name.rstrip("/").rpartition("/")[2])


# -- what cannot work, before anything starts


def wrong_settings(settings: FrozenMap, *, whole: tuple[str, ...] = (), ours: frozenset[str] = OURS) -> str:
    """What makes these settings impossible, in one line; empty when nothing does.

    `whole`: settings that are whole numbers from 1, or null. `ours`: arguments that `engine_args` may not set.
    """
    if not settings["model"] or not isinstance(settings["model"], str):
        return "the point has no `model` (a model reference), so there is nothing to serve"
    if not settings["served_model"]:
        return f"{settings['model']!r} is not a model reference"
    for name in ("max_model_len", "max_num_seqs", *whole):
        value = settings[name]
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            return f"{name}: expected a whole number from 1, found {value!r}"
    for name in ("engine_args", "server_env"):
        if not isinstance(settings[name], Mapping):
            return f"{name}: expected a table of names and values, found {settings[name]!r}"
    taken = sorted(ours & {argument_name(name) for name in settings["engine_args"]})
    if taken:
        return f"engine_args may not set {', '.join(taken)}: neuronbench decides that"
    return ""


def argument_name(name: str) -> str:
    """`--max-num-seqs` → `max_num_seqs`: one spelling of an argument."""
    return name.lstrip("-").replace("-", "_")


def too_long(settings: FrozenMap, project: Settings) -> Unsupported | None:
    """A verdict when `max_model_len` is above what the model was made for; None when it is not, or nobody knows."""
    length = settings["max_model_len"]
    known = models.metadata(settings["model"], project).max_model_len
    if length is None or known is None or length <= known:
        return None
    return Unsupported(
        reason=f"max_model_len {length} is above the {known} tokens that {settings['model']} was made for"
    )


def no_stack(error: LookupError) -> Unsupported:
    """The verdict when there is no interpreter for serving: one line."""
    return Unsupported(reason=" ".join(str(error.args[0]).split()))


# -- the command line


def words(stack: Stack, model: models.ResolvedModel, settings: FrozenMap) -> list[str]:
    """The beginning of vLLM's command line, the same on all hardware; `{port}` is filled in at the start."""
    return [
        str(stack.python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model.path), "--served-model-name", settings["served_model"],
        "--host", "127.0.0.1", "--port", "{port}",
        "--dtype", settings["dtype"], "--disable-uvicorn-access-log",
    ]  # fmt: skip


def flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Command-line words for arguments by name: true → `--name`, false → `--no-name`, null → nothing, a mapping →
    JSON, a list → the name and all its values."""
    for name, value in arguments.items():
        option = "--" + name.lstrip("-").replace("_", "-")
        if value is None:
            continue
        if value is True:
            yield option
        elif value is False:
            yield "--no-" + option[2:]
        elif isinstance(value, Mapping):
            yield from (option, json.dumps(dict(value), sort_keys=True))
        elif isinstance(value, list):
            yield from (option, *map(str, value))
        else:
            yield from (option, str(value))


# -- booting


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a boot begins with: an interpreter, the weights, and ids that prompts may use."""

    stack: Stack
    model: models.ResolvedModel
    vocabulary: Vocabulary | None

    @property
    def facts(self) -> dict[str, Json]:
        return {"stack": stack_facts(self.stack), "model": self.model.facts()}


def prepare(spec: ResourceSpec, context: BootContext, deadline: float) -> Prepared:
    """Find the stack and the weights. `deadline` is a monotonic instant in seconds. Raises `BootError`."""
    try:
        stack = context.backend.stack("serving", context.settings)
    except LookupError as error:
        text = str(error.args[0])
        failure = Failure(
            kind="stack_missing", phase="boot", message=text, causal_line=text.partition("\n")[0],
            cause="no Python environment here can serve",
            remedy="Run `make stack`, or give one: --nb-stack serving=PATH.",
        )  # fmt: skip
        raise BootError(failure) from error
    context.progress(f"looking up {spec.settings['model']}")
    try:
        model = models.resolve(
            spec.settings["model"],
            context.settings,
            progress=context.progress,
            python=stack.python,
            spawn=context.spawn,
            deadline_s=deadline - time.monotonic(),
        )
    except models.ModelError as error:
        raise BootError(error.failure(), facts={"stack": stack_facts(stack)}) from error
    vocabulary = model.vocabulary
    if vocabulary is not None and spec.settings["max_model_len"] is not None:
        vocabulary = replace(vocabulary, max_model_len=spec.settings["max_model_len"])
    return Prepared(stack=stack, model=model, vocabulary=vocabulary)


def stack_facts(stack: Stack) -> dict[str, Json]:
    return {"python": str(stack.python), "source": stack.source, "packages": stack.packages.to_json()}
