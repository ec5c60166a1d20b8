"""Sizes as people read them; what a terminal would obey is shown as an escape; messages without what gives access."""

from __future__ import annotations

import json

import pytest

from specrun.display_text import counted, duration_text, one_line, size_text, utf8, visible, without_secrets


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (12_000, "12 kB"),
        (675_710_816, "676 MB"),
        (8_988_110_496, "8.99 GB"),
        (142_000_000_000, "142 GB"),
    ],
)
def test_sizes(n_bytes: int, text: str) -> None:
    assert size_text(n_bytes) == text


def test_one_is_singular() -> None:
    assert [counted(n, "text") for n in (0, 1, 12)] == ["0 texts", "1 text", "12 texts"]


def test_lengths_of_time() -> None:
    assert list(map(duration_text, (0.4, 8, 43, 100, 200, 5000, 9000))) == [
        "0 s", "8 s", "45 s", "100 s", "3 min", "83 min", "2.5 h"
    ]  # fmt: skip


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


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("no connection to https://me:pass@hub.example/x", "no connection to https://***@hub.example/x"),
        ("for url 'https://cdn/x?Signature=abc&Key=1'; retry", "for url 'https://cdn/x?***'; retry"),
        ("Authorization: Bearer abcdef", "Authorization: ***"),
        ("{'authorization': 'Bearer abcdef'}", "{'authorization': '***'}"),
        ("sent Bearer abcdefgh12", "sent Bearer ***"),
        ("token hf_abcdefghijkl is wrong", "token hf_*** is wrong"),
        ("https://hf.co/org/repo/tree/main", "https://hf.co/org/repo/tree/main"),
        ("Bearer of news, basic decoding", "Bearer of news, basic decoding"),
    ],
)
def test_what_gives_access_is_hidden(text: str, left: str) -> None:
    assert without_secrets(text) == left


def test_the_tokens_own_text_is_hidden_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secretsecret")
    assert without_secrets("got secretsecret back") == "got *** back"


def test_a_name_that_is_not_utf8_can_be_sent() -> None:
    assert [utf8(name) for name in ("é.gguf", "m\udcff.gguf", "\udcc3\udca9.gguf")] == [
        "é.gguf",
        "m\ufffd.gguf",
        "é.gguf",
    ]
