"""The report as its readers have it, in a real browser: at a desk, on a phone, in the dark, on paper, script-less."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from browser_fixtures import SHOTS, Web
from report_receipts import Project, fill

from neuronbench.report.page import build, html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on everything there can be, hostile names included, at a desk's and a phone's width."""
    project = Project(tmp_path_factory.mktemp("report"))
    fill(project)
    path = project.root / "report.html"
    path.write_text(html.render(build.document(project.content())), encoding="utf-8")
    return path


class Reader:
    """Opens the report in windows of any kind; keeps what they ask of a network."""

    def __init__(self, browser: Browser, report: Path) -> None:
        self.browser, self.report = browser, report
        self.requests: list[str] = []
        self.windows: list[Web] = []

    def open(self, **kind: Any) -> Page:
        context = self.browser.new_context(**kind)
        context.on("request", lambda request: self.requests.append(request.url))
        web = Web(context)
        self.windows.append(web)
        return web.open(self.report.as_uri())

    def scrolled(self, page: Page) -> None:
        """To the end, so that every figure has come into view."""
        for number in range(page.locator("figure[data-figure]").count()):
            page.locator("figure[data-figure]").nth(number).scroll_into_view_if_needed()
        from playwright.sync_api import expect  # waiting in words of JavaScript would be against the page's policy

        expect(page.locator("figure[data-figure]:not(.drawn)")).to_have_count(0, timeout=20_000)

    @property
    def problems(self) -> list[str]:
        return [problem for window in self.windows for problem in window.problems()]


@pytest.fixture
def reader(browser: Browser, report: Path) -> Iterator[Reader]:
    opened = Reader(browser, report)
    yield opened
    for window in opened.windows:
        window.context.close()


def keep(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=SHOTS / f"report-{name}.png", full_page=True)


@pytest.mark.parametrize("kind", ["desk", "phone", "dark"])
def test_every_figure_is_drawn_and_nothing_is_complained_of(reader: Reader, kind: str) -> None:
    chosen = {"desk": {}, "phone": PHONE, "dark": {"color_scheme": "dark"}}[kind]
    page = reader.open(**chosen)
    reader.scrolled(page)
    figures = page.locator("figure[data-figure]")
    assert figures.count() >= 8
    for number in range(figures.count()):
        marks = figures.nth(number).locator(".plot .trace, .plot .point, .plot .bars path")
        assert marks.count() > 0, figures.nth(number).inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "only tables scroll sideways"
    keep(page, kind)
    assert reader.problems == []
    assert reader.requests == [reader.report.as_uri()], "the page asks nobody for anything"
    assert page.evaluate("window.hacked") is None


def test_colours_follow_the_reader_from_light_to_dark(reader: Reader) -> None:
    page = reader.open(color_scheme="light")
    reader.scrolled(page)

    from playwright.sync_api import expect

    paper, tick = page.locator("body"), page.locator(".plot .xtick text").first
    expect(paper).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(tick).to_have_css("fill", "rgb(31, 35, 40)")
    page.emulate_media(color_scheme="dark")
    expect(paper).to_have_css("background-color", "rgb(15, 19, 24)")
    expect(tick).to_have_css("fill", "rgb(230, 233, 237)")
    assert reader.problems == []


def test_links_lead_to_receipts(reader: Reader) -> None:
    page = reader.open()
    links = page.eval_on_selector_all("main a", "all => all.map(a => a.href)")
    there = {urlsplit(link)._replace(fragment="").geturl() for link in links}
    files = [Path(unquote(urlsplit(link).path)) for link in there]
    assert len(files) > 12
    assert all(file.is_file() for file in files)
    record = page.context.new_page()
    record.goto(next(link for link in there if link.endswith("record.json")))
    assert '"schema_version"' in record.content()


def test_a_click_on_a_point_opens_its_receipt(reader: Reader) -> None:
    page = reader.open(viewport={"width": 1280, "height": 900})
    reader.scrolled(page)
    figure = page.locator("figure", has_text="latency over throughput").first
    figure.scroll_into_view_if_needed()
    with page.context.expect_page() as opened:
        box = figure.locator(".plot .points path").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.locator(".hoverlayer .hovertext").first.wait_for()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.value.wait_for_load_state()
    assert opened.value.url.endswith("record.json")


def test_tables_can_be_sorted_and_searched(reader: Reader) -> None:
    page = reader.open()
    table = page.locator("#lane-serving table").first
    head = table.locator("th", has_text="output")

    def rates() -> list[float]:
        cells = table.locator("tbody tr td:nth-child(6)").all_inner_texts()
        return [float(text.split()[0]) for text in cells]

    column = table.locator("th").all_inner_texts().index(head.inner_text()) + 1
    assert column == 6
    head.locator("button").click()
    head.locator("button").click()
    assert rates() == sorted(rates(), reverse=True)
    assert len(set(rates())) == 4
    definitions = page.locator("#definitions")
    definitions.locator("summary").click()
    whole = definitions.locator("tbody tr:visible").count()
    definitions.get_by_label("filter rows").fill("time to first token")
    assert 0 < definitions.locator("tbody tr:visible").count() < whole


def test_paper_has_pictures_and_what_was_folded_away(reader: Reader) -> None:
    page = reader.open()
    reader.scrolled(page)
    folded = page.locator("details:not([open]) table").first
    assert not folded.is_visible()
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.pdf(path=SHOTS / "report.pdf", format="A4")
    assert not folded.is_visible(), "as it was, once it is printed"
    page.emulate_media(media="print")
    assert page.locator(".still svg").first.is_visible()
    assert not page.locator(".plot").first.is_visible()
    assert reader.problems == []


def test_without_scripts_there_are_pictures_tables_and_links(reader: Reader) -> None:
    page = reader.open(java_script_enabled=False)
    figures = page.locator("figure[data-figure]")
    assert page.locator("figure .still svg").count() == figures.count() >= 8
    assert page.locator("figure .still svg").first.is_visible()
    assert page.locator("#lane-serving table tbody tr").first.is_visible()
    keep(page, "without-scripts")
