"""What a profiler says of an execution, in either of its JSON forms.

`summary-json` is an object whose first value is the table of metrics, whatever its key is; `json` has a list
`summary` whose first entry is that table. Its fields called `..._percent` hold fractions from 0 to 1. One outside of
that is nobody's share of anything (25,300 % of a throttle counter has been seen): it is null here and named in `odd`.
What is null or of another type is null. Times are in seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

VERSIONS: Final = ("profiler_version", "compiler_version", "runtime_version", "driver_version", "collectives_version")
HEADLINE: Final = (
    "total_time", "model_flops", "hardware_flops", "mfu_estimated_percent", "hfu_estimated_percent",
    "mfu_max_achievable_estimated_percent", "mbu_estimated_percent", "hbm_read_bytes", "hbm_write_bytes",
    "spill_save_bytes", "spill_reload_bytes", "tensor_engine_active_time_percent", "vector_engine_active_time_percent",
    "scalar_engine_active_time_percent", "gpsimd_engine_active_time_percent", "dma_active_time_percent",
    "cc_op_active_time_percent",
)  # fmt: skip
"""What is worth a place in a record; throttle counters come along."""
THROTTLE: Final = "throttle_"
PERCENT: Final = "_percent"
ROUNDING: Final = 1e-6
_TEXT: Final = (*VERSIONS, "instance_type")
_IDS: Final = frozenset({"instance_id", "hostname", "host_name"})


class ProfileError(ValueError):
    """A profile cannot be made or read. `kind` is the failure's class; `remedy` what to do about it."""

    def __init__(self, kind: str, text: str, *, remedy: str = "") -> None:
        super().__init__(text)
        self.kind, self.remedy = kind, remedy


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Metrics of one profile."""

    metrics: Mapping[str, float | None]
    """By the profiler's own names; shares are fractions."""
    versions: Mapping[str, str] = field(default_factory=dict)
    odd: tuple[str, ...] = ()
    """Metrics whose values cannot be, `name = value`."""

    @property
    def throttled(self) -> bool | None:
        """Whether the clock of the engines was held back; None where the profiler does not say."""
        limits = [
            v for name, v in self.metrics.items() if name.startswith(f"{THROTTLE}avg_util_limit") and v is not None
        ]
        return min(limits) < 1.0 if limits else None

    def headline(self) -> dict[str, float | None]:
        """What goes into a record."""
        return {name: value for name, value in self.metrics.items() if name in HEADLINE or name.startswith(THROTTLE)}


def parse(text: str) -> Summary:
    """The summary in the output of `view`. Raises `ProfileError` for what is none."""
    document = _document(text)
    table = _table(document)
    if table is None:
        raise _no_table(document)
    return _summary(table)


def parse_all(text: str) -> dict[str, Summary]:
    """All summaries in the output of `view` of a folder, by the tool's names. Raises `ProfileError` where none is."""
    document = _document(text)
    if isinstance(document, dict) and isinstance(document.get("summary"), list):
        document = {str(index): table for index, table in enumerate(document["summary"])}
    tables = document.items() if isinstance(document, dict) else ()
    found = {str(name): _summary(table) for name, table in tables if isinstance(table, dict) and table}
    if not found:
        raise _no_table(document)
    return found


def _no_table(document: Any) -> ProfileError:
    return ProfileError(
        "profile_unreadable",
        "the profiler's summary: expected an object whose first value is a table of metrics, or one with a list "
        f"`summary`; found {type(document).__name__}",
        remedy="The form may have changed with the tool's version; the record names the version.",
    )


def _summary(table: Mapping[str, Any]) -> Summary:
    metrics: dict[str, float | None] = {}
    odd: list[str] = []
    for name, value in table.items():
        if name in _TEXT or name in _IDS:
            continue
        metrics[name] = _number(name, value, odd)
    versions = {name: str(table[name]) for name in VERSIONS if isinstance(table.get(name), str)}
    return Summary(metrics=metrics, versions=versions, odd=tuple(odd))


def _document(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        found = " ".join(text.split())[:80]
        raise ProfileError("profile_unreadable", f"the profiler's summary: expected JSON, found {found!r}") from None


def _table(document: Any) -> Mapping[str, Any] | None:
    if not isinstance(document, dict) or not document:
        return None
    listed = document.get("summary")
    first = listed[0] if isinstance(listed, list) and listed else next(iter(document.values()))
    return first if isinstance(first, dict) and first else None


def _number(name: str, value: Any, odd: list[str]) -> float | None:
    if value is None or isinstance(value, (bool, str, list, dict)):
        return None
    if not abs(value) < 1e300:
        odd.append(f"{name} is not finite")
        return None
    number = float(value)
    if name.endswith(PERCENT) and not -ROUNDING <= number <= 1.0 + ROUNDING:
        odd.append(f"{name} = {100 * number:g} %")
        return None
    if number < 0:
        odd.append(f"{name} = {number:g}")
        return None
    return number
