"""MLflow's own pages over what the sink wrote, in a real browser: runs, comparison, notes, figures, charts, traces."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import synthetic_receipts as synthetic
from sink_helpers import Reader, settings_at

from neuronbench.model import Outcome
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.mlflow import MlflowSink
from neuronbench.testing.tracking.team import free_port, serving

if TYPE_CHECKING:
    from browser_fixtures import Web

ROOT = Path(__file__).resolve().parents[2]
MODE: Final = "workflowType=machine_learning"
EXPLAINED: Final = (
    r"/ajax-api/2\.0/mlflow/users/current",  # it asks who is logged in; a server without logins has no such page
    r"https://mlflow\.org/",  # pictures and films of its documentation; no test needs the network
    r"^console: null ResizeObserver loop completed with undelivered notifications\.",  # its tables, when they resize
)
"""What MLflow's pages complain of wherever they are opened."""


@dataclass(frozen=True, kw_only=True)
class Site:
    url: str
    said: str
    """What `neuronbench ui` printed."""
    session: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, prepared_db: Path) -> Iterator[Site]:
    """A session as they are, delivered by the sink, and `neuronbench ui` over it."""
    settings = settings_at(tmp_path_factory.mktemp("site"))
    settings.data_root.mkdir()
    shutil.copy(prepared_db, settings.database)
    store = ReceiptStore(settings.receipts_dir)
    session = store.begin_session(settings, command=["pytest", "benchmarks", "-m", "cpu"])
    sink = MlflowSink(settings)
    paths = [synthetic.put(store, synthetic.boot(session), files={"server.log": b"a line\n" * 20_000})]
    for concurrency in (4, 8):
        for repeat in (1, 2):
            point = synthetic.point(concurrency=concurrency)
            made = synthetic.record(session, repeat=repeat, ttft=40.0 + concurrency + repeat, point=point)
            paths.append(synthetic.put(store, made, table=synthetic.requests(60)))
    failing = synthetic.failing(session, point=synthetic.point(concurrency=16))
    paths.append(synthetic.put(store, failing, Outcome.ERROR, files={"server.log": b"out of memory\n"}))
    store.end_session(session, 1)
    for path in paths:
        delivery = sink.write(path)
        assert delivery.state == "delivered", delivery.reason
    sink.close()
    url, log = f"http://127.0.0.1:{(port := free_port())}", settings.root / "ui.log"
    command = [sys.executable, "-m", "neuronbench", "--root", str(settings.root), "ui", "--port", str(port)]
    with serving(command, {**os.environ, "PYTHONPATH": str(ROOT)}, url, log):
        yield Site(url=url, said=log.read_text(), session=session)


@pytest.fixture
def mlflow(site: Site, reader: Callable[..., Reader]) -> Reader:
    return reader(site.url)


def page_of(site: Site, mlflow: Reader, run: Any = None, rest: str = "") -> str:
    where = f"{site.url}/#/experiments/{mlflow.experiment().experiment_id}"
    return f"{where}{f'/runs/{run.info.run_id}' if run is not None else ''}{rest}?{MODE}"


def test_the_addresses_that_ui_prints_lead_to_the_runs(site: Site, mlflow: Reader, web: Web) -> None:
    (address,) = re.findall(r"^  serving +(\S+)$", site.said, flags=re.MULTILINE)
    page = web.open(address)
    (parent,) = mlflow.runs(nb_kind="session")
    page.get_by_text(parent.info.run_name).wait_for()
    page.get_by_text("9 matching runs").wait_for()  # a session, a boot, five repeats, two summaries
    page.locator(".ag-cell [role=button], .ag-cell button").first.click()  # unfold the session
    for name in ("serving-closed_loop-c4 #r1", "serving-closed_loop-c8 #r2", "serving-closed_loop-c16 #r1 (invalid)"):
        page.get_by_text(name, exact=True).wait_for()
    page.get_by_text("serving-closed_loop-c4 summary of 2").wait_for()
    web.shot(page, "mlflow-runs")
    assert web.problems(EXPLAINED) == []


def test_charts_are_drawn(site: Site, mlflow: Reader, web: Web) -> None:
    page = web.open(page_of(site, mlflow, rest="/runs") + "&compareRunsMode=CHART")
    page.get_by_text("session/points", exact=True).first.wait_for()
    page.locator("svg.main-svg").first.wait_for()
    bars = page.locator("svg.main-svg g.bars path")
    bars.first.wait_for(state="attached")
    assert bars.count() >= 3
    web.shot(page, "mlflow-charts")
    assert web.problems(EXPLAINED) == []


def test_two_runs_are_compared_by_their_metrics(site: Site, mlflow: Reader, web: Web) -> None:
    runs = [mlflow.run(f"{site.session}/serving-closed_loop-c{concurrency}--r1") for concurrency in (4, 8)]
    query = urllib.parse.urlencode(
        {
            "runs": json.dumps([run.info.run_id for run in runs]),
            "experiments": json.dumps([mlflow.experiment().experiment_id]),
        }
    )
    page = web.open(f"{site.url}/#/compare-runs?{query}&{MODE}")
    page.get_by_text("Comparing 2 Runs from 1 Experiment").wait_for()
    page.locator("svg.main-svg").first.wait_for()
    for name in ("ttft/p50_ms", "output_throughput/tok_s", "error_rate/share", "concurrency"):
        page.get_by_text(name, exact=True).last.wait_for(state="attached")
    page.get_by_text("Metrics", exact=True).last.scroll_into_view_if_needed()
    web.shot(page, "mlflow-compare")
    text = page.inner_text("body")
    assert {"serving-closed_loop-c4 #r1", "serving-closed_loop-c8 #r1"} <= set(re.findall(r"serving\S+ #r1", text))
    assert {"45", "49"} <= set(re.findall(r"\b4[59]\b", text))  # their TTFT
    assert web.problems(EXPLAINED) == []


def test_a_run_shows_its_note_numbers_data_and_where_it_comes_from(site: Site, mlflow: Reader, web: Web) -> None:
    run = mlflow.run(f"{site.session}/serving-closed_loop-c8--r1")
    page = web.open(page_of(site, mlflow, run))
    page.get_by_role("heading", name="serving-closed_loop-c8 #r1").wait_for()
    note = page.get_by_role("table").filter(has_text="bounds").first  # Markdown, rendered
    note.get_by_text("ttft_p50_ms").wait_for()
    assert "48 to 50 at 95%" in note.inner_text()
    page.get_by_text("needs 368 requests").wait_for(state="attached")
    page.get_by_text("output_throughput/tok_s").wait_for()
    page.get_by_text("resource.dtype").wait_for()
    for text in ("bench_closed_loop.py", "3f2a91c", "synthetic (0123456789abcdef)"):
        page.get_by_text(text).last.wait_for(state="attached")
    web.shot(page, "mlflow-run", full=True)
    assert web.problems(EXPLAINED) == []


def test_a_failed_run_says_why(site: Site, mlflow: Reader, web: Web) -> None:
    run = mlflow.run(f"{site.session}/serving-closed_loop-c16--r1")
    page = web.open(page_of(site, mlflow, run))
    page.get_by_text("the server ended during the window").wait_for()
    page.get_by_text("Failed", exact=True).first.wait_for(state="attached")
    web.shot(page, "mlflow-failed")
    assert web.problems(EXPLAINED) == []


def test_figures_are_shown(site: Site, mlflow: Reader, web: Web) -> None:
    run = mlflow.run(f"{site.session}/serving-closed_loop-c8--r1")
    page = web.open(page_of(site, mlflow, run, "/artifacts/figures/timeline.png"))
    page.get_by_text("figures/timeline.png", exact=True).wait_for()
    picture = page.locator("img[src^=blob], img[src*=timeline], .image-outer-container img").first
    picture.wait_for()
    page.wait_for_function("image => image.complete && image.naturalWidth > 400", arg=picture.element_handle())
    for name in ("record.json", "requests.parquet", "files.json"):
        page.get_by_text(name, exact=True).wait_for()
    web.shot(page, "mlflow-figure")
    assert web.problems(EXPLAINED) == []


def test_a_trace_of_the_run_opens_with_its_spans(site: Site, mlflow: Reader, web: Web) -> None:
    run = mlflow.run(f"{site.session}/serving-closed_loop-c8--r1")
    page = web.open(page_of(site, mlflow, run, "/traces"))
    page.get_by_text("6 of 6").wait_for()  # of this run, and no others
    trace = next(trace for trace in mlflow.traces(run) if trace.info.state.value == "OK")
    page.get_by_text(trace.info.request_preview).first.click()
    for name in ("queued", "prefill", "decode"):
        page.get_by_text(name, exact=True).first.wait_for()
    page.get_by_text(re.compile(r"^32 output tokens, TTFT [\d.]+ ms, TPOT")).last.wait_for()
    web.shot(page, "mlflow-trace")
    assert trace.info.trace_id in page.url
    assert web.problems(EXPLAINED) == []


def test_a_page_that_is_broken_is_noticed(site: Site, web: Web) -> None:
    page = web.open(f"{site.url}/static-files/index.html")
    page.evaluate("setTimeout(() => { throw new Error('on purpose') }, 0); console.error('said so')")
    page.evaluate("() => fetch('http://127.0.0.1:9/').catch(() => 0)")
    page.wait_for_timeout(200)
    told = " ".join(web.problems(EXPLAINED))
    assert "on purpose" in told
    assert "said so" in told
    assert "request: http://127.0.0.1:9/" in told
