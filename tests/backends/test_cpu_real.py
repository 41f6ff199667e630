"""One start of the real vLLM with real weights; needs a stack (`make stack`), else it is skipped with the reason.

`NEURONBENCH_TEST_STACK` names a stack to use instead of `.venv-cpu` beside the project.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from neuronbench import config, processes
from neuronbench.model import FrozenMap, Point
from neuronbench.plugins import Plugins
from neuronbench.protocols import BootContext
from neuronbench.serving import verify

MODEL = "packaged:SmolLM2-135M-Instruct"
PROJECT = Path(__file__).parent.parent.parent


def test_the_real_server_boots_generates_and_dies(tmp_path: Path) -> None:
    stack = os.environ.get("NEURONBENCH_TEST_STACK")
    overrides = {"stacks": {"any": stack} if stack else {}, "deadlines": {"boot": 200.0}}
    # The user's own cache: converting the weights takes as long as the start.
    settings = config.load(PROJECT, overrides=overrides)
    settings = dataclasses.replace(settings, data_root=tmp_path, port=0)
    plugins = Plugins(entry_points=False)
    backend, provider = plugins.backend("cpu"), plugins.provider("endpoint/vllm-cpu")
    point = Point(
        benchmark="b.py::f", lane="serving", backend="cpu", params=FrozenMap(model=MODEL, max_model_len=512), id="p"
    )
    spec = provider.spec(point, backend, settings)
    unsupported = provider.check(spec, backend, settings)
    if unsupported is not None:
        pytest.skip(unsupported.reason)

    context = BootContext(
        backend=backend, settings=settings, folder=tmp_path, deadline_s=settings.deadlines.boot,
        progress=lambda text: None, spawn=partial(processes.spawn, pid_dir=tmp_path / "pids"),
    )  # fmt: skip
    server = provider.boot(spec, context)
    try:
        values = {m.id: m.value for m in server.boot_metrics}
        missing = [name for name, value in values.items() if value is None]
        assert not missing, f"{missing}: the log words its stages in another way: {server.logs[0]}"
        parts = sum(value or 0 for name, value in values.items() if name != "boot_time")
        assert parts < (values["boot_time"] or 0) + 1
        assert "Paris" in server.facts["first_generation"]["text"]
        assert server.facts["model"]["architecture"] == "LlamaForCausalLM"
        assert server.facts["model"]["parameter_count"] == 134_515_008
        assert server.facts["max_model_len"] == 512
        assert server.facts["readings"]["kv_cache_tokens"]
        assert server.metrics_url is not None
        assert server.vocabulary is not None
        assert server.vocabulary.size == 49_152
        again = verify.generate(server.base_url, server.model, timeout_s=30)
        assert again.text == server.facts["first_generation"]["text"]

        os.kill(server.pids()[0], signal.SIGKILL)
        deadline = time.monotonic() + 20
        while server.alive():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        failure = server.diagnose("window")
        assert failure is not None
        assert (failure.kind, failure.exit_status) == ("killed", -9)
    finally:
        server.stop()
