"""A fake `neuron-explorer` and `neuron-profile`: summaries of what made-up runtimes left when they were to be profiled,
and traces of programs that it runs itself, on cores that have to be free.

`install(box)` puts one on the box's PATH; `form`, `odd` and `fault` say how it answers. As a program it needs the
standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuronbench.testing.neuron.box import FakeBox

STATE = "run/neuron/neuron-profiler.json"
SUPPORTED = (1, 2, 3)
"""Versions of traces that the tool reads."""


def install(
    box: FakeBox, name: str = "neuron-explorer", *, form: str = "summary", odd: bool = False, fault: str = ""
) -> Path:
    """`form`: `summary` (an object whose first value is the table) or `json`; `odd`: a throttle counter says 25,300 %;
    `fault`: `crash` (status 1), `garbage` (what is no JSON), `no_trace` (captures well, and leaves none)."""
    box.write(STATE, json.dumps({"form": form, "odd": odd, "fault": fault}))
    return box.tool(name, Path(__file__))


def main(arguments: list[str]) -> int:
    box = Path(os.environ["NEURONBENCH_FAKE_BOX"])
    state = json.loads((box / STATE).read_text(encoding="utf-8"))
    if arguments[:1] == ["--version"]:
        print("neuron-explorer 2.29.10.0%kaena-tools/2.29@0123abc")
        return 0
    given = dict(zip(arguments[1::2], arguments[2::2], strict=False))
    if arguments[:1] == ["capture"]:
        return capture(box, arguments[1:], state["fault"])
    known = {"-n", "-s", "-d", "--output-format", "--output-file"}
    unknown = sorted(set(given) - known)
    if arguments[:1] != ["view"] or unknown:
        print(f"unknown command or flag: {' '.join(arguments[:1] + unknown)}")
        return 1
    if state["fault"] == "crash":
        print('level=fatal msg="failed to process the trace"', file=sys.stderr)
        return 1
    if "-d" in given:
        traces = sorted(Path(given["-d"]).rglob("*.ntff"))
        if not list(Path(given["-d"]).rglob("ntrace.pb")):  # the real one takes a folder only with a system's trace
            print("level=fatal msg=No metadata found for system profile", file=sys.stderr)
            return 1
    else:
        traces = [Path(given["-s"])]
    tables = {}
    for path in traces:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["ntff_version"] not in SUPPORTED:
            found = told["ntff_version"]
            print(f"level=fatal msg=NTFF version {found} is not supported, supported versions are 1-3", file=sys.stderr)
            return 1
        tables["profile_0" if "-s" in given else path.stem] = summary(told["total_time"], state["odd"])
    listed = {"summary": list(tables.values()), "instruction": []}
    text = json.dumps(tables if state["form"] == "summary" else listed)
    if state["fault"] == "garbage":
        text = "total_time: 12 ms"
    if given.get("--output-file"):
        Path(given["--output-file"]).write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


def capture(box: Path, words: list[str], fault: str) -> int:
    """`-n NEFF -s NTFF --num-exec=N --profile-nth-exec=N`: the trace of the last execution, under a name of the tool's
    own."""
    given = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        given[name] = value if equals else next(rest, "")
    wanted = {"-n", "-s", "--num-exec", "--profile-nth-exec"}
    if given.keys() != wanted:
        print(f"unknown or missing flag: {' '.join(sorted(given.keys() ^ wanted))}")
        return 1
    told = os.environ.get("NEURON_RT_VISIBLE_CORES", "")
    cores = [int(core) for core in told.split(",") if core.isdecimal()]
    if len(cores) != 1:
        print(f"level=fatal msg=one core, found NEURON_RT_VISIBLE_CORES={told!r}", file=sys.stderr)
        return 1
    lock = box / f"run/neuron/cores/nc{cores[0]}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("level=fatal msg=NeuronCore(s) not available - Requested:1 Available:0", file=sys.stderr)
            return 1
        if fault == "no_trace" or not Path(given["-n"]).is_file():
            return 0 if fault == "no_trace" else 1
        nth = given["--profile-nth-exec"]
        into = Path(given["-s"])
        version = int(os.environ.get("NEURONBENCH_FAKE_NTFF_VERSION", "3"))
        into.with_name(f"{into.stem}_exec_{nth}.ntff").write_text(
            json.dumps({"total_time": 0.003, "ntff_version": version}), encoding="utf-8"
        )
    return 0


def summary(seconds: float, odd: bool) -> dict[str, Any]:
    """The table of a trace; `..._percent` are fractions, as the real tool has them."""
    return {
        "total_time": seconds, "model_flops": 5.0e11, "hardware_flops": 6.0e11, "mfu_estimated_percent": 0.1045,
        "hfu_estimated_percent": 0.1265, "mbu_estimated_percent": 0.3199, "hbm_read_bytes": 4289598586,
        "tensor_engine_active_time_percent": 0.2121,
        "throttle_activity_0_active_time_nc0_percent": 253.0 if odd else 0.0308,
        "throttle_avg_util_limit_nc0_percent": 0.9904, "nc_idx": 0, "nd_idx": 0, "instance_type": "trn1.2xlarge",
        "compiler_version": "2.21.33363.0", "profiler_version": "2.29.10.0", "runtime_version": "2.29.1",
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
