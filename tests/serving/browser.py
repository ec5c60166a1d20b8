"""The page of a server in headless Chromium, where one is installed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # in every test process it would take half a second
    from playwright.sync_api import Locator, LocatorAssertions, Page

BROWSER = next(
    (found for name in ("chromium", "google-chrome", "chromium-browser") if (found := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
MS = 60_000


def expect(seen: Locator) -> LocatorAssertions:
    """What must come to be true of a part of the page, as Playwright's own says it."""
    from playwright.sync_api import expect as of_playwright

    return of_playwright(seen)


def opened(page: Page, url: str) -> list[str]:
    """Open the page; returns the errors that it will report."""
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    return errors


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def copied(page: Page) -> str:
    """What the page copied last."""
    page.get_by_text("Copied").wait_for(timeout=MS)
    page.context.grant_permissions(["clipboard-read"])
    return str(page.evaluate("navigator.clipboard.readText()"))
