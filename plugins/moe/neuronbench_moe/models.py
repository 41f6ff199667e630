"""The model of an arm as a folder that servers and frameworks load: made once and kept, or somebody's own.

| parameter | default | meaning |
|---|---|---|
| `architecture` | – | a configuration of transformers (`model_type`, ...): of the mixture, whatever the arm |
| `arm` | `moe` | or `dense_active`, `dense_total`: the dense control that is derived from it |
| `weights` | `seeded` | or `dummy` (the server draws its own), or `pretrained` (of `model`) |
| `weights_seed` | 0 | what random weights are drawn from |
| `tokenizer` | – | reference of a model whose tokenizer is taken; its vocabulary must fit the architecture's |
| `model` | – | reference of a model with weights of its own, for `pretrained` |
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from neuronbench import (
    Backend,
    BootContext,
    Failure,
    Point,
    PointFailure,
    ProviderInfo,
    ResourceSpec,
    Unsupported,
    modelfiles,
)
from neuronbench import models as references
from neuronbench.artifacts import ArtifactCache, Words
from neuronbench.model import FrozenMap, Json, Metric
from neuronbench.worker.boot import Boot, without_stack
from neuronbench_moe import checks, control, seeded
from neuronbench_moe import shape as shapes

WORDS: Final = Words(title="models with random weights", noun="model", made="drawn", making="drawing")
FOLDER: Final = "moe"
FORMAT: Final = 1
WEIGHTS: Final = ("seeded", "dummy", "pretrained")
_OF_TOKENIZER: Final = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",
)  # fmt: skip
_IDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")


class ModelProvider:
    """`neuronbench.protocols.Provider` of models as folders. They hold none of the accelerator's cores."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Any) -> ResourceSpec:
        return ResourceSpec(
            kind=self.info.kind, backend=backend.info.name, provider=self.info.name, settings=_given(point), cores=0
        )

    def check(self, spec: ResourceSpec, backend: Backend, settings: Any) -> Unsupported | None:
        wrong = _wrong(spec.settings)
        if wrong:
            return Unsupported(reason=wrong)
        if spec.settings["weights"] != "pretrained" and not spec.settings["tokenizer"]:
            return None
        return without_stack(backend, "serving", settings)  # it finds the tokenizer, and serves the model later

    def boot(self, spec: ResourceSpec, context: BootContext) -> MoeModel:
        boot = Boot(spec, context)
        return boot.told(lambda: obtain(boot))


class MoeModel:
    """`neuronbench.protocols.Resource`: a folder, and what is known of the model in it."""

    def __init__(self, spec: ResourceSpec, folder: Path, config: Mapping[str, Any], facts: Mapping[str, Json]) -> None:
        self.spec, self.folder, self.config = spec, folder, config
        self.shape = shapes.of(config)
        self.facts: dict[str, Json] = {**facts, "shape": self.shape.to_json(), "folder": str(folder)}
        self.boot_metrics: Sequence[Metric] = ()
        self.logs: Sequence[Path] = ()

    def alive(self) -> bool:
        return (self.folder / "config.json").is_file()

    def pids(self) -> Sequence[int]:
        return []

    def diagnose(self, phase: str) -> Failure | None:
        if self.alive():
            return None
        text = f"{self.folder} is gone, or has no config.json any more"
        return Failure(kind="model_gone", phase=phase, message=text, causal_line=text, remedy="run the point again")

    def stop(self) -> None:
        """Nothing runs; the folder stays in the cache."""


def _given(point: Point) -> FrozenMap:
    return FrozenMap(
        architecture=point.get("architecture"), arm=str(point.get("arm") or "moe"),
        weights=str(point.get("weights") or "seeded"), weights_seed=point.get("weights_seed", 0),
        tokenizer=str(point.get("tokenizer") or ""), model=str(point.get("model") or ""),
    )  # fmt: skip


def _wrong(given: FrozenMap) -> str:
    if given["weights"] not in WEIGHTS:
        return f"weights: expected one of {', '.join(WEIGHTS)}, found {given['weights']!r}"
    if given["weights"] == "pretrained":
        if given["arm"] != "moe":
            return f"arm {given['arm']}: a dense control has no pretrained weights; take weights = 'seeded' for both"
        return "" if given["model"] else "weights pretrained: the point has no `model` whose weights they are"
    if not isinstance(given["architecture"], Mapping):
        return f"architecture: expected a table with model_type, found {given['architecture']!r}"
    seed = given["weights_seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        return f"weights_seed: expected a whole number from 0, found {seed!r}"
    try:
        config = control.config_of(given["architecture"], given["arm"])
        if given["weights"] == "seeded":
            next(seeded.names(config))
    except ValueError as error:
        return str(error)
    return ""


def obtain(boot: Boot) -> MoeModel:
    """The model that the spec names. Raises `PointFailure`."""
    given = boot.given
    if given["weights"] == "pretrained":
        return _pretrained(boot, given["model"])
    config = control.config_of(given["architecture"], given["arm"])
    tokenizer = _resolved(boot, given["tokenizer"]).path if given["tokenizer"] else None
    config = _with_ids(config, tokenizer)
    parts: dict[str, Json] = {
        "moe": FORMAT, "config": config, "weights": given["weights"], "seed": given["weights_seed"],
        "tokenizer": given["tokenizer"],
    }  # fmt: skip

    def make(folder: Path) -> Mapping[str, Json]:
        boot.context.progress(f"drawing the weights of {given['arm']}")
        return _make(folder, config, tokenizer, seed=given["weights_seed"] if given["weights"] == "seeded" else None)

    made = ArtifactCache(boot.context.settings.cache_dir, FOLDER, WORDS).obtain(
        parts,
        make,
        progress=boot.context.progress,
        deadline_s=boot.left_s(),
        title=f"{config['model_type']} {given['arm']}",
    )
    facts = {"weights": given["weights"], "seed": given["weights_seed"], "key": made.key, "hit": made.hit, **made.facts}
    return MoeModel(boot.spec, made.folder, config, facts)


def _pretrained(boot: Boot, reference: str) -> MoeModel:
    """Somebody's model. Its configuration is looked at before its weights are fetched: they may be tens of GB."""
    try:
        parsed = references.parse(reference)
    except references.ModelError as error:
        raise PointFailure(error.failure()) from error
    local = parsed.path_like or parsed.scheme == "packaged" or parsed.folder(boot.context.settings.root).is_dir()
    ahead = None if local or parsed.repo is None else modelfiles.hub_config(parsed.repo, parsed.revision)
    if ahead is not None:
        _checked(boot, ahead)
    found = _resolved(boot, reference)
    config = modelfiles.read_config(found.path)
    _checked(boot, config)
    return MoeModel(boot.spec, found.path, config, {"weights": "pretrained", "model": found.facts()})


def _checked(boot: Boot, config: Mapping[str, Any]) -> None:
    """Raise `PointFailure` for a model that cannot be counted, or that this hardware's kernels do not take."""
    try:
        wrong = checks.untileable(shapes.of(config), boot.context.backend.info.family)
    except ValueError as error:
        raise _failed("model_not_counted", str(error)) from error
    if wrong:
        raise _failed("shape_unsupported", wrong)


def _resolved(boot: Boot, reference: str) -> references.ResolvedModel:
    stack = boot.stack("serving")
    try:
        return references.resolve(
            reference, boot.context.settings, progress=boot.context.progress, python=stack.python,
            spawn=boot.context.spawn, deadline_s=boot.left_s(),
        )  # fmt: skip
    except references.ModelError as error:
        raise PointFailure(error.failure()) from error


def _with_ids(config: Mapping[str, Any], tokenizer: Path | None) -> dict[str, Any]:
    """The configuration with the tokenizer's special ids. Raises `PointFailure` where its tokens do not fit."""
    made = {"dtype": "bfloat16", "hidden_act": "silu", **config}
    if tokenizer is None:
        return made
    of_tokenizer = modelfiles.read_config(tokenizer)
    made.update({name: of_tokenizer[name] for name in _IDS if of_tokenizer.get(name) is not None})
    vocabulary = modelfiles.vocabulary(tokenizer)
    if vocabulary is not None and vocabulary.size > config["vocab_size"]:
        raise _failed(
            "vocabulary_too_small", f"the tokenizer has {vocabulary.size} tokens, vocab_size is {config['vocab_size']}"
        )
    return made


def _make(folder: Path, config: Mapping[str, Any], tokenizer: Path | None, *, seed: int | None) -> dict[str, Json]:
    for name in _OF_TOKENIZER if tokenizer is not None else ():
        if tokenizer is not None and (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
    if seed is None:
        return {"written": 0}
    written, counted = seeded.write(config, folder / "model.safetensors", seed), shapes.of(config).total
    if written != counted:
        raise AssertionError(f"{written} parameters were written and {counted} counted: the count is wrong")
    return {"written": written}


def _failed(kind: str, text: str) -> PointFailure:
    return PointFailure(Failure(kind=kind, phase="boot", message=text, causal_line=text))
