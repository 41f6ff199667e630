"""A foreign backend, from its contract to its receipts: an emulated chip with a queue and a slow compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

ACME = Path(__file__).resolve().parent.parent / "emulated"
sys.path.insert(0, str(ACME))

import acme_chip  # noqa: E402

from neuronbench.testing.contracts import BackendContract, HandlerContract, ProviderContract  # noqa: E402


@pytest.fixture(autouse=True)
def two_chips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_CHIPS", "2")
    monkeypatch.setenv("ACME_COMPILE_S", "0.05")


class TestBackend(BackendContract):
    plugin, backend = acme_chip, "acme1"


class TestServer(ProviderContract):
    plugin, provider, backend = acme_chip, "endpoint/acme", "acme1"
    impossible: ClassVar = {"tensor_parallel": 16}
    broken: ClassVar = {"flags": "--no-such-flag"}
    boot_deadline_s = 30.0


class TestCompiler(ProviderContract):
    plugin, provider, backend = acme_chip, "compiled_model/acme", "acme1"
    impossible: ClassVar = {"batch_size": 3}


class TestChip(HandlerContract):
    folder, module, batch_size, uses = ACME / "acme_chip" / "handlers", "chip", 2, ()
    compiles: ClassVar = {"target": "{artifact}", "seconds": 0.0}
    loads: ClassVar = {"folder": "{artifact}"}


BENCH = '''
import neuronbench as nb
import pytest

@pytest.mark.parametrize("concurrency", [2, 8])
def bench_queue(endpoint, measure, concurrency):
    """Beyond two at once requests wait for a chip."""
    measure.serve(endpoint, nb.closed_loop(concurrency, duration_s=2), nb.synthetic(input_tokens=8, output_tokens=20),
                  warmup=nb.warm_up(2))

@pytest.mark.encoder
def bench_chip(compiled_model, measure):
    """A call that returns early, timed with the barrier."""
    measure.latency(compiled_model, calls=50)
    measure.agreement(compiled_model)
'''


@pytest.fixture
def installed(tmp_path: Path) -> Any:
    """`run(*arguments)`: pytest in a project beside which the chip's distribution is installed."""
    site = tmp_path / "site"
    info = site / "acme_chip-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_chip").symlink_to(ACME / "acme_chip")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-chip\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[neuronbench]\nacme = acme_chip\n")
    project = tmp_path / "project"
    (project / "benchmarks").mkdir(parents=True)
    (project / "pyproject.toml").write_text("[tool.pytest]\nneuronbench = true\nstrict = true\n")
    (project / "benchmarks" / "bench_acme.py").write_text(BENCH)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Of what is installed here, the chip alone: other plugins bring benchmarks, which would run on it, too.
    environ |= {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache"), "NEURONBENCH_PLUGINS": "acme"}

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "benchmarks", "-p", "no:cacheprovider", "--nb-tracking-uri", "off"]
        return subprocess.run(
            [*command, *arguments], cwd=project, env={**environ, **more}, capture_output=True, text=True, timeout=120
        )

    run.project = project  # type: ignore[attr-defined]
    return run


def records(project: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(project.glob("mlruns/receipts/*/*/record.json"))]


def test_a_foreign_backend_measures_and_its_numbers_are_marked(installed: Any) -> None:
    done = installed("-m", "acme1", "--nb-set", "model=acme")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {record["name"]: record for record in records(installed.project)}
    points = {name: record for name, record in found.items() if record["kind"] == "point"}
    assert len(points) == 3
    assert {record["provenance"] for record in found.values()} == {"simulated"}
    by_load = {record["point"]["params"].get("concurrency"): record["metrics"] for record in points.values()}
    alone, queued = by_load[2]["ttft_p50_ms"]["value"], by_load[8]["ttft_p50_ms"]["value"]
    assert queued > 2 * alone, "eight at once on two chips wait for three others"
    chip = by_load[None]
    assert chip["latency_p50_ms"]["value"] >= 0.5, "the barrier waits for the whole of the call"
    assert chip["max_abs_err"]["value"] == 0
    assert all(
        gate["passed"] is not False
        for gate in points["encoder.chip-acme1--r1"]["gates"]
        if gate["severity"] == "invalid"
    )
    misses = [
        r["metrics"]["cache_misses_artifacts"]["value"] for r in found.values() if r["kind"] in ("boot", "compile")
    ]
    assert misses == [1.0] * len(misses)

    again = installed("-m", "acme1 and encoder")
    assert again.returncode == 0, again.stdout
    last = [record for record in records(installed.project) if record["kind"] in ("boot", "compile")][-1]
    assert last["metrics"]["cache_hits_artifacts"]["value"] == 1, "the second time it is warm"


def test_without_a_chip_every_point_is_skipped_with_the_reason(installed: Any) -> None:
    done = installed("-m", "acme1", ACME_CHIPS="0")
    assert done.returncode == 0
    assert "3 skipped" in done.stdout
    assert "there is no Acme chip here: set ACME_CHIPS" in done.stdout
