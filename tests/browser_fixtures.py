"""A real browser for tests of web pages: the system's Chromium, driven by Playwright.

`web` opens pages of its own for each test and remembers what went wrong in them. A test that has looked at a page asks
`web.problems()`; screenshots stay in `build/screenshots/`, or in the folder `NEURONBENCH_SCREENSHOTS` names.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

REQUIRED: Final = "NEURONBENCH_BROWSER_REQUIRED"
"""Set by CI: there a missing browser is a failure, not a reason to skip."""
SHOTS: Final = Path(os.environ.get("NEURONBENCH_SCREENSHOTS") or Path(__file__).parent.parent / "build" / "screenshots")
WAIT_MS: Final = 20_000


class Web:
    """Pages in one window; what they complain of is kept."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self._problems: list[str] = []

    def open(self, url: str) -> Page:
        """A new page at `url`, loaded."""
        page = self.context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._problems.append(f"exception: {error}"))
        page.on("requestfailed", self._request)
        page.goto(url)
        return page

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._problems.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # given up by the page itself, as when it goes on to the next
            self._problems.append(f"request: {request.url}: {request.failure}")

    def problems(self, explained: Sequence[str] = ()) -> list[str]:
        """Errors on the console, exceptions and failed requests, but for those that match a pattern of `explained`."""
        return [text for text in self._problems if not any(re.search(pattern, text) for pattern in explained)]

    def shot(self, page: Page, name: str, *, full: bool = False) -> Path:
        """Keep a picture of what is to be seen (or of the whole page) as `<name>.png`."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"{name}.png", full_page=full)
        return SHOTS / f"{name}.png"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, shared by a module's tests: Playwright's event loop must be gone before others run theirs."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        lack = "no browser: install Debian's chromium, and playwright by `make harness`"
        if os.environ.get(REQUIRED):
            pytest.fail(f"{lack} ({REQUIRED} is set)", pytrace=False)
        pytest.skip(lack)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def web(browser: Browser) -> Iterator[Web]:
    """A window of 1400 × 1000 pixels without cookies or history of another test."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    yield Web(context)
    context.close()
