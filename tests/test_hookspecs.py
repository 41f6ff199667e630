"""Every hook: documented with its arguments, and exercised through `Plugins` by a test of its name."""

from __future__ import annotations

import inspect
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pluggy
import pytest

from neuronbench import (
    BackendInfo,
    BootContext,
    LaneInfo,
    Metric,
    Outcome,
    Point,
    ProviderInfo,
    Record,
    ResourceSpec,
    SamplerSpec,
    SinkInfo,
    Unsupported,
    hookimpl,
    hookspecs,
)
from neuronbench.definitions import metric
from neuronbench.model import FrozenMap
from neuronbench.plugins import Plugins, PluginWarning

HOOKS = {name: value for name, value in vars(hookspecs).items() if hasattr(value, "neuronbench_spec")}
KINDS = {"Collect": False, "First result": True, "Observe": False}

POINT = Point(benchmark="bench_x.py::bench_x", lane="serving", backend="cpu", params=FrozenMap(concurrency=1), id="x")
SPEC = ResourceSpec(kind="endpoint", backend="cpu", provider="endpoint/fake", settings=FrozenMap(model="m"))


class Resource:
    """A live thing that does nothing."""

    spec = SPEC
    facts: Mapping[str, Any] = {}
    boot_metrics: Sequence[Metric] = ()
    logs: Sequence[Path] = ()


class Provider:
    """What the default boot falls back to: made by the host from its `ProviderInfo`."""

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def boot(self, spec: ResourceSpec, context: BootContext) -> Any:
        return ("booted by the provider", spec, context)


def implement(plugins: Plugins, name: str, **hooks: Callable[..., Any]) -> None:
    """Register a plugin with these implementations; a wrapper's options come with the function."""
    made = types.ModuleType(name)
    for hook, function in hooks.items():
        setattr(made, hook, function if hasattr(function, "neuronbench_impl") else hookimpl(function))
    plugins.register(made, name=name, source="test", strict=True)


def record() -> Record:
    return Record(session="s", point=POINT)


@pytest.fixture
def plugins() -> Plugins:
    return Plugins(entry_points=False)


def raises(error: Exception) -> Callable[..., Any]:
    def implementation() -> None:
        raise error

    return implementation


# -- the documentation ------------------------------------------------------------------------------------------------


def test_there_are_sixteen_hooks() -> None:
    assert len(HOOKS) == 16
    assert "sixteen" in (hookspecs.__doc__ or "")


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_documented_with_its_arguments_and_kind(name: str) -> None:
    text = inspect.getdoc(HOOKS[name]) or ""
    for argument in inspect.signature(HOOKS[name]).parameters:
        assert re.search(rf"`{argument}[`(:]", text), f"{name}: its documentation does not say what {argument!r} is"
    kinds = [kind for kind in KINDS if re.search(rf"\b{kind}\b", text)]
    assert len(kinds) == 1, f"{name}: expected one of {list(KINDS)} in its documentation, found {kinds}"
    assert bool(HOOKS[name].neuronbench_spec["firstresult"]) == KINDS[kinds[0]]


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_typed_and_has_a_test_and_a_method(name: str) -> None:
    signature = inspect.signature(HOOKS[name])
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())
    assert callable(getattr(sys.modules[__name__], f"test_hook_{name}", None)), f"write test_hook_{name}"
    if name not in ("register_backends", "register_lanes", "register_resources", "register_sinks"):
        assert callable(getattr(Plugins, name)), f"Plugins has no method {name}"


# -- hook by hook -----------------------------------------------------------------------------------------------------


def test_hook_register_backends(plugins: Plugins) -> None:
    info = BackendInfo(name="tpu", title="T", target="acme:Tpu", family="tpu")
    implement(plugins, "acme", register_backends=lambda register: register(info))
    assert plugins.backends["tpu"] is info
    assert plugins.backends.owner("tpu") == "acme"
    assert plugins.backends.owner("cpu") == "neuronbench.backends.cpu"


def test_hook_register_lanes(plugins: Plugins) -> None:
    info = LaneInfo(name="cooking", title="C")
    implement(plugins, "acme", register_lanes=lambda register: register(info))
    assert plugins.lanes["cooking"] is info


def test_hook_register_resources(plugins: Plugins) -> None:
    info = ProviderInfo(name="oven/x", kind="oven", families=("cpu",), target="acme:Oven")
    implement(plugins, "acme", register_resources=lambda register: register(info))
    assert plugins.provider_for("oven", "cpu") is info
    assert plugins.provider_for("freezer", "cpu") is None


def test_hook_register_sinks(plugins: Plugins) -> None:
    implement(
        plugins,
        "acme",
        register_sinks=lambda register: register(SinkInfo(name="dict", title="", target="types:SimpleNamespace")),
    )
    assert "dict" in plugins.sinks
    with pytest.raises(TypeError):  # the target is called with the settings
        plugins.sink("dict", object())


def test_hook_register_commands(plugins: Plugins) -> None:
    implement(plugins, "acme", register_commands=lambda cli: cli.append("a command"))
    implement(plugins, "broken", register_commands=raises(OSError("no")))
    cli: list[str] = []
    with pytest.warns(PluginWarning, match="plugin 'broken': register_commands: OSError: no"):
        plugins.register_commands(cli)
    assert cli == ["a command"]


def test_hook_configured(plugins: Plugins) -> None:
    heard: list[object] = []
    implement(plugins, "early", configured=lambda session: heard.append(("early", session)))
    implement(plugins, "broken", configured=raises(OSError("no")))
    with pytest.warns(PluginWarning, match="plugin 'broken': configured"):
        plugins.configured("session")
    implement(plugins, "late", configured=lambda session: heard.append(("late", session)))
    assert heard == [("early", "session"), ("late", "session")]


def test_hook_describe_environment(plugins: Plugins) -> None:
    backend: Any = types.SimpleNamespace(name="b")
    unwritable = object()
    implement(plugins, "one", describe_environment=lambda backend: {"one.fact": backend.name})
    implement(plugins, "silent", describe_environment=lambda: None)
    implement(plugins, "clash", describe_environment=lambda: {"one.fact": 2, "clash.fact": 3})
    implement(plugins, "not_json", describe_environment=lambda: {"not_json.fact": unwritable})
    implement(plugins, "broken", describe_environment=raises(OSError("no")))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts = plugins.describe_environment(backend)
    assert [str(warning.message) for warning in caught] == [
        "plugin 'clash': describe_environment: PluginError: repeats the environment facts ['one.fact']",
        f"plugin 'not_json': describe_environment: TypeError: object is not JSON-serialisable: {unwritable!r}",
        "plugin 'broken': describe_environment: OSError: no",
    ]
    assert facts == {"one.fact": "b"}


def test_hook_check_point(plugins: Plugins) -> None:
    info = plugins.backends["cpu"]
    assert plugins.check_point(POINT, info) is None
    implement(plugins, "no_opinion", check_point=lambda point: None)
    implement(plugins, "later", check_point=hookimpl(lambda: Unsupported(reason="later"), trylast=True))
    implement(plugins, "first", check_point=lambda point, backend: Unsupported(reason=f"{point.id} on {backend.name}"))
    verdict = plugins.check_point(POINT, info)
    assert verdict is not None
    assert verdict.reason == "x on cpu"


def test_hook_check_point_that_raises_hides_no_point(plugins: Plugins) -> None:
    implement(plugins, "broken", check_point=raises(OSError("no")))
    with pytest.warns(PluginWarning, match="plugin 'broken': check_point: OSError: no"):
        assert plugins.check_point(POINT, plugins.backends["cpu"]) is None


def test_hook_boot(plugins: Plugins) -> None:
    context: Any = object()
    info = ProviderInfo(name="endpoint/fake", kind="endpoint", families=("fake",), target=f"{__name__}:Provider")
    implement(plugins, "provider", register_resources=lambda register: register(info))
    assert plugins.boot(SPEC, context) == ("booted by the provider", SPEC, context)

    @hookimpl(wrapper=True)
    def wrapper(spec: ResourceSpec) -> Iterator[None]:
        order.append("before")
        try:
            return (yield)
        finally:
            order.append("after")

    order: list[str] = []
    implement(plugins, "wrapper", boot=wrapper)
    implement(plugins, "own", boot=lambda spec, context: Resource)
    assert plugins.boot(SPEC, context) is Resource
    assert order == ["before", "after"]
    implement(plugins, "broken", boot=hookimpl(raises(OSError("no")), tryfirst=True))
    with pytest.raises(OSError, match="no"):
        plugins.boot(SPEC, context)


def test_hook_measuring(plugins: Plugins) -> None:
    assert plugins.measuring(POINT, None, record(), lambda: "ran") == "ran"
    seen: list[object] = []

    @hookimpl(wrapper=True)
    def profiler(point: Point, resource: Any, record: Record) -> Iterator[None]:
        seen.append((point.id, resource, record.session))
        result = yield
        return f"{result}, profiled"

    implement(plugins, "profiler", measuring=profiler)
    live: Any = Resource()
    assert plugins.measuring(POINT, live, record(), lambda: "ran") == "ran, profiled"
    assert seen == [("x", live, "s")]

    def fails() -> None:
        raise OSError("the server died")

    with pytest.raises(OSError, match="the server died"):
        plugins.measuring(POINT, live, record(), fails)


def test_hook_telemetry_samplers(plugins: Plugins) -> None:
    sampler = SamplerSpec(name="power", target="acme:Power")
    implement(plugins, "none", telemetry_samplers=lambda point: None)
    implement(plugins, "some", telemetry_samplers=lambda point, resource: [sampler])
    implement(plugins, "broken", telemetry_samplers=raises(OSError("no")))
    live: Any = Resource()
    with pytest.warns(PluginWarning, match="plugin 'broken': telemetry_samplers"):
        assert plugins.telemetry_samplers(POINT, live) == [sampler]


def test_hook_finish_record(plugins: Plugins) -> None:
    written = record()
    written.add(metric("ttft", 10.0, stat="p50"))
    implement(plugins, "adds", finish_record=lambda record, point: [metric("tpot", 5.0, stat="p50")])
    implement(plugins, "overwrites", finish_record=lambda record: [metric("ttft", 1.0, stat="p50")])
    implement(plugins, "silent", finish_record=lambda: None)
    with pytest.warns(PluginWarning, match="plugin 'overwrites': finish_record: Frozen"):
        plugins.finish_record(written, POINT)
    assert {key: found.value for key, found in written.metrics.items()} == {"ttft_p50_ms": 10.0, "tpot_p50_ms": 5.0}
    assert len(written.notes) == 1
    assert "overwrites" in written.notes[0]


def test_hook_point_recorded(plugins: Plugins) -> None:
    heard: list[tuple[str, str]] = []
    implement(plugins, "first", point_recorded=lambda record, receipt: heard.append((record.session, receipt)))
    implement(plugins, "broken", point_recorded=raises(OSError("no")))
    implement(plugins, "last", point_recorded=lambda receipt: heard.append(("last", receipt)))
    written = record()
    written.close(Outcome.OK, ended_at="", duration_s=None)
    with pytest.warns(PluginWarning, match="plugin 'broken': point_recorded"):
        plugins.point_recorded(written, "folder")
    assert heard == [("s", "folder"), ("last", "folder")]


def test_hook_comparison_policy(plugins: Plugins) -> None:
    assert plugins.comparison_policy("ttft_p50_ms", "serving") is None
    implement(plugins, "bands", comparison_policy=lambda metric, lane: {"band": 0.1} if lane == "serving" else None)
    assert plugins.comparison_policy("ttft_p50_ms", "serving") == {"band": 0.1}
    assert plugins.comparison_policy("ttft_p50_ms", "cooking") is None


def test_hook_report_sections(plugins: Plugins) -> None:
    implement(plugins, "one", report_sections=lambda session, records: [("one", f"{session}: {len(records)}")])
    implement(plugins, "none", report_sections=lambda: None)
    implement(plugins, "broken", report_sections=raises(OSError("no")))
    with pytest.warns(PluginWarning, match="plugin 'broken': report_sections"):
        assert plugins.report_sections("s", [record()]) == [("one", "s: 1")]


def test_hook_session_finished(plugins: Plugins) -> None:
    heard: list[tuple[object, int]] = []
    implement(plugins, "broken", session_finished=raises(OSError("no")))
    implement(plugins, "hears", session_finished=lambda session, status: heard.append((session, status)))
    with pytest.warns(PluginWarning, match="plugin 'broken': session_finished"):
        plugins.session_finished("s", 3)
    assert heard == [("s", 3)]


# -- rules for all of them --------------------------------------------------------------------------------------------


def test_an_implementation_may_take_fewer_arguments_and_never_others(plugins: Plugins) -> None:
    implement(plugins, "fewer", check_point=lambda: None)
    with pytest.raises(Exception, match="can not be found in the hookspec") as caught:
        implement(plugins, "others", check_point=lambda point, weather: None)
    assert isinstance(caught.value.__cause__, pluggy.PluginValidationError)


def test_an_implementation_may_ask_for_an_argument_of_a_later_version(plugins: Plugins) -> None:
    heard: list[object] = []
    implement(plugins, "default", session_finished=lambda session, weather="unknown": heard.append((session, weather)))
    plugins.session_finished("s", 3)
    assert heard == [("s", "unknown")]
