"""Every command line for vLLM on Neuron, asked of the real parser of the vLLM it is for.

The parsers are Python files of vLLM's own wheels; `plugins/neuron/tools/check_parsers.py` fetches them. Tests that need
them are skipped where they are not, unless NEURONBENCH_FETCH_PARSERS says to fetch them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("neuronbench_neuron", reason="plugins/neuron is not installed: make harness")

from neuronbench_neuron.serving.generations import generations

pytestmark = pytest.mark.timeout(900)  # importing six vLLMs is a minute of two cores that nobody else uses

PROJECT = Path(__file__).parents[3]
TOOL = PROJECT / "plugins/neuron/tools/check_parsers.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_parsers", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_parsers"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def asked(tool: ModuleType) -> dict[str, Any]:
    """vLLM → what its parser said of all lines for it, and its options."""
    cache: Path = tool.default_cache()
    missing = [version for version in tool.WHEELS if tool.parser_folder(cache, version) is None]
    if missing and os.environ.get("NEURONBENCH_FETCH_PARSERS"):
        try:
            for version in missing:
                tool.fetch(cache, version)
        except RuntimeError as error:
            pytest.skip(f"parsers cannot be fetched: {error}")
    elif missing:
        pytest.skip(f"no parsers of vLLM {', '.join(missing)} in {cache}: python {TOOL.relative_to(PROJECT)}")
    told = os.environ.get("NEURONBENCH_TEST_STACK")
    python = Path(told) if told and Path(told).is_file() else Path(told or PROJECT / ".venv-cpu") / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no interpreter with torch and transformers: {python} (make stack)")
    found: dict[str, Any] = tool.ask_all(python, cache)
    return found


def test_every_generation_has_a_parser_and_lines_for_it(tool: ModuleType) -> None:
    lines = {version: tool.command_lines(version) for version in tool.WHEELS}
    assert {generation for found in lines.values() for generation, _ in found} == {one.id for one in generations()}
    assert all(len(found) >= 10 for found in lines.values())


def test_every_line_is_taken_by_the_real_parser(asked: dict[str, Any]) -> None:
    refused = {
        f"{answer.generation} on vLLM {version}: {' '.join(answer.argv)}": answer.error
        for version, (answers, _) in asked.items()
        for answer in answers
        if answer.error
    }
    assert refused == {}
    assert all(answers for answers, _ in asked.values())


def test_the_made_up_parsers_have_exactly_the_options_of_the_real_ones(tool: ModuleType, asked: dict[str, Any]) -> None:
    real = tool.written({version: options for version, (_, options) in asked.items()})
    assert json.loads(real) == json.loads(tool.OPTIONS.read_text(encoding="utf-8"))
