"""Facts that took time to find out, each in a file of its own. A file that is missing or damaged is as no fact."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from specrun.locations import parse_json, write_json

Fact = TypeVar("Fact")


def recall(path: Path, read: Callable[[Any], Fact | None]) -> Fact | None:
    """The fact that `read` finds in the JSON value at `path`; None if there is none, or `read` fails."""
    try:
        return read(parse_json(path.read_bytes()))
    except Exception:  # what is damaged may fail anywhere in `read`; it is found out again
        return None


def remember(path: Path, value: Any) -> None:
    """Keep a JSON value at `path`, whole or not at all. If the disk refuses, it is found out again."""
    with suppress(OSError):
        write_json(path, value)
