"""Answers while they are written: as Markdown, what is finished, and that nothing is lost or shown twice; as they come,
nothing but the answer on stdout, the thinking on stderr, and neither commands a terminal.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from threading import Event

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.live import Live

import specrun
from specrun.decoding.completion import Completion
from specrun.reading.deltas import Delta
from specrun.views import answer_stream, output
from specrun.views.answer_stream import PlainAnswer, finished_blocks, show_live
from specrun.views.markdown_text import MarkdownText
from specrun.views.output import LiteralConsole
from tests.waiting import wait_until

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
    console = LiteralConsole(file=file, force_terminal=True, width=60, height=20, color_system="standard")
    pieces = (Delta(content=text[i : i + size]) for i in range(0, len(text), size))
    show_live(console, MarkdownText if markdown else None, pieces, completion, shows_thinking=True)
    return file.getvalue(), "\n".join(lines_of(file.getvalue(), 60, 60)).rstrip("\n")


def lines_of(sent: str, width: int, height: int) -> list[str]:
    """The lines of a terminal that was sent this, those of its scrollback first."""
    screen = pyte.HistoryScreen(width, height, history=1000)
    pyte.Stream(screen).feed(sent.replace("\n", "\r\n"))
    above = ["".join(line[i].data for i in range(width)) for line in screen.history.top]
    return [line.rstrip() for line in [*above, *screen.display]]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_screen_at_the_end_does_not_depend_on_the_pieces(completion: Completion, size: int) -> None:
    sent, screen = shown(completion, TEXT, size)
    paragraph = "A paragraph with code and bold words\nover two lines."
    for part in ("Title", paragraph, "1. first", "2. second", "    return 1"):
        assert screen.count(part) == 1, screen
    assert screen.endswith("The end.")
    assert "Title\n\nA paragraph" in screen
    assert "tokens/s" not in screen
    assert "\x1b[" in sent


def test_nothing_is_drawn_in_the_middle_of_a_print(completion: Completion, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame there would be drawn over lines that were just printed."""
    is_printing, drawn, print_pending, refresh = Event(), [], answer_stream._Answer.print_pending, Live.refresh

    def slow_print(answer: answer_stream._Answer, end: int) -> None:
        is_printing.set()
        Event().wait(0.01)
        print_pending(answer, end)
        is_printing.clear()

    def checked_refresh(live: Live) -> None:
        drawn.append(is_printing.is_set())
        refresh(live)

    monkeypatch.setattr(answer_stream, "_FRAMES_PER_SECOND", 1000)
    monkeypatch.setattr(answer_stream._Answer, "print_pending", slow_print)
    monkeypatch.setattr(Live, "refresh", checked_refresh)
    shown(completion, TEXT, 7)
    assert drawn
    assert not any(drawn)


def test_other_texts_keep_their_lines(completion: Completion) -> None:
    text = "class A:\n    def __init__(self):\n        self.x = 1  # " + "long " * 20
    _, screen = shown(completion, text, 5, markdown=False)
    assert screen.replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")
    assert "    def __init__(self):" in screen


def test_the_speed_is_shown_meanwhile(completion: Completion) -> None:
    sent, _ = shown(completion, TEXT, 7)
    assert "tokens/s, the first after " in sent


@pytest.mark.slow
@pytest.mark.parametrize("markdown", [True, False])
def test_a_long_paragraph_is_visible_while_it_is_written(completion: Completion, markdown: bool) -> None:
    """As much of its end as fits the screen above the line about the speed; at the end all of it has scrolled by."""
    width, height, words = 80, 24, [f"w{i}" for i in range(998)]
    file = io.StringIO()

    console = LiteralConsole(file=file, force_terminal=True, width=width, height=height)

    def check_the_last(n_written: int) -> None:
        def seen() -> list[str]:
            screen = " ".join(lines_of(file.getvalue(), width, height)[-height:])
            return [word for word in screen.split() if word.startswith("w")]

        wait_until(lambda: words[n_written - 1] in seen(), f"{n_written} words")
        assert seen() == words[n_written - len(seen()) : n_written]
        assert len(seen()) > (height - 3) * width // len("w999  ")

    def pieces() -> Iterator[Delta]:
        for i, word in enumerate(words, start=1):
            yield Delta(content=f"{word} ")
            if i in (301, len(words)):
                check_the_last(i)

    show_live(console, MarkdownText if markdown else None, pieces(), completion, shows_thinking=True)
    # Other texts are broken by the terminal, so that a line stays one when it is copied.
    assert "".join(lines_of(file.getvalue(), width, height)).replace(" ", "") == "".join(words)


@pytest.mark.parametrize("shows_thinking", [True, False])
def test_thinking_is_drawn_and_folds_to_a_line(completion: Completion, shows_thinking: bool) -> None:
    file = io.StringIO()
    console = LiteralConsole(file=file, force_terminal=True, width=80, height=24)

    def seen() -> str:
        return "\n".join(lines_of(file.getvalue(), 80, 24))

    def deltas() -> Iterator[Delta]:
        yield Delta(reasoning="It may <b>be</b> ")
        yield Delta(reasoning="so\nor not")
        wait_until(lambda: "thinking, " in seen(), "the line below")
        if shows_thinking:
            wait_until(lambda: "It may <b>be</b> so\nor not\nthinking, " in seen(), "the thinking")
        yield Delta(content="Yes.")
        wait_until(lambda: "Yes." in seen(), "the answer")
        assert "or not" not in seen()

    show_live(console, MarkdownText, deltas(), completion, shows_thinking)
    folded, empty, answer, *rest = seen().splitlines()
    assert re.fullmatch(r"thought for \d+\.\d s, \d+ tokens", folded)
    assert (empty, answer) == ("", "Yes.")
    assert not "".join(rest)
    assert ("may" in file.getvalue()) == shows_thinking


def test_thinking_that_is_interrupted_folds_too(completion: Completion) -> None:
    file = io.StringIO()
    console = LiteralConsole(file=file, force_terminal=True, width=80, height=24)
    show_live(console, MarkdownText, [Delta(reasoning="hm")], completion, shows_thinking=True)
    assert "".join(lines_of(file.getvalue(), 80, 24)).startswith("thought for ")


@pytest.mark.slow
@given(st.text(alphabet="ab1 \n*`~#-+>|<[]().&_", max_size=200), st.integers(1, 9))
def test_no_letter_is_lost_or_shown_twice(completion: Completion, text: str, size: int) -> None:
    _, screen = shown(completion, text, size)
    assert [c for c in screen if c in "ab1<().&"] == [c for c in text if c in "ab1<().&"]


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
        ("```\n```py\n\nb\n````\nc", "```\n```py\n\nb\n````\n"),
        ("~~~\n```\n\nb\n~~~\n\nc", "~~~\n```\n\nb\n~~~\n\n"),
        ("one\n\n\n\ntwo\n\nthree", "one\n\n\n\ntwo\n\n"),
    ],
)
def test_blocks_are_finished_where_nothing_can_change_them(text: str, finished: str) -> None:
    assert text[: finished_blocks(text)] == finished


HOSTILE = "one\x1b[2J\x1b]0;title\a two\r\u202eeno\x9b1A"
SHOWN = "one\\u001b[2J\\u001b]0;title\\u0007 two\\u000d\\u202eeno\\u009b1A"


@pytest.mark.parametrize("markdown", [True, False])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_an_answer_cannot_command_the_terminal(completion: Completion, size: int, markdown: bool) -> None:
    sent, screen = shown(completion, HOSTILE, size, markdown)
    assert screen.replace("\n", "") == SHOWN
    assert not [command for command in ("\x1b[2J\x1b]", "\x1b]", "\a", "\u202e", "\x9b") if command in sent]


DELTAS = [
    Delta(reasoning="a\n"),
    Delta(reasoning="\nb "),
    Delta(content="c"),
    Delta(content=" d\n"),
    Delta(content="e"),
]


def written(deltas: list[Delta], shows_thinking: bool = True, is_terminal: bool = False) -> tuple[str, str]:
    """What goes to stdout and to stderr."""
    files = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    with pytest.MonkeyPatch.context() as patch:
        for name, file in files.items():
            patch.setattr(file, "isatty", lambda: is_terminal)
            patch.setattr(output, name, LiteralConsole(file=file, force_terminal=is_terminal, width=20))
        answer = PlainAnswer(shows_thinking)
        for delta in deltas:
            assert answer.shows(delta) == (bool(delta.content) or shows_thinking)
            answer.add(delta)
        answer.end_line()
    return files["stdout"].getvalue(), files["stderr"].getvalue()


def test_answer_and_thinking_go_apart() -> None:
    assert written(DELTAS) == ("c d\ne\n", "a\n\nb \n\n")
    assert written(DELTAS, shows_thinking=False) == ("c d\ne\n", "")
    assert written(DELTAS[:2]) == ("", "a\n\nb \n\n")


def test_thinking_is_dimmed_on_a_terminal() -> None:
    answer, thinking = written(DELTAS, is_terminal=True)
    assert answer == "c d\ne\n"
    assert thinking == "\x1b[2ma\x1b[0m\n\n\x1b[2mb \x1b[0m\n\n"


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, SHOWN), (False, HOSTILE)])
def test_answers_are_escaped_on_a_terminal_only(is_terminal: bool, shown: str) -> None:
    answer, _ = written([Delta(content=HOSTILE)], is_terminal=is_terminal)
    assert answer.strip() == shown


def test_thinking_cannot_command_the_terminal() -> None:
    _, thinking = written([Delta(reasoning=HOSTILE)], is_terminal=True)
    assert SHOWN in thinking
