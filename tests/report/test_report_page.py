"""What a report says: which numbers are headlines, what stands beside them, where they come from."""

from __future__ import annotations

import base64
import hashlib
import itertools
import random
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import orjson
import pytest
from report_receipts import HOSTILE, Project, fill, point, serving, telemetry
from synthetic_receipts import requests

from neuronbench.catalog import published
from neuronbench.catalog.instances import prices
from neuronbench.definitions import metric
from neuronbench.model import Failure, Gate, Outcome, Provenance
from neuronbench.report.page import build, costs, curves, frontier, html, lanes, markdown, roofline, samples
from neuronbench.report.page.figure import Cell, Document, Figure, Section, Table, Text
from neuronbench.report.requests import requests_of

PLOTLY_SHA256 = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Everything a report can meet. Only to be read."""
    project = Project(tmp_path_factory.mktemp("filled"))
    fill(project)
    return project


@pytest.fixture(scope="module")
def document(filled: Project) -> Document:
    return build.document(filled.content())


@pytest.fixture(scope="module")
def page(document: Document) -> str:
    return html.render(document)


def section(document: Document, anchor: str) -> Section:
    return next(each for each in document.sections if each.anchor == anchor)


def table(blocks: Any, title: str) -> Table:
    return next(block for block in blocks if isinstance(block, Table) and block.title.startswith(title))


def figure(blocks: Any, title: str) -> Figure:
    return next(block for block in blocks if isinstance(block, Figure) and title in block.title)


def column(found: Table, name: str) -> list[str]:
    index = list(found.columns).index(name)
    return [cell.text if isinstance(cell, Cell) else cell for cell in (row[index] for row in found.rows)]


# --------------------------------------------------------------------------------------------------------------------
# what may be quoted


def test_only_valid_records_are_headlines_and_the_others_stand_apart_with_their_gates(document: Document) -> None:
    blocks = section(document, "lane-serving").blocks
    headline = table(blocks, "Headline")
    assert column(headline, "point") == ["c1", "c4", "c8", "c16"]
    assert not headline.marks
    for title, name, mark in (
        ("Provisional", "c32", "provisional"),
        ("Invalid", "c64", "invalid"),
        ("Simulated", "c2", "simulated"),
        ("Imported", "tool.x", "imported"),
    ):
        found = table(blocks, title)
        assert column(found, "point") == [name]
        assert found.marks == [mark]
        (row,) = found.rows
        assert any(isinstance(cell, Cell) and mark in cell.marks for cell in row), "marked at the row too"
    assert column(table(blocks, "Provisional"), "gates") == ["host_contended"]
    told = " ".join(line for block in blocks if isinstance(block, Text) for line in block.lines)
    assert "invalid: client_lag, 1 record: 31.5 ms (limit 5)" in told


def test_of_repeats_stands_the_median_with_the_least_and_the_most(project: Project) -> None:
    for repeat, rate in enumerate((100.0, 340.0, 120.0), start=1):
        project.put(point(concurrency=4), *serving(rate), repeat=repeat)
    content = project.content()
    (row,) = content.rows
    cell = lanes.value_cell(row, "output_throughput_tok_s", content)
    assert (cell.text, cell.sub) == ("120.0", "100.0…340.0")
    record = orjson.loads((project.root / unquote(cell.href)).read_bytes())
    assert record["metrics"]["output_throughput_tok_s"]["value"] == 120.0, "the link is that of the median repeat"


def test_every_repeat_of_a_row_has_a_link_the_median_first(project: Project) -> None:
    for repeat, rate in enumerate((100.0, 340.0, 120.0), start=1):
        project.put(point(concurrency=4), *serving(rate, ttft=rate), repeat=repeat)
    for repeat in range(1, 10):
        project.put(point(concurrency=8), *serving(float(repeat), ttft=float(repeat)), repeat=repeat)
    content = project.content()
    few, many = (lanes._links(row, content) for row in content.rows)
    assert ([link.text for link in few.links], few.text) == (["r3", "r1", "r2"], "")
    assert [(project.root / unquote(link.href)).parent.name[-4:] for link in few.links] == ["--r3", "--r1", "--r2"]
    assert (len(many.links), many.text) == (lanes.LINKS, f"and {9 - lanes.LINKS} more")
    shown, written = html._Pen(stills=False).cell(few, False), markdown._cell(few)
    for link in few.links:
        assert (
            f'<a href="{link.href}" title="20261101-000001-0001/{Path(link.href).parent.name}">{link.text}</a>' in shown
        )
        assert f"[{link.text}]({link.href})" in written


def test_one_repeat_shows_the_bounds_of_its_own_requests(project: Project) -> None:
    project.put(point(concurrency=4), *serving(ttft=50.0))
    content = project.content()
    cell = lanes.value_cell(content.rows[0], "ttft_p50_ms", content)
    assert (cell.text, cell.sub) == ("50.00", "[49.00, 51.00]")
    assert "one repeat" in cell.title


def test_a_repeat_whose_percentile_falls_on_failures_is_not_left_out_of_the_median(project: Project) -> None:
    unbounded = metric("ttft", None, stat="p50", n=400, note="unbounded: it falls on failed requests")
    project.put(point(concurrency=4), metric("ttft", 50.0, stat="p50", n=400), repeat=1)
    project.put(point(concurrency=4), unbounded, repeat=2)
    content = project.content()
    assert lanes.value_cell(content.rows[0], "ttft_p50_ms", content).text == "∞"


def test_repeats_of_another_environment_or_standing_are_no_repeats(project: Project) -> None:
    gate = Gate(id="client_lag", passed=False)
    project.put(point(concurrency=4), *serving(1.0), repeat=1)
    project.put(point(concurrency=4), *serving(2.0), repeat=2, facts={"host.cores": 64})
    project.put(point(concurrency=4), *serving(3.0), repeat=3, gates=[gate])
    document = build.document(project.content())
    headline = table(section(document, "lane-serving").blocks, "Headline")
    assert column(headline, "env") == ["E1", "E2"]
    assert column(headline, "repeats") == ["1 of 2", "1"]
    differ = table(section(document, "environment").blocks, "In what the 2 environments differ")
    assert ["host.cores", "2", "64"] in [[c.text if isinstance(c, Cell) else c for c in row] for row in differ.rows]


def test_a_lane_without_a_valid_record_says_that_nothing_may_be_quoted(project: Project) -> None:
    project.put(point(concurrency=4), *serving(), gates=[Gate(id="client_lag", passed=False)])
    document = build.document(project.content())
    first = section(document, "lane-serving").blocks[0]
    assert isinstance(first, Text)
    assert "no number to quote" in first.lines[0]
    assert any("no number on this page may be quoted" in line for line in document.warnings)


def test_what_a_record_says_of_itself_is_told(project: Project) -> None:
    project.put(
        point(concurrency=4), *serving(), notes=["random weights (seed 3) on the true architecture: speed only"]
    )
    blocks = section(build.document(project.content()), "lane-serving").blocks
    told = [line for block in blocks if isinstance(block, Text) for line in block.lines]
    assert "note of c4: random weights (seed 3) on the true architecture: speed only" in told


def test_failures_stand_by_class_with_their_causal_line_and_log(document: Document) -> None:
    blocks = section(document, "failures").blocks
    (row,) = table(blocks, "1 failure").rows
    kind, phase, _, line, remedy, receipt = (cell if isinstance(cell, Cell) else Cell(text=cell) for cell in row)
    assert (kind.text, phase.text) == ("host_oom", "boot")
    assert line.text.startswith("Killed <script>")
    assert line.href.endswith("server.log")
    assert remedy.text.startswith("smaller")
    assert [link.href.endswith("record.json") for link in receipt.links] == [True]
    assert column(table(blocks, "Not measured"), "outcome") == ["skipped"]


def test_a_failure_that_was_simulated_says_so(project: Project) -> None:
    error = Failure(kind="device_lost", phase="window", message="gone")
    project.put(point(concurrency=4), outcome=Outcome.ERROR, error=error, provenance=Provenance.SIMULATED)
    ((kind, *_),) = table(section(build.document(project.content()), "failures").blocks, "1 failure").rows
    assert isinstance(kind, Cell)
    assert (kind.text, kind.marks) == ("device_lost", ["simulated"])


# --------------------------------------------------------------------------------------------------------------------
# limits


def test_what_a_page_has_no_room_for_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in ((lanes, "ROWS", 20), (curves, "POINTS", 8), (markdown, "ROWS", 5)):
        monkeypatch.setattr(module, name, value)
    for number in range(1, 28):
        project.put(point(concurrency=number), *serving(float(number)))
    document = build.document(project.content())
    blocks = section(document, "lane-serving").blocks
    headline = table(blocks, "Headline")
    assert (len(headline.rows), headline.omitted) == (20, 7)
    assert any("7 more points are not in this table" in note for note in headline.notes)
    curve = figure(blocks, "latency over throughput")
    most = max(len(trace.x) for panel in curve.panels for trace in panel.traces)
    assert 2 < most <= 8
    assert any(f"{most} of 27 points are drawn" in note for note in curve.notes)
    assert "15 more rows: the HTML report has them" in markdown.render(document)


# --------------------------------------------------------------------------------------------------------------------
# curves


def series(project: Project, places: list[tuple[int, float, float]], **fields: Any) -> curves.Series:
    for concurrency, rate, ttft in places:
        project.put(point(concurrency=concurrency), *serving(rate, ttft), **fields)
    content = project.content()
    (one,) = curves.series_of(content.rows, curves.SHAPES[0], content)
    return one


def test_the_knee_is_where_throughput_over_latency_is_largest(project: Project) -> None:
    places = [(1, 100.0, 50.0), (4, 390.0, 60.0), (8, 520.0, 400.0), (16, 530.0, 900.0)]
    found = curves.knee(series(project, places), curves.SHAPES[0])
    assert isinstance(found, curves.Knee)
    best = max(places, key=lambda place: place[1] / (place[2] + 31 * 10.0))
    assert found.row.point.params["concurrency"] == best[0] == 4
    assert not found.at_end


def test_a_knee_at_the_end_of_the_ladder_says_that_nothing_was_measured_beyond(project: Project) -> None:
    found = curves.knee(series(project, [(1, 100.0, 50.0), (2, 200.0, 50.0), (4, 400.0, 50.0)]), curves.SHAPES[0])
    assert isinstance(found, curves.Knee)
    assert found.at_end == "above"


def test_no_knee_of_what_may_not_be_quoted(project: Project) -> None:
    lag = [Gate(id="client_lag", passed=False)]
    places = [(1, 100.0, 50.0), (4, 390.0, 60.0), (8, 520.0, 400.0)]
    assert curves.knee(series(project, places, gates=lag), curves.SHAPES[0]) == "no knee: 0 valid loads, 3 needed"


def test_the_frontier_is_all_that_nothing_dominates() -> None:
    draw = random.Random(3)
    for _ in range(50):
        places = [(float(draw.randint(0, 9)), float(draw.randint(0, 9))) for _ in range(draw.randint(1, 12))]
        dominated = {
            one for one, other in itertools.product(places, places)
            if other != one and other[0] >= one[0] and other[1] >= one[1]
        }  # fmt: skip
        assert frontier.frontier(places) == sorted(set(places) - dominated)


def test_users_against_cores_has_only_valid_points_on_its_frontier(document: Document) -> None:
    found = figure(section(document, "lane-serving").blocks, "tok/s per core")
    (panel,) = found.panels
    line = next(trace for trace in panel.traces if trace.name == "frontier")
    assert max(line.x) < 300, "8,888 simulated tok/s on 2 cores are not on the frontier"
    drawn = {trace.symbol for trace in panel.traces if trace.mode == "markers"}
    assert drawn == {"dot", "open", "diamond", "square"}
    assert set(found.marks) == {"provisional", "simulated", "imported"}
    assert "1 invalid point is not drawn: see the table of invalid ones." in found.notes


def test_a_distribution_ends_below_one_by_the_share_of_failures() -> None:
    many = requests_of(requests(200, failed=20))
    x, y = samples.cumulative(many, many.ttft_ms, with_failures=True)
    counted = many.counted
    failed = int((counted & ~many.ok).sum())
    assert failed > 0
    assert y[-1] == pytest.approx(1 - failed / counted.sum())
    assert x == sorted(x)
    assert samples.cumulative(many, many.ttft_ms, with_failures=False)[1][-1] == 1.0


def test_telemetry_is_on_the_clock_of_the_requests() -> None:
    many = requests_of(requests(40))
    panels = samples.telemetry_panels(telemetry(), many.origin_ns)
    assert [panel.y for panel in panels] == ["process CPU %", "resident GiB"]
    assert panels[0].traces[0].x == pytest.approx(np.arange(6) / 2)
    assert panels[1].traces[0].y[0] == 1.0


def test_losses_that_are_not_finite_are_told(document: Document) -> None:
    found = figure(section(document, "lane-lora_sft".replace("_", "-")).blocks, "training loss")
    assert any("not finite from step 7" in note for note in found.notes)
    assert any(value is None for trace in found.panels[0].traces for value in trace.y)


# --------------------------------------------------------------------------------------------------------------------
# cost and roofline


def test_a_block_has_two_costs_and_other_prices_one(project: Project) -> None:
    project.put(
        point(backend="trn2", concurrency=4), *serving(500.0), facts={"backend.instance_type": "trn2.3xlarge"},
        workload={"window": {"totals": {"generation_tokens": 250_000}}},
    )  # fmt: skip
    content = project.content()
    found = table(costs.dollars(content.rows, content), "Cost")
    block = next(price for price in prices("trn2.3xlarge") if price.kind == "capacity_block" and price.block_usd)
    row = next(row for row, price in zip(found.rows, prices("trn2.3xlarge"), strict=True) if price == block)
    hourly, whole = (cell.sort for cell in row[-2:] if isinstance(cell, Cell))
    assert hourly == pytest.approx(block.usd_per_hour / 3600 / 500 * 1e6)
    assert block.block_usd is not None
    assert whole == pytest.approx(block.block_usd / 0.25)
    assert any("Capacity Block two numbers" in note for note in found.notes)


def test_without_a_price_there_is_no_cost(project: Project) -> None:
    project.put(point(concurrency=4), *serving())
    content = project.content()
    (told,) = costs.dollars(content.rows, content)
    assert isinstance(told, Text)
    assert told.lines == ["no price known: nothing says on which instance (1 point)."]


def test_a_served_model_lies_where_arithmetic_says(project: Project) -> None:
    facts = {"model": {"parameter_count": 1_000_000}}
    project.put(point(concurrency=4), *serving(200.0, in_flight=4.0), resource=facts)
    floor = [metric("memory_bandwidth", 10.0, stat="max"), metric("matmul_rate", 40.0, stat="max")]
    project.put(point("host", "floor"), *floor)
    content = project.content()
    row = next(row for row in content.rows if row.point.lane == "serving")
    record = content.source.record(row.readings[0])
    assert record is not None
    place = roofline.place(record)
    assert isinstance(place, roofline.Place)
    assert place.flops == 2 * 1_000_000 * 200
    assert place.intensity == 2 * 4 / 2
    found = table(roofline.roofline(content), "Places")
    assert column(found, "nearer roof") == ["arithmetic"], "the ridge is at 40 / 10, which is no more than 4"
    (share,) = column(found, "share of it")
    assert share == f"{100 * 4e8 / 40e9:.3g}%"


def test_a_chip_s_roof_is_that_of_the_cores_that_were_used(project: Project) -> None:
    project.put(
        point(backend="trn1", concurrency=4), *serving(), facts={"backend.instance_type": "trn1.32xlarge"},
        spec={"engine_args": {"tensor_parallel_size": 8}},
    )  # fmt: skip
    content = project.content()
    record = content.source.record(content.rows[0].readings[0])
    assert record is not None
    found = roofline.roof(record, {})
    assert isinstance(found, roofline.Roof)
    assert found.flops == pytest.approx(190e12 * 8 / 2)
    assert found.bandwidth == pytest.approx(880.5e9 * 8 / 2)
    assert "8 of 32 cores" in found.name


# --------------------------------------------------------------------------------------------------------------------
# the page


class Parsed(HTMLParser):
    """Elements and attributes as a browser would see them, without running anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self.text = ""
        self._script: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "script":
            self._script = dict(attrs)

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))
            self._script = None
        else:
            self.text += data


def test_nothing_of_a_receipt_becomes_markup(page: str) -> None:
    parsed = Parsed(page)
    assert "img" not in parsed.tags
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    code = [text for attributes, text in parsed.scripts if attributes.get("type") != "application/json"]
    assert len(code) == 2, "plotly and the page's own"
    links = [value for tag, name, value in parsed.attributes if (tag, name) == ("a", "href")]
    assert links
    assert not [link for link in links if ":" in link.partition("#")[0].partition("?")[0]], "no scheme anywhere"
    for text in HOSTILE:
        assert text in parsed.text, "it is shown as what it is"


def test_the_policy_lets_the_page_run_its_own_scripts_and_nothing_else(page: str) -> None:
    parsed = Parsed(page)
    metas = [value for tag, name, value in parsed.attributes if (tag, name) == ("meta", "content")]
    policy = next(value for value in metas if "script-src" in value)
    allowed = re.search(r"script-src ([^;]*)", policy)
    assert allowed is not None
    digests = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for attributes, text in parsed.scripts
        if attributes.get("type") != "application/json"
    }
    assert set(allowed[1].split()) == digests
    assert "default-src 'none'" in policy


def test_every_link_leads_to_a_receipt_or_into_the_page(filled: Project, page: str) -> None:
    parsed = Parsed(page)
    ids = {value for _, name, value in parsed.attributes if name == "id"}
    links = {value for tag, name, value in parsed.attributes if (tag, name) == ("a", "href")}
    assert len(links) > 20
    for link in links:
        if link.startswith("#"):
            assert link[1:] in ids
        else:
            assert (filled.root / unquote(link)).is_file(), link
    assert len(ids) == len([1 for _, name, _ in parsed.attributes if name == "id"]), "ids are unique"


def test_figures_have_a_picture_for_paper_in_the_colours_of_the_page(document: Document, page: str) -> None:
    figures = [block for each in document.sections for block in each.blocks if isinstance(block, Figure)]
    assert len(figures) >= 8
    assert page.count('role="img"') == len(figures)
    assert "var(--c0)" in page
    assert "#0102" not in page, "every placeholder of a colour has become a variable"


def test_plotly_is_the_file_that_was_looked_at() -> None:
    assets = resources.files("neuronbench.report.page") / "assets"
    assert hashlib.sha256((assets / html.PLOTLY).read_bytes()).hexdigest() == PLOTLY_SHA256
    assert "MIT" in (assets / "plotly-LICENSE.txt").read_text(encoding="utf-8")
    for name in (html.PLOTLY, "page.js"):
        assert "</script" not in (assets / name).read_text(encoding="utf-8").lower()


def test_a_report_without_figures_carries_no_plotly(project: Project) -> None:
    project.put(point(concurrency=1), outcome=Outcome.SKIPPED, reason="no hardware")
    text = html.render(build.document(project.content()))
    assert len(text) < 60_000


def test_markdown_says_the_same_and_takes_nothing_for_markup(document: Document) -> None:
    text = markdown.render(document)
    assert "<script" not in text
    assert "<img" not in text
    assert "@everyone" not in text
    assert "**Headline**" in text
    assert "Provisional: not to be quoted until the named gates are settled `provisional`" in text
    headline = table(section(document, "lane-serving").blocks, "Headline")
    rate = next(cell for cell in headline.rows[0] if isinstance(cell, Cell) and cell.text == "82.00")
    assert f"[82.00]({rate.href})" in text


def test_imported_and_simulated_are_no_headline_even_when_nothing_else_is_there(project: Project) -> None:
    project.put(point(concurrency=4), *serving(), provenance=Provenance.IMPORTED)
    blocks = section(build.document(project.content()), "lane-serving").blocks
    assert not [block for block in blocks if isinstance(block, Table) and block.title == "Headline"]
    assert table(blocks, "Imported").marks == ["imported"]


def test_published_figures_stand_beside_the_point_with_what_is_odd_about_them(project: Project) -> None:
    row = next(row for row in published.rows() if published.findings(row))
    told = [
        {"stat": "throughput", "published": 40.74, "unit": "items/s", "key": "throughput_items_s"},
        {"stat": "latency_p50", "published": 392.0, "unit": "ms", "key": "latency_p50_ms", "why": "another instance"},
    ]
    ratio = metric("measured_over_published", 0.5, stat="throughput", n=40, note="throughput_items_s / 40.74")
    none = metric("measured_over_published", None, stat="latency_p50", note="another instance")
    workload = {"published": {**published.described(row), "compared": told}}
    project.put(point("encoder", "encoder", batch_size=1), ratio, none, workload=workload)
    document = build.document(project.content())
    found = table(section(document, "published").blocks, "Beside published figures")
    assert column(found, "model there") == [row.model] * 2
    assert column(found, "published") == ["40.74 items/s", "392 ms"]
    assert column(found, "measured / published") == ["0.500", "not compared"]
    ids = ", ".join(finding.id for finding in published.findings(row))
    assert column(found, "findings") == [ids] * 2
    assert all(any(finding.text in note for note in found.notes) for finding in published.findings(row))


STRANGE: list[Any] = [
    None,
    "",
    "x" * 50,
    -1,
    0,
    1e308,
    10**400,
    True,
    [],
    [[]],
    {},
    {"a": {"b": [1]}},
    ["<b>"],
    "\ud800",
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [place for key, item in inside for place in places(item, (*path, key))]


def test_no_receipt_however_strange_breaks_the_report_of_the_others(project: Project) -> None:
    import json

    training = {"job": {"micro_batch": 1}, "flops": {"per_token": 6e8, "trainable": 10, "frozen": 5, "sequence": 64}}
    workload = {
        "published": published.described(published.rows()[0]),
        "training": [training], "loops": [{"workers": 2}],
        "window": {"start_ns": 1, "end_ns": 2, "totals": {"generation_tokens": 5}},
    }  # fmt: skip
    numbers = [
        *serving(),
        metric("train_throughput", 9.0, n=3),
        metric("measured_over_published", 0.5, stat="throughput"),
    ]
    folder = project.put(
        point(concurrency=4), *numbers, workload=workload, facts={"backend.instance_type": "trn2.3xlarge"},
        resource={"model": {"parameter_count": 9}, "artifact": {"cache": "hit"}},
        spec={"engine_args": {"tp_degree": 2}},
        gates=[Gate(id="g", passed=False, observed=1.0, limit=2)],
    )  # fmt: skip
    project.put(point(concurrency=8), *serving(222.0))
    whole = (folder / "record.json").read_text(encoding="utf-8")
    draw = random.Random(5)
    told = 0
    everywhere = places(json.loads(whole))
    for place in everywhere:
        document = json.loads(whole)
        parent = document
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = draw.choice(STRANGE)
        (folder / "record.json").write_text(json.dumps(document), encoding="utf-8")
        content = project.content()
        made = build.document(content)
        assert "222.0" in html.render(made, stills=False).encode().decode(), place
        markdown.render(made).encode()
        told += bool(content.left_out)
    assert 0 < told < len(everywhere), "some are told and left out, others are shown as far as they go"
