from __future__ import annotations

import pytest

TWO_MODELS = """
@pytest.mark.parametrize("model", ["a", "b"])
@pytest.mark.parametrize("concurrency", [1, 2])
def bench_one(endpoint, measure, point, model, concurrency):
    assert endpoint.spec.settings["model"] == model == point["model"]

@nb.bench(lane="serving", params={"model": "a"})
def bench_two(endpoint, point):
    assert point["model"] == "a"
"""


def collected(result: pytest.RunResult) -> list[str]:
    return [line for line in result.stdout.lines if "::" in line and " " not in line]


def test_one_marker_per_backend_and_lane_selects_points(project) -> None:
    project.bench(TWO_MODELS)
    everything = collected(project.run("--collect-only", "-q"))
    assert len(everything) == 4 * 5  # cpu, fake, truth and absent
    only = collected(project.run("--collect-only", "-q", "-m", "fake and serving"))
    assert len(only) == 5
    assert all("[fake" in line for line in only)
    assert collected(project.run("--collect-only", "-q", "-m", "fake and toy")) == []


def test_a_typo_in_a_marker_is_an_error(project) -> None:
    project.bench(TWO_MODELS)
    result = project.run("-m", "fakee")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "fakee" in result.stderr.str() + result.stdout.str()
    assert not project.receipts.exists()


def test_benchmarks_that_are_named_and_not_looked_for_are_told(project, pytester: pytest.Pytester) -> None:
    project.bench(TWO_MODELS)
    told = "*nothing is collected of bench_[*].py: that takes `neuronbench = true`*"
    project.run("--collect-only", "bench_it.py").stdout.no_fnmatch_line(told)
    pytester.makepyprojecttoml("[tool.pytest]\nstrict = true\n")
    for named in (["bench_it.py"], [str(pytester.path)], []):
        project.run("--collect-only", *named).stdout.fnmatch_lines([told])
    pytester.path.joinpath("bench_it.py").unlink()
    project.run("--collect-only").stdout.no_fnmatch_line(told)


def test_collect_only_leaves_nothing_on_disk(project) -> None:
    project.bench(TWO_MODELS)
    assert project.run("--collect-only", "-q").ret == 0
    assert not (project.path / "mlruns").exists()
    assert project.events("boot") == []


def test_without_the_hardware_points_are_skipped_with_the_reason_and_nothing_starts(project) -> None:
    project.bench(TWO_MODELS)
    result = project.run("-m", "absent", "-rs")
    result.assert_outcomes(skipped=5)
    result.stdout.fnmatch_lines(["*absent: no /dev/absent0*"])
    assert project.events("boot") == []
    records = project.records()
    assert len(records) == 5
    assert {record["outcome"] for record in records} == {"skipped"}
    assert {record["reason"] for record in records} == {"absent: no /dev/absent0"}


def test_a_kind_of_resource_that_no_plugin_offers_is_a_skip_that_says_so(project) -> None:
    project.pytester.makeconftest(
        (project.path / "conftest.py").read_text().replace('families=("fake",)', 'families=("other",)')
    )
    project.bench(TWO_MODELS)
    result = project.run("-m", "fake", "-rs")
    result.assert_outcomes(skipped=5)
    result.stdout.fnmatch_lines(["*no installed plugin offers an 'endpoint' for the 'fake' family*"])


def test_static_checks_skip_and_known_bad_points_are_expected_to_fail(project) -> None:
    project.bench(
        """
@pytest.mark.parametrize("model", ["too-large", "known-bad", "fine"])
def bench_it(endpoint, model):
    assert model == "fine"
"""
    )
    result = project.run("-m", "fake", "-rsx")
    result.assert_outcomes(skipped=1, xfailed=1, passed=1)
    outcomes = {record["point"]["params"]["model"]: record for record in project.records()}
    assert outcomes["too-large"]["outcome"] == "skipped"
    assert outcomes["too-large"]["reason"] == "too-large does not fit"
    assert outcomes["known-bad"]["outcome"] == "xfailed"
    assert "compiler bug 42" in outcomes["known-bad"]["reason"]
    assert outcomes["known-bad"]["error"]["kind"] == "assertion"
    assert [event for event in project.events("boot") if event[1] == "too-large"] == []


def test_one_boot_serves_all_points_of_a_resource_across_files_and_repeats(project) -> None:
    project.bench(TWO_MODELS)
    project.bench(TWO_MODELS.replace("bench_one", "bench_three").replace("bench_two", "bench_four"), name="bench_more")
    result = project.run("-m", "fake", "--nb-repeats", "2")
    result.assert_outcomes(passed=20)
    assert project.events("boot", "stop") == [("boot", "a"), ("stop", "a"), ("boot", "b"), ("stop", "b")]


def test_repeats_interleave(project) -> None:
    project.bench(TWO_MODELS)
    lines = collected(project.run("--collect-only", "-q", "-m", "fake", "--nb-repeats", "2"))
    of_a = [line for line in lines if "-a" in line or "bench_two" in line]
    half = len(of_a) // 2
    assert ["r1" in line for line in of_a] == [True] * half + [False] * half


def test_a_grid_file_makes_the_points_and_options_change_them(project) -> None:
    folder = project.path / "benchmarks" / "grids" / "serving"
    folder.mkdir(parents=True)
    (folder.parent / "models.toml").write_text('[smoke]\ndefault = "m"\n')
    (folder / "g.toml").write_text(
        '[settings]\nmodel = "@smoke"\n[axes]\nconcurrency = [1, 2, 4]\n[sizes.quick.axes]\nconcurrency = [1]\n'
    )
    project.bench('@nb.bench(lane="serving", grid="serving/g")\ndef bench_it(endpoint, point):\n    pass\n')

    def ids(*args: str) -> list[str]:
        return [line.partition("[")[2] for line in collected(project.run("--collect-only", "-q", "-m", "fake", *args))]

    assert ids() == ["fake-c1]"]
    assert ids("--nb-grid", "full") == ["fake-c1]", "fake-c2]", "fake-c4]"]
    assert ids("--nb-set", "concurrency=8,16") == ["fake-c8]", "fake-c16]"]
    result = project.run("-m", "fake", "--nb-grid", "ful")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "did you mean 'full'" in result.stdout.str() + result.stderr.str()


def test_a_size_that_no_grid_has_is_its_error_alone(project) -> None:
    folder = project.path / "benchmarks" / "grids" / "serving"
    folder.mkdir(parents=True)
    (folder / "g.toml").write_text(
        "[axes]\nconcurrency = [1, 2]\n[sizes.full.axes]\nconcurrency = [4]\n[sizes.quick.axes]\nconcurrency = [1]\n"
    )
    project.bench('@nb.bench(lane="serving", grid="serving/g")\ndef bench_it(endpoint, point):\n    pass\n')
    result = project.run("--collect-only", "-q", "--nb-grid", "fulll")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stdout.str() + result.stderr.str()
    assert "grid has no size 'fulll' (did you mean 'full'?); it has: full, quick\n" in said
    assert "NOTSET" not in said
    project.pytester.makepyprojecttoml('[tool.pytest]\npython_files = ["bench_*.py"]\npython_functions = ["bench_*"]\n')
    result = project.run("--collect-only", "--nb-grid", "fulll")
    assert "did you mean 'full'" in result.stdout.str() + result.stderr.str()
    assert "nothing is collected" not in result.stdout.str()


def test_a_grid_of_which_nothing_is_left_is_skipped_and_says_so(project) -> None:
    folder = project.path / "benchmarks" / "grids" / "serving"
    folder.mkdir(parents=True)
    (folder / "left.toml").write_text("[axes]\nconcurrency = [1, 2]\n[[exclude]]\nconcurrency = 16\n")
    project.bench('@nb.bench(lane="serving", grid="serving/left")\ndef bench_it(endpoint, point):\n    pass\n')
    result = project.run("-rs", "--nb-set", "concurrency=16")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*SKIPPED*empty parameter set*"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nb-set", "concurrency"), "expected KEY=VALUE"),
        (("--nb-deadline", "boot=soon"), "expected seconds above 0"),
        (("--nb-deadline", "boots=3"), "did you mean 'boot'"),
        (("--nb-repeats", "0"), "expected a whole number from 1"),
    ],
)
def test_a_wrong_option_is_a_usage_error_that_says_what_was_expected(project, options, message) -> None:
    project.bench(TWO_MODELS)
    result = project.run("-m", "fake", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize("given", ["dsn=postgresql://bench:hunter2@db.example/bench", "api_key=hunter2hunter2"])
def test_a_secret_in_a_parameter_is_refused_before_it_is_written_anywhere(project, given) -> None:
    project.bench(TWO_MODELS)
    result = project.run("-m", "fake", "--nb-set", given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stdout.str() + result.stderr.str()
    assert "parameters are written into every receipt" in said
    assert "hunter2" not in said
    assert not list(project.path.rglob("record.json"))


def test_an_unknown_lane_or_backend_in_bench_is_a_usage_error(project) -> None:
    project.bench('@nb.bench(lane="servign")\ndef bench_it(endpoint):\n    pass\n')
    result = project.run()
    assert "did you mean 'serving'" in result.stdout.str() + result.stderr.str()
    assert result.ret != 0
    project.bench('@nb.bench(lane="serving", backends=["fakee"])\ndef bench_it(endpoint):\n    pass\n')
    result = project.run()
    assert "did you mean 'fake'" in result.stdout.str() + result.stderr.str()


def test_a_conftest_hook_that_does_not_exist_is_a_usage_error(project) -> None:
    source = (project.path / "conftest.py").read_text()
    project.pytester.makeconftest(source + "\n@hookimpl\ndef register_lane(register):\n    pass\n")
    project.bench(TWO_MODELS)
    result = project.run("-m", "cpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "did you mean 'register_lanes'" in result.stdout.str() + result.stderr.str()


def test_tests_without_our_fixtures_are_left_alone(project) -> None:
    project.pytester.makepyfile(test_plain="def test_it(point=1):\n    pass\n")
    project.bench("def bench_nothing():\n    pass\n")
    result = project.run()
    result.assert_outcomes(passed=2)
    assert not (project.path / "mlruns").exists()
    result.stdout.no_fnmatch_line("*neuronbench:*")


def test_several_values_for_a_key_that_nothing_has_are_a_usage_error(project) -> None:
    project.bench(TWO_MODELS)
    result = project.run("-m", "fake", "--nb-set", "concurency=1,2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "did you mean 'concurrency'" in result.stdout.str() + result.stderr.str()


def test_a_broken_plugin_under_strict_loading_is_a_usage_error(project, monkeypatch) -> None:
    package = project.path / "broken-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[neuronbench]\nbroken = no_such_module_at_all\n")
    monkeypatch.setenv("NEURONBENCH_STRICT_PLUGINS", "1")
    monkeypatch.setenv("PYTHONPATH", str(project.path))
    project.bench(TWO_MODELS)
    result = project.run("-m", "fake", subprocess=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "broken" in result.stdout.str() + result.stderr.str()
