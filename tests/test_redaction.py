"""Messages without what gives access."""

from __future__ import annotations

import pytest

from specrun.redaction import without_secrets


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
