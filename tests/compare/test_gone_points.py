"""Points that one side has and the other has not: counted always, and a failure where that is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_helpers import Bench, point

from neuronbench import cli, config


def test_points_that_are_gone_can_fail_and_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / config.CONFIG_FILE).write_text("")
    bench = Bench(tmp_path / "mlruns" / "receipts")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main(["--root", str(tmp_path), "compare", *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    for number, loads in (("1", (1, 2, 4, 8, 16, 32)), ("2", (1, 64))):
        for load in loads:
            bench.series(bench.session(number), [100.0, 100.1, 99.9, 100.2], at=point(load))
    status, out, _ = run("--fail-on", "regressed,outcome")
    assert status == 0
    assert out.splitlines()[-1] == "5 points gone, 1 point new, 1 unchanged"
    status, _, error = run("--fail-on", "gone")
    assert (status, error.count("gone: serving.loop-cpu-c")) == (1, 5)
    status, out, _ = run("--fail-on", "gone", "--format", "junit")
    assert (status, out.count("<failure")) == (1, 5)
    assert run("--fail-on", "gone", "latest", "latest~1@concurrency=1,latest")[0] == 0
    assert "gone" in run("--fail-on", "lost")[2]
