"""Servers that several tests of a file ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from specrun.catalog import embedded
from specrun.speculation.method import OFF
from tests.models import CHAT_TEMPLATE, edited
from tests.serving.browser import BROWSER
from tests.serving.running import Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of the embedded pair with trees, greedy unless a request says otherwise."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=BROWSER) as browser:
        yield browser


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Servers of the embedded pair with another template: with trees, and without speculation."""
    file = edited(tmp_path_factory.mktemp("pair") / "pair.gguf", embedded.TARGET, {CHAT_TEMPLATE: request.param})
    with running(file) as trees, running(file, plan=OFF.plan()) as off:
        yield trees, off
