"""A fake `neuron_parallel_compile`: runs a command that only collects graphs, then compiles what it has collected.

`neuron_parallel_compile [--command collect|compile] COMMAND ...`, as a program of a (fake) environment's `bin`.
Compiling is made up: each graph in the cache without a NEFF gets one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    command = ""
    if arguments[:1] == ["--command"]:
        command, arguments = arguments[1], arguments[2:]
    if command not in ("", "collect", "compile") or not arguments:
        words = "[--command {collect,compile,clean,clear-locks,analyze}] COMMAND"
        print(f"usage: neuron_parallel_compile {words}", file=sys.stderr)
        return 2
    root = Path(os.environ["NEURONBENCH_NEURON_ROOT"])
    told = os.environ.get("NEURON_COMPILE_CACHE_URL") or str(root / "var/tmp/neuron-compile-cache")
    cache = root / "var/tmp/stores" / told.replace("://", "/") if "://" in told else Path(told)
    if command != "compile":
        done = subprocess.run(arguments, env={**os.environ, "NEURON_EXTRACT_GRAPHS_ONLY": "1"})
        if done.returncode:
            print(f"||NEURON_PARALLEL_COMPILE||: Failed to run the command, status {done.returncode}", file=sys.stderr)
            return done.returncode
    took = {}
    for folder in sorted(cache.glob("neuronxcc-*/MODULE_*")):
        if not (folder / "model.done").exists():
            time.sleep(float(os.environ.get("NEURONBENCH_FAKE_COMPILE_MS", "100")) / 4e3)  # several at a time
            (folder / "model.neff").write_bytes(b"NEFF")
            (folder / "model.done").write_text("", encoding="utf-8")
            took[folder.name] = {"status": True, "compile_time": 0.1}
    print(f"||NEURON_PARALLEL_COMPILE||: Total graphs: {len(took)}", file=sys.stderr)
    if os.environ.get("NEURON_PARALLEL_COMPILE_DUMP_RESULTS") == "1":
        Path("neuron_parallel_compile_results.json").write_text(json.dumps(took), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
