"""The page at /: what a browser may let it do, and a chat in headless Chromium."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from specrun.engine.request import Request
from specrun.llama import TargetContext
from specrun.llama.context import Logits
from specrun.sampling import SamplingParameters
from specrun.serving.request_fields import Defaults
from specrun.speculation.method import OFF
from specrun.speculation.tree import TokenTree
from tests.serving.running import Access, Server, content, running
from tests.waiting import wait_until

BROWSER = next(
    (found for name in ("chromium", "google-chrome", "chromium-browser") if (found := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
MS = 60_000
ENDLESS = Defaults(Request(sampling=SamplingParameters(temperature=0)), seed=0)


def test_only_its_own_script_may_run(server: Server) -> None:
    response = server.client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.search(r"script-src 'sha256-[\w+/=]+';", policy)
    assert not re.search(r"(?:src|href)=|https?://(?!www\.w3\.org/2000/svg)", response.text)


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=BROWSER) as browser:
        yield browser.new_page()


def opened(page: Page, url: str) -> list[str]:
    """Open the page; returns the errors that it will report."""
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    return errors


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


@needs_browser
@pytest.mark.slow
def test_a_chat_shows_the_answer_its_speed_and_the_last_tree(server: Server, browser_page: Page) -> None:
    page = browser_page
    errors = opened(page, server.url)
    expect(page.locator("#model")).to_have_text("small", timeout=MS)
    ask(page, "def read_config(path):")
    expect(page.locator("#numbers")).to_contain_text("tokens a pass", timeout=MS)
    expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=MS)
    first = page.locator(".assistant").inner_text()
    assert first.strip() == content(server.chat("def read_config(path):")).strip()
    assert page.locator("#tree svg text.kept").count() >= 1
    assert page.locator("#tree svg text").count() > 3
    ask(page, "def main():")
    expect(page.locator(".assistant")).to_have_count(2, timeout=MS)
    expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=MS)
    cached = re.search(r"(\d+) of \d+ tokens of the prompt", page.locator("#numbers").inner_text())
    assert cached
    assert int(cached[1]) > 20
    assert errors == []


@needs_browser
@pytest.mark.slow
def test_stop_ends_the_generation(endless: Path, browser_page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    score = TargetContext.score

    def slowly(target: TargetContext, tree: TokenTree) -> Logits:
        time.sleep(0.02)  # else the text is at its end before a busy browser clicks
        return score(target, tree)

    monkeypatch.setattr(TargetContext, "score", slowly)
    with running(endless, plan=OFF.plan(), ctx_size=8192, defaults=ENDLESS) as server:
        page = browser_page
        opened(page, server.url)
        ask(page, "x")
        expect(page.locator(".assistant")).to_contain_text("la lo", timeout=MS)
        page.get_by_role("button", name="Stop").click()
        wait_until(lambda: not server.service.queue.n_running, "the answer ends")
        expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=MS)


@needs_browser
@pytest.mark.slow
def test_the_page_asks_for_the_key(script: Path, browser_page: Page) -> None:
    with running(script, plan=OFF.plan(), access=Access(key="secret")) as server:
        page = browser_page
        opened(page, server.url)
        expect(page.locator(".error")).to_contain_text("API key", timeout=MS)
        page.get_by_label("API key").fill("secret")
        page.get_by_label("API key").press("Tab")
        expect(page.locator("#model")).to_have_text("small", timeout=MS)
        ask(page, "x")
        expect(page.locator(".assistant")).to_contain_text("one two é end", timeout=MS)
