"""A metric over sessions, with the steps in it: lines for a terminal, and Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from neuronbench.compare.history import Entry, Jump, Series
from neuronbench.model import Metric
from neuronbench.report import tables

if TYPE_CHECKING:
    from rich.table import Table

_BARS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Values as bars between the least and the largest."""
    low, high = min(values), max(values)
    if high == low:
        return _BARS[3] * len(values)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in values)


def amount(value: float, series: Series) -> str:
    kind = series.metric
    return tables.number(Metric(id=kind.id or "x", value=value, unit=kind.unit, stat=kind.stat))


def title(series: Series) -> str:
    unit = series.metric.unit
    return f"{series.point}  {series.metric.key}" + (f" ({unit})" if unit and unit != "share" else "")


def size(jump: Jump) -> str:
    """`−5.1 %`; `step` where a ratio has no meaning."""
    return "step" if jump.percent is None else f"{jump.percent:+.1f} %".replace("-", "−")


def step_line(jump: Jump, series: Series) -> str:
    """`−5.1 % (better): 12.1 → 11.5`."""
    sense = {True: "worse", False: "better", None: "no direction"}[jump.worse]
    return f"{size(jump)} ({sense}): {amount(jump.before, series)} → {amount(jump.after, series)}"


def step_lines(many: Sequence[Series]) -> list[str]:
    """Steps by the session they begin with, oldest first, and what else changed with it."""
    groups: dict[str, list[tuple[Jump, Series]]] = {}
    for series in many:
        for jump in series.jumps:
            groups.setdefault(jump.session, []).append((jump, series))
    lines = []
    for session, members in sorted(groups.items()):
        changed = list(dict.fromkeys(text for jump, _ in members for text in jump.changed))
        told = ", ".join(changed[:6]) + (f" and {len(changed) - 6} more" * (len(changed) > 6))
        lines.append(f"from {session} on" + (f"; changed with it: {told}" if told else ""))
        lines += [f"  {title(series)}: {step_line(jump, series)}" for jump, series in members]
    return lines


def _at(entry: Entry) -> str:
    return entry.started_at[:16].replace("T", " ")


def series_table(series: Series) -> Table:
    """One line a session; a step stands at the session it begins with."""
    from rich.text import Text

    made = tables.plain_table(title(series))
    for name in ("session", "started (UTC)"):
        made.add_column(name, no_wrap=True)
    made.add_column("value", justify="right", no_wrap=True)
    made.add_column("r", justify="right", no_wrap=True)
    made.add_column("", overflow="fold")
    jumps = {jump.session: jump for jump in series.jumps}
    for entry in series.entries:
        jump = jumps.get(entry.session)
        told = Text(" ".join(entry.marks))
        if jump is not None:
            style = {True: "red", False: "green", None: "yellow"}[jump.worse]
            told = Text(f"◀ {size(jump)} ", style=style) + told
        tables.add(made, entry.session, _at(entry), amount(entry.value, series), str(entry.repeats), told)
    return made


def summary_table(many: Sequence[Series]) -> Table:
    """One line a series: where it stands, its shape, its steps."""
    from rich.text import Text

    made = tables.plain_table("over sessions, oldest first")
    made.add_column("point", overflow="fold")
    made.add_column("metric", overflow="fold")
    made.add_column("sessions", justify="right", no_wrap=True)
    made.add_column("first", justify="right", no_wrap=True)
    made.add_column("last", justify="right", no_wrap=True)
    made.add_column("shape", no_wrap=True)
    made.add_column("steps", overflow="fold")
    for series in many:
        values = [entry.value for entry in series.entries]
        steps = Text()
        for jump in series.jumps:
            style = {True: "red", False: "green", None: "yellow"}[jump.worse]
            steps += Text(f"{size(jump)} at {jump.session}\n", style=style)
        steps.rstrip()
        shape = sparkline([math.log(v) for v in values[-40:]] if min(values) > 0 else values[-40:])
        first, last = amount(values[0], series), amount(values[-1], series)
        cells = (series.point, series.metric.key, str(len(values)), first, last, shape)
        made.add_row(*map(Text, cells), steps)
    return made


def parts(many: Sequence[Series], *, needed: int) -> list[Table | str]:
    """What there is to show: one series in full, several a line each; then the steps, and what is too short for any."""
    found: list[Table | str] = [series_table(many[0]) if len(many) == 1 else summary_table(many)]
    found += step_lines(many)
    if not any(series.jumps for series in many):
        found.append("no steps")
    short = [series for series in many if len(series.entries) < needed]
    if short:
        least = min(len(series.entries) for series in short)
        found.append(
            f"{len(short)} of {len(many)} series have fewer than {needed} sessions (such as {least}): "
            "too few to tell a step from noise"
        )
    left_out = sum(series.left_out for series in many)
    if left_out:
        found.append(f"{left_out} values are left out: no repeat of that session was valid and had one")
    found += [f"noise floor: {text}" for text in dict.fromkeys(series.floor for series in many)]
    return found


def markdown(many: Sequence[Series]) -> str:
    lines = ["| point | metric | sessions | first | last | steps |", "|---|---|---:|---:|---:|---|"]
    for series in many:
        steps = (
            "<br>".join(_plain(f"{step_line(jump, series)}, from {jump.session} on") for jump in series.jumps) or "none"
        )
        first, last = (amount(series.entries[at].value, series) for at in (0, -1))
        point, key = _plain(series.point), _plain(series.metric.key)
        lines.append(f"| {point} | {key} | {len(series.entries)} | {first} | {last} | {steps} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    from neuronbench.report.comparison_files import cell

    return cell(text)
