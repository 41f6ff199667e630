"""`neuronbench calibrate`: how far the client's own measurements are off, on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.calibration import Calibration


def calibrate(
    context: typer.Context,
    preset: Annotated[
        str, typer.Option(metavar="PRESET", help="How many loads, how often: quick (under a minute) or full.")
    ] = "quick",
    show: Annotated[bool, typer.Option("--show", help="Show the calibration that is there; measure nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the client's own error against a server of known timing, on this host.

    Once per host and version. Every serving record then cites the point nearest to its load, so that a reader knows
    how much of a number may be the client's. Let nothing else run meanwhile.
    """
    from neuronbench import calibration as calibrations

    settings = host.of(context).settings
    if preset not in calibrations.PRESETS:
        known = ", ".join(calibrations.PRESETS)
        raise host.CommandError(f"no preset {preset!r}; there are: {known}", status=host.USAGE)
    if show:
        found = calibrations.load(settings)
        if found is None:
            raise host.CommandError(
                f"no calibration of this host and version in {calibrations.path_of(settings).parent}",
                remedy="run `neuronbench calibrate`",
            )
        _print(found, as_json)
        return
    seconds = calibrations.PRESETS[preset].duration_s
    host.complain(f"{len(calibrations.PRESETS[preset].loads)} loads, about {_duration(seconds)}")
    progress = host.ProgressLine()
    try:
        found = calibrations.calibrate(settings, preset, progress=progress)
    except (calibrations.CalibrationError, OSError, RuntimeError) as error:
        raise host.CommandError(str(error), remedy="let nothing else run on this host, then try again") from error
    finally:
        progress.done()
    _print(found, as_json)
    if not as_json:
        host.say(f"kept in {calibrations.path_of(settings)}")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _print(found: Calibration, as_json: bool) -> None:
    if as_json:
        host.emit_json(found.to_json())
        return
    columns = [
        "streams", "tok/s", "TTFT error p50 / p99 ms", "token error p50 / p99 ms", "TPOT error p99 µs",
        "read lag p99 ms", "CPU µs/token", "requests",
    ]  # fmt: skip
    rows = []
    for point in found.points:
        spread = point.ttft_p99_range_ms
        rows.append(
            [
                str(point.streams),
                f"{point.tokens_per_s:.0f}",
                f"{_ms(point.ttft_ms.p50)} / {_ms(point.ttft_ms.p99)}"
                + (f" ({_ms(spread[0])}–{_ms(spread[1])})" if spread else ""),
                f"{_ms(point.chunk_ms.p50)} / {_ms(point.chunk_ms.p99)}",
                "–" if point.tpot_ms.p99 is None else f"{1000 * point.tpot_ms.p99:.1f}",
                _ms(point.lag_p99_ms),
                "–" if point.cpu_us_per_token is None else f"{point.cpu_us_per_token:.1f}",
                str(point.ttft_ms.n) + (f", {point.failed} FAILED" if point.failed else ""),
            ]
        )
    host.show(host.table(columns, rows, right=columns))
    host.say(
        f"calibrated {found.made_at[:16]}Z on host {found.host}, neuronbench {found.version}, preset {found.preset}"
    )
    for warning in found.warnings:
        host.say(f"  while it ran: {warning}")


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if value < 1 else f"{value:.1f}"
