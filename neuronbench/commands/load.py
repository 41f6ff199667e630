"""`neuronbench load`: measure any OpenAI-compatible endpoint, without pytest."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronbench.commands import host, load_options, load_refusals, load_search
from neuronbench.commands.load_output import Wanted, deliver, refusals

if TYPE_CHECKING:
    from neuronbench.standalone import MeasureError


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
        str,
        typer.Option(
            metavar="LAW",
            help="With --rate: poisson (independent), constant (equal gaps), gamma (--burstiness), burst "
            "(--burst-size), ramp (to --rate-end); or steps (--rates).",
        ),
    ] = "poisson",
    burstiness: Annotated[
        float | None, typer.Option(metavar="K", help="Of gamma: below 1 burstier than poisson, above 1 smoother.")
    ] = None,
    burst_size: Annotated[int | None, typer.Option(metavar="N", help="Of burst: requests at the same instant.")] = None,
    rate_end: Annotated[float | None, typer.Option(metavar="R", help="Of ramp: the rate it ends with.")] = None,
    step_rates: Annotated[
        str,
        typer.Option("--rates", metavar="R1,R2,..", help="Of steps: one after the other, each for --duration."),
    ] = "",
    turns: Annotated[
        int, typer.Option(metavar="N", min=1, help="Turns of a session; --rate is then of sessions that begin.")
    ] = 1,
    think_time: Annotated[
        float, typer.Option(metavar="S", min=0, help="Mean pause between an answer and the session's next turn.")
    ] = 0.0,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replay instants and lengths from a file instead.")
    ] = None,
    trace_format: Annotated[str, typer.Option(metavar="FORM", help="Of --trace: jsonl, mooncake or azure.")] = "jsonl",
    trace_speed: Annotated[float, typer.Option(metavar="X", help="2 replays the trace in half the time.")] = 1.0,
    requests: Annotated[
        int | None, typer.Option(metavar="N", help="Requests in the window (default 100); with --rate about as many.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(metavar="S", help="Length of the window in seconds instead.")
    ] = None,
    input_tokens: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="Length of the prompts, chat template included: 256 exact, 100..500 any of a range, or "
            "lognormal:MEDIAN:SIGMA:HIGHEST.",
        ),
    ] = "256",
    output_tokens: Annotated[str, typer.Option(metavar="N", help="Length of the answers, in the same forms.")] = "128",
    shared_prefix: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens that prompts of a group begin with together.")
    ] = None,
    prefix_hit_ratio: Annotated[
        float | None, typer.Option(metavar="SHARE", help="The same as a share of --input-tokens.")
    ] = None,
    prefix_groups: Annotated[int, typer.Option(metavar="N", min=1, help="Number of such beginnings.")] = 1,
    api: Annotated[str, typer.Option(metavar="API", help="completions, chat or responses.")] = "completions",
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
    find_rate: Annotated[
        bool,
        typer.Option(
            "--find-rate",
            help="Find the highest rate of poisson arrivals at which the limits of --slo are kept, from --rate on.",
        ),
    ] = False,
    slo_percentile: Annotated[
        float,
        typer.Option(metavar="P", help="Per cent of the requests that have to keep each limit; p99 takes ~800 a rate."),
    ] = 99.0,
    slo_test: Annotated[
        bool,
        typer.Option(
            "--slo-test",
            help="Exit with 1 unless every limit of --slo is shown to be kept; sends as many requests as that takes. "
            "An invalid measurement shows nothing.",
        ),
    ] = False,
    max_rate: Annotated[float, typer.Option(metavar="R", help="With --find-rate: go no higher.")] = 10_000.0,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="With --find-rate: find it to a factor of 1 + this.")
    ] = 0.1,
    repeats: Annotated[
        int, typer.Option(metavar="N", min=1, help="Measure so often, with other prompts each time; show the spread.")
    ] = 1,
    processes: Annotated[int, typer.Option(metavar="N", help="Processes of the client (on each of --nodes).")] = 1,
    nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Send the load from N nodes of the Ray cluster at RAY_ADDRESS together, on one schedule; 0: from all "
            "that are meant for it. Where load_kept_up, client_cpu or send_lag say that one client is not enough. "
            "Needs neuronbench[ray].",
        ),
    ] = None,
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
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Look whether the server earns its numbers: hidden caches, false first tokens, wrong counts.",
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when the result is invalid.")] = False,
    strict_provisional: Annotated[
        bool,
        typer.Option("--strict-provisional", help="Exit with 1 when the result is invalid or provisional."),
    ] = False,
    every_gate: Annotated[bool, typer.Option("--gates", help="Show the checks that passed, too.")] = False,
) -> None:
    """Measure a server that runs already.

    Warm-up, a window of steady load, and the checks that say whether the numbers may be quoted. What a check that
    failed makes of the result is in its column "makes it": invalid (the numbers show nothing), provisional (evidence is
    missing), info (good to know).

    Exit status: 0 measured, also where the result is provisional or invalid; 1 no result, or limits not shown to be
    kept with --slo-test (by an invalid result none is), or an invalid result with --strict, or an invalid or
    provisional one with --strict-provisional; 2 wrong usage, or a file or number that is none.
    """
    from neuronbench import standalone
    from neuronbench.engines import job as jobs
    from neuronbench.standalone import asked as words
    from neuronbench.standalone.repeats import SEED_STEP

    settings = host.of(context).settings
    load_options.numbers(context.params)
    load_options.one_of("--api", api, ("completions", "chat", "responses"))
    load_options.one_of("--arrivals", arrivals, words.LAWS)
    load_options.one_of("--dataset-format", dataset_format, ("sharegpt", "jsonl", "bodies"))
    load_options.one_of("--trace-format", trace_format, ("jsonl", "mooncake", "azure"))
    limits = dict(load_options.limit(text) for text in slo or ())
    load_options.file("--dataset", dataset, dataset_format)
    load_options.file("--trace", trace, trace_format)
    load_options.tokenizer(tokenizer)
    load_options.certificates(ca_file)
    load_options.written("--json", json_file)
    wanted = Wanted(
        limits=limits if slo_test else None,
        refused=("invalid", "provisional") if strict_provisional else ("invalid",) if strict else (),
    )
    try:
        steps = words.rates(step_rates)
        load_options.numbers({"rates": steps})
        asked = words.Asked(
            input_tokens=input_tokens, output_tokens=output_tokens, law=arrivals, rate=rate, duration_s=duration,
            burstiness=burstiness, burst_size=burst_size, rate_end=rate_end, rates=steps, turns=turns,
            think_s=think_time, trace=trace, trace_format=trace_format, trace_speed=trace_speed,
            prefix_tokens=shared_prefix, prefixes=prefix_groups, prefix_hit_ratio=prefix_hit_ratio,
        )  # fmt: skip
        special, workload = asked.arrivals(), asked.workload()
        if special is not None and (concurrency is not None or requests is not None or find_rate):
            raise ValueError("--concurrency, --requests and --find-rate go with a plain load; leave them out")
        if dataset is not None and workload is not None:
            raise ValueError("--dataset gives the prompts: leave ranges of lengths, prefixes and --trace out")
        if concurrency is None and rate is None and special is None and not find_rate:
            concurrency = 1
        if find_rate and (concurrency is not None or repeats > 1):
            raise ValueError("--find-rate makes loads of its own: leave --concurrency and --repeats out")
        if find_rate and slo_test:
            raise ValueError("--slo-test is a verdict on one load, and --find-rate makes many: leave one of them out")
        if slo_test:
            requests = _enough(limits, slo_percentile, requests, bool(duration or special or find_rate or trace))
        longest = asked.longest()
        chosen: Any = {"api": api, "arrivals": "constant" if arrivals == "constant" else "poisson"}
        job = jobs.Job(
            url=load_options.address(url), model=model, concurrency=concurrency,
            rate=rate if rate is not None or concurrency is not None else 1.0,
            requests=requests, duration_s=duration, input_tokens=longest[0], output_tokens=longest[1], seed=seed,
            warmup=warmup, tokenizer=tokenizer, deadline_s=deadline or settings.deadlines.point,
            api_key=os.environ.get(api_key_env) or None, described=asked.words(), **chosen,
        )  # fmt: skip
    except ValueError as error:
        raise host.CommandError(str(error), status=host.USAGE) from error
    name, _, where = engine.partition("=")
    extras = standalone.Extras(
        slo=limits, percentile=slo_percentile / 100, processes=processes, dataset=dataset,
        dataset_format=dataset_format, ca_file=ca_file, audit=audit, arrivals=special,
        workload=workload,
    )  # fmt: skip
    if name != "native":
        _only_native(
            limits=limits, processes=processes > 1, dataset=dataset, ca_file=ca_file, find_rate=find_rate,
            arrivals=special, input_tokens=workload, api=api == "responses", slo_test=slo_test, audit=audit,
            nodes=nodes is not None,
        )  # fmt: skip
    if audit and find_rate:
        raise host.CommandError("--audit goes with one load, not with --find-rate", status=host.USAGE)
    progress = host.ProgressLine()
    with _folder(out) as folder, _crew(nodes):
        try:
            if find_rate:
                asked_for = load_search.wanted(job, limits, slo_percentile, max_rate, tolerance)
                found = standalone.find_rate(job, asked_for, settings, folder, extras=extras, progress=progress)
                progress.done()
                load_search.deliver(found, json_file, every_gate)
                if load_search.refused(found, wanted):
                    raise typer.Exit(host.FAILURE)
                return
            results = []
            for number in range(1, repeats + 1):
                here = folder if repeats == 1 else folder / f"repeat-{number}"
                here.mkdir(exist_ok=True)
                again = replace(job, seed=job.seed + (number - 1) * SEED_STEP)

                def say(text: str, number: int = number) -> None:
                    progress(text if repeats == 1 else f"repeat {number} of {repeats}: {text}")

                if name == "native":
                    result = standalone.measure(again, settings, here, extras=extras, progress=say)
                else:
                    result = standalone.measure_with(name, where, again, settings, here, progress=say)
                if out is not None:
                    result.files = sorted(str(p.relative_to(folder)) for p in here.rglob("*") if p.is_file())
                    host.write_json("--out", here / "result.json", result.to_json())
                results.append(result)
        except standalone.MeasureError as error:
            files = {"--dataset": (dataset, dataset_format), "--trace": (trace, trace_format)}
            raise load_options.text_of(error, files) or _ended(error, model) from error
        finally:
            progress.done()
        deliver(results, json_file, every_gate, wanted)  # before a crew is closed, which ends a command told to end
    if any(not each.measured for each in results) or refusals(results, wanted):
        raise typer.Exit(host.FAILURE)


def _ended(error: MeasureError, model: str) -> host.CommandError:
    """Why nothing was measured, by what the server said where it did."""
    message, remedy = load_refusals.refusal(error, model) or (str(error), error.remedy)
    return host.CommandError(message, remedy=remedy, status=host.USAGE if error.usage else host.FAILURE)


def _enough(limits: Mapping[str, float], percentile: float, requests: int | None, sized: bool) -> int | None:
    """Requests for a test of limits where nobody said how many: the fewest that can show them to be kept, and some."""
    from neuronbench.load.search import requests_needed

    if not limits:
        raise ValueError("--slo-test needs a limit: --slo ttft=500 (in ms)")
    return requests if requests is not None or sized else requests_needed(percentile / 100)


def _only_native(**given: Any) -> None:
    for name, value in given.items():
        if value:
            option = {"limits": "slo"}.get(name, name.replace("_", "-"))
            raise host.CommandError(
                f"--{option} is for neuronbench's own client; leave --engine out", status=host.USAGE
            )


@contextlib.contextmanager
def _crew(nodes: int | None) -> Iterator[None]:
    """Loads within come from so many nodes; None: from this host."""
    from neuronbench.load import crew
    from neuronbench.protocols import PointFailure

    try:
        found = None if nodes is None else crew.find(nodes=nodes)
    except PointFailure as error:
        raise host.CommandError(error.failure.message, remedy=error.failure.remedy, status=host.USAGE) from error
    with crew.using(found):
        try:
            yield
        finally:
            if found is not None:
                found.close()


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Where tables and logs go: `out`, which must not hold anything yet, or a folder that goes away."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="neuronbench-load-") as scratch:
            yield Path(scratch)
        return
    expected, remedy = "a folder that is empty or not there yet", "name another folder"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise load_options.refused(
                "--out", expected, f"one that is not empty: {out}; results are never mixed with others", remedy
            )
    except FileExistsError:
        raise load_options.refused("--out", expected, f"a file: {out}", remedy) from None
    except OSError as error:
        raise load_options.refused("--out", expected, f"{out}: {error.strerror}", remedy) from error
    yield out.resolve()
