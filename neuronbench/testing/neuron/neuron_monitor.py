"""A fake `neuron-monitor`: NDJSON as the real tool writes it, of what fake runtimes on the box do.

A runtime is a file `run/neuron/runtimes/PID.jsonl` below the box's root (`Runtime` writes one; the fake `torch_xla` is
one): a line that says which cores it has, then a line per execution. The tool reports on those whose process runs. As
the real one it credits an execution to the period in which it ends, and cuts a core's utilisation off at 100 %.

`install(box)` puts it on the box's PATH; what it does wrong is said with `fault`, on which line with `after`. Run as a
program it needs the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neuronbench.testing.neuron.box import FakeBox

STATE = "run/neuron/neuron-monitor.json"
RUNTIMES = "run/neuron/runtimes"
FAULTS = ("", "dies", "stalls", "truncated", "garbage", "null_latency")
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
FAMILIES = {"trn1": ("trainium", "v2", "v2"), "inf2": ("inferentia2", "v3", "v2"), "trn2": ("trainium2", "v4", "v3")}


def install(box: FakeBox, *, fault: str = "", after: int = 1, spelling: str = "effective_flops") -> Path:
    """Put the tool on `box`. `fault` befalls it after so many good lines: it dies with status 1, stalls, cuts a line
    short, writes what is no JSON, or knows no latencies. `spelling`: of the FLOP/s, `flops` or `effective_flops`."""
    if fault not in FAULTS:
        raise ValueError(f"fault: expected one of {', '.join(FAULTS)}; found {fault!r}")
    box.write(STATE, json.dumps({"fault": fault, "after": after, "spelling": spelling}))
    return box.tool("neuron-monitor", Path(__file__))


class Runtime:
    """What a fake runtime leaves for the tool to see."""

    def __init__(self, root: str | os.PathLike[str], cores: Sequence[int], *, device_bytes: int = 0) -> None:
        folder = Path(root, RUNTIMES)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}.jsonl"
        self._file = self.path.open("w", encoding="utf-8")
        tag = os.environ.get("NEURON_PROCESS_TAG", str(os.getpid()))
        self._say({"pid": os.getpid(), "tag": tag, "cores": list(cores), "device_bytes": device_bytes})

    def executed(self, seconds: float, *, end_ns: int | None = None, outcome: str = "completed") -> None:
        """An execution on all cores of the runtime has ended."""
        end_ns = time.monotonic_ns() if end_ns is None else end_ns
        self._say({"end_ns": end_ns, "seconds": seconds, "outcome": outcome})

    def close(self) -> None:
        """Detach: the tool sees it no more."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _say(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


# --------------------------------------------------------------------------------------------------------------------
# the program


def main(arguments: list[str]) -> int:
    config: dict[str, Any] = {}
    while arguments:
        flag = arguments.pop(0)
        if flag in ("-c", "--config-file") and arguments:
            config = json.loads(Path(arguments.pop(0)).read_text(encoding="utf-8"))
        elif flag == "--verbose" and arguments:
            arguments.pop(0)
        else:
            print(f"flag provided but not defined: {flag}")
            return 1
    root = Path(os.environ["NEURONBENCH_FAKE_BOX"])
    try:
        state = json.loads((root / STATE).read_text(encoding="utf-8"))
    except OSError:
        state = {}
    fault, after = state.get("fault", ""), state.get("after", 1)
    period_s = _seconds(config.get("period", "5s"))
    before_ns = time.monotonic_ns()
    begun = time.monotonic()
    count = 0
    while True:
        now_ns = time.monotonic_ns()
        line = json.dumps(report(root, config, before_ns, now_ns, fault, state.get("spelling", "effective_flops")))
        before_ns = now_ns
        if count >= after and fault == "dies":
            print(
                'time="2026-01-01T00:00:00Z" level=fatal msg="lost the driver on i-0123456789abcdef0"', file=sys.stderr
            )
            return 1
        if count >= after and fault == "stalls":
            time.sleep(3600)
        if count == after and fault == "truncated":
            line = line[: len(line) // 2]
        if count >= after and fault == "garbage":
            line = "panic: runtime error: index out of range"
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            return 0
        count += 1
        time.sleep(max(0.0, begun + count * period_s - time.monotonic()))


def report(
    root: Path, config: Mapping[str, Any], since_ns: int, until_ns: int, fault: str = "", spelling: str = "flops"
) -> dict[str, Any]:
    """A record over the time between two instants of the monotonic clock."""
    host = json.loads((root / "run/neuron/neuron-ls.json").read_text(encoding="utf-8"))
    devices, instance = host["devices"], host["instance"]
    groups = [entry["type"] for each in config.get("neuron_runtimes", []) for entry in each.get("metrics", [])]
    system = [entry["type"] for entry in config.get("system_metrics", [])]
    lnc = devices[0].get("logical_neuroncore_config", 1)
    kind, device_version, core_version = FAMILIES.get(instance[:4], ("trainium", "v2", "v2"))
    period_s = max((until_ns - since_ns) / 1e9, 1e-6)
    runtimes = []
    for path in sorted((root / RUNTIMES).glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        if lines and os.path.exists(f"/proc/{lines[0]['pid']}"):
            ended = [one for one in lines[1:] if since_ns < one["end_ns"] <= until_ns]
            runtimes.append(_runtime(lines[0], ended, groups, period_s, lnc, fault, spelling))
    data: dict[str, Any] = {}
    if "neuron_hw_counters" in system:
        zero = dict.fromkeys(
            ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_uncorrected", "sram_ecc_corrected"), 0
        )
        counters = [{"neuron_device_index": one["neuron_device"], **zero} for one in devices]
        data["neuron_hw_counters"] = {"period": period_s, "neuron_devices": counters, "error": ""}
    if "memory_info" in system:
        total = 32 << 30
        data["memory_info"] = {
            "period": period_s, "memory_total_bytes": total, "memory_used_bytes": total // 8, "swap_total_bytes": 0,
            "swap_used_bytes": 0, "error": "",
        }  # fmt: skip
    return {
        "neuron_runtime_data": runtimes,
        "system_data": data,
        "instance_info": {
            "instance_name": "a box", "instance_id": "i-0123456789abcdef0", "instance_type": instance,
            "instance_availability_zone": "us-west-2b", "instance_region": "us-west-2",
            "ami_id": "ami-0123456789abcdef0", "subnet_id": "subnet-0123abcd", "error": "",
        },
        "neuron_hardware_info": {
            "neuron_device_type": kind, "neuron_device_version": device_version,
            "neuroncore_version": f"{core_version}d" if lnc == 2 else core_version,
            "neuron_device_count": len(devices), "neuron_device_memory_size": devices[0]["memory_size"],
            "neuroncore_per_device_count": devices[0]["nc_count"], "logical_neuroncore_config": lnc, "error": "",
        },
    }  # fmt: skip


def _runtime(
    told: Mapping[str, Any], ended: Sequence[Mapping[str, Any]], groups: Sequence[str], period_s: float, lnc: int,
    fault: str, spelling: str,
) -> dict[str, Any]:  # fmt: skip
    busy_s = sum(one["seconds"] for one in ended)
    share = min(100.0 * busy_s / period_s, 100.0)
    cores, found = told["cores"], {}
    if "neuroncore_counters" in groups:
        in_use: dict[str, Any] = {}
        for core in cores:
            entry: dict[str, Any] = {"neuroncore_utilization": share, spelling: int(share * 1e9)}
            if lnc == 2:
                parts = {f"nc_v3.{2 * core + part}": {"neuroncore_utilization": share} for part in range(2)}
                entry["v3d"] = parts
            in_use[str(core)] = entry
        found["neuroncore_counters"] = {"period": period_s, "neuroncores_in_use": in_use, "error": ""}
    if "execution_stats" in groups:
        found["execution_stats"] = {
            "period": period_s,
            "error_summary": dict.fromkeys(("generic", "numerical", "transient", "model", "runtime", "hardware"), 0),
            "execution_summary": {
                name: sum(1 for one in ended if one["outcome"] == name)
                for name in (
                    "completed", "completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input",
                    "failed_to_queue",
                )
            },
            "latency_stats": {
                name: None if fault == "null_latency" else _percentiles([one["seconds"] for one in ended])
                for name in ("total_latency", "device_latency")
            },
            "error": "",
        }  # fmt: skip
    if "memory_used" in groups:
        held = told["device_bytes"]
        each = {"constants": 0, "model_code": 0, "model_shared_scratchpad": 0, "runtime_memory": 0}
        usage = {str(core): {**each, "tensors": held // len(cores)} for core in cores}
        host = {"application_memory": 1 << 20, "constants": 0, "dma_buffers": 0, "tensors": 0}
        found["memory_used"] = {
            "period": period_s,
            "neuron_runtime_used_bytes": {
                "host": 1 << 20, "neuron_device": held,
                "usage_breakdown": {"host": host, "neuroncore_memory_usage": usage},
            },
            "loaded_models": [], "error": "",
        }  # fmt: skip
    return {"pid": told["pid"], "address": "", "neuron_runtime_tag": told["tag"], "error": "", "report": found}


def _percentiles(seconds: list[float]) -> dict[str, float] | None:
    """Nearest rank; nothing of nothing."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    return {f"p{p}": ordered[max(-(-p * len(ordered) // 100) - 1, 0)] for p in (0, 1, 25, 50, 75, 99, 100)}


def _seconds(text: str) -> float:
    unit = next(unit for unit in UNITS if text.endswith(unit))
    return float(text.removesuffix(unit)) * UNITS[unit]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
