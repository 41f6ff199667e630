"""The template, baked, installed and tested, as its user would do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neuronbench import cli, new_plugin
from neuronbench.plugins import Plugins
from neuronbench.testing.fake_backend import NAME as FAKE


def run(*command: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NEURONBENCH_"))}
    if path is not None:
        environ["PYTHONPATH"] = str(path)
    return subprocess.run([sys.executable, *command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=280)


NAMES = {"lane": "tasting", "backend": "brewing", "sink": "pouring"}
"""A plugin of each kind; of other names, so that they can be installed beside each other."""


@dataclass(frozen=True)
class Installed:
    """The plugins: their folders by kind, where they are installed, what `neuronbench plugins` says of each by name."""

    folders: Mapping[str, Path]
    site: Path
    reports: Mapping[str, Any]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("new")
    folders = {kind: home / f"it-{kind}" for kind in NAMES}
    for kind, name in NAMES.items():
        made = run("-m", "neuronbench", "new-plugin", name, "--kind", kind, "--dir", folders[kind].name, cwd=home)
        assert made.returncode == 0, made.stderr
        assert f"pip install -e {folders[kind].name}" in made.stdout
    site = home / "site"
    done = run(
        "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site),
        *map(str, folders.values()), cwd=home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listed = run("-m", "neuronbench", "plugins", "--json", cwd=home, path=site)
    return Installed(folders, site, {each["name"]: each for each in json.loads(listed.stdout)})


@pytest.mark.parametrize("kind", new_plugin.KINDS)
def test_a_new_plugin_installs_and_passes_its_own_tests(kind: str, installed: Installed, tmp_path: Path) -> None:
    name, folder = NAMES[kind], installed.folders[kind]
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())
    assert "$" not in text.replace("${{", ""), "something of the template was not replaced"

    report = installed.reports[name]
    assert (report["distribution"], report["ok"]) == (f"neuronbench-{name}", True)
    assert report["registers"][f"{kind}s"] == [name]

    # The installed package is tested, not the folder beside its tests.
    (folder / f"neuronbench_{name}").rename(tmp_path / "away")
    tested = run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder, path=installed.site)
    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout
    (tmp_path / "away").rename(folder / f"neuronbench_{name}")


@pytest.mark.parametrize("name", ["ox", "a_name_of_thirty_one_characters"])
@pytest.mark.parametrize("kind", new_plugin.KINDS)
def test_what_is_made_is_as_linters_want_it(kind: str, name: str, tmp_path: Path) -> None:
    new_plugin.bake(name, kind, tmp_path / "it")
    linted = run("-m", "ruff", "check", ".", cwd=tmp_path / "it")
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("name", [
    "Tasting", "1st", "a", "with-dash", "lambda", "benchmark", "tryfirst", "x" * 40, "täst",
    "ends_", "two__in_a_row",  # pip refuses a distribution that ends in a dash, and takes `--` for `-`
])  # fmt: skip
def test_a_name_that_cannot_be_a_marker_and_a_package_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(new_plugin.NewPluginError, match="expected 2 to 31 of the letters"):
        new_plugin.bake(name, "lane", tmp_path / "it")
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("serving", "lane", "the lane 'serving' is there already, of neuronbench.defaults"),
        ("serving", "backend", "the lane 'serving' is there already"),  # both are markers
        ("cpu", "lane", "the backend 'cpu' is there already, of neuronbench.backends.cpu"),
        ("mlflow", "sink", "the sink 'mlflow' is there already"),
        (FAKE, "lane", "of neuronbench.testing"),
        ("stock", "sink", "the plugin 'stock' is there already"),
    ],
)
def test_what_could_never_be_loaded_beside_what_is_installed_is_refused(name: str, kind: str, said: str) -> None:
    plugins = Plugins(entry_points=False)
    plugins.register(types.ModuleType("stock"), name="stock", source="test", strict=True)
    with pytest.raises(new_plugin.NewPluginError, match=said):
        new_plugin.check_free(name, kind, plugins)
    new_plugin.check_free(f"{name}_of_mine", kind, plugins)


def test_a_sink_is_no_marker_and_may_be_called_as_a_lane_is() -> None:
    new_plugin.check_free("serving", "sink", Plugins(entry_points=False))


def test_the_command_refuses_a_name_that_is_taken_and_quotes_the_folder_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-plugin", "serving"]) == 2
    assert "choose another name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert cli.main(["new-plugin", "tasting", "--dir", "my tasting"]) == 0
    assert "pip install -e 'my tasting'" in capsys.readouterr().out


def test_nothing_that_is_there_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(new_plugin.NewPluginError, match="is there already"):
        new_plugin.bake("tasting", "lane", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(new_plugin.NewPluginError, match="expected one of lane, backend, sink; found 'fridge'"):
        new_plugin.bake("tasting", "fridge", tmp_path / "it")
