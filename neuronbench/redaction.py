"""Taking secrets out of text before it is written anywhere: logs, command lines, environments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

REDACTED: Final = "[redacted]"

_NAME: Final = (
    r"(?:[A-Za-z0-9]+[_.-])*"
    r"(?:api[_-]?key|apikey|(?:access|secret|private|account|encryption|signing|master|license)[_-]?key(?:[_-]?id)?"
    r"|secret|password|passwd|passphrase|pwd|credentials?|(?:[A-Za-z0-9]+[_-])?token|authorization|signature)"
)
_NOT_SECRET: Final = re.compile(
    r"(?i)(?:^|[_.-])(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|stop|start|end|first|last|next|per|output|input"
    r"|prompt|draft|sampled|target)[_-]token$"
)
"""Names of tokens that are words of a vocabulary."""

_ASSIGNED: Final = re.compile(
    rf"(?i)(?P<name>(?<![A-Za-z0-9])(?:--)?{_NAME})(?P<quote>[\"']?)(?P<sep>\s*[=:]\s*|(?<=[A-Za-z])\s+(?=\S))"
    r"(?P<open>[\"']?)(?P<value>\[[^\]\n]{3,}\]|[^\s\"',;&}\])]{3,})"
)
_FIXED: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", REDACTED),
        (
            r"(?i)\b(bearer|basic)\s+(?=[A-Za-z0-9._~+/=-]*\d|[A-Za-z0-9._~+/=-]{20})[A-Za-z0-9._~+/=-]{8,}",
            rf"\1 {REDACTED}",
        ),
        (r"(?i)(?<=://)[^\s/@:\"']*:[^\s/@\"']*(?=@)", REDACTED),
        (r"(?i)(?<=://)[A-Za-z0-9_.~%-]{16,}(?=@)", REDACTED),
        (r"\b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}\b", REDACTED),
        (r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}\b", REDACTED),
        (r"\bgh[pousr]_[A-Za-z0-9]{20,}\b|\bgithub_pat_[A-Za-z0-9_]{20,}\b|\bglpat-[\w-]{16,}", REDACTED),
        (r"\bsk-[A-Za-z0-9_-]{16,}|\bxox[abprs]-[\w-]{10,}|\bdapi[0-9a-f]{32}\b", REDACTED),
        (r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", REDACTED),
        (r"(?i)(?<=[?&])(x-amz-(?:signature|credential|security-token)|sig|signature|token|key|password)=[^&\s\"']+",
         rf"\1={REDACTED}"),
    )
)  # fmt: skip


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of that name is likely to hold a secret."""
    bare = name.lstrip("-")
    if _NOT_SECRET.search(bare):
        return False
    return re.fullmatch(rf"(?i){_NAME}", bare) is not None or re.search(r"(?i)(?:^|_)KEY$", bare) is not None


def _assigned(match: re.Match[str]) -> str:
    name, value, separator = match["name"], match["value"], match["sep"]
    bare = name.lstrip("-")
    if _NOT_SECRET.search(bare) or value.startswith(REDACTED[:4]):
        return match[0]
    if not separator.strip() and not name.startswith("--"):
        return match[0]  # prose: "the password reset"
    if bare.lower() in ("token", "signature", "authorization") and ":" in separator and len(value) < 16:
        return match[0]  # prose: "per output token: 3.1"
    if value.lower() in ("none", "null", "true", "false", "bearer", "basic"):
        return match[0]
    return f"{name}{match['quote']}{separator}{match['open']}{REDACTED}"


def redact(text: str) -> str:
    """`text` with secrets replaced by `[redacted]`: assignments to secret names, known forms of keys and tokens,
    credentials in URLs. Applying it twice changes nothing more."""
    for pattern, replacement in _FIXED:
        text = pattern.sub(replacement, text)
    return _ASSIGNED.sub(_assigned, text)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line with the values of secret options replaced, whether `--name value` or `--name=value`.

    The word after such an option is its value whatever it looks like; more values may follow up to the next option.
    """
    out: list[str] = []
    hide = first = False
    for word in argv:
        if hide and (first or not word.startswith("-")):
            first = False
            out.append(REDACTED)
            continue
        first = hide = word.startswith("-") and "=" not in word and is_secret_name(word)
        out.append(redact(word))
    return out
