"""The same benchmark files where the hardware is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neuronbench.receipts import ReceiptStore


def run(project: Path, data_root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "benchmarks", "-p", "no:cacheprovider", "--nb-data-root", data_root, *args],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("backend", ["inf2", "trn1", "trn2"])
def test_every_point_is_skipped_with_what_is_missing_and_nothing_starts(project, tmp_path, backend) -> None:
    pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed here")
    if Path("/dev/neuron0").exists():
        pytest.skip("this host has a Neuron device")
    done = run(project, tmp_path, "-m", f"{backend} and serving", "-rs", "-k", "closed_loop")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" not in done.stdout
    assert f"{backend}: no Neuron device" in done.stdout
    records = [receipt.record for receipt in ReceiptStore(tmp_path / "receipts").iter()]
    assert len(records) == 3
    assert {record.outcome.value for record in records} == {"skipped"}
    assert all("/dev/neuron" in record.reason for record in records)
    assert list(tmp_path.glob("receipts/*/pids")) == []
    assert list(tmp_path.glob("receipts/*/resources")) == []
    assert not (tmp_path / "mlflow.db").exists()


def test_a_backend_that_does_not_exist_is_an_error(project, tmp_path) -> None:
    done = run(project, tmp_path, "-m", "inf3")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "inf3" in done.stdout + done.stderr
    assert not (tmp_path / "receipts").exists()
