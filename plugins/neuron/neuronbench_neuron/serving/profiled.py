"""Profiles of servers: what a start of its own needs, so that the runtime captures all that it executes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from neuronbench import BootContext
from neuronbench.model import FrozenMap, Point
from neuronbench_neuron.profile import leftovers, tools
from neuronbench_neuron.serving.generations import Generation

SETTINGS: Final = frozenset({"profile", "profile_of"})
"""Of a spec. They are there only where a profile was asked for, and change nothing of what is compiled or answered."""
FLUSH_S: Final = 120
"""What a server that was captured has for its end at least: its traces are written then."""


def of_point(settings: FrozenMap, point: Point) -> FrozenMap:
    """The settings of a server, with the point that it is profiled for: such a server is nobody else's."""
    if point.get("profile", False) is False:
        return settings
    return FrozenMap({**settings, "profile": True, "profile_of": point.id})


def mode(generation: Generation) -> tools.Mode:
    """How the runtime can capture a server: generation 2 executes asynchronously, which allows a session's trace
    only; the others have a program for each compiled size, of which the first execution says what there is to say."""
    return "session" if generation.major == "2" else "model"


def folder(context: BootContext) -> Path:
    """A new folder for what is captured."""
    return leftovers.new_folder(context.settings.cache_dir)


def environment(captured: Path, generation: Generation) -> dict[str, str]:
    """Variables of a server whose runtime captures."""
    env = tools.environment(captured, mode(generation))
    if generation.major == "2":  # its workers are killed after five seconds otherwise, with half a trace
        env["VLLM_NEURON_WORKER_TERMINATION_TIMEOUT"] = str(FLUSH_S)
    return env


def patient(context: BootContext) -> BootContext:
    """The same start, with time for traces to be written before what does not end is killed."""
    deadlines = context.settings.deadlines
    patience = replace(deadlines, stop=max(deadlines.stop, FLUSH_S))
    return replace(context, settings=replace(context.settings, deadlines=patience))
