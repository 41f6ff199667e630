"""The template, baked, installed and tested, as its user would do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuronbench import new_plugin


def run(*command: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NEURONBENCH_"))}
    if path is not None:
        environ["PYTHONPATH"] = str(path)
    return subprocess.run([sys.executable, *command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("kind", new_plugin.KINDS)
def test_a_new_plugin_installs_and_passes_its_own_tests(kind: str, tmp_path: Path) -> None:
    made = run("-m", "neuronbench", "new-plugin", "tasting", "--kind", kind, "--dir", "it", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "pip install -e it" in made.stdout
    folder, site = tmp_path / "it", tmp_path / "site"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())
    assert "$" not in text.replace("${{", ""), "something of the template was not replaced"
    installed = run(
        "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site),
        str(folder), cwd=tmp_path,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr

    listed = run("-m", "neuronbench", "plugins", "--json", cwd=tmp_path, path=site)
    report = {each["name"]: each for each in json.loads(listed.stdout)}["tasting"]
    assert (report["distribution"], report["ok"]) == ("neuronbench-tasting", True)
    assert report["registers"][f"{kind}s"] == ["tasting"]

    # The installed package is tested, not the folder beside its tests.
    (folder / "neuronbench_tasting").rename(tmp_path / "away")
    tested = run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder, path=site)
    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout
    (tmp_path / "away").rename(folder / "neuronbench_tasting")


@pytest.mark.parametrize("name", ["ox", "a_name_of_thirty_one_characters"])
@pytest.mark.parametrize("kind", new_plugin.KINDS)
def test_what_is_made_is_as_linters_want_it(kind: str, name: str, tmp_path: Path) -> None:
    new_plugin.bake(name, kind, tmp_path / "it")
    linted = run("-m", "ruff", "check", ".", cwd=tmp_path / "it")
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("name", ["Tasting", "1st", "a", "with-dash", "lambda", "benchmark", "x" * 40, "täst"])
def test_a_name_that_cannot_be_a_marker_and_a_package_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(new_plugin.NewPluginError, match="expected 2 to 31 of the letters"):
        new_plugin.bake(name, "lane", tmp_path / "it")
    assert not (tmp_path / "it").exists()


def test_nothing_that_is_there_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(new_plugin.NewPluginError, match="is there already"):
        new_plugin.bake("tasting", "lane", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(new_plugin.NewPluginError, match="expected one of lane, backend, sink; found 'fridge'"):
        new_plugin.bake("tasting", "fridge", tmp_path / "it")
