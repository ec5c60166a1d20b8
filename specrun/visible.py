"""Text from models, files and networks, made harmless for a terminal.

A terminal takes control characters as commands: they can rewrite what is already shown, set the window's title or fill
the clipboard. Bidirectional overrides show text in another order than it has. Both are shown as escapes, `\\u001b`,
which are the same in JSON.
"""

from __future__ import annotations

import re

# C0 without tab and newline, DEL and C1; embeddings, overrides and isolates of the bidirectional algorithm.
_COMMANDS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[{_COMMANDS}]")
_UNSAFE_IN_A_LINE = re.compile(f"[{_COMMANDS}\t\n\u2028\u2029]")


def visible(text: str) -> str:
    """`text` with control characters and bidirectional overrides as escapes; tabs and line breaks stay."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n") if "\r" in text else text)


def one_line(text: str) -> str:
    """The same with tabs and line breaks as escapes too, for names and for messages of one line."""
    return _UNSAFE_IN_A_LINE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
