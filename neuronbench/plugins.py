"""The plugin host: finds plugins, guards the host against broken ones, and offers their hooks with types.

Plugins come from three places: the core's own (`DEFAULT_PLUGINS`), entry points in the group `neuronbench`, and
`conftest.py` files (registered by the pytest plugin). Environment variables, each a comma-separated list of names:
`NEURONBENCH_PLUGINS` (load exactly these entry points), `NEURONBENCH_DISABLE_PLUGINS` (never load these);
`NEURONBENCH_STRICT_PLUGINS=1` turns a plugin that fails to load into an error; `NEURONBENCH_TRACE_PLUGINS=1` prints
every hook call on standard error.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import pluggy

from neuronbench import hookspecs
from neuronbench.model import closest

if TYPE_CHECKING:
    from neuronbench.model import Metric, Point, Record, ResourceSpec
    from neuronbench.protocols import (
        Backend,
        BackendInfo,
        BootContext,
        LaneInfo,
        Provider,
        ProviderInfo,
        Resource,
        SamplerSpec,
        Sink,
        SinkInfo,
        Unsupported,
    )

API_VERSION: Final = (1, 0)
"""Version of the hooks. A plugin may declare `NEURONBENCH_API = "1"`; another major version is refused."""

ENTRY_POINT_GROUP: Final = "neuronbench"
DEFAULT_PLUGINS: Final = ("neuronbench.defaults", "neuronbench.backends.cpu")


class PluginError(Exception):
    """A plugin cannot be used: which one, and why."""


class PluginWarning(UserWarning):
    """A plugin was left out, or an observer of it raised."""


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


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


class Registry(Generic[T]):
    """Things that plugins registered, by name. Refuses a second one of the same name and says whose the first is."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._things: dict[str, T] = {}
        self._owner: dict[str, str] = {}

    def add(self, thing: T, owner: str) -> None:
        name = getattr(thing, "name", None)
        if not isinstance(name, str) or not name:
            raise PluginError(f"plugin {owner!r} registered a {self.noun} without a name: {thing!r}")
        if name in self._things:
            raise PluginError(
                f"{self.noun} {name!r} is registered by both {self._owner[name]!r} and {owner!r}; "
                f"rename it in one of them or disable one with NEURONBENCH_DISABLE_PLUGINS"
            )
        self._things[name] = thing
        self._owner[name] = owner

    def remove_owner(self, owner: str) -> None:
        for name in [name for name, who in self._owner.items() if who == owner]:
            del self._things[name], self._owner[name]

    def __getitem__(self, name: str) -> T:
        try:
            return self._things[name]
        except KeyError:
            known = ", ".join(self._things) or "none"
            raise LookupError(f"no {self.noun} {name!r}{closest(name, list(self._things))}; known: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterable[T]:  # type: ignore[misc]
        return iter(self._things.values())

    def __len__(self) -> int:
        return len(self._things)

    def names(self) -> list[str]:
        return list(self._things)

    def owner(self, name: str) -> str:
        return self._owner[name]


def load_target(target: str) -> Any:
    """The object that `"package.module:Name"` names."""
    module_name, _, attribute = target.partition(":")
    if not attribute:
        raise PluginError(f"a target is written 'package.module:Name'; found {target!r}")
    value: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def _names(variable: str) -> set[str]:
    return {name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()}


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Plugins:
    """The plugin manager, the registries it filled, and one typed method per hook."""

    def __init__(self, *, entry_points: bool = True) -> None:
        self.pm = pluggy.PluginManager(hookspecs.PROJECT)
        self.pm.add_hookspecs(hookspecs)
        self.reports: dict[str, PluginReport] = {}
        self.backends: Registry[BackendInfo] = Registry("backend")
        self.lanes: Registry[LaneInfo] = Registry("lane")
        self.providers: Registry[ProviderInfo] = Registry("resource provider")
        self.sinks: Registry[SinkInfo] = Registry("sink")
        self._instances: dict[str, Any] = {}
        if os.environ.get("NEURONBENCH_TRACE_PLUGINS") == "1":
            self.pm.add_hookcall_monitoring(
                lambda name, impls, kwargs: print(f"neuronbench hook {name} {sorted(kwargs)}", file=sys.stderr),
                lambda outcome, name, impls, kwargs: None,
            )
        for module_name in DEFAULT_PLUGINS:
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
                plugin = entry_point.load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may even call sys.exit at import; the host goes on
                if strict:
                    raise PluginError(f"plugin {name!r} cannot be imported: {_one_line(error)}") from error
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
        try:
            if name in self.reports and self.reports[name].ok:
                raise PluginError(f"two plugins are called {name!r}; the first is kept")
            declared = str(getattr(plugin, "NEURONBENCH_API", "") or "")
            report.api = declared
            if declared and declared.split(".")[0] != str(API_VERSION[0]):
                raise PluginError(
                    f"is written for hook version {declared}, and this is neuronbench with hook version "
                    f"{'.'.join(map(str, API_VERSION))}; install a release of the plugin for it"
                )
            self._check_names(plugin)
            if self.pm.register(plugin, name=name) is None:
                return False  # blocked
            callers = self.pm.get_hookcallers(plugin) or []
            report.hooks = sorted(caller.name for caller in callers)
            self._collect(plugin, name)
        except Exception as error:
            if self.pm.is_registered(plugin):
                self.pm.unregister(plugin)
            for registry in (self.backends, self.lanes, self.providers, self.sinks):
                registry.remove_owner(name)
            if strict:
                raise PluginError(f"plugin {name!r}: {_one_line(error)}") from error
            self._left_out(report, error)
            return False
        report.load_ms += (time.perf_counter() - started) * 1e3
        self.reports[name] = report
        return True

    def _check_names(self, plugin: Any) -> None:
        known = {name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), "neuronbench_spec")}
        for name, value in list(vars(plugin).items()) if hasattr(plugin, "__dict__") else []:
            options = getattr(value, "neuronbench_impl", None)
            if isinstance(options, dict) and name not in known and not options.get("specname"):
                if not options.get("optionalhook"):
                    raise PluginError(f"implements no known hook: {name!r}{closest(name, sorted(known))}")

    def _collect(self, plugin: Any, owner: str) -> None:
        """Call the register_* hooks of this plugin alone, so that each thing is known to be its."""
        others = [other for other in self.pm.get_plugins() if other is not plugin]
        for hook, registry in (
            ("register_backends", self.backends),
            ("register_lanes", self.lanes),
            ("register_resources", self.providers),
            ("register_sinks", self.sinks),
        ):
            caller = self.pm.subset_hook_caller(hook, remove_plugins=others)
            caller(register=lambda thing, registry=registry: registry.add(thing, owner))

    def _left_out(self, report: PluginReport, error: BaseException) -> None:
        report.error = _one_line(error)
        key = report.name if report.name not in self.reports else f"{report.name} ({report.distribution or 'again'})"
        self.reports[key] = report
        where = f" ({report.distribution} {report.version})" if report.distribution else ""
        warnings.warn(f"plugin {report.name!r}{where} is left out: {report.error}", PluginWarning, stacklevel=3)

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

    def provider_for(self, kind: str, backend: str) -> ProviderInfo | None:
        """The provider that serves `kind` on this backend's family; None when no plugin offers one."""
        family = self.backends[backend].family
        found = [info for info in self.providers if info.kind == kind and family in info.families]  # type: ignore[attr-defined]
        return found[0] if found else None

    def provider(self, name: str) -> Provider:
        info = self.providers[name]
        instance: Provider = self._instance("provider", info, info)
        return instance

    def sink(self, name: str, settings: Any) -> Sink:
        instance: Sink = load_target(self.sinks[name].target)(settings)
        return instance

    # -- hooks, with types --------------------------------------------------------------------------------------------

    def register_commands(self, cli: Any) -> None:
        self.pm.hook.register_commands(cli=cli)

    def configured(self, session: Any) -> None:
        self.pm.hook.configured.call_historic(kwargs={"session": session})

    def describe_environment(self, backend: Backend) -> dict[str, Any]:
        """Facts of all plugins; one that raises or repeats a key is warned about and left out."""
        facts: dict[str, Any] = {}
        for plugin in self.pm.get_plugins():
            others = [other for other in self.pm.get_plugins() if other is not plugin]
            try:
                for given in self.pm.subset_hook_caller("describe_environment", remove_plugins=others)(backend=backend):
                    clash = sorted(facts.keys() & given.keys())
                    if clash:
                        raise PluginError(f"repeats the environment facts {clash}")
                    facts.update(given)
            except Exception as error:
                name = self.pm.get_name(plugin)
                warnings.warn(f"plugin {name!r}: describe_environment: {_one_line(error)}", PluginWarning, 2)
        return facts

    def check_point(self, point: Point, backend: BackendInfo) -> Unsupported | None:
        verdict: Unsupported | None = self.pm.hook.check_point(point=point, backend=backend)
        return verdict

    def boot(self, spec: ResourceSpec, context: BootContext) -> Resource:
        resource: Resource | None = self.pm.hook.boot(spec=spec, context=context)
        if resource is None:
            resource = self.provider(spec.provider).boot(spec, context)
        return resource

    def measuring(self, point: Point, resource: Resource | None, record: Record, run: Callable[[], Any]) -> Any:
        return self.pm.hook.measuring(point=point, resource=resource, record=record, run=run)

    def telemetry_samplers(self, point: Point, resource: Resource) -> list[SamplerSpec]:
        return [spec for specs in self.pm.hook.telemetry_samplers(point=point, resource=resource) for spec in specs]

    def finish_record(self, record: Record, point: Point) -> None:
        for plugin in self.pm.get_plugins():
            others = [other for other in self.pm.get_plugins() if other is not plugin]
            try:
                caller = self.pm.subset_hook_caller("finish_record", remove_plugins=others)
                for metrics in caller(record=record, point=point):
                    record.add(*metrics)
            except Exception as error:
                note = f"plugin {self.pm.get_name(plugin)!r}: finish_record: {_one_line(error)}"
                record.notes.append(note)
                warnings.warn(note, PluginWarning, 2)

    def comparison_policy(self, metric: str, lane: str) -> Mapping[str, Any] | None:
        policy: Mapping[str, Any] | None = self.pm.hook.comparison_policy(metric=metric, lane=lane)
        return policy

    def report_sections(self, session: Any, records: Sequence[Record]) -> list[tuple[str, str]]:
        return [pair for pairs in self._observe("report_sections", session=session, records=records) for pair in pairs]

    def point_recorded(self, record: Record, receipt: str) -> None:
        self._observe("point_recorded", record=record, receipt=receipt)

    def session_finished(self, session: Any, status: int) -> None:
        self._observe("session_finished", session=session, status=status)

    def _observe(self, hook: str, **kwargs: Any) -> list[Any]:
        """Call every implementation on its own; one that raises is a warning and the rest still hear."""
        results: list[Any] = []
        for plugin in self.pm.get_plugins():
            others = [other for other in self.pm.get_plugins() if other is not plugin]
            try:
                results += self.pm.subset_hook_caller(hook, remove_plugins=others)(**kwargs)
            except Exception as error:
                warnings.warn(f"plugin {self.pm.get_name(plugin)!r}: {hook}: {_one_line(error)}", PluginWarning, 2)
        return results
