"""Classification of failures from logs and exit statuses."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from neuronbench import failures
from neuronbench.catalog import load_table
from neuronbench.failures import Rule, classify, general_rules, match

TABLE = load_table("failures.toml")["rule"]
LOGS = Path(__file__).parent / "data" / "vllm"


@pytest.mark.parametrize("row", TABLE, ids=[row["id"] for row in TABLE])
def test_every_rule_explains_its_own_example(row: dict[str, str]) -> None:
    found = match(row["example"], phase="boot")
    failure = classify(row["example"], phase="boot", exit_status=1)
    if row.get("benign"):
        assert found is None
        assert failure.kind == failures.UNCLASSIFIED
    elif row.get("wrapper"):
        assert found is not None
        assert found[1] == ""
        assert (failure.kind, failure.causal_line) == ("engine_died", "")
    else:
        assert found is not None
        assert found[0].id == row["id"]
        assert failure.kind == row["kind"]
        assert failure.causal_line in row["example"]
        assert failure.causal_line


def test_rules_are_complete() -> None:
    ids = [rule.id for rule in general_rules()]
    assert len(ids) == len(set(ids))
    for rule in general_rules():
        if not (rule.wrapper or rule.benign):
            assert rule.cause, rule.id
            assert rule.remedy, rule.id


@pytest.mark.parametrize(
    ("log", "status", "kind", "words"),
    [
        ("arch.log", 1, "unsupported_architecture", "does not recognize this architecture"),
        ("badarg.log", 2, "bad_arguments", "unrecognized arguments: --no-such-flag"),
        ("corrupt.log", 1, "weights_corrupt", "MemoryError"),
        ("trunc.log", 1, "weights_corrupt", "SafetensorError"),
        ("kv0.log", 1, "bad_arguments", "invalid literal for int()"),
        ("kvhuge.log", 1, "host_oom", "Available memory on node 0"),
        ("nomodel.log", 1, "hub_unreachable", "LocalEntryNotFoundError"),
        ("port.log", 1, "port_in_use", "Address already in use"),
        ("toolong.log", 1, "context_too_long", "User-specified max_model_len (100000)"),
        ("engine_killed.log", 0, "engine_died", "engine core exited unexpectedly"),
    ],
)
def test_logs_of_real_servers(log: str, status: int, kind: str, words: str) -> None:
    failure = classify(failures.read_log(LOGS / log), phase="boot", exit_status=status, log_name=log)
    assert failure.kind == kind
    assert words in failure.causal_line
    assert failure.remedy
    assert failure.log == log
    assert failure.exit_status == status


def test_a_start_that_went_well_explains_nothing() -> None:
    assert match(failures.read_log(LOGS / "boot_ok.log"), phase="window") is None


def test_the_earliest_cause_wins_over_wrappers_and_later_causes() -> None:
    log = """\
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
(Worker pid=1) ERROR 11-30 01:00:00 [a.py:1] OSError: [Errno 28] No space left on device
(EngineCore pid=2) ERROR 11-30 01:00:01 [b.py:1] OSError: [Errno 98] Address already in use
RuntimeError: Engine core initialization failed. See root cause above."""
    failure = classify(log, phase="boot", exit_status=1)
    assert failure.kind == "disk_full"
    assert failure.causal_line == log.splitlines()[1]


def test_a_wrapper_that_quotes_the_cause_is_no_cause() -> None:
    log = "RuntimeError: Engine core initialization failed. See root cause above: Address already in use"
    failure = classify(log, phase="boot", exit_status=1)
    assert failure.kind == "engine_died"
    assert failure.causal_line == ""


def test_warnings_count_only_when_nothing_else_does() -> None:
    warning = "WARNING 11-30 01:00:00 [a.py:1] PermissionError: cannot write the usage file\n"
    error = 'Traceback (most recent call last):\n  File "x.py", line 1\nzoo.Strange: unheard of\n'
    failure = classify(warning + error, phase="boot", exit_status=1)
    assert (failure.kind, failure.causal_line) == (failures.UNCLASSIFIED, "zoo.Strange: unheard of")
    assert classify(warning, phase="boot", exit_status=1).kind == "permission_denied"


def test_source_lines_of_a_traceback_are_no_cause() -> None:
    log = """\
Traceback (most recent call last):
  File "engine.py", line 7, in run
    raise RuntimeError("CUDA out of memory")  # noqa
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
KeyError: 'rope'
"""
    failure = classify(log, phase="boot", exit_status=1)
    assert (failure.kind, failure.causal_line) == (failures.UNCLASSIFIED, "KeyError: 'rope'")
    assert failure.traceback.endswith("KeyError: 'rope'")


def test_the_first_traceback_of_a_chain_is_the_one() -> None:
    log = """\
(W pid=1) ERROR 11-30 01:00:00 [a.py:1] Traceback (most recent call last):
(W pid=1) ERROR 11-30 01:00:00 [a.py:1]   File "a.py", line 1, in f
(W pid=1) ERROR 11-30 01:00:00 [a.py:1]     g()
(W pid=1) ERROR 11-30 01:00:00 [a.py:1] LookupOfThings: the first
(W pid=1) ERROR 11-30 01:00:00 [a.py:1]
(W pid=1) ERROR 11-30 01:00:00 [a.py:1] During handling of the above exception, another exception occurred:
Traceback (most recent call last):
  File "b.py", line 1, in h
ValueError: the second
"""
    failure = classify(log, phase="boot", exit_status=1)
    assert failure.causal_line.endswith("LookupOfThings: the first")
    assert "the second" not in failure.traceback


def test_rules_of_a_backend_go_first_and_bind_to_phases() -> None:
    rule = Rule(id="mine", kind="core_busy", pattern="Address already in use", phase="boot", remedy="wait")
    log = "OSError: [Errno 98] Address already in use"
    assert classify(log, phase="boot", extra_rules=[rule]).kind == "core_busy"
    assert classify(log, phase="window", extra_rules=[rule]).kind == "port_in_use"


def test_a_rule_with_a_broken_pattern_says_which() -> None:
    with pytest.raises(ValueError, match="rule 'bad': pattern"):
        Rule(id="bad", kind="x", pattern="(")


def test_rules_with_the_same_group_names_still_work() -> None:
    rules = [Rule(id=f"r{i}", kind=f"k{i}", pattern=rf"(?P<n>\d+) zebras{i}") for i in range(2)]
    assert classify("12 zebras1", phase="boot", extra_rules=rules).kind == "k1"


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (-9, "killed", "ended by SIGKILL"),
        (137, "killed", "exited with status 137 (SIGKILL)"),
        (-15, "terminated", "ended by SIGTERM"),
        (-11, "crash", "ended by SIGSEGV"),
        (-4, "illegal_instruction", "ended by SIGILL"),
        (-6, "crash", "ended by SIGABRT"),
        (0, "exited", "exited with status 0"),
        (127, "command_not_found", "exited with status 127"),
        (3, failures.UNCLASSIFIED, "exited with status 3"),
        (-250, failures.UNCLASSIFIED, "exited with status -250"),
        (None, failures.UNCLASSIFIED, "it failed without saying why"),
    ],
)
def test_exit_statuses(status: int | None, kind: str, message: str) -> None:
    failure = classify("", phase="window", exit_status=status)
    assert (failure.kind, failure.message, failure.causal_line) == (kind, message, "")


def test_a_signal_from_outside_is_not_blamed_on_an_old_exception() -> None:
    log = "Traceback (most recent call last):\n  File 'x'\nValueError: a request was bad\n"
    assert classify(log, phase="window", exit_status=-9).kind == "killed"
    assert classify(log, phase="window", exit_status=-9, oom_killed=True).kind == "host_oom"
    assert classify(log + "MemoryError\n", phase="window", exit_status=-9).kind == "host_oom"
    assert classify(failures.read_log(LOGS / "engine_killed.log"), phase="window", oom_killed=True).kind == "host_oom"


@pytest.mark.parametrize("text", ["", "\n\n", "\x00\x01\x02", "\x1b[31m\x1b[0m", "Traceback (most recent call last):"])
def test_nothing_to_go_by(text: str) -> None:
    assert classify(text, phase="boot").kind == failures.UNCLASSIFIED


def test_garbage_never_raises() -> None:
    noise = random.Random(7)
    for _ in range(20):
        text = bytes(noise.randrange(256) for _ in range(3000)).decode("utf-8", errors="replace")
        assert classify(text, phase="boot", exit_status=1).phase == "boot"


def test_colours_and_progress_bars_do_not_hide_the_cause() -> None:
    log = "\rloading 10%\rloading 90%\r\x1b[31mOSError: [Errno 28] No space left on device\x1b[0m"
    failure = classify(log, phase="boot")
    assert (failure.kind, failure.causal_line) == ("disk_full", "OSError: [Errno 28] No space left on device")


def test_secrets_do_not_get_into_a_failure() -> None:
    failure = classify("OSError: [Errno 28] No space left, HF_TOKEN=hf_abcdefghijklmnopqrstuv", phase="boot")
    assert "hf_abc" not in failure.causal_line


def test_huge_logs_are_read_in_bounds(tmp_path: Path) -> None:
    path = tmp_path / "huge.log"
    first = b"OSError: [Errno 28] No space left on device\n"
    with path.open("wb") as file:
        file.write(first)
        file.truncate(300 << 20)  # sparse
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    started = time.monotonic()
    text = failures.read_log(path)
    assert len(text) < failures.HEAD_BYTES + failures.TAIL_BYTES + 100
    assert "bytes left out" in text
    assert classify(text, phase="boot").kind == "disk_full"
    assert failures.tail(path, 1) == "the end"
    assert time.monotonic() - started < 60


def test_a_long_line_is_cut() -> None:
    failure = classify("OSError: [Errno 28] " + "x" * 100_000, phase="boot")
    assert len(failure.causal_line) < failures.LINE_CHARS + 10


def test_reading_from_an_offset_and_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\n\nthree\n", encoding="utf-8")
    assert failures.read_log(path, start=4) == "two\n\nthree\n"
    assert failures.read_log(path, start=999) == ""
    assert failures.tail(path, 2) == "two\nthree"
    assert failures.read_log(tmp_path / "none.log") == ""
    assert failures.tail(tmp_path / "none.log") == ""
