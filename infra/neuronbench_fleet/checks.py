"""What of a command can be judged without asking AWS; each raises `UsageError` with what is allowed."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Sequence
from typing import Final

from neuronbench.catalog.instances import instance_of, instances
from neuronbench_fleet.capacity import PURCHASES
from neuronbench_fleet.deployment import KINDS
from neuronbench_fleet.errors import UsageError

_REGION: Final = r"[a-z]{2}(-[a-z]+)+-\d"
_ZONE: Final = re.compile(rf"{_REGION}[a-z]|{_REGION}-[a-z]+-\d[a-z]")
_MAKEFILES: Final = ("GNUmakefile", "makefile", "Makefile")
"""In the order in which make looks for them."""
_RULE: Final = re.compile(r"([^\s#:=][^#:=]*):(?!=)")
_UNTOLD: Final = re.compile(r"-?s?include\s|\$\(eval|%.*:|\.DEFAULT\s*:", re.MULTILINE)
"""Targets may come from there that cannot be read here."""
_TOLD: Final = re.compile(r"make\b|(\S*/)?pip[\d.]* |(\S*/)?python[\d.]* -m (venv|pip) ")
"""Commands of a set-up of which it is known what files they want."""
_OTHER_SETUP: Final = (
    "say how the code is set up on the box, for instance --setup 'python3 -m venv .venv && .venv/bin/pip install -r"
    " requirements.txt' with neuronbench[fleet] among the requirements; or --setup true with --python PATH for an"
    " interpreter that is there already"
)


def positive(**limits: float | None) -> None:
    """Limits by option (`max_usd` is --max-usd): a number above 0, or None."""
    for name, value in limits.items():
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"--{name.replace('_', '-')}: expected more than 0, found {value:g}")


def checked_region(told: str | None) -> str | None:
    """A region that cannot be one would be looked for in the network, for minutes."""
    if told is not None and not re.fullmatch(_REGION, told):
        raise UsageError(f"--region: expected a region such as us-west-2, found {told!r}")
    return told


def check_kind(kind: str, instance_type: str | None) -> None:
    """A box whose chips are of another kind would cost its hours and skip every point."""
    if kind not in KINDS:
        raise UsageError(f"--kind: expected {', '.join(KINDS)}; found {kind!r}")
    if instance_type is None:
        return
    known = instance_of(instance_type)
    if known is None:
        offered = ", ".join(each.name for each in instances() if each.family == kind)
        raise UsageError(f"--instance-type: of kind {kind} there are {offered}; found {instance_type!r}")
    if known.family != kind:
        raise UsageError(
            f"--instance-type {instance_type}: its kind is {known.family}, not {kind}", remedy=f"--kind {known.family}"
        )


def purchases(told: str) -> list[str]:
    """Ways of buying, in their order."""
    found = list(dict.fromkeys(part.strip() for part in told.split(",") if part.strip()))
    unknown = [part for part in found if part not in PURCHASES]
    if unknown or not found:
        raise UsageError(f"--purchase: expected some of {', '.join(PURCHASES)}; found {told!r}")
    return found


def check_zones(zones: Sequence[str], region: str = "") -> None:
    """Names of zones; with `region` of that one."""
    for zone in zones:
        if not _ZONE.fullmatch(zone):
            raise UsageError(f"--zone: expected a zone such as us-west-2a, found {zone!r}")
        if not zone.startswith(region):
            raise UsageError(f"--zone {zone}: not in {region}, the region that is asked", remedy="--region")


def check_setup(setup: str, shipped: Collection[str], makefile: str | None) -> None:
    """A set-up that needs a file which is not shipped fails on the box, and costs its time there.

    `shipped`: names of the files that go there; `makefile`: text of the one that make would read, None where there is
    none. What cannot be told from here passes: on the box its own words are shown.
    """
    if "||" in setup:
        return
    for part in re.split(r"&&|;|\n", setup):
        try:
            words = shlex.split(part)
        except ValueError:  # a quoted text with one of these in it
            return
        if not _TOLD.match(" ".join(words)) or any(set(word) & set("$`<>*?~") for word in words):
            return  # from here on there may be other files, or another folder
        if words[0] == "make":
            _check_make(setup, words[1:], shipped, makefile)
            return
        for option, name in itertools.pairwise(words):
            if option in ("-r", "--requirement") and not name.startswith("/") and name not in shipped:
                raise UsageError(
                    f"--setup {setup!r}: {name} is not among the files that are shipped",
                    remedy="git ships what it tracks, and what is new and not ignored: add it; or another --setup",
                )


def makefile_of(shipped: Collection[str]) -> str | None:
    """Name of the file that make would read."""
    return next((name for name in _MAKEFILES if name in shipped), None)


def _check_make(setup: str, words: Sequence[str], shipped: Collection[str], makefile: str | None) -> None:
    if any(word.startswith("-") for word in words):
        return
    if makefile is None:
        raise UsageError(f"--setup {setup!r}: no Makefile is among the files that are shipped", remedy=_OTHER_SETUP)
    known = {name for rule in map(_RULE.match, makefile.splitlines()) if rule for name in rule[1].split()}
    if _UNTOLD.search(makefile) or any("$" in name for name in known):
        return
    for target in words:
        if "=" not in target and target not in known and target not in shipped:
            raise UsageError(f"--setup {setup!r}: the Makefile has no target {target!r}", remedy=_OTHER_SETUP)
