"""Children under a guard, with real processes: whatever ends, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from neuronbench import guard
from neuronbench.processes import PIPE, Process, spawn

STUBBORN = """
import os, signal, subprocess, sys, time
# a grandchild in a session of its own that ignores SIGTERM, below an intermediate parent that ends at once
code = '''
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
with open(sys.argv[1] + ".part", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(120)
'''
middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}, sys.argv[1]])"
subprocess.Popen([sys.executable, "-c", middle, sys.argv[1]])
time.sleep(120)
"""


def until(condition: Callable[[], object], what: str, seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    return guard.created(pid) is None


def stubborn_tree(tmp_path: Path, **options: object) -> tuple[Process, int]:
    """A child and the pid of its detached, SIGTERM-ignoring grandchild."""
    told = tmp_path / "grandchild"
    process = spawn([sys.executable, "-c", STUBBORN, str(told)], name="stubborn", **options)  # type: ignore[arg-type]
    until(told.exists, "the grandchild")
    return process, int(told.read_text())


def test_exit_status_output_and_times(tmp_path: Path) -> None:
    before = time.monotonic_ns()
    log = tmp_path / "deep" / "log.txt"
    with spawn(["sh", "-c", "echo out; echo err >&2; exit 3"], name="child", log=log) as process:
        assert process.wait(100) == 3
        assert process.poll() == process.returncode == 3
        assert not process.alive()
        assert before < process.started_ns < process.ended_ns < time.monotonic_ns()  # type: ignore[operator]
    assert log.read_bytes() == b"out\nerr\n"
    with spawn(["echo", "more"], name="child", log=log) as process:
        process.wait(100)
    assert log.read_bytes() == b"out\nerr\nmore\n"


def test_end_by_signal_is_negative() -> None:
    with spawn(["sh", "-c", "kill -9 $$"], name="child") as process:
        assert process.wait(100) == -signal.SIGKILL


def test_pid_is_the_child_itself_in_its_own_session() -> None:
    with spawn(["sh", "-c", "echo $$; exec sleep 60"], name="child", stdout=PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        assert os.getsid(process.pid) == process.pid
        assert process.guard_pid != process.pid
        assert process.alive()


def test_pipes_end_with_the_child(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = spawn(["sh", "-c", "cat; echo problem >&2"], name="child", stdin=PIPE, stdout=PIPE, log=log)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin = process.stdin
        thread = threading.Thread(target=lambda: (stdin.write(b"x" * 200_000), stdin.close()))
        thread.start()
        assert process.stdout.read() == b"x" * 200_000  # ends: neither harness nor guard holds the other end
        thread.join()
        assert process.wait(100) == 0
    assert log.read_bytes() == b"problem\n"


def test_environment_and_folder(tmp_path: Path) -> None:
    odd = "caf\u00e9 \udcff\n'"
    with spawn(
        [sys.executable, "-c", "import os; print(ascii([os.getcwd(), dict(os.environ)['ODD'], len(os.environ)]))"],
        name="child",
        env={"ODD": odd, "LC_CTYPE": "C.UTF-8"},
        cwd=tmp_path,
        stdout=PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read().decode().strip() == ascii([str(tmp_path), odd, 2])


def test_the_child_gets_no_other_files_and_default_signals() -> None:
    with spawn(["ls", "/proc/self/fd"], name="files", stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == [b"0", b"1", b"2", b"3"]  # 3 is the folder that is listed
    with spawn(["cat", "/proc/self/status"], name="mask", stdout=PIPE) as process:
        assert process.stdout is not None
        status = dict(line.split(":\t", 1) for line in process.stdout.read().decode().splitlines())
        assert int(status["SigBlk"], 16) == 0
        assert int(status["SigIgn"], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_missing_program(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"server: program not found on the PATH .*install it.*'no-such-"):
        spawn(["no-such-program"], name="server", pid_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="program not found; install"):
        spawn([tmp_path / "nothing"], name="server")
    with pytest.raises(FileNotFoundError, match="the folder to start in"):
        spawn(["true"], name="server", cwd=tmp_path / "nothing")
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    with pytest.raises(PermissionError, match="cannot be executed"):
        spawn([script], name="server")
    script.chmod(0o755)
    with pytest.raises(FileNotFoundError, match="the interpreter that its first line"):
        spawn([script], name="server")
    with pytest.raises(ValueError, match="argv is empty"):
        spawn([], name="server")
    assert [path.name for path in tmp_path.iterdir()] == ["script"]  # no pid file of what never ran


def test_wait_times_out_and_leaves_the_child() -> None:
    with spawn(["sleep", "60"], name="child") as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.alive()
        assert process.returncode is None
    assert process.returncode == -signal.SIGTERM
    assert gone(process.pid)
    assert gone(process.guard_pid)


def test_terminate_gives_a_graceful_child_its_time() -> None:
    code = """
import signal, sys, time
def leave(*_):
    time.sleep(0.2)
    print("left in order", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
while True:
    time.sleep(60)
"""
    with spawn([sys.executable, "-c", code], name="child", stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate(grace_s=100)
        assert process.returncode == 7
        process.terminate()  # again


def test_terminate_ends_a_tree_that_ignores_sigterm(tmp_path: Path) -> None:
    process, grandchild = stubborn_tree(tmp_path)
    process.terminate(grace_s=0.2)
    assert gone(process.pid)
    assert gone(grandchild)
    assert process.returncode == -signal.SIGTERM


def test_a_stopped_child_ends_too() -> None:
    with spawn(["sleep", "60"], name="child") as process:
        os.kill(process.pid, signal.SIGSTOP)
        process.terminate(grace_s=100)
        assert process.returncode == -signal.SIGTERM


def test_descendants_end_when_the_child_ends_by_itself(tmp_path: Path) -> None:
    process, grandchild = stubborn_tree(tmp_path, grace_s=0.2)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(100) == -signal.SIGKILL
    until(lambda: gone(grandchild), "the end of the grandchild")
    until(lambda: gone(process.guard_pid), "the end of the guard")
    process.terminate()


def test_a_second_terminate_may_shorten_the_grace(tmp_path: Path) -> None:
    process, grandchild = stubborn_tree(tmp_path)
    thread = threading.Thread(target=process.terminate, kwargs={"grace_s": 600})
    thread.start()
    process.terminate(grace_s=0.1)
    thread.join(100)
    assert not thread.is_alive()
    assert gone(grandchild)


def test_killing_the_guard_kills_the_child() -> None:
    with spawn(["sleep", "60"], name="child") as process:
        os.kill(process.guard_pid, signal.SIGKILL)
        assert process.wait(100) == -signal.SIGKILL
        until(lambda: gone(process.pid), "the end of the child")


def test_sigterm_to_the_guard_ends_the_tree(tmp_path: Path) -> None:
    process, grandchild = stubborn_tree(tmp_path, grace_s=0.2)
    os.kill(process.guard_pid, signal.SIGTERM)
    assert process.wait(100) == -signal.SIGTERM
    process.terminate()
    assert gone(grandchild)


HARNESS = """
import os, sys, time
from pathlib import Path
from neuronbench.processes import spawn
folder = Path(sys.argv[1])
process = spawn([sys.executable, "-c", {stubborn!r}, str(folder / "grandchild")], name="stubborn",
                pid_dir=folder / "pids", grace_s=0.2)
{more}
(folder / "child.part").write_text(str(process.pid))
(folder / "child.part").rename(folder / "child")
time.sleep(120)
"""


@pytest.mark.parametrize(
    ("number", "more"),
    [
        (signal.SIGKILL, ""),
        (signal.SIGTERM, ""),
        (signal.SIGKILL, "if not os.fork(): (folder / 'fork').write_text(str(os.getpid())); time.sleep(120)"),
    ],
    ids=["SIGKILL", "SIGTERM", "SIGKILL-with-a-fork-that-holds-the-lifeline"],
)
def test_nothing_survives_the_harness(tmp_path: Path, number: int, more: str) -> None:
    code = HARNESS.format(stubborn=STUBBORN, more=more)
    harness = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        for name in ("child", "grandchild", *(["fork"] if more else [])):
            until((tmp_path / name).exists, name)
        child, grandchild = (int((tmp_path / name).read_text()) for name in ("child", "grandchild"))
        assert not gone(child)
        assert not gone(grandchild)
        assert (tmp_path / "pids" / "stubborn.json").exists()
        harness.send_signal(number)
        harness.wait(100)
        until(lambda: gone(child) and gone(grandchild), "the end of the tree")
        until(lambda: not list((tmp_path / "pids").iterdir()), "the removal of the pid file")
    finally:
        harness.kill()
        harness.wait()
        if (tmp_path / "fork").exists():
            os.kill(int((tmp_path / "fork").read_text()), signal.SIGKILL)


def test_pid_file(tmp_path: Path) -> None:
    with spawn(["sleep", "60"], name="my server/1", pid_dir=tmp_path / "pids") as process:
        path = tmp_path / "pids" / "my-server-1.json"
        data = json.loads(path.read_text())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert data["owner"] == {"pid": os.getpid(), "created": guard.created(os.getpid())}
        assert data["guard"] == {"pid": process.guard_pid, "created": guard.created(process.guard_pid)}
        assert data["child"] == {"pid": process.pid, "created": guard.created(process.pid)}
        assert data["argv"] == ["sleep", "60"]
        assert data["machine"] == guard.machine()
        with spawn(["sleep", "60"], name="my server/1", pid_dir=tmp_path / "pids"):
            assert len(list(path.parent.iterdir())) == 2  # the first one's file stays
        assert path.exists()
    assert not list(path.parent.iterdir())


def test_an_unwritable_pid_folder_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "child.json.tmp").mkdir()  # opening it for writing fails
    with pytest.raises(OSError, match="child: its pid file cannot be written"):
        spawn(["touch", tmp_path / "ran"], name="child", pid_dir=tmp_path)
    assert not (tmp_path / "ran").exists()


def test_no_file_is_left_open(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    for _ in range(5):
        with spawn(["cat"], name="child", stdin=PIPE, stdout=PIPE, log=tmp_path / "log"):
            pass
        with spawn(["true"], name="child") as process:
            process.wait(100)
        with pytest.raises(FileNotFoundError):
            spawn(["no-such-program"], name="child", stdin=PIPE, stdout=PIPE)
    assert open_files() == before


def test_spawn_of_short_lives_from_many_threads() -> None:
    results: list[int] = []

    def one(number: int) -> None:
        with spawn(["sh", "-c", f"exit {number}"], name=f"child{number}") as process:
            results.append(process.wait(30))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))


def test_several_threads_may_wait() -> None:
    with spawn(["sleep", "60"], name="child") as process:
        results: list[int] = []
        threads = [threading.Thread(target=lambda: results.append(process.wait(100))) for _ in range(3)]
        for thread in threads:
            thread.start()
        os.kill(process.pid, signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert results == [-signal.SIGTERM] * 3


def test_a_waiting_guard_uses_no_cpu() -> None:
    def ticks(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def switches(pid: int) -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)

    with spawn(["sleep", "60"], name="child") as process:
        # in the call in which it waits, and not on its way there
        until(lambda: "poll" in Path(f"/proc/{process.guard_pid}/wchan").read_text(), "the guard to wait")
        before = switches(process.guard_pid), ticks(process.guard_pid)
        time.sleep(0.3)
        assert (switches(process.guard_pid), ticks(process.guard_pid)) == before  # it did not wake up once


def test_without_a_subreaper_the_group_and_linked_descendants_end(tmp_path: Path) -> None:
    """What is possible where the kernel has no subreaper, tried here by taking it away."""
    started = textwrap.dedent(
        """
        import os, subprocess, sys, time
        command = "import os, sys, time; os.setsid(); open(sys.argv[1], 'w').close(); time.sleep(120)"
        other = subprocess.Popen([sys.executable, "-c", command, sys.argv[1]])
        same = subprocess.Popen(["sleep", "120"])
        print(other.pid, same.pid, flush=True)
        time.sleep(120)
        """
    )
    script = tmp_path / "guard_without.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(guard.__file__).parent)!r})\n"
        "import guard\n"
        "guard.become_subreaper = lambda function: False\n"
        "guard.Guard(int(sys.argv[1]), int(sys.argv[2])).run()\n"
    )
    lifeline, lifeline_write = os.pipe()
    status, status_write = os.pipe()
    order: guard.Order = {
        "argv": [sys.executable, "-c", started, str(tmp_path / "detached")],
        "env": dict(os.environ),
        "cwd": None,
        "grace_s": 5.0,
        "name": "plain",
        "owner": {"pid": os.getpid(), "created": guard.created(os.getpid())},
        "pid_file": None,
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), str(lifeline), str(status_write)],
        pass_fds=(lifeline, status_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(lifeline)
    os.close(status_write)
    try:
        os.write(lifeline_write, json.dumps(order).encode() + b"\n")
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        until((tmp_path / "detached").exists, "the detached grandchild")
    finally:
        os.close(lifeline_write)
        process.wait(100)
        assert process.stdout is not None
        process.stdout.close()
    with open(status, encoding="utf-8") as file:
        said = [json.loads(line) for line in file]
    assert [next(iter(message)) for message in said] == ["pid", "exit", "gone"]
    assert said[1]["exit"] == -signal.SIGTERM
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
