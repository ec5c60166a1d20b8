"""The page at /: what a browser may let it do, and conversations in headless Chromium."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specrun.decoding.generation import Request
from specrun.llama import TargetContext
from specrun.llama.context import Logits
from specrun.sampling import SamplingParameters
from specrun.serving.request_fields import Defaults
from specrun.speculation.method import OFF
from specrun.speculation.tree import TokenTree
from tests.models import CHAT_TEMPLATE, scripted_llama
from tests.serving.browser import MS, ask, copied, expect, needs_browser, opened
from tests.serving.running import Access, Server, content, running
from tests.serving.templates import QWEN3
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ENDLESS = Defaults(Request(sampling=SamplingParameters(temperature=0)), seed=0)
ANSWER = "Use `List<String>`:\n\n```python\nprint(1)  # <b>\n```\n\n5. five\n7. <your name>\n"
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 800}


def test_only_its_own_files_may_run(server: Server) -> None:
    response = server.client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'; style-src 'self'" in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://|<style|style=|\son\w+=|<script(?! type=\"module\" src=)", response.text)
    files = re.findall(r'(?:src|href)="([^"]+)"', response.text)
    assert files == ["web/icon.svg", "web/style.css", "web/chat.js"]
    types = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    for name in [*files, "web/vendor/markdown-it.js", "web/vendor/highlight.js"]:
        file = server.client.get(f"/{name}")
        assert file.headers["content-type"].startswith(types[name.split(".")[-1]])
        assert file.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["nothing.js", "vendor", "vendor/LICENSES.txt", "../app.py", "%2e%2e/app.py", "", "/app.js"]
)
def test_nothing_else_is_given_out(server: Server, name: str) -> None:
    assert server.client.get(f"/web/{name}").status_code == 404


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a browser that has kept nothing."""
    with browser.new_context(viewport=DESKTOP) as context:
        yield context.new_page()


def send_button(page: Page) -> Locator:
    """Is there when nothing is being written."""
    return page.get_by_role("button", name="Send")


@needs_browser
@pytest.mark.slow
def test_a_chat_shows_the_answer_its_speed_and_the_last_tree(server: Server, page: Page) -> None:
    errors = opened(page, server.url)
    expect(page.locator("#model")).to_have_text("small", timeout=MS)
    ask(page, "def read_config(path):")
    expect(page.locator("#numbers")).to_contain_text("tokens a pass", timeout=MS)
    expect(send_button(page)).to_be_visible(timeout=MS)
    page.get_by_role("button", name="Copy answer").click()
    assert copied(page) == content(server.chat("def read_config(path):"))
    assert page.locator("#tree svg text.kept").count() >= 1
    assert page.locator("#tree svg text").count() > 3
    ask(page, "class Stack:")
    expect(page.locator(".assistant")).to_have_count(2, timeout=MS)
    expect(send_button(page)).to_be_visible(timeout=MS)
    cached = re.search(r"(\d+) of \d+ tokens of the prompt", page.locator("#numbers").inner_text())
    assert cached
    assert int(cached[1]) > 20
    assert errors == []


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model thinks, and then answers with Markdown."""
    pieces = [b"<think>\nI think.\n", b"<b>Then</b>", b"\n</think>\n\n", ANSWER[:20].encode(), ANSWER[20:].encode()]
    file = tmp_path_factory.mktemp("page") / "thinker.gguf"
    scripted_llama(file, pieces, metadata={CHAT_TEMPLATE: QWEN3})
    with running(file, plan=OFF.plan(), ctx_size=2048, defaults=ENDLESS) as server:
        yield server


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"])
def test_thinking_is_folded_and_an_answer_is_drawn(
    thinker: Server, browser: Browser, size: dict[str, int], scheme: str
) -> None:
    is_phone = size is PHONE
    options = {"viewport": size, "color_scheme": scheme, "is_mobile": is_phone, "has_touch": is_phone}
    with browser.new_context(**options) as context:  # type: ignore[arg-type]
        page = context.new_page()
        errors = opened(page, thinker.url)
        page.get_by_label("Message", exact=True).fill("x")
        send_button(page).click()
        expect(page.get_by_role("button", name="Copy answer")).to_be_visible(timeout=MS)
        thought = page.get_by_text("<b>Then</b>")
        expect(thought).to_be_hidden()
        page.get_by_text("Thought", exact=True).click()
        expect(thought).to_be_visible()
        answer = page.locator(".assistant .markdown")
        assert answer.locator("p code").inner_text() == "List<String>"
        assert answer.locator("li").all_inner_texts() == ["5. five", "7. <your name>"]
        assert answer.locator("pre .hl-comment").inner_text() == "# <b>"
        page.get_by_role("button", name="Copy code").click()
        assert copied(page) == "print(1)  # <b>\n"
        assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
        white, black = "rgb(255, 255, 255)", "rgb(13, 17, 23)"
        expect(page.locator("body")).to_have_css("background-color", white if scheme == "light" else black)
        assert errors == []


@needs_browser
@pytest.mark.slow
def test_settings_are_sent_and_kept(thinker: Server, page: Page) -> None:
    opened(page, thinker.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_label("Maximum length").fill("3")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Close").click()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "x")
    body = sent.value.post_data_json
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}]
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (3, 0.5, 7)
    expect(page.get_by_text("It ends here because it has the maximum length.")).to_be_visible(timeout=MS)
    page.reload()
    assert page.get_by_label("Maximum length").input_value() == "3"
    assert page.get_by_label("System message").input_value() == "Be brief."


@needs_browser
@pytest.mark.slow
def test_conversations_are_kept_opened_and_deleted(thinker: Server, page: Page) -> None:
    opened(page, thinker.url)
    answered = page.get_by_role("button", name="Copy answer")
    ask(page, "the first <one>")
    expect(answered).to_be_visible(timeout=MS)
    page.reload()  # the address names the conversation
    expect(page.locator(".assistant .markdown")).to_contain_text("5. five")
    page.get_by_role("button", name="New chat").click()
    ask(page, "the second")
    expect(answered).to_be_visible(timeout=MS)
    kept = page.locator("#conversations .open")
    assert kept.all_inner_texts() == ["the second", "the first <one>"]
    kept.nth(1).click()
    expect(page.locator(".user")).to_have_text("the first <one>")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "and then")
    texts = [message["content"] for message in sent.value.post_data_json["messages"]]
    assert (texts[0], texts[1].strip(), texts[2]) == ("the first <one>", ANSWER.strip(), "and then")
    expect(answered).to_have_count(2, timeout=MS)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete “the first <one>”").click()
    expect(page.locator(".message")).to_have_count(0)
    assert kept.all_inner_texts() == ["the second"]
    page.reload()
    assert kept.all_inner_texts() == ["the second"]


@needs_browser
@pytest.mark.slow
def test_a_full_storage_drops_the_oldest_and_says_so(thinker: Server, page: Page) -> None:
    opened(page, thinker.url)
    page.evaluate(
        """() => {
            const old = {changed: 1, system: "", messages: [{role: "user", content: "old " + "x".repeat(1 << 20)}]};
            for (const id of "abcd") localStorage.setItem(`specrun.conversation.${id}`, JSON.stringify({...old, id}));
            for (let rest = 1 << 20, i = 0; rest; i++) {
                try { localStorage.setItem(`filler${i}`, "x".repeat(rest)) } catch { rest >>= 1 }
            }
        }"""
    )
    ask(page, "new")
    expect(page.get_by_role("alert")).to_contain_text("storage was full, so the oldest went: “old x", timeout=MS)
    expect(page.locator("#conversations .open").first).to_have_text("new")


@needs_browser
@pytest.mark.slow
def test_stop_keeps_what_was_written(endless: Path, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    score = TargetContext.score

    def slowly(target: TargetContext, tree: TokenTree) -> Logits:
        time.sleep(0.02)  # else the text is at its end before a busy browser clicks
        return score(target, tree)

    monkeypatch.setattr(TargetContext, "score", slowly)
    with running(endless, plan=OFF.plan(), ctx_size=8192, defaults=ENDLESS) as server:
        opened(page, server.url)
        ask(page, "x")
        expect(page.locator(".assistant")).to_contain_text("la lo", timeout=MS)
        page.get_by_role("button", name="Stop").click()
        wait_until(lambda: not server.service.queue.n_running, "the answer ends")
        expect(send_button(page)).to_be_visible(timeout=MS)
        page.reload()
        expect(page.locator(".assistant")).to_contain_text("la lo", timeout=MS)
        expect(page.get_by_text("Stopped.")).to_be_visible()


@needs_browser
@pytest.mark.slow
def test_the_page_asks_for_the_key(script: Path, page: Page) -> None:
    with running(script, plan=OFF.plan(), access=Access(key="secret")) as server:
        opened(page, server.url)
        expect(page.locator(".error")).to_contain_text("API key", timeout=MS)
        ask(page, "x")
        expect(page.locator(".error")).to_have_count(2, timeout=MS)
        expect(page.locator(".message:not(.error)")).to_have_count(0)
        assert (
            page.get_by_label("Message", exact=True).input_value() == "x"
        )  # nothing was answered, so it can be sent again
        page.get_by_label("API key").fill("secret")
        page.get_by_label("API key").press("Tab")
        expect(page.locator("#model")).to_have_text("small", timeout=MS)
        expect(page.locator(".error")).to_have_count(0)
        ask(page, "x")
        expect(page.locator(".assistant")).to_contain_text("one two é end", timeout=MS)
