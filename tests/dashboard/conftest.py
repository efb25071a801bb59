"""A real Chromium, and pages that must not complain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import chromium

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
PATIENCE = 60_000
expect.set_options(timeout=PATIENCE)


@pytest.fixture
def browser() -> Iterator[Browser]:
    place = chromium.find()
    if place is None:
        pytest.exit(chromium.MISSING, 1)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox"], timeout=PATIENCE)
        yield browser
        browser.close()


class Watched:
    """A page, and everything that it complained about."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def overflow(self) -> int:
        """Pixels by which the page is wider than the screen."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return found


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(viewport=DESKTOP, timezone_id="America/New_York", locale="en-GB")
    watched = Watched(context.new_page())
    yield watched
    context.close()
    assert watched.complaints == []
