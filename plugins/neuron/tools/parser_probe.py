"""Asks the argument parser of a real vLLM: run by `check_parsers.py` with a Python that has torch and transformers.

    python parser_probe.py FOLDER < questions.json

FOLDER has vLLM's Python files, without its compiled ones. Standard input is a JSON list of command lines; standard
output gets a JSON object: `version`, `answers` (an error in one line for each, empty for an accepted one), `options`.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from typing import Any

ABSENT = ("diskcache",)
"""Packages that importing the parser needs and parsing does not."""


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets `import` succeed for packages that are not there."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: type(name, (), {})  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def parser() -> argparse.ArgumentParser:
    """The server's own parser, on a platform that is none of vLLM's."""
    from transformers import AutoConfig

    register = AutoConfig.register
    # newer transformers know some of the models that an older vLLM brings itself
    AutoConfig.register = staticmethod(lambda name, config, exist_ok=True: register(name, config, exist_ok=True))
    import vllm.platforms as platforms
    from vllm.platforms.interface import Platform, PlatformEnum

    class Neuron(Platform):
        _enum = PlatformEnum.OOT
        device_name = "neuron"
        device_type = "cpu"
        dispatch_key = "CPU"

    platforms._current_platform = Neuron()
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    from vllm.entrypoints.openai.cli_args import make_arg_parser

    made: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return made


def answer(made: argparse.ArgumentParser, argv: Sequence[str]) -> str:
    """Why the parser refuses a command line; empty when it takes it."""
    said: list[str] = []

    def error(message: str) -> None:
        said.append(message)
        raise SystemExit(2)

    made.error = error  # type: ignore[method-assign,assignment]
    try:
        made.parse_args(list(argv))
    except SystemExit:
        return said[0] if said else "it ended"
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    return ""


def options(made: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Every option: its names, what kind it is, its choices."""
    found = {}
    for action in made._actions:
        names, kind = list(action.option_strings), type(action).__name__
        if not names or kind == "_HelpAction":
            continue
        found[names[0]] = {
            "names": names,
            "kind": _kind(action, getattr(action.type, "__name__", str(action.type))),
            "choices": [str(choice) for choice in action.choices] if action.choices else None,
        }
    return found


def _kind(action: argparse.Action, type_name: str) -> str:
    by_class = {"BooleanOptionalAction": "bool", "_StoreTrueAction": "switch"}.get(type(action).__name__)
    if by_class:
        return by_class
    if action.nargs in ("?", "+", "*"):
        return "optional" if action.nargs == "?" else "values"
    if type_name in ("int", "human_readable_int", "human_readable_int_or_auto"):
        return "int"
    if type_name == "float":
        return "float"
    return "json" if type_name in ("loads", "_parse_type", "union_dict_and_str", "parse_dataclass") else "value"


def main() -> None:
    folder = sys.argv[1]
    questions = json.load(sys.stdin)
    sys.path.insert(0, folder)
    sys.meta_path.append(Absent())
    made = parser()
    import vllm

    said = {
        "version": vllm.__version__,
        "options": options(made),
        "answers": [answer(made, argv) for argv in questions],
    }
    print("\n" + json.dumps(said))


if __name__ == "__main__":
    main()
