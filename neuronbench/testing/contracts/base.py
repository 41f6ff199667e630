"""What holds for every plugin, whatever it brings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final

import pytest

from neuronbench import config
from neuronbench.plugins import API_VERSION, Plugins, load_target

HEAVY: Final = (
    "torch", "vllm", "transformers", "optimum", "torch_neuronx", "mlflow", "boto3", "numpy", "pandas", "scipy",
)  # fmt: skip
"""What loading a plugin must not import: `neuronbench --help` and pytest's collection load every plugin."""


class PluginContract:
    """Subclass it as `Test...` and name the module with the hooks."""

    plugin: ClassVar[ModuleType]

    @pytest.fixture
    def plugins(self) -> Plugins:
        """The plugin host with the core's plugins, the installed ones and this one."""
        found = Plugins()
        if not found.pm.is_registered(self.plugin):
            found.register(self.plugin, name=self.plugin.__name__, source="entry point", strict=True)
        return found

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Any:
        """Settings of an empty project: nothing of the machine's own configuration gets in."""
        return config.load(tmp_path, environ={"XDG_CACHE_HOME": str(tmp_path / "cache")})

    @property
    def name(self) -> str:
        return self.plugin.__name__

    def owner(self, plugins: Plugins) -> str:
        """The name under which the host knows this plugin."""
        return str(plugins.pm.get_name(self.plugin))

    def test_it_says_for_which_hooks_it_was_written(self) -> None:
        """Without it a later major version cannot refuse the plugin, and fails somewhere in the middle instead."""
        declared = str(getattr(self.plugin, "NEURONBENCH_API", ""))
        major = declared.partition(".")[0]
        assert major == str(API_VERSION[0]), (
            f'{self.name}: expected NEURONBENCH_API = "{API_VERSION[0]}.{API_VERSION[1]}" (or the version it was '
            f"written for), found {declared!r}"
        )

    def test_loading_it_imports_nothing_heavy(self) -> None:
        """`neuronbench --help` and `pytest --collect-only` load every plugin that is installed."""
        code = (
            f"import sys\nimport neuronbench.plugins\nbefore = set(sys.modules)\nimport {self.name}\n"
            f"print(*sorted({HEAVY!r} & (set(sys.modules) - before)))".replace(f"{HEAVY!r} &", f"set({HEAVY!r}) &")
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
            env=_with_path(), cwd=Path(self.plugin.__file__ or ".").parent,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = done.stdout.split()
        assert not found, f"{self.name} imports {', '.join(found)} when it is loaded: name a lazy target instead"

    def test_what_it_registers_can_be_imported(self, plugins: Plugins) -> None:
        """Targets are imported on first use: a misspelt one would show only on the hardware."""
        owner = self.owner(plugins)
        registries: tuple[Any, ...] = (plugins.backends, plugins.providers, plugins.sinks)
        targets = [info.target for each in registries for info in each if each.owner(info.name) == owner]
        for target in targets:
            assert callable(load_target(target)), f"{target} is not a class"

    def test_its_hooks_are_known(self, plugins: Plugins) -> None:
        """A hook that no spec has is never called."""
        assert plugins.reports[self.owner(plugins)].hooks, f"{self.name} implements no hook"


def _with_path() -> dict[str, str]:
    """The environment of a child that can import what this process can."""
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)}
