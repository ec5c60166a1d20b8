"""What a terminal would obey is shown as an escape."""

from __future__ import annotations

import json

import pytest

from specrun.visible import one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\u001b[2J"),  # clears the screen
        ("\x9b2J", "\\u009b2J"),  # the same in one character
        ("\x1b]0;title\a", "\\u001b]0;title\\u0007"),
        ("good\rbad", "good\\u000dbad"),
        ("ab\b\bcd", "ab\\u0008\\u0008cd"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066a\u2069", "\\u2066a\\u2069"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb", "a\nb"),
        ("שלום, 世界, é, 👩‍💻", "שלום, 世界, é, 👩‍💻"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_one_line_has_one_line() -> None:
    assert one_line("a\nb\tc\u2028d\r\n") == "a\\u000ab\\u0009c\\u2028d\\u000d\\u000a"


def test_json_stays_json() -> None:
    text = "".join(map(chr, range(0x20A0)))
    assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text
