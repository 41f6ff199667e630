"""A comparison as a file: Markdown for a pull request, JSON for programs, JUnit XML for a CI system."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from xml.etree import ElementTree

from neuronbench.canonical import printable
from neuronbench.compare import Comparison, Row, Verdict
from neuronbench.report import comparison as words
from neuronbench.words import counted

ROWS: Final = 100
LIMIT: Final = 60_000
"""Characters; a comment on GitHub holds 65,536."""
_SIGNS: Final = {
    Verdict.REGRESSED: "🔴",
    Verdict.IMPROVED: "🟢",
    Verdict.UNCHANGED: "⚪",
    Verdict.INCONCLUSIVE: "🟡",
    Verdict.INCOMPARABLE: "🚫",
}
_CONTROL: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


# --------------------------------------------------------------------------------------------------------------------
# Markdown


def markdown(comparison: Comparison, *, limit: int = ROWS) -> str:
    """Fits a comment: the verdict in the first line, what changed in a table, the rest folded away."""
    lines = [f"### neuronbench: {cell(words.counts(comparison))}", ""]
    lines += [f"- {cell(line)}" for line in words.heading(comparison)]
    if comparison.outcomes:
        lines += ["", "| | point | A → B |", "|---|---|---|"]
        sign = {True: "🔴", False: "⚪"}
        lines += [
            f"| {sign[each.worse]} {each.kind} | {cell(each.point)} | {cell(each.text)} |"
            for each in comparison.outcomes[:limit]
        ]
        if len(comparison.outcomes) > limit:
            lines.append(f"\n{counted(len(comparison.outcomes) - limit, 'more point')} ended otherwise.")
    changed = [row for row in comparison.rows if row.verdict in (Verdict.REGRESSED, Verdict.IMPROVED)]
    open_ = [row for row in comparison.rows if row.verdict is Verdict.INCONCLUSIVE]
    same = [row for row in comparison.rows if row.verdict is Verdict.UNCHANGED]
    if changed:
        lines += ["", *_table(changed, limit)]
    for name, rows in (("inconclusive", open_), ("unchanged", same)):
        if rows:
            lines += ["", f"<details><summary>{len(rows)} {name}</summary>", "", *_table(rows, limit), "", "</details>"]
    why, told, rest = words.reasons(comparison.rows), words.marks(comparison.rows), words.footing(comparison)
    if why or told or rest:
        lines += ["", "<details><summary>why, and what the verdicts rest on</summary>", ""]
        lines += [f"- {cell(line.strip())}" for line in (*why[:limit], *told[:limit], *rest[:limit])]
        lines += ["", "</details>"]
    text = "\n".join(lines) + "\n"
    if len(text) > LIMIT and limit > 5:
        return markdown(comparison, limit=limit // 2)
    return text


def _table(rows: Sequence[Row], limit: int) -> list[str]:
    lines = [
        "| | point | metric | A | B | change | 95 % interval | n | verdict |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows[:limit]:
        cells = [
            row.point, row.metric.key, words.amount(row.base.centre, row), words.amount(row.head.centre, row),
            words.change(row.change, row), words.interval(row), f"{row.base.n}:{row.head.n}",
            words.verdict(row) + (f" ({'; '.join(row.marks)})" if row.marks else ""),
        ]  # fmt: skip
        lines.append(f"| {_SIGNS[row.verdict]} | " + " | ".join(map(cell, cells)) + " |")
    if len(rows) > limit:
        lines.append(f"\n{counted(len(rows) - limit, 'more is', 'more are')} not shown.")
    return lines


def cell(text: str) -> str:
    """Text that stays what it is in a cell: no markup, no HTML, no mention of anyone, one line."""
    text = " ".join(printable(_CONTROL.sub("�", text)).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", text).replace("@", "@\u200b")


# --------------------------------------------------------------------------------------------------------------------
# JSON and JUnit


def as_json(comparison: Comparison) -> str:
    """See `Comparison.to_json`; ratios are factors (1.05 is +5 %), differences are in the metric's unit."""
    import orjson

    return orjson.dumps(comparison.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def junit(comparison: Comparison, fail_on: Sequence[str] = ()) -> str:
    """One test case per point and metric, and one per point whose outcome changed.

    What `fail_on` names (verdicts, `outcome`, `gone`; by default regressions and outcomes) is a failure; what has no
    verdict is skipped, with the reason.
    """
    failing = fail_on or ("regressed", "outcome")
    suite = ElementTree.Element("testsuite", name="neuronbench compare")
    suite.set("hostname", "neuronbench")
    for each in comparison.outcomes:
        case = _case(suite, each.lane, each.point, "outcome")
        if each.fails(failing):
            _told(case, "failure", each.kind, each.text)
        else:
            _output(case, f"{each.kind}: {each.text}")
    for row in comparison.rows:
        case = _case(suite, row.lane, row.point, row.metric.key)
        text = _sentence(row)
        if row.verdict.value in failing:
            _told(case, "failure", row.verdict.value, text)
        elif row.verdict in (Verdict.INCONCLUSIVE, Verdict.INCOMPARABLE):
            _told(case, "skipped", words.verdict(row), text)
        else:
            _output(case, text)
    cases = list(suite)
    suite.set("tests", str(len(cases)))
    suite.set("errors", "0")
    for name, tag in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    top = ElementTree.Element("testsuites")
    top.append(suite)
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def _sentence(row: Row) -> str:
    parts = [f"{words.verdict(row)}: {words.amount(row.base.centre, row)} → {words.amount(row.head.centre, row)}"]
    if row.metric.unit and row.metric.unit != "share":
        parts[0] += f" {row.metric.unit}"
    if row.change is not None:
        between = words.interval(row)
        parts.append(words.change(row.change, row) + (f" ({between})" if between else ""))
    parts += [row.reason, f"noise floor {row.floor.text}" if row.floor is not None else "", *row.marks]
    return "; ".join(part for part in parts if part)


def _case(suite: ElementTree.Element, lane: str, point: str, name: str) -> ElementTree.Element:
    classname = point if point.startswith(f"{lane}.") else f"{lane}.{point}"
    return ElementTree.SubElement(suite, "testcase", classname=_xml(classname), name=_xml(name), time="0")


def _told(case: ElementTree.Element, tag: str, message: str, text: str) -> None:
    ElementTree.SubElement(case, tag, message=_xml(message)).text = _xml(text)


def _output(case: ElementTree.Element, text: str) -> None:
    ElementTree.SubElement(case, "system-out").text = _xml(text)


def _xml(text: str) -> str:
    """Without the characters that XML cannot hold; the writer escapes the rest."""
    return printable(_CONTROL.sub("�", text))


FORMATS: Final[Mapping[str, Callable[[Comparison, Sequence[str]], str]]] = {
    "markdown": lambda comparison, fail_on: markdown(comparison),
    "json": lambda comparison, fail_on: as_json(comparison),
    "junit": junit,
}
