"""What a run leaves behind: digests of weights, checkpoints that are whole or not there, the final state, exports."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from ..families.common import Source
from . import model as models
from .data import Tokens

CHECKPOINTS = "checkpoints"
MANIFEST = "neuronbench.json"
"""Written last of all into a checkpoint: without it there is none."""
FINAL = "final"


def digest(model: Any, *, trainable: bool = False) -> str:
    """SHA-256 over all parameters, or those that are trained alone: names, types, shapes, bytes."""
    found = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if trainable and not parameter.requires_grad:
            continue
        tensor = parameter.detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(tensor.view(torch.uint8).numpy() if tensor.dim() else tensor[None].view(torch.uint8).numpy())
    return found.hexdigest()


def hashes(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative name → `sha256` and `bytes`, of all files but the manifest."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            with path.open("rb") as file:
                content = hashlib.sha256()
                while block := file.read(1 << 20):
                    content.update(block)
            found[str(path.relative_to(folder))] = {"sha256": content.hexdigest(), "bytes": path.stat().st_size}
    return found


def combined(files: dict[str, dict[str, Any]]) -> str:
    """One digest for files by name."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def sync(folder: Path) -> None:
    """All files of the folder are on the disk."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def seal(folder: Path, step: int, job: str) -> dict[str, Any]:
    """Write the manifest of a checkpoint that is on the disk; returns it."""
    files = hashes(folder)
    total = sum(entry["bytes"] for entry in files.values())
    told = {"step": step, "job": job, "digest": combined(files), "bytes": total, "files": files}
    making = folder / f".{MANIFEST}"
    with making.open("w", encoding="utf-8") as file:
        json.dump(told, file)
        file.flush()
        os.fsync(file.fileno())
    making.rename(folder / MANIFEST)
    return told


def latest(folder: Path, job: str) -> Path | None:
    """The newest whole checkpoint of a run, None when there is none; those that are not whole are removed.

    Raises `ValueError` for one of another job.
    """
    whole: list[tuple[int, Path]] = []
    for path in (folder / CHECKPOINTS).glob("checkpoint-*"):
        try:
            told = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(path)
            continue
        if told["job"] != job:
            raise ValueError(f"{path} is a checkpoint of job {told['job']!r}; job {job!r} cannot go on from it")
        whole.append((told["step"], path))
    return max(whole)[1] if whole else None


def check(folder: Path) -> None:
    """Raise `ValueError` unless a checkpoint holds what was written into it."""
    told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    files = hashes(folder)
    for name, entry in told.items():
        found = files.get(name, {}).get("sha256", "no such file")
        if found != entry["sha256"]:
            raise ValueError(f"{folder / name}: expected SHA-256 {entry['sha256']}, found {found}")


def forget(folder: Path) -> None:
    """An earlier attempt's final state is not that of the attempt that begins."""
    for name in (FINAL, f".{FINAL}"):
        shutil.rmtree(folder / name, ignore_errors=True)


def keep(model: Any, folder: Path) -> None:
    """The trained state (of an adapter, the adapter alone) as it was left."""
    target, making = folder / FINAL, folder / f".{FINAL}"
    model.save_pretrained(str(making), safe_serialization=True)
    making.rename(target)


def trained(job: dict[str, Any], source: Source, folder: Path, *, merged: bool = False) -> Any:
    """The model with what training left in `folder`."""
    kept = folder / FINAL
    if not kept.is_dir():
        raise FileNotFoundError(
            f"{folder} holds no trained state: expected {FINAL}/ in it, which a whole "
            "run leaves whose losses are all finite"
        )
    if not job["adapter"]:
        import transformers  # type: ignore[import-not-found,unused-ignore]

        return transformers.AutoModelForCausalLM.from_pretrained(str(kept), dtype=getattr(torch, job["dtype"])).eval()
    from peft import PeftModel  # type: ignore[import-not-found,unused-ignore]

    model = PeftModel.from_pretrained(models.build(source, job["dtype"]), str(kept))
    return (model.merge_and_unload(safe_merge=True) if merged else model).eval()


def export(
    job: dict[str, Any], source: Source, tokens: Tokens, folder: Path, into: Path, *, merged: bool
) -> dict[str, Any]:
    """Weights, configuration and tokenizer in `into`, with a digest of each file.

    Merged, or without any adapter, it is a model like any other; not merged, it is the adapter alone.
    """
    if job["adapter"] and not merged:
        shutil.copytree(folder / FINAL, into, dirs_exist_ok=True)
        told = json.loads((into / "adapter_config.json").read_text(encoding="utf-8"))
        told["base_model_name_or_path"] = job["model"]  # the reference; where it lies here is nobody's business
        (into / "adapter_config.json").write_text(json.dumps(told, indent=2, sort_keys=True), encoding="utf-8")
        return {"files": hashes(into), "merged": False}
    model = trained(job, source, folder, merged=True)
    model.save_pretrained(str(into), safe_serialization=True)
    if source.path:
        for name in (*models.TOKENIZER_FILES, "generation_config.json"):
            if Path(source.path, name).is_file():
                shutil.copyfile(Path(source.path, name), into / name)
    else:
        tokens.tokenizer.save_pretrained(str(into))
    files = hashes(into)
    return {"files": files, "merged": bool(job["adapter"]), "weights": digest(model), "digest": combined(files)}
