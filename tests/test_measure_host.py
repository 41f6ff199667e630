"""The host's floor: sizes of caches and arrays, thread counts, and real short windows; cited by later records."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronbench import config, measure_host
from neuronbench.measure import Measure
from neuronbench.measure_host import Host, beyond_cache, ladder, last_level_bytes
from neuronbench.model import FrozenMap, Outcome, Point
from neuronbench.plugins import Plugins
from neuronbench.records import OpenRecord
from neuronbench.session import Session

MIB = 1 << 20


def cache(root: Path, core: int, index: int, level: int, size: str, shared: str, kind: str = "Unified") -> None:
    folder = root / f"sys/devices/system/cpu/cpu{core}/cache/index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared), ("type", kind)):
        (folder / name).write_text(text + "\n")


def test_last_level_caches_are_counted_once_each_of_the_cores_in_use(tmp_path: Path) -> None:
    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        cache(tmp_path, core, 0, 1, "32K", str(core), "Data")
        cache(tmp_path, core, 1, 1, "32K", str(core), "Instruction")
        cache(tmp_path, core, 2, 2, "1024K", str(core))
        cache(tmp_path, core, 3, 3, "32768K", shared)
    assert last_level_bytes(tmp_path, [0, 1]) == 32 * MIB
    assert last_level_bytes(tmp_path, [0, 1, 2]) == 64 * MIB
    assert last_level_bytes(tmp_path / "none", [0]) is None


def test_a_machine_without_a_shared_cache_has_each_cores_own(tmp_path: Path) -> None:
    for core in (0, 1):
        cache(tmp_path, core, 0, 2, "2048K", str(core))
    assert last_level_bytes(tmp_path, [0, 1]) == 4 * MIB


def test_arrays_are_four_times_the_caches_unless_memory_forbids() -> None:
    roomy = Host(cores=[0, 1], caches_bytes=32 * MIB, free_bytes=8 << 30)
    assert roomy.array_bytes == 128 * MIB
    assert beyond_cache(roomy).passed is True
    tight = Host(cores=[0, 1], caches_bytes=32 * MIB, free_bytes=300 * MIB)
    assert tight.array_bytes == 50 * MIB
    gate = beyond_cache(tight)
    assert (gate.passed, gate.severity) == (False, "invalid")
    assert "4 × the last-level caches" in gate.message
    unknown = Host(cores=[0], caches_bytes=None, free_bytes=8 << 30)
    assert unknown.array_bytes == 256 * MIB
    assert beyond_cache(unknown).passed is None


def test_thread_counts_double_and_end_with_all() -> None:
    assert [ladder(count) for count in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


TRIAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("host", sys.argv[1])
host = importlib.util.module_from_spec(spec)
spec.loader.exec_module(host)
handler = host.Handler(print)
told = handler.load("triad", host.STRETCH * 3)
step = handler.step({})
cells = dict(zip(step.__code__.co_freevars, (cell.cell_contents for cell in step.__closure__)))
parts = [part for stretch in cells["stretches"] for part in stretch]
assert sum(len(out) for out, _, _ in parts) == host.STRETCH * 3
assert told["bytes"] == 24 * host.STRETCH
for call in range(3):
    assert step() == (2.25, 2.25)
assert all((out == 2.25).all() for out, _, _ in parts)  # every stretch had its turn
handler.load("matmul", 64)
assert handler.step({})() == (64.0, 64.0)
"""


def test_the_kernels_compute_what_they_say() -> None:
    path = measure_host.COMMON_HANDLERS / "host.py"
    done = subprocess.run([sys.executable, "-c", TRIAD, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(config.load(tmp_path, environ={}), Plugins(entry_points=False))
    made._sinks = []
    yield made
    made.close(0)


def opened(session: Session, lane: str, name: str) -> OpenRecord:
    return session.open_record(Point(benchmark="b", lane=lane, backend="cpu", params=FrozenMap(), id=name))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of two cores at most and small caches: the loops are the same."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    host = Host(cores=cores, caches_bytes=MIB, free_bytes=8 << 30)
    monkeypatch.setattr(Host, "here", classmethod(lambda cls: host))
    monkeypatch.setattr(measure_host, "MATRIX", 128)


def test_a_floor_is_recorded_and_cited_by_the_records_after_it(session: Session, small: None) -> None:
    early = opened(session, "encoder", "early")
    session.commit(early, Outcome.OK)
    assert "host_floor" not in early.record.workload
    point = opened(session, "host", "floor")
    found = Measure(session, point).host_floor(seconds=0.3)
    for key in ("memory_bandwidth_t1_GB_s", "matmul_rate_t1_GFLOP_s"):
        assert 0.01 < (found[key].value or 0) < 10_000
        assert found[key].n > 1
    for stem, unit in (("memory_bandwidth", "GB_s"), ("matmul_rate", "GFLOP_s")):
        counts = [metric.value for key, metric in found.items() if key.startswith(f"{stem}_t")]
        assert found[f"{stem}_max_{unit}"].value == max(value for value in counts if value is not None)
    assert found["tokenizer_rate_tok_s"].value is None
    assert "no model" in found["tokenizer_rate_tok_s"].note
    record = point.record
    assert {gate.id for gate in record.gates} == {"host_quiet", "beyond_cache"}
    assert record.workload["floor"]["array_bytes"] == 4 * MIB
    assert record.workload["floor"]["blas"]
    session.commit(point, Outcome.OK)
    later = opened(session, "encoder", "later")
    session.commit(later, Outcome.OK)
    assert later.record.workload["host_floor"] == record.receipt_id
    assert "host_floor" not in record.workload


def test_a_floor_that_failed_is_cited_by_no_one(session: Session) -> None:
    point = opened(session, "host", "floor")
    point.record.workload["floor"] = {}
    session.commit(point, Outcome.FAILED)
    later = opened(session, "encoder", "later")
    session.commit(later, Outcome.OK)
    assert "host_floor" not in later.record.workload


def test_a_missing_stack_or_model_leaves_the_tokenizer_out_and_says_why(
    session: Session, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: Any, kind: str, settings: Any) -> Any:
        raise LookupError("no Python here\n  has tokenizers")

    monkeypatch.setattr("neuronbench.backends.cpu.backend.CpuBackend.stack", none)
    bench = measure_host._Bench(session, opened(session, "host", "floor"), Host.here(), 0.1)
    metric = bench.tokenizer("packaged:all-MiniLM-L6-v2")
    assert metric.value is None
    assert metric.note == "no Python here has tokenizers"


def test_a_host_that_computes_wrong_is_found() -> None:
    measure_host._check(np.array([2.25, 2.25]), "triad")
    with pytest.raises(ValueError, match=r"triad computed 2\.0, expected 2\.25"):
        measure_host._check(np.array([2.0, 2.25]), "triad")


def test_no_window_no_figure(session: Session) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Measure(session, opened(session, "host", "floor")).host_floor(seconds=0)
    with pytest.raises(ValueError, match="make it longer"):
        measure_host._median_ns(np.array([]))
