"""What of torch_neuronx and NKI is called: no more than is documented, all of it carried in the plugin's README.

The documented names are read from `reference/neuron_api_signatures.json` where `NEURONBENCH_SHARED` says where that is.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from neuron_boxes import PACKAGES, PROJECT, stacked, torch_python
from neuronbench_neuron.compiled import flags
from neuronbench_neuron.compiled.boot import HANDLERS

from neuronbench.testing.neuron import FakeBox

README = PROJECT / "plugins" / "neuron" / "README.md"
MODULES = {"neuronx": "torch_neuronx", "nki": "nki", "nl": "nki.language"}


def calls(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Name and keywords of each call of the SDK in a handler."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg for keyword in node.keywords if keyword.arg}
        func = node.func
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in MODULES:
            yield f"{MODULES[func.value.id]}.{func.attr}", keywords
        elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call):
            name = getattr(func.value.func, "id", "")
            if name in ("_nki", "_torch_neuronx"):
                yield f"{'nki' if name == '_nki' else 'torch_neuronx'}.{func.attr}", keywords
        elif isinstance(func, ast.Call) and getattr(func.func, "id", "") == "_placing":
            yield f"torch_neuronx.{ast.literal_eval(func.args[1])}", keywords


USED = sorted({(name, tuple(sorted(keywords))) for path in HANDLERS.glob("*.py") for name, keywords in calls(path)})


@pytest.fixture(scope="module")
def documented() -> Any:
    shared = os.environ.get("NEURONBENCH_SHARED")
    path = Path(shared or "", "reference", "neuron_api_signatures.json")
    if not shared or not path.is_file():
        pytest.skip("NEURONBENCH_SHARED does not name a folder with reference/neuron_api_signatures.json")
    return json.loads(path.read_text(encoding="utf-8"))


def parameters(told: Any) -> set[str]:
    return {*told.get("positional", ()), *told.get("kw_only", ()), *told.get("kw", ())}


def test_calls_are_found_at_all() -> None:
    names = {name for name, _ in USED}
    assert {
        "torch_neuronx.trace", "torch_neuronx.analyze", "torch_neuronx.DataParallel", "torch_neuronx.set_neuron_cores",
        "torch_neuronx.set_multicore", "torch_neuronx.lazy_load", "torch_neuronx.async_load", "nki.simulate_kernel",
        "nki.baremetal", "nki.benchmark", "nki.jit", "nki.language.store",
    } <= names  # fmt: skip
    assert ("torch_neuronx.trace", ("compiler_args", "compiler_workdir", "inline_weights_to_neff")) in USED


@pytest.mark.parametrize(("name", "keywords"), USED, ids=str)
def test_every_call_is_carried_with_its_arguments(name: str, keywords: tuple[str, ...]) -> None:
    rows = [row for row in README.read_text(encoding="utf-8").splitlines() if row.startswith("|")]
    module, _, attribute = name.rpartition(".")
    if module == "nki.language":
        assert any("`nki.language`" in row and f"`{attribute}`" in row for row in rows)
        return
    mine = [row for row in rows if re.search(rf"\b{module}\.{attribute}\b", row)]
    assert mine, f"{name} is not among the calls in {README}"
    for keyword in keywords:
        assert any(f"{keyword}=" in row for row in mine), f"{name}({keyword}=) is not among the calls in {README}"


def test_no_call_and_no_argument_goes_beyond_the_documentation(documented: Any) -> None:
    for name, keywords in USED:
        if name.startswith("torch_neuronx."):
            told = documented["callables"][name]
            assert set(keywords) <= parameters(told), name
    options = {name for entry in documented["cli_flags"]["neuronx-cc compile"] for name in entry.split("|")}
    given = {**flags.DEFAULTS, "dtype": "float32", "auto_cast": "all", "compiler_flags": {}}
    for target in ("trn1", "trn2"):
        for argument in flags.arguments(given, target=target, lnc=2):
            assert argument.partition("=")[0] in options


IN_STACK = """
import inspect, json, sys, torch_neuronx, torch_neuronx.experimental
found = {}
for name in json.loads(sys.argv[1]):
    module = torch_neuronx.experimental if ".experimental." in name else torch_neuronx
    target = getattr(module, name.rpartition(".")[2], None)
    found[name] = None if target is None else {
        each.name: each.kind.name for each in inspect.signature(target).parameters.values()
    }
print(json.dumps(found))
"""


def test_the_made_up_package_has_the_documented_parameters_and_no_others(documented: Any, tmp_path: Path) -> None:
    names = [name for name in documented["callables"] if name.startswith("torch_neuronx.")]
    with FakeBox("trn1.2xlarge", tmp_path / "box") as box:
        python = stacked(box) / "bin" / "python"
        done = subprocess.run(
            [python, "-W", "ignore", "-c", IN_STACK, json.dumps([*names, *documented["aliases"]])], env=box.environ(),
            capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    absent = {name.removeprefix("torch_neuronx.") for name, told in found.items() if told is None}
    assert absent == {"replace_weights", "bucket_model_trace"}  # nobody here calls them
    for name in names:
        if found[name] is not None:
            assert set(found[name]) == parameters(documented["callables"][name]), name
    trace = found["torch_neuronx.trace"]
    assert {each for each, kind in trace.items() if kind == "KEYWORD_ONLY"} == set(
        documented["callables"]["torch_neuronx.trace"]["kw_only"]
    )


@pytest.mark.parametrize("package", ["torch_neuronx", "neuronxcc.nki"])
def test_made_up_packages_refuse_a_host_that_is_real(package: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "NEURONBENCH_NEURON_ROOT"}
    done = subprocess.run(
        [torch_python(), "-c", f"import {package}"], env={**environ, "PYTHONPATH": str(PACKAGES)}, capture_output=True,
        text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 1
    assert "is a fake for made-up hosts, and this host is not one" in done.stderr
