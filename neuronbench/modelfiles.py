"""What a model's folder says about itself: configuration, vocabulary, weight files and their digests.

Everything is read from JSON and from the headers of safetensors files; no tokenizer, no framework. Damaged weight
files are found here, in milliseconds, instead of a minute into a server's start.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from neuronbench.model import fingerprint
from neuronbench.protocols import Vocabulary

WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".onnx", ".neff", ".pt2")
_NOT_WEIGHTS: Final = ("training_args.bin", "optimizer.", "scheduler.", "rng_state", "trainer_state")
_LENGTH_KEYS: Final = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "max_seq_length", "seq_length",
    "model_max_length",
)  # fmt: skip
_SANE_LENGTH: Final = 100_000_000
"""Tokenizers without a limit write an absurd number."""
_SPECIAL_KEYS: Final = (
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
    "decoder_start_token_id", "image_token_id", "image_token_index", "video_token_id", "audio_token_id",
    "vision_start_token_id", "vision_end_token_id", "boi_token_index", "eoi_token_index",
)  # fmt: skip
_FLOAT_DTYPES: Final = frozenset({"F64", "F32", "F16", "BF16"})
_HEADER_LIMIT: Final = 100 << 20
_HUB_TIMEOUT_S: Final = 5.0


class DamagedWeights(ValueError):
    """A weight file cannot be what it claims to be: the file, what was expected, what was found."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty when there is no such file. Raises `ValueError` that names the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json`, with the text part of a composite model merged over the rest."""
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config.get("llm_config") or {}
    return {**config, **text, "architectures": config.get("architectures") or text.get("architectures")}


def hub_config(repo: str, revision: str | None = None) -> dict[str, Any] | None:
    """As `read_config`, of a model on the hub: out of the hub's cache, or fetched alone, without its weights.

    None where it cannot be had: why a model cannot be fetched is told by what fetches the whole of it.
    """
    from huggingface_hub import hf_hub_download

    try:
        found = hf_hub_download(repo, "config.json", revision=revision, etag_timeout=_HUB_TIMEOUT_S)
        return read_config(Path(str(found)).parent)
    except Exception:  # the hub's client has many ways to say that there is no network
        return None


def max_model_len(folder: Path, config: Mapping[str, Any]) -> int | None:
    """Longest context the model was made for, in tokens; None when its files do not say."""
    found = [config.get(key) for key in _LENGTH_KEYS]
    lengths = [int(value) for value in found if isinstance(value, int) and 0 < value < _SANE_LENGTH][:1]
    sentence = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    if isinstance(sentence, int):
        lengths.append(sentence)
    if not lengths:
        limit = read_json(folder / "tokenizer_config.json").get("model_max_length")
        if isinstance(limit, (int, float)) and 0 < limit < _SANE_LENGTH:
            lengths.append(int(limit))
    return min(lengths) if lengths else None


def dtype_of(config: Mapping[str, Any]) -> str:
    """`bfloat16`, `float16`, ...; empty when the configuration does not say."""
    return str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")


# --------------------------------------------------------------------------------------------------------------------
# vocabulary


def vocabulary(folder: Path) -> Vocabulary | None:
    """Ids of ordinary tokens; None when neither the configuration nor a tokenizer file tells the size.

    The model may have more embeddings than the tokenizer has tokens: ids beyond the tokenizer's are not used, and
    gaps among its ids count as special.
    """
    config = read_config(folder)
    size = config.get("vocab_size")
    special = set(_ids(config)) | set(_ids(read_json(folder / "generation_config.json")))
    tokenizer = read_json(folder / "tokenizer.json")
    ordinary = _ordinary_ids(tokenizer)
    added = {entry["id"] for entry in tokenizer.get("added_tokens", ()) if isinstance(entry.get("id"), int)}
    added |= {value for value in read_json(folder / "added_tokens.json").values() if isinstance(value, int)}
    decoder = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
    added |= {int(key) for key in decoder if str(key).isdigit()}
    special |= added
    if ordinary:
        end = max(ordinary) + 1
        size = min(size, end) if isinstance(size, int) else end
        special |= set(range(size)) - ordinary
    if not isinstance(size, int) or size < 1:
        return None
    kept = tuple(sorted(token for token in special if 0 <= token < size))
    return Vocabulary(size=size, special_ids=kept, max_model_len=max_model_len(folder, config))


def _ids(config: Mapping[str, Any]) -> Iterator[int]:
    for key in _SPECIAL_KEYS:
        value = config.get(key)
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and not isinstance(token, bool):
                yield token


def _ordinary_ids(tokenizer: Mapping[str, Any]) -> set[int]:
    """Ids of the tokenizer's own table (pairs and word pieces: a mapping; unigram: a list of piece and score)."""
    table = (tokenizer.get("model") or {}).get("vocab")
    if isinstance(table, dict):
        return {
            token
            for text, token in table.items()
            if isinstance(token, int) and not (text.startswith(("[unused", "<unused")))
        }
    return set(range(len(table))) if isinstance(table, list) else set()


# --------------------------------------------------------------------------------------------------------------------
# weights


def is_weight_name(name: str) -> bool:
    """Whether a file of this relative name holds weights: neither hidden, nor the state of a training run."""
    *folders, last = name.split("/")
    return (
        last.endswith(WEIGHT_SUFFIXES)
        and not last.startswith((".", *_NOT_WEIGHTS))
        and not any(folder.startswith(".") for folder in folders)
    )


def weight_files(folder: Path) -> list[Path]:
    """Every weight file under `folder` (hidden folders left out), sorted by relative name."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if is_weight_name(name)]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def safetensors_header(path: Path) -> dict[str, Any]:
    """Name → dtype, shape, offsets. Raises `DamagedWeights` unless header and size of the file agree."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            raise DamagedWeights(
                f"{path.name} is not a safetensors file: its header claims {length} bytes, the file has {size}"
            )
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise DamagedWeights(f"{path.name} is not a safetensors file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise DamagedWeights(f"{path.name} is not a safetensors file: its header is not an object")
    header.pop("__metadata__", None)
    try:
        end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise DamagedWeights(f"{path.name}: its header describes a tensor without offsets") from error
    if size - 8 - length != end:
        raise DamagedWeights(
            f"{path.name} is incomplete or damaged: its header describes {end} bytes of tensors, "
            f"the file holds {size - 8 - length}"
        )
    return header


def parameter_count(headers: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Parameters in safetensors headers by file; None without any, or when tensors are packed (quantised)."""
    total = 0
    for header in headers.values():
        for entry in header.values():
            if entry["dtype"] in _FLOAT_DTYPES:
                total += math.prod(entry["shape"])
            elif entry["dtype"] in ("U8", "I8", "F8_E4M3", "F8_E5M2", "I32") and math.prod(entry["shape"]) > 1 << 16:
                return None
    return total or None


def check_weights(folder: Path) -> dict[str, dict[str, Any]]:
    """Headers of all safetensors files by relative name. Raises `DamagedWeights` for a damaged or missing one."""
    headers = {
        path.relative_to(folder).as_posix(): safetensors_header(path)
        for path in weight_files(folder)
        if path.suffix == ".safetensors"
    }
    index = read_json(folder / "model.safetensors.index.json").get("weight_map") or {}
    absent = sorted({str(name) for name in index.values()} - headers.keys())
    if absent:
        raise DamagedWeights(f"{len(absent)} of the weight files that the index names are not there: {absent[0]}, ...")
    return headers


def is_complete(folder: Path) -> bool:
    """Whether a snapshot has its configuration and all its weights; programs often fetch less than that."""
    names = {path.relative_to(folder).as_posix() for path in weight_files(folder)}
    index = read_json(folder / "model.safetensors.index.json").get("weight_map") or {}
    return (
        (folder / "config.json").is_file()
        and any(name.endswith((".safetensors", ".bin")) for name in names)
        and set(index.values()) <= names
    )


def digests(
    folder: Path, *, cache_dir: Path, progress: Callable[[str], None] | None = None, chunk: int = 4 << 20
) -> dict[str, str]:
    """SHA-256 of every weight file by relative name.

    Remembered under `cache_dir` as long as size, modification time and inode of a file stay the same, so that only
    the first time takes time.
    """
    files = weight_files(folder)
    sidecar = cache_dir / "digests" / f"{fingerprint(str(folder.resolve()))}.json"
    try:
        known = read_json(sidecar)
    except (ValueError, OSError):
        known = {}
    total = sum(path.stat().st_size for path in files)
    done, shown = 0, time.monotonic()
    out: dict[str, str] = {}
    fresh: dict[str, list[Any]] = {}
    for path in files:
        name = path.relative_to(folder).as_posix()
        stat = path.stat()
        key = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        entry = known.get(name)
        if isinstance(entry, list) and entry[:3] == key and len(entry) == 4:
            out[name] = entry[3]
        else:
            digest = hashlib.sha256()
            with path.open("rb", buffering=0) as file:
                while data := file.read(chunk):
                    digest.update(data)
                    done += len(data)
                    if progress is not None and time.monotonic() - shown > 0.5:
                        shown = time.monotonic()
                        progress(f"hashing weights: {done / 1e9:.1f} of {total / 1e9:.1f} GB")
            out[name] = digest.hexdigest()
        fresh[name] = [*key, out[name]]
    if fresh != known:
        _write(sidecar, json.dumps(fresh, indent=0))
    return out


def combined(files: Mapping[str, str]) -> str:
    """One digest over all: SHA-256 of the lines `<digest>  <name>` sorted by name; empty without files."""
    text = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest() if files else ""


def _write(path: Path, text: str) -> None:
    """Remember; a cache that cannot be written costs time the next time and nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError:
        pass
