"""Whether an option had any effect: what it must change, with it and without it.

An option that a tool ignores, or that needs another beside it, leaves everything as it was and passes for one that
costs nothing and gains nothing. Everything that has been measured in both arms is compared to the last digit, and what
the option must change by its nature (its witness: memory of a smaller type, losses of another arithmetic) on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuronbench.model import Gate


def no_effect_gate(option: str, pairs: Mapping[str, tuple[Any, Any]], *, witnesses: Sequence[str] = ()) -> Gate:
    """`pairs`: quantity → its value without and with the option. Failed when every witness is the same in both.

    Without `witnesses` all of `pairs` are. Quantities that are missing on a side say nothing.
    """
    known = {name: pair for name, pair in pairs.items() if pair[0] is not None and pair[1] is not None}
    watched = [name for name in (witnesses or tuple(pairs)) if name in known]
    if not watched:
        return _gate(option, None, None, "nothing that it must change was measured with and without it")
    same = [name for name in watched if known[name][0] == known[name][1]]
    others = [name for name in known if name not in watched and known[name][0] != known[name][1]]
    if len(same) < len(watched):
        changed = [name for name in watched if name not in same]
        return _gate(option, True, len(changed), f"changed: {', '.join(changed)}")
    said = f"the same with and without it: {', '.join(same)}"
    if others:
        said += "; what differs, which noise can make differ too: " + ", ".join(
            f"{name} {_short(known[name][0])} → {_short(known[name][1])}" for name in others
        )
    return _gate(option, False, 0, said)


def _gate(option: str, passed: bool | None, changed: int | None, message: str) -> Gate:
    return Gate(
        id="no_effect",
        passed=passed,
        observed=changed,
        limit=None if changed is None else 1,
        unit="" if changed is None else "quantities changed",
        severity="provisional",
        message=f"{option}: {message}",
    )


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:40]
