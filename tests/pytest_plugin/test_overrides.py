"""`--nb-set`: a name that nobody reads measures what nobody asked for, so it is refused or said."""

from __future__ import annotations

import pytest

BENCHES = """
@nb.bench(lane="serving", grid="serving/g", params={"window_s": 1})
def bench_grid(endpoint, point):
    pass

@pytest.mark.parametrize("colour", ["red"])
def bench_own(endpoint, point, colour):
    assert point.get("kept_by", 1)
"""


@pytest.fixture
def benches(project):
    folder = project.path / "benchmarks" / "grids" / "serving"
    folder.mkdir(parents=True)
    (folder / "g.toml").write_text(
        "[axes]\nconcurrency = [1, 2]\n[sizes.full.settings]\nonly_of_full = 1\n"
        "[backends.truth.settings]\nonly_of_truth = 1\n[[include]]\nof_a_row = 3\n"
    )
    project.bench(BENCHES)
    return project


WORDS = "no collected benchmark, grid or provider has a parameter"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("concurency=16", "concurrency"),  # of a grid
        ("window=30", "window_s"),  # of nb.bench
        ("color=blue", "colour"),  # of parametrize
        ("ttft=3", "ttft_ms"),  # of a provider's spec
        ("concurency=1,2", "concurrency"),
    ],
)
def test_a_name_that_is_almost_a_known_one_is_refused(benches, given: str, meant: str) -> None:
    result = benches.run("-m", "fake", "--nb-set", given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stdout.str() + result.stderr.str()
    assert f"--nb-set {given}: {WORDS} of that name (did you mean {meant!r}?)" in said
    assert not benches.receipts.exists()


@pytest.mark.parametrize("options", [(), ("-q",), ("--collect-only",), ("--collect-only", "-q")])
def test_a_name_that_nobody_knows_is_said_in_one_line_and_recorded(benches, options: tuple[str, ...]) -> None:
    result = benches.run("-m", "fake", "--nb-set", "zzyzx=1", *options)
    assert result.ret == 0
    (line,) = [line for line in result.stdout.lines if "zzyzx" in line]
    assert f"{WORDS} 'zzyzx'; it goes into the record and changes nothing that neuronbench knows of" in line
    if "--collect-only" not in options:
        assert {record["point"]["params"]["zzyzx"] for record in benches.records()} == {1}


@pytest.mark.parametrize(
    "given",
    [
        "concurrency=4", "only_of_full=2", "only_of_truth=2", "of_a_row=2", "window_s=2",
        "model=a", "ttft_ms=3", "endpoint_provider=fake", "api=chat", "kept_by=2",
    ],
)  # fmt: skip
def test_a_name_that_somebody_has_is_taken_in_silence(benches, given: str) -> None:
    result = benches.run("--collect-only", "-m", "fake", "--nb-set", given)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*warning*")


def test_a_parametrize_that_keeps_its_values_is_said(benches) -> None:
    result = benches.run("-m", "fake", "--nb-set", "colour=blue")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*warning: --nb-set colour: bench_it.py::bench_own has its values from its own*"])
    values = [record["point"]["params"].get("colour") for record in benches.records()]
    assert sorted(values, key=str) == ["blue", "blue", "blue", "red"]


def test_several_values_of_what_is_no_axis_are_refused(benches) -> None:
    one = "give this parameter one value"
    for given, word in (("zzyzx=1,2", "found colour, conc"), ("ttft_ms=1,2", one), ("only_of_full=1,2", one)):
        result = benches.run("-m", "fake", "--nb-set", given)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        said = result.stdout.str() + result.stderr.str()
        assert f"--nb-set {given}: expected an axis or a setting of a benchmark or its grid for several values" in said
        assert word in said


def test_fields_of_a_training_job_are_known(project) -> None:
    project.bench('@nb.bench(params={"method": "lora", "steps": 2})\ndef bench_train(trainer, point):\n    pass\n')
    result = project.run("--collect-only", "-m", "fake", "--nb-set", "learning_rate=1e-4")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*warning*")
    result = project.run("--collect-only", "-m", "fake", "--nb-set", "learning_rat=1e-4")
    assert "did you mean 'learning_rate'" in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize("before", ["", "if 'precompile' not in point.params: raise ValueError('no')\n"])
def test_what_a_provider_reads_and_does_not_keep_is_known(benches, before: str) -> None:
    """Also one that refuses a point before it has asked for all that it knows. The name is almost one of the grid's."""
    fakes = benches.path / "fakes.py"
    text = fakes.read_text().replace(
        '        return ResourceSpec(kind="endpoint"',
        f"        {before}\n        names = ('precompile',)\n        [point.get(name) for name in names]\n"
        '        return ResourceSpec(kind="endpoint"',
    )
    fakes.write_text(text)
    grid = benches.path / "benchmarks" / "grids" / "serving" / "g.toml"
    grid.write_text("settings = { recompute = true }\n" + grid.read_text())
    result = benches.run("--collect-only", "-m", "fake", "-k", "grid", "--nb-set", "precompile=false")
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    result.stdout.no_fnmatch_line("*warning*")
    result = benches.run("--collect-only", "-m", "fake", "-k", "grid", "--nb-set", "recompile=false")
    assert f"--nb-set recompile=false: {WORDS} of that name (did you mean" in result.stdout.str() + result.stderr.str()
