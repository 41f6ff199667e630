"""Speech to text, the architecture of Whisper: sound in, tokens out; the spectrogram is part of the graph.

A call takes the samples of a whole window (30 s, for the published models), so that nothing that turns sound into
tokens is left out of its time.
"""

from __future__ import annotations

import math
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from . import steps
from .common import Built, Source, described

TASKS = ("transcribe",)
SAMPLE_RATE = 16_000
FFT = 400
HOP = 160
loop = steps.loop


class LogMel(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """Samples [batch, n] → what Whisper's encoder takes: [batch, mel bands, n / 160].

    The Fourier transform is two matrix products: a graph has no complex numbers then. In fp32 whatever the model is.
    """

    def __init__(self, bands: int) -> None:
        from transformers.audio_utils import mel_filter_bank  # type: ignore[import-not-found,unused-ignore]

        super().__init__()
        angle = 2 * math.pi * torch.outer(torch.arange(FFT).double(), torch.arange(FFT // 2 + 1).double()) / FFT
        window = torch.hann_window(FFT, dtype=torch.float64)[:, None]
        mel = mel_filter_bank(FFT // 2 + 1, bands, 0.0, 8000.0, SAMPLE_RATE, norm="slaney", mel_scale="slaney")
        # Plain attributes, not buffers: a change of the model's type must not reach them.
        self.cosine, self.sine = (window * angle.cos()).float(), (window * angle.sin()).float()
        self.mel = torch.from_numpy(mel).float()

    def forward(self, audio: Any) -> Any:
        padded = torch.nn.functional.pad(audio[:, None].float(), (FFT // 2, FFT // 2), mode="reflect")[:, 0]
        frames = padded.unfold(-1, FFT, HOP)[:, :-1]
        power = (frames @ self.cosine).square() + (frames @ self.sine).square()
        log = (power @ self.mel).clamp(min=1e-10).log10().transpose(1, 2)
        return (torch.maximum(log, log.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


def build(source: Source, task: str, shape: dict[str, Any]) -> Built:
    """`shape`: `batch_size` and `output_tokens`."""
    from transformers import AutoModelForSpeechSeq2Seq  # type: ignore[import-not-found,unused-ignore]

    if task not in TASKS:
        raise ValueError(f"a speech model's task is one of {', '.join(TASKS)}; found {task!r}")
    model, weights = source.model(AutoModelForSpeechSeq2Seq)
    config = model.config
    if config.model_type != "whisper":
        raise ValueError(f"speech to text is built for Whisper; found model_type {config.model_type!r}")
    spectrogram = LogMel(config.num_mel_bins)

    def encode(audio: Any) -> Any:
        return model.get_encoder()(spectrogram(audio).to(model.dtype)).last_hidden_state

    samples = 2 * config.max_source_positions * HOP
    inputs = [{"name": "audio", "dtype": "float32", "shape": [shape["batch_size"], samples], "kind": "audio"}]
    prompt = prompt_of(model)
    positions = len(prompt) + shape["output_tokens"]
    if positions > config.max_target_positions:
        raise ValueError(
            f"output_tokens: {shape['output_tokens']} and a prompt of {len(prompt)} are more than the "
            f"{config.max_target_positions} positions of the decoder"
        )
    decoder = steps.Decoder(
        model=model, encode=encode, masked=False, prompt=prompt, layers=config.decoder_layers,
        heads=config.decoder_attention_heads, head_size=config.d_model // config.decoder_attention_heads,
        width=config.d_model, source_length=config.max_source_positions, output_tokens=shape["output_tokens"],
    )  # fmt: skip
    return steps.built(decoder, inputs, described(model, weights), {"audio_s": samples / SAMPLE_RATE})


def prompt_of(model: Any) -> list[int]:
    """Start of transcript; English, transcribe, no time stamps, where the model's generation settings name them."""
    settings = model.generation_config
    prompt = [steps.start_of(model)]
    languages, tasks = getattr(settings, "lang_to_id", None), getattr(settings, "task_to_id", None)
    if languages and tasks:
        prompt += [int(languages["<|en|>"]), int(tasks["transcribe"])]
    silent = getattr(settings, "no_timestamps_token_id", None)
    return prompt if silent is None else [*prompt, int(silent)]
