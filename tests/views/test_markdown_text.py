"""Markdown on a terminal: what is no mark of Markdown is on the screen, in its order, whatever the text is."""

from __future__ import annotations

import io
import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from specrun.display_text import visible
from specrun.views.markdown_text import MarkdownText
from specrun.views.output import LiteralConsole

# Characters that can be marks, and those that are drawn for them. Everything else has to be on the screen. So have
# brackets of HTML, the numbers of lists and the parentheses of addresses, and backslashes but those before bars.
MARKS = set("*_`~#-+=|:[]!>") | set("•▌─")

LINES = [
    "Use a List<String> and press <Enter>, and replace <your name>",
    '<div class="x">inner</div>',
    "<br/> <kbd>Ctrl</kbd> <https://one.org/%20> <me@one.org>",
    "<!-- a comment",
    "-->",
    "<?php ?> <![CDATA[x]]>",
    "[^1]: a note",
    '[one]: http://two.org "three"',
    "see [one] and [two][one] and [^1]",
    "[a *link* `here`](http://one.org/ä_%20?a=1&amp;b=2 'title')",
    "[](http://empty.org) [x](<a b> (c)) [javascript](javascript:alert(1))",
    '[![badge](b.svg)](c.html "d") ![an image](e.png)',
    "5. five",
    "7. seven",
    "007) eight",
    "- [ ] to do",
    "   * nested",
    "- - - - - - - - - - - - - - - deep",
    "> > > > > > > > > > > > > > > > > > > > > > deep",
    "> quote",
    "| a | b |",
    "|---|:-:|",
    "| 1 | 2 | 3 | 4 |",
    "| `x|y` | x\\|y",
    "```python title=x",
    "```",
    "~~~~ more <than> a word",
    "    indented",
    "\tdef f(): return 1 \\",
    "&lt; &amp;amp; &copy; &#35; &nbsp;",
    "\\* \\a \\\\ \\<b>",
    "**bold** *it* ~~gone~~ ~x~ a*b*c __init__ snake_case",
    "# Title #",
    "Setext",
    "===",
    "---",
    ':smile: "quotes" -- (c) ... 1986. A year',
    "漢字かな交じり文 e\u0301 🌆",
    "",
    "",
]
TABLE = "| a | b |\n|---|:-:|\n| 1 | 2 | 3 | 4 |\n| `x|y` | x\\|y\nz\n|\n"
LINE = st.tuples(
    st.sampled_from(["", "", "- ", "3. ", "> ", "    ", "| "]),
    st.one_of(st.sampled_from([*LINES, TABLE]), st.text(max_size=30)),
).map("".join)
TEXTS = st.one_of(
    st.lists(LINE, max_size=12).map("\n".join),
    st.text(alphabet="ab1 \n\t*_`~#-+=|:[]!\\<>().&;\"'", max_size=60),
)


def drawn(text: str, width: int) -> str:
    file = io.StringIO()
    console = LiteralConsole(file=file, force_terminal=True, color_system=None, width=width)
    console.print(MarkdownText(visible(text)))
    return file.getvalue()


def kept(text: str) -> list[str]:
    """The characters that have to be seen; a byte order mark cannot be."""
    text = re.sub(r"\\+\|", "|", text)
    return [one for one in text if one not in MARKS and not one.isspace() and one != "\ufeff"]


@pytest.mark.slow
@given(TEXTS)
@example("- " * 40 + "deep")
@example("5. a\n7. b\n\n9. c")
def test_every_character_that_is_no_mark_is_drawn_in_order(text: str) -> None:
    assert "".join(kept(drawn(text, 2000))) == "".join(kept(visible(text)))


@pytest.mark.slow
@given(TEXTS, st.integers(20, 80))
@example("|a|b|c|d|e|f|g|\n|-|-|-|-|-|-|-|\n|1 one word|2|3|4|5|6|supercalifragilistic|", 40)
def test_every_character_is_drawn_on_a_narrow_screen(text: str, width: int) -> None:
    """Lines of a table's cells stand beside each other, so that only the number of each character is the same."""
    screen = drawn(text, width)
    assert Counter(kept(screen)) == Counter(kept(visible(text)))
    assert all(cell_len(line) <= width for line in screen.split("\n"))


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "22", "(b + c)", "f(x)", "x[i]", "β", "_d", "e_"]),
            st.sampled_from(["*", "**", "_", "__", "\\", "/*", "\\*"]),
        ),
        max_size=8,
    ).map(lambda parts: "".join(map("".join, parts)) + "z")
)
def test_formulas_names_and_paths_are_drawn_as_they_are_written(text: str) -> None:
    assert drawn(f"so {text}", 2000) == f"so {text}\n"


@pytest.mark.parametrize(
    ("text", "screen"),
    [
        ("Use a `List<String>` and press <Enter>", "Use a List<String> and press <Enter>"),
        ("Replace <your name>.", "Replace <your name>."),
        ("<div>\n\n**a**\n\n</div>", "<div>\n\na\n\n</div>"),
        ("5. five\n7. seven", " 5. five\n 7. seven"),
        ("9) nine\n10) ten", "  9) nine\n 10) ten"),
        ("- a\n  - [ ] b\n\n    c", " • a\n    • [ ] b\n      c"),
        ("-\n- a", " •\n • a"),
        ("[^1]: a note", "[^1]: a note"),
        ("[a *b*](http://c.org 'd')", "a b (http://c.org 'd')"),
        ("![a](b.svg)", "!a (b.svg)"),
        ("[![a](b.svg)](c)", "[!a (b.svg)](c)"),
        ("one\ntwo\\\nthree  \nfour", "one\ntwo\\\nthree\nfour"),
        ("# One\nTwo\n===", "One\n\nTwo"),
        ("> a\n> > b", "▌ a\n▌ ▌ b"),
        ("&lt; &amp; \\* \\a", "&lt; &amp; \\* \\a"),
        ("|a|\n|-|\n|1|2|", " a\n ────\n 1  2"),
        ("|a|\n|-|\n|1|2\\|", " a\n ─────\n 1  2|"),
        ("```py x=1\n<b>\n```", "py x=1\n\n<b>"),
        ("```\nif a:\n    b\n```", "if a:\n    b"),
        ('*a*, **b** (*c*) ***d***: "*e*"', 'a, b (c) d: "e"'),
        ("**.gitignore**, **src/**: 是**太**字", ".gitignore, src/: 是太字"),
        ("**A**/**B** **c**→d `x`*y*", "A/B c→d x*y*"),
        ("**/*.py, **/*.md, (*) and (*), h[k](e)", "**/*.py, **/*.md, (*) and (*), h[k](e)"),
        (r"\*a\* and \( x \), \[ y_1 \]", r"\*a\* and \( x \), \[ y_1 \]"),
        (r"C:\_new\*.txt, src/*.c lib/*.h, '*' and '*'", r"C:\_new\*.txt, src/*.c lib/*.h, '*' and '*'"),
        ("__init__.py, _x_, **kwargs, a ** b ** c", "__init__.py, _x_, **kwargs, a ** b ** c"),
    ],
)
def test_how_it_looks(text: str, screen: str) -> None:
    lines = [line.rstrip() for line in drawn(text, 60).splitlines()]
    assert "\n".join(lines).strip("\n") == screen
