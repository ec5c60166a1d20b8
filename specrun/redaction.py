"""Keeps passwords, tokens and signatures out of messages: what a network's client says quotes addresses and headers."""

from __future__ import annotations

import os
import re

_HIDDEN = "***"
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_SHORTEST_TOKEN = 8  # characters; a shorter one, as in a test, would hide ordinary words

_PATTERNS = (
    (re.compile(r"(\w+://)[^\s/@]*@"), rf"\1{_HIDDEN}@"),  # user:password before a host
    (re.compile(r"(\w+://[^\s?#'\"]*)\?[^\s'\")]*"), rf"\1?{_HIDDEN}"),  # queries, which sign redirected downloads
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?)(?:\w+ )?[^\s'\",}]+"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(Bearer|Basic) [\w.~+/=-]{8,}"), rf"\1 {_HIDDEN}"),
    (re.compile(r"\bhf_\w{8,}"), f"hf_{_HIDDEN}"),
)


def without_secrets(text: str) -> str:
    """`text` without what gives access: tokens, passwords in addresses, and the queries of addresses."""
    for token in filter(None, map(os.environ.get, _TOKEN_VARIABLES)):
        if len(token) >= _SHORTEST_TOKEN:
            text = text.replace(token, _HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
