"""The supervisor of one child tree: `python -I -S guard.py LIFELINE_FD STATUS_FD NAME`.

Standard library only, all in one file, and started by its path, so that it runs with any interpreter and starts in
milliseconds. It is the parent of the child, and waits without using the CPU for one of: the child's end, a message on
the lifeline pipe, the lifeline's end (the harness is gone, whatever ended it), the end of the owner process itself (a
fork of the harness may still hold the lifeline), or a signal. In every case it leaves no descendant behind: SIGTERM, a
time of grace, SIGKILL until nothing is left.

On Linux the guard is a *child subreaper*: a descendant whose parent died becomes a child of the guard, whatever session
or process group it moved to, so "no children left" is exactly "the tree is gone". Elsewhere only the child's process
group, and descendants that are still linked to it when the stop begins, can be found.

Protocol, JSON lines. The first line on the lifeline is the order (see `Order`); later ones are `{"stop": grace_s}`.
On the status pipe: `{"pid", "started_ns"}` or `{"error", "what"}`, then `{"exit", "ended_ns"}`, then `{"gone": true}`.
Instants are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn, TypedDict

KILL_EVERY_S = 0.02
"""First pause between rounds of SIGKILL; doubled up to a second, for a process that the kernel cannot end yet."""


class Order(TypedDict):
    """What the harness asks for."""

    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    grace_s: float
    name: str
    owner: dict[str, Any]
    """`{"pid", "created"}` of the harness."""
    pid_file: str | None


# --------------------------------------------------------------------------------------------------------------------
# facts about processes, also used by the harness


def created(pid: int) -> str | None:
    """When a process was created, as text to compare: with the pid it identifies a process. None when there is none.

    On Linux the kernel's own count of ticks since boot, because an instant of the wall clock moves when the clock is
    set; elsewhere what `ps` says, to the second. A zombie has ended.
    """
    if sys.platform == "linux":
        fields = stat_fields(pid)
        return None if fields is None or fields[0] in "ZX" else f"ticks:{fields[19]}"
    state, _, text = _ps("-o", "stat=,lstart=", "-p", str(pid)).strip().partition(" ")
    return f"ps:{text.strip()}" if text and not state.startswith("Z") else None


def machine() -> dict[str, str]:
    """Where a pid means something: node name, boot and pid namespace."""
    facts = {"node": os.uname().nodename, "boot": "", "pid_namespace": ""}
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            facts["boot"] = file.read().strip()
        facts["pid_namespace"] = os.readlink("/proc/self/ns/pid")
    except OSError:
        pass  # not Linux
    return facts


def descendants(root: int) -> list[int]:
    """All processes below `root`, by their present parents."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.pop(queue.pop(), [])
        found += below
        queue += below
    return found


def _parents() -> list[tuple[int, int]]:
    if sys.platform != "linux":
        lines = (line.split() for line in _ps("-A", "-o", "pid=,ppid=").splitlines())
        return [(int(fields[0]), int(fields[1])) for fields in lines if len(fields) == 2]
    pairs = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (fields := stat_fields(int(entry))) is not None:
            pairs.append((int(entry), int(fields[1])))
    return pairs


def stat_fields(pid: int) -> list[str] | None:
    """/proc/PID/stat after the command (which may have blanks, brackets): state, ppid, ...; None if not to be had."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _ps(*arguments: str) -> str:
    import subprocess  # late: Linux does without, and a guard has to be there soon

    result = subprocess.run(
        ["ps", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    return result.stdout


# --------------------------------------------------------------------------------------------------------------------
# the Linux side


def prctl() -> Any:
    """The C function, or None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True).prctl
    except (ImportError, OSError, AttributeError):
        return None


def become_subreaper(function: Any) -> bool:
    """PR_SET_CHILD_SUBREAPER."""
    return function is not None and function(36, 1, 0, 0, 0) == 0


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the platform has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


# --------------------------------------------------------------------------------------------------------------------
# the guard


class Guard:
    """One child and all that comes of it: `run` returns when nothing of it is left, or nothing was started."""

    def __init__(self, lifeline: int, status: int) -> None:
        self.lifeline, self.status = lifeline, status
        self.buffer = b""
        self.child = 0
        self.exited = False
        self.deadline: float | None = None
        """When SIGTERM turns into SIGKILL; None until the stop begins."""
        self.known: dict[int, str | None] = {}
        """Descendants seen when the stop began: the only trace of them without a subreaper."""
        self.asked = False
        """A signal asked for the end."""
        self.pid_file = ""

    def run(self) -> None:
        for fd in (self.lifeline, self.status):
            os.set_inheritable(fd, False)
        wake, wake_write = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked_to_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

        line = self._read_order()
        if line is None:
            return
        order: Order = json.loads(line)
        self.grace_s = order["grace_s"]
        self.prctl = prctl()
        self.subreaper = become_subreaper(self.prctl)
        if not self._start(order):
            return
        owner = order["owner"]
        owner_fd = _pidfd(owner["pid"])
        if created(owner["pid"]) != owner["created"]:
            self._begin_stop(self.grace_s)  # it ended while we started, and the pid may be another's by now
        self._watch(wake, owner_fd)
        self._remove_pid_file()
        self._report(gone=True)

    def _asked_to_stop(self, *_: object) -> None:
        self.asked = True

    # -- start

    def _read_order(self) -> bytes | None:
        while b"\n" not in self.buffer:
            data = os.read(self.lifeline, 1 << 16)
            if not data:
                return None  # the harness is gone already: nothing was started
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _start(self, order: Order) -> bool:
        """Fork the child, write the pid file while it waits, let it go. False when it could not be started."""
        go, go_write = os.pipe()
        failed, failed_write = os.pipe()
        me = os.getpid()
        self.child = os.fork()
        if self.child == 0:
            os.close(go_write)  # so that the guard's end is seen as end of file
            self._become(order, me, go, failed_write)
        os.close(go)
        os.close(failed_write)
        # The child alone holds its pipes from here on: whoever reads them must see their end when it closes them.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)
        try:
            self._write_pid_file(order)
        except OSError as error:
            os.close(go_write)
            os.waitpid(self.child, 0)
            self._report(error=error.errno, what="pid_file")
            return False
        started_ns = time.monotonic_ns()
        os.write(go_write, b"g")
        os.close(go_write)
        answer = b""
        while data := os.read(failed, 256):  # ends at once when exec closes the other end
            answer += data
        os.close(failed)
        if answer:
            os.waitpid(self.child, 0)
            self._remove_pid_file()
            what, number = answer.decode().split()
            self._report(error=int(number), what=what)
            return False
        self._report(pid=self.child, started_ns=started_ns)
        return True

    def _become(self, order: Order, guard: int, go: int, failed: int) -> NoReturn:
        """In the child: its own session, tied to the guard, then the program itself. Never returns."""
        what = "session"
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and exec would pass that on
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            if self.prctl is not None:
                self.prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
                if os.getppid() != guard:
                    os._exit(127)
            if not os.read(go, 1):
                os._exit(127)
            if order["cwd"] is not None:
                what = "cwd"
                os.chdir(order["cwd"])
            what = "exec"
            os.execvpe(order["argv"][0], order["argv"], order["env"])
        except OSError as error:
            os.write(failed, f"{what} {error.errno}".encode())
        except BaseException:
            os.write(failed, f"{what} 0".encode())
        finally:
            os._exit(127)

    def _write_pid_file(self, order: Order) -> None:
        if order["pid_file"] is None:
            return
        path = order["pid_file"]
        if os.path.exists(path):  # another child of this name is alive
            stem, extension = os.path.splitext(path)
            path = f"{stem}.{os.getpid()}{extension}"
        self.pid_file = path
        content = {
            "name": order["name"],
            "machine": machine(),
            "owner": order["owner"],
            "guard": {"pid": os.getpid(), "created": created(os.getpid())},
            "child": {"pid": self.child, "created": created(self.child)},
            "argv": order["argv"],
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        mode = 0o600  # a command line may carry a key
        with open(os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(path + ".tmp", path)

    def _remove_pid_file(self) -> None:
        try:
            if self.pid_file:
                os.unlink(self.pid_file)
        except FileNotFoundError:
            pass

    # -- watch

    def _watch(self, wake: int, owner: int | None) -> None:
        """Wait for the end of the tree, and bring it about when asked."""
        poll = select.poll()
        for fd in (self.lifeline, wake, owner):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        pause_s = KILL_EVERY_S
        while not self._gone():
            if (self.exited or self.asked) and self.deadline is None:
                self._begin_stop(self.grace_s)
            timeout_s: float | None = None
            if self.deadline is not None:
                timeout_s = self.deadline - time.monotonic()
                if timeout_s <= 0:
                    self._signal_all(signal.SIGKILL)
                    timeout_s, pause_s = pause_s, min(2 * pause_s, 1.0)
                elif not self.subreaper:
                    timeout_s = min(timeout_s, 0.05)  # nobody tells us when a process that is not our child ends
            for fd, _ in poll.poll(None if timeout_s is None else max(1, round(timeout_s * 1e3))):
                if fd == wake:
                    os.read(wake, 512)
                elif fd == owner or not self._listen():
                    poll.unregister(fd)
                    self._begin_stop(self.grace_s)

    def _listen(self) -> bool:
        """Read the lifeline; False at its end."""
        data = os.read(self.lifeline, 1 << 16)
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            self._begin_stop(float(json.loads(line)["stop"]))
        return bool(data)

    def _gone(self) -> bool:
        """Reap what has ended; whether nothing of the tree is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self.subreaper or not self._linger()
            if pid == 0:
                return False
            if pid == self.child:
                self.exited = True
                self._report(exit=os.waitstatus_to_exitcode(status), ended_ns=time.monotonic_ns())

    def _linger(self) -> bool:
        """Without a subreaper: whether the child's group or a descendant we saw still lives."""
        try:
            os.killpg(self.child, 0)
            return True
        except ProcessLookupError:
            pass
        except PermissionError:
            pass  # macOS says this of a group of zombies
        return any(created(pid) == then for pid, then in self.known.items())

    # -- stop

    def _begin_stop(self, grace_s: float) -> None:
        """SIGTERM to everything, once; asked again, the earlier deadline holds."""
        deadline = time.monotonic() + grace_s
        if self.deadline is None:
            self.deadline = deadline
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a stopped process must wake up to end
        self.deadline = min(self.deadline, deadline)

    def _signal_all(self, number: int) -> None:
        targets = descendants(os.getpid())
        if not self.subreaper:
            for pid in targets:
                self.known.setdefault(pid, created(pid))
            self.known = {pid: then for pid, then in self.known.items() if then is not None and created(pid) == then}
            targets = [*self.known]
            try:
                os.killpg(self.child, number)
            except (ProcessLookupError, PermissionError):
                pass
        for pid in targets:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def _report(self, **message: object) -> None:
        try:
            os.write(self.status, json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # nobody is left to be told


if __name__ == "__main__":
    Guard(int(sys.argv[1]), int(sys.argv[2])).run()
