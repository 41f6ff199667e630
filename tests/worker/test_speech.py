"""Synthetic speech: the same for a seed, of exact length, and honest about itself."""

from __future__ import annotations

import numpy as np
import pytest

from neuronbench.protocols import InputSpec
from neuronbench.worker import batches, speech


def test_a_clip_is_the_same_for_its_seed_and_has_the_length_asked_for() -> None:
    one, same, other = (speech.synthesise(3 * speech.SAMPLE_RATE + 7, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.samples, same.samples)
    assert one.transcript == same.transcript != other.transcript
    assert len(one.samples) == 48_007
    assert one.samples.dtype == np.float32
    assert one.seconds == pytest.approx(3.0, abs=0.001)
    assert 0.5 < float(np.abs(one.samples).max()) <= 1.0


def test_its_words_are_known_and_nobody_could_understand_them() -> None:
    clip = speech.synthesise(5 * speech.SAMPLE_RATE)
    assert set(clip.transcript.split()) <= set(speech.WORDS)
    assert len(clip.transcript.split()) >= 3
    assert clip.intelligible is False
    # Voiced: what there is lies where speech has it, not spread over the band as noise would be.
    power = np.abs(np.fft.rfft(clip.samples)) ** 2
    hz = np.fft.rfftfreq(len(clip.samples), 1 / speech.SAMPLE_RATE)
    assert power[hz < 4000].sum() > 0.98 * power.sum()


def test_a_batch_of_sound_is_its_clips() -> None:
    spec = InputSpec(name="audio", dtype="float32", shape=(2, 16_000), kind="audio")
    batch = batches.make([spec], seed=4)["audio"]
    clips = speech.clips(2, 16_000, seed=4)
    assert np.array_equal(batch, np.stack([clip.samples for clip in clips]))
    assert not np.array_equal(batch[0], batch[1])


def test_a_window_shorter_than_a_word_is_filled_all_the_same() -> None:
    clip = speech.synthesise(800)
    assert len(clip.samples) == 800
    assert clip.transcript == ""
