"""`neuronbench load`: measure any OpenAI-compatible endpoint, without pytest."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.standalone import Result


def load(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8000.", metavar="URL")],
    model: Annotated[str, typer.Option(metavar="NAME", help="Model to ask for (default: the first it serves).")] = "",
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Requests in flight; the next is sent when one ends (default 1).")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="R", help="Requests per second instead, whatever became of those before.")
    ] = None,
    arrivals: Annotated[
        str, typer.Option(metavar="LAW", help="With --rate: poisson (independent) or constant (equal gaps).")
    ] = "poisson",
    requests: Annotated[
        int | None, typer.Option(metavar="N", help="Requests in the window (default 100); with --rate about as many.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(metavar="S", help="Length of the window in seconds instead.")
    ] = None,
    input_tokens: Annotated[
        int, typer.Option(metavar="N", help="Length of every prompt, chat template included: exact.")
    ] = 256,
    output_tokens: Annotated[int, typer.Option(metavar="N", help="Length of every answer: exact.")] = 128,
    api: Annotated[str, typer.Option(metavar="API", help="completions or chat.")] = "completions",
    dataset: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts from a file instead of drawn ones.")
    ] = None,
    dataset_format: Annotated[
        str, typer.Option(metavar="FORM", help="Form of --dataset: sharegpt, jsonl or bodies.")
    ] = "jsonl",
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="The model's tokenizer.json or its folder, where the server tokenizes nothing."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of prompts and arrivals.")] = 0,
    warmup: Annotated[
        int | None, typer.Option(metavar="N", help="Warm-up requests (default: one more than are in flight).")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable that holds the API key.")
    ] = "NEURONBENCH_API_KEY",
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=MS", help="Limit per request in ms, for goodput: --slo ttft=500 (repeatable)."),
    ] = None,
    processes: Annotated[int, typer.Option(metavar="N", help="Processes of the client.")] = 1,
    deadline: Annotated[
        float | None, typer.Option(metavar="S", help="End it all after this many seconds, whatever happens.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Certificates to trust.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME[=VENV]",
            help="Measure with another tool instead, in its own environment: vllm, guidellm, aiperf.",
        ),
    ] = "native",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Keep requests, telemetry and logs here.")
    ] = None,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for standard output.")
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when the result is invalid.")] = False,
    every_gate: Annotated[bool, typer.Option("--gates", help="Show the checks that passed, too.")] = False,
) -> None:
    """Measure a server that runs already.

    Warm-up, a window of steady load, and the checks that say whether the numbers may be quoted. Exit status: 0
    measured, 1 no result (or an invalid one with --strict), 2 wrong usage.
    """
    from neuronbench import standalone
    from neuronbench.engines.job import Job
    from neuronbench.serving.http import clean_url
    from neuronbench.standalone.native import Extras, write_json

    settings = host.of(context).settings
    _one_of("--api", api, ("completions", "chat"))
    _one_of("--arrivals", arrivals, ("constant", "poisson"))
    _one_of("--dataset-format", dataset_format, ("sharegpt", "jsonl", "bodies"))
    limits = dict(_limit(text) for text in slo or ())
    chosen: Any = {"api": api, "arrivals": arrivals}
    if concurrency is None and rate is None:
        concurrency = 1
    try:
        job = Job(
            url=clean_url(url), model=model, concurrency=concurrency, rate=rate,
            requests=requests, duration_s=duration, input_tokens=input_tokens, output_tokens=output_tokens, seed=seed,
            warmup=warmup, tokenizer=tokenizer, deadline_s=deadline or settings.deadlines.point,
            api_key=os.environ.get(api_key_env) or None, **chosen,
        )  # fmt: skip
    except ValueError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    progress = host.ProgressLine()
    name, _, where = engine.partition("=")
    with _folder(out) as folder:
        try:
            if name == "native":
                extras = Extras(
                    slo=limits, processes=processes, dataset=dataset, dataset_format=dataset_format, ca_file=ca_file
                )
                result = standalone.measure(job, settings, folder, extras=extras, progress=progress)
            else:
                _only_native(limits=limits, processes=processes > 1, dataset=dataset, ca_file=ca_file)
                result = standalone.measure_with(name, where, job, settings, folder, progress=progress)
        except standalone.MeasureError as error:
            raise host.CommandError(
                str(error), remedy=error.remedy, status=host.USAGE if error.usage else host.FAILURE
            ) from error
        finally:
            progress.done()
        if out is not None:
            result.files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
            write_json(result, folder / "result.json")
    if json_file == "-":
        host.emit_json(result.to_json())
    else:
        if json_file:
            write_json(result, Path(json_file))
        show(result, every_gate=every_gate)
    if not result.measured or (strict and result.validity == "invalid"):
        raise typer.Exit(host.FAILURE)


def _one_of(option: str, given: str, known: Sequence[str]) -> None:
    from neuronbench.model import closest

    if given not in known:
        text = f"{option}: expected {' or '.join(known)}, found {given!r}{closest(given, known)}"
        raise host.CommandError(text, status=host.USAGE)


def _limit(text: str) -> tuple[str, float]:
    from neuronbench.load.tally import LATENCIES

    name, _, value = text.partition("=")
    name = name.strip().removesuffix("_ms")
    _one_of("--slo", name, LATENCIES)
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if not 0 < limit < float("inf"):
        raise host.CommandError(f"--slo: expected {name}=MILLISECONDS, found {text!r}", status=host.USAGE)
    return name, limit


def _only_native(**given: Any) -> None:
    for name, value in given.items():
        if value:
            option = {"limits": "slo"}.get(name, name.replace("_", "-"))
            raise host.CommandError(
                f"--{option} is for neuronbench's own client; leave --engine out", status=host.USAGE
            )


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Where tables and logs go: `out`, which must not hold anything yet, or a folder that goes away."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="neuronbench-load-") as scratch:
            yield Path(scratch)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise host.CommandError(
                f"--out {out}: it is not empty, and results are never mixed with others", status=host.USAGE
            )
    except OSError as error:
        raise host.CommandError(f"--out {out}: {error}", status=host.USAGE) from error
    yield out.resolve()


def show(result: Result, *, every_gate: bool = False) -> None:
    """The result as tables."""
    from neuronbench.standalone import result as tables

    job = result.job
    load_text = f"{job.concurrency} in flight" if job.concurrency else f"{job.rate:g} req/s, {job.arrivals}"
    engine = "" if result.engine["name"] == "native" else f", measured by {result.engine['name']}"
    target = result.target
    host.say(f"{target.get('model') or job.model} at {target.get('url') or job.url}{engine}")
    host.say(f"  {job.api}, {_lengths(result)}, {load_text}{_window(result)}")
    if result.status != "ok":
        host.say(f"\n{result.status.upper()}: {result.message}")
    latency = tables.latency_rows(result.metrics)
    if latency:
        columns = ("", "p50", "p90", "p99", "mean", "max", "n")
        host.show(host.table(columns, latency, right=columns[1:]))
    single = tables.single_rows(result.metrics)
    if single:
        host.show(host.table(("", "value", ""), single, right=("value",)))
    if result.failures:
        rows = [(name, str(count), _words(result, name)) for name, count in sorted(result.failures.items())]
        host.show(host.table(("failures", "requests", "in the server's words"), rows, right=("requests",)))
    gates = tables.gate_rows(result.gates, everything=every_gate)
    if gates:
        host.show(host.table(("check", "", "observed", "limit", ""), gates, right=("observed", "limit")))
    if result.client_error:
        host.say(str(result.client_error["text"]))
    for note in result.notes:
        host.say(f"note: {note}")
    words = {
        "valid": "valid: every check that could be made passed",
        "provisional": "PROVISIONAL",
        "invalid": "INVALID",
    }
    if result.engine["name"] == "native":
        host.say(f"{words[result.validity.value]}")


def _lengths(result: Result) -> str:
    kind = (result.workload.get("workload") or {}).get("kind")
    if kind == "dataset":
        return f"prompts of {result.workload['workload']['path']}"
    return f"{result.job.input_tokens} + {result.job.output_tokens} tokens"


def _window(result: Result) -> str:
    seconds = result.window.get("seconds")
    if seconds is None:
        return ""
    return f"; {result.scheduled} requests in a window of {seconds:.1f} s"


def _words(result: Result, failure: str) -> str:
    """What the server said to one request of that class."""
    from neuronbench.load.outcomes import failure_name

    for example in result.examples:
        if example["failure"] is None:  # another engine's
            return str(example["text"])[:200]
        if failure_name(int(example["failure"]), int(example["status"])) == failure:
            return str(example["text"])[:200]
    return ""
