"""`neuronbench list`: sessions, and the points of one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronbench.commands import host
from neuronbench.model import Validity

if TYPE_CHECKING:
    from neuronbench.receipts import Header, ReceiptError


def list_receipts(
    context: typer.Context,
    session: Annotated[
        str, typer.Option(metavar="ID", help="Show the points of this session: an id, the start of one, or `latest`.")
    ] = "",
    lane: Annotated[str, typer.Option(help="Only points of this lane.")] = "",
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="How many sessions to show, latest last.")] = 20,
    lanes: Annotated[
        bool, typer.Option("--lanes", help="Show what can be measured instead: lanes, who brings them, their metrics.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what has been measured: the sessions, or with --session the points of one; with --lanes what can be."""
    here = host.of(context)
    problems: list[ReceiptError] = []
    if lanes:
        _lanes(here, as_json)
    elif session or lane:
        _points(here, here.session(session or "latest"), lane, as_json, problems)
    else:
        _sessions(here, number, as_json, problems)
    for problem in problems:
        host.complain(str(problem))
    if problems:
        raise typer.Exit(host.FAILURE)


def _lanes(here: host.Host, as_json: bool) -> None:
    from neuronbench.lane_benchmarks import folder_of

    found = here.plugins.lanes
    rows: list[dict[str, Any]] = [
        {
            "lane": lane.name,
            "title": lane.title,
            "plugin": found.owner(lane.name),
            "needs": list(lane.needs),
            "headline": list(lane.headline),
            "benchmarks": str(folder_of(lane) or ""),
        }
        for lane in sorted(found, key=lambda lane: lane.name)
    ]
    if as_json:
        host.emit_json(rows)
        return
    cells = [
        (row["lane"], row["title"], row["plugin"], ", ".join(row["needs"]) or "–", ", ".join(row["headline"]))
        for row in rows
    ]
    host.show(host.table(("lane", "title", "plugin", "needs", "headline metrics"), cells))
    host.say(
        'A lane is a marker: pytest benchmarks -m "cpu and LANE". Benchmarks that a plugin brings are collected too.'
    )


def _sessions(here: host.Host, number: int, as_json: bool, problems: list[ReceiptError]) -> None:
    from neuronbench.receipts import ReceiptError

    rows: list[dict[str, Any]] = []
    for name in here.store.sessions()[-number:]:
        try:
            manifest: dict[str, Any] = here.store.manifest(name).to_json()
        except ReceiptError:  # imported, or killed before the first line
            manifest = {}
        headers = list(here.store.headers(name, on_error=problems.append))
        now = _validities_now(here, headers)
        rows.append(
            {
                "session": name,
                "started_at": manifest.get("started_at") or (headers[0].started_at if headers else ""),
                "ended_at": manifest.get("ended_at", ""),
                "exit_status": manifest.get("exit_status"),
                "outcomes": dict(Counter(verdict(h, now.get(h.receipt_id)) for h in headers if h.kind == "point")),
                "boots": sum(h.kind != "point" for h in headers),
                "lanes": sorted({h.lane for h in headers if h.kind == "point"}),
                "command": list(manifest.get("command", ())),
            }
        )
    if as_json:
        host.emit_json(rows)
        return
    if not rows:
        host.say(f"No sessions in {here.settings.receipts_dir} yet. To make one: pytest benchmarks -m cpu")
        return
    cells = [
        (
            row["session"],
            row["started_at"][:19].replace("T", " "),
            ", ".join(row["lanes"]) or "–",
            ", ".join(f"{count} {outcome}" for outcome, count in row["outcomes"].items()) or "–",
            str(row["boots"]),
            "–" if row["exit_status"] is None else str(row["exit_status"]),
        )
        for row in rows
    ]
    columns = ("session", "started (UTC)", "lanes", "points", "boots", "exit")
    host.show(host.table(columns, cells, right=("boots", "exit")))
    host.say(
        f"Receipts are in {here.settings.receipts_dir}. The points of a session: neuronbench list --session latest"
    )


def _points(here: host.Host, session: str, lane: str, as_json: bool, problems: list[ReceiptError]) -> None:
    from neuronbench.receipts import validities_now
    from neuronbench.report import beside, tables
    from neuronbench.report.rates import rate_notes

    if lane and lane not in here.plugins.lanes:
        known = ", ".join(here.plugins.lanes.names())
        raise host.CommandError(f"no lane {lane!r}; known: {known}", status=host.USAGE)
    receipts = [
        receipt
        for receipt in here.store.iter(session, on_error=problems.append)
        if not lane or receipt.record.point.lane == lane
    ]
    if as_json:
        host.emit_json([receipt.record.to_json() for receipt in receipts])
        return
    records = [receipt.record for receipt in receipts]
    if not records:
        host.say(f"No receipts{f' of lane {lane!r}' if lane else ''} in {here.settings.receipts_dir / session}")
        return
    now = validities_now(records, here.store)
    notes: list[str] = []
    for (name, benchmark, backend), members in tables.by_benchmark(records).items():
        keys = here.plugins.lanes[name].headline if name in here.plugins.lanes else ()
        keys = keys or tuple(dict.fromkeys(key for member in members for key in member.metrics))[:6]
        host.show(tables.lane_table(f"{name}: {benchmark} on {backend}", members, keys, now))
        told = [*tables.sample_notes(members, keys), *tables.utilisation_notes(members), *rate_notes(members)]
        told += beside.published_lines(members)
        notes += [line for line in told if line not in notes]
    for line in notes:
        host.say(f"  {line}")
    boots = [record for record in records if record.kind in ("boot", "compile")]
    if boots:
        host.show(tables.boot_table(boots))
    for line in (
        *tables.gate_lines(records, now),
        *tables.later_lines(records, now),
        *tables.failure_lines(records),
    ):
        host.say(line)
    host.say(f"Receipts: {here.settings.receipts_dir / session}")


def _validities_now(here: host.Host, headers: Sequence[Header]) -> dict[str, Validity]:
    """What later accuracy records made of those that are provisional; the others are not read."""
    from neuronbench.receipts import ReceiptError, validities_now

    records = []
    for header in headers:
        if header.kind == "point" and header.validity is Validity.PROVISIONAL:
            with contextlib.suppress(ReceiptError):
                records.append(here.store.read(header.path).record)
    return validities_now(records, here.store)


def verdict(header: Header, now: Validity | None = None) -> str:
    """Outcome, and that the numbers are not to be quoted where a gate failed: `ok`, `ok INVALID`."""
    marked = {Validity.INVALID: " INVALID", Validity.PROVISIONAL: " provisional"}
    plain = header.outcome in ("ok", "slo_miss", "failed")
    return str(header.outcome) + (marked.get(now or header.validity, "") if plain else "")
