"""Boxes for tests: what is sent through SSM is executed for real, in a folder of this machine that stands for a disk.

The script, the agent, pytest and the store are the real ones. Fakes on the box's PATH: `systemctl` (keeps the unit's
program running, restarts it when it fails, starts enabled units when the box starts) and `shutdown`. The metadata
service is a server of the test. Stopping and terminating instances in the stand-in stops these boxes, too.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from aws_stand_in import Command, CommandResult, Request, StandIn

ROOT = "NEURONBENCH_BOX_ROOT"
LIMIT_S = 150.0

SYSTEMCTL = r"""#!{python} -IS
import os, re, shlex, signal, subprocess, sys, time

root = os.environ["NEURONBENCH_BOX_ROOT"]
units, run = root + "/etc/systemd/system", root + "/run/systemd"
os.makedirs(run, exist_ok=True)

def pid_of(unit):
    try:
        pid = int(open(f"{run}/{unit}.pid").read())
        os.kill(pid, 0)
        state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
        return None if state in "ZX" else pid
    except (OSError, ValueError):
        return None

def ended(child):
    # the box is gone with the tests that made it, however these ended
    while True:
        try:
            return child.wait(timeout=2)
        except subprocess.TimeoutExpired:
            if not os.path.exists("/proc/{owner}"):
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    child.kill()
                return 0

def supervise(unit):
    text = open(f"{units}/{unit}").read()
    command = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])
    folder = re.search(r"^WorkingDirectory=(.*)$", text, re.M)[1]
    stopping = []
    child = None
    def stop(*_):
        stopping.append(1)
        if child is not None:
            child.send_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, stop)
    for _ in range(10):
        log = open(f"{root}/journal.txt", "ab")
        child = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if stopping:
            child.send_signal(signal.SIGTERM)
        open(f"{run}/{unit}.main", "w").write(str(child.pid))
        if ended(child) == 0 or stopping:
            return
        time.sleep(0.1)

verb, *rest = sys.argv[1:]
names = [word for word in rest if not word.startswith("-")]
if verb == "list-units":
    for name in sorted(os.listdir(run)):
        if name.endswith(".service.pid") and name.startswith("neuronbench-run-") and pid_of(name[:-4]):
            print(name[:-4], "loaded active running neuronbench run")
elif verb == "enable":
    open(f"{units}/{names[0]}.enabled", "w").close()
elif verb == "disable":
    if os.path.exists(f"{units}/{names[0]}.enabled"):
        os.unlink(f"{units}/{names[0]}.enabled")
elif verb == "start":
    if pid_of(names[0]) is None:
        child = subprocess.Popen(
            [sys.argv[0], "_supervise", names[0]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        open(f"{run}/{names[0]}.pid", "w").write(str(child.pid))
elif verb == "_supervise":
    supervise(names[0])
"""
SHUTDOWN = '#!/bin/sh\ntouch "$NEURONBENCH_BOX_ROOT/shutdown-asked"\n'


def until(met: Callable[[], Any], what: str, *, limit_s: float = LIMIT_S) -> Any:
    """Wait for what must happen; fails with `what` when it does not."""
    deadline = time.monotonic() + limit_s
    while not (found := met()):
        assert time.monotonic() < deadline, f"did not happen within {limit_s:g} s: {what}"
        time.sleep(0.1)
    return found


class Metadata:
    """The metadata service, v2: what has no token gets nothing."""

    def __init__(self) -> None:
        self.action: dict[str, str] | None = None
        self.expires = ""
        """The box's tag `neuronbench:expires`, where its tags can be read."""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._send(200, "a-token" if "X-aws-ec2-metadata-token-ttl-seconds" in self.headers else "")

            def do_GET(self) -> None:
                if self.headers.get("X-aws-ec2-metadata-token") != "a-token":
                    return self._send(401, "")
                if self.path.endswith("/spot/instance-action") and outer.action is not None:
                    return self._send(200, json.dumps(outer.action))
                if self.path.endswith("/tags/instance/neuronbench:expires") and outer.expires:
                    return self._send(200, outer.expires)
                return self._send(404, "")

            def _send(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class LocalBox:
    """One box: its disk, its processes, and the switch."""

    def __init__(self, root: Path, metadata: Metadata, environ: dict[str, str]) -> None:
        self.root, self.metadata = root, metadata
        self.commands = 0
        self.running = True
        tools = root / "bin"
        tools.mkdir(parents=True)
        for name, text in (
            ("systemctl", SYSTEMCTL.replace("{python}", sys.executable).replace("{owner}", str(os.getpid()))),
            ("shutdown", SHUTDOWN),
            ("sync", "#!/bin/sh\n"),  # the disk of this machine is everybody's
        ):
            (tools / name).write_text(text, encoding="utf-8")
            (tools / name).chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "NEURONBENCH_", "AWS_", "COV_"))}
        self.environ = {
            **kept, **environ, ROOT: str(root), "HOME": str(root), "PATH": f"{tools}:{kept['PATH']}",
            "NEURONBENCH_IMDS": metadata.url, "NEURONBENCH_SHUTDOWN": str(tools / "shutdown"),
        }  # fmt: skip

    def execute(self, command: Command) -> CommandResult:
        """What the SSM agent does with a command."""
        self.commands += 1
        script = self.root / f"command-{self.commands}.sh"
        script.write_text("\n".join(command.parameters["commands"]) + "\n", encoding="utf-8")
        done = subprocess.run(
            ["sh", str(script)],
            env=self.environ,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return CommandResult(code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def state(self, run: str) -> Path:
        return self.root / "var" / "lib" / "neuronbench" / run

    def events(self, run: str) -> list[dict[str, Any]]:
        """All events, as they lie on the disk."""
        found = sorted(self.state(run).glob("events-*.jsonl"))
        return [json.loads(line) for path in found for line in path.read_text().splitlines() if line.endswith("}")]

    def kinds(self, run: str) -> list[str]:
        return [event["kind"] for event in self.events(run)]

    def processes(self) -> list[psutil.Process]:
        """Everything that runs on the box."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(ROOT) == str(self.root) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def units(self) -> list[str]:
        """Units of runs that are active."""
        systemctl = [str(self.root / "bin" / "systemctl"), "list-units"]
        told = subprocess.run(systemctl, env=self.environ, stdout=subprocess.PIPE, check=True, text=True).stdout
        return [line.split()[0] for line in told.splitlines()]

    def mains(self) -> list[int]:
        """The agents' pids."""
        return [int(path.read_text()) for path in (self.root / "run" / "systemd").glob("*.main") if path.read_text()]

    def kill_agent(self) -> None:
        for pid in self.mains():
            os.kill(pid, signal.SIGKILL)

    def power_off(self, *, pulled: bool = False) -> None:
        """As an instance stops: units are asked to end, then everything is killed. `pulled`: killed at once."""
        self.running = False
        if not pulled:
            for path in (self.root / "run" / "systemd").glob("*.pid"):
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(path.read_text()), signal.SIGTERM)
            until(lambda: not self.processes(), "the units end when the box goes down")
        while left := self.processes():
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.02)
        shutil.rmtree(self.root / "run", ignore_errors=True)

    def power_on(self) -> None:
        """As an instance boots: enabled units start."""
        self.running = True
        (self.root / "shutdown-asked").unlink(missing_ok=True)
        for path in (self.root / "etc" / "systemd" / "system").glob("*.enabled"):
            subprocess.run(
                [str(self.root / "bin" / "systemctl"), "start", path.name.removesuffix(".enabled")], env=self.environ,
                check=True,
            )  # fmt: skip


class Boxes:
    """The boxes of a stand-in, by instance."""

    def __init__(self, aws: StandIn, folder: Path, environ: dict[str, str]) -> None:
        self.aws, self.folder, self.environ = aws, folder, environ
        self.metadata = Metadata()
        self.on_shutdown: dict[str, str] = {}
        """Instance → what `shutdown` on it does, as set by ModifyInstanceAttribute (which moto does not keep)."""
        self._boxes: dict[str, LocalBox] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        aws.on_command(lambda command: self[command.instance].execute(command))
        aws.after("ec2", "ModifyInstanceAttribute", self._attribute, times=None)
        aws.after("ec2", "StopInstances", self._stopped, times=None)
        aws.after("ec2", "TerminateInstances", self._stopped, times=None)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __getitem__(self, instance: str) -> LocalBox:
        with self._lock:
            if instance not in self._boxes:
                self._boxes[instance] = LocalBox(self.folder / instance, self.metadata, self.environ)
            return self._boxes[instance]

    def __iter__(self) -> Iterator[LocalBox]:
        return iter(list(self._boxes.values()))

    def stop(self, instance: str, *, pulled: bool = False, terminate: bool = False) -> None:
        """As EC2 stops or takes away an instance by itself."""
        self[instance].power_off(pulled=pulled)
        ec2 = self.aws.client("ec2")
        (ec2.terminate_instances if terminate else ec2.stop_instances)(InstanceIds=[instance])

    def start(self, instance: str) -> None:
        self.aws.client("ec2").start_instances(InstanceIds=[instance])
        self[instance].power_on()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        for box in self:
            box.power_off(pulled=True)
        self.metadata.close()

    def _attribute(self, request: Request) -> None:
        told = request.parameters.get("InstanceInitiatedShutdownBehavior.Value")
        if told:
            self.on_shutdown[str(request.parameters["InstanceId"])] = str(told)

    def _stopped(self, request: Request) -> None:
        for instance in request.listed("InstanceId"):
            if instance in self._boxes and self[instance].running:
                self[instance].power_off()

    def _watch(self) -> None:
        """A box that has called `shutdown` goes down, and is stopped or terminated as its attribute says."""
        while not self._closed.wait(0.05):
            for instance, box in list(self._boxes.items()):
                if box.running and (box.root / "shutdown-asked").exists():
                    box.power_off()
                    ec2, told = self.aws.client("ec2"), self.on_shutdown.get(instance, "stop")
                    end = ec2.terminate_instances if told == "terminate" else ec2.stop_instances
                    end(InstanceIds=[instance])
