"""Images: classifiers and encoders (ViT), and the two towers of CLIP, each compiled for itself."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .common import Built, Source, described

TASKS = ("raw_output", "image_classification", "clip_image", "clip_text")


class _Image(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, model: Any, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, pixel_values: Any) -> Any:
        return (self.model(pixel_values=pixel_values.to(self.model.dtype))[self.output],)


class _ClipImage(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, clip: Any) -> None:
        super().__init__()
        self.tower, self.projection = clip.vision_model, clip.visual_projection

    def forward(self, pixel_values: Any) -> Any:
        pixels = pixel_values.to(self.projection.weight.dtype)
        return (_unit(self.projection(self.tower(pixel_values=pixels).pooler_output)),)


class _ClipText(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, clip: Any) -> None:
        super().__init__()
        self.tower, self.projection = clip.text_model, clip.text_projection

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        hidden = self.tower(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        # A tokenizer puts the end of the text, which CLIP pools at, last of all real tokens; drawn tokens have none.
        last = attention_mask.sum(1) - 1
        return (_unit(self.projection(hidden[torch.arange(hidden.shape[0]), last])),)


def _unit(features: Any) -> Any:
    return torch.nn.functional.normalize(features.float(), dim=-1)


def build(source: Source, task: str, shape: dict[str, Any]) -> Built:
    """`shape`: `batch_size`; `num_labels` for classification, `sequence_length` for CLIP's text."""
    from transformers import AutoModel, AutoModelForImageClassification  # type: ignore[import-not-found,unused-ignore]

    if task not in TASKS:
        raise ValueError(f"a vision model's task is one of {', '.join(TASKS)}; found {task!r}")
    batch = shape["batch_size"]
    if task in ("clip_image", "clip_text"):
        clip, weights = source.model(AutoModel)
        if clip.config.model_type != "clip":
            raise ValueError(f"task {task} is of CLIP; found model_type {clip.config.model_type!r}")
        tower = _ClipImage(clip) if task == "clip_image" else _ClipText(clip)
        inputs = [_pixels(clip.config.vision_config, batch)]
        if task == "clip_text":
            size, high = [batch, shape["sequence_length"]], int(clip.config.text_config.vocab_size)
            inputs = [
                {"name": "input_ids", "dtype": "int64", "shape": size, "kind": "token_ids", "high": high},
                {"name": "attention_mask", "dtype": "int64", "shape": size, "kind": "attention_mask"},
            ]
        facts = {**described(clip, weights), "parameters": sum(p.numel() for p in tower.parameters())}
        return Built(module=tower.eval(), inputs=inputs, outputs=["embedding"], facts=facts)
    if task == "image_classification":
        model, weights = source.model(AutoModelForImageClassification, num_labels=shape["num_labels"])
    else:
        model, weights = source.model(AutoModel)
    output = "logits" if task == "image_classification" else "last_hidden_state"
    return Built(
        module=_Image(model, output).eval(),
        inputs=[_pixels(model.config, batch)],
        outputs=[output],
        facts=described(model, weights),
    )


def _pixels(config: Any, batch: int) -> dict[str, Any]:
    side = config.image_size
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    shape = [batch, int(config.num_channels), int(height), int(width)]
    return {"name": "pixel_values", "dtype": "float32", "shape": shape, "kind": "normal"}
