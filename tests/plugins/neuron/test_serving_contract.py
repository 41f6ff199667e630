"""The contract of providers, held against servers on a made-up host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import neuronbench_neuron
import pytest
from serving_neuron import BASE, PACKAGES, STACKS, make_model

from neuronbench.testing.contracts import ProviderContract
from neuronbench.testing.neuron import FakeBox


class TestServer(ProviderContract):
    plugin = neuronbench_neuron
    provider = "endpoint/vllm-neuron"
    backend = "inf2"
    params = {"model": "file:/m", "max_model_len": 512, "max_num_seqs": 4}  # noqa: RUF012 - replaced below
    impossible = {"neuron_config": {"fused-qkv": True}}  # noqa: RUF012
    broken = {"server_env": {"FAKE_VLLM_FAIL": "hbm"}}  # noqa: RUF012
    boot_deadline_s = 60.0

    @pytest.fixture(autouse=True)
    def box(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with FakeBox("inf2.xlarge", tmp_path / "box") as box:
            box.venv("aws_neuronx_venv_serving", packages={**BASE, **STACKS["1b"]}, paths=[PACKAGES])
            for name, value in box.environ(XDG_CACHE_HOME=str(tmp_path / "cache")).items():
                monkeypatch.setenv(name, value)
            given = {**self.params, "model": f"file:{make_model(tmp_path / 'model')}"}
            monkeypatch.setattr(type(self), "params", given)
            yield
