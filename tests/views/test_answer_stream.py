"""Answers as Markdown while they are written: what is finished, and that nothing is lost or shown twice."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyte
import pytest
from rich.console import Console

import specrun
from specrun.engine.completion import Completion
from specrun.views.answer_stream import finished_blocks, show_live, show_plain

TEXT = """# Title

A paragraph with `code` and **bold** words
over two lines.

1. first

   still first
2. second

```python
def f():

    return 1
```

The end."""


@pytest.fixture(scope="module")
def completion() -> Iterator[Completion]:
    with specrun.load(learn=False) as model:
        yield model.generate("def f():", raw=True, max_tokens=4)


def shown(completion: Completion, text: str, size: int, markdown: bool = True) -> tuple[str, str]:
    """What a terminal is sent, and the screen that is left of it."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60, height=20, color_system="standard")
    show_live(console, markdown, (text[i : i + size] for i in range(0, len(text), size)), completion)
    screen = pyte.HistoryScreen(60, 60)
    pyte.Stream(screen).feed(file.getvalue().replace("\n", "\r\n"))
    return file.getvalue(), "\n".join(line.rstrip() for line in screen.display).rstrip("\n")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_screen_at_the_end_does_not_depend_on_the_pieces(completion: Completion, size: int) -> None:
    sent, screen = shown(completion, TEXT, size)
    paragraph = "A paragraph with code and bold words\nover two lines."
    for part in ("Title", paragraph, "1 first", "2 second", "    return 1"):
        assert screen.count(part) == 1, screen
    assert screen.endswith("The end.")
    assert "Title\n\nA paragraph" in screen
    assert "tokens/s" not in screen
    assert "\x1b[" in sent


def test_other_texts_keep_their_lines(completion: Completion) -> None:
    text = "class A:\n    def __init__(self):\n        self.x = 1  # " + "long " * 20
    _, screen = shown(completion, text, 5, markdown=False)
    assert screen.replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")
    assert "    def __init__(self):" in screen


def test_the_speed_is_shown_meanwhile(completion: Completion) -> None:
    sent, _ = shown(completion, TEXT, 7)
    assert "tokens/s, the first after " in sent


def test_a_block_taller_than_the_screen_shows_its_end(completion: Completion) -> None:
    text = "```\n" + "\n".join(f"line {i}" for i in range(50))
    _, screen = shown(completion, text, 1000)
    assert all(f"line {i}" in screen for i in range(50))


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("one", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", "one\n\n"),
        ("- a\n\n  more", ""),
        ("- a\n\n  more\n\nnext", "- a\n\n  more\n\n"),
        ("```\na\n\nb", ""),
        ("```\na\n```\nb", "```\na\n```\n"),
        ("~~~\n```\n\nb\n~~~\n\nc", "~~~\n```\n\nb\n~~~\n\n"),
        ("one\n\n\n\ntwo\n\nthree", "one\n\n\n\ntwo\n\n"),
    ],
)
def test_blocks_are_finished_where_nothing_can_change_them(text: str, finished: str) -> None:
    assert text[: finished_blocks(text)] == finished


def test_plain_answers_are_the_text_and_nothing_else(completion: Completion) -> None:
    file = io.StringIO()
    show_plain(Console(file=file, force_terminal=True), ["a", "b"], completion)
    assert file.getvalue() in ("ab\n", "ab\n\n")


HOSTILE = "one\x1b[2J\x1b]0;title\a two\r\u202eeno\x9b1A"
SHOWN = "one\\u001b[2J\\u001b]0;title\\u0007 two\\u000d\\u202eeno\\u009b1A"


@pytest.mark.parametrize("markdown", [True, False])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_an_answer_cannot_command_the_terminal(completion: Completion, size: int, markdown: bool) -> None:
    sent, screen = shown(completion, HOSTILE, size, markdown)
    assert screen.replace("\n", "") == SHOWN
    assert not [command for command in ("\x1b[2J\x1b]", "\x1b]", "\a", "\u202e", "\x9b") if command in sent]


@pytest.mark.parametrize(("is_terminal", "written"), [(True, SHOWN), (False, HOSTILE)])
def test_plain_answers_are_escaped_on_a_terminal_only(completion: Completion, is_terminal: bool, written: str) -> None:
    file = io.StringIO()
    show_plain(Console(file=file, force_terminal=is_terminal), HOSTILE, completion)
    assert file.getvalue().strip() == written
