"""How a point ended on each side, before any number is looked at."""

from __future__ import annotations

from collections.abc import Sequence

from neuronbench.compare.matching import Pair
from neuronbench.compare.reading import Reading
from neuronbench.compare.result import OutcomeChange
from neuronbench.model import Outcome, Validity

LOST_ATTEMPT = "lost_attempt"
"""Tag of a record whose host was lost. The repeat was measured again elsewhere: that one speaks of the point."""
_LEFT_OUT = (Outcome.SKIPPED, Outcome.XFAILED, Outcome.CACHED)


def state(readings: Sequence[Reading]) -> tuple[str, str]:
    """The worst a side has come to and what it was: `failed`, `invalid`, `slo_miss`, `ok`, or `absent`.

    One repeat of several that failed makes the point `failed`: a benchmark that ends well most times is not well.
    """
    run = [reading for reading in readings if reading.outcome not in _LEFT_OUT]
    made_up_for = {reading.repeat for reading in run if LOST_ATTEMPT not in reading.tags}
    run = [reading for reading in run if LOST_ATTEMPT not in reading.tags or reading.repeat not in made_up_for]
    if not run:
        return "absent", "; ".join(dict.fromkeys(f"{r.outcome}: {r.reason}".rstrip(": ") for r in readings))
    bad = [reading for reading in run if not reading.measured]
    if bad:
        return "failed", f"{_of(bad, run)}{bad[0].outcome}" + (f" ({bad[0].error})" if bad[0].error else "")
    invalid = [reading for reading in run if reading.validity is Validity.INVALID]
    if invalid:
        gates = dict.fromkeys(name for r in invalid for severity, name in r.failed if severity == "invalid")
        return "invalid", f"{_of(invalid, run)}invalid (gate {', '.join(gates) or 'unknown'})"
    missed = [reading for reading in run if reading.outcome is Outcome.SLO_MISS]
    if missed:
        return "slo_miss", f"{_of(missed, run)}slo_miss" + (f" ({missed[0].error})" if missed[0].error else "")
    return "ok", f"{_of(run, run)}ok"


def _of(some: Sequence[Reading], whole: Sequence[Reading]) -> str:
    return "" if len(whole) == 1 else f"{len(some)} of {len(whole)} " if len(some) < len(whole) else f"{len(whole)} × "


_WORSE = {"failed": "broken", "invalid": "invalidated", "slo_miss": "slo_missed"}
_BETTER = {"failed": "fixed", "invalid": "validated", "slo_miss": "slo_met"}
_RANK = ("ok", "slo_miss", "invalid", "failed")


def change(pair: Pair) -> OutcomeChange | None:
    """What has changed about how a point ends; None when it ends well as before."""
    (before, base), (after, head) = state(pair.base), state(pair.head)
    if before == after == "absent":
        return None
    text = f"{base or 'not there'} → {head or 'not there'}"
    if after == "absent":
        kind = "gone"
    elif before == "absent":
        kind = "new" if after == "ok" else _WORSE[after]
    elif _RANK.index(after) > _RANK.index(before):
        kind = _WORSE[after]
    elif _RANK.index(after) < _RANK.index(before):
        kind = _BETTER[before]
    elif after == "failed" or after == "invalid":
        kind = "failing"
    else:
        return None
    return OutcomeChange(point=pair.label, lane=pair.lane, kind=kind, text=text)
