"""The set-up behind `make`: finding a Python, prerequisites, environments made once and made again when broken.

Environments here are real but small: their pins are wheels made on the spot, and no package index is asked.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETUP = ROOT / "requirements"
sys.path.insert(0, str(SETUP))  # two scripts that belong to no package

import setup_env  # noqa: E402
from setup_env import Env, SetupError, ensure  # noqa: E402

TINY = Env(name="tiny", folder=".venv-tiny", lock="tiny", probe="import acme")


def wheel(folder: Path, name: str, version: str, source: str = "") -> None:
    """A wheel with one module."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n{source}")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


class Project:
    """A folder with requirements and a shelf of wheels."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "requirements").mkdir()
        (root / "build").mkdir()
        self.shelf = root / "shelf"
        for name, version in (("acme", "1.0"), ("acme", "2.0"), ("extra", "1.0")):
            wheel(self.shelf, name, version)
        self.pin("acme==1.0", "extra==1.0")

    def pin(self, *lines: str) -> None:
        (self.root / "requirements" / "tiny.txt").write_text("# pins\n" + "\n".join(lines) + "\n")

    def ensure(self, env: Env = TINY, **options: Any) -> bool:
        return ensure(env, self.root, ["--no-index", "--find-links", str(self.shelf)], **options)

    def pretend(self) -> None:
        """An environment as a finished set-up leaves it, without the set-up."""
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "bin" / "python").symlink_to(sys.executable)
        setup_env.write_stamp(self.folder, {"state": "ready", "folder": str(self.folder)})

    @property
    def folder(self) -> Path:
        return self.root / TINY.folder

    def stamp(self) -> dict[str, Any]:
        stamp: dict[str, Any] = json.loads((self.folder / setup_env.STAMP).read_text())
        return stamp

    def installed(self) -> dict[str, str]:
        script = (
            "import importlib.metadata as m, json;"
            "print(json.dumps({d.name: d.version for d in m.distributions() if d.name in ('acme', 'extra')}))"
        )
        done = subprocess.run(
            [self.folder / "bin" / "python", "-c", script], capture_output=True, text=True, check=True
        )
        found: dict[str, str] = json.loads(done.stdout)
        return found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


# -- environments -----------------------------------------------------------------------------------------------------


def test_an_environment_through_its_life(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    assert project.ensure()
    assert project.stamp()["state"] == "ready"
    assert project.installed() == {"acme": "1.0", "extra": "1.0"}
    out = capfd.readouterr().out
    assert "[tiny 1/3] make .venv-tiny with Python" in out
    assert "[tiny 2/3] install 2 pinned packages" in out
    assert "[tiny 3/3] check that it works: import acme" in out
    mark = project.folder / "mark"
    mark.touch()

    # nothing changed: nothing is done
    assert not project.ensure()
    assert capfd.readouterr().out == ""

    # other pins: what changed is installed, what is no longer pinned goes, the rest stays
    project.pin("acme==2.0")
    assert project.ensure()
    assert project.installed() == {"acme": "2.0"}
    assert mark.exists()
    assert not project.ensure()

    # a set-up that was cut off: made again
    setup_env.write_stamp(project.folder, {"state": "building"})
    capfd.readouterr()
    assert project.ensure()
    assert ".venv-tiny is made again: its set-up did not finish" in capfd.readouterr().out
    assert not mark.exists()
    assert project.installed() == {"acme": "2.0"}

    # a Python that is gone: made again
    (project.folder / "bin" / "python").unlink()
    (project.folder / "bin" / "python").symlink_to(project.root / "gone")
    assert project.ensure()
    assert "its Python does not run any more" in capfd.readouterr().out
    assert not project.ensure()


def test_a_pin_that_cannot_be_had_fails_and_is_not_taken_for_done(project: Project) -> None:
    project.pin("acme==9.9")
    with pytest.raises(SetupError) as caught:
        project.ensure()
    text = str(caught.value)
    assert "tiny: install 1 pinned packages failed with exit status 1" in text
    assert "| ERROR: No matching distribution found for acme==9.9" in text
    assert f"log:    {project.root / 'build' / 'setup-tiny.log'}" in text
    assert "try make PYTHON=python3.11" in text
    assert project.stamp()["state"] == "building"
    assert setup_env.why_remade(TINY, project.folder, "3.11", False) == "its set-up did not finish"


def test_an_environment_that_does_not_work_is_not_taken_for_done(project: Project) -> None:
    wheel(project.shelf, "acme", "3.0", "raise SystemExit('broken wheel')")
    project.pin("acme==3.0")
    with pytest.raises(SetupError, match=r"(?s)check that it works: import acme failed.*broken wheel"):
        project.ensure()
    assert project.stamp()["state"] == "building"


def test_an_environment_that_was_moved_is_made_again(project: Project) -> None:
    project.pretend()
    moved = Path(f"{project.root}-moved")
    project.root.rename(moved)
    assert setup_env.why_remade(TINY, moved / TINY.folder, "3.11", False) == f"it was made in {project.folder}"


def test_a_foreign_folder_is_left_alone(project: Project) -> None:
    project.folder.mkdir()
    (project.folder / "precious").touch()
    with pytest.raises(SetupError, match="was not made by this set-up, so it is left alone"):
        project.ensure()
    setup_env.remove(TINY, project.root)
    assert (project.folder / "precious").exists()


def test_another_python_is_only_taken_when_it_was_asked_for(project: Project) -> None:
    project.pretend()
    has = setup_env.python_of(project.folder)
    assert setup_env.why_remade(TINY, project.folder, "3.99", chosen=False) == ""
    assert setup_env.why_remade(TINY, project.folder, "3.99", chosen=True) == f"it has Python {has} and PYTHON is 3.99"


def test_some_packages_come_first_and_with_their_dependencies(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(setup_env, "run", lambda command, **_: commands.append([str(part) for part in command]))
    project.ensure(Env(name="tiny", folder=".venv-tiny", lock="tiny", probe="import acme", first=("acme",)))
    _, first, rest, probe = commands
    assert first[-2:] == [str(project.root / "requirements" / "tiny.txt"), "acme"]
    assert "--constraint" in first
    assert "--no-deps" not in first
    assert "--no-deps" in rest
    assert probe[-2:] == ["-c", "import acme"]


def test_projects_are_installed_again_when_their_metadata_changes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(setup_env, "run", lambda command, **_: commands.append([str(part) for part in command]))
    monkeypatch.setattr(setup_env, "python_of", lambda folder: "3.11")
    env = Env(name="tiny", folder=".venv-tiny", lock="tiny", probe="import acme", editable=True)
    for place in (".", "plugins/one", "plugins/template"):
        (project.root / place).mkdir(parents=True, exist_ok=True)
        (project.root / place / "pyproject.toml").write_text(f"[project]\nname = 'project{len(place)}'\n")
    assert project.ensure(env)
    (install,) = [command for command in commands if "--editable" in command]
    assert install[install.index("--editable") :] == [
        "--editable", str(project.root), "--editable", str(project.root / "plugins" / "one")
    ]  # fmt: skip
    assert not project.ensure(env)
    commands.clear()
    (project.root / "plugins" / "one" / "pyproject.toml").write_text("[project]\nname = 'renamed'\n")
    assert project.ensure(env)
    assert not any("--requirement" in command for command in commands)
    assert any("--editable" in command for command in commands)


# -- the script -------------------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project with the real scripts and nothing to install."""
    (tmp_path / "requirements").mkdir()
    for name in ("setup.sh", "setup_env.py", "steps.py"):
        shutil.copy(SETUP / name, tmp_path / "requirements")
    for name in ("harness.txt", "stack-cpu.txt"):
        (tmp_path / "requirements" / name).write_text("# nothing\n")
    return tmp_path


def script(clone: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHON", "CXX")}
    return subprocess.Popen(
        ["sh", str(clone / "requirements" / "setup.sh"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**inherited, **environ}, cwd=clone, start_new_session=True,
    )  # fmt: skip


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


@pytest.fixture
def bare_path(tmp_path: Path) -> Callable[..., str]:
    """A search path with the tools that the script itself needs, and made-up programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "dirname", "head", "env"):
        (folder / tool).symlink_to(str(shutil.which(tool)))

    def make(**programs: str) -> str:
        for name, body in programs.items():
            (folder / name.replace("_", ".")).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name.replace("_", ".")).chmod(0o755)
        return str(folder)

    return make


OLD = 'case "$1" in --version) echo Python 3.8.1;; *) exit 1;; esac'
NO_VENV = 'case "$*" in *ensurepip*) exit 1;; --version) echo Python 3.11.2;; *) exit 0;; esac'
GOOD = 'case "$*" in *ensurepip*|*version_info*) exit 0;; *) echo "chosen: $0 $*"; exit 7;; esac'
BROKEN = "echo 'command not found' >&2; exit 127"


def test_no_python_at_all(clone: Path, bare_path: Callable[..., str]) -> None:
    status, _, err = outcome(script(clone, "ensure", "harness", PATH=bare_path()))
    assert status == 1
    assert "no usable Python was found on PATH" in err
    assert "needed: Python 3.11 to 3.14" in err
    assert "found:  none" in err


def test_only_an_old_python(clone: Path, bare_path: Callable[..., str]) -> None:
    status, _, err = outcome(script(clone, "ensure", "harness", PATH=bare_path(python3=OLD)))
    assert status == 1
    assert "python3 (Python 3.8.1)" in err
    assert "PYTHON=/path/to/python3.11" in err


def test_a_python_without_venv(clone: Path, bare_path: Callable[..., str]) -> None:
    status, _, err = outcome(script(clone, "ensure", "harness", PATH=bare_path(python3=NO_VENV)))
    assert status == 1
    assert "python3 (Python 3.11.2) has no venv module" in err
    assert "apt-get install python3-venv" in err


def test_the_first_python_that_works_is_taken(clone: Path, bare_path: Callable[..., str]) -> None:
    path = bare_path(python3_11=BROKEN, python3_12=NO_VENV, python3_13=GOOD, python3=OLD)
    status, out, _ = outcome(script(clone, "ensure", "harness", PATH=path))
    assert status == 7  # handed over, status and all
    assert out.startswith(f"chosen: {path}/python3.13")
    assert out.endswith("setup_env.py ensure harness\n")


def test_a_named_python_is_taken_or_refused(clone: Path, bare_path: Callable[..., str]) -> None:
    path = bare_path(mine=GOOD, old=OLD, python3_11=GOOD)
    assert outcome(script(clone, "x", PATH=path, PYTHON=f"{path}/mine"))[1].startswith(f"chosen: {path}/mine")
    status, out, err = outcome(script(clone, "x", PATH=path, PYTHON=f"{path}/old"))
    assert (status, out) == (1, "")
    assert f"PYTHON={path}/old cannot be used" in err
    assert "found:  Python 3.8.1" in err
    assert outcome(script(clone, "x", PATH=path, PYTHON=f"{path}/missing"))[0] == 1


def test_no_compiler(clone: Path, bare_path: Callable[..., str]) -> None:
    path = bare_path()
    status, _, err = outcome(script(clone, "ensure", "stack", PATH=path, PYTHON=sys.executable))
    assert status == 1
    assert "a C++ compiler is needed" in err
    assert "none of c++, g++, clang++ on PATH" in err
    assert "apt-get install g++" in err
    assert not (clone / ".venv-cpu").exists()
    err = outcome(script(clone, "ensure", "stack", PATH=path, PYTHON=sys.executable, CXX="my-c++ -O2"))[2]
    assert "none of my-c++ on PATH (CXX is set)" in err


def test_the_script_makes_an_environment_once_and_removes_it(clone: Path) -> None:
    status, out, err = outcome(script(clone, "ensure", "harness", PYTHON=sys.executable))
    assert (status, err) == (0, "")
    assert "make .venv with Python" in out
    assert outcome(script(clone, "ensure", "harness", PYTHON=sys.executable)) == (0, "", "")
    assert outcome(script(clone, "remove", "harness", "stack"))[1] == f"removed {clone / '.venv'}\n"
    assert not (clone / ".venv").exists()


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "did not happen within a minute"
        time.sleep(0.01)


def test_an_interrupted_set_up_is_made_again(clone: Path) -> None:
    process = script(clone, "ensure", "harness", PYTHON=sys.executable)
    wait_for(lambda: (clone / ".venv" / "pyvenv.cfg").exists(), process)
    os.killpg(process.pid, signal.SIGINT)
    status, _, err = outcome(process)
    assert status == 130
    assert "interrupted; what was half made is made again next time" in err
    assert json.loads((clone / ".venv" / setup_env.STAMP).read_text()) == {"state": "building"}
    status, out, _ = outcome(script(clone, "ensure", "harness", PYTHON=sys.executable))
    assert status == 0
    assert "is made again: its set-up did not finish" in out
    assert setup_env.python_of(clone / ".venv")


def test_two_set_ups_in_one_folder_run_one_after_the_other(clone: Path) -> None:
    (clone / "build").mkdir()
    (clone / ".venv").mkdir()
    with (clone / "build" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = script(clone, "remove", "harness", PYTHON=sys.executable)
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting for another set-up in this folder to finish\n"
        assert process.poll() is None
    status, out, _ = outcome(process)
    assert (status, out) == (0, f"left alone: {clone / '.venv'} was not made by this set-up\n")


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_other_systems_are_told_what_they_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, stack = setup_env.ENVS["harness"], setup_env.ENVS["stack"]
    monkeypatch.setattr(sys, "platform", "darwin")
    setup_env.check_prerequisites(harness)
    with pytest.raises(SetupError, match="the CPU stack is made for Linux"):
        setup_env.check_prerequisites(stack)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SetupError, match="neuronbench runs on Linux and macOS"):
        setup_env.check_prerequisites(harness)


def test_a_full_disk_is_a_warning(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(project.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_500_000_000))
    setup_env.warn_about_space(setup_env.ENVS["stack"], project.root)
    assert capfd.readouterr().err.startswith("warning: 1.5 GB free")
    setup_env.warn_about_space(setup_env.ENVS["harness"], project.root)
    assert capfd.readouterr().err == ""


def test_pins_are_read_with_their_markers(project: Project) -> None:
    project.pin("Some_Thing==1.0", "", 'other==2 ; platform_machine == "x86_64"', "# comment")
    pins = setup_env.read_pins(project.root / "requirements" / "tiny.txt")
    assert pins == {"some-thing": "Some_Thing==1.0", "other": 'other==2 ; platform_machine == "x86_64"'}


@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("bench", ["ensure harness", "ensure stack", "models fetch --role smoke", "pytest benchmarks -m cpu"]),
        ("test", ["ensure harness", "ensure stack", "-m pytest"]),
        ("ui", ["ensure harness", "neuronbench ui"]),
        ("lint", ["ensure harness", "ruff check", "ruff format --check", "mypy", "lint-imports"]),
    ],
)
def test_what_make_would_run(target: str, commands: list[str]) -> None:
    make = shutil.which("make")
    assert make is not None, "make is needed"
    done = subprocess.run([make, "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True)
    place = 0
    for command in commands:
        place = done.stdout.find(command, place)
        assert place >= 0, f"{command!r} is missing, or out of order, in:\n{done.stdout}"
