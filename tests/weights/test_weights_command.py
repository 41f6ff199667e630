"""`neuronbench weights` as a person uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(root: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "neuronbench", "--root", str(root), "weights", *words], cwd=root, text=True,
        capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_put_list_verify_get(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    status, out, err = run(tmp_path, "put", "model", "--store", "store")
    assert status == 0, err
    digest = out.split()[0]
    assert "2 files" in out
    assert "read back and equal" in out
    assert digest in run(tmp_path, "list", "--store", "store")[1]
    status, out, err = run(tmp_path, "get", digest, "--store", "store", "--into", "there")
    assert status == 0, err
    assert (tmp_path / "there" / "model.safetensors").read_bytes() == b"weights"
    assert "model.safetensors" in run(tmp_path, "verify", digest, "--store", "store")[1]
    for path in (tmp_path / "store" / "blobs").rglob("*"):
        if path.is_file() and path.read_bytes() == b"weights":
            path.unlink()
            path.write_bytes(b"w3ights")
    status, _, err = run(tmp_path, "verify", digest, "--store", "store")
    assert status == 1
    assert "model.safetensors in" in err
    assert err.count("SHA-256") == 1
    assert "Traceback" not in err
    assert run(tmp_path, "get", digest, "--store", "nowhere", "--into", "x")[0] == 1
    assert "no models in" in run(tmp_path, "list", "--store", "nowhere")[1]


def test_a_folder_that_holds_no_model_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint-40").mkdir(parents=True)
    (tmp_path / "run" / "trainer.log").write_text("…")
    status, _, err = run(tmp_path, "put", "run", "--store", "store")
    assert status == 2
    assert "expected config.json (a model) or adapter_config.json (an adapter)" in err
    assert "save_pretrained" in err
    (tmp_path / "run" / "checkpoint-40" / "adapter_config.json").write_text("{}")
    status, _, err = run(tmp_path, "put", "run", "--store", "store", "--dry-run")
    assert status == 2
    assert "run/checkpoint-40" in err
    assert not (tmp_path / "store").exists()
