"""Model, tokenizer and adapter of a job, its batches, and what is counted of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import transformers  # type: ignore[import-not-found,unused-ignore]

from ..families.common import Source
from .data import Split, Tokens

MAX_GRAD_NORM = 1.0
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model",
)  # fmt: skip
BYTES = 256
END, PADDING = "<|end|>", "<|padding|>"


def tokenizer_of(source: Source) -> Tokens:
    """The model's own tokenizer; where only an architecture is given, one whose tokens are bytes."""
    vocabulary = int(source.config().vocab_size)
    if not source.path:
        made = _bytes(vocabulary)
        return Tokens(made, hashlib.sha256(b"bytes").hexdigest(), BYTES)
    found = hashlib.sha256()
    for name in TOKENIZER_FILES:
        path = Path(source.path, name)
        if path.is_file():
            found.update(f"{name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    made = transformers.AutoTokenizer.from_pretrained(source.path)
    if made.pad_token is None:
        made.pad_token = made.eos_token
    return Tokens(made, found.hexdigest(), min(len(made), vocabulary))


def _bytes(vocabulary: int) -> Any:
    import tokenizers  # type: ignore[import-not-found,unused-ignore]

    if vocabulary < BYTES + 2:
        raise ValueError(f"architecture: expected a vocab_size of at least {BYTES + 2}, found {vocabulary}")
    level = tokenizers.pre_tokenizers.ByteLevel
    ids = {token: number for number, token in enumerate([*sorted(level.alphabet()), END, PADDING])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[]))
    made.pre_tokenizer = level(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=PADDING)


def build(source: Source, dtype: str) -> Any:
    """The model without any adapter, its weights real or seeded."""
    model, weights = source.model(transformers.AutoModelForCausalLM)
    if weights["weights"] == "pretrained" and weights["new"]:
        raise ValueError(f"the checkpoint has no weights for {', '.join(weights['new'])}: it is not a language model's")
    return model.to(getattr(torch, dtype))


def adapter_of(job: dict[str, Any]) -> Any:
    """peft's configuration of the job's adapter; None for none."""
    if not job["adapter"]:
        return None
    from peft import LoraConfig  # type: ignore[import-not-found,unused-ignore]

    told = job["adapter"]
    targets = told["targets"] if isinstance(told["targets"], str) else list(told["targets"])
    return LoraConfig(
        r=told["r"], lora_alpha=told["alpha"], lora_dropout=told["dropout"], target_modules=targets, bias="none",
        task_type="CAUSAL_LM",
    )  # fmt: skip


def parameters(
    model: Any, optimizer: Any = None, own: Callable[[Any], bool] = lambda parameter: True
) -> dict[str, Any]:
    """Counted on the model as it is trained, adapter attached; and what the optimiser holds. `own`: whether a parameter
    is this rank's to count."""
    counts = {True: 0, False: 0}
    for parameter in model.parameters():
        counts[bool(parameter.requires_grad)] += parameter.numel() if own(parameter) else 0
    config = model.config.get_text_config()
    held = (
        None
        if optimizer is None
        else sum(p.numel() for group in optimizer.param_groups for p in group["params"] if own(p))
    )
    embedding = model.get_input_embeddings()
    return {
        "trainable": counts[True], "frozen": counts[False], "total": counts[True] + counts[False], "optimizer": held,
        "adapter": hasattr(model, "peft_config"),
        "layers": config.num_hidden_layers, "hidden": config.hidden_size, "heads": config.num_attention_heads,
        "head_dim": getattr(config, "head_dim", None),
        "vocabulary": config.vocab_size, "embedding": embedding.weight.numel() if own(embedding.weight) else 0,
        "tied": bool(config.tie_word_embeddings), "tp_degree": 1,
    }  # fmt: skip


def batch(method: str, split: Split, items: list[int]) -> dict[str, Any]:
    """Tensors of some items, under the names that the method's trainer looks for. Always of the full width."""
    rows = split.rows(items)
    ids = torch.from_numpy(split.ids[rows]).long()
    lengths = torch.from_numpy(split.lengths[rows])
    loss = torch.from_numpy(split.loss[rows]).bool()
    mask = (torch.arange(ids.shape[1])[None, :] < lengths[:, None]).long()
    if method == "dpo":
        return {"input_ids": ids, "attention_mask": mask, "completion_mask": loss.long()}
    labels = torch.where(loss, ids, -100)
    if method != "orpo":
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}
    named = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    half = len(rows) // 2
    return {
        f"{part}_{name}": tensor[where]
        for part, where in (("chosen", slice(None, half)), ("rejected", slice(half, None)))
        for name, tensor in named.items()
    }


def masks(inputs: dict[str, Any]) -> list[Any]:
    """The attention masks of a batch, of which a pair has two."""
    return [tensor for name, tensor in inputs.items() if name.endswith("attention_mask")]
