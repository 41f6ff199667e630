"""The hooks of neuronbench: sixteen, and no more; objects do the work.

How they behave, for all of them:

* An implementation may take fewer arguments than the spec lists, never others, except with a default value: that is
  how it can ask for an argument that only a later version of the hook has.
* *Collect* hooks call every implementation; order does not matter. *First result* hooks stop at the first answer that
  is not None (`tryfirst=True` goes before others). *Observe* hooks return nothing.
* `register` callbacks check each thing as it comes and know which plugin sent it. Two plugins that register the same
  name are refused, and the error names both.
* An exception while a plugin registers backends, lanes, resources or sinks takes that plugin out and is reported with
  its name. One in `boot` or `measuring` becomes the record's error. Anywhere else it is a warning that names the
  plugin, and the run goes on without what it would have said.
* Any plugin may implement them: a module named by an entry point in the group `neuronbench`, or a `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from neuronbench.model import Metric, Point, Record, ResourceSpec
    from neuronbench.protocols import (
        Backend,
        BackendInfo,
        BootContext,
        LaneInfo,
        ProviderInfo,
        Resource,
        SamplerSpec,
        SinkInfo,
        Unsupported,
    )

PROJECT = "neuronbench"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_backends(register: Callable[[BackendInfo], None]) -> None:
    """Offer kinds of hardware.

    Called once when plugins are loaded. Collect. Its `target` is imported on first use, so that registering costs
    nothing. `register`: call it with a `BackendInfo`, once for each.
    """


@hookspec
def register_lanes(register: Callable[[LaneInfo], None]) -> None:
    """Offer lanes: families of benchmarks with one metric vocabulary.

    Called once when plugins are loaded. Collect. `register`: call it with a `LaneInfo`, once for each.
    """


@hookspec
def register_resources(register: Callable[[ProviderInfo], None]) -> None:
    """Offer providers that boot a kind of resource on some families of hardware.

    Called once when plugins are loaded. Collect. `register`: call it with a `ProviderInfo`, once for each.
    """


@hookspec
def register_sinks(register: Callable[[SinkInfo], None]) -> None:
    """Offer places that receipts are forwarded to; receipts themselves are always written.

    Called once when plugins are loaded. Collect. `register`: call it with a `SinkInfo`, once for each.
    """


@hookspec
def register_commands(cli: Any) -> None:
    """Add sub-commands to the `neuronbench` command.

    Called when the command starts. Collect. `cli`: the `typer.Typer` application.
    """


@hookspec
def configured(session: Any) -> None:
    """A benchmark session is ready: settings, environment and receipts are there, nothing has booted.

    Observe. A plugin that arrives later (a `conftest.py` deep in the tree) is still told.
    `session`: `neuronbench.session.Session`.
    """


@hookspec
def describe_environment(backend: Backend) -> Mapping[str, Any] | None:
    """Facts to merge into the environment of every record, under keys with a namespace (`neuron.driver`).

    Called once per backend that is used. Collect; a key that another plugin gave already is refused.
    `backend`: the `Backend` object.
    """


@hookspec(firstresult=True)
def check_point(point: Point, backend: BackendInfo) -> Unsupported | None:
    """Say before anything boots that a point cannot run, or is known to fail.

    Called for every collected point of an available backend. First result: None, or an `Unsupported` whose reason is
    shown as the reason of the skip. `point`: with all its parameters; `backend`: what was registered of its hardware.
    """


@hookspec(firstresult=True)
def boot(spec: ResourceSpec, context: BootContext) -> Resource | None:
    """Produce the live resource for `spec`, or raise `BootError`.

    First result; when no plugin has one, the registered provider that `spec` names is asked. A wrapper may add
    containers, a remote host, or tracing. `context`: the backend, the settings, an empty folder for logs, a deadline,
    and the only way to start processes.
    """


@hookspec(firstresult=True)
def measuring(point: Point, resource: Resource | None, record: Record, run: Callable[[], Any]) -> Any:
    """Run the measured part of a point: the default implementation calls `run()` and returns what it gives.

    First result. Profilers and monitors are wrappers (`hookimpl(wrapper=True)`) around it. `point` is what is
    measured, `resource` what it is measured on (None when it leased nothing). `record` may be added to.
    """


@hookspec
def telemetry_samplers(point: Point, resource: Resource) -> Sequence[SamplerSpec] | None:
    """Samplers to run during the window, in the telemetry process.

    Collect: a list of `SamplerSpec`, or None. `point` is what is measured, `resource` what it is measured on.
    """


@hookspec
def finish_record(record: Record, point: Point) -> Sequence[Metric] | None:
    """Last chance to derive metrics before the record is closed; return `Metric`s to add.

    Collect. Metrics that are there are never overwritten: a key that exists is an error of the plugin and is reported.
    `record` is still open and has its metrics and gates; `point` is what was measured.
    """


@hookspec
def point_recorded(record: Record, receipt: str) -> None:
    """A record was written and handed to the sinks.

    Observe. `record` is closed; `receipt`: the folder it was written to.
    """


@hookspec(firstresult=True)
def comparison_policy(metric: str, lane: str) -> Mapping[str, Any] | None:
    """Noise band and floor used when two values of a metric are compared: `{"band": 0.03, "floor": 0.5}`.

    First result: None leaves the default. `metric`: its key, such as `ttft_p50_ms`; `lane`: the name of the lane.
    """


@hookspec
def report_sections(session: Any, records: Sequence[Record]) -> Sequence[tuple[str, str]] | None:
    """Extra sections for the terminal summary: pairs of title and text.

    Collect. `session`: `neuronbench.session.Session`; `records`: all of it, closed, boots among them.
    """


@hookspec
def session_finished(session: Any, status: int) -> None:
    """The session is over; everything is stopped and written.

    Observe. `session`: `neuronbench.session.Session`; `status`: pytest's exit status.
    """
