"""Settings: what wins over what, and messages that name the key, what was expected and what was found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from neuronbench.config import CONFIG_FILE, ConfigError, Deadlines, Settings, find_root, load


def write(folder: Path, text: str) -> Path:
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    return folder


def settings(folder: Path, *, environ: dict[str, str] | None = None, **overrides: Any) -> Settings:
    return load(folder, environ=environ or {}, overrides=overrides)


def test_without_any_file_the_defaults_hold(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert found.root == tmp_path
    assert found.receipts_dir == tmp_path / "mlruns" / "receipts"
    assert found.mlflow_uri == f"sqlite:///{tmp_path}/mlruns/mlflow.db"
    assert found.grid_dirs == (tmp_path / "benchmarks" / "grids",)
    assert (found.grid, found.repeats, found.deadlines) == ("quick", 1, Deadlines())


def test_the_command_line_wins_over_the_environment_over_the_file(tmp_path: Path) -> None:
    write(tmp_path, 'repeats = 2\ngrid = "file"\ntraces = 5\n[deadlines]\nboot = 10\npoint = 20\nstop = 30\n')
    environ = {
        "NEURONBENCH_REPEATS": "3", "NEURONBENCH_GRID": "env",
        "NEURONBENCH_DEADLINES_BOOT": "11", "NEURONBENCH_DEADLINES_POINT": "21",
    }  # fmt: skip
    found = settings(tmp_path, environ=environ, repeats=4, grid=None, deadlines={"boot": 12.0})
    assert (found.repeats, found.grid, found.traces) == (4, "env", 5)
    assert (found.deadlines.boot, found.deadlines.point, found.deadlines.stop) == (12.0, 21.0, 30.0)
    assert found.deadlines.request == Deadlines().request


def test_stacks_say_where_they_were_named(tmp_path: Path) -> None:
    write(tmp_path, '[stacks]\nserving = "/a"\ntrain = "/b"\n')
    found = settings(tmp_path, stacks={"serving": "/c"})
    assert found.stacks == {"serving": "/c", "train": "/b"}
    assert found.stack_sources == {"serving": "--nb-stack", "train": CONFIG_FILE}


def test_a_tokenizer_is_of_a_running_server_and_there(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    write(tmp_path, 'endpoint = "http://x:1"\ntokenizer = "model"\n')
    assert settings(tmp_path).tokenizer == tmp_path / "model"
    file = tmp_path / "model" / "tokenizer.json"
    assert settings(tmp_path, tokenizer=str(file)).tokenizer == file
    for bad in (str(tmp_path), str(tmp_path / "nothing" / "tokenizer.json")):
        with pytest.raises(ConfigError, match=r"expected a tokenizer\.json or a folder that has one"):
            settings(tmp_path, tokenizer=bad)
    with pytest.raises(ConfigError, match="name that with endpoint"):
        settings(tmp_path, endpoint="", tokenizer=str(file))


def test_paths_are_relative_to_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    write(project, 'data_root = "results"\ngrid_dirs = ["grids", "/elsewhere"]\n')
    monkeypatch.chdir(tmp_path)
    found = settings(project)
    assert found.data_root == project / "results"
    assert found.grid_dirs == (project / "grids", Path("/elsewhere"))
    assert found.database == project / "results" / "mlflow.db"


def test_the_cache_follows_the_users_choice(tmp_path: Path) -> None:
    assert settings(tmp_path, environ={"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/neuronbench")
    assert settings(tmp_path, environ={"NEURONBENCH_CACHE_DIR": "/y"}).cache_dir == Path("/y")
    assert settings(tmp_path).cache_dir == Path.home() / ".cache" / "neuronbench"


def test_several_grid_folders_in_a_variable(tmp_path: Path) -> None:
    assert settings(tmp_path, environ={"NEURONBENCH_GRID_DIRS": "/a:/b"}).grid_dirs == (Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("uri", "expected"), [("off", ""), ("http://mlflow.example:5000", "http://mlflow.example:5000")]
)
def test_where_mlflow_is(tmp_path: Path, uri: str, expected: str) -> None:
    assert settings(tmp_path, tracking_uri=uri).mlflow_uri == expected


def test_the_project_is_the_nearest_folder_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    assert find_root(inner) in (inner, *inner.parents)
    (tmp_path / "a" / "pyproject.toml").write_text("")
    assert find_root(inner) == tmp_path / "a"
    write(tmp_path, "")
    assert find_root(inner) == tmp_path
    monkeypatch.chdir(inner)
    assert load(environ={}).root == tmp_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("repeat = 3", r"unknown key 'repeat' \(did you mean 'repeats'\?\); known: .*deadlines"),
        ("repeats = 'three'", "repeats: expected int, found 'three'"),
        ("repeats = true", "repeats: expected int, found True"),
        ("repeats = 0", "repeats: expected a whole number from 1, found 0"),
        ("port = 70000", "port: expected 0 to 65535, found 70000"),
        ("traces = -1", "traces: expected 0 or more, found -1"),
        ("grid = 3", "grid: expected str, found 3"),
        ("stacks = 3", r"stacks is a table \(\[stacks\]\); found 3"),
        ("[stacks]\nserving = 3", "stacks.serving: expected str, found 3"),
        ("[deadlines]\nboots = 3", r"deadlines.boots: unknown deadline \(did you mean 'boot'\?\); known: boot"),
        ("[deadlines]\nboot = 0", "deadlines.boot: expected seconds above 0, found 0"),
        ("[deadlines]\nboot = inf", "deadlines.boot: expected seconds above 0, found inf"),
        ("[deadlines]\nboot = nan", "deadlines.boot: expected seconds above 0, found nan"),
        ("[deadlines]\nboot = true", "deadlines.boot: expected seconds above 0, found True"),
        ("repeats = ", "not valid TOML"),
    ],
)
def test_a_wrong_file_says_what_is_wrong_and_where(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        settings(tmp_path)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NEURONBENCH_REPEATS": "many"}, "NEURONBENCH_REPEATS: expected int, found 'many'"),
        ({"NEURONBENCH_DEADLINES_BOOT": "soon"}, "NEURONBENCH_DEADLINES_BOOT: expected seconds above 0, found 'soon'"),
    ],
    ids=["number", "seconds"],
)
def test_a_wrong_variable_is_named(tmp_path: Path, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, environ=environ)


def test_settings_are_frozen(tmp_path: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings(tmp_path).repeats = 2  # type: ignore[misc]


def test_a_project_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("words")
    with pytest.raises(ConfigError, match=r"gone: expected the project's folder, found nothing of that name"):
        settings(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"README\.md: expected the project's folder, found a file of that name"):
        settings(file)
    with pytest.raises(ConfigError, match=r"data_root: expected a folder, found a file: .*README\.md"):
        settings(tmp_path, data_root=str(file))
    assert settings(tmp_path, data_root="made_later").data_root == tmp_path / "made_later"
