"""`neuronbench overlay`: the losses of two training runs, laid over each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.receipts import Receipt

HELP = """Lay the losses of two training runs over each other, step by step.

A and B are receipts: a folder, or an id as `neuronbench list --session last` shows it (SESSION/NAME, where SESSION may
be `last`). Shown are the mean and the largest gap, how the two correlate, the first step at which they differ by more
than the tolerance, whether they are the same to the bit, and what differs in their jobs.
"""


def overlay(
    context: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A", help="Receipt of the run to compare with.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Receipt of the other run.")],
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="Losses that differ by more than this share have diverged.")
    ] = 1e-3,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Draw both into this PNG, SVG or PDF.")
    ] = None,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write what is shown as JSON; - for standard output.")
    ] = "",
) -> None:
    from neuronbench.training.overlay import overlay as lay

    here = host.of(context)
    a, b = _receipt(here, first), _receipt(here, second)
    try:
        found = lay(_losses(a), _losses(b), tolerance=tolerance)
    except ValueError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    jobs = _job(a), _job(b)
    differs = {
        name: [one.get(name) for one in jobs]
        for name in sorted({*jobs[0], *jobs[1]} - {"digest"})
        if jobs[0].get(name) != jobs[1].get(name)
    }
    warnings = [text for receipt in (a, b) if (text := _mark(receipt))]
    said: dict[str, Any] = {"a": a.id, "b": b.id, **found.to_json(), "job_differs": differs, "marks": warnings}
    if json_file == "-":
        host.emit_json(said)
    elif json_file:
        text = json.dumps(said, indent=2, ensure_ascii=False, allow_nan=False)
        try:
            Path(json_file).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise host.CommandError(f"--json {json_file}: {error.strerror}") from error
    if json_file != "-":
        host.show(host.table(("", "value"), _rows(found), right=("value",)))
        for name, (one, other) in differs.items():
            host.say(f"job differs: {name}: {one!r} in A, {other!r} in B")
        for text in warnings:
            host.say(text)
    if figure is not None:
        from neuronbench.report import training

        title = " ".join(["losses of two runs", *(f"({text})" for text in warnings)])[:110]
        drawn = training.overlay(found, (f"A  {a.id}", f"B  {b.id}"), title)
        try:
            drawn.savefig(figure)
        except (OSError, ValueError) as error:
            raise host.CommandError(f"--figure {figure}: {error}") from error
        host.say(f"figure: {figure}")


def _rows(found: Any) -> list[tuple[str, str]]:
    def text(value: float | int | None, unit: str = "") -> str:
        return "–" if value is None else f"{value:.6g}{unit}"

    return [
        ("steps in common", str(len(found.steps))),
        ("steps of A only / of B only", f"{found.only_first} / {found.only_second}"),
        ("losses not finite, left out", str(found.not_finite)),
        ("the same to the bit", "yes" if found.identical else "no"),
        ("mean gap |B − A|", text(found.mean_gap)),
        ("mean of B − A", text(found.signed_gap)),
        ("largest gap", text(found.max_gap) + ("" if found.max_gap_step is None else f" at step {found.max_gap_step}")),
        ("Pearson r", text(found.pearson_r)),
        (f"first step apart by more than {found.tolerance:g}", str(found.divergence_step or "never")),
    ]


def _receipt(here: host.Host, what: str) -> Receipt:
    from neuronbench.receipts import Receipt

    folder = Path(what)
    if not (folder / "record.json").is_file():
        session, _, name = what.partition("/")
        if not name:
            raise host.CommandError(
                f"{what}: expected a receipt's folder, or SESSION/NAME as `neuronbench list --session last` shows it",
                status=host.USAGE,
            )
        folder = here.settings.receipts_dir / here.session(session) / name
        if not (folder / "record.json").is_file():
            raise host.CommandError(f"{what}: no such receipt ({folder})", status=host.USAGE)
    return Receipt(folder)


def _losses(receipt: Receipt) -> dict[int, float]:
    """Step → loss of rank 0."""
    if "steps" not in receipt.record.tables:
        kind = f"a record of lane {receipt.record.point.lane!r}"
        raise host.CommandError(f"{receipt.id} has no steps.parquet: expected a training run, found {kind}")
    table = receipt.table("steps", columns=["rank", "step", "loss"])
    return {row["step"]: row["loss"] for row in table.to_pylist() if row["rank"] == 0}


def _job(receipt: Receipt) -> dict[str, Any]:
    runs = receipt.record.workload.get("training")
    first = runs[0] if isinstance(runs, list) and runs else {}
    job = first.get("job") if isinstance(first, dict) else None
    return dict(job) if isinstance(job, dict) else {}


def _mark(receipt: Receipt) -> str:
    record = receipt.record
    words = [] if record.outcome == "ok" else [f"outcome {record.outcome}"]
    words += [] if record.validity == "valid" else [str(record.validity)]
    words += [] if record.provenance == "measured" else [str(record.provenance)]
    return f"{receipt.id}: {', '.join(words)}" if words else ""
