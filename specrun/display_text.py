r"""Text that people see: sizes and rates, near spellings, control characters made harmless, secrets taken out.

A terminal takes control characters as commands: they can rewrite what is already shown, set the window's title or fill
the clipboard. Bidirectional overrides show text in another order than it has. Text from models, files and networks
therefore shows both as escapes, `\u001b`, which are the same in JSON. Messages of a network's client quote addresses
and headers, in which passwords, tokens and signatures stand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

# C0 without tab and newline, DEL and C1; embeddings, overrides and isolates of the bidirectional algorithm.
_COMMANDS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[{_COMMANDS}]")
_UNSAFE_IN_A_LINE = re.compile(f"[{_COMMANDS}\t\n\u2028\u2029]")

_MAX_SUGGESTIONS = 3
_HIDDEN = "***"
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_SHORTEST_TOKEN = 8  # characters; a shorter one, as in a test, would hide ordinary words
_SECRETS = (
    (re.compile(r"(\w+://)[^\s/@]*@"), rf"\1{_HIDDEN}@"),  # user:password before a host
    (re.compile(r"(\w+://[^\s?#'\"]*)\?[^\s'\")]*"), rf"\1?{_HIDDEN}"),  # queries, which sign redirected downloads
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?)(?:\w+ )?[^\s'\",}]+"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(Bearer|Basic) [\w.~+/=-]{8,}"), rf"\1 {_HIDDEN}"),
    (re.compile(r"\bhf_\w{8,}"), f"hf_{_HIDDEN}"),
)


def rate_text(tokens_per_second: float) -> str:
    """Tokens per second with about three digits: `6.26`, `30.1`, `1206`."""
    return f"{tokens_per_second:.{2 if tokens_per_second < 10 else 1 if tokens_per_second < 1000 else 0}f}"


def size_text(n_bytes: float) -> str:
    """A size in decimal units, which the hub and disk vendors use: `8.99 GB`, `676 MB`, `12 kB`."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= factor:
            value = n_bytes / factor
            return f"{value:.2f} {unit}" if unit == "GB" and value < 100 else f"{value:.0f} {unit}"
    return f"{n_bytes:.0f} bytes"


def counted(n: int, noun: str) -> str:
    """A number of things: `1 text`, `12 texts`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """A length of time with about two digits, in one unit: `8 s`, `45 s`, `3 min`, `1.7 h`."""
    if seconds < 120:
        return f"{seconds if seconds < 20 else 5 * round(seconds / 5):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def near(name: str, others: Iterable[str], least: float = 0.6) -> list[str]:
    """Up to 3 of the `others` that are spelled like `name`, the most similar first. least: similarity, from 0 to 1."""
    import difflib  # takes time, and is for mistakes only

    by_lower = {other.lower(): other for other in others}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, _MAX_SUGGESTIONS, least)]


def did_you_mean(name: str, others: Iterable[str], called: Callable[[str], str] = str) -> str:
    """A question that names the one of the `others` that is spelled most like `name`, with a blank; or nothing.

    called: gives what that one is called here, as some of the `others` may be names that other tools have.
    """
    found = near(name, others)
    return f"did you mean {called(found[0])}? " if found else ""


def visible(text: str) -> str:
    """`text` with control characters and bidirectional overrides as escapes; tabs and line breaks stay."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n") if "\r" in text else text)


def one_line(text: str) -> str:
    """The same with tabs and line breaks as escapes too, for names and for messages of one line."""
    return _UNSAFE_IN_A_LINE.sub(_escape, text)


def utf8(name: str) -> str:
    """The name of a file with U+FFFD for its bytes that are not UTF-8, which Python has as lone surrogates."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def without_secrets(text: str) -> str:
    """`text` without what gives access: tokens, passwords in addresses, and the queries of addresses."""
    for token in filter(None, map(os.environ.get, _TOKEN_VARIABLES)):
        if len(token) >= _SHORTEST_TOKEN:
            text = text.replace(token, _HIDDEN)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
