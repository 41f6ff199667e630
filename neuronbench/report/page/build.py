"""From receipts to a document: which sections there are, and what stands at the top."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from neuronbench.compare import Comparison, Verdict
from neuronbench.compare import Row as Compared
from neuronbench.definitions import DEFINITIONS
from neuronbench.report import comparison as words
from neuronbench.report.page import beside, costs, curves, frontier, lanes, problems, roofline, samples
from neuronbench.report.page.figure import Block, Cell, Document, Section, Table, Text, Tone
from neuronbench.report.page.gather import Content
from neuronbench.report.page.rows import Row, Standing, by_lane
from neuronbench.words import counted

COMPARED: Final = 300
"""Rows of a comparison."""
OUTCOMES: Final = 200
SESSIONS: Final = 6
_NAMES: Final = {Standing.ABSENT: "not measured"}
_TONES: Final[Mapping[Verdict, Tone]] = {Verdict.REGRESSED: "bad", Verdict.IMPROVED: "good", Verdict.UNCHANGED: "faint"}


def document(content: Content, comparison: Comparison | None = None) -> Document:
    """The whole report. Reads tables of requests, steps and telemetry of a few records only."""
    grouped = by_lane(content.rows)
    sections: list[Section] = []
    if comparison is not None:
        sections.append(Section(title="Comparison", anchor="comparison", blocks=compared(comparison)))
    for lane, rows in grouped.items():
        content.source.progress(f"lane {lane}")
        sections.append(
            Section(title=_title(lane, content), anchor=f"lane-{_slug(lane)}", blocks=_lane(lane, rows, content))
        )
    published = beside.published(content.rows, content)
    if published:
        sections.append(Section(title="Measured / published", anchor="published", blocks=published))
    sections += [
        Section(title="Boots and compilations", anchor="boots", blocks=costs.boots(content.boots, content)),
        Section(title="Roofline", anchor="roofline", blocks=roofline.roofline(content)),
        Section(title="Cost", anchor="cost", blocks=costs.dollars(content.rows, content)),
        Section(title="Failures", anchor="failures", blocks=problems.failures(content.rows, content.boots, content)),
        Section(
            title="Environment",
            anchor="environment",
            blocks=problems.environments([*content.readings, *content.boots], content),
        ),
        Section(title="Definitions", anchor="definitions", blocks=[_definitions(content)]),
    ]
    problems_told = [*content.left_out, *content.source.problems]
    if problems_told:
        lines = [*problems_told[:40], *([f"and {len(problems_told) - 40} more"] if len(problems_told) > 40 else [])]
        sections.append(Section(title="Left out", anchor="left-out", blocks=[Text(lines=lines, bullet=True)]))
    return Document(
        title=f"neuronbench report: {content.label}",
        facts=_top(content),
        warnings=_warnings(content),
        sections=sections,
    )


def _title(lane: str, content: Content) -> str:
    told = content.titles(lane)
    return f"{lane}: {told}" if told else lane


def _slug(lane: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", lane).strip("-") or "lane"


def _lane(lane: str, rows: Sequence[Row], content: Content) -> list[Block]:
    blocks: list[Block] = [*lanes.tables_of(lane, rows, content)]
    blocks += curves.load_curve(lane, rows, content)
    blocks += frontier.pareto(lane, rows, content)
    blocks += samples.distributions(lane, rows, content)
    blocks += samples.losses(lane, rows, content)
    blocks += samples.timelines(lane, rows, content)
    failed = sum(len(row.readings) for row in rows if row.standing is Standing.FAILED)
    absent = sum(len(row.readings) for row in rows if row.standing is Standing.ABSENT)
    told = [
        f"{counted(failed, 'record')} failed" if failed else "",
        f"{counted(absent, 'was', 'were')} not measured" if absent else "",
    ]
    if any(told):
        blocks.append(Text(lines=[f"{' and '.join(part for part in told if part)}: see Failures."]))
    return blocks


# --------------------------------------------------------------------------------------------------------------------
# the top


def _top(content: Content) -> list[tuple[str, str]]:
    readings = content.readings
    counts = Counter(row.standing for row in content.rows for _ in row.readings)
    sessions = list(dict.fromkeys(reading.session for reading in readings))
    more = f" and {len(sessions) - SESSIONS} more" if len(sessions) > SESSIONS else ""
    instants = sorted(reading.started_at for reading in readings if reading.started_at)
    commits = list(dict.fromkeys(str(reading.context.get("git.commit") or "")[:10] for reading in readings))
    dirty = any(reading.context.get("git.dirty") for reading in readings)
    facts = [
        (
            "receipts",
            ", ".join(f"{count} {_NAMES.get(standing, standing.value)}" for standing, count in counts.items())
            or "none",
        ),
        (
            "points",
            f"{len(content.rows)}, {counted(len(content.boots), 'boot or compilation', 'boots and compilations')}",
        ),
        ("sessions", ", ".join(sessions[:SESSIONS]) + more),
        ("measured", f"{_day(instants[0])} … {_day(instants[-1])} UTC" if instants else "unknown"),
        ("backends", ", ".join(dict.fromkeys(reading.point.backend for reading in readings))),
        ("commit", ", ".join(commit for commit in commits if commit) + (" (uncommitted changes)" if dirty else "")),
        ("made", f"{_day(content.created)} UTC by neuronbench {content.version}: {content.command}"),
    ]
    return [(name, value) for name, value in facts if value]


def _day(instant: str) -> str:
    return instant[:16].replace("T", " ")


def _warnings(content: Content) -> list[str]:
    readings = content.readings
    counts = Counter(row.standing for row in content.rows for _ in row.readings)
    found = []
    for standing, text in (
        (
            Standing.PROVISIONAL,
            "provisional: evidence is missing, they are in tables of their own and not to be quoted",
        ),
        (Standing.INVALID, "invalid: a gate has failed, their numbers say nothing"),
        (Standing.SIMULATED, "simulated: they are not of the hardware they name"),
        (Standing.IMPORTED, "imported: measured by others by other rules, and not checked here"),
        (Standing.FAILED, "without a result: see Failures"),
    ):
        if counts[standing]:
            verb = "is" if counts[standing] == 1 else "are"
            found.append(f"{counts[standing]} of {counted(len(readings), 'record')} {verb} {text}.")
    if not counts[Standing.VALID]:
        found.append("There is no valid record: no number on this page may be quoted.")
    one = sum(row.standing is Standing.VALID and len(row.readings) == 1 for row in content.rows)
    if one:
        many = counted(one, "valid point rests", "valid points rest")
        found.append(f"{many} on one repeat: what another boot would have said is not known (--nb-repeats).")
    if content.left_out:
        many = counted(
            len(content.left_out), "receipt that could not be read is", "receipts that could not be read are"
        )
        found.append(f"{many} left out: see the end.")
    return found


def _definitions(content: Content) -> Table:
    """What each metric of the page means, by the ids that stand in the receipts."""
    used: dict[str, str] = {}
    for reading in [*content.readings, *content.boots]:
        for value in reading.values.values():
            if value.kind.id not in used:
                used[value.kind.id] = value.kind.definition
    rows: list[list[Cell | str]] = []
    for id_, name in sorted(used.items()):
        known = DEFINITIONS.get(id_)
        text = known.text if known is not None else "a lane's own, or of the tool it was imported from"
        unit = "" if known is None else known.unit
        rows.append([name, text, unit or "–", (known.better if known is not None else None) or "–"])
    notes = [
        "f, w, l, s, c, e: instants of a request; n: its tokens by the server's own count. Percentiles are nearest "
        "rank on all requests of a repeat; over repeats stands the median, with least and most: requests are never "
        "pooled."
    ]
    columns = ["definition", "meaning", "unit", "better"]
    return Table(title="Metrics on this page", columns=columns, rows=rows, notes=notes, folded=True)


# --------------------------------------------------------------------------------------------------------------------
# a comparison


def compared(comparison: Comparison) -> list[Block]:
    """What `neuronbench compare` says, as tables: how points ended, what changed, what cannot be said and why."""
    blocks: list[Block] = [Text(lines=[words.counts(comparison), *words.heading(comparison)])]
    if comparison.outcomes:
        rows: list[list[Cell | str]] = [
            [Cell(text=each.kind, tone="bad" if each.worse else ""), each.point, each.text]
            for each in comparison.outcomes[:OUTCOMES]
        ]
        omitted = max(0, len(comparison.outcomes) - OUTCOMES)
        blocks.append(Table(title="How points ended", columns=["", "point", "A → B"], rows=rows, omitted=omitted))
    judged = [row for row in comparison.rows if row.verdict is not Verdict.INCOMPARABLE]
    changed = [row for row in judged if row.verdict in (Verdict.REGRESSED, Verdict.IMPROVED)]
    rest = [row for row in judged if row.verdict not in (Verdict.REGRESSED, Verdict.IMPROVED)]
    if changed:
        blocks.append(_compared("Changed", changed, folded=False))
    if rest:
        blocks.append(_compared("Unchanged or inconclusive", rest, folded=bool(changed)))
    why = [*words.reasons(comparison.rows), *words.marks(comparison.rows), *words.footing(comparison)]
    if why:
        blocks.append(Text(lines=[line.strip() for line in why[:60]], bullet=True))
    return blocks


def _compared(title: str, rows: Sequence[Compared], *, folded: bool) -> Table:
    made: list[list[Cell | str]] = [
        [
            row.point,
            row.metric.key,
            Cell(text=words.amount(row.base.centre, row), sort=row.base.centre),
            Cell(text=words.amount(row.head.centre, row), sort=row.head.centre),
            Cell(text=words.change(row.change, row), sort=row.change),
            words.interval(row),
            f"{row.base.n}:{row.head.n}",
            Cell(
                text=words.verdict(row),
                tone=_TONES.get(row.verdict, "warn"),
                title="; ".join(row.marks),
                marks=_marked(row),
            ),
        ]
        for row in rows[:COMPARED]
    ]
    omitted = max(0, len(rows) - COMPARED)
    notes = (
        [f"{counted(omitted, 'more row is', 'more rows are')} left out: neuronbench compare --all shows them."]
        if omitted
        else []
    )
    columns = ["point", "metric", "A", "B", "change", "95 % interval", "n", "verdict"]
    return Table(
        title=title,
        columns=columns,
        rows=made,
        right=frozenset({2, 3, 4, 5, 6}),
        omitted=omitted,
        notes=notes,
        folded=folded,
    )


def _marked(row: Compared) -> list[str]:
    return list(dict.fromkeys(mark.split(" ")[0] for mark in row.marks if mark.split(" ")[0] in _WORDS))


_WORDS: Final = ("provisional", "invalid", "imported", "simulated")
