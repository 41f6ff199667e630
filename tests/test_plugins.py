"""The plugin host against plugins, good and broken: each is a real distribution on the path of a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from neuronbench import BackendInfo, LaneInfo, Point, ProviderInfo, Record, SinkInfo, hookimpl, hookspecs
from neuronbench.model import FrozenMap
from neuronbench.plugins import API_VERSION, PluginError, Plugins, PluginWarning, load_target
from neuronbench.registry import Registry

ROOT = Path(__file__).resolve().parent.parent
IMPL = "from neuronbench import hookimpl\n@hookimpl\n"
GOOD = """
from neuronbench import LaneInfo, hookimpl
NEURONBENCH_API = "1"

@hookimpl
def register_lanes(register):
    register(LaneInfo(name="cooking", title="Cooking"))

@hookimpl
def register_commands(cli):
    @cli.command("cook")
    def cook() -> None:
        print("cooked")
"""


class Site:
    """A folder of installed distributions, as pip would leave it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def install(self, name: str, source: str, *, target: str = "", version: str = "1.2.3") -> Site:
        """A distribution `acme-NAME` whose entry point NAME is module `acme_NAME` (or `target`)."""
        module = f"acme_{name}"
        (self.folder / f"{module}.py").write_text(source, encoding="utf-8")
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[neuronbench]\n{name} = {target or module}\n")
        return self

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run Python with this folder on the path, the neuronbench command by default."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("NEURONBENCH_")}
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=120, cwd=self.folder.parent,
            env={**inherited, "PYTHONPATH": path, **environ},
        )  # fmt: skip

    def command(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "neuronbench.cli", *arguments, **environ)

    def plugins(self, **environ: str) -> dict[str, dict[str, object]]:
        done = self.command("plugins", "--json", **environ)
        assert done.returncode == 0, done.stderr
        return {report["name"]: report for report in json.loads(done.stdout)}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


# -- installed plugins ------------------------------------------------------------------------------------------------


def test_an_installed_plugin_is_found_and_described(site: Site) -> None:
    report = site.install("good", GOOD).plugins()["good"]
    assert report["ok"] is True
    assert (report["distribution"], report["version"], report["source"]) == ("acme-good", "1.2.3", "entry point")
    assert report["hooks"] == ["register_commands", "register_lanes"]
    assert report["api"] == "1"
    assert report["registers"] == {"backends": [], "lanes": ["cooking"], "providers": [], "sinks": []}
    assert isinstance(report["load_ms"], float)
    assert "acme-good 1.2.3" in site.command("plugins").stdout
    assert site.command("cook").stdout == "cooked\n"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("def broken(:\n", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('first line\\nsecond line')", "RuntimeError: first line second line"),
        ("class Odd(BaseException): pass\nraise Odd", "Odd"),
        ("NEURONBENCH_API = '99.0'", "PluginError: is written for hook version 99.0, and this is neuronbench with"),
        (
            IMPL + "def register_backend(register): pass",
            "PluginError: implements no known hook: 'register_backend' (did you mean 'register_backends'?)",
        ),
        (
            IMPL + "def register_lanes(register, extra): pass",
            "PluginValidationError:",
        ),
        (IMPL + "def register_lanes(register): raise SystemExit(3)", "SystemExit: 3"),
        (IMPL + "def register_lanes(register): register('x')", "expected a LaneInfo"),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_named_in_one_line_and_left_out(site: Site, source: str, error: str) -> None:
    site.install("broken", source).install("good", GOOD)
    help_text = site.command("--help")
    assert help_text.returncode == 0
    assert "Usage: neuronbench" in help_text.stdout
    assert "cook" in help_text.stdout
    (line,) = [line for line in help_text.stderr.splitlines() if line]
    assert line.startswith("neuronbench: plugin 'broken' (acme-broken 1.2.3) is left out: ")
    assert error in line
    reports = site.plugins()
    assert reports["broken"]["ok"] is False
    assert error in str(reports["broken"]["error"])
    assert reports["good"]["ok"] is True


def test_the_table_shows_what_is_left_out(site: Site) -> None:
    done = site.install("broken", "import sys; sys.exit('bye')").command("plugins")
    assert "LEFT OUT: SystemExit: bye" in done.stdout
    assert "backends: cpu" in done.stdout


def test_pytest_goes_on_without_a_broken_plugin(site: Site) -> None:
    site.install("broken", "import sys; sys.exit(1)").install("good", GOOD)
    (site.folder.parent / "test_one.py").write_text("def test_one(): pass\n")
    plugin = () if _installed() else ("-p", "neuronbench.pytest_plugin")
    for arguments in (("--help",), ("-q", "test_one.py"), ("--markers",)):
        done = site.run("-m", "pytest", *plugin, "-p", "no:cacheprovider", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "@pytest.mark.cooking" in done.stdout


def _installed() -> bool:
    import importlib.metadata

    return any(point.name == "neuronbench" for point in importlib.metadata.entry_points(group="pytest11"))


def test_only_the_named_plugins_are_loaded(site: Site) -> None:
    site.install("good", GOOD).install("other", "")
    assert {"good", "other"} <= site.plugins().keys()
    names = site.plugins(NEURONBENCH_PLUGINS="good").keys()
    assert "good" in names
    assert "other" not in names
    done = site.command("plugins", NEURONBENCH_PLUGINS="good, missing")
    assert "NEURONBENCH_PLUGINS names 'missing', but no such plugin is installed" in done.stderr


def test_disabled_plugins_are_not_even_imported(site: Site) -> None:
    site.install("loud", "import sys; sys.exit('imported')").install("good", GOOD)
    done = site.command("plugins", NEURONBENCH_DISABLE_PLUGINS="loud,neuronbench.backends.cpu")
    assert done.returncode == 0
    assert done.stderr == ""
    reports = site.plugins(NEURONBENCH_DISABLE_PLUGINS="loud,neuronbench.backends.cpu")
    assert "good" in reports
    assert not {"loud", "neuronbench.backends.cpu"} & reports.keys()


def test_strict_turns_a_broken_plugin_into_an_error(site: Site) -> None:
    site.install("broken", "import no_such_module_at_all")
    done = site.command("plugins", NEURONBENCH_STRICT_PLUGINS="1")
    assert done.returncode == 1
    assert "plugin 'broken' cannot be imported: ModuleNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr
    site.install("older", "NEURONBENCH_API = '0.9'")
    done = site.command("plugins", NEURONBENCH_STRICT_PLUGINS="1", NEURONBENCH_PLUGINS="older")
    assert done.returncode == 1
    assert "plugin 'older': PluginError: is written for hook version 0.9" in done.stderr


def test_trace_prints_hook_calls(site: Site) -> None:
    site.install("good", GOOD)
    assert (
        "neuronbench hook register_lanes ['register']" in site.command("plugins", NEURONBENCH_TRACE_PLUGINS="1").stderr
    )
    assert "hook" not in site.command("plugins").stderr


def test_two_distributions_with_one_plugin_name(site: Site) -> None:
    site.install("good", GOOD)
    (site.folder / "acme_twin.py").write_text("raise AssertionError('not reached')")
    site.install("twin", GOOD.replace("cooking", "baking"))
    (site.folder / "acme_twin-1.2.3.dist-info" / "entry_points.txt").write_text("[neuronbench]\ngood = acme_twin\n")
    done = site.command("plugins", "--json")
    assert "two plugins are called 'good'; the first is kept" in done.stderr
    reports = json.loads(done.stdout)
    assert sum(report["name"] == "good" and report["ok"] for report in reports) == 1
    lanes = {lane for report in reports for lane in report["registers"].get("lanes", [])}
    assert len(lanes & {"cooking", "baking"}) == 1


def test_a_plugin_cannot_take_a_core_commands_place(site: Site) -> None:
    site.install("greedy", GOOD.replace('"cook"', '"doctor"'))
    done = site.command("plugins")
    assert done.returncode == 0
    assert "the command 'doctor' of acme_greedy is left out" in done.stderr
    assert "--json" in site.command("doctor", "--help").stdout


GROUP = """
import typer
from neuronbench import hookimpl
kitchen = typer.Typer({typer})
@kitchen.command()
def {boil}() -> None:
    print("{says}")
@kitchen.command("fry")
def fry() -> None: ...
@hookimpl
def register_commands(cli):
    cli.add_typer(kitchen{named})
"""


def test_two_groups_of_one_name_are_told_of_with_both_plugins(site: Site) -> None:
    site.install("first", GROUP.format(typer="", boil="boil", says="first", named=', name="kitchen"'))
    site.install("second", GROUP.format(typer="name='kitchen'", boil="boil", says="second", named=""))
    done = site.command("kitchen", "boil")
    assert done.returncode == 0
    kept, other = ("first", "second") if done.stdout == "first\n" else ("second", "first")
    assert f"the command 'kitchen' of acme_{other} is left out: {kept} has one of that name" in done.stderr
    assert f"NEURONBENCH_DISABLE_PLUGINS ({kept} or {other})" in done.stderr


@pytest.mark.parametrize(
    ("typer", "boil", "named"),
    [("name='doctor'", "boil", ""), ("", "doctor", ""), ("", "Doctor", "")],
    ids=["name of the group itself", "of a group without a name", "as typer writes it"],
)
def test_a_group_cannot_take_a_core_commands_place_either(site: Site, typer: str, boil: str, named: str) -> None:
    site.install("greedy", GROUP.format(typer=typer, boil=boil, says="taken over", named=named))
    done = site.command("doctor", "--help")
    assert "the command 'doctor' of acme_greedy is left out: neuronbench has one of that name" in done.stderr
    assert "--json" in done.stdout


def test_a_failing_register_commands_takes_only_itself(site: Site) -> None:
    site.install("good", GOOD)
    site.install("worse", IMPL + "def register_commands(cli): raise OSError('no')")
    done = site.command("cook")
    assert done.stdout == "cooked\n"
    assert done.stderr == "neuronbench: plugin 'worse': register_commands: OSError: no\n"


# -- in this process --------------------------------------------------------------------------------------------------


def module(name: str, **content: object) -> types.ModuleType:
    """A plugin as a module that is not installed."""
    made = types.ModuleType(name)
    vars(made).update(content)
    return made


def registers(hook: str, *things: object) -> types.ModuleType:
    def implementation(register: Callable[[object], None]) -> None:
        for thing in things:
            register(thing)

    implementation.__name__ = hook
    return module("made", **{hook: hookimpl(implementation)})


BACKEND = BackendInfo(name="tpu", title="T", target="acme:Tpu", family="tpu", aliases=("tensor",))
LANE = LaneInfo(name="cooking", title="C")
PROVIDER = ProviderInfo(name="endpoint/x", kind="endpoint", families=("tpu",), target="acme:Provider")
SINK = SinkInfo(name="csv", title="CSV", target="acme:Sink")


@pytest.mark.parametrize(
    ("hook", "thing", "noun"),
    [
        ("register_backends", BACKEND, "backend 'tpu'"),
        ("register_lanes", LANE, "lane 'cooking'"),
        ("register_resources", PROVIDER, "resource provider 'endpoint/x'"),
        ("register_sinks", SINK, "sink 'csv'"),
    ],
)
def test_a_second_thing_of_one_name_is_refused_naming_both(hook: str, thing: object, noun: str) -> None:
    plugins = Plugins(entry_points=False)
    plugins.register(registers(hook, thing), name="first", source="test", strict=True)
    with pytest.warns(PluginWarning, match="'second' is left out"):
        assert not plugins.register(registers(hook, thing), name="second", source="test")
    assert f"{noun} is registered by both 'first' and 'second'" in plugins.reports["second"].error
    assert "NEURONBENCH_DISABLE_PLUGINS" in plugins.reports["second"].error
    kind = {"register_backends": "backends", "register_lanes": "lanes", "register_resources": "providers"}.get(
        hook, "sinks"
    )
    assert len(plugins.registered("first")[kind]) == 1
    assert plugins.registered("second")[kind] == []


def test_a_plugin_that_fails_half_way_leaves_nothing() -> None:
    plugins = Plugins(entry_points=False)
    before = plugins.registered()
    made = registers("register_backends", BACKEND, "not a backend")
    with pytest.warns(PluginWarning):
        assert not plugins.register(made, name="half", source="test")
    assert plugins.registered() == before
    assert not plugins.pm.is_registered(made)
    assert plugins.register(registers("register_backends", BACKEND), name="whole", source="test", strict=True)


def test_a_failing_namesake_leaves_the_first_untouched() -> None:
    plugins = Plugins(entry_points=False)
    first = registers("register_lanes", LANE)
    plugins.register(first, name="twin", source="test", strict=True)
    for second in (registers("register_lanes", LaneInfo(name="baking", title="B")), first):
        with pytest.warns(PluginWarning, match="two plugins are called 'twin'"):
            assert not plugins.register(second, name="twin", source="test")
    with pytest.warns(PluginWarning, match="is the plugin 'twin' under another name"):
        assert not plugins.register(first, name="alias", source="test")
    assert plugins.lanes.owner("cooking") == "twin"
    assert plugins.pm.is_registered(first)


@pytest.mark.parametrize(
    ("hook", "thing", "error"),
    [
        ("register_backends", BackendInfo(name="a-b", title="", target="a:b", family="x"), "letters, digits"),
        ("register_backends", BackendInfo(name="not", title="", target="a:b", family="x"), "letters, digits"),
        ("register_backends", BackendInfo(name="skip", title="", target="a:b", family="x"), "has a meaning already"),
        ("register_backends", BackendInfo(name="x", title="", target="a.b", family="x"), "'package.module:Class'"),
        ("register_backends", BackendInfo(name="x", title="", target=":b", family="x"), "'package.module:Class'"),
        ("register_backends", BackendInfo(name="x", title="", target="a:b", family="x", aliases=("cpu",)), "'cpu'"),
        ("register_lanes", LaneInfo(name="cpu", title=""), "backend and lane 'cpu' is registered by both"),
        ("register_lanes", LaneInfo(name="", title=""), "without a name"),
        ("register_sinks", PROVIDER, "registered as a sink: expected a SinkInfo"),
    ],
)
def test_what_is_registered_is_checked(hook: str, thing: object, error: str) -> None:
    with pytest.raises(PluginError, match=error):
        Plugins(entry_points=False).register(registers(hook, thing), name="bad", source="test", strict=True)


def test_hooks_of_a_plugin_object_are_checked_too() -> None:
    class Plugin:
        @hookimpl(specname="boots")
        def anything(self) -> None: ...

    with pytest.raises(PluginError, match=r"no known hook: 'boots' \(did you mean 'boot'\?\)"):
        Plugins(entry_points=False).register(Plugin(), name="object", source="test", strict=True)


def test_an_optional_hook_may_be_unknown() -> None:
    made = module("later", some_later_hook=hookimpl(lambda: None, optionalhook=True))
    assert Plugins(entry_points=False).register(made, name="later", source="test", strict=True)


@pytest.mark.parametrize("version", ["1", "1.1", 1.0, ""])
def test_the_same_or_an_earlier_hook_version_is_accepted(version: object) -> None:
    assert API_VERSION == (1, 1)
    made = module("same", NEURONBENCH_API=version)
    assert Plugins(entry_points=False).register(made, name="same", source="test", strict=True)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (f"1.{API_VERSION[1] + 1}", "update neuronbench"),
        ("2.0", "install a release of the plugin"),
        ("one", "expected a version like"),
        ("1.x", "expected a version like"),
    ],
)
def test_a_plugin_for_other_hooks_is_refused_and_told_what_to_do(version: str, why: str) -> None:
    made = module("other", NEURONBENCH_API=version)
    with pytest.raises(PluginError, match=why):
        Plugins(entry_points=False).register(made, name="other", source="test", strict=True)


@pytest.mark.parametrize("strict", [False, True], ids=["told", "warnings are errors"])
def test_a_hook_that_is_to_go_is_told_of_and_still_called(strict: bool, capsys: pytest.CaptureFixture[str]) -> None:
    class Later:
        @hookspecs.hookspec(warn_on_impl=DeprecationWarning("`stir` goes with 2.0: use `shake`"))
        def stir(self) -> None: ...

    plugins = Plugins(entry_points=False)
    plugins.pm.add_hookspecs(Later)
    called = []
    made = module("mixer", stir=hookimpl(lambda: called.append("stir"), optionalhook=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error" if strict else "always")
        assert plugins.register(made, name="mixer", source="test", strict=True)
    said = capsys.readouterr().err + "".join(str(warning.message) for warning in caught)
    assert "plugin 'mixer': `stir` goes with 2.0: use `shake`" in said
    plugins.pm.hook.stir()
    assert called == ["stir"]


def test_a_plugin_of_the_first_hook_version_does_all_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`data/plugins/first_version.py` was written for hooks 1.0 and is never changed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "data" / "plugins"))
    import first_version

    plugins = Plugins(entry_points=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plugins.register(first_version, name="first", source="test", strict=True)
    assert plugins.registered("first") == {
        "backends": ["abacus"], "lanes": ["counting"], "providers": ["endpoint/abacus"], "sinks": ["wall"]
    }  # fmt: skip
    assert plugins.reports["first"].hooks == sorted(
        name for name, value in vars(hookspecs).items() if hasattr(value, "neuronbench_spec")
    )
    backend = plugins.backend("abacus")
    point = Point(
        benchmark="b", lane="counting", backend="abacus", params=FrozenMap(beads=10), axes=("beads",), id="counting.b"
    )
    assert backend.probe().available
    assert plugins.describe_environment(backend) == {"abacus.rows": 10}
    assert plugins.check_point(point, plugins.backends["abacus"]) is None
    spec = plugins.provider("endpoint/abacus").spec(point, backend, None)
    resource = plugins.boot(spec, None)  # type: ignore[arg-type]
    record = Record(session="s", point=point)
    assert plugins.measuring(point, resource, record, lambda: 7) == 7
    assert [spec.name for spec in plugins.telemetry_samplers(point, resource)] == ["beads"]
    plugins.finish_record(record, point)
    assert record.metrics["beads_moved_beads"].value == 3
    assert plugins.comparison_policy("beads_moved_beads", "counting") == {"band": 0.5}
    assert plugins.report_sections(None, [record]) == [("Counting", "1 records")]
    assert plugins.sink("wall", None).write(tmp_path).state == "delivered"
    plugins.configured(None)
    plugins.point_recorded(record, str(tmp_path))
    plugins.session_finished(None, 0)
    assert first_version.SEEN == ["configured", "recorded", "finished"]


def test_an_unknown_name_lists_what_is_known() -> None:
    plugins = Plugins(entry_points=False)
    with pytest.raises(LookupError, match=r"no backend 'cpuu' \(did you mean 'cpu'\?\); known: cpu"):
        plugins.backends["cpuu"]
    with pytest.raises(LookupError, match="no gadget 'x'; known: none"):
        Registry("gadget", LaneInfo)["x"]


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("json", "is written 'package.module:Name'"),
        ("json:", "is written 'package.module:Name'"),
        ("no_such_module_at_all:X", "cannot be imported: ModuleNotFoundError"),
        ("json:dump_s", r"there is no 'dump_s' \(did you mean 'dumps'\?\)"),
    ],
)
def test_a_wrong_target_says_what_is_wrong(target: str, error: str) -> None:
    with pytest.raises(PluginError, match=error):
        load_target(target)


def test_a_target_is_loaded_when_first_used() -> None:
    assert load_target("json:decoder.JSONDecoder") is json.JSONDecoder
    plugins = Plugins(entry_points=False)
    lazy = BackendInfo(name="lazy", title="", target="no_such_module_at_all:X", family="x")
    plugins.register(registers("register_backends", lazy), name="lazy", source="test", strict=True)
    with pytest.raises(PluginError, match="no_such_module_at_all"):
        plugins.backend("lazy")
    assert plugins.backend("cpu") is plugins.backend("cpu")
    assert plugins.backend("cpu").info is plugins.backends["cpu"]
