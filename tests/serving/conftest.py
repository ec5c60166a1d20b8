"""A server that several tests of a file ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.serving.browser import BROWSER
from tests.serving.running import Server, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of the embedded pair with trees, greedy unless a request says otherwise."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=BROWSER) as browser:
        yield browser
