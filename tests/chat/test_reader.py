"""Messages from a pipe; the terminal's are in test_terminal.py."""

from __future__ import annotations

import io

import pytest

from specrun.chat.reader import PipeReader
from specrun.errors import PromptError


def messages(data: bytes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    reader, found = PipeReader(), []
    while True:
        try:
            found.append(reader.read())
        except EOFError:
            return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo\r\nthree", ["one", "two", "three"]),
        (b"\n one \n", ["", " one "]),
        (b'"""\none\n\ntwo\n"""\nthree\n', ["one\n\ntwo", "three"]),
        (b'"""one\ntwo"""\nthree', ["one\ntwo", "three"]),
        (b'"""one"""\n', ["one"]),
        (b'say """ now\n', ['say """ now']),
        (b'"""one\nand no end', ["one\nand no end"]),
        (b"", []),
    ],
)
def test_a_message_a_line_or_between_triple_quotes(
    data: bytes, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert messages(data, monkeypatch) == expected


def test_a_line_that_is_not_utf8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PromptError, match="line 2 of stdin is not UTF-8"):
        messages(b"one\n\xff\n", monkeypatch)
