"""The snippets of `plugins/README.md`, done in an empty folder in the order in which they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent.parent / "plugins" / "README.md"
PIP = """
pip() { python -m pip install -q --no-deps --no-build-isolation --no-index --target "$SITE" "./${@: -1}"; }
"""
"""`pip install` into a folder of its own: the environment of the tests is left as it is."""


def test_a_plugin_in_ten_minutes(tmp_path: Path) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NEURONBENCH_"))}
    environ |= {
        "SITE": str(site), "PYTHONPATH": str(site),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }  # fmt: skip
    said = []
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["toml", "python", "python", "bash", "bash"]
    for language, text in blocks:
        if language != "bash":
            name, _, _ = text.partition("\n")
            path = project / name.removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", PIP + text], cwd=project, env=environ, capture_output=True, text=True,
            timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        said.append(done.stdout)
    measured, made = said
    assert "2 passed" in measured
    assert "SIMULATED" in measured.upper()
    assert re.search(r"first\s+word", measured)
    assert "neuronbench-tasting 0.1.0" in made
    assert re.search(r"\d+ passed", made)
