"""A stand-in for `neuron-ls`, run as a program of its own: standard library only, knows nothing but its box.

What it answers is in `<root>/run/neuron/neuron-ls.json`; who holds cores is in `<root>/run/neuron/holders/*.json`,
each `{"pid", "cores", "command", "neuron_runtime_version"}` and left out once the process is gone, unless `"static"` is
true.

It answers only to those who look at its box on purpose (`NEURONBENCH_NEURON_ROOT`): it can never stand in for the real
tool on a real host.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT_VARIABLE = "NEURONBENCH_NEURON_ROOT"
KNOWN = {"-j", "--json-output", "-a", "--show-all-procs", "-w", "--wide", "-t", "--topology"}
NO_DEVICE = 'level=fatal msg="Failed to load MLA system information" error="failed to discover Neuron devices"'


def main(argv: list[str], root: Path) -> int:
    """Behave as the tool does; returns its exit status."""
    if os.path.realpath(os.environ.get(ROOT_VARIABLE, "/nonexistent")) != os.path.realpath(root):
        sys.stderr.write(f"this neuron-ls is a fake of the box {root}: set {ROOT_VARIABLE} to it\n")
        return 1
    state = json.loads((root / "run/neuron/neuron-ls.json").read_text(encoding="utf-8"))
    unknown = [argument for argument in argv if argument not in KNOWN]
    if unknown:  # the real one complains on its standard output
        sys.stdout.write(f"flag provided but not defined: {unknown[0]}\n")
        return 1
    fault = state["fault"]
    if fault == "slow":
        time.sleep(state["seconds"])
    if fault == "no_device" or not list((root / "dev").glob("neuron*")):
        sys.stderr.write(NO_DEVICE + "\n")
        return 1
    if fault == "crash":
        sys.stderr.write("panic: runtime error: index out of range [8] with length 8\n")
        return 2
    if fault == "garbage":
        sys.stdout.write("+--------+--------+\n| NEURON | NEURON |\n")
        return 0
    devices = state["devices"]
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict) and device.get("neuron_processes") == []:
            device["neuron_processes"] = holders(root, set(device.get("neuroncore_ids") or ()))
    text = json.dumps(devices, indent=4) if {"-j", "--json-output"} & set(argv) else table(state["instance"], devices)
    sys.stdout.write(text[: len(text) // 2] if fault == "truncated" else text)  # no newline after the last bracket
    return 0


def holders(root: Path, cores: set[int]) -> list[dict[str, Any]]:
    """Processes that hold any of these cores."""
    found = []
    for path in sorted((root / "run/neuron/holders").glob("*.json")):
        try:
            holder = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # being written
        if cores & set(holder["cores"]) and (holder.get("static") or alive(holder["pid"])):
            found.append(
                {
                    "pid": holder["pid"],
                    "command": holder["command"],
                    "neuron_runtime_version": holder.get("neuron_runtime_version", "2.30.51.0"),
                }
            )
    return found


def alive(pid: int) -> bool:
    """Whether that process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def table(instance: str, devices: Any) -> str:
    """The form for people: instance type above, a line for each device."""
    lines = [f"instance-type: {instance}", "instance-id: i-0123456789abcdef0", "DEVICE  CORES  MEMORY  PIDS"]
    for device in devices:
        pids = ",".join(str(process["pid"]) for process in device["neuron_processes"])
        memory = f"{device['memory_size'] >> 30} GB"
        lines.append(f"{device['neuron_device']:<8}{device['nc_count']:<7}{memory:<8}{pids}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(os.environ.get("NEURONBENCH_FAKE_BOX", "/nonexistent"))))
