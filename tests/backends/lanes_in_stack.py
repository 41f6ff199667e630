"""Run by a stack's Python: what the families of handlers build, without compiling. Prints one JSON object.

Argument: the folder of the families.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
import warnings
from typing import Any

import torch

BERT = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "vocab_size": 100, "max_position_embeddings": 32,
}  # fmt: skip
PICTURE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32,
    "patch_size": 16,
}  # fmt: skip
TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100}
CLIP = {
    "model_type": "clip", "projection_dim": 16, "vision_config": PICTURE,
    "text_config": {**TEXT, "bos_token_id": 98, "eos_token_id": 99, "pad_token_id": 0},
}  # fmt: skip
T5 = {
    "model_type": "t5", "vocab_size": 200, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 3,
    "num_heads": 2, "initializer_factor": 3.0,
}  # fmt: skip
WHISPER = {
    "model_type": "whisper", "vocab_size": 200, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "max_source_positions": 50, "max_target_positions": 16, "init_std": 0.3, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 3,
}  # fmt: skip
SHAPE = {"batch_size": 2, "sequence_length": 12, "num_labels": 3, "output_tokens": 6}


def inputs_of(built: Any) -> list[Any]:
    torch.manual_seed(1)
    made = []
    for entry in built.inputs:
        if entry["kind"] == "token_ids":
            made.append(torch.randint(1, entry["high"] - 2, entry["shape"]))
        elif entry["kind"] == "attention_mask":
            made.append(torch.ones(entry["shape"], dtype=torch.int64))
            made[-1][1, 7:] = 0
        else:
            made.append(torch.randn(entry["shape"]))
    return made


def stepped(family: Any, built: Any, common: Any) -> dict[str, Any]:
    """Two graphs and a loop, as they are exported, beside the model without any cache."""
    given = inputs_of(built)
    tokens, scores = built.module(*given)
    graphs = {name: torch.export.export(g.module, tuple(common.example(g.inputs))) for name, g in built.graphs.items()}
    run = family.loop({name: program.module() for name, program in graphs.items()}, **built.loop)
    got_tokens, got_scores = run(*given)
    error = (scores - got_scores).abs().max() / scores.abs().max()
    return {"tokens": tokens.tolist(), "stepped": got_tokens.tolist(), "error": float(error)}


def main(handlers: str) -> dict[str, Any]:
    package = types.ModuleType("handlers")
    package.__path__ = [handlers]
    sys.modules["handlers"] = package
    common, vision, embedding, seq2seq, asr = (
        importlib.import_module(f"handlers.{name}") for name in ("common", "vision", "embedding", "seq2seq", "asr")
    )

    def seeded(architecture: dict[str, Any]) -> Any:
        return common.Source(architecture=architecture, weights="seeded", seed=0)

    found: dict[str, Any] = {}
    classifier = vision.build(seeded({"model_type": "vit", **PICTURE}), "image_classification", SHAPE)
    found["classifier"] = {"shape": list(classifier.module(*inputs_of(classifier))[0].shape), **classifier.facts}

    for task in ("clip_image", "clip_text"):
        built = vision.build(seeded(CLIP), task, SHAPE)
        (answer,) = built.module(*inputs_of(built))
        found[task] = {"norms": answer.norm(dim=-1).tolist(), "shape": list(answer.shape)}
        if task == "clip_text":  # a text that ends as a tokenizer ends it is pooled where CLIP itself pools
            ids, mask = inputs_of(built)
            ids[torch.arange(2), mask.sum(1) - 1] = 99
            clip, _ = seeded(CLIP).model(importlib.import_module("transformers").AutoModel)
            pooled = clip.text_projection(clip.text_model(input_ids=ids, attention_mask=mask).pooler_output)
            wanted = torch.nn.functional.normalize(pooled, dim=-1)
            found[task]["error"] = float((built.module(ids, mask)[0] - wanted).abs().max())

    built = embedding.build(seeded(BERT), "embed", SHAPE)
    ids, mask = inputs_of(built)
    (answer,) = built.module(ids, mask)
    hidden = built.module.model(input_ids=ids, attention_mask=mask).last_hidden_state
    plain = torch.stack([hidden[row, : int(mask[row].sum())].mean(0) for row in range(2)])
    wanted = torch.nn.functional.normalize(plain, dim=-1)
    found["embedding"] = {"error": float((answer - wanted).abs().max()), **built.facts}

    for name, family, architecture, task in (
        ("seq2seq", seq2seq, T5, "generate"),
        ("asr", asr, WHISPER, "transcribe"),
    ):
        built = family.build(seeded(architecture), task, SHAPE)
        found[name] = {
            "per_item": built.per_item,
            "calls": built.graphs["step"].calls,
            **stepped(family, built, common),
        }
    built = seq2seq.build(seeded(T5), "generate", SHAPE)
    ids, mask = inputs_of(built)
    found["seq2seq"]["generated"] = built.module.model.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=6, min_new_tokens=0,
        eos_token_id=None, decoder_start_token_id=0, pad_token_id=0,
    )[:, 1:].tolist()  # fmt: skip

    from transformers import WhisperFeatureExtractor

    sound = torch.randn(2, 16_000) * 0.1
    theirs = WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    wanted = theirs([row.numpy() for row in sound], sampling_rate=16_000, return_tensors="pt").input_features
    found["log_mel"] = {"error": float((asr.LogMel(80)(sound) - wanted).abs().max()), "shape": list(wanted.shape)}
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with torch.no_grad():
        answer = main(*sys.argv[1:])
    print(json.dumps(answer))
