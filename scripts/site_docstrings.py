"""Turns the docstrings' lines of the form `name: meaning` into lists, for the site's Python reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIELD = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


class FieldsAsLists(griffe.Extension):
    """What mkdocs.yml names as an extension of the Python handler."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called with everything that was read."""
        if obj.docstring:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """The docstring with a list item for each parameter or attribute; indented lines belong to the one before."""
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        found = _FIELD.match(line)
        if found:
            if not in_list and lines and lines[-1]:
                lines.append("")
            lines.append(f"- `{found[1]}`: {line[found.end() :]}")
            in_list = True
        elif in_list and line.startswith("    "):
            lines.append(line)
        elif in_list and line.strip() and lines[-1]:  # a field's second line that is not indented
            lines.append(f"    {line}")
        else:
            in_list = False
            lines.append(line)
    return "\n".join(lines)
