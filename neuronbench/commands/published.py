"""`neuronbench published`: the figures that others published, and what is odd about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.catalog.published import Published

EXPLAINED = 12
"""Up to so many rows, what is odd about each is said in words; of more, in names."""
_UNITS = {"items": "items/s", "tokens": "tok/s in + out", "output_tokens": "tok/s", "sequences": "seq/s",
          "unstated": "tok/s ?"}  # fmt: skip


def published(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            help="Only rows in whose name, model, instance type or SDK all of these words are: `llama trn1.32xlarge`.",
        ),
    ] = None,
    finding: Annotated[str, typer.Option(metavar="ID", help="Only rows with this finding, or `any`.")] = "",
    prices: Annotated[
        bool, typer.Option("--prices", help="Show the prices that costs were made with instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, all of a row's figures in it.")] = False,
) -> None:
    """Show published figures of Trainium and Inferentia, with source and date, and what is odd about a row.

    These are what a point with the same parameters shows beside its own numbers. Costs are computed anew by the price
    that the source used: on demand until 2024-09-16, effective reserved prices since; the two are not comparable.
    """
    from neuronbench.catalog import published as catalog

    if prices:
        _prices(as_json)
        return
    wanted = [word.lower() for word in words or ()]
    rows = [row for row in catalog.rows() if _has(row, wanted)]
    found = {row.name: catalog.findings(row) for row in rows}
    if finding:
        rows = [row for row in rows if found[row.name] and finding in ("any", *(each.id for each in found[row.name]))]
        known = sorted({each.id for row in catalog.rows() for each in catalog.findings(row)})
        if finding != "any" and finding not in known:
            raise host.CommandError(f"no finding {finding!r}; known: {', '.join(known)}", status=host.USAGE)
    if as_json:
        host.emit_json([catalog.described(row) for row in rows])
        return
    if not rows:
        names = ", ".join(dict.fromkeys(row.edition for row in catalog.rows()))
        raise host.CommandError(
            f"no published row has {' and '.join(map(repr, words or ()))}", remedy=f"editions are: {names}"
        )
    few = len(rows) <= EXPLAINED
    cells = [
        (
            row.name, row.model, f"{row.instance_type} × {row.nodes}" if row.nodes > 1 else row.instance_type,
            row.sdk_version or "–", _load(row), _figures(row), _costs(row),
            "" if few else ", ".join(dict.fromkeys(each.id for each in found[row.name])),
        )
        for row in rows
    ]  # fmt: skip
    columns = ["row", "model", "instance", "SDK", "load", "figures", "USD per 1M", "findings"]
    host.show(host.table(columns[:-1] if few else columns, [line[:-1] if few else line for line in cells]))
    told: dict[str, list[str]] = {}
    for row in rows if few else ():
        for each in found[row.name]:
            told.setdefault(f"{each.text} ({each.id})", []).append(row.name)
    for text, having in told.items():
        host.say(f"  {', '.join(having)}: {text}")
    for source in dict.fromkeys(f"{row.edition} ({row.as_of}): {row.source}" for row in rows) if few else ():
        host.say(f"  {source}")
    odd = sum(bool(found[row.name]) for row in rows)
    host.say(
        f"{len(rows)} published rows, {odd} of them with findings"
        + ("" if few else "; name fewer of them to have the findings in words")
    )


def _has(row: Published, words: Sequence[str]) -> bool:
    text = " ".join((row.name, row.model, row.instance_type, row.sdk_version, row.variant, row.tool)).lower()
    return all(word in text for word in words)


def _load(row: Published) -> str:
    """`b16 128 float32`, `b8 128+8064 tp32`: what was asked of it."""
    tokens = [row.input_tokens, row.output_tokens]
    lengths = "+".join(str(each) for each in tokens if each is not None)
    parts = [
        f"b{row.batch_size}" if row.batch_size else "",
        f"c{row.concurrency}" if row.concurrency else "",
        f"global {row.global_batch_size}" if row.global_batch_size else "",
        lengths or (str(row.sequence_length) if row.sequence_length else row.image_size),
        f"tp{row.tp_degree}" if row.tp_degree else row.topology,
        row.weight_dtype or row.dtype or row.training_dtype,
        row.load + (f"@{row.rate_req_s:g}/s" if row.rate_req_s else ""),
        row.speculation if row.speculation != "none" else "",
        row.variant,
    ]
    return " ".join(part for part in parts if part)


def _figures(row: Published) -> str:
    said = [] if row.throughput is None else [f"{row.throughput:g} {_UNITS.get(row.throughput_of, '')}"]
    for name in ("latency", "ttft", "tpot"):
        low, high = getattr(row, f"{name}_p50_ms"), getattr(row, f"{name}_p99_ms")
        if low is not None or high is not None:
            each = "/".join("–" if value is None else f"{value:g}" for value in (low, high))
            what = f"per {row.latency_of}" if name == "latency" else name.upper()
            said.append(f"{what} {each} ms")
    return ", ".join(said) or ", ".join(f"{name} {value}" for name, value in list(row.own.items())[:3])


def _costs(row: Published) -> str:
    """As printed and as computed; by the price of its date where none is printed."""
    from neuronbench.catalog.published import cost_of

    if row.cost_per_1m_usd is not None and row.cost_recomputed_usd is not None:
        return f"{row.cost_per_1m_usd:g} (computed {row.cost_recomputed_usd:.3f})"
    cost = cost_of(row)
    return "–" if cost is None else f"({cost.usd:.3f}, {cost.price.kind})"


def _prices(as_json: bool) -> None:
    from dataclasses import asdict

    from neuronbench.catalog.published import prices

    if as_json:
        host.emit_json([asdict(price) for price in prices()])
        return
    cells = [
        (
            each.instance_type, f"{each.usd_per_hour:g}", each.kind, each.region or f"– ({each.region_basis})",
            each.valid_from or "–", each.valid_to or "–", each.source + ("" if each.verified else " (unverified)"),
        )
        for each in prices()
    ]  # fmt: skip
    columns = ("instance", "USD per hour", "kind", "region", "from", "to", "source")
    host.show(host.table(columns, cells, right=("USD per hour",)))
