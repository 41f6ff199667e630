"""A session of 1,000 points in MLflow: what its writing costs, and whether what people do with it stays quick.

The page is looked at with the system's Chromium where it is installed; its row is empty elsewhere.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neuronbench import config
from neuronbench.definitions import metric
from neuronbench.model import Environment, FrozenMap, Gate, Outcome, Point, Record
from neuronbench.receipts import ReceiptStore

POINTS = 1_000


def receipts(store: ReceiptStore, session: str, count: int) -> list[Path]:
    """Receipts of points with 40 metrics, 20 parameters and 30 facts, as a serving record has."""
    written = []
    for index in range(count):
        point = Point(
            benchmark="bench_x.py::bench_x", lane="serving", backend="cpu",
            params=FrozenMap({f"p{k}": k for k in range(19)} | {"concurrency": index}), axes=("concurrency",),
            id=f"serving.x-cpu-c{index}",
        )  # fmt: skip
        record = Record(
            session=session, point=point, started_at="2026-11-30T12:00:00.000000+00:00",
            environment=Environment(facts=FrozenMap({f"host.fact{k}": k for k in range(30)}), key="k"),
        )  # fmt: skip
        for id_ in ("ttft", "ttft_due", "tpot", "icl", "e2e", "e2e_due", "max_stall", "send_lag"):
            record.add(*(metric(id_, 10.0 + index, stat=stat, n=500) for stat in ("p50", "p90", "p99", "mean", "max")))
        record.gate(Gate(id="window_complete", passed=True))
        staging = store.open(record)
        record.close(Outcome.OK, ended_at="2026-11-30T12:00:09.000000+00:00", duration_s=9.0)
        written.append(store.commit(record, staging))
    return written


@contextmanager
def serving(settings: config.Settings) -> Iterator[str]:
    """`neuronbench ui` while it is needed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = settings.data_root / "ui.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "neuronbench", "--root", str(settings.root), "ui", "--port", str(port)]
        child = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(url + "/health", timeout=5).close()
                break
            except OSError:
                assert child.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        yield url
    finally:
        child.terminate()
        child.wait(20)


def timed(action: Callable[[], object], turns: int = 5) -> list[float]:
    """Seconds of each turn, after one that is not counted."""
    spent = []
    for _ in range(turns + 1):
        begun = time.perf_counter()
        action()
        spent.append(time.perf_counter() - begun)
    return spent[1:]


def page_load(address: str, last: str) -> list[float]:
    """Seconds from asking for the page of runs to the number of runs standing on it, in a new window each turn."""
    program = shutil.which("chromium")
    if program is None:
        return []
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])

        def look() -> None:
            context = browser.new_context(viewport={"width": 1400, "height": 1000})
            page = context.new_page()
            page.goto(address)
            page.get_by_text(last).wait_for(timeout=120_000)
            page.get_by_text("matching runs").wait_for(timeout=120_000)
            context.close()

        spent = timed(look, turns=3)
        browser.close()
    return spent


@pytest.mark.timeout(1200)
def bench_mlflow_session(board, tmp_path: Path) -> None:
    """A thousand children of one parent, without tables: written, finished, searched, and looked at."""
    from mlflow import MlflowClient

    from neuronbench.sinks.mlflow.push import ui_pages
    from neuronbench.sinks.mlflow.sink import MlflowSink

    (tmp_path / config.CONFIG_FILE).write_text("")
    settings = config.load(tmp_path, environ={})
    store = ReceiptStore(settings.receipts_dir)
    session = store.begin_session(settings)
    written = receipts(store, session, POINTS)
    sink, spent = MlflowSink(settings), []
    for receipt in written:
        begun = time.perf_counter()
        delivery = sink.write(receipt)
        spent.append(1000 * (time.perf_counter() - begun))
        assert delivery.state == "delivered", delivery.reason
    first, last = spent[10:110], spent[-100:]
    board.report(
        what="MLflow, the last 100 of 1,000 points", unit="ms", value=statistics.median(last), turns=last, budget=60.0,
        bare=statistics.median(first), note="a point, on SQLite; bare: the first 100 of the same session",
    )  # fmt: skip
    store.end_session(session, 0)
    begun = time.perf_counter()
    sink.close()
    board.report(
        what="MLflow, end of a session of 1,000", unit="s", value=time.perf_counter() - begun, budget=20.0,
        note="totals, report and manifest on the parent run",
    )  # fmt: skip
    client = MlflowClient(settings.mlflow_uri)
    (experiment,) = (e.experiment_id for e in client.search_experiments() if e.name == "neuronbench/serving")
    found = timed(
        lambda: client.search_runs([experiment], filter_string="params.concurrency = '500'", max_results=100), turns=5
    )
    board.report(
        what="MLflow, search by a parameter", unit="s", value=statistics.median(found), turns=found, budget=1.0,
        note="one of 1,000 runs, by the client",
    )  # fmt: skip
    with serving(settings) as url:
        (address,) = ui_pages(settings, url).values()
        (parent,) = client.search_runs([experiment], filter_string="tags.`nb.kind` = 'session'")
        looked = page_load(address, str(parent.info.run_name))
    if looked:
        board.report(
            what="MLflow, page of runs of a session of 1,000", unit="s", value=statistics.median(looked), turns=looked,
            budget=5.0, note="headless Chromium, a new window each turn, until the session and the count stand there",
        )  # fmt: skip
