"""Each of our own plugins alone beside the core: what it brings comes with it and goes with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
OURS = {
    name: path
    for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))
    for name in tomllib.loads(path.read_text(encoding="utf-8"))["project"]["entry-points"]["neuronbench"]
}
NOBODY = "nobody"
"""Names no plugin: with it as the only one to load, there is the core alone."""


def run(*command: str, only: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NEURONBENCH_"))}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**environ, "NEURONBENCH_PLUGINS": only},
    )  # fmt: skip


def offered(only: str) -> dict[str, set[str]]:
    """What `neuronbench plugins`, `list --lanes` and `--help` name, with that plugin alone."""
    reports = json.loads(run("neuronbench", "plugins", "--json", only=only).stdout)
    lanes = json.loads(run("neuronbench", "list", "--lanes", "--json", only=only).stdout)
    kinds: dict[str, set[str]] = {"plugins": {report["name"] for report in reports}}
    for report in reports:
        assert report["ok"], report
        for kind, names in report["registers"].items():
            kinds.setdefault(kind, set()).update(names)
    assert {lane["lane"] for lane in lanes} == kinds["lanes"]
    commands = run("neuronbench", "--help", only=only).stdout.partition("Commands:")[2]
    kinds["commands"] = set(re.findall(r"^  (\w[\w-]*)  ", commands, flags=re.MULTILINE))
    return kinds


@pytest.fixture(scope="module")
def core() -> dict[str, set[str]]:
    return offered(NOBODY)


@pytest.mark.parametrize("name", OURS)
def test_a_plugin_alone_changes_what_is_offered(name: str, core: dict[str, set[str]]) -> None:
    found = offered(name)
    assert found["plugins"] == core["plugins"] | {name}
    new = {kind: names - core[kind] for kind, names in found.items() if kind != "plugins"}
    assert any(new.values())
    for kind, names in core.items():
        assert names <= found[kind], "nothing of the core goes where a plugin comes"
    for marker in sorted(new["lanes"] | new["backends"])[:1]:
        there = run("pytest", "benchmarks", "--collect-only", "-q", "-m", marker, only=name)
        assert there.returncode == 0, there.stdout + there.stderr
        assert "::bench_" in there.stdout
        gone = run("pytest", "benchmarks", "--collect-only", "-q", "-m", marker, only=NOBODY)
        assert gone.returncode == pytest.ExitCode.USAGE_ERROR
        assert marker in gone.stderr
