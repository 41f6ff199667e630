"""Lanes that lead: their points run first, whatever file they are in."""

from __future__ import annotations


def test_points_of_a_leading_lane_run_before_all_others(project) -> None:
    conftest = project.path / "conftest.py"
    text = conftest.read_text()
    conftest.write_text(
        text.replace(
            'register(LaneInfo(name="toy"',
            'register(LaneInfo(name="first", title="Goes first", leads=True))\n    register(LaneInfo(name="toy"',
            1,
        )
    )
    project.bench(
        '@nb.bench(lane="toy", params={"model": "a"})\ndef bench_a(endpoint, measure): pass\n'
        '@nb.bench(lane="toy")\ndef bench_b(measure): pass\n'
        '@nb.bench(lane="first")\ndef bench_c(measure): pass\n'
        '@nb.bench(lane="toy", params={"model": "a"})\ndef bench_d(endpoint, measure): pass\n'
    )
    result = project.run("-m", "fake", "--collect-only", "-q")
    order = [line.rpartition("::")[2] for line in result.outlines if "::bench_" in line]
    assert [name.partition("[")[0] for name in order] == ["bench_c", "bench_a", "bench_d", "bench_b"]
