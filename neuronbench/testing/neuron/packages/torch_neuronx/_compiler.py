"""The made-up compiler: flags, a NEFF, a working folder and a cache as the real one's, and errors to order."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from . import _runtime

DEFAULT_CACHE = "var/tmp/neuron-compile-cache"
"""Below the root of the made-up host: that of a real one is none of its business."""
TARGETS = ("inf2", "trn1", "trn1n", "trn2")
FLAGS: dict[str, tuple[str, ...] | None] = {
    "--framework": ("XLA",),
    "--target": TARGETS,
    "--model-type": ("generic", "transformer", "unet-inference"),
    "--auto-cast": ("none", "matmult", "all"),
    "--auto-cast-type": ("bf16", "fp16", "tf32", "fp8_e4m3"),
    "--optlevel": ("1", "2", "3"),
    "--logical-nc-config": ("1", "2"),
    "--distribution-strategy": ("llm-training",),
    "--output": None,
    "--logfile": None,
    "--verbose": None,
    "--cache_dir": None,
}
"""Options with a value, and which; None: any."""
SWITCHES = ("--enable-fast-loading-neuron-binaries", "--retry_failed_compilation", "--native-int64")
SHORT = {"-lnc": "--logical-nc-config", "--lnc": "--logical-nc-config", "-O": "--optlevel"}


def version_of(name: str, default: str) -> str:
    """What the environment claims to have."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return default


__version__ = version_of("torch-neuronx", "2.8.0.2.10.16998")
COMPILER = version_of("neuronx-cc", "2.21.33363.0+82129205")


class Options:
    """Options of the compiler, checked. Raises `RuntimeError` for what it does not know."""

    def __init__(self, given: Sequence[str]) -> None:
        self.given = list(given)
        self.values: dict[str, str] = {}
        words = iter(self.given)
        for word in words:
            name, equals, value = word.partition("=")
            if name.startswith("-O") and len(name) == 3:
                name, equals, value = "-O", "=", name[2]
            name = SHORT.get(name, name)
            if name in SWITCHES:
                self.values[name] = ""
                continue
            if name not in FLAGS:
                failed(f"neuronx-cc: error: unrecognized arguments: {word}", 2)
            value = value if equals else next(words, "")
            allowed = FLAGS[name]
            if allowed is not None and value not in allowed:
                failed(f"neuronx-cc: error: argument {name}: invalid choice: {value!r} (choose from {allowed})", 2)
            self.values[name] = value
        family = _runtime.state()["instance"][:4]
        self.target = self.values.get("--target") or ("trn1" if family == "inf2" else family)
        told = self.values.get("--logical-nc-config")
        if told and self.target in ("trn1", "trn1n", "inf2"):
            failed(f"[NCC_EARG001] invalid LNC for target: --logical-nc-config={told} on {self.target}", 1)
        self.lnc = int(told) if told else 2 if self.target == "trn2" else 1
        cast = self.values.get("--auto-cast", "none")
        self.bf16 = cast != "none" and self.values.get("--auto-cast-type", "bf16") == "bf16"


def parsed(arguments: Any) -> Options:
    """`compiler_args`: a string or a list of them."""
    if arguments is None:
        return Options(())
    return Options(shlex.split(arguments) if isinstance(arguments, str) else [str(each) for each in arguments])


def failed(text: str, status: int) -> Any:
    print(text, file=sys.stderr, flush=True)
    raise RuntimeError(f"neuronx-cc failed with {status}")


def compiled(hlo: bytes, graph: bytes, told: dict[str, Any], options: Options, work: Path) -> bytes:
    """The NEFF of a graph, as a run of the compiler makes it in the folder `work`."""
    order = os.environ.get("NEURONBENCH_FAKE_COMPILE_ERROR")
    work.mkdir(parents=True, exist_ok=True)
    flags = [f"--target={options.target}", *(each for each in options.given if not each.startswith("--target"))]
    (work / "graph.hlo").write_bytes(hlo)
    command = f"neuronx-cc compile graph.hlo --framework XLA {' '.join(flags)} --output graph.neff --verbose=35"
    (work / "command.txt").write_text(command + "\n", encoding="utf-8")
    if order:
        status, colon, text = order.partition(":")
        code = int(status) if colon and status.lstrip("-").isdigit() else 70
        text = text if colon and status.lstrip("-").isdigit() else order
        (work / "log-neuron-cc.txt").write_text(f"ERROR: {text}\n", encoding="utf-8")
        failed(text, code)
    info = {**told, "target": options.target, "lnc": options.lnc, "bf16": options.bf16, "compiler": COMPILER}
    neff = _runtime.packed(info, graph)
    (work / "graph.neff").write_bytes(neff)
    (work / "log-neuron-cc.txt").write_text("Compiler status PASS\n", encoding="utf-8")
    return neff


# -- the cache of lazily compiled graphs ------------------------------------------------------------------------------


def cached(hlo: bytes, options: Options, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, kept as libneuronxla keeps it: a module's folder, a lock while it is made, failures too."""
    base = Path(
        options.values.get("--cache_dir")
        or os.environ.get("NEURON_COMPILE_CACHE_URL")
        or _runtime.root() / DEFAULT_CACHE
    )
    flags = sorted(options.given)
    graph = str(int.from_bytes(hashlib.sha256(hlo).digest()[:8], "big"))
    digest = hashlib.md5(json.dumps(flags).encode(), usedforsecurity=False).hexdigest()[:8]
    name = f"MODULE_{graph}+{digest}"
    folder = base / f"neuronxcc-{COMPILER}" / name
    if (folder / "model.done").is_file():
        _say("INFO", f"Using a cached neff at {folder}/model.neff. Exiting with a successfully compiled graph.")
        return (folder / "model.neff").read_bytes()
    if (folder / "model.log").is_file() and "--retry_failed_compilation" not in options.values:
        _say(
            "ERROR",
            f"Got a cached failed neff at {folder}/model.neff. Will skip compilation, please set "
            "--retry_failed_compilation for recompilation:",
        )
        raise RuntimeError("Got a cached failed neff")
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "model.hlo_module.pb.lock"
    lock.touch()
    (folder / "model.hlo_module.pb").write_bytes(hlo)
    (folder / "compile_flags.json").write_text(json.dumps([f"--target={options.target}", *flags]), encoding="utf-8")
    command = f"neuronx-cc compile --target={options.target} --framework=XLA model.{name}.hlo_module.pb"
    _say("INFO", f"Call compiler with cmd: {command} --output model.{name}.neff --verbose=35")
    try:
        neff = make()
    except RuntimeError as error:
        (folder / "model.log").write_text(f"{error}\n", encoding="utf-8")
        _say("ERROR", f"Compilation failed for model.{name}.hlo_module.pb after 0 retries.")
        raise
    finally:
        lock.unlink(missing_ok=True)
    (folder / "model.neff").write_bytes(neff)
    (folder / "model.done").touch()
    print("Compiler status PASS", file=sys.stderr, flush=True)
    return neff


def _say(level: str, text: str) -> None:
    at = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    print(f"{at}:  {os.getpid()}  {level} ||NEURON_CC_WRAPPER||: {text}", file=sys.stderr, flush=True)
