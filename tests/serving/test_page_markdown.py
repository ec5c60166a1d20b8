"""What the page shows of an answer's Markdown: all of it but the marking, and never as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.serving.browser import needs_browser
from tests.serving.running import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [needs_browser, pytest.mark.slow]
# All that Markdown's own marking is made of, and what cannot be seen.
MARKING = re.compile(r"[\s\0\ufeff\\`*_~#>+\-=|[\]:]")
ELEMENTS = {
    *("P", "H1", "H2", "H3", "H4", "H5", "H6", "UL", "OL", "LI", "BLOCKQUOTE", "HR", "BR", "FIGURE", "FIGCAPTION"),
    *("PRE", "CODE", "SPAN", "A", "EM", "STRONG", "S", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD"),
}
# Draws a text as it grows, and returns the letters, the elements and the attributes of what is there in the end.
DRAW = """async (texts) => {
    const { Markdown } = await import("/web/markdown.js");
    const element = document.createElement("div"), markdown = new Markdown(element);
    for (const text of texts) markdown.show(text);
    for (const button of element.querySelectorAll("button")) button.remove();
    const all = [...element.querySelectorAll("*")];
    const names = all.flatMap((one) => one.getAttributeNames());
    return [element.textContent, [...new Set(all.map((one) => one.tagName))], [...new Set(names)], element.innerHTML];
}"""
PIECES = [
    *("a", "B ", "é", "7", " ", "  ", "\n", "\n\n", "\t", "    ", "\r\n", "\0", "🙂", "\u0627"),
    *("*", "**", "_", "`", "```", "~~~", "~~", "#", "# ", "> ", "- ", "+ ", "1. ", "5) ", "007. ", "---", "===", "\\"),
    *("| ", "|", "| a | b |\n| - | :-: |\n", "[", "](", ")", "![", "]: ", "[^1]", "[^1]: ", "[ref]: http://x.y 't'\n"),
    *("<", ">", "</", "<div>", "<script>", "<!--", "-->", "<?", "<![CDATA[", "<http://x.y>", "&amp;", "&#35;", "&"),
    *("http://x.y/ü?a=1&b=(2)", "https://", "javascript:alert(1)", "mailto:a@b.c", "www.x.y", "a@b.c", '"', "'", "$"),
    *("python", "html", "<b onclick=x>", "List<String>", "<your name>"),
]


@pytest.fixture(scope="module")
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        yield page


def seen(text: str) -> list[str]:
    return [character for character in text if not MARKING.match(character)]


def is_in_order(wanted: list[str], text: str) -> bool:
    rest = iter(text)
    return all(character in rest for character in wanted)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=25), st.integers(0, 25))
@example([">" * 150 + "deep"], 0)
@example(["- " * 150 + "deep"], 0)
@example(["| a | b |\n| - | - |\n| 1 | 2 | lost? |"], 0)
@example(["[a](<http://x y> (title))"], 0)
@example(["```python\nx = '&lt;'  # <b>\n```"], 0)
def test_every_visible_character_is_shown_in_order(page: Page, pieces: list[str], grown: int) -> None:
    text = "".join(pieces)
    shown, elements, attributes, _ = page.evaluate(DRAW, ["".join(pieces[:grown]), text])
    assert is_in_order(seen(text), shown), (text, shown)
    assert set(elements) <= ELEMENTS
    assert set(attributes) <= {"class", "dir", "href", "target", "rel", "style"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_a_text_that_grew_is_drawn_as_one_that_came_whole(page: Page, pieces: list[str]) -> None:
    texts = ["".join(pieces[:i]) for i in range(len(pieces) + 1)]
    assert page.evaluate(DRAW, texts) == page.evaluate(DRAW, texts[-1:])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.sampled_from("ab<>&*_`#|[]()\"'\\{}=;:/ \n\té"), max_size=60),
    st.sampled_from(["", "python", "html", "?"]),
)
def test_code_is_shown_to_the_letter(page: Page, code: str, language: str) -> None:
    shown, *_ = page.evaluate(DRAW, [f"~~~~{language}\n{code}\n~~~~"])
    assert shown == f"{language}{code}\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Use a List<String> and press <Enter>", "Use a List<String> and press <Enter>"),
        ("Replace <your name>", "Replace <your name>"),
        ("<div>\n<b>x</b>\n</div>", "<div><b>x</b></div>"),
        ("a <!-- comment --> b", "a <!-- comment --> b"),
        ("5. five\n7. seven", "5. five7. seven"),
        ("[^1]: a note\n\n[ref]: /x 'y'", "[^1]: a note[ref]: /x 'y'"),
        ("**bold** and `co<de>`", "bold and co<de>"),
        ("[here](https://x.y 'why') or https://x.y", "[here](https://x.y 'why') or https://x.y"),
        ('[here](https://x.y "why") or https://x.y', 'here (https://x.y "why") or https://x.y'),
        ("![picture](https://x.y/p.png)", "!picture (https://x.y/p.png)"),
        ("[x](javascript:alert(1))", "[x](javascript:alert(1))"),
        ("AT&amp;T &copy; &#35;", "AT&amp;T &copy; &#35;"),
    ],
)
def test_what_markdown_would_swallow(page: Page, text: str, shown: str) -> None:
    assert page.evaluate(DRAW, [text])[0] == shown
