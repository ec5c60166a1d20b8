"""JSON pointers within a schema, as `$ref` has them."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

_MOST_DIGITS = 9  # of an index


def pointed_at(root: Any, pointer: str) -> Any:
    """The part of `root` that a pointer beginning with # names. Raises KeyError if there is none."""
    value = root
    for part in unquote(pointer).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isdecimal() and len(key) <= _MOST_DIGITS and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            raise KeyError(pointer)
    return value
