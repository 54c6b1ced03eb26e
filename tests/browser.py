"""A Chromium for tests of the live page, where one is installed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.processes import until

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


def chromium() -> str:
    """Its path; skips the test where there is none."""
    named = os.environ.get("REPRISE_CHROMIUM", "")
    found = next(filter(None, map(shutil.which, (named, *NAMES) if named else NAMES)), None)
    if found is None:
        pytest.skip("no Chromium: `apt-get install chromium`, or name one with REPRISE_CHROMIUM")
    return found


@contextmanager
def opened_browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


class Tab:
    """A page of the browser that is kept from the network, and what went wrong in it.

    Attributes:
        elsewhere: addresses of other hosts that it has asked for.
        complaints: errors and warnings of its console.
    """

    def __init__(self, context: BrowserContext, base_url: str) -> None:
        self.base_url = base_url
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)

    def open(self, view: str = "overview", tab: str = "") -> None:
        """Shows a view, with what the service has told first; `tab` where the view has options."""
        self.page.goto(f"{self.base_url}/ui#{view}")
        until(lambda: self.told("!!(window.reprise && reprise.summary)"), what="a summary was told")
        self.page.wait_for_selector(f'nav a[href="#{tab or view}"][aria-current="page"]')

    def told(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.page.evaluate(expression)

    def is_wider_than_the_window(self) -> bool:
        found: bool = self.told("document.documentElement.scrollWidth > window.innerWidth")
        return found

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.base_url, "data:", "blob:")):
            self.elsewhere.append(request.url)
