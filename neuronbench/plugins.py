"""The plugin host: finds plugins, guards the host against broken ones, and offers their hooks with types.

Plugins come from three places: the core's own (`DEFAULT_PLUGINS`), entry points in the group `neuronbench`, and
`conftest.py` files (registered by the pytest plugin). Environment variables, each a comma-separated list of names:
`NEURONBENCH_PLUGINS` (load exactly these entry points), `NEURONBENCH_DISABLE_PLUGINS` (never load these);
`NEURONBENCH_STRICT_PLUGINS=1` turns a plugin that fails to load into an error; `NEURONBENCH_TRACE_PLUGINS=1` prints
every hook call on standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pluggy

from neuronbench import hookspecs, lane_benchmarks
from neuronbench.model import FrozenMap, closest
from neuronbench.plugin_checks import API_VERSION, check_version, load_target, one_line
from neuronbench.protocols import BackendInfo, LaneInfo, ProviderInfo, SinkInfo
from neuronbench.registry import PluginError, Registry

if TYPE_CHECKING:
    from neuronbench.model import Point, Record, ResourceSpec
    from neuronbench.protocols import Backend, BootContext, Provider, Resource, SamplerSpec, Sink, Unsupported

ENTRY_POINT_GROUP: Final = "neuronbench"
DEFAULT_PLUGINS: Final = ("neuronbench.defaults", "neuronbench.backends.cpu")


class PluginWarning(UserWarning):
    """A plugin was left out, or an observer of it raised."""


def warn(text: str, stacklevel: int = 2) -> None:
    """A `PluginWarning` that never raises: under `-W error` it is a line on standard error instead.

    What is warned of here went wrong in a plugin or a sink, and such a thing must not fail a point or lose a record.
    """
    try:
        warnings.warn(text, PluginWarning, stacklevel + 1)
    except PluginWarning:
        print(f"neuronbench: {text}", file=sys.stderr)


@dataclass(kw_only=True)
class PluginReport:
    """What is known of a plugin: what `neuronbench plugins` prints."""

    name: str
    distribution: str = ""
    version: str = ""
    source: str = ""
    """`core`, `entry point`, `conftest`."""
    hooks: list[str] = field(default_factory=list)
    api: str = ""
    load_ms: float = 0.0
    error: str = ""
    """One line; empty when it works."""

    @property
    def ok(self) -> bool:
        return not self.error


def _names(variable: str) -> set[str]:
    return {name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()}


class Plugins:
    """The plugin manager, the registries it filled, and one typed method per hook."""

    def __init__(self, *, entry_points: bool = True) -> None:
        self.pm = pluggy.PluginManager(hookspecs.PROJECT)
        self.pm.add_hookspecs(hookspecs)
        self.reports: dict[str, PluginReport] = {}
        self.backends = Registry("backend", BackendInfo, markers=True)
        self.lanes = Registry("lane", LaneInfo, markers=True, shared=(self.backends,))
        self.backends.shared = (self.lanes,)
        self.providers = Registry("resource provider", ProviderInfo)
        self.sinks = Registry("sink", SinkInfo)
        self._sessions: list[Any] = []
        """Sessions that `configured` was called for: plugins that come later are told too."""
        self._instances: dict[str, Any] = {}
        if os.environ.get("NEURONBENCH_TRACE_PLUGINS") == "1":
            self.pm.add_hookcall_monitoring(
                lambda name, impls, kwargs: print(f"neuronbench hook {name} {sorted(kwargs)}", file=sys.stderr),
                lambda outcome, name, impls, kwargs: None,
            )
        for module_name in DEFAULT_PLUGINS:
            if module_name in _names("NEURONBENCH_DISABLE_PLUGINS") and module_name != DEFAULT_PLUGINS[0]:
                continue
            self.register(importlib.import_module(module_name), name=module_name, source="core", strict=True)
        if entry_points:
            self._load_entry_points()

    # -- loading ------------------------------------------------------------------------------------------------------

    def _load_entry_points(self) -> None:
        only, never = _names("NEURONBENCH_PLUGINS"), _names("NEURONBENCH_DISABLE_PLUGINS")
        strict = os.environ.get("NEURONBENCH_STRICT_PLUGINS") == "1"
        seen: set[tuple[str, str]] = set()
        for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
            name = entry_point.name
            if (name, entry_point.value) in seen or name in never or (only and name not in only):
                continue
            seen.add((name, entry_point.value))
            report = PluginReport(name=name, source="entry point")
            if entry_point.dist is not None:
                report.distribution, report.version = entry_point.dist.name, entry_point.dist.version
            started = time.perf_counter()
            try:
                with contextlib.redirect_stdout(sys.stderr):  # `plugins --json` owns standard output
                    plugin = entry_point.load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may even call sys.exit at import; the host goes on
                if strict:
                    raise PluginError(f"plugin {name!r} cannot be imported: {one_line(error)}") from error
                self._left_out(report, error)
                continue
            report.load_ms = (time.perf_counter() - started) * 1e3
            self.register(plugin, name=name, source="entry point", strict=strict, report=report)
        for name in sorted(only - {report.name for report in self.reports.values()}):
            warnings.warn(f"NEURONBENCH_PLUGINS names {name!r}, but no such plugin is installed", PluginWarning, 2)

    def register(
        self, plugin: Any, *, name: str, source: str, strict: bool = False, report: PluginReport | None = None
    ) -> bool:
        """Add a plugin and let it register its things; returns whether it is in.

        A plugin that fails any check is taken out again as a whole, and its report keeps the reason in one line.
        """
        report = report or PluginReport(name=name, source=source)
        started = time.perf_counter()
        entered = False
        try:
            if self.pm.has_plugin(name):
                raise PluginError(f"two plugins are called {name!r}; the first is kept")
            if self.pm.is_registered(plugin):
                raise PluginError(f"is the plugin {self.pm.get_name(plugin)!r} under another name")
            declared = str(getattr(plugin, "NEURONBENCH_API", "") or "")
            report.api = declared
            check_version(declared)
            self._check_names(plugin)
            entered = True
            with warnings.catch_warnings(record=True) as told:  # a hook that is to go warns, and does not refuse
                warnings.simplefilter("always")
                self.pm.register(plugin, name=name)
            for each in told:
                warn(f"plugin {name!r}: {each.message}", stacklevel=3)
            report.hooks = sorted(caller.name for caller in self.pm.get_hookcallers(plugin) or [])
            self._collect(plugin, name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as at import: a plugin may raise whatever it likes, the host goes on
            if entered:
                if self.pm.is_registered(plugin):
                    self.pm.unregister(plugin)
                for registry in (self.backends, self.lanes, self.providers, self.sinks):
                    registry.remove_owner(name)
            if strict:
                raise PluginError(f"plugin {name!r}: {one_line(error)}") from error
            self._left_out(report, error)
            return False
        report.load_ms += (time.perf_counter() - started) * 1e3
        self.reports[name] = report
        for session in self._sessions:
            self._observe_one(plugin, "configured", {"session": session})
        return True

    def _check_names(self, plugin: Any) -> None:
        """Raise for an implementation of a hook that does not exist: it would never be called, and nobody would know.

        pluggy has such a check, for all plugins at once and after the fact; this names the plugin and takes it alone.
        """
        known = {name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")}
        for name in dir(plugin):
            options = self.pm.parse_hookimpl_opts(plugin, name)
            if options is None or options.get("optionalhook"):
                continue
            hook = options.get("specname") or name
            if hook not in known:
                raise PluginError(f"implements no known hook: {hook!r}{closest(hook, sorted(known))}")

    def _collect(self, plugin: Any, owner: str) -> None:
        """Call the register_* hooks of this plugin alone, so that each thing is known to be its."""
        others = [other for other in self._in_order() if other is not plugin]
        for hook, registry in (
            ("register_backends", self.backends),
            ("register_lanes", self.lanes),
            ("register_resources", self.providers),
            ("register_sinks", self.sinks),
        ):
            caller = self.pm.subset_hook_caller(hook, remove_plugins=others)
            caller(register=lambda thing, registry=registry: registry.add(thing, owner))
        lane_benchmarks.folders(lane for lane in self.lanes if self.lanes.owner(lane.name) == owner)  # are they there?

    def _left_out(self, report: PluginReport, error: BaseException) -> None:
        report.error = one_line(error)
        key = report.name if report.name not in self.reports else f"{report.name} ({report.distribution or 'again'})"
        self.reports[key] = report
        where = f" ({report.distribution} {report.version})" if report.distribution else ""
        warnings.warn(f"plugin {report.name!r}{where} is left out: {report.error}", PluginWarning, stacklevel=3)

    def registered(self, plugin: str | None = None) -> dict[str, list[str]]:
        """Names of what is registered, by kind (`{"backends": ["trn1"], ...}`): all, or of one plugin."""
        kinds: dict[str, Registry[Any]] = {
            "backends": self.backends, "lanes": self.lanes, "providers": self.providers, "sinks": self.sinks
        }  # fmt: skip
        return {
            kind: [name for name in each.names() if plugin is None or each.owner(name) == plugin]
            for kind, each in kinds.items()
        }

    # -- objects ------------------------------------------------------------------------------------------------------

    def _instance(self, kind: str, info: Any, *args: Any) -> Any:
        key = f"{kind}:{info.name}"
        if key not in self._instances:
            self._instances[key] = load_target(info.target)(*args)
        return self._instances[key]

    def backend(self, name: str) -> Backend:
        """The backend object, made on first use."""
        info = self.backends[name]
        instance: Backend = self._instance("backend", info, info)
        return instance

    def provider_for(self, kind: str, backend: str, wanted: str = "") -> ProviderInfo | None:
        """The provider that serves `kind` on this backend's family: the first, or the one called `wanted` (with or
        without its kind). None when no plugin offers one."""
        found = self.providers_for(kind, backend)
        if wanted:
            found = [info for info in found if wanted in (info.name, info.name.partition("/")[2])]
        return found[0] if found else None

    def providers_for(self, kind: str, backend: str) -> list[ProviderInfo]:
        """All that serve `kind` on this backend's family, in the order of their registration."""
        family = self.backends[backend].family
        return [info for info in self.providers if info.kind == kind and family in info.families]

    def provider(self, name: str) -> Provider:
        info = self.providers[name]
        instance: Provider = self._instance("provider", info, info)
        return instance

    def sink(self, name: str, settings: Any) -> Sink:
        instance: Sink = load_target(self.sinks[name].target)(settings)
        return instance

    # -- hooks, with types --------------------------------------------------------------------------------------------

    def register_commands(self, cli: Any, *, only: str = "") -> None:
        """Let plugins add their commands to `cli`: all of them, or the one that is called `only`."""
        for plugin in [self.pm.get_plugin(only)] if only else self._in_order():
            self._observe_one(plugin, "register_commands", {"cli": cli})

    def configured(self, session: Any) -> None:
        self._sessions.append(session)
        self._observe("configured", session=session)

    def describe_environment(self, backend: Backend) -> dict[str, Any]:
        """Facts of all plugins; what one gives that raises, repeats a key or is not JSON is left out with a warning."""
        facts: dict[str, Any] = {}
        for plugin in self._in_order():
            for given in self._observe_one(plugin, "describe_environment", {"backend": backend}):
                try:
                    checked = FrozenMap(given)
                    clash = sorted(facts.keys() & checked.keys())
                    if clash:
                        raise PluginError(f"repeats the environment facts {clash}")
                except Exception as error:
                    self._warn(plugin, "describe_environment", error)
                else:
                    facts.update(checked)
        return facts

    def check_point(self, point: Point, backend: BackendInfo) -> Unsupported | None:
        """The first objection. A check that raises is a warning and no objection: it must not hide a result."""
        try:
            verdict: Unsupported | None = self.pm.hook.check_point(point=point, backend=backend)
        except Exception as error:
            self._warn(self._culprit("check_point", error), "check_point", error)
            return None
        return verdict

    def boot(self, spec: ResourceSpec, context: BootContext) -> Resource:
        resource: Resource | None = self.pm.hook.boot(spec=spec, context=context)
        if resource is None:
            resource = self.provider(spec.provider).boot(spec, context)
        return resource

    def measuring(self, point: Point, resource: Resource | None, record: Record, run: Callable[[], Any]) -> Any:
        return self.pm.hook.measuring(point=point, resource=resource, record=record, run=run)

    def telemetry_samplers(self, point: Point, resource: Resource) -> list[SamplerSpec]:
        """Samplers of all plugins; one that raises brings none, and the point is measured all the same."""
        given = self._observe("telemetry_samplers", point=point, resource=resource)
        return [spec for specs in given for spec in specs]

    def finish_record(self, record: Record, point: Point) -> None:
        for plugin in self._in_order():
            try:
                for metrics in self._only(plugin, "finish_record")(record=record, point=point):
                    record.add(*metrics)
            except Exception as error:
                record.notes.append(self._warn(plugin, "finish_record", error))

    def comparison_policy(self, metric: str, lane: str) -> Mapping[str, Any] | None:
        policy: Mapping[str, Any] | None = self.pm.hook.comparison_policy(metric=metric, lane=lane)
        return policy

    def report_sections(self, session: Any, records: Sequence[Record]) -> list[tuple[str, str]]:
        return [pair for pairs in self._observe("report_sections", session=session, records=records) for pair in pairs]

    def point_recorded(self, record: Record, receipt: str) -> None:
        self._observe("point_recorded", record=record, receipt=receipt)

    def session_finished(self, session: Any, status: int) -> None:
        self._observe("session_finished", session=session, status=status)

    # -- calling plugins one by one -----------------------------------------------------------------------------------

    def _in_order(self) -> list[Any]:
        """The plugins as they were registered: pluggy's own set of them has no order, and results should have one."""
        return [plugin for _, plugin in self.pm.list_name_plugin() if plugin is not None]

    def _only(self, plugin: Any, hook: str) -> Any:
        """The hook as if `plugin` were the only one."""
        others = [other for other in self._in_order() if other is not plugin]
        return self.pm.subset_hook_caller(hook, remove_plugins=others)

    def _observe(self, hook: str, **kwargs: Any) -> list[Any]:
        """Call every implementation on its own; one that raises is a warning and the rest still hear."""
        return [result for plugin in self._in_order() for result in self._observe_one(plugin, hook, kwargs)]

    def _observe_one(self, plugin: Any, hook: str, kwargs: Mapping[str, Any]) -> list[Any]:
        try:
            return list(self._only(plugin, hook)(**kwargs))
        except Exception as error:
            self._warn(plugin, hook, error)
            return []

    def _warn(self, plugin: Any, hook: str, error: BaseException) -> str:
        note = f"plugin {self.pm.get_name(plugin) or plugin!r}: {hook}: {one_line(error)}"
        warn(note, stacklevel=4)
        return note

    def _culprit(self, hook: str, error: BaseException) -> Any:
        """The plugin whose implementation of `hook` the error came out of; None when it cannot be told."""
        owners = {
            impl.function.__code__: impl.plugin
            for impl in getattr(self.pm.hook, hook).get_hookimpls()
            if hasattr(impl.function, "__code__")
        }
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in owners:
                return owners[trace.tb_frame.f_code]
            trace = trace.tb_next
        return None


__all__ = [
    "API_VERSION", "DEFAULT_PLUGINS", "ENTRY_POINT_GROUP", "PluginError", "PluginReport", "PluginWarning", "Plugins",
    "load_target",
]  # fmt: skip
