"""Why something failed, from its log and exit status: class, causal line, cause, remedy.

Rules are data (`catalog/failures.toml`); backends bring more of their own. The order in which evidence counts:

1. the *earliest* line that a rule explains, among lines that are not merely informative or warnings;
2. the exception line that ends the first traceback;
3. a line that tells of an end without its reason (fallback rules, wrappers);
4. the exit status, with signals named;
5. the earliest warning or informative line that a rule explains.

A signal from outside (KILL, TERM, INT) is an answer by itself: exceptions that were logged and survived do not count.

Wrappers ("see root cause above") are recognised so that they are never taken for the cause, and benign noise so that
it is not taken for anything. Reading is bounded whatever the size of the log.
"""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronbench.catalog import load_table
from neuronbench.model import Failure, Json
from neuronbench.redaction import redact

UNCLASSIFIED: Final = "unclassified"
HEAD_BYTES: Final = 1 << 20
TAIL_BYTES: Final = 1 << 20
LINE_CHARS: Final = 2000
"""Longer lines are cut: a cause is readable or it is no help."""
CONTEXT_LINES: Final = 12


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A signature in a log and what it means."""

    id: str
    kind: str
    """Class of the taxonomy that a match gives; several rules may give the same."""
    pattern: str
    """Regular expression, searched in one line."""
    cause: str = ""
    remedy: str = ""
    phase: str | None = None
    """Only in this phase (`boot`, `window`, ...); any phase when None."""
    context: str = ""
    """Regular expression that one of the few lines before must match too; empty for none."""
    wrapper: bool = False
    """The line reports a failure that happened elsewhere: never the cause."""
    benign: bool = False
    """Looks like a failure and is none."""
    fallback: bool = False
    """Tells of an end without its reason; counts only when nothing else explains it."""
    fatal: bool = False
    """The host is of no use any more, such as a device that hangs: the session is to end."""

    def __post_init__(self) -> None:
        for name in ("pattern", "context"):
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                raise ValueError(f"rule {self.id!r}: {name} is not a regular expression: {error}") from error

    @classmethod
    def from_table(cls, table: Mapping[str, Json]) -> Rule:
        """A rule from its TOML table; keys of tests (`example`) are ignored."""
        known = cls.__dataclass_fields__
        return cls(**{key: value for key, value in table.items() if key in known})


@functools.cache
def general_rules() -> tuple[Rule, ...]:
    """The rules that come with neuronbench, in the order they are tried."""
    return tuple(Rule.from_table(table) for table in load_table("failures.toml")["rule"])


# --------------------------------------------------------------------------------------------------------------------
# reading logs

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX: Final = re.compile(
    r"^(?:\([\w.-]+(?:[ =]\w+)*\)\s+)?"  # (EngineCore pid=12)
    r"(?:(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b:?\s*)?"
    r"(?:\d\d(?:\d\d)?-\d\d(?:-\d\d)?[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\s+)?"  # 11-30 01:41:12
    r"(?:(?P<late>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b:?\s*)?"
    r"(?:\[[\w./ -]+:\d+\]\s?)?"  # [core.py:402]
)
_QUIET: Final = frozenset({"DEBUG", "INFO", "WARNING", "WARN"})
_WARNING_LINE: Final = re.compile(r":\d+: \w*Warning: |^\[W\d{4} ")
_SOURCE: Final = re.compile(r'^(?:    |  File "|\t)')
_EXCEPTION: Final = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Warning)?(?::\s|$)"
)


@dataclass(frozen=True)
class _Line:
    text: str
    """Without escape sequences and trailing white space, as it is shown."""
    body: str
    """Without the logger's prefix too."""
    quiet: bool


def _parse(raw: str) -> _Line:
    text = _ANSI.sub("", raw).rstrip().replace("\x00", "")
    if "\r" in text:  # a progress bar: what is left on the screen
        text = text.rsplit("\r", 1)[-1]
    if len(text) > LINE_CHARS:
        text = text[:LINE_CHARS] + " …"
    match = _PREFIX.match(text)
    assert match is not None  # every part is optional
    level = match["level"] or match["late"] or ""
    return _Line(text, text[match.end() :], level in _QUIET or bool(_WARNING_LINE.search(text[:LINE_CHARS])))


def read_log(path: Path, *, start: int = 0, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> str:
    """The text of a log from byte `start` on; its beginning and end when that is more than `head + tail` bytes.

    Empty when the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(min(start, end))
            left_out = end - start - head - tail
            if left_out <= 0:
                data = file.read(head + tail)
            else:
                first = file.read(head)
                file.seek(end - tail)
                data = first + f"\n[... {left_out} bytes left out ...]\n".encode() + file.read(tail)
    except OSError:
        return ""
    return data.decode("utf-8", errors="replace")


def _lines(log_text: str) -> list[_Line]:
    if len(log_text) > HEAD_BYTES + TAIL_BYTES:
        log_text = log_text[:HEAD_BYTES] + "\n" + log_text[-TAIL_BYTES:]
    return [_parse(raw) for raw in log_text.split("\n")]


def tail(path: Path, lines: int = 20) -> str:
    """The last `lines` lines of a log that are not empty; empty text when there is no such file."""
    text = read_log(path, head=0, tail=max(64 << 10, 512 * lines))
    kept = [parsed.text for parsed in map(_parse, text.splitlines()) if parsed.text]
    return "\n".join(kept[-lines:])


# --------------------------------------------------------------------------------------------------------------------
# classifying


def _any_of(patterns: Iterable[str]) -> re.Pattern[str] | None:
    """One expression that matches where any of `patterns` does; None when they cannot be joined (group names)."""
    scoped = [f"(?i:{text[4:]})" if text.startswith("(?i)") else f"(?:{text})" for text in patterns]
    try:
        return re.compile("|".join(scoped))
    except re.error:
        return None


class _Rules:
    """Rules compiled for one phase."""

    def __init__(self, rules: Iterable[Rule], phase: str) -> None:
        usable = [rule for rule in rules if rule.phase in (None, phase)]
        self.wrappers = [re.compile(rule.pattern) for rule in usable if rule.wrapper]
        self.noise = self.wrappers + [re.compile(rule.pattern) for rule in usable if rule.benign]
        self.fallbacks = [(re.compile(rule.pattern), rule) for rule in usable if rule.fallback]
        self.causes = [
            (re.compile(rule.pattern), re.compile(rule.context) if rule.context else None, rule)
            for rule in usable
            if not (rule.benign or rule.wrapper or rule.fallback)
        ]
        self._may_match = _any_of(rule.pattern for _, _, rule in self.causes)
        self._fatal = any(rule.fatal for _, _, rule in self.causes)

    def is_noise(self, line: _Line) -> bool:
        return any(pattern.search(line.body) for pattern in self.noise)

    def fallback(self, lines: Sequence[_Line]) -> tuple[Rule, str] | None:
        """The first line of an end without a reason, else the class of one when there are wrappers without a cause."""
        for line in lines:
            for pattern, rule in self.fallbacks:
                if pattern.search(line.body):
                    return rule, line.text
        if self.fallbacks and any(pattern.search(line.body) for line in lines for pattern in self.wrappers):
            return self.fallbacks[0][1], ""
        return None

    def cause(self, lines: Sequence[_Line], index: int) -> Rule | None:
        line = lines[index]
        if self._may_match is not None and not self._may_match.search(line.body):
            return None  # nearly every line ends here
        for pattern, context, rule in self.causes:
            if not pattern.search(line.body):
                continue
            before = lines[max(0, index - CONTEXT_LINES) : index]
            if (context is None or any(context.search(other.text) for other in before)) and not self.is_noise(line):
                return rule
        return None

    def earliest(self, lines: Sequence[_Line], *, quiet: bool) -> tuple[Rule, _Line] | None:
        """The first line of that loudness that is a cause; source lines of tracebacks do not count. A loud one after
        which nothing can be measured on this host any more comes before all others, wherever it is."""
        first: tuple[Rule, _Line] | None = None
        for index, line in enumerate(lines):
            if line.body and line.quiet is quiet and not _SOURCE.match(line.body):
                rule = self.cause(lines, index)
                if rule is not None and (rule.fatal or first is None):
                    first = rule, line
                if first is not None and (quiet or first[0].fatal or not self._fatal):
                    break
        return first


def match(log_text: str, *, phase: str, extra_rules: Sequence[Rule] = ()) -> tuple[Rule, str] | None:
    """The rule that explains a log and the line it explains it by; None when no rule does."""
    lines = _lines(log_text)
    rules = _Rules((*extra_rules, *general_rules()), phase)
    found = rules.earliest(lines, quiet=False)
    ended = None if found else rules.fallback(lines)
    if ended:
        return ended
    found = found or rules.earliest(lines, quiet=True)
    return (found[0], found[1].text) if found else None


def classify(
    log_text: str,
    *,
    phase: str,
    exit_status: int | None = None,
    extra_rules: Sequence[Rule] = (),
    log_name: str = "",
    message: str = "",
    oom_killed: bool | None = None,
) -> Failure:
    """The failure that a log and an exit status tell of; never raises on what it is given.

    `exit_status` is that of `subprocess` (negative for a signal), of a process that ended before anyone here asked it
    to. `extra_rules` are tried before the general ones on each line. `oom_killed` says whether the kernel's
    out-of-memory killer was seen at work meanwhile. `message` heads the result; by default it tells the exit status.
    """
    lines = _lines(log_text)
    rules = _Rules((*extra_rules, *general_rules()), phase)
    traceback = "\n".join(_first_traceback(lines))

    def failure(kind: str, cause: str, remedy: str, line: str = "", *, fatal: bool = False) -> Failure:
        return Failure(
            kind=kind,
            phase=phase,
            message=message or describe_exit(exit_status) or line or "it failed without saying why",
            causal_line=redact(line),
            cause=cause,
            remedy=remedy,
            log=log_name,
            exit_status=exit_status,
            traceback=redact(traceback),
            fatal=fatal,
        )

    loud = rules.earliest(lines, quiet=False)
    if exit_status is not None and _signal_name(exit_status) in _FROM_OUTSIDE:
        # A process that someone ended did not die of an exception it had logged and survived. Memory is the exception,
        # and so is a device that hangs: whoever waits for it has to be killed.
        if loud and loud[0].fatal:
            return failure(loud[0].kind, loud[0].cause, loud[0].remedy, loud[1].text, fatal=True)
        if loud and loud[0].kind == "host_oom":
            return failure("host_oom", loud[0].cause, loud[0].remedy, loud[1].text)
        if oom_killed and _signal_name(exit_status) == "SIGKILL":
            return failure("host_oom", *_OOM_KILLED)
        return failure(*_from_exit(exit_status))
    if loud:
        return failure(loud[0].kind, loud[0].cause, loud[0].remedy, loud[1].text, fatal=loud[0].fatal)
    for line in _exception_lines(lines):
        if not line.quiet and not rules.is_noise(line):
            return failure(UNCLASSIFIED, "no rule knows this exception", "Read the log from this line on.", line.text)
    ended = rules.fallback(lines)
    if ended and oom_killed:
        return failure("host_oom", *_OOM_KILLED)
    if ended:
        return failure(ended[0].kind, ended[0].cause, ended[0].remedy, ended[1])
    kind, cause, remedy = _from_exit(exit_status)
    if kind == UNCLASSIFIED:
        quiet = rules.earliest(lines, quiet=True)
        if quiet:
            return failure(quiet[0].kind, quiet[0].cause, quiet[0].remedy, quiet[1].text)
    return failure(kind, cause, remedy)


def _exception_lines(lines: Sequence[_Line]) -> Iterable[_Line]:
    """The exception line of each traceback in order."""
    inside = False
    for line in lines:
        if line.body.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and line.body and not _SOURCE.match(line.body) and not line.body.startswith("  "):
            inside = False
            if _EXCEPTION.match(line.body):
                yield line


def _first_traceback(lines: Sequence[_Line], limit: int = 80) -> list[str]:
    """The first traceback in the log, to its exception line; at most the last `limit` lines of it."""
    found: list[str] = []
    for line in lines:
        if not found:
            if line.body.startswith("Traceback (most recent call last)"):
                found.append(line.body)
            continue
        found.append(line.body)
        if line.body and not line.body.startswith(" ") and _EXCEPTION.match(line.body):
            break
        if len(found) > 2000:
            break
    return found if len(found) <= limit else [found[0], "  ...", *found[-limit:]]


# --------------------------------------------------------------------------------------------------------------------
# exit statuses

_OOM_KILLED: Final = (
    "the kernel ended a process because the host ran out of memory",
    "Use a smaller model, context or KV cache, or a host with more memory; check what else is running.",
)
_FROM_OUTSIDE: Final = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
_SIGNALS: Final[Mapping[str, tuple[str, str, str]]] = {
    "SIGKILL": (
        "killed",
        "ended by SIGKILL: by the kernel's out-of-memory killer, a container's limit, or another process",
        "Look for an out-of-memory kill in the kernel log (`dmesg`) and at the container's memory limit.",
    ),
    "SIGTERM": ("terminated", "asked to end by another process", "Find out who sent SIGTERM; nothing here did."),
    "SIGINT": ("terminated", "interrupted from the keyboard or by another process", "Run it again."),
    "SIGSEGV": (
        "crash",
        "native code accessed memory it does not own",
        "Check that the versions of the native packages in the stack belong together; try without custom kernels.",
    ),
    "SIGBUS": ("crash", "a mapped file or shared memory is smaller than expected", "Check free space in /dev/shm."),
    "SIGILL": (
        "illegal_instruction",
        "the build uses instructions this processor does not have",
        "Install a build for this processor, or run on the processor the build was made for.",
    ),
    "SIGABRT": ("crash", "native code gave up (an assertion or an uncaught C++ exception)", "Read the last log lines."),
    "SIGFPE": ("crash", "native code divided by zero", "Read the last log lines."),
}


def _signal_name(exit_status: int) -> str:
    number = -exit_status if exit_status < 0 else exit_status - 128 if exit_status > 128 else 0
    try:
        return signal.Signals(number).name if number else ""
    except ValueError:
        return ""


def describe_exit(exit_status: int | None) -> str:
    """`exited with status 1`, `ended by SIGKILL`; empty when there is none."""
    if exit_status is None:
        return ""
    name = _signal_name(exit_status)
    if name:
        return f"ended by {name}" if exit_status < 0 else f"exited with status {exit_status} ({name})"
    return f"exited with status {exit_status}"


def _from_exit(exit_status: int | None) -> tuple[str, str, str]:
    if exit_status is None:
        return UNCLASSIFIED, "", "Read the log."
    if exit_status == 0:
        return "exited", "it ended by itself, without an error", "A server must stay; check its command line."
    if exit_status == 127:
        return "command_not_found", "the command does not exist", "Check the path of the interpreter or program."
    if exit_status == 126:
        return "permission_denied", "the command is not executable", "Check the file's permissions."
    known = _SIGNALS.get(_signal_name(exit_status))
    return known or (UNCLASSIFIED, "", "Read the log.")


def oom_kills() -> int | None:
    """How many processes the kernel has ended for lack of memory since boot; None where it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None
