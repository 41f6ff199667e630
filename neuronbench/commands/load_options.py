"""What `neuronbench load` refuses before it asks a server anything: numbers and files that are none.

Everything here raises `CommandError` with the status of wrong usage, naming the option, what was expected, and what was
found.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from neuronbench.commands import host

MOST: Final = 5_000_000
"""Of whatever is counted: a plan has no more arrivals than that."""
LONGEST_S: Final = 31_536_000.0
"""A year, which also keeps every instant within 64 bits of nanoseconds."""
_WHOLE: Final = ("concurrency", "burst_size", "requests", "processes", "turns", "prefix_groups", "repeats")
_ABOVE_ZERO: Final = ("rate", "burstiness", "trace_speed", "max_rate", "tolerance")
_SECONDS: Final = ("duration", "deadline")
FORMS: Final[Mapping[str, str]] = {
    "--dataset jsonl": 'a JSON object per line with "prompt", "messages", "input_ids" or "input", and "output_tokens" '
    "where a row has its own",
    "--dataset sharegpt": 'one JSON list of {"conversations": [{"from": "human", "value": "..."}, ...]}',
    "--dataset bodies": "a whole request body per line, as a JSON object",
    "--trace jsonl": 'a JSON object per line with "at_s", "input_tokens" and "output_tokens"',
    "--trace mooncake": 'a JSON object per line with "timestamp" (ms), "input_length", "output_length" and "hash_ids"',
    "--trace azure": "CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens",
}
"""What a file is to have in it, by option and form."""


def refused(option: str, expected: str, found: str, remedy: str = "") -> host.CommandError:
    """The error for an option whose value is not what it should be."""
    return host.CommandError(f"{option}: expected {expected}, found {found}", remedy=remedy, status=host.USAGE)


def one_of(option: str, given: str, known: Sequence[str]) -> None:
    from neuronbench.model import closest

    if given not in known:
        raise refused(option, " or ".join(known), f"{given!r}{closest(given, known)}")


def limit(text: str) -> tuple[str, float]:
    """`ttft=500` as a metric's id and its limit in ms."""
    from neuronbench.load.tally import LATENCIES

    name, _, value = text.partition("=")
    name = name.strip().removesuffix("_ms")
    one_of("--slo", name, LATENCIES)
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 < found < math.inf:
        raise refused("--slo", f"{name}=MILLISECONDS", repr(text))
    return name, found


def numbers(given: Mapping[str, Any]) -> None:
    """Refuse what no load can have; `given`: the values by the name of their parameter, None where nobody said."""

    def check(name: str, good: bool, expected: str, found: object) -> None:
        if not good:
            raise refused("--" + name.replace("_", "-"), expected, f"{found}")

    said = {name: value for name, value in given.items() if value is not None}
    for name, value in said.items():
        if name in _WHOLE:
            check(name, 1 <= value <= MOST, f"a whole number from 1 to {MOST}", value)
        elif name in _ABOVE_ZERO:
            check(name, 0 < value < math.inf, "a number above 0", value)
        elif name in _SECONDS:
            check(name, 0 < value <= LONGEST_S, f"seconds above 0 and up to {LONGEST_S:.0f}", value)
    for value in said.get("rates", ()):
        check("rates", 0 < value < math.inf, "numbers above 0", value)
    check("rate_end", 0 <= said.get("rate_end", 0) < math.inf, "a number from 0", said.get("rate_end"))
    check("think_time", 0 <= said.get("think_time", 0) <= LONGEST_S, f"seconds from 0 to {LONGEST_S:.0f}",
          said.get("think_time"))  # fmt: skip
    check("shared_prefix", 1 <= said.get("shared_prefix", 1) <= MOST, "tokens from 1 (leave it out for none)",
          said.get("shared_prefix"))  # fmt: skip
    share = said.get("prefix_hit_ratio", 0)
    check("prefix_hit_ratio", 0 <= share < 1, "a share from 0 to below 1", share)
    check("warmup", 0 <= said.get("warmup", 0) <= MOST, f"a whole number: 0 or more, up to {MOST}", said.get("warmup"))
    check("seed", said.get("seed", 0) >= 0, "a whole number from 0", said.get("seed"))
    percentile = said.get("slo_percentile", 99)
    check("slo_percentile", 0 < percentile < 100, "a number between 0 and 100", f"{percentile:g}")


def address(url: str) -> str:
    """The server's address without the API's path. Raises `ValueError`."""
    from neuronbench.serving.http import clean_url

    cleaned = clean_url(url)
    try:
        fits = urlsplit(cleaned).port != 0
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"a server's address is http://HOST:PORT with a port from 1 to 65535; found {url!r}")
    return cleaned


def file(option: str, path: Path | None, form: str = "") -> None:
    """Refuse what cannot be read as a file with something in it; `form`: that of `FORMS`."""
    from neuronbench.model import closest

    if path is None:
        return
    expected = f"a file{f' in form {form!r}' if form else ''}"
    remedy = f"give {FORMS[f'{option} {form}']}" if form else ""
    try:
        info = path.stat()
        if stat.S_ISREG(info.st_mode):
            path.open("rb").close()
    except FileNotFoundError:
        beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        near = closest(path.name, beside)
        text = f"name a file that is there; names count from {Path.cwd()}"
        raise refused(option, expected, f"nothing at {path}{near}", text) from None
    except OSError as error:
        text = "name a file that this user can read"
        raise refused(option, expected, f"one that cannot be read: {path}: {error.strerror}", text) from error
    if stat.S_ISDIR(info.st_mode):
        raise refused(option, expected, f"a folder: {path}", "name a file in it")
    if not stat.S_ISREG(info.st_mode):
        text = "write it to a file first: it is read more than once"
        raise refused(option, expected, f"a pipe or device: {path}", text)
    if not info.st_size:
        raise refused(option, expected, f"an empty one: {path}", remedy)


def tokenizer(path: Path | None) -> None:
    """Refuse what is neither a `tokenizer.json` nor a folder that has one."""
    if path is None:
        return
    expected = "a tokenizer.json or a folder that has one"
    remedy = "name the folder that the model was downloaded to"
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise refused("--tokenizer", expected, f"a folder without one: {path}", remedy)
        path = path / "tokenizer.json"
    elif path.is_file() and path.name != "tokenizer.json":
        raise refused("--tokenizer", expected, f"a file of another name: {path}", remedy)
    elif not path.is_file():
        raise refused("--tokenizer", expected, f"no such thing at {path}", remedy)
    file("--tokenizer", path)


def certificates(path: Path | None) -> None:
    """Refuse a file that has no certificates in it."""
    import ssl

    if path is None:
        return
    file("--ca-file", path)
    try:
        ssl.create_default_context(cafile=str(path))
    except (ssl.SSLError, ValueError) as error:
        text = f"no certificate in {path} ({error})"
        raise refused("--ca-file", "certificates in PEM", text, "give the PEM of whoever signed the server's") from None


def written(option: str, target: str) -> None:
    """Refuse a file that could not be written when the load is over and it is too late."""
    if not target or target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise refused(option, "a file to write", f"a folder: {path}", f"name a file in it, such as {path}/result.json")
    above = next((each for each in path.absolute().parents if each.exists()), Path("/"))
    if not above.is_dir():
        raise refused(option, "a file to write", f"{above}, which is no folder", "name a folder above it")
    if not os.access(above, os.W_OK | os.X_OK):
        raise refused(option, "a file to write", f"the folder {above}, which this user cannot write", "name another")


def text_of(error: BaseException, files: Mapping[str, tuple[Path | None, str]]) -> host.CommandError | None:
    """What to say where a file turned out to be none of its form on reading; None for what is about no file.

    `files`: path and form by option.
    """
    cause = error.__cause__
    for option, (path, form) in files.items():
        if path is None:
            continue
        remedy = f"give {FORMS[f'{option} {form}']}; {option}-format names other forms"
        if isinstance(cause, UnicodeDecodeError):
            found = f"the byte 0x{cause.object[cause.start]:02x} in {path}, which no such text has there"
            return refused(option, "text in UTF-8", found, remedy)
        if str(error).startswith(f"{path}:"):
            return host.CommandError(f"{option} {error}", remedy=remedy, status=host.USAGE)
    return None
