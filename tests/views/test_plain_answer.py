"""Answers as they come: nothing but the answer on stdout, the thinking on stderr, and neither commands a terminal."""

from __future__ import annotations

import io

import pytest

from specrun.reading.deltas import Delta
from specrun.views.output import LiteralConsole
from specrun.views.plain_answer import PlainAnswer
from tests.views.test_answer_stream import HOSTILE, SHOWN

DELTAS = [
    Delta(reasoning="a\n"),
    Delta(reasoning="\nb "),
    Delta(content="c"),
    Delta(content=" d\n"),
    Delta(content="e"),
]


def written(deltas: list[Delta], shows_thinking: bool = True, is_terminal: bool = False) -> tuple[str, str]:
    """What goes to stdout and to stderr."""
    files = io.StringIO(), io.StringIO()
    console, notes = (LiteralConsole(file=file, force_terminal=is_terminal, width=20) for file in files)
    answer = PlainAnswer(console, notes, shows_thinking)
    for delta in deltas:
        assert answer.shows(delta) == (bool(delta.content) or shows_thinking)
        answer.add(delta)
    answer.end_line()
    return files[0].getvalue(), files[1].getvalue()


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
