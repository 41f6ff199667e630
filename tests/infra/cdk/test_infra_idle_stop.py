"""The script that shuts a box down: run for real, with what it asks of the system replaced on its PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from neuronbench_infra import keys

SCRIPT = Path(keys.__file__).parent / "on_box" / "idle_stop.sh"
FAKES = {
    "shutdown": 'echo "$@" > "$FAKE/shutdown"',
    "logger": 'shift 3; echo "$@" >> "$FAKE/log"',
    "sync": ":",
    "systemctl": 'cat "$FAKE/units" 2>/dev/null; true',
    "pgrep": '[ -s "$FAKE/sessions" ] && grep -Eq -- "$2" "$FAKE/sessions"',
    "neuron-ls": 'cat "$FAKE/neuron" 2>/dev/null || exit 1',
    "curl": """case "$*" in
*api/token*) [ -e "$FAKE/no-imds" ] && exit 7; echo secret-token ;;
*"-token: secret-token"*tags/instance/neuronbench:expires*) cat "$FAKE/expires" 2>/dev/null || exit 22 ;;
*) exit 22 ;;
esac""",
}
NETWORK = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 99999999999999 9 0 0 0 0 0 0 99999999999999 9 0 0 0 0 0 0
  ens5:{received} 9 0 0 0 0 0 0 {sent} 9 0 0 0 0 0 0
docker0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box as the script sees it."""

    folder: Path

    def put(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def minute(self, number: float) -> str:
        """Run the script at that minute since boot; what it shut the box down for, or an empty text."""
        seconds = int(number * 60)
        (self.folder / "proc").mkdir(exist_ok=True)
        self.put("proc/uptime", f"{seconds}.37 123.00\n")
        ticks = int(self.busy_s * 100)
        self.put("proc/stat", f"cpu  {ticks // 2} 0 {ticks - ticks // 2} 99999999 5000 0 0 0 0 0\ncpu0 1 2 3\n")
        (self.folder / "proc" / "net").mkdir(exist_ok=True)
        moved = int(self.number("moved"))
        self.put("proc/net/dev", NETWORK.format(received=moved // 2, sent=moved - moved // 2))
        done = subprocess.run(
            ["bash", SCRIPT],
            capture_output=True,
            text=True,
            timeout=60,
            env={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "FAKE": str(self.folder),
                "NEURONBENCH_STATE": str(self.folder / "state"), "NEURONBENCH_PROC": str(self.folder / "proc"),
                "NEURONBENCH_IDLE_STOP_MIN": "30", "NEURONBENCH_MAX_HOURS": "24", "TZ": "Asia/Tokyo",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        told = self.folder / "shutdown"
        return told.read_text() if told.exists() else ""

    @property
    def busy_s(self) -> float:
        return self.number("busy")

    def number(self, name: str) -> float:
        path = self.folder / name
        return float(path.read_text()) if path.exists() else 0.0

    def reason(self) -> str:
        return (self.folder / "state" / "reason").read_text().strip()


@pytest.fixture
def box(tmp_path: Path) -> Box:
    (tmp_path / "bin").mkdir()
    for name, body in FAKES.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return Box(folder=tmp_path)


def test_an_idle_box_goes_after_its_minutes_and_not_before(box: Box) -> None:
    assert box.minute(2) == ""
    assert box.minute(31.5) == ""
    assert box.reason() == "idle"
    assert box.minute(32) == "-h now neuronbench: idle for 30 minutes\n"
    assert "idle for 30 minutes" in (box.folder / "log").read_text()


USES: dict[str, Callable[[Box], None]] = {
    "a benchmark's unit is running": lambda box: box.put(
        "units", "neuronbench-run-7.service loaded active running x\n"
    ),
    "a process is on the NeuronCores": lambda box: box.put(
        "neuron", '[{"neuron_device": 0, "neuron_processes": [{"pid": 1234, "command": "vllm"}]}]'
    ),
    "a session or command of SSM is open": lambda box: box.put(
        "sessions", "/snap/amazon-ssm-agent/1/ssm-session-worker u-1 i-1"
    ),
    "half a core or more is busy": lambda box: box.put("busy", "3000"),
    "a mebibyte a second or more goes over the network": lambda box: box.put("moved", str(4 * 2**30)),
}


@pytest.mark.parametrize("reason", USES)
def test_a_box_in_use_stays_and_its_minutes_begin_anew(box: Box, reason: str) -> None:
    box.minute(2)
    USES[reason](box)
    assert box.minute(60) == ""
    assert box.reason() == reason
    for name in ("units", "neuron", "sessions"):
        box.put(name, "")
    assert box.minute(61) == ""  # idle again since now
    assert box.minute(90) == ""
    assert box.minute(91) != ""


def test_what_does_not_count_as_use(box: Box) -> None:
    box.put("neuron", '[{"neuron_device": 0, "neuron_processes": []}]')
    box.put("sessions", "/usr/bin/amazon-ssm-agent\n/usr/bin/ssm-agent-worker")
    box.minute(2)
    box.put("busy", "800")  # of 1800 s and more: less than half a core
    box.put("moved", str(2**30))  # of 1.8 GiB and more: agents talk all the time
    assert box.minute(32) != ""


def test_a_large_box_that_computes_for_days_stays(box: Box) -> None:
    """More hundredths of a second than 31 bits hold, and more bytes: some programs write such numbers as 2.1e+09."""
    box.put("busy", str(2**27))
    box.put("moved", str(2**43))
    box.minute(2)
    assert box.reason() == "idle"
    box.put("busy", str(2**27 + 40 * 60))
    assert box.minute(60) == ""
    assert box.reason() == "half a core or more is busy"
    box.put("moved", str(2**43 + 2**32))
    assert box.minute(119) == ""
    assert box.reason() == "a mebibyte a second or more goes over the network"


def test_a_box_whose_set_up_or_compilation_uses_no_core_of_either_kind_is_in_use(box: Box) -> None:
    """`fleet run` sets up by a command of SSM, then everything is in a unit: it may wait for S3 as long as it wants."""
    box.put("sessions", "/snap/amazon-ssm-agent/1/ssm-document-worker 0f1e")
    box.minute(2)
    assert box.minute(60) == ""
    box.put("sessions", "")
    box.put("units", "neuronbench-run-night-20261130.service loaded activating auto-restart x\n")
    assert box.minute(120) == ""
    assert box.reason() == "a benchmark's unit is running"


def test_broken_tools_do_not_keep_a_box_alive(box: Box) -> None:
    for name in ("neuron-ls", "systemctl", "pgrep", "logger"):
        (box.folder / "bin" / name).write_text("#!/bin/sh\nexit 127\n")
    box.minute(2)
    assert box.minute(32) != ""


def test_an_expired_box_goes_though_it_is_busy(box: Box) -> None:
    box.put("expires", "2020-01-01T00:00:00Z")
    box.put("units", "neuronbench-run-7.service loaded active running x\n")
    assert box.minute(2) == "-h now neuronbench: expired at 2020-01-01T00:00:00Z\n"


def test_without_a_tag_a_busy_box_goes_after_the_most_hours(box: Box) -> None:
    box.put("units", "neuronbench-run-7.service loaded active running x\n")
    assert box.minute(24 * 60 - 1) == ""
    assert box.minute(24 * 60).startswith("-h now neuronbench: up for 24 hours")


@pytest.mark.parametrize("later", ["removed", "unreachable", "nonsense"])
def test_a_longer_run_is_kept_by_its_tag_also_while_that_cannot_be_read(box: Box, later: str) -> None:
    box.put("units", "neuronbench-run-7.service loaded active running x\n")
    box.put("expires", "2199-01-01T00:00:00Z")
    assert box.minute(2) == ""
    if later == "removed":
        (box.folder / "expires").unlink()
    elif later == "unreachable":
        box.put("no-imds", "yes")
    else:
        box.put("expires", "<html>no</html>")
    assert box.minute(30 * 60) == ""


def test_a_moved_tag_counts_at_once(box: Box) -> None:
    box.put("units", "neuronbench-run-7.service loaded active running x\n")
    box.put("expires", "2199-01-01T00:00:00Z")
    assert box.minute(2) == ""
    box.put("expires", "2020-01-01T00:00:00+00:00")
    assert "expired at 2020-01-01" in box.minute(3)


def test_shellcheck_has_nothing_to_say() -> None:
    program = shutil.which("shellcheck")
    if program is None:
        assert not os.environ.get("NEURONBENCH_SHELLCHECK_REQUIRED"), "shellcheck is not installed"
        pytest.skip("shellcheck is not installed")
    subprocess.run([program, *sorted(SCRIPT.parent.glob("*.sh"))], check=True)
