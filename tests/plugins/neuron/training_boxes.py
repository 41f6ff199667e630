"""Made-up hosts with an environment that trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from lean_stack import SESSION, lean

import neuronbench.testing.neuron as made_up
from neuronbench.testing.neuron import FakeBox
from neuronbench.testing.neuron.neuron_monitor import install

ROOT: Final = Path(__file__).parents[3]
STACK: Final = ROOT / ".venv-cpu" / "bin" / "python"
HERE: Final = Path(made_up.__file__).parent
PACKAGES: Final = {
    "torch-neuronx": "2.8.0.2.10.16998", "neuronx-cc": "2.21.33363.0", "torch-xla": "2.8.0", "libneuronxla": "2.2.1",
    "neuronx-distributed": "0.15.22404", "optimum-neuron": "0.4.5", "transformers": "4.57.1", "trl": "0.24.0",
    "peft": "0.17.0", "torch": "2.8.0",
}  # fmt: skip
"""Those of an environment that optimum-neuron 0.4.5 was made for."""


def program(folder: Path, name: str, *command: str) -> None:
    """A program in an environment's `bin`."""
    path = folder / "bin" / name
    path.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n', encoding="utf-8")
    path.chmod(0o755)


def furnish(box: FakeBox, **packages: str) -> Path:
    """An environment that can train, and the monitor."""
    if not STACK.exists():
        pytest.skip(f"{STACK} is not there: run `make stack`")
    install(box)
    paths = [HERE / "packages", lean()]
    venv = box.venv(
        "aws_neuronx_venv_pytorch_2_8", packages={**PACKAGES, **packages}, paths=paths, python=STACK
    )  # fmt: skip
    program(venv, "neuron_parallel_compile", str(venv / "bin/python"), str(HERE / "neuron_parallel_compile.py"))
    program(venv, "libneuronpjrt-path", "echo", "/usr/lib")
    return venv


def bench(
    box: FakeBox, folder: Path, what: str, *options: str, settings: dict[str, str] | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """`pytest benchmarks/WHAT -m FAMILY` on the box; receipts below `folder`."""
    told = [word for name, value in (settings or {}).items() for word in ("--nb-set", f"{name}={value}")]
    command = [
        sys.executable, "-m", "pytest", f"benchmarks/{what}", "-m", box.shape.instance.name.partition(".")[0],
        *SESSION, "--nb-tracking-uri", "off", "--nb-data-root", str(folder), "-rs", *told, *options,
    ]  # fmt: skip
    return subprocess.run(
        command, cwd=ROOT, env=box.environ(**environ), capture_output=True, text=True, timeout=800,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def records(folder: Path, kind: str = "point") -> list[dict[str, Any]]:
    """All receipts of a kind below `folder`, in order."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("receipts/*/*/record.json"))]
    return [record for record in found if record["kind"] == kind] if found and "kind" in found[0] else found


def value(record: dict[str, Any], key: str) -> float | None:
    found: float | None = record["metrics"][key]["value"]
    return found


def gates(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {gate["id"]: gate for gate in record["gates"]}
