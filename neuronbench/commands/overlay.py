"""`neuronbench overlay`: the losses of two training runs, laid over each other."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronbench.commands import host
from neuronbench.receipts import Receipt, ReceiptError
from neuronbench.words import counted

if TYPE_CHECKING:
    from neuronbench.model import Record
    from neuronbench.training.overlay import Overlay

HELP = """Lay the losses of two training runs over each other, step by step.

A and B are receipts: a folder, or an id as `neuronbench list --session latest` shows it (SESSION/NAME, where SESSION
may be `latest` or `latest~1`). A record with several runs has more to lay over: NAME#2 is its second one. Shown are the
mean and the largest gap, how the two correlate, the first step at which they differ by more than the tolerance, whether
they are the same to the bit, and what differs between the runs: job, data, initial state, resource, stack.

\b
neuronbench overlay latest/lora_sft-cpu--r1 latest/lora_sft-cpu--r2
neuronbench overlay latest/seeds--r1 latest/seeds--r1#3 --figure seeds.png
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run of a receipt."""

    receipt: Receipt
    number: int
    """From 1."""
    losses: Mapping[int, float]
    """Step → loss of rank 0."""
    facts: Mapping[str, Any]
    """What the record says of it."""

    @property
    def id(self) -> str:
        return self.receipt.id + (f"#{self.number}" if self.number > 1 else "")

    @property
    def job(self) -> Mapping[str, Any]:
        job = self.facts.get("job")
        return job if isinstance(job, Mapping) else {}

    def protocol(self) -> dict[str, str]:
        """Name → canonical JSON of everything that the losses rest on."""
        from neuronbench.compare.protocol import flat, of_environment, of_resource

        record = self.receipt.record
        data = self.facts.get("dataset")
        found = {"backend": json.dumps(record.point.backend), **of_environment(record.environment.facts)}
        if record.resource is not None:
            found.update(of_resource(record.resource.spec, record.resource.facts))
        found.update(flat({name: value for name, value in self.job.items() if name != "digest"}, "job"))
        found.update(flat({"data": data.get("digest") if isinstance(data, Mapping) else None}, ""))
        found.update(flat({"initial_state": self.facts.get("init_digest")}, ""))
        return found

    def marks(self) -> list[str]:
        """What must be known of the run before its losses are believed."""
        record = self.receipt.record
        words = [] if record.outcome == "ok" else [f"outcome {record.outcome}"]
        words += [] if record.validity == "valid" else [str(record.validity)]
        words += [] if record.provenance == "measured" else [str(record.provenance)]
        asked, last = self.job.get("steps"), max(self.losses, default=0)
        if self.facts.get("complete") is False or (isinstance(asked, int) and last < asked):
            words.append(f"unfinished: step {last} of {asked or 'unknown'}")
        if self.facts.get("reason") == "non_finite":
            words.append(f"stopped at step {last}, whose loss is not finite")
        if self.facts.get("resumed_from"):
            words.append(f"went on from step {self.facts['resumed_from']}, the steps before are of another attempt")
        runs = self.receipt.record.workload.get("training")
        if self.number == 1 and isinstance(runs, list) and len(runs) > 1:
            words.append(f"run 1 of {len(runs)}: the others are {self.receipt.id.partition('/')[2]}#2 and so on")
        return words


def overlay(
    context: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A", help="Receipt of the run to compare with.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Receipt of the other run.")],
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="Losses that differ by more than this share have diverged.")
    ] = 1e-3,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Draw both into this PNG, SVG or PDF, or a page of HTML."),
    ] = None,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write what is shown as JSON; - for standard output.")
    ] = "",
) -> None:
    from neuronbench.training.overlay import overlay as lay

    here = host.of(context)
    a, b = _run(here, first), _run(here, second)
    try:
        found = lay(a.losses, b.losses, tolerance=tolerance)
    except ValueError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    differs = _differences(a.protocol(), b.protocol())
    marks = [f"{letter}: {text}" for letter, run in (("A", a), ("B", b)) for text in run.marks()]
    if found.only_first or found.only_second:
        many = f"A has {counted(len(a.losses), 'step')}, B has {len(b.losses)}"
        text = f"{many}: compared are the {len(found.steps)} in common"
        marks.append(f"{text} whose losses are finite" if found.not_finite else text)
    rows = _rows(found)
    if json_file:
        said = {"a": a.id, "b": b.id, **found.to_json(), "differs": differs, "marks": marks}
        host.write_json("--json", json_file, said)
    if json_file != "-":
        host.say(f"A  {a.id}\nB  {b.id}")
        host.show(host.table(("", "value"), rows, right=("value",)))
        for name, (one, other) in differs.items():
            host.say(f"differs: {name}: {_text(one)} in A, {_text(other)} in B")
        if not differs:
            host.say("nothing differs in job, data, initial state, resource and stack")
        for text in marks:
            host.say(text)
    if figure is not None:
        _draw(figure, found, a, b, rows=rows, differs=differs, marks=marks)
        if json_file != "-":
            host.say(f"figure: {figure}")


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, list[Any]]:
    """Field → its value in A and in B, where they differ; of the job first."""
    names = [name for name in {*one, *other} if one.get(name) != other.get(name)]
    names.sort(key=lambda name: (not name.startswith("job."), name.startswith(("stack.", "host.", "env.")), name))
    return {name: [json.loads(side.get(name, "null")) for side in (one, other)] for name in names}


def _text(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32,}", value):
        return value[:12]
    text = json.dumps(value, ensure_ascii=False)
    return "nothing" if value is None else text if len(text) <= 60 else text[:59] + "…"


def _draw(
    target: Path, found: Overlay, a: Run, b: Run, *,
    rows: Sequence[tuple[str, str]], differs: Mapping[str, Sequence[Any]], marks: Sequence[str],
) -> None:  # fmt: skip
    from neuronbench.report import training

    drawn = training.overlay(found, (f"A  {a.id}", f"B  {b.id}"), "Training losses of two runs", marks)
    try:
        if target.suffix.lower() in (".html", ".htm"):
            notes = [f"{name}: {_text(one)} in A, {_text(other)} in B" for name, (one, other) in differs.items()]
            page = training.overlay_page(drawn, rows, [*marks, *notes])
            target.write_text(page, encoding="utf-8")
        else:
            drawn.savefig(target)
    except (OSError, ValueError) as error:
        raise host.CommandError(f"--figure {target}: {error}") from error


def _rows(found: Overlay) -> list[tuple[str, str]]:
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
        (f"first step apart by more than {found.tolerance:g} of the loss", str(found.divergence_step or "never")),
    ]


def _run(here: host.Host, what: str) -> Run:
    """The run that `what` names: a receipt's folder or SESSION/NAME, with #N for its N-th run."""
    name, _, number = what.rpartition("#") if re.search(r"#\d+$", what) else (what, "", "1")
    receipt = _receipt(here, name)
    try:
        record = receipt.record
        table = "steps" if int(number) == 1 else f"steps-{int(number)}"
        if table not in record.tables:
            raise host.CommandError(f"{receipt.id} has no {table}.parquet: {_what_it_is(record)}")
        rows = receipt.table(table, columns=["rank", "step", "loss"]).to_pylist()
    except ReceiptError as error:
        raise host.CommandError(str(error)) from error
    runs = record.workload.get("training")
    facts = runs[int(number) - 1] if isinstance(runs, list) and len(runs) >= int(number) else {}
    return Run(
        receipt=receipt,
        number=int(number),
        losses={row["step"]: row["loss"] for row in rows if row["rank"] == 0},
        facts=facts if isinstance(facts, Mapping) else {},
    )


def _what_it_is(record: Record) -> str:
    tables = [name for name in record.tables if re.fullmatch(r"steps(-\d+)?", name)]
    if tables:
        return f"it has {counted(len(tables), 'run')}"
    if record.point.lane and record.error is None:
        return f"expected a training run, found a record of lane {record.point.lane!r}"
    kind = record.error.kind if record.error is not None else "unknown"
    return f"the run made no step before it ended ({record.outcome}, {kind})"


def _receipt(here: host.Host, what: str) -> Receipt:
    folder = Path(what)
    if not (folder / "record.json").is_file():
        session, _, name = what.partition("/")
        if not name:
            raise host.CommandError(
                f"{what}: expected a receipt's folder, or SESSION/NAME as `neuronbench list --session latest` shows it",
                status=host.USAGE,
            )
        folder = here.settings.receipts_dir / here.session(session) / name
        if not (folder / "record.json").is_file():
            raise host.CommandError(f"{what}: no such receipt ({folder})", status=host.USAGE)
    return Receipt(folder.resolve())
