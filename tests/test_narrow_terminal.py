"""Tables on a terminal of 80 columns: no name is broken in two."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from neuronbench.commands import host
from neuronbench.report.tables import broken

COMMAND = [sys.executable, "-m", "neuronbench"]


def on_terminal(*words: str, columns: int, cwd: Path) -> list[str]:
    """The lines that a command prints on a terminal of so many columns, without colours."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    with subprocess.Popen([*COMMAND, *words], cwd=cwd, stdin=subprocess.DEVNULL, stdout=its, env=environ) as process:
        os.close(its)
        found = b""
        try:
            while block := os.read(ours, 65536):
                found += block
        except OSError:  # so a terminal ends whose other side was closed
            pass
        os.close(ours)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", found.decode()).splitlines()


def test_plugins_and_their_hooks_are_whole_names(tmp_path: Path) -> None:
    told = subprocess.run([*COMMAND, "plugins", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, check=True).stdout
    plugins = json.loads(told)
    lines = on_terminal("plugins", columns=80, cwd=tmp_path)
    words = {word for line in lines for word in re.split(r"[\s,]+", line)}
    for plugin in plugins:
        assert {plugin["name"], *plugin["hooks"]} <= words
    apart = lines[: next(number for number, line in enumerate(lines) if line.startswith("backends:"))]
    assert max(map(len, apart)) <= 80


def test_a_table_that_fits_stays_one(tmp_path: Path) -> None:
    lines = on_terminal("plugins", columns=220, cwd=tmp_path)
    heads = next(line for line in lines if "load ms" in line)
    assert {"plugin", "distribution", "source", "hooks"} <= set(heads.split())


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (28, ["neuronbench.backends.cpu", "  bytes  12", "  hooks  register_backends,", "         check_point"]),
        (80, None),
    ],
)
def test_row_by_row_only_where_words_would_be_broken(
    width: int, expected: list[str] | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "width", lambda: width)
    rows = [("neuronbench.backends.cpu", "12", "", "register_backends, check_point")]
    made = host.table(("plugin", "bytes", "empty", "hooks"), rows, right=("bytes",))
    assert broken(Console(width=width), made) is (expected is not None)
    host.show(made)
    lines = capsys.readouterr().out.splitlines()
    if expected is None:
        assert any({"plugin", "bytes", "hooks"} <= set(line.split()) for line in lines)
    else:
        assert lines == expected


def test_nothing_in_a_row_is_obeyed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(host, "width", lambda: 20)
    host.show(host.table(("a", "b"), [("[red]x\x1b[2J" + "y" * 30, "\x1b]0;title\x07")]))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]x" in out
    assert Text(out).plain == out
